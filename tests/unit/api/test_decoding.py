"""resourceVersions compare as numbers."""

import pytest

from berth.decoding import parse_resource_version, version_number
from berth.errors import DecodeError


def test_versions_compare_as_numbers():
    assert version_number("999") < version_number("1000") == parse_resource_version("1000")


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x10", "٣", "1 "])
def test_version_that_is_no_decimal_number_is_rejected_with_its_value(text: str):
    assert version_number(text) == 0
    with pytest.raises(DecodeError, match="decoding resourceVersion"):
        parse_resource_version(text)
