"""Bandwidth on the bus and in annotations."""

from datetime import UTC, datetime

import pytest

from berth.api.config.networktraffic import annotated_rate, bytes_per_second
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.resources import QuantityError
from berth.messages.livedata import Bandwidth, decode_bandwidth, encode_bandwidth, utc_time

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_value_is_written_as_readable_json():
    sample = Bandwidth(receive=80e6, transmit=0.5, capacity=125e6, sampled_at=utc_time(T0.timestamp() + 0.25))
    written = encode_bandwidth(sample)
    assert written == (
        b'{"schema":1,"receive":80000000.0,"transmit":0.5,"capacity":125000000.0,"sampled_at":"2026-01-01T00:00:00.250000Z"}'
    )
    assert decode_bandwidth(written) == sample


@pytest.mark.parametrize(("bits", "bytes_"), [("8", 1.0), ("10M", 1.25e6), ("1G", 1.25e8), (16, 2.0), ("0", 0.0)])
def test_rates_that_people_write_are_bits(bits, bytes_):
    assert bytes_per_second(bits) == bytes_


def test_an_invalid_rate_is_rejected_and_an_invalid_annotation_ignored():
    for text in ("fast", "-1M", ""):
        with pytest.raises(QuantityError):
            bytes_per_second(text)
        assert annotated_rate(Pod(metadata=ObjectMeta(annotations={"a": text})), "a") is None
    assert annotated_rate(Pod(metadata=ObjectMeta()), "a") is None
    assert annotated_rate(Pod(metadata=ObjectMeta(annotations={"a": "80"})), "a") == 10.0
