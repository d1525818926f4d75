"""The watcher's eyes on the API server: a reflector for each kind, all the time, also in standby.

One reflector shows all pods, bound and pending: with two of opposite field selectors a pod that moves from one to the
other would be in neither or in both for a moment, and each needs its own LIST to be consistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from berth.kube.client import KubeClient
from berth.kube.kinds import FURTHER, NAMESPACE, NODE, POD, Kind
from berth.kube.port import Listed, ReflectorEvent
from berth.kube.reflector import Reflector
from berth.service.process import Process
from berth.service.until import run_until
from watcher.store import ObjectStore

KINDS: Final[Sequence[Kind[Any]]] = (NODE, NAMESPACE, *FURTHER, POD)
"""What is mirrored. Nodes first: a pod that is shown on a node that is not there yet is an odd sight."""

Listener = Callable[[Any], None]


class _Round:
    """One LIST of every kind and what follows it."""

    def __init__(self) -> None:
        self.listed = {kind.name: asyncio.Event() for kind in KINDS}
        self.over = asyncio.Event()

    async def complete(self) -> None:
        for listed in self.listed.values():
            await listed.wait()


class Reading:
    """Keeps the store, or hands what the reflectors show to whoever leads. ``run`` it in a task of its own."""

    def __init__(self, client: KubeClient, process: Process) -> None:
        self._client = client
        self._metrics = process.metrics
        for kind in KINDS:
            self._metrics.count("berth_relists_total", 0, kind=kind.name)
        self._condition = process.health.condition("cluster", "listing the cluster")
        self._listener: Listener | None = None
        self._round = _Round()
        self.store = ObjectStore(kind.name for kind in KINDS)
        """Right while nobody listens, and for the one who has just begun to."""

    async def run(self) -> None:
        """Read until cancelled; from the beginning each time that it is asked for."""
        while True:
            this = self._round
            async with asyncio.TaskGroup() as tasks:
                reading = [tasks.create_task(self._reflect(kind, this), name=f"reflect {kind.name}") for kind in KINDS]
                await self._see_through(this)
                for task in reading:
                    task.cancel()

    async def list_anew(self) -> None:
        """Wait until every kind has been listed anew: what a standby has seen may be half a minute old."""
        former, self._round = self._round, _Round()
        self._listener = None
        former.over.set()
        await self._round.complete()

    def listen(self, listener: Listener | None) -> None:
        """From now on everything goes to the listener, who keeps the store from then on; ``None``: nobody leads."""
        self._listener = listener

    async def _see_through(self, this: _Round) -> None:
        """Say when a round is complete; it may be over before that."""
        await run_until(this.complete(), this.over)
        if not this.over.is_set():
            self._condition.ready()
        await this.over.wait()

    async def _reflect(self, kind: Kind[Any], this: _Round) -> None:
        await Reflector(self._client, kind, partial(self._take, this)).run()

    def _take(self, this: _Round, event: ReflectorEvent[Any]) -> None:
        if this is not self._round:
            return
        if self._listener is not None:
            self._listener(event)
        else:
            self.store.apply(event)
        if isinstance(event, Listed):
            if this.listed[event.kind].is_set():
                self._metrics.count("berth_relists_total", kind=event.kind)
            this.listed[event.kind].set()
