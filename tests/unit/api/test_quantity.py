"""Quantities are read as Kubernetes reads them: exactly, and rounded up."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.resources import MAX_VALUE, QuantityError, milli_value, of_resource, value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("2", 2),
        (3, 3),
        (1.5, 2),
        ("1.5", 2),
        ("1500m", 2),
        ("1k", 1000),
        ("1.5Gi", 1610612736),
        ("2Ki", 2048),
        ("1e3", 1000),
        ("12E2", 1200),
        ("1E", 10**18),
        ("5.", 5),
        (".5", 1),
        ("100n", 1),
        ("+7", 7),
        ("-1", -1),
        ("-1.5", -2),
        ("9Ei", MAX_VALUE),
        ("1e999999", MAX_VALUE),
        ("1e-999999", 1),
    ],
)
def test_values_are_base_units_rounded_up(text, expected):
    assert value(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("1", 1000), ("100m", 100), ("0.1", 100), ("1u", 1), ("2k", 2_000_000)])
def test_cpu_is_in_millicores_rounded_up(text, expected):
    assert (milli_value(text), of_resource("cpu", text)) == (expected, expected)


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1GiB", "1e", "--1", "1.2.3", ".", "Gi", "1ki", "9" * 500])
def test_anything_else_is_rejected_with_its_text(text):
    with pytest.raises(QuantityError, match="want a quantity such as 500m or 2Gi, got"):
        value(text)


@given(st.from_regex(r"[0-9]{1,17}m?", fullmatch=True))
def test_plain_numbers_have_the_value_that_they_have_as_fractions(text):
    """Most quantities are such numbers, and are read without fractions."""
    exact = Fraction(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    assert value(text) == min(MAX_VALUE, math.ceil(exact))
    assert milli_value(text) == min(MAX_VALUE, math.ceil(exact * 1000))


@pytest.mark.parametrize("text", ["m", "", "\uff11\uff12", "1_000", "5mm", "٣m"])
def test_only_ascii_digits_are_a_number(text):
    with pytest.raises(QuantityError):
        value(text)
