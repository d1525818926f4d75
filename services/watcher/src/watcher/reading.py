"""The watcher's eyes on the API server: a reflector for each kind, all the time, also in standby.

One reflector shows all pods, bound and pending: with two of opposite field selectors a pod that moves from one to the
other would be in neither or in both for a moment, and each needs its own LIST to be consistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from berth.kube.client import KubeClient
from berth.kube.kinds import NAMESPACE, NODE, POD, Kind
from berth.kube.port import Listed, ReflectorEvent
from berth.kube.reflector import Reflector
from berth.service.process import Process
from watcher.store import ObjectStore

KINDS: Final[Sequence[Kind[Any]]] = (NODE, NAMESPACE, POD)
"""What is mirrored. Nodes first: a pod that is shown on a node that is not there yet is an odd sight."""

Listener = Callable[[Any], None]


class Reading:
    """Keeps the store, or hands what the reflectors show to whoever leads. ``run`` it in a task of its own."""

    def __init__(self, client: KubeClient, process: Process) -> None:
        self._client = client
        self._condition = process.health.condition("cluster", "listing the cluster")
        self._listener: Listener | None = None
        self._listed: dict[str, asyncio.Event] = {kind.name: asyncio.Event() for kind in KINDS}
        self._again = asyncio.Event()
        self.store = ObjectStore(kind.name for kind in KINDS)
        """Right while nobody listens, and for the one who has just begun to."""

    async def run(self) -> None:
        """Read until cancelled; from the beginning each time that it is asked for."""
        while True:
            self._again.clear()
            for listed in self._listed.values():
                listed.clear()
            async with asyncio.TaskGroup() as tasks:
                reading = [tasks.create_task(self._reflect(kind), name=f"reflect {kind.name}") for kind in KINDS]
                await self._again.wait()
                for task in reading:
                    task.cancel()

    async def list_anew(self) -> None:
        """Wait until every kind has been listed anew: what a standby has seen may be half a minute old."""
        self._listener = None
        self._again.set()
        while self._again.is_set():
            await asyncio.sleep(0)
        for listed in self._listed.values():
            await listed.wait()

    def listen(self, listener: Listener | None) -> None:
        """From now on everything goes to the listener, who keeps the store from then on; ``None``: nobody leads."""
        self._listener = listener

    async def _reflect(self, kind: Kind[Any]) -> None:
        await Reflector(self._client, kind, self._take).run()

    def _take(self, event: ReflectorEvent[Any]) -> None:
        if self._listener is not None:
            self._listener(event)
        else:
            self.store.apply(event)
        if isinstance(event, Listed):
            self._listed[event.kind].set()
            if all(listed.is_set() for listed in self._listed.values()):
                self._condition.ready()
