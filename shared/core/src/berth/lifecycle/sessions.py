"""One connected and verified NATS session after the other, until the service stops (docs/protocol.md, 2).

    async for session in sessions(bus, name="scorer", process=process):
        async with present(session, process, stats=...):
            ...work until session.lost...

``serve_each_session`` is this loop for services without leader election. The process never ends because NATS is
unreachable, or its streams are missing or different.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Final

import msgspec

from berth.bus.interface import (
    STORES_NOTHING,
    Bus,
    BusLostError,
    BusRefusedError,
    Endpoint,
    MissingError,
    Session,
    Unstored,
)
from berth.bus.settings import TopologySettings
from berth.bus.topology import declared_streams
from berth.clock import Backoff
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.lifecycle.peers import (
    ALL_ANNOUNCEMENTS,
    MAX_HELD,
    MOST_ANNOUNCEMENTS,
    Announcement,
    PeerReporter,
)
from berth.lifecycle.process import Process, in_background, run_until
from berth.memory import give_back_memory
from berth.messages.encoding import decode_versioned, encode
from berth.observability.health import ONCE, Condition, WaitReporter
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter

log = get_logger()


RETRY_SECONDS: Final = 2.0  # between two tries if only others can remove the cause


CREATED_SECONDS: Final = 0.1  # before the next try after streams or buckets were created


BACKOFF: Final = Backoff(initial=timedelta(seconds=0.1), maximum=timedelta(seconds=2))


# A shorter session is followed by a pause, so that a server that drops all clients is not flooded.
SHORT_LIFE_SECONDS: Final = 1.0


class _NotReadyError(Exception):
    """This try failed; ``again_in`` overrides the back-off."""

    def __init__(self, cause: str, again_in: float | None) -> None:
        super().__init__()
        self.cause = cause
        self.again_in = again_in


async def sessions(
    bus: Bus, *, name: str, process: Process, apply_when_missing: bool = False, only: Collection[str] = ()
) -> AsyncIterator[Session]:
    """Yield one connected and verified session after another, each closed before the next. Ends on stopping.

    ``apply_when_missing``: create missing streams and buckets, as the watcher does; otherwise wait for them. ``only``:
    the streams to verify; by default all. Catch
    :class:`BusLostError` in the loop's body to get the next session. Objects built on a session are freed before the
    next one, unless a variable of the body holds them.
    """
    reporter = WaitReporter(process.health.condition("nats", "waiting for NATS"), process.clock)
    connector = _Connector(bus, name=name, reporter=reporter, process=process, applies=apply_when_missing, only=only)
    while not process.stopping.is_set():
        session = await run_until(connector.connect(), process.stopping)
        if session is None:
            return
        give_back_memory()  # Objects built on the former session have cycles and are old: see GC_THRESHOLDS.
        began = process.clock.now()
        reporter.over(came="NATS is there, with all streams and buckets")
        process.metrics.count("berth_bus_sessions_total")
        watch = StoreWatch(session, process, remakes=apply_when_missing)
        try:
            async with in_background(watch.run(), name="watching the store"):
                yield session
        finally:
            process.health.condition("nats").waiting("waiting for a new connection to NATS")
            await session.close()
        if process.clock.now() - began < SHORT_LIFE_SECONDS:
            await process.sleep(RETRY_SECONDS / 2)


async def serve_each_session(  # noqa: PLR0913 - a service, its parts, and what it compares
    bus: Bus,
    *,
    name: str,
    process: Process,
    condition: Condition,
    serve: Callable[[Session], Awaitable[None]],
    only: Collection[str] = (),
) -> None:
    """Serve on one session after another until the process stops. ``only``: as for :func:`sessions`.

    A temporary failure begins another session; ``condition`` shows the wait for NATS meanwhile.
    """
    async for session in sessions(bus, name=name, process=process, only=only):
        try:
            await serve(session)
        except* TemporaryError as lost:
            log.warning("starting again on another connection", reason=str(lost.exceptions[0]))
        condition.waiting("waiting for NATS")


STORE: Final = "store"  # the health condition that NATS stores publishes
WATCH_SECONDS: Final = 1.0  # between two checks for unstored publishes
# A stream that has not answered for this long, though the connection lasts, counts as given up: twice the time-out of a
# publish, and longer than a NATS cluster takes to elect a leader.
REMAKE_AFTER_SECONDS: Final = 10.0
REMAKE_EVERY_SECONDS: Final = 10.0


class StoreWatch:
    """Reports that NATS stores nothing: once in the log, in /readyz, as a metric.

    A server whose disk was full gives a stream up and stores no message in it even when there is room again. The
    watcher then recreates everything (docs/protocol.md, 6.8).
    """

    def __init__(self, session: Session, process: Process, *, remakes: bool) -> None:
        self._session = session
        self._process = process
        self._remakes = remakes
        self._condition = process.health.condition(STORE, "waiting for NATS")
        self._reported: set[str] = set()
        self._forbidden = False
        self._remake_at = 0.0
        self._condition.ready()
        for stream in declared_streams(TopologySettings()):
            process.metrics.set("berth_store_refusing", 0, stream=stream.name)

    async def run(self) -> None:
        try:
            while not self._session.lost.is_set():
                unstored = self._session.unstored()
                self._report(unstored)
                await self._remake(unstored)
                await self._process.clock.sleep(WATCH_SECONDS)
        finally:
            self._report({})

    def _report(self, unstored: Mapping[str, Unstored]) -> None:
        for name in self._reported | unstored.keys():
            self._process.metrics.set("berth_store_refusing", int(name in unstored), stream=name)
        for name in unstored.keys() - self._reported:
            log.error(STORES_NOTHING, stream=name, reason=unstored[name].reason, next=NEXT)
        for name in self._reported - unstored.keys():
            log.info("NATS stores again, or is not asked to", stream=name)
        if unstored:
            self._condition.waiting(unstored_sentence(unstored))
        elif self._reported:
            self._condition.ready()
        self._reported = set(unstored)

    async def _remake(self, unstored: Mapping[str, Unstored]) -> None:
        given_up = [name for name, it in unstored.items() if not it.answered and it.since >= REMAKE_AFTER_SECONDS]
        now = self._process.clock.now()
        if not self._remakes or self._forbidden or not given_up or now < self._remake_at:
            return
        self._remake_at = now + REMAKE_EVERY_SECONDS
        try:
            if await self._session.remake(given_up[0]):
                log.warning("NATS had given a stream up, all streams and buckets were made anew", stream=given_up[0])
        except BusRefusedError as error:
            self._forbidden = True
            log.warning("cannot make streams anew: restart nats-server", stream=given_up[0], reason=str(error))
        except TemporaryError as error:
            log.info("cannot make streams anew yet", stream=given_up[0], reason=str(error))


NEXT: Final = "free space on NATS's disk or raise its limits; berth goes on by itself then"


def unstored_sentence(unstored: Mapping[str, Unstored]) -> str:
    """The text of /readyz and ``berth why``."""
    named = "; ".join(f"{name}: {it.reason}" for name, it in sorted(unstored.items()))
    return f"{STORES_NOTHING} in {named}: {NEXT}"


class _Connector:
    """Tries to connect until a session is verified. Each try is a new client, which first reads bus.id."""

    def __init__(  # noqa: PLR0913 - the parts of a connection's start
        self,
        bus: Bus,
        *,
        name: str,
        reporter: WaitReporter,
        process: Process,
        applies: bool,
        only: Collection[str],
    ) -> None:
        self._bus = bus
        self._name = name
        self._reporter = reporter
        self._process = process
        self._applies = applies
        self._only = only

    async def connect(self) -> Session:
        cause, failures = "", 0
        while True:
            try:
                return await self._try()
            except _NotReadyError as error:
                failures = failures + 1 if error.cause == cause else 1  # NATS is back, and others must make its streams
                cause = error.cause
                pause = BACKOFF.after(failures) if error.again_in is None else error.again_in
            await self._process.clock.sleep(pause)

    async def _try(self) -> Session:
        try:
            session = await self._bus.connect(name=self._name)
        except BusLostError as error:
            raise self._wait("unreachable", f"waiting for NATS: {error}") from error
        except BusRefusedError as error:
            raise self._wait("refused", str(error), RETRY_SECONDS, every=ONCE) from error
        try:
            await self._verify(session)
        except BaseException:
            await session.close()
            raise
        return session

    async def _verify(self, session: Session) -> None:
        try:
            await session.verify(self._only)
        except MissingError as error:
            await self._missing(session, error)
        except TemporaryError as error:
            raise self._wait("unreachable", f"waiting for NATS: {error}") from error
        except BusRefusedError as error:
            raise self._wait("refused", str(error), RETRY_SECONDS, every=ONCE) from error
        if not session.bus_id:
            # The bucket was created after this client's first request, so a new client must read the id.
            raise self._wait("missing", "waiting for bus.id", CREATED_SECONDS)

    async def _missing(self, session: Session, error: MissingError) -> None:
        if not self._applies:
            sentence = f"waiting for a watcher or `berth bus apply`: {error}"
            raise self._wait("missing", sentence) from error
        log.info("creating what is missing on NATS", missing=str(error))
        try:
            await session.apply()
        except TemporaryError as lost:
            raise self._wait("unreachable", f"waiting for NATS: {lost}") from lost
        except BusRefusedError as refused:
            raise self._wait("refused", str(refused), RETRY_SECONDS, every=ONCE) from refused
        raise self._wait("missing", "waiting for NATS: streams and buckets were just created", CREATED_SECONDS)

    def _wait(self, cause: str, sentence: str, again_in: float | None = None, *, every: float = 10.0) -> _NotReadyError:
        self._process.metrics.count("berth_bus_waits_total", cause=cause)
        self._reporter.waiting(sentence, every=every)
        return _NotReadyError(cause, again_in)


# Remembered log lines. A writer of more kinds does not fill the log.
MOST_REPORTED: Final = 1000


class UndecodableReporter:
    """Counts values that a reader cannot decode, and logs each subject and reason once."""

    def __init__(self, metrics: Meter) -> None:
        self._metrics = metrics
        self._logged: set[str] = set()

    def report(self, subject: str, reason: str) -> None:
        self._metrics.count("berth_undecodable_total")
        known = f"{subject} {reason:.80}"
        if known not in self._logged and len(self._logged) < MOST_REPORTED:
            self._logged.add(known)
            log.warning("leaving out what cannot be decoded", subject=subject, reason=reason)


class Refusals:
    """NATS's refusals of a task that retries: each is logged once, and the task goes on."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._logged: set[str] = set()

    @contextmanager
    def logged_once(self) -> Iterator[None]:
        """End the block silently also when NATS does not answer.

        Raises:
            BusLostError, MissingError: to ask again would not help.
        """
        try:
            yield
        except BusRefusedError as error:
            if str(error) not in self._logged:
                log.warning(self._doing, reason=str(error))
            self._logged.add(str(error))
        except (BusLostError, MissingError):
            raise
        except TemporaryError:
            return


