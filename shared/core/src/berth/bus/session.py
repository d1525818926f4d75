"""The bus on a NATS server: :class:`NatsBus` opens sessions, :class:`NatsSession` forwards each call to its module.

Registration with NATS's service protocol is here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from nats.aio.msg import Msg

from berth.bus import admin, jetstream, ordered
from berth.bus import consumer as consuming
from berth.bus.connection import Connection, Traffic
from berth.bus.consumer import NatsDeliveries
from berth.bus.interface import (
    NO_METADATA,
    Bus,
    BusLostError,
    BusRefusedError,
    Endpoint,
    Entry,
    MessageListener,
    PubAck,
    ServiceInstance,
    Session,
    Stats,
    StoredListener,
    StoredMessage,
    StreamState,
    UnansweredError,
    Unstored,
)
from berth.bus.ordered import ALL, NatsReader
from berth.bus.outgoing import NO_RESPONDERS, status_of
from berth.bus.settings import BusSettings
from berth.bus.topology import STORED_PREFIX, Names
from berth.decoding import decode_json
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.log import get_logger
from berth.messages.subjects import SERVICES, service_subject

log = get_logger()


class NatsBus(Bus):
    def __init__(self, settings: BusSettings, traffic: Traffic | None = None) -> None:
        """Check the settings. ``traffic`` is called with each message, for the log.

        Raises:
            BusRefusedError: with all errors at once.
        """
        self.settings = settings
        self._traffic = traffic
        if problems := self.settings.problems():
            raise BusRefusedError(f"reading the bus settings: {'; '.join(problems)}")

    async def connect(self, *, name: str) -> NatsSession:
        """A new client, as :meth:`berth.bus.interface.Bus.connect`."""
        connection = Connection(self.settings, name, self._traffic)
        await connection.open()
        try:
            return NatsSession(connection, await admin.read_bus_id(connection))
        except UnansweredError as exc:
            await connection.close()
            raise BusLostError(f"connecting as {name!r}: {exc}") from exc
        except BaseException:
            await connection.close()
            raise


class NatsSession(Session):
    """One client on one connection. :class:`berth.bus.interface.Session` documents every call."""

    def __init__(self, connection: Connection, bus_id: str) -> None:
        self._connection = connection
        self._names = connection.names
        self._bus_id = bus_id

    @property
    def bus_id(self) -> str:
        return self._bus_id

    @property
    def lost(self) -> asyncio.Event:
        return self._connection.lost

    @property
    def max_message_bytes(self) -> int:
        return self._connection.max_message_bytes

    async def close(self) -> None:
        await self._connection.close()

    def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Coroutine[Any, Any, PubAck]:
        on = self._names.subject(subject)
        return jetstream.publish(self._connection, on, data, message_id=message_id, headers=headers)

    def publish_soon(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_answer: Callable[[PubAck | BerthError], None],
    ) -> None:
        own = self._names.subject(subject)
        named = jetstream.with_message_id(headers, message_id)
        jetstream.publish_soon(self._connection, own, data, named, on_answer)

    def consume(self, stream: str, consumer: str, *, max_unacked: int) -> AbstractAsyncContextManager[NatsDeliveries]:
        return consuming.consume(self._connection, self._names.stream(stream), consumer, max_unacked)

    def read_stream(
        self,
        stream: str,
        *,
        filters: tuple[str, ...] = ALL,
        since: timedelta | None = None,
        after: int | None = None,
    ) -> AbstractAsyncContextManager[NatsReader[StoredMessage]]:
        subjects = filters if filters == ALL else tuple(map(self._names.filter, filters))
        return ordered.read_stream(self._connection, self._names.stream(stream), subjects, since, after).open()

    def read_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = ALL, every: timedelta | None = None
    ) -> AbstractAsyncContextManager[NatsReader[Entry]]:
        return ordered.read_bucket(self._connection, bucket, filters, every).open()

    def scan(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        return jetstream.scan(self._connection, self._names.stream(stream), self._names.filter(subject), after)

    def last_of_each(self, stream: str, subjects: Sequence[str]) -> AsyncIterator[StoredMessage]:
        on = [self._names.filter(one) for one in subjects]
        return jetstream.last_of_each(self._connection, self._names.stream(stream), on)

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        return await jetstream.last_message(self._connection, self._names.stream(stream), self._names.filter(subject))

    async def get(self, bucket: str, key: str) -> Entry | None:
        return await jetstream.get_entry(self._connection, bucket, key)

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        return await jetstream.put_entry(self._connection, bucket, key, data, expected)

    def put_soon(
        self, bucket: str, key: str, data: bytes, *, expected: int | None, on_answer: Callable[[int | BerthError], None]
    ) -> None:
        jetstream.put_entry_soon(self._connection, bucket, key, data, expected=expected, on_answer=on_answer)

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        return await jetstream.purge_entry(self._connection, bucket, key, expected)

    async def delete(self, stream: str, sequence: int) -> None:
        await jetstream.delete_message(self._connection, self._names.stream(stream), sequence)

    async def subscribe(self, subject: str, listener: MessageListener, *, most: int = 0) -> None:
        def on_message(message: Msg) -> None:
            listener(self._names.own_subject(message.subject), message.data, message.headers or {})

        await self._connection.subscribe(self._names.subject(subject), on_message, most=most)

    async def subscribe_stored(self, subject: str, listener: StoredListener, *, most: int = 0) -> None:
        names = self._names

        def on_copy(message: Msg) -> None:
            if not jetstream.is_copy(message, names.stream_of(message.subject.removeprefix(STORED_PREFIX))):
                return
            if (stored := jetstream.stored_copy(message, self._names)) is not None:
                listener(stored)

        await self._connection.subscribe(STORED_PREFIX + self._names.subject(subject), on_copy, most=most)

    async def broadcast(self, subject: str, data: bytes) -> None:
        await self._connection.publish(self._names.subject(subject), data)

    async def apply(self) -> None:
        self._bus_id = await admin.apply(self._connection)

    def unstored(self) -> Mapping[str, Unstored]:
        return self._connection.stores.unstored()

    async def remake(self, name: str) -> bool:
        return await admin.remake(self._connection, name)

    async def verify(self, only: Collection[str] = ()) -> None:
        await admin.verify(self._connection, only)

    async def create_consumer(self, stream: str, consumer: str) -> None:
        await admin.create_consumer(self._connection, self._names.stream(stream), consumer)

    async def consumers(self, stream: str) -> list[str]:
        return await admin.consumer_names(self._connection, self._names.stream(stream))

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        await admin.delete_consumer(self._connection, self._names.stream(stream), consumer)

    async def register(  # noqa: PLR0913 - as in the interface
        self,
        service: str,
        *,
        identity: str,
        version: str,
        stats: Stats,
        metadata: Mapping[str, str] = NO_METADATA,
        endpoints: Sequence[Endpoint] = (),
    ) -> None:
        about = {**metadata, "identity": identity}
        await _register(self._connection, service, about, version=version, stats=stats, endpoints=endpoints)

    async def ask(self, subject: str, data: bytes) -> bytes:
        for _ in range(ASKED_AGAIN):
            answer = await self._connection.request(self._names.subject(subject), data)
            if not (refusal := _refusal(answer)):
                return answer.data
            await asyncio.sleep(ASKED_AGAIN_SECONDS)
        raise TemporaryError(f"asking {subject!r}: {refusal}")

    async def state(self, stream: str) -> StreamState:
        return await admin.stream_state(self._connection, stream)

    async def services(self, service: str = "") -> list[ServiceInstance]:
        return await _services(self._connection, service)


# --- NATS's service protocol

ENDPOINT: Final = "status"
MOST_INSTANCES: Final = 1000  # Of one service; further answers are not read.
ALL_ANSWERS_SECONDS: Final = 0.5  # For all answers together, because the number of services is unknown.
NEXT_ANSWER_SECONDS: Final = 0.2  # Without an answer for this long, no further one is expected.

BERTHS: Final = "berth-"  # Start of services' names, which their descriptions leave out.
_PREFIX: Final = "$SRV"
_TYPES: Final = "io.nats.micro.v1"
_QUEUE: Final = "q"
_ERROR_CHARACTERS: Final = 200  # Of the last error in the statistics, which may quote a request.


class _Counted:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.for_admins = endpoint.for_admins
        self._requests = self._errors = self._nanoseconds = 0
        self._last_error = ""

    def answer(self, request: bytes) -> bytes:
        self._requests += 1
        begun = time.perf_counter_ns()
        try:
            answer = self._endpoint.answer(request)
            if error := self._endpoint.error_of(answer):
                self._count_error(error)
            return msgspec.json.encode(answer)
        except Exception as error:
            self._count_error(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._nanoseconds += time.perf_counter_ns() - begun

    def figures(self) -> dict[str, object]:
        """Statistics since the service began, without requests for them."""
        return {
            "num_requests": self._requests,
            "num_errors": self._errors,
            "last_error": self._last_error,
            "processing_time": self._nanoseconds,
            "average_processing_time": self._nanoseconds // max(self._requests, 1),
        }

    def _count_error(self, error: str) -> None:
        self._errors += 1
        self._last_error = error[:_ERROR_CHARACTERS]


async def _register(  # noqa: PLR0913 - the parts of a service's description
    connection: Connection,
    service: str,
    metadata: dict[str, str],
    *,
    version: str,
    stats: Stats,
    endpoints: Sequence[Endpoint],
) -> None:
    # The first endpoint answers with the statistics: `nats req berth.service.<service>.<identity> ''`.
    instance = uuid.uuid4().hex
    names = connection.names
    name = names.word(service)
    about = {"name": name, "id": instance, "version": version, "metadata": metadata}
    own = names.subject(service_subject(service, metadata["identity"]))
    counted = {own: _Counted(Endpoint(name=ENDPOINT, answer=lambda _request: stats()))}
    subjects = {ENDPOINT: own}
    for one in endpoints:
        asked = service_subject(service, metadata["identity"], one.name, for_admins=one.for_admins)
        subjects[one.name] = names.subject(asked)
        counted[subjects[one.name]] = _Counted(one)
    listed = [{"name": name, "subject": subject, "queue_group": _QUEUE} for name, subject in subjects.items()]
    description = f"berth: {service.removeprefix(BERTHS)}"
    started = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    def ping() -> object:
        return {**about, "type": f"{_TYPES}.ping_response"}

    def info() -> object:
        shown = [{**endpoint, "metadata": {}} for endpoint in listed]
        return {**about, "type": f"{_TYPES}.info_response", "description": description, "endpoints": shown}

    def listed_stats() -> object:
        shown: list[dict[str, object]] = [{**endpoint, **counted[endpoint["subject"]].figures()} for endpoint in listed]
        shown[0]["data"] = stats()
        return {**about, "type": f"{_TYPES}.stats_response", "started": started, "endpoints": shown}

    for verb, answer in (("PING", ping), ("INFO", info), ("STATS", listed_stats)):
        for called in (verb, f"{verb}.{name}", f"{verb}.{name}.{instance}"):
            _Answers(connection, f"{_PREFIX}.{called}", _whatever_is_asked(answer))
    for subject, answers in counted.items():
        _Answers(connection, subject, answers.answer, for_admins=answers.for_admins)
    await connection.flush(connection.settings.answer_timeout)


def _whatever_is_asked(answer: Callable[[], object]) -> Callable[[bytes], bytes]:
    return lambda _request: msgspec.json.encode(answer())


# Answers on one subject in a second. A person needs a few, and the loop that answers also renews the Lease.
ANSWERS_A_SECOND: Final = 100
# An answer of more CPU time or to a larger request counts as several: at most 10 % of a core goes into one subject.
SECONDS_OF_AN_ANSWER: Final = 0.001
BYTES_OF_A_REQUEST: Final = 10_000
# Above this many refusals in a second the service unsubscribes until the second is over, because reading requests takes
# CPU too. NATS then answers that there is no responder.
REFUSALS_A_SECOND: Final = 100
TOO_MANY: Final = "429"
_ERROR, _ERROR_CODE = "Nats-Service-Error", "Nats-Service-Error-Code"  # by NATS's service protocol
_REFUSAL: Final = {_ERROR_CODE: TOO_MANY, _ERROR: f"more than {ANSWERS_A_SECOND} questions a second: try again"}
ASKED_AGAIN: Final = 8  # How often a refused question is repeated,
ASKED_AGAIN_SECONDS: Final = 0.25  # after this time.


class _Answers:
    def __init__(
        self, connection: Connection, subject: str, answer: Callable[[bytes], bytes], *, for_admins: bool = False
    ) -> None:
        self._connection = connection
        self._subject = subject
        self._answer = answer
        self._is_limited = not for_admins
        self._loop = asyncio.get_running_loop()
        self._second_ends = 0.0
        self._answered = self._refused = 0.0
        self._subscribe()

    def _subscribe(self) -> None:
        if not self._connection.lost.is_set():
            self._subscription = self._connection.subscribe_soon(self._subject, self._on_request)

    def _on_request(self, message: Msg) -> None:
        now = self._loop.time()
        if now >= self._second_ends:
            self._second_ends = now + 1.0
            self._answered = self._refused = 0.0
        cost = max(1.0, len(message.data) / BYTES_OF_A_REQUEST)
        if self._answered < ANSWERS_A_SECOND or not self._is_limited:
            begun = time.thread_time()
            try:
                self._reply(message, lambda: self._answer(message.data))
            finally:
                self._answered += max(cost, (time.thread_time() - begun) / SECONDS_OF_AN_ANSWER)
        elif self._refused < REFUSALS_A_SECOND:
            self._refused += cost
            self._reply(message, lambda: b"", _REFUSAL)
        else:
            log.warning("too many questions", subject=self._subject)
            self._connection.unsubscribe(self._subscription)
            self._loop.call_at(self._second_ends, self._subscribe)

    def _reply(self, message: Msg, answer: Callable[[], bytes], headers: Mapping[str, str] | None = None) -> None:
        if message.reply:
            with contextlib.suppress(BusLostError):
                self._connection.send(message.reply, answer(), headers=headers)


def _refusal(answer: Msg) -> str:
    # The sentence of a service that is asked too often; empty for other answers.
    headers = answer.headers or {}
    return headers.get(_ERROR, "refused") if headers.get(_ERROR_CODE) == TOO_MANY else ""


class _EndpointInfo(msgspec.Struct, frozen=True):
    data: dict[str, object] | None = None


class _ServiceStats(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    version: str = ""
    metadata: dict[str, str] | None = None
    endpoints: list[_EndpointInfo] | None = None


_stats_decoder: Final = msgspec.json.Decoder(_ServiceStats)


async def _services(connection: Connection, service: str) -> list[ServiceInstance]:
    # All services, or all of one name, that answer a request for statistics. Each name has a request of its own, which
    # only this service's account receives; every service receives `$SRV.STATS` and could answer it as another.
    names = [service] if service else SERVICES
    found = await asyncio.gather(*(_instances(connection, name) for name in names))
    return sorted((one for each in found for one in each), key=lambda one: (one.service, one.identity))


async def _instances(connection: Connection, service: str) -> list[ServiceInstance]:
    # Undecodable answers, and those under another name, are skipped.
    for _ in range(ASKED_AGAIN):
        answers = await _answers(connection, f"{_PREFIX}.STATS.{connection.names.word(service)}")
        if not (refusal := next(filter(None, map(_refusal, answers)), "")):
            break
        await asyncio.sleep(ASKED_AGAIN_SECONDS)
    else:
        raise TemporaryError(f"asking {service}: {refusal}")
    instances = (one for message in answers if (one := _instance(message.data, connection.names)))
    return [one for one in instances if one.service == service]


async def _answers(connection: Connection, subject: str) -> list[Msg]:
    # All answers to one request.
    answers: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, answers.put_nowait)
    found: list[Msg] = []
    try:
        connection.send(subject, reply=inbox)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ALL_ANSWERS_SECONDS):
                while len(found) < MOST_INSTANCES:
                    answer = await asyncio.wait_for(answers.get(), NEXT_ANSWER_SECONDS)
                    if status_of(answer) == NO_RESPONDERS:
                        break
                    found.append(answer)
    finally:
        connection.unsubscribe(subscription)
    return found


def _instance(data: bytes, names: Names) -> ServiceInstance | None:
    try:
        answer = decode_json(_stats_decoder, data, "statistics")
    except DecodeError:
        return None
    identity = (answer.metadata or {}).get("identity", answer.id)
    stats = next((endpoint.data for endpoint in answer.endpoints or () if endpoint.data), {})
    service = names.own_word(answer.name)
    return ServiceInstance(service=service, identity=identity, version=answer.version, stats=stats)
