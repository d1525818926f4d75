"""The cost of a message on the bus: CPU microseconds in the client, with nats-py as it is and through `berth.bus`.

    make bench-wire ARGS="--rounds 5"

Both clients work against one nats-server in turn, so other load on the machine changes their ratio little. A message
has 1,000 bytes and two headers. Whoever publishes what is only read is another process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import Annotated

import nats
import typer
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy
from rich.console import Console
from rich.table import Table

from berth.bus.interface import PubAck
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings
from berth.errors import BerthError
from harness.servers.nats_server import NatsServer, nats_server

RESULTS = Path(__file__).parent / "results"
DATA = b"x" * 1000
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
MESSAGES = 10_000
"""Of each phase: 13 MB, less than NATS holds for a client that a busy machine lets wait (16 MiB)."""
UNDER_WAY = 64
"""Publishes that wait for their PubAck at a time, and messages that may be unacknowledged."""
ROWS = {
    "publish": "publish, PubAck awaited",
    "publish_soon": "publish, PubAck called back",
    "deliver": "delivery, acknowledged",
    "live": "ordered reading, live",
    "initial": "ordered reading, what was stored",
}
SEND = """
import socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
with socket.create_connection(("127.0.0.1", port)) as server:
    server.sendall(b'CONNECT {"verbose":false}\\r\\n')
    for number in range(count):
        server.sendall(b"PUB $KV.cluster.node.n-%d 1000\\r\\n%b\\r\\n" % (number, b"x" * 1000))
    server.sendall(b"PING\\r\\n")
    received = b""
    while b"PONG" not in received:
        received += server.recv(65536)
