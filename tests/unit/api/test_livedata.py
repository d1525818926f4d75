"""NodeSample on the bus and in annotations."""

from datetime import UTC, datetime

import pytest

from berth.api.config.networktraffic import annotated_rate, bytes_per_second
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.resources import QuantityError
from berth.errors import DecodeError
from berth.messages.livedata import MeasuredUsage, NodeSample, decode_sample, encode_sample, utc_time

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_value_is_written_as_readable_json():
    sample = NodeSample(receive=80e6, transmit=0.5, capacity=125e6, sampled_at=utc_time(T0.timestamp() + 0.25))
    written = encode_sample(sample)
    assert written == (
        b'{"schema":1,"receive":80000000.0,"transmit":0.5,"capacity":125000000.0,"sampled_at":"2026-01-01T00:00:00.250000Z"}'
    )
    assert decode_sample(written) == sample


def test_a_sample_of_cpu_and_memory_has_only_the_statistics_that_were_asked_for():
    sample = NodeSample(
        cpu=MeasuredUsage(average=1500.0, p95=2600.0), memory=MeasuredUsage(average=2.0**30), sampled_at=T0
    )
    written = encode_sample(sample)
    assert written == (
        b'{"schema":1,"cpu":{"average":1500.0,"p95":2600.0},"memory":{"average":1073741824.0},'
        b'"sampled_at":"2026-01-01T00:00:00Z"}'
    )
    assert decode_sample(written) == sample
    assert not sample.has_traffic


@pytest.mark.parametrize("amount", [b"-1", b"1e16"])
def test_an_impossible_usage_is_refused(amount):
    with pytest.raises(DecodeError, match=r"cpu\.p50: want millicores of 0 to 1e\+15"):
        decode_sample(b'{"schema":1,"cpu":{"p50":%b},"sampled_at":"2026-01-01T00:00:00Z"}' % amount)


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
