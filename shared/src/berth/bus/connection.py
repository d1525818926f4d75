"""Requests that wait for their answers: numbered, all with the same patience, ended together when the connection is.

One client on one connection: requests with numbered answers, a queue for what needs none, the word that it is lost.

nats-py would reconnect by itself and then replay subscriptions, publishes and acks into a store that may be another
one; here a connection that is lost stays lost (PROTOCOL 2). nats-py's own callbacks come late or, when a half-open
connection has its buffers full, never: so a pulse of our own finds the silence, and all that waits is woken at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from berth.api.errors import BerthError
from berth.bus.client import GuardedClient, secret_options, wants_tls
from berth.bus.interface import BusLostError, BusRefusedError, MissingError, TooLargeError, UnansweredError
from berth.bus.settings import BusSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request under way; ``deadline`` in seconds of the event loop."""

    number: int
    subject: str
    deadline: float
    answer: asyncio.Future[Msg]

    def fail(self, error: BerthError) -> None:
        """End it without an answer."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Answers:
    """Who waits for which number. All have the same patience, so they stand in the order of their deadlines."""

    def __init__(self, patience: timedelta) -> None:
        self._patience: Final = patience.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, PendingRequest] = {}

    def expect(self, subject: str) -> PendingRequest:
        """A new number; whoever asks for it must :meth:`forget` it."""
        deadline = self._loop.time() + self._patience
        waiting = PendingRequest(
            number=next(self._numbers), subject=subject, deadline=deadline, answer=self._loop.create_future()
        )
        self._waiting[waiting.number] = waiting
        return waiting

    def forget(self, waiting: PendingRequest) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(waiting.number, None)

    def hear(self, number: int, msg: Msg) -> None:
        """An answer; nobody may be there for it any more."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(msg)

    def fail_all(self, error: Callable[[], BerthError]) -> None:
        """End all of them, each with an error of its own."""
        for waiting in self._waiting.values():
            waiting.fail(error())

    def fail_subject(self, subject: str, error: Callable[[str], BerthError]) -> None:
        """End those that asked on a subject, given in small letters as the server names it."""
        for waiting in self._waiting.values():
            if waiting.subject.lower() == subject:
                waiting.fail(error(waiting.subject))

    def sweep(self) -> None:
        """End those whose time is over. One sweep now and then for all is what makes thousands a second cheap."""
        now = self._loop.time()
        for waiting in self._waiting.values():
            if waiting.deadline > now:
                break
            waiting.fail(UnansweredError(f"asking {waiting.subject!r}: no answer within {self._patience:g} s"))


SWEEP_SECONDS: Final = 0.25

CLOSE_SECONDS: Final = 0.4

NO_RESPONDERS: Final = "503"

STATUS: Final = "Status"

DESCRIPTION: Final = "Description"

WRITE_ERRORS = (nats.errors.Error, OSError, RuntimeError)
"""What a write to a lost connection raises; uvloop raises a RuntimeError when it has closed the socket already."""
_FORBIDDEN: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


