"""Filters match subjects as on nats-server."""

import pytest

from harness.fakes.memory_streams import matches, matches_any


@pytest.mark.parametrize(
    ("one", "subject", "taken"),
    [
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "ab.c", False),
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("a.*.>", "a.b.c.d", True),
        ("a.*.>", "a.b", False),
        ("*.b", "a.b", True),
        ("*.b", "a.c", False),
        ("berth.*.*.default.web.0", "berth.ranked.p.default.web.0", True),
    ],
)
def test_a_filter_matches_as_on_the_server(one, subject, taken):
    assert matches(one)(subject) is taken


def test_several_filters_match_what_one_of_them_matches():
    test = matches_any(("a.>", "b.*"))
    assert [test(subject) for subject in ("a.x.y", "b.x", "b.x.y", "c")] == [True, True, False, False]
