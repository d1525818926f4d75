"""WATCH: from a revision or from the present state, until it times out, is cut, or its client is too slow."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Mapping

import msgspec

from berth_sim.apiserver.kinds import SimulatedKind
from berth_sim.apiserver.listing import Selector, integer, is_set, resource_version, selector_of
from berth_sim.apiserver.status import StatusError
from berth_sim.apiserver.store import Store, StoreEvent, watch_line

BOOKMARK_EVERY_SECONDS = 60.0
BOOKMARK_BEFORE_END_SECONDS = 2.0
SHORTEST_DEFAULT_SECONDS = 1800.0  # a watch without a timeout ends after one to two times this
SLOWEST_READER_EVENTS = 100_000  # a watch this many events behind is closed, to limit memory
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    selector: Selector
    revision: int | None  # send changes after this revision; None or 0: existing objects first
    timeout_seconds: float
    wants_bookmarks: bool
    wants_initial_events: bool  # `sendInitialEvents=true`: existing objects first, at any revision

    @property
    def starts_with_state(self) -> bool:
        return self.wants_initial_events or not self.revision


def watch_options(kind: SimulatedKind, query: Mapping[str, str]) -> WatchOptions:
    """Read the query of a WATCH.

    Raises:
        StatusError: 400.
    """
    seconds = integer(query, "timeoutSeconds")
    return WatchOptions(
        selector=selector_of(kind, query),
        revision=resource_version(query.get("resourceVersion", "")),
        timeout_seconds=float(seconds) if seconds > 0 else SHORTEST_DEFAULT_SECONDS * random.uniform(1, 2),
        wants_bookmarks=is_set(query, "allowWatchBookmarks"),
        wants_initial_events=is_set(query, "sendInitialEvents"),
    )


class Watch:
    """One client's watch of one kind: queues changes and yields them as lines."""

    def __init__(self, store: Store, kind: SimulatedKind, namespace: str, options: WatchOptions) -> None:
        self._store = store
        self._kind = kind
        self._namespace = namespace
        self._options = options
        self._lines: list[bytes] = []
        self._wake = asyncio.Event()
        self._is_cut = False
        self._began_at = store.revision if options.starts_with_state else options.revision or 0

    def cut(self) -> None:
        """End the watch now; queued events are dropped, and the client can resume."""
        self._is_cut = True
        self._wake.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """The watch's lines, bursts together; a compacted history is an ERROR event."""
        table = self._store.table(self._kind)
        try:
            self._begin()
        except StatusError as exc:
            yield watch_line("ERROR", exc.encoded())
            return
        table.listeners[self._take] = None
        try:
            async for chunk in self._until_end():
                yield chunk
        finally:
            del table.listeners[self._take]

    def _begin(self) -> None:
        if not self._options.starts_with_state:
            for change in self._store.table(self._kind).since(self._options.revision or 0):
                self._take(change)
            return
        for stored in self._store.table(self._kind).in_order():
            if self._is_meant(stored.key[0]) and self._options.selector.matches(stored.value):
                self._lines.append(watch_line("ADDED", stored.encoded(self._kind)))
        if self._options.wants_bookmarks:
            self._lines.append(self._bookmark(self._store.revision, _INITIAL_EVENTS_END))

    def _is_meant(self, namespace: str) -> bool:
        return not self._namespace or namespace == self._namespace

    def _take(self, change: StoreEvent) -> None:
        """Queue the change as an event of this watch; an object that no longer matches the selector is DELETED."""
        if not self._is_meant(change.key[0]) or change.revision <= (self._options.revision or 0):
            return
        selector = self._options.selector
        was_meant = change.before is not None and selector.matches(change.before.value)
        is_meant = change.after is not None and selector.matches(change.after.value)
        if is_meant:
            self._lines.append(change.line("MODIFIED" if was_meant else "ADDED", self._kind))
        elif was_meant:
            self._lines.append(change.line("DELETED", self._kind))
        else:
            return
        if len(self._lines) > SLOWEST_READER_EVENTS:
            self._is_cut = True
        self._wake.set()

    async def _until_end(self) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        ends_at = clock() + self._options.timeout_seconds
        bookmark_at = self._next_bookmark(clock(), ends_at)
        while True:
            if self._lines:
                lines, self._lines = self._lines, []
                yield b"".join(lines)
            if self._is_cut or clock() >= ends_at:
                return
            if clock() >= bookmark_at:
                bookmark_at = self._next_bookmark(clock(), ends_at)
                self._mark()
                continue
            await self._wait_until(min(ends_at, bookmark_at))

    async def _wait_until(self, moment: float) -> None:
        if self._lines:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout_at(moment):
                await self._wake.wait()
        except TimeoutError:
            return

    def _next_bookmark(self, now: float, ends_at: float) -> float:
        if not self._options.wants_bookmarks:
            return float("inf")
        before_end = ends_at - BOOKMARK_BEFORE_END_SECONDS
        regular = now + BOOKMARK_EVERY_SECONDS
        return min(before_end, regular) if before_end > now else regular

    def _mark(self) -> None:
        """Queue a bookmark, unless the kind is unchanged since the watch began, as in the real server."""
        newest = self._store.table(self._kind).newest
        if newest > self._began_at:
            self._lines.append(self._bookmark(newest))

    def _bookmark(self, revision: int, annotations: Mapping[str, str] | None = None) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(revision)}
        if annotations:
            metadata["annotations"] = annotations
        body = b'%b"metadata":%b%b}' % (self._kind.preamble, msgspec.json.encode(metadata), self._kind.bookmark)
        return watch_line("BOOKMARK", body)
