"""The watcher's part of a takeover: from the objects that the reflectors have listed to the first PENDING.

A real NATS server, empty at first, and a cluster of so many nodes, bound pods and waiting pods; the API server is left
out. Then a second leader takes over from the first, with a Decision for each waiting pod. CPU time is what counts where
other work runs on the machine:

    PYTHONPATH=tests python -m bench.watcher_takeover 5000 50000 20000
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvloop

from berth.api.kinds import WATCHED_KINDS
from berth.bus.interface import Session
from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth.bus.stages import publish_decision
from berth.kube.listwatch import Listed
from berth.lifecycle.process import Process
from berth.messages.attempts import Outcome
from berth.observability.health import Progress
from berth.profiles.configuration import profiles_of, read_configuration
from berth_watcher.service import WatcherParts, WatcherTerm
from berth_watcher.settings import WatcherSettings
from berth_watcher.store import ObjectStore
from harness.fakes.recording_meter import RecordingMeter
from harness.servers.nats_server import nats_server
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

FIRST_SECONDS = 300.0
AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherTakeover:
    """Seconds until the first pod is published, and CPU seconds of the watcher until then."""

    first_pending_seconds: float
    watcher_cpu_seconds: float


class ListedInformers:
    """Informers whose objects are in the store already."""

    async def refresh(self) -> None:
        await asyncio.sleep(0)

    def listen(self, listener: object) -> None:
        del listener


class Leadership:
    """A leadership that is never lost to another."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lost = asyncio.Event()

    def check(self) -> None:
        return

    def report_higher(self, number: int, *, seen_in: str) -> None:
        raise AssertionError(number, seen_in)


async def watcher_takeovers(node_count: int, bound: int, waiting: int) -> list[WatcherTakeover]:
    """A takeover on a new store, then one on the mirror and the Decisions that it left."""
    store = ObjectStore(kind.name for kind in WATCHED_KINDS)
    pods = [a_pod(f"b{number}", node=f"n{number % node_count}") for number in range(bound)]
    pods += [a_pod(f"w{number}") for number in range(waiting)]
    nodes = [a_node(f"n{number}") for number in range(node_count)]
    for kind, objects in (("node", nodes), ("pod", pods)):
        store.apply(Listed(kind=kind, objects=objects, resource_version="10"))
    process = Process(name="watcher", metrics=RecordingMeter())
    profiles = profiles_of(read_configuration(None))
    parts: Any = WatcherParts(
        process=process,
        client=None,  # type: ignore[arg-type]  # no pod is read
        informers=ListedInformers(),  # type: ignore[arg-type]  # the part that a runner uses
        store=store,
        progress=Progress(process.health, process.clock, limit=WatcherSettings().stalled),
        profiles=profiles,
        settings=WatcherSettings(),
    )
    with nats_server() as server:
        bus = NatsBus(BusSettings(servers=(server.address,)))
        session = await bus.connect(name="bench")
        await session.apply()
        first = await _take_over(parts, bus, term=7)
        await _decide(session, waiting)
        await _remove_pending(session)
        second = await _take_over(parts, bus, term=8)
        await session.close()
    return [first, second]


async def _take_over(parts: WatcherParts, bus: NatsBus, *, term: int) -> WatcherTakeover:
    session, published = await bus.connect(name="watcher"), asyncio.Event()
    await session.subscribe("berth.pending.>", lambda *_: published.set())
    leadership: Any = Leadership(term)
    began, cpu = time.monotonic(), time.process_time()
    running = asyncio.create_task(WatcherTerm(parts, session, leadership).run())
    async with asyncio.timeout(FIRST_SECONDS):
        await published.wait()
    found = WatcherTakeover(
        first_pending_seconds=round(time.monotonic() - began, 2),
        watcher_cpu_seconds=round(time.process_time() - cpu, 2),
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await session.close()
    return found


async def _decide(session: Session, waiting: int) -> None:
    """Every waiting pod was rejected once, a minute and more ago for all that the watcher knows."""
    world = WatcherUnderTest()
    for start in range(0, waiting, AT_ONCE):
        names = [f"w{number}" for number in range(start, min(start + AT_ONCE, waiting))]
        decisions = [
            world.decision(name, Outcome.UNSCHEDULABLE, attempt=f"uid-{name}.7.1", blockers=["NodeResourcesFit"])
            for name in names
        ]
        await _all(publish_decision(session, each.decision) for each in decisions)


async def _remove_pending(session: Session) -> None:
    """A scorer has taken every message."""
    async with session.consume("PENDING", "scorer", max_unacked=AT_ONCE) as deliveries:
        try:
            async with asyncio.timeout(timedelta(seconds=2).total_seconds()):
                async for delivery in deliveries:
                    delivery.ack()
        except TimeoutError:
            return


async def _all(work: Iterable[Any]) -> None:
    await asyncio.gather(*work)


def main() -> None:
    logging.disable(logging.CRITICAL)
    node_count, bound, waiting = (int(argument) for argument in sys.argv[1:4])
    uvloop.install()
    for name, took in zip(
        ("new store", "next leader"), asyncio.run(watcher_takeovers(node_count, bound, waiting)), strict=True
    ):
        sys.stdout.write(f"{name}: {took}\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
