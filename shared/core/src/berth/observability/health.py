"""Readiness of a service by named conditions, shown in /readyz and the log.

/livez, /readyz, /metrics and /configz are served on the main loop, so that /livez does not answer when the loop hangs.
Access to the port can cost no more than that: connections are few, short, and for one request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from berth.clock import Clock
from berth.exits import UsageError, write_ready_file
from berth.observability.logging import get_logger
from berth.observability.metrics import CONTENT_TYPE, PrometheusMeter
from berth.safetext import one_line, without_passwords
from berth.settings.settings import HealthSettings

_READY: Final = "ok"


class Condition:
    """A prerequisite of readiness; not met at first."""

    def __init__(self, name: str, sentence: str, changed: Callable[[], None]) -> None:
        self.name = name
        self.is_ready = False
        self.is_standby = False
        self.sentence = sentence
        self._changed = changed

    def ready(self, sentence: str = _READY) -> None:
        self._set(sentence, ready=True, standby=False)

    def waiting(self, sentence: str) -> None:
        """The condition is not met. The sentence follows *not ready:* and names the cause."""
        self._set(sentence, ready=False, standby=False)

    def standby(self, sentence: str) -> None:
        """Met except for leading: /readyz is ok, but the ready file is not written."""
        self._set(sentence, ready=True, standby=True)

    def _set(self, sentence: str, *, ready: bool, standby: bool) -> None:
        self.sentence, self.is_ready, self.is_standby = sentence, ready, standby
        self._changed()


class Health:
    """The conditions of one process. Without any, the process is starting and not ready."""

    def __init__(self) -> None:
        self._conditions: dict[str, Condition] = {}
        self._listeners: list[Callable[[], None]] = []

    def condition(self, name: str, sentence: str = "") -> Condition:
        """The condition of that name, created with the text ``sentence`` if it does not exist."""
        if name not in self._conditions:
            self._conditions[name] = Condition(name, sentence or f"waiting for {name}", self._changed)
        return self._conditions[name]

    @property
    def is_ready(self) -> bool:
        """Whether every condition is met; a standby is ready too."""
        return bool(self._conditions) and all(each.is_ready for each in self._conditions.values())

    @property
    def is_working(self) -> bool:
        return self.is_ready and not any(each.is_standby for each in self._conditions.values())

    def summary(self) -> str:
        """One line: ``ok``, or ``not ready:`` and the causes."""
        missing = [_shown(each) for each in self._conditions.values() if not each.is_ready]
        if self.is_ready:
            return _READY
        return f"not ready: {'; '.join(missing) or 'starting'}"

    def verbose(self) -> str:
        """One line per condition, in the form of the API server's ``/readyz?verbose``, then the summary."""
        states = [f"[{'+' if each.is_ready else '-'}]{each.name} {_shown(each)}" for each in self._conditions.values()]
        return "\n".join([*states, self.summary(), ""])

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after every change."""
        self._listeners.append(listener)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


def _shown(condition: Condition) -> str:
    # As the health port and the statistics on NATS show it.
    return without_passwords(one_line(condition.sentence))


def write_when_working(health: Health, path: Path) -> None:
    """Write the ready file, atomically, when the service is first ready. A former file is removed first."""
    path.unlink(missing_ok=True)
    written = False

    def look() -> None:
        nonlocal written
        if health.is_working and not written:
            written = True
            write_ready_file(path)

    health.on_change(look)


log = get_logger()


REPEAT_SECONDS: Final = 10.0  # between two log lines about the same wait


ONCE: Final = float("inf")  # for an error that only a person can correct


class WaitReporter:
    """Reports the cause of a wait: always in /readyz, in the log at once and then every 10 s."""

    def __init__(self, condition: Condition, clock: Clock) -> None:
        self._condition = condition
        self._clock = clock
        self._logged = ""
        self._logged_at = 0.0

    def waiting(self, sentence: str, *, every: float = REPEAT_SECONDS) -> None:
        """Not ready for this reason. Call it after each try: it is logged when new, then after ``every`` seconds."""
        self._condition.waiting(sentence)
        self._log(sentence, every)

    def standby(self, sentence: str) -> None:
        """Ready to take over; logged once."""
        self._condition.standby(sentence)
        self._log(sentence, ONCE)

    def over(self, sentence: str = "ok", *, came: str = "") -> None:
        """Ready: the next wait is logged as a new one. ``came``: logged after a wait that was reported."""
        self._condition.ready(sentence)
        if came and self._logged:
            log.info(came, condition=self._condition.name)
        self._logged = ""

    def _log(self, sentence: str, every: float) -> None:
        now = self._clock.now()
        if sentence == self._logged and now - self._logged_at < every:
            return
        self._logged, self._logged_at = sentence, now
        log.info(sentence, condition=self._condition.name)


class Progress:
    """Whether a leader begins pending work. One that begins none for too long is not ready and must give up.

    It is ready again once it leads and begins something, or stands by for another leader.
    """

    def __init__(self, health: Health, clock: Clock, *, limit: timedelta) -> None:
        self._health = health
        self._clock = clock
        self._limit = limit.total_seconds()
        self._condition = health.condition("progress")
        self._condition.ready()
        self._begun = 0
        self._missing_since: float | None = None
        health.on_change(self._look)

    def begin(self) -> None:
        self._begun, self._missing_since = 0, None

    def check(self, describe: Callable[[], str], *, waiting: int, begun: int) -> str | None:
        """Call it about every second; returns why the leader must give up, ``None`` while it may go on.

        ``waiting``: pending work. ``begun``: work begun by this leader so far. ``describe``: the pending work as text.
        """
        now = self._clock.now()
        if not waiting:
            self._missing_since = None
        elif self._missing_since is None or begun > self._begun:
            self._missing_since = now
        self._begun = begun
        if self._missing_since is not None and now - self._missing_since >= self._limit:
            reason = f"{describe()}: none was begun for {self._limit:g} s"
            log.error("stalled, giving up the lead", reason=reason)
            self._condition.waiting(reason)
            return reason
        if not self._condition.is_ready and (begun or not waiting):
            self._condition.ready()
        return None

    def _look(self) -> None:
        if not self._condition.is_ready and self._health.condition("leadership").is_standby:
            self._condition.ready()


CONFIGZ_NAME: Final = "componentconfig"  # kube-scheduler's own name of its configuration in /configz
SHUTDOWN_SECONDS = 0.5  # how long a slow reader of /metrics may delay the end of the process
# Open connections; one more closes the oldest, because requests that are never finished would use up the descriptors.
MOST_CONNECTIONS: Final = 64
# From start to end of a connection: one request and its answer. Prometheus waits as long.
CONNECTION_SECONDS: Final = 10.0


class HealthPortError(UsageError):
    pass


@asynccontextmanager
async def health_server(
    settings: HealthSettings, health: Health, meter: PrometheusMeter, configuration: Mapping[str, Any] | None = None
) -> AsyncIterator[int]:
    """Serve inside the block; yields the port. ``configuration`` is shown by /configz.

    Raises:
        HealthPortError: the port is in use.
    """
    application = _application(health, meter, configuration or {})
    runner = web.AppRunner(application, logger=ServerLogger(), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        server = await _listen(runner, settings)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: HealthSettings) -> asyncio.Server:
    opened: dict[BoundedConnection, None] = {}
    answers = runner.server
    assert answers is not None  # noqa: S101 - the runner is set up
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: BoundedConnection(answers(), opened), settings.host, settings.port
        )
    except OSError as exc:
        where = f"listening on health.port {settings.port} of {settings.host!r}"
        raise HealthPortError(f"{where}: {exc.strerror}: choose another with --health-port") from exc


class ServerLogger(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log without malformed requests, because any client could fill the log with their tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        if not isinstance(options.get("exc_info"), HttpProcessingError):
            super().log(level, msg, *args, **options)


class BoundedConnection(asyncio.Protocol):
    """Passes everything to aiohttp's handler, and ends the connection at its deadline, or when it is one too many."""

    def __init__(self, handler: asyncio.Protocol, opened: dict[BoundedConnection, None]) -> None:
        self._handler = handler
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._opened) >= MOST_CONNECTIONS:
            oldest = next(iter(self._opened))
            del self._opened[oldest]
            oldest.abort()
        self._transport = cast("asyncio.Transport", transport)
        self._opened[self] = None
        self._deadline = asyncio.get_running_loop().call_later(CONNECTION_SECONDS, self.abort)
        self._handler.connection_made(transport)

    def abort(self) -> None:
        self._transport.abort()

    def admit(self) -> None:
        """Its client is known: it has no deadline any more and does not count among the others."""
        self._opened.pop(self, None)
        self._deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.pop(self, None)
        self._deadline.cancel()
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()


@web.middleware
async def _one_request_a_connection(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    response = await handler(request)
    response.force_close()
    return response


def _application(health: Health, meter: PrometheusMeter, configuration: Mapping[str, Any]) -> web.Application:
    configz = without_passwords(msgspec.json.encode({CONFIGZ_NAME: configuration}).decode())

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(request: web.Request) -> web.Response:
        text = health.verbose() if "verbose" in request.query else health.summary()
        return web.Response(text=text, status=200 if health.is_ready else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=meter.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def show_configuration(_request: web.Request) -> web.Response:
        return web.Response(text=configz, content_type="application/json")

    application = web.Application(middlewares=[_one_request_a_connection])
    application.router.add_get("/livez", livez)
    application.router.add_get("/healthz", livez)  # Its older name, which manifests of kube-scheduler use.
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/configz", show_configuration)
    return application
