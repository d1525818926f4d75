"""What is shown holds nothing that a terminal obeys, and no passwords."""

import pytest

from berth.safetext import lines, one_line, without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("web-0", "web-0", id="a name"),
        pytest.param("näme \t日本 ✓", "näme \t日本 ✓", id="other languages and tabs"),
        pytest.param("a\x1b[2Jb", "a\\x1b[2Jb", id="an escape sequence"),
        pytest.param("a\x9b2Jb\x7f", "a\\x9b2Jb\\x7f", id="C1 and DEL"),
        pytest.param("a\r\nok\x00", "a\\r\\nok\\x00", id="line ends"),
        pytest.param("a\u202eb\u2066c\u2028", "a\\u202eb\\u2066c\\u2028", id="direction of text"),
        pytest.param("\ud800", "\\ud800", id="half a character"),
        pytest.param("\U000e0041", "\\U000e0041", id="a tag"),
    ],
)
def test_one_line_has_nothing_that_a_terminal_obeys(text: str, shown: str):
    assert one_line(text) == shown


def test_line_ends_of_several_lines_stay():
    assert lines("a\n\x1b[1m\r\nb") == "a\n\\x1b[1m\\r\nb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("connecting to nats://a:b@host:4222: refused", "connecting to nats://***@host:4222: refused"),
        ("nats://tok@h,tls://u:p@w@h2", "nats://***@h,tls://***@h2"),
        ("https://host/path?to=a@b", "https://host/path?to=a@b"),
        ("mail a@b", "mail a@b"),
    ],
)
def test_passwords_of_urls_are_not_shown(text: str, shown: str):
    assert without_passwords(text) == shown
