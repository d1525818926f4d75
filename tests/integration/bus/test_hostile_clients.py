"""What another client sends that no client library sends, and nats-py reads: it costs a message, never a connection.

test_nats_session.py has what nats-py cannot read.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from berth.bus.interface import StoredMessage, StreamReader
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings
from harness.servers.nats_server import NatsServer

pytestmark = pytest.mark.requires("nats-server")

EVIL = b"Nats-Sequence: evil\r\nNats-Time-Stamp: x\r\nNats-Subject: y\r\nNats-Pending-Messages: -\r\n"


@pytest.fixture
async def session(own_nats_server: NatsServer) -> AsyncIterator[NatsSession]:
    """A session on a server that has the streams and no message."""
    opened = await NatsBus(BusSettings(servers=(own_nats_server.address,))).connect(name="reader")
    await opened.apply()
    yield opened
    await opened.close()


async def send(server: NatsServer, subject: bytes, headers: bytes = b"", data: bytes = b"x") -> None:
    """Publish exactly these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.settings.port)
    await reader.readline()
    block = b"NATS/1.0\r\n" + headers + b"\r\n"
    command = b"HPUB %s %d %d\r\n" % (subject, len(block), len(block) + len(data))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + command + block + data + b"\r\nPING\r\n")
    await reader.readuntil(b"PONG")
    writer.close()


@pytest.mark.parametrize(
    ("subject", "headers"),
    [
        pytest.param(b"berth.ranked.p.n.a", EVIL, id="headers that the server writes itself"),
        pytest.param(b"berth.ranked.p.n.a", b"traceparent: \xff\xfe\r\nno colon\r\n: \r\n", id="malformed headers"),
    ],
)
async def test_a_strange_message_reaches_every_reader_and_ends_none(own_nats_server, session, subject, headers):
    await session.create_consumer("RANKED", "binder-1")
    heard: list[str] = []
    await session.subscribe("berth.ranked.>", lambda name, *_: heard.append(name))
    async with (
        asyncio.timeout(20),
        session.consume("RANKED", "binder-1", max_unacked=8) as deliveries,
        session.read_stream("RANKED") as reader,
    ):
        await send(own_nats_server, subject, headers)
        await session.publish("berth.ranked.p.n.after", b"y")
        found = [await anext(aiter(deliveries)) for _ in range(2)]
        read = await read_two(reader)
    assert [(each.sequence, each.data) for each in read] == [(1, b"x"), (2, b"y")], read
    assert [(each.sequence, each.delivered, each.data) for each in found] == [(1, 1, b"x"), (2, 1, b"y")]
    assert [each.data async for each in session.scan("RANKED", "berth.ranked.>")] == [b"x", b"y"]
    assert len(heard) == 2
    assert not session.lost.is_set()


async def read_two(reader: StreamReader) -> list[StoredMessage]:
    read: list[StoredMessage] = []
    async for batch in reader.batches():
        read += batch
        if len(read) > 1:
            break
    return read


async def test_a_forged_copy_of_a_stored_message_ends_no_reader(own_nats_server, session):
    async with asyncio.timeout(20), session.read_stream("RANKED") as reader:
        for headers in (
            b"",
            EVIL,
            b"Nats-Stream: RANKED\r\nNats-Subject: x\r\nNats-Sequence: " + b"9" * 5_000 + b"\r\n",
        ):
            await send(own_nats_server, b"stored.berth.ranked.p.n.a", headers)
        await session.publish("berth.ranked.p.n.a", b"x")
        await session.publish("berth.ranked.p.n.b", b"y")
        assert [each.data for each in await read_two(reader)] == [b"x", b"y"]


async def test_what_is_published_to_a_consumers_inbox_is_no_delivery(session):
    async with asyncio.timeout(30), session.consume("PENDING", "scorer", max_unacked=8) as deliveries:
        inbox = deliveries._pull._inbox
        for reply in ("x", "$JS.ACK.a.b.c", "$JS.ACK.a.b." + ".".join(["9" * 5_000] * 5)):
            await session._connection.publish(f"{inbox}.0", b"junk", reply=reply[:3_000])
        await session.publish("berth.pending.p.n.a", b"y")
        assert (await anext(aiter(deliveries))).data == b"y"
