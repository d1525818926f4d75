"""The client protocol: frames at every cut, limits, what is sent together, back-pressure, and header lines."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from berth.bus import wire
from berth.bus.interface import BusRefusedError
from berth.bus.wire import (
    DENSE_SECONDS,
    LARGE_READ_BYTES,
    MOST_HEADER_BYTES,
    MOST_HELD_BYTES,
    MOST_LINE_BYTES,
    Headers,
    Msg,
    Wire,
    header_block,
    header_lines,
    last_header,
    message_size,
)


class SentBytes:
    """Stands for the transport."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent = 0
        self.aborted = False
        self.reading: list[bool] = []
        """Whether it was paused or resumed, in order."""
        self.resumed = asyncio.Event()

    def set_protocol(self, _protocol: asyncio.Protocol) -> None:
        """It calls nobody."""

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.reading.append(False)

    def resume_reading(self) -> None:
        self.reading.append(True)
        self.resumed.set()

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


class Reader:
    """A wire with two subscriptions and two PINGs under way, which records what happens to it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.causes: list[str] = []
        self.transport = SentBytes()
        self.wire = Wire(on_error=self.seen.append, on_end=self.causes.append)
        self.wire.take_over(self.transport, b"")  # type: ignore[arg-type] # what of a transport is used
        for subject in ("_INBOX.>", "berth.>"):
            self.wire.subscribe(subject, self.seen.append)
        for number in range(2):
            self.wire.ping(lambda number=number: self.seen.append(f"pong {number}"))

    async def sent(self) -> bytes:
        """What was written since the last time, in one write."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writes, self.transport.writes = self.transport.writes, []
        assert len(writes) <= 1
        return b"".join(writes)


def frame(message: Msg, number: int) -> bytes:
    """A message as the server sends it."""
    reply = f" {message.reply}" if message.reply else ""
    begun = f"{message.subject} {number}{reply}".encode()
    head, size = len(message.head), len(message.head) + len(message.data)
    line = b"HMSG %b %d %d" % (begun, head, size) if head else b"MSG %b %d" % (begun, size)
    return b"%b\r\n%b%b\r\n" % (line, message.head, message.data)


ACK = "$JS.ACK.PENDING.scorer.1.7.3.1700000000123456789.0"
MESSAGES = [
    Msg("_INBOX.a.1", "", b"", b'{"stream":"PENDING","seq":7}'),
    Msg("berth.pending.p.n.web", ACK, b"", b""),
    Msg("_INBOX.a.2", "", b"NATS/1.0 404 No Messages\r\n\r\n", b""),
    Msg("berth.pending.p.n.web", ACK, b"NATS/1.0\r\nNats-Msg-Id: u.7.1\r\n\r\n", b"\r\nMSG a 1 1\r\n\r\n"),
    Msg("berth.pending.p.n.b", "", b"NATS/1.0\r\n\r\n", b"PING\r\n"),
]
REFUSED = 'Permissions Violation for Publish to "a.B"'
STREAM = (
    b'INFO {"server_id":"NB","version":"2.15.1","max_payload":8388608,"connect_urls":["127.0.0.1:4222"]} \r\n'
    b"PONG\r\n"
    + b"PING\r\n".join(frame(each, 1 + number % 2) for number, each in enumerate(MESSAGES))
    + frame(Msg("nobody.listens", "", b"", b"x"), 9)
    + b"-ERR '%b'\r\n+OK\r\nPONG\r\nPONG\r\n" % REFUSED.encode()
)
"""What nats-server sends, with payloads that look like other frames."""
EXPECTED = ["pong 0", *MESSAGES, REFUSED, "pong 1"]


async def test_a_stream_is_read_the_same_at_every_cut():
    for cut in range(len(STREAM) + 1):
        reader = Reader()
        reader.wire.data_received(STREAM[:cut])
        reader.wire.data_received(STREAM[cut:])
        assert reader.seen == EXPECTED
        assert reader.causes == []
        assert reader.wire.max_payload == 8388608
        assert (await reader.sent()).count(b"PONG\r\n") == STREAM.count(b"PING\r\n") - 1  # one is a payload


async def test_a_stream_is_read_byte_by_byte():
    reader = Reader()
    for at in range(len(STREAM)):
        reader.wire.data_received(STREAM[at : at + 1])
    assert reader.seen == EXPECTED


