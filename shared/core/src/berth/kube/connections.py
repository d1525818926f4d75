"""Connections to the API server, kept open and used again, each for one request at a time.

No task and no timer per request: the bytes go out at once on an idle connection, the answer resolves one future, and
one timer for the whole pool finds requests whose time is up and connections that were idle for too long.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from berth.errors import cause_of
from berth.kube.connecting import Server, connect
from berth.kube.http1 import ANSWER_BYTES, Answer, AnswerReader, BadAnswerError

CONNECT_SECONDS: Final = 5.0
"""How long connecting may take, TLS included. One renewal of a Lease has time for two tries."""
IDLE_SECONDS: Final = 60.0
"""How long an idle connection is kept: less than the API server's 90 s, so that the client closes it first."""
CONNECTIONS: Final = 64
"""Most connections: 32 Bindings, Events, LISTs of every kind, and some to spare. More requests wait for one."""
CLOCK_STEP: Final = 0.002
"""How much earlier than asked for a timer may fire: the event loop counts milliseconds."""

Check = Callable[[], None]
"""Raises when a request must not be sent."""

UNKNOWN_AUTHORITY: Final = ": the kubeconfig must have the authority of its certificate (certificate-authority-data)"


class NoAnswerError(Exception):
    """A request without a whole answer. ``maybe_sent``: the server may have received and executed it."""

    def __init__(self, cause: str, *, maybe_sent: bool) -> None:
        super().__init__(cause)
        self.maybe_sent = maybe_sent


class _StaleError(NoAnswerError):
    """A connection that had been idle was closed without any answer: most likely the request crossed with that."""


class Call(NamedTuple):
    """A request, and what its sender asks for."""

    request: bytes
    seconds: float
    """How long until its whole answer, connecting included."""
    largest: int = ANSWER_BYTES
    """The longest body of its answer."""
    check: Check | None = None
    """Called right before the bytes go out; nothing is waited for in between. What it raises is passed on, and nothing
    is sent."""
    is_repeatable: bool = False
    """Whether it changes nothing: it is sent once more when the connection was closed while it was idle."""


class ConnectionPool:
    """Sends requests to one server at a time. Create it inside a running event loop, and call ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server: Server | None = None
        self._all: set[_Connection] = set()
        self._idle: list[_Connection] = []
        """The one used last is used next, so that connections that are not needed grow old."""
        self._connecting = 0
        self._waiting: deque[asyncio.Future[_Connection | None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_time = 0.0
        self._is_closed = False

    async def exchange(self, server: Server, call: Call) -> Answer:
        """Send a request and wait for its whole answer.

        Raises:
            NoAnswerError: no answer in time, or none that can be read.
        """
        deadline = self._loop.time() + call.seconds
        try:
            return await self._exchange(await self._connection(server, call, deadline), call, deadline)
        except _StaleError:
            if not call.is_repeatable:
                raise
        return await self._exchange(await self._connect(server, call, deadline), call, deadline)

    async def _exchange(self, connection: _Connection, call: Call, deadline: float) -> Answer:
        if call.check is not None:
            try:
                call.check()
            except BaseException:
                self.release(connection)
                raise
        answer = connection.send(call, deadline)
        self._sweep_by(deadline)
        try:
            return await answer
        except BaseException:
            connection.give_up(answer)
            raise

    def close(self) -> None:
        """Close all connections. Whoever waits gets no answer."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._all):
            connection.abort()
        self._wake()

    # Which connection.

    async def _connection(self, server: Server, call: Call, deadline: float) -> _Connection:
        """One of the server's, without anything to wait for when one is idle."""
        if server is not self._server:
            self._turn_to(server)
        has_waited = False
        while True:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open:
                    return connection
            if self._has_room:
                return await self._connect(server, call, deadline)
            freed = await self._wait(call, deadline, first=has_waited)
            if freed is not None and freed.is_open:
                if freed.server == server:
                    return freed
                freed.abort()
            has_waited = True

    @property
    def _has_room(self) -> bool:
        return self._is_closed or len(self._all) + self._connecting < CONNECTIONS

    def _turn_to(self, server: Server) -> None:
        """Use connections to another server, or with other certificates, no more."""
        if server != self._server:
            for connection in self._idle:
                connection.abort()
            self._idle.clear()
        self._server = server

    async def _wait(self, call: Call, deadline: float, *, first: bool) -> _Connection | None:
        """Wait until a connection is free, or (``None``) until there may be another one."""
        freed: asyncio.Future[_Connection | None] = self._loop.create_future()
        (self._waiting.appendleft if first else self._waiting.append)(freed)
        try:
            async with asyncio.timeout_at(deadline):
                return await freed
        except BaseException as exc:
            if freed.done() and not freed.cancelled() and (connection := freed.result()) is not None:
                self.release(connection)
            self._wake()
            if isinstance(exc, TimeoutError):
                raise NoAnswerError(f"no free connection within {call.seconds:g} s", maybe_sent=False) from exc
            raise

    async def _connect(self, server: Server, call: Call, deadline: float) -> _Connection:
        if self._is_closed:
            raise NoAnswerError("the client is closed", maybe_sent=False)
        connection = _Connection(self, server, self._loop)
        self._connecting += 1
        try:
            async with asyncio.timeout_at(min(deadline, self._loop.time() + CONNECT_SECONDS)):
                await connect(server, connection)
        except asyncio.CancelledError:
            connection.abort()
            raise
        except TimeoutError as exc:
            connection.abort()
            seconds = min(CONNECT_SECONDS, call.seconds)
            cause = f"no connection to {server.host}:{server.port} within {seconds:g} s"
            raise NoAnswerError(cause, maybe_sent=False) from exc
        except (OSError, ValueError) as exc:
            remedy = UNKNOWN_AUTHORITY if isinstance(exc, ssl.SSLCertVerificationError) else ""
            cause = f"no connection to {server.host}:{server.port}: {cause_of(exc)}{remedy}"
            raise NoAnswerError(cause, maybe_sent=False) from exc
        finally:
            self._connecting -= 1
            self._wake()
        if self._is_closed or not connection.is_open:
            connection.abort()
            raise NoAnswerError("the connection was closed before it was used", maybe_sent=False)
        return connection

    def opened(self, connection: _Connection) -> None:
        self._all.add(connection)

    def release(self, connection: _Connection) -> None:
        """A connection is free: for the request that waits longest, or idle."""
        if not connection.is_open:
            return
        connection.deadline = self._loop.time() + IDLE_SECONDS
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return
        if connection.server != self._server:
            connection.abort()
            return
        self._idle.append(connection)
        self._sweep_by(connection.deadline)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake()

    def _wake(self) -> None:
        """There may be room for another connection: wake the request that waits longest."""
        while self._waiting and self._has_room:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                if not self._is_closed:
                    return

    # The one timer.

    def _sweep_by(self, time: float) -> None:
        """Sweep at that time at the latest. Most requests have the same time limit, and then need no timer."""
        if self._is_closed or (self._sweep is not None and self._sweep_time <= time):
            return
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep, self._sweep_time = self._loop.call_at(time, self._give_up_overdue), time

    def _give_up_overdue(self) -> None:
        """Give up requests and idle connections whose time is up.

        A request without any answer may mean a peer that is gone without a word: then the connections that were idle
        all that time are dead too, and each would cost another request its time. So they are closed.
        """
        self._sweep = None
        now = self._loop.time() + CLOCK_STEP
        silent = [each.since for each in self._all if each.is_overdue(now) and each.is_silent]
        for connection in list(self._all):
            if connection.is_overdue(now) or (silent and not connection.is_busy and connection.since <= max(silent)):
                connection.expire()
        left = [connection.deadline for connection in self._all if connection.is_open]
        if left:
            self._sweep_by(min(left))