"""

Phase = Callable[[int], Awaitable[float | None]]
"""Goes through so many messages; returns the CPU time at which that began, if something came before."""


async def send_from_elsewhere(server: NatsServer, count: int) -> None:
    """Write so many keys of the mirror from another process."""
    arguments = [sys.executable, "-c", SEND, str(server.settings.port), str(count)]
    sender = await asyncio.create_subprocess_exec(*arguments)
    if await sender.wait():
        raise RuntimeError("sending from another process failed")


async def in_parallel(publish: Callable[[int], Awaitable[object]], count: int) -> None:
    """Publish so many, `UNDER_WAY` at a time."""
    numbers = itertools.count()

    async def work() -> None:
        while (number := next(numbers)) < count:
            await publish(number)

    await asyncio.gather(*(work() for _ in range(UNDER_WAY)))


class Own:
    """Through `berth.bus`."""

    def __init__(self, session: NatsSession, server: NatsServer, run: str) -> None:
        self._session = session
        self._server = server
        self._run = run

    async def publish(self, count: int) -> None:
        async def one(number: int) -> object:
            subject, identity = f"berth.pending.p.n.pod-{number}", f"{self._run}.{number}"
            return await self._session.publish(subject, DATA, message_id=identity, headers=TRACE)

        await in_parallel(one, count)

    async def publish_soon(self, count: int) -> None:
        """As services publish what they have about a pod."""
        stored, numbers, left = asyncio.get_running_loop().create_future(), iter(range(count)), count

        def publish_next() -> None:
            if (number := next(numbers, None)) is not None:
                subject, identity = f"berth.pending.p.n.pod-{number}", f"{self._run}.soon.{number}"
                self._session.publish_soon(subject, DATA, message_id=identity, headers=TRACE, on_answer=on_answer)

        def on_answer(answer: PubAck | BerthError) -> None:
            nonlocal left
            left -= 1
            if isinstance(answer, BerthError):
                stored.set_exception(answer)
            elif not left:
                stored.set_result(None)
            publish_next()

        for _ in range(UNDER_WAY):
            publish_next()
        await stored

    async def deliver(self, count: int) -> None:
        async with self._session.consume("PENDING", "scorer", max_unacked=UNDER_WAY) as deliveries:
            async for delivery in deliveries:
                if len(delivery.data) == len(DATA) and delivery.sequence:
                    delivery.ack()
                count -= 1
                if not count:
                    return

    async def live(self, count: int) -> float:
        async with self._session.read_bucket("cluster", filters=("node.>",)) as reader:
            batches = aiter(reader.batches())
            while not reader.caught_up.is_set():
                await anext(batches)
            begun = process_time()
            sending = asyncio.create_task(send_from_elsewhere(self._server, count))
            while count > 0:
                count -= len(await anext(batches))
            await sending
            return begun

    async def initial(self, count: int) -> None:
        async with self._session.read_bucket("cluster", filters=("node.>",)) as reader:
            async for batch in reader.batches():
                count -= len(batch)
                if reader.caught_up.is_set():
                    return


class Library:
    """nats-py: numbered replies to one inbox, a continuous pull into a callback, and its ordered consumer.

    Its `publish` of JetStream and its `fetch` cost several times as much.
    """

    def __init__(self, client: Client, server: NatsServer, run: str) -> None:
        self._client = client
        self._server = server
        self._run = run
        self._identities = itertools.count()

    async def publish(self, count: int) -> None:
        inbox, pending = self._client.new_inbox(), dict[int, asyncio.Future[bytes]]()

        async def on_reply(message: Msg) -> None:
            pending.pop(int(message.subject[len(inbox) + 1 :])).set_result(message.data)

        subscription = await self._client.subscribe(f"{inbox}.*", cb=on_reply)

        async def one(number: int) -> object:
            pending[number] = answer = asyncio.get_running_loop().create_future()
            headers = {**TRACE, "Nats-Msg-Id": f"{self._run}.{next(self._identities)}"}
            subject = f"berth.pending.p.n.pod-{number}"
            await self._client.publish(subject, DATA, reply=f"{inbox}.{number}", headers=headers)
            return json.loads(await answer)

        await in_parallel(one, count)
        await subscription.unsubscribe()

    async def publish_soon(self, count: int) -> None:
        """It has no other way than to await."""
        await self.publish(count)

    async def deliver(self, count: int) -> None:
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        inbox, outstanding = self._client.new_inbox(), 0
        subscription = await self._client.subscribe(inbox, cb=arrived.put)
        subject = "$JS.API.CONSUMER.MSG.NEXT.PENDING.scorer"
        while count:
            if outstanding * 2 <= UNDER_WAY:
                request = {"batch": UNDER_WAY - outstanding, "expires": 30_000_000_000}
                await self._client.publish(subject, json.dumps(request).encode(), reply=inbox)
                outstanding = UNDER_WAY
            message = await arrived.get()
            if len(message.data) == len(DATA) and message.metadata.sequence.stream:
                await self._client.publish(message.reply, b"+ACK")
            outstanding -= 1
            count -= 1
        await subscription.unsubscribe()

    async def live(self, count: int) -> None:
        await self._read(count, DeliverPolicy.NEW, send_from_elsewhere(self._server, count))

    async def initial(self, count: int) -> None:
        await self._read(count, DeliverPolicy.LAST_PER_SUBJECT)

    async def _read(self, count: int, policy: DeliverPolicy, sending: Awaitable[None] | None = None) -> None:
        everything = asyncio.Event()

        async def on_message(message: Msg) -> None:
            nonlocal count
            count -= bool(message.metadata.sequence.stream and len(message.data) == len(DATA))
            if not count:
                everything.set()

        stream = self._client.jetstream()
        subscription = await stream.subscribe(
            "$KV.cluster.node.>", stream="KV_cluster", ordered_consumer=True, deliver_policy=policy, cb=on_message
        )
        if sending is not None:
            await sending
        await everything.wait()
        await subscription.unsubscribe()


@asynccontextmanager
async def clients(server: NatsServer, run: str) -> AsyncIterator[tuple[Library, Own]]:
    """Both, connected."""
    session = await NatsBus(BusSettings(servers=(server.address,))).connect(name="bench")
    await session.apply()
    client = await nats.connect(server.address)
    try:
        yield Library(client, server, f"library-{run}"), Own(session, server, f"own-{run}")
    finally:
        await client.close()
        await session.close()


async def measure(server: NatsServer, messages: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """CPU microseconds a message of each phase, by client, one value a round."""
    found: dict[str, dict[str, list[float]]] = {row: {"library": [], "own": []} for row in ROWS}
    for run in range(rounds):
        async with clients(server, str(run)) as (library, own):
            for name, client in (("library", library), ("own", own)):
                for row in ROWS:
                    phase: Phase = getattr(client, row)
                    before = process_time()
                    begun = await phase(messages) or before
                    found[row][name].append((process_time() - begun) / messages * 1e6)
    return found


def report(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Medians of the rounds, and how many times cheaper berth's own path is."""
    medians = {row: {name: statistics.median(values) for name, values in both.items()} for row, both in found.items()}
    table = Table("CPU us a message", "nats-py", "berth.bus", "ratio", title="Messages on the bus")
    for row, title in ROWS.items():
        library, own = medians[row]["library"], medians[row]["own"]
        table.add_row(title, f"{library:.1f}", f"{own:.1f}", f"{library / own:.1f}")
    Console().print(table)
    return medians


def main(
    messages: Annotated[int, typer.Option(help="Messages of each phase.")] = MESSAGES,
    rounds: Annotated[int, typer.Option(help="Rounds, of which the medians count.")] = 3,
    save: Annotated[bool, typer.Option(help="Write the figures to tests/bench/results.")] = False,  # noqa: FBT002 - typer
) -> None:
    """Measure both clients in turn."""
    with nats_server() as server:
        found = uvloop.run(measure(server, messages, rounds))
    medians = report(found)
    if save:
        now = datetime.now(UTC)
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        figures = {"at": now.isoformat(), "machine": machine, "messages": messages, "rounds": rounds}
        path = RESULTS / f"wire-{now:%Y%m%dT%H%M%SZ}.json"
        path.write_text(json.dumps({**figures, "cpu_us_per_message": medians, "all": found}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
