"""Informers: a reflector for each kind, which lists its objects and then watches them, until it is cancelled.

Errors of the API server do not end a reflector: each is logged, and the request is repeated after a back-off. Its
positions are resourceVersions of its kind (docs/protocol.md, 3 and 5). The pool of them always runs, also in a standby.

One reflector reads all pods, bound and pending. With two reflectors of opposite field selectors, a pod that is bound
would be in neither or in both for a moment, and each reflector would need its own consistent LIST.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final, Generic

from berth.api.kinds import Kind
from berth.clock import Backoff, Clock, SteadyClock
from berth.decoding import parse_resource_version, version_number
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.kube.client import KubeClient, ResponseStream
from berth.kube.errors import ApiRefusedError, ApiUnreachableError, StatusObject, explain, refusal
from berth.kube.listwatch import (
    Current,
    LineSplitter,
    Listed,
    ListedPart,
    ObjectDecoder,
    ReflectorEvent,
    Selection,
    Sink,
    T,
    Undecodable,
    list_objects,
    present_version,
)


class ReflectorPositions:
    """Two resourceVersions: of the complete state that was passed on, and of its newest object or event.

    A LIST or a bookmark moves only the first. A conflict names the second: without changes of the kind, another reader
    reaches the first only with its next bookmark.
    """

    def __init__(self) -> None:
        self.reached = 0
        """Every event up to this version has been passed on: the highest of LIST, bookmark, object and event."""
        self.newest_object = 0
        """The highest resourceVersion of an object or event that has been passed on."""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def listed(self, version: str, newest_object: int) -> None:
        """A LIST was passed on. A lower version means a new store of the API server, which counts from the start."""
        self.reached = version_number(version)
        self.newest_object = min(max(self.newest_object, newest_object), self.reached)
        self._wake()

    def event(self, version: str) -> None:
        """An object's event was passed on."""
        position = version_number(version)
        self.newest_object = max(self.newest_object, position)
        self._reach(position)

    def bookmark(self, version: str) -> None:
        """A bookmark was passed on."""
        self._reach(version_number(version))

    async def wait(self, version: str) -> None:
        """Wait until every event up to this version has been passed on.

        Raises:
            DecodeError: not a resourceVersion.
        """
        wanted = parse_resource_version(version)
        if wanted <= self.reached:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (wanted, next(self._order), waiter))
        await waiter

    def _reach(self, position: int) -> None:
        if position > self.reached:
            self.reached = position
            self._wake()

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.reached:
            waiter = heapq.heappop(self._waiting)[2]
            if not waiter.done():
                waiter.set_result(None)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorSettings:
    """Page size, time-outs and back-off of a reflector."""

    page_size: int | None = None
    """Objects per page of a LIST, 1 or more. ``None``: by their size."""
    shortest_watch: timedelta = timedelta(seconds=20)
    """Shortest duration of one watch; then the next one continues. The server sends a bookmark before the end, which
    confirms that a kind without changes is current and reveals a half-open connection."""
    longest_watch: timedelta = timedelta(seconds=30)
    """Longest duration of one watch. The duration is random in between, so that many watches do not end together."""
    silence: timedelta = timedelta(seconds=15)
    """How long a watch may be silent after its planned end before its connection counts as dead."""
    first_pause: timedelta = timedelta(milliseconds=250)
    """The pause after a failure; doubles with each failure in a row."""
    longest_pause: timedelta = timedelta(seconds=10)
    """The longest pause, and so the longest delay until a recovered API server is noticed."""


SHORTEST_USEFUL_WATCH = timedelta(seconds=1)
"""A shorter watch without an event counts as a failure; otherwise it would be repeated without a pause."""

LONGEST_RETRY_AFTER = timedelta(minutes=1)
"""The longest Retry-After that is obeyed."""


class ReflectorPhase(StrEnum):
    """The activity of a reflector."""

    LISTING = "listing"
    WATCHING = "watching"
    PAUSING = "pausing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorStatus:
    """The activity of a reflector, and its last error."""

    phase: ReflectorPhase = ReflectorPhase.LISTING
    listed: bool = False
    """Whether a complete LIST has been passed on."""
    last_contact: float | None = None
    """When the last request succeeded, by the reflector's clock."""
    last_error: str | None = None
    """The last error, in one sentence; ``None`` once the API server has answered again."""
    failures: int = 0
    """Failures since the last success."""


class _ExpiredError(TemporaryError):
    """410: the API server no longer has the events after the last resourceVersion. The kind must be listed again."""


class _RelistError(TemporaryError):
    """The watch cannot continue from its resourceVersion, for another reason than 410."""


@dataclass(slots=True)
class _Watch:
    """One watch: its start, and whether it delivered an event."""

    began: float
    seconds: int
    splitter: LineSplitter = field(default_factory=LineSplitter)
    gave_something: bool = False