@given(
    st.lists(
        st.builds(
            Msg,
            st.from_regex(r"[a-zA-Z0-9_.é]{1,20}", fullmatch=True),
            st.sampled_from(["", "reply.1", ACK]),
            st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"xx"]),
            st.binary(max_size=60) | st.sampled_from([b"\r\n", b"PING\r\n", b"MSG a 1 3\r\nabc\r\n"]),
        ),
        max_size=8,
    ),
    st.data(),
)
async def test_any_messages_in_any_pieces_arrive_whole_and_in_order(messages, data):
    stream = b"".join(frame(each, 1) for each in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = Reader()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.wire.data_received(stream[start:end])
    assert reader.seen == messages
    assert reader.causes == []


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG ", b"HMSG a 1 ", b" 5", b"INFO {", b"-ERR "])))
async def test_bytes_that_are_no_protocol_end_the_connection_at_most(parts):
    reader = Reader()
    for part in parts:
        reader.wire.data_received(part)
    assert len(reader.causes) <= 1
    assert reader.transport.aborted == bool(reader.causes)


@pytest.mark.parametrize(
    "received",
    [
        pytest.param(b"x" * MOST_LINE_BYTES, id="a line without end"),
        pytest.param(b"PING" + b" " * MOST_LINE_BYTES + b"\r\n", id="a long line"),
        pytest.param(b"MSG a 1 67174401\r\n", id="more than any server takes"),
        pytest.param(b"MSG a 1 " + b"9" * 5000 + b"\r\n", id="many digits"),
        pytest.param(b"MSG a 1 -1\r\n", id="a negative size"),
        pytest.param(b"MSG a 1 +1\r\n", id="a sign"),
        pytest.param(b"MSG a 1 1\r\nxyz\r\n", id="longer than it says"),
        pytest.param(b"HMSG a 1 5 3\r\nabcde\r\n", id="more header than message"),
        pytest.param(b"HMSG a 1 5\r\nabcde\r\n", id="a header without size"),
        pytest.param(b"MSG a 1\r\n", id="too few words"),
        pytest.param(b"MSG a 1 b c d 1\r\nx\r\n", id="too many words"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", id="another protocol"),
        pytest.param(b"INFO nonsense\r\n", id="INFO that is no JSON"),
    ],
)
async def test_what_breaks_the_protocol_ends_the_connection_with_its_reason(received):
    reader = Reader()
    reader.wire.data_received(received)
    reader.wire.data_received(frame(MESSAGES[0], 1))
    assert len(reader.causes) == 1
    assert "it does not speak the protocol" in reader.causes[0]
    assert reader.transport.aborted
    assert reader.seen == []


async def test_reads_that_are_dense_wait_and_a_first_and_a_second_one_do_not(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reader = Reader()
    pauses = reader.transport.reading

    def read(later: float, data: bytes = b"PING\r\n") -> None:
        now[0] += later
        reader.wire.data_received(data)

    read(1.0)
    read(2 * DENSE_SECONDS)
    assert pauses == []
    read(DENSE_SECONDS / 2, frame(Msg("berth.x", "", b"", bytes(LARGE_READ_BYTES)), 2))
    assert pauses == []
    read(DENSE_SECONDS / 2)
    assert pauses == [False]
    await asyncio.wait_for(reader.transport.resumed.wait(), 10)
    assert pauses == [False, True]
    read(DENSE_SECONDS / 2)
    reader.wire.abort()
    await asyncio.sleep(3 * DENSE_SECONDS)
    assert pauses == [False, True, False]


async def test_a_large_message_is_not_looked_at_before_it_is_whole():
    reader, large = Reader(), Msg("berth.a", "", b"", bytes(range(256)) * 4096)
    stream = frame(large, 2)
    for at in range(0, len(stream), 1000):
        reader.wire.data_received(stream[at : at + 1000])
    assert reader.seen == [large]


async def test_a_listener_that_fails_costs_one_message(caplog):
    reader = Reader()

    def fail_once(message: Msg) -> None:
        reader.seen.append(message)
        if len(reader.seen) == 1:
            raise ValueError("a bug")

    number = int(reader.wire.subscribe("c", fail_once))
    reader.wire.data_received(frame(MESSAGES[0], number) + frame(MESSAGES[1], number))
    assert reader.seen == MESSAGES[:2]
    assert "a bug" in caplog.text
    assert reader.causes == []


async def test_a_listener_is_not_called_after_it_unsubscribed_or_ended_the_connection():
    reader = Reader()
    number = reader.wire.subscribe("c", lambda _: reader.wire.unsubscribe(number))
    ending = reader.wire.subscribe("d", lambda _: reader.wire.abort())
    two = frame(MESSAGES[0], int(number)) * 2
    reader.wire.data_received(two + frame(MESSAGES[0], int(ending)) + frame(MESSAGES[1], 1))
    assert reader.seen == []
    assert reader.causes == []  # whoever ends it knows


async def test_all_that_is_sent_in_one_turn_goes_out_in_one_write_in_its_order():
    reader = Reader()
    reader.wire.publish("a.b", b"x", b"", b"")
    reader.wire.publish("a.c", b"yy", b" in.1", b"NATS/1.0\r\n\r\n")
    reader.wire.unsubscribe(b"2")
    sent = await reader.sent()
    assert sent == (
        b"SUB _INBOX.> 1\r\nSUB berth.> 2\r\nPING\r\nPING\r\n"
        b"PUB a.b 1\r\nx\r\nHPUB a.c in.1 12 14\r\nNATS/1.0\r\n\r\nyy\r\nUNSUB 2\r\n"
    )
    assert await reader.sent() == b""


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0", "a\tb", "a\n"])
async def test_a_subject_that_would_break_the_protocol_is_refused(subject):
    wire = Reader().wire
    with pytest.raises(BusRefusedError):
        wire.publish(subject, b"", b"", b"")
    with pytest.raises(BusRefusedError):
        wire.subscribe(subject, print)


@pytest.mark.parametrize(("subject", "reply"), [("a" * 4001, b""), ("é" * 2001, b""), ("a" * 3000, b" " + b"r" * 1000)])
async def test_a_subject_for_which_the_server_would_end_the_connection_is_refused(subject, reply):
    with pytest.raises(BusRefusedError, match="4000 bytes at most"):
        Reader().wire.publish(subject, b"", reply, b"")


@pytest.mark.parametrize("subject", ["a..b", ".a", "a.", ">.a", "a.b*", "a.>.b"])
async def test_a_subscription_that_the_server_would_refuse_is_not_sent(subject):
    with pytest.raises(BusRefusedError):
        Reader().wire.subscribe(subject, print)


async def test_what_is_sent_to_a_slow_server_is_held_and_goes_out_in_its_order():
    reader = Reader()
    await reader.sent()
    reader.wire.pause_writing()
    for number in range(3):
        reader.wire.publish(f"a.{number}", b"", b"", b"")
    assert await reader.sent() == b""
    reader.wire.resume_writing()
    assert await reader.sent() == b"PUB a.0 0\r\n\r\nPUB a.1 0\r\n\r\nPUB a.2 0\r\n\r\n"


async def test_publishes_wait_for_a_slow_server_in_turn():
    reader, turns = Reader(), []
    reader.wire.pause_writing()
    assert not reader.wire.is_crowded
    reader.wire.publish("a", bytes(MOST_HELD_BYTES + 1), b"", b"")
    assert reader.wire.is_crowded

    async def take_turn(number: int) -> None:
        await reader.wire.room()
        turns.append(number)

    waiting = [asyncio.create_task(take_turn(number)) for number in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0.001)
    assert turns == []
    reader.wire.resume_writing()
    await asyncio.wait(waiting)
    assert turns == [0, 2, 3]
    assert not reader.wire.is_crowded


async def test_what_the_transport_has_not_written_yet_counts_too():
    reader = Reader()
    reader.transport.unsent = MOST_HELD_BYTES
    assert not reader.wire.is_crowded  # it has not said that it is slow
    reader.wire.pause_writing()
    reader.wire.publish("a", b"x", b"", b"")
    assert reader.wire.is_crowded
    reader.transport.unsent = 0
    assert not reader.wire.is_crowded


async def test_more_than_fits_waits_for_the_next_turn_also_when_the_server_is_quick():
    reader = Reader()
    reader.wire.publish("a", bytes(MOST_HELD_BYTES + 1), b"", b"")
    assert reader.wire.is_crowded
    async with asyncio.timeout(5):
        await reader.wire.room()
    assert not reader.wire.is_crowded


async def test_the_turn_of_a_publish_that_is_cancelled_goes_to_the_next():
    reader = Reader()
    reader.wire.pause_writing()
    reader.wire.publish("a", bytes(MOST_HELD_BYTES + 1), b"", b"")
    first, second = (asyncio.create_task(reader.wire.room()) for _ in range(2))
    await asyncio.sleep(0)
    reader.wire.resume_writing()
    first.cancel()
    async with asyncio.timeout(5):
        await second


async def test_whoever_waits_for_a_slow_server_goes_on_when_the_connection_ends():
    reader = Reader()
    reader.wire.pause_writing()
    reader.wire.publish("a", bytes(MOST_HELD_BYTES + 1), b"", b"")
    waiting = [asyncio.create_task(reader.wire.room()) for _ in range(3)]
    await asyncio.sleep(0)
    reader.wire.connection_lost(ConnectionResetError("reset by peer"))
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    assert reader.causes == ["the server closed it (reset by peer)"]


async def test_after_the_end_nothing_is_sent_and_nothing_is_read():
    reader = Reader()
    reader.wire.connection_lost(None)
    reader.wire.connection_lost(None)
    reader.wire.publish("a", b"", b"", b"")
    reader.wire.data_received(STREAM)
    assert await reader.sent() == b""
    assert reader.seen == []
    assert reader.causes == ["the server closed it"]
    await reader.wire.wait_closed()


# --- headers

BLOCKS = [
    b"",
    b"\r\n\r\n",
    b"Nats-Msg-Id: uid.7.1\r\ntraceparent: 00-ab-cd-00\r\n\r\n",
    b"Name:value\r\nTab:\tvalue\t\r\nEmpty:\r\nTwo: a: b\r\n",
    b" Padded : value \r\nBad Name: x\r\nTab\tname: x\r\nno colon\r\n",
    b": no name\r\nName: first\r\nName: second\r\n",
    b"H\xc3\xb6he: x\r\nText: H\xc3\xb6he\r\nBroken: \xff\xfe\r\n",
    b"Line\nbreak: x\r\nUnit\x1fseparator: y\r\nLone\rreturn: z",
]


@pytest.mark.parametrize("block", BLOCKS)
def test_headers_are_those_of_nats_py(block):
    assert header_lines(block) == Client._parse_header_lines(block)
    headers = Headers(b"NATS/1.0\r\n" + block)
    asked = {name: headers.get(name) for name in ("Name", "Nats-Msg-Id", "Text", "Empty", "nothing")}
    assert asked == {name: header_lines(block).get(name) for name in asked}
    assert dict(headers) == header_lines(block)


@given(st.binary(max_size=200))
def test_no_header_block_raises(block):
    message = Msg("a", "", block, b"")
    assert dict(message.headers) == dict(Headers(block))
    assert message.status == "" or len(message.status) == 3
    assert isinstance(message.description, str)


@given(
    st.dictionaries(
        st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,10}", fullmatch=True), st.text(st.characters(codec="utf-8"))
    )
)
def test_headers_that_are_sent_are_those_that_are_read(headers):
    block = header_block(headers)
    assert message_size(b"abc", headers) == len(block) + 3
    assert block.count(b"\r\n") == (len(headers) + 2 if headers else 0)
    expected = {name: text.strip().replace("\r", " ").replace("\n", " ") for name, text in headers.items()}
    assert {name: text.strip() for name, text in header_lines(block).items()} == {
        name: text.encode().strip().decode().strip() for name, text in expected.items()
    }


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "ö"])
def test_a_header_name_that_would_break_the_protocol_is_refused(name):
    with pytest.raises(BusRefusedError):
        header_block({name: "x"})


def test_hidden_headers_are_left_out_and_too_many_bytes_are_not_parsed():
    raw = b"NATS/1.0\r\nNats-Sequence: 5\r\nA: b\r\n\r\n"
    assert dict(Headers(raw, frozenset({"Nats-Sequence"}))) == {"A": "b"}
    assert "Nats-Sequence" not in Headers(raw, frozenset({"Nats-Sequence"}))
    assert dict(Headers(b"A: b\r\n" * MOST_HEADER_BYTES)) == {}


def test_of_a_header_that_the_publisher_and_the_server_wrote_the_servers_counts():
    head = b"NATS/1.0\r\nNats-Sequence: evil\r\nX: \r\nNats-Sequence: 7\r\n\r\n"
    assert last_header(head, b"Nats-Sequence") == b"7"
    assert last_header(head, b"Nats-Time-Stamp") is None


def test_a_status_is_read_from_the_first_line():
    found = Msg("a", "", b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 3\r\n\r\n", b"")
    assert (found.status, found.description) == ("409", "Consumer Deleted")
    assert Msg("a", "", b"NATS/1.0 503\r\n\r\n", b"").status == "503"
    assert Msg("a", "", b"NATS/1.0\r\nA: 503\r\n\r\n", b"").status == ""
