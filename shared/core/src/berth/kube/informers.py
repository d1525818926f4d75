"""Informers: one reflector per kind lists the objects, then watches them until cancelled.

Errors of the API server do not end a reflector: it logs them and retries after a backoff. Positions are
resourceVersions of the kind (docs/protocol.md, 3 and 5). Informers run in a standby too.

One reflector reads bound and pending pods alike: with two of opposite field selectors, a newly bound pod would briefly
be in neither or in both.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Generic

from berth.api.kinds import WATCHED_KINDS, Kind
from berth.clock import Backoff, Clock, SteadyClock
from berth.decoding import parse_resource_version, version_number
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.kube.client import KubeClient, ResponseStream
from berth.kube.errors import RIGHTS_PAGE, ApiRefusedError, ApiUnreachableError, explain, refusal
from berth.kube.http1 import StatusObject
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
    WholeList,
    list_objects,
    present_version,
)
from berth.log import get_logger

log = get_logger()


class OlderStoreError(TemporaryError):
    """The API server's store was restored: what was read and awaited of the former one may never come."""


class ReflectorPositions:
    """How far a kind was passed on, by resourceVersion, and who waits for it."""

    def __init__(self) -> None:
        self.reached = 0  # Every event up to this version was passed on: the highest of LIST, bookmark and event.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def listed(self, version: str) -> None:
        """A LIST was passed on. A lower version means an older store of the API server."""
        before, self.reached = self.reached, version_number(version)
        self._wake()
        if self.reached < before:
            self._fail(f"the API server has an older store: resourceVersion {self.reached} after {before}")

    def reach(self, version: str) -> None:
        """An event or bookmark was passed on."""
        position = version_number(version)
        if position > self.reached:
            self.reached = position
            self._wake()

    async def wait(self, version: str) -> None:
        """Wait until every event up to this version was passed on.

        Raises:
            DecodeError: not a resourceVersion.
            OlderStoreError: a LIST has shown an older store.
        """
        wanted = parse_resource_version(version)
        if wanted <= self.reached:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (wanted, next(self._order), waiter))
        await waiter

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.reached:
            waiter = heapq.heappop(self._waiting)[2]
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, problem: str) -> None:
        waiting, self._waiting = self._waiting, []
        for *_, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(OlderStoreError(problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorSettings:
    """Page size, time limits and backoff of a reflector."""

    # Objects per page of a LIST, at least 1; None: by their size.
    page_size: int | None = None
    # Each watch lasts a random time in between, so that watches do not end together; then the next one continues.
    # Before the end the server sends a bookmark, which confirms that an unchanged kind is current and reveals a
    # half-open connection.
    shortest_watch: timedelta = timedelta(seconds=20)
    longest_watch: timedelta = timedelta(seconds=30)
    # Time after the planned end of a watch until its connection counts as dead.
    silence: timedelta = timedelta(seconds=15)
    first_pause: timedelta = timedelta(milliseconds=250)  # Doubles with each further failure.
    longest_pause: timedelta = timedelta(seconds=10)  # Also the longest delay until a recovery is noticed.


# A shorter watch without an event is a failure, so that it is not repeated without a pause.
SHORTEST_USEFUL_WATCH = timedelta(seconds=1)

# Maximum Retry-After that is obeyed.
LONGEST_RETRY_AFTER = timedelta(minutes=1)


# resourceVersion of a kind that is not served.
_NEVER: Final = "0"


class _ExpiredError(TemporaryError):
    """410: events after the last resourceVersion have expired. The kind must be listed again."""


class _NotServedError(TemporaryError):
    """404 for an optional kind that this reflector has never listed."""


# After so many failures in a row, about 3 s, an optional kind that berth may not read, or that is served no more, is
# unread. A server that has just started refuses everybody for a moment, and one of several may be of an earlier
# release.
REFUSED_TRIES: Final = 5
_UNREAD: Final[dict[int, str]] = {
    HTTPStatus.FORBIDDEN: f"berth may not read {{}} ({RIGHTS_PAGE})",
    HTTPStatus.NOT_FOUND: "the API server no longer serves {}",
}


class _RelistError(TemporaryError):
    """The watch cannot continue from its resourceVersion, for another reason than 410."""


@dataclass(slots=True)
class _Watch:
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
        was_served: bool = False,
    ) -> None:
        self._client = client
        self._was_served = was_served
        self._failure_log = failures or FailureLog(client)
        self._kind = kind
        self._versions = kind.versions
        self._sink = sink
        self._selection = Selection(field_selector=field_selector, label_selector=label_selector)
        self._settings = settings or ReflectorSettings()
        self._clock = clock or SteadyClock()
        self._decoder = ObjectDecoder(kind)
        self._backoff = Backoff(initial=self._settings.first_pause, maximum=self._settings.longest_pause)
        self._failures = 0
        self._positions = ReflectorPositions()
        self.last_error: str | None = None  # One sentence; None once the API server has answered again.
        self._current_at: float | None = None
        self._version: str | None = None  # resourceVersion of the next watch; None: list first.

    @property
    def kind(self) -> str:
        return self._kind.name

    def age(self) -> float | None:
        """Seconds since the state was last known to be current: the start of the LIST, or data of the watch.

        ``None`` before the first LIST.
        """
        return None if self._current_at is None else self._clock.now() - self._current_at

    @property
    def version(self) -> int:
        """Every event up to this resourceVersion was passed on; 0 before the first LIST."""
        return self._positions.reached

    async def reached(self, resource_version: str) -> None:
        """Wait until every event of this kind up to this resourceVersion was passed to the sink.

        The version must be an object's or event's of this kind: without changes of the kind, bookmarks may never reach
        another kind's version.

        Raises:
            DecodeError: not a resourceVersion.
            OlderStoreError: a LIST has shown an older store.
        """
        await self._positions.wait(resource_version)

    async def run(self) -> None:
        """List and watch until cancelled. Raises exceptions of the sink, never errors of the API server."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except _NotServedError:
                if self._kind.is_rare:
                    self._sink(Current(kind=self.kind, resource_version=_NEVER, is_served=False))
                else:
                    self._be_without(f"the API server does not serve {self._kind.api_version}")
                self._contact()
                await self._clock.sleep(self._length())
            except BerthError as exc:
                await self._pause(exc)

    async def _list(self) -> None:
        began = self._clock.now()
        found = await self._list_served()
        version, self._was_served = found.resource_version, True
        self._sink(Listed(kind=self.kind, objects=found.objects, resource_version=version, passed_on=found.passed_on))
        for thing in found.undecodable:
            self._sink(thing)
        self._version = version
        self._positions.listed(version)
        self._current_at = began
        self._contact()

    async def _list_served(self) -> WholeList[T]:
        """List the newest version that the API server serves."""
        for version in self._versions:
            try:
                found = await list_objects(
                    self._client,
                    version,
                    selection=self._selection,
                    page_size=self._settings.page_size,
                    on_part=lambda objects: self._sink(ListedPart(kind=self.kind, objects=objects)),
                )
            except ApiRefusedError as exc:
                if exc.status != HTTPStatus.NOT_FOUND or not self._kind.is_optional:
                    raise
                missing = exc
            else:
                self._kind = version
                return found
        # Objects that were listed stay, also if the kind is unread then: claims without them would be devices in use.
        if self._was_served:
            raise missing
        raise _NotServedError(str(missing)) from missing

    def _be_without(self, reason: str) -> None:
        """Nothing waits for the kind, until it can be listed and watched."""
        self._sink(Current(kind=self.kind, resource_version=_NEVER, unread=reason))

    async def _watch(self) -> None:
        version = self._version or "0"
        watch = _Watch(began=self._clock.now(), seconds=self._length())
        read_timeout = timedelta(seconds=watch.seconds) + self._settings.silence
        async with self._client.stream(
            self._kind.path, params=self._params(version, watch), read_timeout=read_timeout
        ) as stream:
            if stream.status == HTTPStatus.NOT_FOUND and self._versions[1:]:
                raise _RelistError(f"watching {self.kind!r}: the API server no longer serves {self._kind.api_version}")
            if stream.status != HTTPStatus.OK:
                raise await _refusal(self.kind, stream)
            self._contact()
            self._sink(Current(kind=self.kind, resource_version=version))
            await self._follow(stream, watch)
        await self._ended(watch)

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
        if version:
            self._version = version
            self._positions.reach(version)

    async def _ended(self, watch: _Watch) -> None:
        if not watch.gave_something and self._clock.now() - watch.began < SHORTEST_USEFUL_WATCH.total_seconds():
            raise ApiUnreachableError(f"watching {self.kind!r}: it ended right after its start")
        if not watch.gave_something:
            await self._check_store()
        self._failures = 0

    async def _check_store(self) -> None:
        # A watch from a version that is yet to come is silent, without a bookmark at its end.
        present = await present_version(self._client, self._kind)
        if version_number(present) < self.version:
            raise _RelistError(f"watching {self.kind!r}: the API server is at {present}, before {self.version}")

    def _contact(self) -> None:
        if self.last_error is not None:
            self.last_error = None
            self._failure_log.recovered(self._kind)

    async def _pause(self, exc: BerthError) -> None:
        self._failures += 1
        pause = self._backoff.after(self._failures)
        if isinstance(exc, _ExpiredError | _RelistError | DecodeError):
            self._version = None
        if isinstance(exc, _ExpiredError) and self._failures == 1:
            pause = 0.0  # a 410 is not a failure of the server: the first retry needs no pause
        if isinstance(exc, ApiRefusedError):
            pause = max(pause, min(exc.retry_after, LONGEST_RETRY_AFTER).total_seconds())
        self._failed(exc)
        reason = _UNREAD.get(exc.status) if isinstance(exc, ApiRefusedError) else None
        if reason and self._kind.is_optional and self._failures >= REFUSED_TRIES:
            self._be_without(reason.format(self._kind.api_version))
        await self._clock.sleep(pause)

    def _failed(self, exc: BerthError) -> None:
        error = str(exc)
        if error != self.last_error:
            self._failure_log.failed(self._kind, exc)
        self.last_error = error


class FailureLog:
    """Logs why kinds cannot be read: a common cause once, and once its end.

    An API server that does not answer, or refuses the credentials, fails every kind alike; a role of an older version
    of berth lacks every kind of an API group.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._failing: set[str] = set()
        self._forbidden_kinds: dict[str, set[str]] = {}  # by API group
        self._logged: set[str] = set()

    def failed(self, kind: Kind[Any], exc: BerthError) -> None:
        """A kind failed with a new error."""
        if kind.is_optional and isinstance(exc, ApiRefusedError) and exc.denied:
            self._forbidden(kind, exc.denied)
            return
        if isinstance(exc, ApiRefusedError) and exc.status == HTTPStatus.UNAUTHORIZED:
            cause = text = self._client.refused_credentials
        elif isinstance(exc, ApiUnreachableError):
            text = str(exc)
            cause = text.partition(": ")[2]  # without the request, which differs by kind
        else:
            log.warning("cannot read a kind of object", kind=kind.name, error=str(exc))
            return
        self._failing.add(kind.name)
        if cause not in self._logged:
            self._logged.add(cause)
            log.warning("cannot read from the API server", error=text)

    def _forbidden(self, kind: Kind[Any], denied: str) -> None:
        forbidden = self._forbidden_kinds.setdefault(kind.group, set())
        if not forbidden:
            plurals = ", ".join(each.plural for each in WATCHED_KINDS if each.group == kind.group)
            rule = f'apiGroups: ["{kind.group}"], resources: [{plurals}], verbs: [get, list, watch]'
            log.warning(
                "cannot read an API group, pods that need it wait",
                group=kind.group,
                error=f"{denied}: apply this version's ClusterRole berth-reads, or add to it: {rule} ({RIGHTS_PAGE})",
            )
        forbidden.add(kind.name)

    def recovered(self, kind: Kind[Any]) -> None:
        """The API server answered a request for the kind."""
        forbidden = self._forbidden_kinds.get(kind.group, set())
        if kind.name in forbidden:
            forbidden.remove(kind.name)
            if not forbidden:
                log.info("an API group can be read again", group=kind.group)
        if kind.name in self._failing:
            self._failing.remove(kind.name)
            if not self._failing:
                self._logged.clear()
                log.info("the API server answers again")


async def _refusal(kind: str, stream: ResponseStream) -> TemporaryError:
    """Error for a status other than 200; its type decides the next step."""
    refused = refusal(f"watching {kind!r}", await stream.whole())
    if refused.status == HTTPStatus.GONE:
        return _ExpiredError(str(refused))
    if refused.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return _RelistError(str(refused))  # the resourceVersion is rejected
    return refused


def _error(kind: str, failure: StatusObject) -> TemporaryError:
    """Error for an ERROR event; its type decides the next step."""
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


# Seconds that a reflector of many objects may take to become current before its kind is listed again.
CURRENT_SECONDS: Final = 2.0
# A watch without data for longer is not trusted to be current: a dead one is noticed only after 45 s.
FRESH_SECONDS: Final = 5.0
# Between two questions whether the API server serves a rare kind that it lacked: each pod that names one asks.
SEEK_SECONDS: Final = 1.0
# A LIST of up to this many objects takes some tenths of a second, less than the wait for the next bookmark.
QUICKLY_LISTED: Final = 5_000

# Receives every event, in order within a kind. Must not block.
EventListener = Callable[[Any], object]


class Informers:
    """Reads every kind and passes each event to the listener. Call ``run`` in a task of its own."""

    def __init__(  # noqa: PLR0913 - the client, kinds, callbacks and the clock
        self,
        client: KubeClient,
        kinds: Sequence[Kind[Any]],
        listener: EventListener,
        *,
        on_complete: Callable[[], None],
        on_relist: Callable[[str], None],
        on_unread: Callable[[str, str], None] = lambda _kind, _reason: None,
        clock: Clock | None = None,
    ) -> None:
        """Create the reflectors. No request is sent yet.

        ``on_complete`` is called when every kind was listed, or is optional and absent or cannot be read; ``on_relist``
        with the name of a kind that was listed again because its watch could not continue; ``on_unread`` with the name
        of an optional kind and why it cannot be read, and with an empty reason once it can.
        """
        self._client = client
        self._kinds = kinds
        self._listener = listener
        self._on_complete = on_complete
        self._on_relist = on_relist
        self._on_unread = on_unread
        self._unread: dict[str, str] = {}
        self._absent: set[str] = set()  # rare kinds that the API server did not serve when it was last asked
        self._seeks: dict[str, asyncio.Task[None]] = {}  # by rare kind, not asked yet
        self._may_seek: dict[str, float] = {}  # by rare kind, when it may be asked for again
        self._on_read: dict[str, Callable[[], None]] = {}
        self._clock = clock or SteadyClock()
        self._failures = FailureLog(client)
        self._reflectors = {kind.name: self._reflector(kind) for kind in kinds}
        self._listed = {kind.name: asyncio.Event() for kind in kinds}
        self._tasks = asyncio.TaskGroup()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Read until cancelled, or until the listener raises. Errors of the API server do not end it."""
        async with self._tasks:
            for kind in self._kinds:
                self._start(kind)

    def listen(self, listener: EventListener) -> None:
        self._listener = listener

    async def listed(self) -> None:
        """Wait until every kind was listed, or cannot be read and is optional."""
        for listed in self._listed.values():
            await listed.wait()

    async def refresh(self) -> None:
        """Wait until every kind was listed, and list again the kinds without an event for ``FRESH_SECONDS``.

        A process that has just started does not list twice.
        """
        for kind in self._kinds:
            age = self._reflectors[kind.name].age()
            if age is not None and age > FRESH_SECONDS:
                self._restart(kind)
        await self.listed()

    async def reached(self, kind: Kind[Any], resource_version: str) -> None:
        """Wait until every event of the kind up to this resourceVersion was passed on.

        Raises:
            DecodeError: not a resourceVersion.
        """
        await self._reflectors[kind.name].reached(resource_version)

    def reads(self, kind: Kind[Any]) -> bool:
        """Whether the kind is one of these, and can be read."""
        return kind.name in self._reflectors and kind.name not in self._unread

    def once_read(self, kind: Kind[Any], callback: Callable[[], None]) -> None:
        """Call it once when the kind can be read, before the listener knows it; at once if it can be by now."""
        if self.reads(kind):
            callback()
        else:
            self._on_read[kind.name] = callback

    async def become_current(self, kind: Kind[Any], size: int) -> None:
        """Wait until the kind has the API server's current state. ``size``: approximate number of objects.

        An unchanged kind is listed again, because its watch may bring no data for half a minute.

        Raises:
            ApiUnreachableError, ApiRefusedError, DecodeError: the LIST failed.
            OlderStoreError: the API server has an older store, and the kind was listed meanwhile.
        """
        present = await present_version(self._client, kind)
        if version_number(present) < self._reflectors[kind.name].version:
            await self._restart_all()
            return
        try:
            async with asyncio.timeout(CURRENT_SECONDS if size > QUICKLY_LISTED else 0.0):
                await self.reached(kind, present)
        except TimeoutError:
            self._restart(kind)
            await self._listed[kind.name].wait()

    async def seek(self, kind: Kind[Any]) -> None:
        """Wait until the API server was asked anew for a rare kind that it did not serve; at once if it does.

        It is asked at most once in ``SEEK_SECONDS``: those who come before it is asked share the answer.
        """
        if kind.name not in self._absent:
            return
        if kind.name not in self._seeks:
            self._seeks[kind.name] = self._tasks.create_task(self._ask_anew(kind), name=f"seek {kind.name}")
        await asyncio.shield(self._seeks[kind.name])

    async def _ask_anew(self, kind: Kind[Any]) -> None:
        left = self._may_seek.get(kind.name, 0.0) - self._clock.now()
        if left > 0:
            await self._clock.sleep(left)
        self._may_seek[kind.name] = self._clock.now() + SEEK_SECONDS
        del self._seeks[kind.name]  # who comes from here on is not answered by this question
        self._restart(kind)
        await self._listed[kind.name].wait()

    async def _restart_all(self) -> None:
        # The API server has an older store: versions that were reached say nothing about it.
        for kind in self._kinds:
            self._restart(kind)
        await self.listed()

    def _restart(self, kind: Kind[Any]) -> None:
        was_served = self._reflectors[kind.name].age() is not None
        self._reflectors[kind.name] = self._reflector(kind, was_served=was_served)
        self._listed[kind.name].clear()
        if (former := self._running.get(kind.name)) is not None:
            former.cancel()
            self._start(kind)

    def _start(self, kind: Kind[Any]) -> None:
        work = self._reflectors[kind.name].run()
        self._running[kind.name] = self._tasks.create_task(work, name=f"reflect {kind.name}")

    def _reflector(self, kind: Kind[Any], *, was_served: bool = False) -> Reflector[Any]:
        reflector: Reflector[Any] = Reflector(
            self._client,
            kind,
            lambda event: self._take(reflector, event),
            clock=self._clock,
            failures=self._failures,
            was_served=was_served,
        )
        return reflector

    def _take(self, reflector: Reflector[Any], event: ReflectorEvent[Any]) -> None:
        if reflector is not self._reflectors[event.kind]:
            return  # replaced by a newer reflector
        if isinstance(event, Current):
            self._note_unread(event.kind, event.unread)
        if isinstance(event, Current) and not event.is_served:
            self._absent.add(event.kind)
        else:
            self._absent.discard(event.kind)
        self._listener(event)
        if isinstance(event, Listed) or (isinstance(event, Current) and (event.unread or not event.is_served)):
            self._note_listed(event.kind, is_new=isinstance(event, Listed))

    def _note_unread(self, kind: str, reason: str) -> None:
        if self._unread.get(kind, "") == reason:
            return
        if reason:
            self._unread[kind] = reason
        else:
            del self._unread[kind]
            if (callback := self._on_read.pop(kind, None)) is not None:
                callback()
        self._on_unread(kind, reason)

    def _note_listed(self, kind: str, *, is_new: bool) -> None:
        if self._listed[kind].is_set():
            if is_new:
                self._on_relist(kind)
            return
        self._listed[kind].set()
        if all(listed.is_set() for listed in self._listed.values()):
            self._on_complete()
