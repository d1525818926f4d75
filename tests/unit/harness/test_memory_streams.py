"""Subjects and the filters that take them, as nats-server matches them."""

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
def test_a_filter_takes_what_the_server_takes(one, subject, taken):
    assert matches(one)(subject) is taken


def test_several_filters_take_what_one_of_them_takes():
    test = matches_any(("a.>", "b.*"))
    assert [test(subject) for subject in ("a.x.y", "b.x", "b.x.y", "c")] == [True, True, False, False]
