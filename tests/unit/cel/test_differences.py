"""Where a selector of berth differs from kube-scheduler 1.36.3, each kind once."""

import pytest

from berth.cel.errors import CompileError, UnsupportedError
from berth.cel.selector import compile_selector
from harness.builders.devices import device, matches


def test_a_sum_of_quantities_may_stand_on_the_right():
    """There it is "no such overload": two Go types stand for a quantity, and == knows the one of them only."""
    assert matches(compile_selector('quantity("3") == quantity("1").add(quantity("2"))'), device()) is True


@pytest.mark.parametrize("levels", [31, 40])
def test_expressions_nest_up_to_the_parsers_limit(levels: int):
    """The parser reads 32 levels, kube-scheduler's 250."""
    expression = " + ".join(["1"] * levels) + " > 0"
    if levels < 32:
        assert matches(compile_selector(expression), device())
    else:
        with pytest.raises(CompileError, match="recursion"):
            compile_selector(expression)


@pytest.mark.parametrize("text", ["a:b", "http://", "http://a b", "http://a#b", "http:///path"])
def test_urls_of_unusual_forms_are_refused(text: str):
    """kube-scheduler reads some of them, by rules of Go's package net/url."""
    with pytest.raises(UnsupportedError):
        matches(compile_selector(f'isURL("{text}")'), device())


def test_sums_of_long_lists_are_refused():
    with pytest.raises(UnsupportedError, match="more than 10,000 elements"):
        matches(compile_selector("(lists.range(9000) + lists.range(9000)).size() > 0"), device())


LONG = "a" * 200


@pytest.mark.parametrize(
    "text",
    [
        f'"{LONG}".replace("a", "{LONG}")',
        f'"{LONG}".replace("", "{LONG}", 1000)',
        f'"{LONG}".split("").join("{LONG}")',
        f'cel.bind(a, "{LONG * 30}", cel.bind(b, a + a, b + b))',
    ],
)
def test_long_texts_are_refused(text: str):
    """An admitted selector of 6 KB would make one of 4 GB, and to search a text costs 1, however long it is."""
    with pytest.raises(UnsupportedError, match="more than 20,000 characters"):
        matches(compile_selector(f"[{text}].all(a, a.size() > 0)"), device())


@pytest.mark.parametrize(("limit", "size"), [(-1, 40_200), (0, 200), (50, 10_200), (500, 40_200)])
def test_a_text_may_be_as_long_as_its_limit_of_replacements_allows(limit: int, size: int):
    expression = f'["{LONG}".replace("a", "{LONG}a", {limit})].all(a, a.size() == {size})'
    assert compile_selector(expression).evaluate(device()).matches is (size <= 20_000)


@pytest.mark.parametrize(
    "made",
    [
        f'lists.range(3000).map(a, "{LONG}".replace("a", "{LONG[:30]}"))',
        "cel.bind(a, lists.range(4000), lists.range(3000).map(b, a + a))",
    ],
)
def test_many_large_values_are_refused(made: str):
    """One by one they cost little, and together they would fill the memory."""
    with pytest.raises(UnsupportedError, match="characters and elements"):
        matches(compile_selector(f"{made}.size() > 0"), device())


def test_large_regular_expressions_are_refused():
    """They cost what small ones do, and to compile one would take half a second."""
    with pytest.raises(UnsupportedError, match="regular expressions as large as"):
        compile_selector(r'device.driver.matches(r"(?:\pL|\pN){1,64}")')
    with pytest.raises(UnsupportedError, match="regular expressions as large as"):
        matches(compile_selector(r'[r"\pL{99}"].exists(a, device.driver.matches(a))'), device())


def test_other_keys_of_maps_are_refused():
    with pytest.raises(UnsupportedError, match="keys of type list"):
        compile_selector("{[1]: 2}.size() == 1")