class Connection:
    """A client that is connected once. Everything raises :class:`BusLostError` after it is lost."""

    def __init__(self, settings: BusSettings, name: str) -> None:
        self.settings: Final = settings
        self.name: Final = name
        self.lost: Final = asyncio.Event()
        self._client = GuardedClient(only_tls=wants_tls(settings))
        self._loop = asyncio.get_running_loop()
        self._cause = "closed"
        self._last_error: Exception | None = None
        self._forbidden: dict[str, str] = {}
        self._inbox = ""
        self._answers = Answers(settings.answer_timeout)
        self._posts: deque[tuple[str, bytes, str]] = deque()
        self._posted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: set[Callable[[], None]] = set()

    @property
    def client(self) -> Client:
        """The library's client, for what is built upon it."""
        return self._client

    async def open(self) -> None:
        """Connect, and start what keeps the connection honest.

        Raises:
            BusLostError: no server can be reached.
            BusRefusedError: the credentials cannot be read.
        """
        options = self._options()
        try:
            async with asyncio.timeout(self.settings.connect_timeout.total_seconds()):
                await self._client.connect(**options)
        except nats.errors.SecureConnRequiredError as exc:
            await self._abandon()
            raise BusRefusedError(f"{self._unreachable(exc)}: TLS is asked for, the server has none") from exc
        except (TimeoutError, OSError, nats.errors.Error) as exc:
            await self._abandon()
            raise BusLostError(self._unreachable(exc)) from exc
        await self._open_inbox()
        self._tasks = [self._loop.create_task(run()) for run in (self._pulse, self._sweep, self._send_posts)]

    async def _open_inbox(self) -> None:
        self._inbox = self._client.new_inbox()
        try:
            await self.subscribe(f"{self._inbox}.*", self._hear_answer)
        except UnansweredError as exc:
            await self._abandon()
            raise BusLostError(self._unreachable(exc)) from exc
        except BusRefusedError:
            await self._abandon()
            raise

    def _options(self) -> dict[str, Any]:
        settings = self.settings
        try:
            secrets = secret_options(settings)
        except (OSError, ValueError) as exc:
            raise BusRefusedError(f"connecting to NATS as {self.name!r}: {exc}") from exc
        return {
            "servers": list(settings.servers),
            "name": self.name,
            "inbox_prefix": settings.inbox_prefix,
            "allow_reconnect": False,
            "pending_size": 0,  # or a publish waits inside the library for a flush, also when nobody reads any more
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": settings.connect_timeout.total_seconds(),
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            **secrets,
        }

    def _servers(self) -> str:
        return ", ".join(server.rpartition("@")[2] for server in self.settings.servers)

    def _unreachable(self, exc: Exception) -> str:
        cause = self._last_error if isinstance(exc, nats.errors.NoServersError) and self._last_error else exc
        return f"connecting to NATS at {self._servers()} as {self.name!r}: {cause or type(cause).__name__}"

    # --- requests

    async def request(self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """Ask, and wait for the one answer.

        Raises:
            BusLostError: the connection is gone; unknown whether it arrived.
            UnansweredError: no answer came in ``answer_timeout``; unknown whether it arrived.
            MissingError: nobody listens on the subject.
            TooLargeError: above the server's limit.
        """
        waiting = self._answers.expect(subject)
        try:
            await self.publish(subject, data, reply=f"{self._inbox}.{waiting.number}", headers=headers)
            answer = await waiting.answer
        finally:
            self._answers.forget(waiting)
        if answer.headers and not answer.data and answer.headers.get(STATUS) == NO_RESPONDERS:
            raise MissingError(f"asking {subject!r}: nobody answers there: no such stream, or no JetStream")
        return answer

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send without waiting for anything. Raises as :meth:`request`."""
        if self.lost.is_set():
            raise self.loss()
        try:
            # A copy, since nats-py may write into what it is given.
            await self._client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except nats.errors.MaxPayloadError as exc:
            raise TooLargeError(
                f"publishing {len(data)} bytes to {subject!r}: the server takes {self._client.max_payload} at most"
            ) from exc
        except (nats.errors.BadSubjectError, nats.errors.BadHeaderError) as exc:
            raise BusRefusedError(f"publishing to {subject!r}: {exc}") from exc
        except WRITE_ERRORS as exc:
            self.lose(f"publishing to {subject!r}: {exc}")
            raise self.loss() from exc

    def post(self, subject: str, data: bytes = b"", reply: str = "") -> None:
        """Send soon, in the order of posting, without waiting. Dropped when the connection is lost."""
        if not self.lost.is_set():
            self._posts.append((subject, data, reply))
            self._posted.set()

    async def subscribe(self, subject: str, listener: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Hear a subject; the server has the subscription when this returns. Listeners are called one after another.

        Raises:
            BusRefusedError: this client may not hear it.
        """
        if self.lost.is_set():
            raise self.loss()
        try:
            subscription = await self._client.subscribe(subject, cb=listener)
        except WRITE_ERRORS as exc:
            self.lose(f"subscribing to {subject!r}: {exc}")
            raise self.loss() from exc
        await self.settle(self.settings.answer_timeout)
        if (error := self._forbidden.pop(subject.lower(), None)) is not None:
            raise BusRefusedError(
                f"subscribing to {subject!r} as {self.name!r}: {error}: give this user the permission"
            )
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Hear no more. On a lost connection there is nothing to do."""
        with contextlib.suppress(*WRITE_ERRORS):
            await subscription.unsubscribe()

    async def settle(self, within: timedelta) -> None:
        """Wait until the server has read all that was sent before. Raises as :meth:`request`."""
        pong = self._loop.create_future()
        answered = asyncio.Event()
        pong.add_done_callback(lambda _: answered.set())
        off = self.on_lost(answered.set)
        try:
            if not self.lost.is_set():
                await self._client.ping(pong)
                async with asyncio.timeout(within.total_seconds()):
                    await answered.wait()
        except TimeoutError as exc:
            text = f"pinging {self._servers()}: no answer within {within.total_seconds():g} s"
            raise UnansweredError(text) from exc
        finally:
            off()
        if self.lost.is_set():
            raise self.loss()

    def new_inbox(self) -> str:
        """A subject that only we know."""
        return self._client.new_inbox()

    async def _hear_answer(self, msg: Msg) -> None:
        self._answers.hear(int(msg.subject[len(self._inbox) + 1 :]), msg)

    # --- loss

    def loss(self) -> BusLostError:
        """The error that everything raises from now on."""
        return BusLostError(f"using the connection of {self.name!r} to {self._servers()}: {self._cause}")

    def on_lost(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener when the connection is lost; what comes back takes it off the list."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def lose(self, cause: str) -> None:
        """End the connection: say so to everybody who waits, drop what was not sent."""
        if self.lost.is_set():
            return
        self._cause = cause
        self.lost.set()
        self._posts.clear()
        self._answers.fail_all(self.loss)
        for listener in list(self._listeners):
            listener()
        self._ending = self._loop.create_task(self._end())

    async def close(self) -> None:
        """Send what was posted, and leave. Takes at most a second."""
        with contextlib.suppress(TimeoutError, BusLostError, UnansweredError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._flush_posts()
                await self.settle(self.settings.ping_timeout)
        self.lose("closed")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._abandon()

    async def _abandon(self) -> None:
        """Close the socket, also when the other side does not take what is buffered."""
        with contextlib.suppress(TimeoutError, *WRITE_ERRORS):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._client.close()
        self._client.abort()
        await asyncio.sleep(0)  # the turn in which the socket is closed

    async def _on_disconnected(self) -> None:
        self.lose(f"the server closed it ({self._last_error or 'no reason given'})")

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, nats.errors.SlowConsumerError):
            self.lose(f"messages were dropped: too slow on {error.subject!r}")
        elif isinstance(error, nats.errors.UnexpectedEOF):
            self.lose("the server closed it")
        else:
            self._refuse_forbidden(str(error))

    def _refuse_forbidden(self, error: str) -> None:
        """What the server forbids gets no answer but this error, with the subject in small letters."""
        found = _FORBIDDEN.search(error)
        if found is None:
            return
        doing, subject = found.groups()
        if doing == "subscription":
            self._forbidden[subject] = error
            return
        self._answers.fail_subject(
            subject,
            lambda asked: BusRefusedError(
                f"publishing to {asked!r} as {self.name!r}: {error}: give this user the permission"
            ),
        )

    # --- what runs beside it

    async def _pulse(self) -> None:
        """Ping, and lose the connection when no answer comes."""
        while not self.lost.is_set():
            await asyncio.sleep(self.settings.ping_interval.total_seconds())
            try:
                await self.settle(self.settings.ping_timeout)
            except UnansweredError as exc:
                self.lose(str(exc))
            if not self._client.is_reading:
                self.lose("the client reads no more")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._answers.sweep()

    async def _send_posts(self) -> None:
        while True:
            await self._posted.wait()
            self._posted.clear()
            with contextlib.suppress(BusLostError):
                await self._flush_posts()

    async def _flush_posts(self) -> None:
        while self._posts:
            subject, data, reply = self._posts.popleft()
            await self.publish(subject, data, reply=reply)
