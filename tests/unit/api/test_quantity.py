"""Quantities are read as Kubernetes reads them: exactly, and rounded up."""

import pytest

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
