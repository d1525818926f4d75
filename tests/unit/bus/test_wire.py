"""What the server says becomes what a caller can act upon, and what differs from the declaration is named."""

import pytest

from berth.api.errors import TemporaryError
from berth.bus.consumer import position_of
from berth.bus.interface import BusRefusedError, MissingError, TooLargeError, WrongLastSequenceError
from berth.bus.jetstream import JetStreamError, differences, error_from, read_answer, stream_config
from berth.bus.settings import TopologySettings
from berth.bus.streams import _answers
from berth.bus.topology import PENDING, declared_consumer, streams


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (404, 10059, MissingError),
        (404, 10014, MissingError),
        (400, 10071, WrongLastSequenceError),
        (400, 10164, WrongLastSequenceError),
        (400, 10054, TooLargeError),
        (400, 10099, BusRefusedError),
        (400, 10100, BusRefusedError),
        (500, 10052, BusRefusedError),
        (503, 10039, BusRefusedError),
        (400, 10058, BusRefusedError),
        (503, 10047, TemporaryError),
        (503, 10008, TemporaryError),
        (408, 0, BusRefusedError),
    ],
)
def test_a_refusal_becomes_the_error_that_says_what_to_do(code, err_code, kind):
    error = error_from("doing it", JetStreamError(code=code, err_code=err_code, description="its words"))
    assert type(error) is kind
    assert str(error).startswith("doing it: its words")


def test_a_server_without_jetstream_is_told_how_to_get_it():
    error = error_from(
        "asking", JetStreamError(code=503, err_code=10039, description="jetstream not enabled for account")
    )
    assert "-js" in str(error)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff", b'{"seq":"x"}'])
def test_an_answer_that_cannot_be_read_is_no_crash(data):
    with pytest.raises(TemporaryError, match="cannot be read"):
        read_answer("publishing", data, _answers)


def test_nothing_differs_from_what_was_declared():
    settings = TopologySettings()
    for stream in streams(settings):
        config = stream_config(stream, settings)
        zero_left_out = {key: value for key, value in config.items() if value}
        assert differences(stream.name, config, zero_left_out) == []


def test_a_difference_is_named_with_both_values():
    settings = TopologySettings()
    config = stream_config(streams(settings)[0], settings)
    assert differences("stream PENDING", config, config | {"max_age": 5, "more": 1}) == [
        "stream PENDING: max_age: want 0, got 5"
    ]


def test_consumers_are_declared_by_name():
    settings = TopologySettings()
    scorer = declared_consumer(settings, PENDING, "scorer")
    binder = declared_consumer(settings, "RANKED", "binder-12")
    assert scorer is not None
    assert scorer.ack_wait == settings.scorer_ack_wait
    assert binder is not None
    assert binder.ack_wait == settings.binder_ack_wait
    assert declared_consumer(settings, PENDING, "binder-12") is None


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.PENDING.scorer.2.10.12.1700000000123456789.5",
        "$JS.ACK._.hash.PENDING.scorer.2.10.12.1700000000123456789.5.x",
    ],
)
def test_a_reply_subject_tells_where_its_message_stands(reply):
    found = position_of(reply)
    assert (found.delivered, found.stream_sequence, found.consumer_sequence, found.pending) == (2, 10, 12, 5)
    assert found.time.isoformat() == "2023-11-14T22:13:20.123456+00:00"