Stats = Callable[[], Mapping[str, object]]


@asynccontextmanager
async def present(
    session: Session,
    process: Process,
    *,
    stats: Stats = dict,
    endpoints: Sequence[Endpoint] = (),
    held: Callable[[], Sequence[str]] = tuple,
) -> AsyncIterator[None]:
    """Register this process with NATS's service protocol; announce it and receive announcements until the block ends.

    ``stats`` are the service's own statistics, ``endpoints`` its further answers, ``held`` the attempts that it
    announces. Raises as the session's calls.
    """
    peers, clock = process.peers, process.clock
    reporter = PeerReporter(peers, process.health, process.metrics)
    own = peers.own

    def all_stats() -> dict[str, object]:
        gone = [
            {"service": one.service, "identity": one.identity, "seconds": round(seconds, 1)}
            for one, seconds in peers.gone(clock.now())
        ]
        return {
            **stats(),
            "configuration": own.config,
            "profiles": own.profiles,
            "settings": own.settings,
            "readiness": process.health.summary(),
            "differences": reporter.sentences,
            "gone": gone,
        }

    def listen(subject: str, data: bytes, _headers: Mapping[str, str]) -> None:
        if not peers.is_read(subject, len(data), clock.now()):
            return
        with contextlib.suppress(DecodeError):  # Of a newer schema, or not an announcement.
            announcement = decode_versioned(data, Announcement, "an announcement")
            if announcement.subject == subject:
                peers.receive(announcement, clock.now())

    name = f"berth-{process.name}"
    await session.register(
        name,
        identity=process.identity,
        version=version(name),
        stats=all_stats,
        metadata={"configuration": own.config, **{f"profile.{each}": digest for each, digest in own.profiles.items()}},
        endpoints=endpoints,
    )
    try:
        await session.subscribe(ALL_ANNOUNCEMENTS, listen, most=MOST_ANNOUNCEMENTS)
    except BusRefusedError as error:
        log.warning("cannot compare configurations with other services", reason=str(error))

    async def announce() -> None:
        with contextlib.suppress(BerthError):  # The service itself notices a lost connection.
            while True:
                await session.broadcast(
                    own.subject, encode(msgspec.structs.replace(own, held=tuple(held()[:MAX_HELD])))
                )
                reporter.review(clock.now())
                for seconds in peers.pauses():
                    await clock.sleep(seconds)

    try:
        async with in_background(announce(), name="announcing this service"):
            yield
    finally:
        if process.stopping.is_set():
            with contextlib.suppress(BerthError):
                await session.broadcast(own.subject, encode(msgspec.structs.replace(own, leaving=True)))
