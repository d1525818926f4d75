"""Errors of the server become exceptions, and differences from the declaration are named."""

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from berth.bus.admin import differences, stream_config
from berth.bus.interface import (
    BusRefusedError,
    MissingError,
    StoreFullError,
    TooLargeError,
    WrongLastSequenceError,
    message_size,
)
from berth.bus.jetstream import (
    JetStreamError,
    PublishResponse,
    decode_response,
    error_from,
    header_lines,
    is_copy,
)
from berth.bus.settings import TopologySettings
from berth.bus.topology import declared_streams
from berth.errors import TemporaryError


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
        (503, 10047, StoreFullError),
        (503, 10008, TemporaryError),
        (408, 0, BusRefusedError),
    ],
)
def test_an_error_code_becomes_an_exception(code, err_code, kind):
    error = error_from("doing it", JetStreamError(code=code, err_code=err_code, description="its text"))
    assert type(error) is kind
    assert str(error).startswith("doing it: its text")


def test_without_jetstream_the_error_tells_how_to_enable_it():
    error = error_from(
        "asking", JetStreamError(code=503, err_code=10039, description="jetstream not enabled for account")
    )
    assert "-js" in str(error)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff", b'{"seq":"x"}'])
def test_an_undecodable_response_is_a_temporary_error(data):
    with pytest.raises(TemporaryError, match="cannot be read"):
        decode_response("publishing", data, msgspec.json.Decoder(PublishResponse))


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"", {}),
        (
            b"NATS/1.0\r\nNats-Msg-Id: uid.7.1\r\nName:value\r\nTab:\tvalue\t\r\nEmpty:\r\nTwo: a: b\r\n\r\n",
            {"Nats-Msg-Id": "uid.7.1", "Name": "value", "Tab": "value", "Empty": "", "Two": "a: b"},
        ),
        (b"NATS/1.0\r\n Padded : value \r\nBad Name: x\r\nno colon\r\n\r\n", {"Padded": "value"}),
        (b"NATS/1.0\r\nName: first\r\nName: second\r\n\r\n", {"Name": "second"}),
        (
            b"NATS/1.0\r\nH\xc3\xb6he: x\r\nText: H\xc3\xb6he\r\nBroken: \xff\r\n\r\n",
            {"Text": "H\u00f6he", "Broken": "\ufffd"},
        ),
    ],
)
def test_header_lines_of_a_message_that_the_leader_gives_as_json(block, headers):
    assert header_lines(block) == headers


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        (None, 3),
        ({}, 3),
        ({"A": "b"}, 3 + len("NATS/1.0\r\nA: b\r\n\r\n")),
        ({"A": " \u00f6 "}, 3 + len("NATS/1.0\r\nA: xx\r\n\r\n")),
    ],
)
def test_the_size_of_a_message_has_its_headers_as_they_are_sent(headers, size):
    assert message_size(b"abc", headers) == size


def test_omitted_zero_values_do_not_differ():
    settings = TopologySettings()
    for stream in declared_streams(settings):
        config = stream_config(stream, settings)
        zero_left_out = {key: value for key, value in config.items() if value}
        assert differences(stream.name, config, zero_left_out) == []


def test_a_difference_is_named_with_both_values():
    settings = TopologySettings()
    config = stream_config(declared_streams(settings)[0], settings)
    assert differences("stream PENDING", config, config | {"max_bytes": 5, "more": 1}) == [
        "stream PENDING: max_bytes: want 67108864, got 5"
    ]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"Nats-Stream": "KV_cluster", "Nats-Subject": "$KV.cluster.node.a"}, True, id="a copy"),
        pytest.param({"Nats-Stream": "KV_tries", "Nats-Subject": "$KV.cluster.node.a"}, False, id="another stream"),
        pytest.param({"Nats-Stream": "KV_cluster", "Nats-Subject": "$KV.cluster.node.b"}, False, id="another key"),
        pytest.param({"Nats-Stream": "KV_cluster"}, False, id="no subject"),
        pytest.param(None, False, id="no headers"),
    ],
)
def test_only_a_streams_own_message_on_its_own_subject_is_a_copy(headers, expected):
    message = Msg(Client(), subject="stored.$KV.cluster.node.a", data=b"{}", headers=headers)
    assert is_copy(message, "KV_cluster") is expected