class Reflector(Generic[T]):
    """Reads one kind and passes every event to the sink, in order. Call ``run`` in a task of its own."""

    def __init__(  # noqa: PLR0913 - client, kind, sink, and the parts that tests replace
        self,
        client: KubeClient,
        kind: Kind[T],
        sink: Sink[T],
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
        settings: ReflectorSettings | None = None,
        clock: Clock | None = None,
        failures: FailureLog | None = None,
    ) -> None:
        self._client = client
        self._failure_log = failures or FailureLog(client)
        self._kind = kind
        self._sink = sink
        self._selection = Selection(field_selector=field_selector, label_selector=label_selector)
        self._settings = settings or ReflectorSettings()
        self._clock = clock or SteadyClock()
        self._decoder = ObjectDecoder(kind)
        self._backoff = Backoff(initial=self._settings.first_pause, maximum=self._settings.longest_pause)
        self._failures = 0
        self._positions = ReflectorPositions()
        self._status = ReflectorStatus()
        self._last_contact: float | None = None
        self._current_at: float | None = None
        self._version: str | None = None
        """The resourceVersion of the next watch; ``None``: the kind must be listed first."""

    @property
    def kind(self) -> str:
        return self._kind.name

    @property
    def status(self) -> ReflectorStatus:
        """What it is doing, and its last error."""
        return replace(self._status, last_contact=self._last_contact)

    def age(self) -> float | None:
        """For how many seconds nothing has shown that the state is current: no LIST began, and no watch said anything.

        ``None``: nothing was listed yet.
        """
        return None if self._current_at is None else self._clock.now() - self._current_at

    @property
    def newest_object_version(self) -> int:
        """The highest resourceVersion of an object or event passed on, not of a LIST or bookmark; 0 at first."""
        return self._positions.newest_object

    @property
    def version(self) -> int:
        """Every event up to this resourceVersion has been passed on; 0 before the first LIST."""
        return self._positions.reached

    async def reached(self, resource_version: str) -> None:
        """Wait until every event of this kind up to this resourceVersion has been passed to the sink.

        It must be the version of an object or event of this kind. That of another kind may never be reached: without
        changes of a kind, bookmarks do not move either.

        Raises:
            DecodeError: not a resourceVersion.
        """
        await self._positions.wait(resource_version)

    async def run(self) -> None:
        """List and watch until cancelled. Raises the exceptions of the sink, never those of the API server."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except BerthError as exc:
                await self._pause(exc)

    async def _list(self) -> None:
        self._status = replace(self._status, phase=ReflectorPhase.LISTING)
        began = self._clock.now()
        found = await list_objects(
            self._client,
            self._kind,
            selection=self._selection,
            page_size=self._settings.page_size,
            on_part=lambda objects: self._sink(ListedPart(kind=self.kind, objects=objects)),
        )
        version = found.resource_version
        self._sink(Listed(kind=self.kind, objects=found.objects, resource_version=version, passed_on=found.passed_on))
        for thing in found.undecodable:
            self._sink(thing)
        self._version = version
        self._positions.listed(version, found.newest_object)
        self._status = replace(self._status, listed=True)
        self._current_at = began
        self._contact()

    async def _watch(self) -> None:
        version = self._version or "0"
        watch = _Watch(began=self._clock.now(), seconds=self._length())
        read_timeout = timedelta(seconds=watch.seconds) + self._settings.silence
        async with self._client.stream(
            self._kind.path, params=self._params(version, watch), read_timeout=read_timeout
        ) as stream:
            if stream.status != HTTPStatus.OK:
                raise await _refusal(self.kind, stream)
            self._status = replace(self._status, phase=ReflectorPhase.WATCHING)
            self._contact()
            self._sink(Current(kind=self.kind, resource_version=version))
            await self._follow(stream, watch)
        self._ended(watch)

    def _length(self) -> int:
        shortest, longest = self._settings.shortest_watch, self._settings.longest_watch
        return max(1, round(random.uniform(shortest.total_seconds(), longest.total_seconds())))

    def _params(self, version: str, watch: _Watch) -> dict[str, str]:
        return {
            **self._selection.params(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(watch.seconds),
        }

    async def _follow(self, stream: ResponseStream, watch: _Watch) -> None:
        async for chunk in stream.chunks:
            for line in watch.splitter.feed(chunk):
                event = self._decoder.event(line)
                if isinstance(event, StatusObject):
                    raise _error(self.kind, event)
                self._hand_on(event)
            watch.gave_something = True
            self._contact()
            self._current_at = self._clock.now()

    def _hand_on(self, event: ReflectorEvent[T]) -> None:
        self._sink(event)
        version = _version_of(event)
        if not version:
            return
        self._version = version
        if isinstance(event, Current):
            self._positions.bookmark(version)
        else:
            self._positions.event(version)

    def _ended(self, watch: _Watch) -> None:
        if not watch.gave_something and self._clock.now() - watch.began < SHORTEST_USEFUL_WATCH.total_seconds():
            raise ApiUnreachableError(f"watching {self.kind!r}: it ended right after its start", maybe_sent=True)
        self._failures = 0

    def _contact(self) -> None:
        self._last_contact = self._clock.now()
        if self._status.failures:
            self._status = replace(self._status, last_error=None, failures=0)
            self._failure_log.recovered(self.kind)

    async def _pause(self, exc: BerthError) -> None:
        self._failures += 1
        pause = self._backoff.after(self._failures)
        if isinstance(exc, _ExpiredError | _RelistError | DecodeError):
            self._version = None
        if isinstance(exc, _ExpiredError) and self._failures == 1:
            pause = 0.0  # not a failure of the server: the first retry needs no pause
        if isinstance(exc, ApiRefusedError):
            pause = max(pause, min(exc.retry_after, LONGEST_RETRY_AFTER).total_seconds())
        self._failed(exc)
        await self._clock.sleep(pause)

    def _failed(self, exc: BerthError) -> None:
        error, status = str(exc), self._status
        if error != status.last_error:
            self._failure_log.failed(self.kind, exc)
        self._status = replace(status, phase=ReflectorPhase.PAUSING, last_error=error, failures=status.failures + 1)


class FailureLog:
    """Logs why kinds cannot be read: what all of them have in common once, and then that it is over.

    An API server that does not answer, or that refuses the credentials, fails every kind alike.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._failing: set[str] = set()
        self._logged: set[str] = set()

    def failed(self, kind: str, exc: BerthError) -> None:
        """A kind has failed, with this error for the first time."""
        if isinstance(exc, ApiRefusedError) and exc.status == HTTPStatus.UNAUTHORIZED:
            cause = text = self._client.refused_credentials
        elif isinstance(exc, ApiUnreachableError):
            text = str(exc)
            cause = text.partition(": ")[2]  # without the request, which is each kind's own
        else:
            logger.warning("%s", exc)
            return
        self._failing.add(kind)
        if cause not in self._logged:
            self._logged.add(cause)
            logger.warning("%s", text)

    def recovered(self, kind: str) -> None:
        """The API server has answered a request for the kind."""
        if kind in self._failing:
            self._failing.remove(kind)
            if not self._failing:
                self._logged.clear()
                logger.info("the API server answers again")


