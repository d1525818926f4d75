"""What a run reads on NATS, with a plain client: Decisions, messages that are left, the mirror."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import nats
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy

from berth.messages.subjects import parse_key
from faults.world import World

READ_SECONDS = 30.0
PREFIX = "$KV.cluster."
QUOTED = 2_000
"""Bytes of a message that is left, for the report."""


class Bus:
    """Reads NATS directly, not through a proxy."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.bound: dict[str, str] = {}
        """The node of each uid for which a Decision `bound` was read."""
        self.problems: list[str] = []

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[nats.NATS]:
        addresses = [server.address for server in self._world.nats]
        client = await nats.connect(addresses, connect_timeout=5, max_reconnect_attempts=3, error_cb=ignore)
        try:
            yield client
        finally:
            await client.close()

    async def _all(self, subject: str, policy: DeliverPolicy) -> list[Msg]:
        """Every message of a stream at this moment."""
        async with self._connected() as client:
            config = ConsumerConfig(deliver_policy=policy)
            reader = await client.jetstream().subscribe(subject, ordered_consumer=True, config=config)
            messages: list[Msg] = []
            left = (await reader.consumer_info()).num_pending + reader.pending_msgs
            while left > 0:
                messages.append(message := await reader.next_msg(READ_SECONDS))
                left = message.metadata.num_pending
            return messages

    async def collect_decisions(self) -> None:
        """Read DECISIONS, before it is lost or at the end; nothing when NATS is not there."""
        try:
            messages = await self._all("berth.decision.>", DeliverPolicy.ALL)
        except (OSError, TimeoutError, nats.errors.Error):
            return
        for message in messages:
            decision = json.loads(message.data)
            if decision["outcome"] == "bound" and "group" not in decision:
                self._take(decision["uid"], decision["node"])

    def _take(self, uid: str, node: str) -> None:
        before = self.bound.setdefault(uid, node)
        if before != node:
            self.problems.append(f"two Decisions bind pod {uid}: to {before!r} and to {node!r}")

    async def left_over(self, seconds: float) -> list[str]:
        """What is wrong with PENDING and RANKED: messages that nobody settles."""
        return await self._until_nothing(self._left_over, seconds)

    async def _left_over(self) -> list[str]:
        found = []
        async with self._connected() as client:
            for stream in ("PENDING", "RANKED"):
                state = (await client.jetstream().stream_info(stream)).state
                if state.messages:
                    found.append(f"{state.messages} messages are left in {stream}: {await self._first(client, stream)}")
        return found

    async def _first(self, client: nats.NATS, stream: str) -> str:
        """The oldest message of a stream, and what its consumers wait for."""
        manager = client.jetstream()
        state = (await manager.stream_info(stream)).state
        message = await manager.get_msg(stream, state.first_seq)
        consumers = [
            f"{each.name} delivered {each.delivered and each.delivered.stream_seq}, {each.num_ack_pending} unsettled, "
            f"{each.num_redelivered} again, {each.num_pending} to come, {each.num_waiting} requests"
            for each in await manager.consumers_info(stream)
        ]
        return f"{message.subject} ({message.seq}) {(message.data or b'')[:QUOTED]!r}; {'; '.join(consumers)}"

    async def differences_of_the_mirror(self, seconds: float) -> list[str]:
        """Nodes and bound pods that the bucket `cluster` has and the cluster has not, and the reverse."""
        return self.problems + await self._until_nothing(self._differences, seconds)

    async def _differences(self) -> list[str]:
        keys = [
            parse_key(message.subject.removeprefix(PREFIX))
            for message in await self._all(f"{PREFIX}>", DeliverPolicy.LAST_PER_SUBJECT)
            if not (message.headers or {}).get("KV-Operation")
        ]
        judge = self._world.judge
        nodes = {item["metadata"]["name"] for item in (await self._world.user.api.get("/api/v1/nodes")).body["items"]}
        pods = {name for kind, name in keys if kind == "pod"}
        return [
            *_compared("node", {name for kind, name in keys if kind == "node"}, nodes),
            *_compared("pod", pods, judge.bound()),
            *_compared(
                "resourceclaim",
                {name for kind, name in keys if kind == "resourceclaim"},
                {each.uid for each in judge.claims.values()},
            ),
        ]

    async def _until_nothing(self, ask: Callable[[], Awaitable[list[str]]], seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = await ask()
            except (OSError, TimeoutError, nats.errors.Error) as exc:
                found = [f"NATS does not answer: {exc!r}"]
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.5)


async def ignore(exc: Exception) -> None:
    """What matters is raised by the call; nats-py would log it besides."""


def _compared(kind: str, mirrored: set[str], there: set[str]) -> list[str]:
    found = []
    if ghosts := mirrored - there:
        found.append(f"the mirror has {len(ghosts)} {kind}s that are gone, such as {min(ghosts)!r}")
    if missing := there - mirrored:
        found.append(f"the mirror lacks {len(missing)} {kind}s, such as {min(missing)!r}")
    return found
