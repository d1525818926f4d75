"""The binder's own eyes on the API server: a reflector for each kind, all the time, also in standby."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from berth.api.errors import TemporaryError
from berth.api.kinds import WATCHED_KINDS, Kind
from berth.kube.client import KubeClient
from berth.kube.errors import refusal
from berth.kube.reflector import Reflector
from berth.kube.watch import Listed, ReflectorEvent, Undecodable
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth_binder.cache import Cache

log = get_logger()

CURRENT_SECONDS: Final = 2.0
"""How long a reflector of many objects may take to come up to the present before its kind is listed anew."""
QUICKLY_LISTED: Final = 5_000
"""Objects that are listed in some tenths of a second: sooner than one waits for a bookmark."""


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta


class BinderInformers:
    """Feeds the cache. ``run`` it in a task of its own."""

    def __init__(self, client: KubeClient, cache: Cache, process: Process) -> None:
        self._client = client
        self._cache = cache
        self._metrics = process.metrics
        for kind in WATCHED_KINDS:
            self._metrics.count("berth_relists_total", 0, kind=kind.name)
        self._condition = process.health.condition("cluster", "listing the cluster")
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._listed = {kind.name: asyncio.Event() for kind in WATCHED_KINDS}

    async def run(self) -> None:
        """Read every kind until cancelled."""
        try:
            for kind in WATCHED_KINDS:
                self._begin(kind)
            await self.listed()
            self._condition.ready()
            while True:
                await asyncio.wait(list(self._tasks.values()), return_when=asyncio.FIRST_COMPLETED)
                self._see_to_the_dead()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def listed(self) -> None:
        """Wait until every kind has been listed once."""
        for listed in self._listed.values():
            await listed.wait()

    async def reached(self, kind: Kind[Any], resource_version: str) -> None:
        """Wait until everything of the kind up to there has been read."""
        await self._reflectors[kind.name].reached(resource_version)

    async def become_current(self, kind: Kind[Any], size: int) -> None:
        """Come up to what the API server holds now. A quiet kind, whose watch would long not say so, is listed anew.

        ``size`` is about how many objects there are.

        Raises:
            ApiUnreachableError, ApiRefusedError: the API server did not say where it stands.
        """
        present = await self._present(kind)
        patience = CURRENT_SECONDS if size > QUICKLY_LISTED else 0.0
        try:
            async with asyncio.timeout(patience):
                await self.reached(kind, present)
        except TimeoutError:
            await self._list_anew(kind)

    async def _present(self, kind: Kind[Any]) -> str:
        """The resourceVersion of a consistent LIST of one object."""
        response = await self._client.request("GET", kind.path, params={"limit": "1"})
        if not response.succeeded:
            raise refusal(f"reading where {kind.name!r} stands", response)
        try:
            return msgspec.json.decode(response.body, type=_List).metadata.resource_version
        except msgspec.MsgspecError as exc:
            raise TemporaryError(f"reading where {kind.name!r} stands: {exc}") from exc

    async def _list_anew(self, kind: Kind[Any]) -> None:
        self._listed[kind.name].clear()
        self._tasks[kind.name].cancel()
        self._begin(kind)
        await self._listed[kind.name].wait()

    def _begin(self, kind: Kind[Any]) -> None:
        reflector = Reflector(self._client, kind, self._observe)
        self._reflectors[kind.name] = reflector
        self._tasks[kind.name] = asyncio.create_task(reflector.run(), name=f"reading {kind.name}")

    def _see_to_the_dead(self) -> None:
        """A reflector that ended by itself has met a bug: that ends the process with its words."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    def _observe(self, event: ReflectorEvent[Any]) -> None:
        self._cache.observe(event)
        oddities = self._cache.snapshot.oddities
        while oddities:
            log.warning("counted otherwise than it is written", problem=oddities.popleft())
        if isinstance(event, Listed):
            if self._listed[event.kind].is_set():
                self._metrics.count("berth_relists_total", kind=event.kind)
            self._listed[event.kind].set()
        elif isinstance(event, Undecodable):
            log.warning("an object that cannot be read", kind=event.kind, object=event.name, reason=event.reason)
