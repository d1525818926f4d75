"""Which subjects a filter takes: ``*`` stands for one token, ``>`` at the end for one or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache


def is_subject(text: str) -> bool:
    """Whether a client may publish to it: it is not empty and has no white space."""
    return bool(text) and not set(text) & set(" \t\r\n")


@lru_cache(maxsize=256)
def takes(one: str) -> Callable[[str], bool]:
    """The test for one filter."""
    tokens = one.split(".")
    if "*" not in tokens:
        return _plain(one)
    open_ended = tokens[-1] == ">"
    fixed = tokens[:-1] if open_ended else tokens

    def test(subject: str) -> bool:
        found = subject.split(".")
        long_enough = len(found) > len(fixed) if open_ended else len(found) == len(fixed)
        return long_enough and all(want in ("*", got) for want, got in zip(fixed, found, strict=False))

    return test


def takes_any(filters: Iterable[str]) -> Callable[[str], bool]:
    """The test for several filters at once."""
    tests = [takes(one) for one in filters]
    return tests[0] if len(tests) == 1 else lambda subject: any(test(subject) for test in tests)


def _plain(one: str) -> Callable[[str], bool]:
    """Without ``*`` the text is compared as it is."""
    if one == ">":
        return bool
    if one.endswith(".>"):
        prefix = one[:-1]
        return lambda subject: subject.startswith(prefix) and len(subject) > len(prefix)
    return lambda subject: subject == one
