"""Where a selector of berth differs from kube-scheduler 1.36.3, each kind once."""

import pytest

from berth.cel.errors import CompileError, UnsupportedError
from berth.cel.selector import compile_selector
from harness.builders.devices import device


def test_a_sum_of_quantities_may_stand_on_the_right():
    """There it is "no such overload": two Go types stand for a quantity, and == knows the one of them only."""
    assert compile_selector('quantity("3") == quantity("1").add(quantity("2"))').matches(device()) is True


@pytest.mark.parametrize("levels", [31, 40])
def test_expressions_nest_up_to_the_parsers_limit(levels: int):
    """The parser reads 32 levels, kube-scheduler's 250."""
    expression = " + ".join(["1"] * levels) + " > 0"
    if levels < 32:
        assert compile_selector(expression).matches(device())
    else:
        with pytest.raises(CompileError, match="recursion"):
            compile_selector(expression)


@pytest.mark.parametrize("text", ["a:b", "http://", "http://a b", "http://a#b", "http:///path"])
def test_urls_of_unusual_forms_are_refused(text: str):
    """kube-scheduler reads some of them, by rules of Go's package net/url."""
    with pytest.raises(UnsupportedError):
        compile_selector(f'isURL("{text}")').matches(device())


def test_sums_of_long_lists_are_refused():
    with pytest.raises(UnsupportedError, match="more than 10,000 elements"):
        compile_selector("(lists.range(9000) + lists.range(9000)).size() > 0").matches(device())


def test_other_keys_of_maps_are_refused():
    with pytest.raises(UnsupportedError, match="keys of type list"):
        compile_selector("{[1]: 2}.size() == 1")