class _Connection(asyncio.Protocol):
    """One connection: idle, or with one request whose answer is awaited.

    Nothing has to be paused: at most one request is being written and its answer read, both of limited size.
    """

    def __init__(self, pool: ConnectionPool, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.since = loop.time()
        """When the last request was sent, or the answer to it came."""
        self.deadline = self.since + IDLE_SECONDS
        """When to give up the request, or the idle connection."""
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self._reader = AnswerReader()
        self._answer: asyncio.Future[Answer] | None = None
        self._seconds = 0.0
        self._has_served = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        return self._answer is not None

    @property
    def is_silent(self) -> bool:
        """Whether an answer is awaited and nothing of it has come."""
        return self._answer is not None and self._reader.is_empty

    def is_overdue(self, now: float) -> bool:
        return self.deadline <= now

    def send(self, call: Call, deadline: float) -> asyncio.Future[Answer]:
        """Send a request. The connection must be open and idle."""
        if self._transport is None or self._answer is not None:
            raise AssertionError("sending on a connection: want one that is open and idle")
        self._reader.expect(call.largest)
        self.since, self.deadline, self._seconds = self._loop.time(), deadline, call.seconds
        self._answer = answer = self._loop.create_future()
        self._transport.write(call.request)
        return answer

    def give_up(self, answer: asyncio.Future[Answer]) -> None:
        """Nobody waits for this answer any more: the connection cannot be used for another."""
        if self._answer is answer:
            self._answer = None
            self.abort()

    def expire(self) -> None:
        """The deadline has passed."""
        self._fail(NoAnswerError(f"no answer within {self._seconds:g} s", maybe_sent=True))
        self.abort()

    def abort(self) -> None:
        """Close, without TLS's closing handshake, which would wait for the peer."""
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._is_lost:
            self._transport = cast("asyncio.Transport", transport)
            self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # an answer without a request, such as the 408 of a proxy
            self.abort()
            return
        try:
            answer = self._reader.feed(data)
        except BadAnswerError as exc:
            self._fail(NoAnswerError(f"an answer that cannot be read: {exc}", maybe_sent=True))
            self.abort()
            return
        if answer is not None:
            self._resolve(answer)

    def eof_received(self) -> None:
        self._end(None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._is_lost = True
        if self._transport is not None:
            self._transport = None
            self._pool.lost(self)

    def _end(self, exc: Exception | None) -> None:
        """The connection has ended. That may be the end of an answer too."""
        if self._answer is None:
            return
        if exc is None and (answer := self._reader.end()) is not None:
            self._resolve(answer)
        elif self._has_served and self._reader.is_empty:
            self._fail(_StaleError("the server closed the connection", maybe_sent=True))
        else:
            cause = cause_of(exc) if exc else "the server closed the connection before its answer was complete"
            self._fail(NoAnswerError(cause, maybe_sent=True))

    def _resolve(self, answer: Answer) -> None:
        """Pass the answer on. The connection is free before its receiver goes on, for the next request."""
        waiting, self._answer = self._answer, None
        self._has_served = True
        self.since = self._loop.time()
        if answer.keeps:
            self._pool.release(self)
        else:
            self.abort()
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _fail(self, error: NoAnswerError) -> None:
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