async def _refusal(kind: str, stream: ResponseStream) -> TemporaryError:
    """The exception for a status other than 200; its type decides the next step."""
    refused = refusal(f"watching {kind!r}", await stream.whole())
    if refused.status == HTTPStatus.GONE:
        return _ExpiredError(str(refused))
    if refused.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return _RelistError(str(refused))  # it rejects the resourceVersion
    return refused


def _error(kind: str, failure: StatusObject) -> TemporaryError:
    """The exception for an ERROR event; its type decides the next step."""
    text = f"watching {kind!r}: {failure.code}: {explain(failure)}"
    return _ExpiredError(text) if failure.code == HTTPStatus.GONE else _RelistError(text)


def _version_of(event: ReflectorEvent[T]) -> str:
    match event:
        case Current() | Undecodable():
            return event.resource_version
        case Listed() | ListedPart():
            return ""
        case _:
            return event.object.metadata.resource_version


CURRENT_SECONDS: Final = 2.0
"""How long a reflector of many objects may take to become current before its kind is listed again."""
FRESH_SECONDS: Final = 5.0
"""A watch may be late by as much at any time, and by 45 s before its silence is noticed."""
QUICKLY_LISTED: Final = 5_000
"""So many objects are listed within some tenths of a second, which is sooner than the next bookmark."""

EventListener = Callable[[Any], object]
"""Receives every event, in order within a kind. It must not block."""


class Informers:
    """Reads every kind and passes each event to the listener. Call ``run`` in a task of its own."""

    def __init__(  # noqa: PLR0913 - the client, what is read, who is told, the clock
        self,
        client: KubeClient,
        kinds: Sequence[Kind[Any]],
        listener: EventListener,
        *,
        on_complete: Callable[[], None],
        on_relist: Callable[[str], None],
        clock: Clock | None = None,
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
        self._clock = clock or SteadyClock()
        self._failures = FailureLog(client)
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

    async def refresh(self) -> None:
        """Wait until every kind is listed, and list those again that had no event for ``FRESH_SECONDS``.

        A process that has just started has listed everything; a second LIST of a large cluster would cost it, and the
        API server, as much again.
        """
        for kind in self._kinds:
            age = self._reflectors[kind.name].age()
            if age is not None and age > FRESH_SECONDS:
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
        reflector: Reflector[Any] = Reflector(
            self._client,
            kind,
            lambda event: self._take(reflector, event),
            clock=self._clock,
            failures=self._failures,
        )
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
