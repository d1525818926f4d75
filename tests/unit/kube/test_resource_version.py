"""resourceVersions compare as numbers."""

import pytest

from berth.api.errors import DecodeError
from berth.api.meta import compare_resource_versions, parse_resource_version


def test_versions_compare_as_numbers_not_as_text():
    assert compare_resource_versions("999", "1000") < 0
    assert compare_resource_versions("1000", "999") > 0
    assert compare_resource_versions("1000", "1000") == 0


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x10", "٣", "1 "])
def test_version_that_is_no_decimal_number_is_refused_with_its_value(text: str):
    with pytest.raises(DecodeError, match="decoding resourceVersion"):
        parse_resource_version(text)
