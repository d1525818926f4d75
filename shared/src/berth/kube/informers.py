"""A pool of informers: one reflector for each kind, always running, also in a standby.

One reflector reads all pods, bound and pending. With two reflectors of opposite field selectors, a pod that is bound
would be in neither or in both for a moment, and each reflector would need its own consistent LIST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from berth.api.kinds import Kind
from berth.kube.client import KubeClient
from berth.kube.listwatch import present_version
from berth.kube.reflector import Reflector
from berth.kube.watch import Listed, ReflectorEvent

CURRENT_SECONDS: Final = 2.0
"""How long a reflector of many objects may take to become current before its kind is listed again."""
QUICKLY_LISTED: Final = 5_000
"""So many objects are listed within some tenths of a second, which is sooner than the next bookmark."""

EventListener = Callable[[Any], object]
"""Receives every event, in order within a kind. It must not block."""


class Informers:
    """Reads every kind and passes each event to the listener. Call ``run`` in a task of its own."""

    def __init__(
        self,
        client: KubeClient,
        kinds: Sequence[Kind[Any]],
        listener: EventListener,
        *,
        on_complete: Callable[[], None],
        on_relist: Callable[[str], None],
    ) -> None:
        """Create the reflectors. No request is sent yet.

        ``on_complete`` is called when every kind has been listed, ``on_relist`` with the name of a kind that was
        listed again because its watch could not continue.
        """
        self._client = client
        self._kinds = kinds
        self._listener = listener
        self._on_complete = on_complete
        self._on_relist = on_relist
        self._reflectors = {kind.name: self._reflector(kind) for kind in kinds}
        self._listed = {kind.name: asyncio.Event() for kind in kinds}
        self._tasks = asyncio.TaskGroup()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Read until cancelled. An exception of the listener ends it; errors of the API server do not."""
        async with self._tasks:
            for kind in self._kinds:
                self._start(kind)

    def listen(self, listener: EventListener) -> None:
        """Pass every event from now on to ``listener``."""
        self._listener = listener

    async def listed(self) -> None:
        """Wait until every kind has been listed."""
        for listed in self._listed.values():
            await listed.wait()

    async def list_anew(self) -> None:
        """List every kind again and wait for it: the state from a watch may be half a minute old."""
        for kind in self._kinds:
            self._restart(kind)
        await self.listed()

    async def reached(self, kind: Kind[Any], resource_version: str) -> None:
        """Wait until every event of the kind up to this resourceVersion has been passed on.

        Raises:
            DecodeError: not a resourceVersion.
        """
        await self._reflectors[kind.name].reached(resource_version)

    async def become_current(self, kind: Kind[Any], size: int) -> None:
        """Wait until the kind has the API server's current state; ``size`` is its approximate number of objects.

        A kind without changes is listed again, since its watch may be silent for half a minute.

        Raises:
            ApiUnreachableError, ApiRefusedError, DecodeError: the LIST failed.
        """
        present = await present_version(self._client, kind)
        try:
            async with asyncio.timeout(CURRENT_SECONDS if size > QUICKLY_LISTED else 0.0):
                await self.reached(kind, present)
        except TimeoutError:
            self._restart(kind)
            await self._listed[kind.name].wait()

    def _restart(self, kind: Kind[Any]) -> None:
        self._reflectors[kind.name] = self._reflector(kind)
        self._listed[kind.name].clear()
        if (former := self._running.get(kind.name)) is not None:
            former.cancel()
            self._start(kind)

    def _start(self, kind: Kind[Any]) -> None:
        work = self._reflectors[kind.name].run()
        self._running[kind.name] = self._tasks.create_task(work, name=f"reflect {kind.name}")

    def _reflector(self, kind: Kind[Any]) -> Reflector[Any]:
        reflector: Reflector[Any] = Reflector(self._client, kind, lambda event: self._take(reflector, event))
        return reflector

    def _take(self, reflector: Reflector[Any], event: ReflectorEvent[Any]) -> None:
        if reflector is not self._reflectors[event.kind]:
            return  # a newer reflector has taken its place
        self._listener(event)
        if isinstance(event, Listed):
            self._note_listed(event.kind)

    def _note_listed(self, kind: str) -> None:
        if self._listed[kind].is_set():
            self._on_relist(kind)
            return
        self._listed[kind].set()
        if all(listed.is_set() for listed in self._listed.values()):
            self._on_complete()
