"""docs/security.md has the rights that the servers are configured with."""

from harness.worlds.security_tables import PAGE, with_tables


def test_tables_of_the_page_are_those_of_the_declarations():
    page = PAGE.read_text()
    again = "PYTHONPATH=tests .venv/bin/python -m harness.worlds.security_tables writes them"
    assert page == with_tables(page), again
