"""Confirmed publishes: the headers that JetStream reads, and the PubAck that it answers with.

Reading a stream without a consumer (Direct Get): the last message of a subject, or all that is there by pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Final

import msgspec
from nats.aio.msg import Msg

from berth.api.errors import BerthError
from berth.bus.connection import DESCRIPTION, NO_RESPONDERS, STATUS, Connection
from berth.bus.interface import MissingError, PubAck, StoredMessage, UnansweredError
from berth.bus.jetstream import API, JetStreamError, PublishAnswer, error_from, read_answer

MESSAGE_ID: Final = "Nats-Msg-Id"

EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"


_answers: Final = msgspec.json.Decoder(PublishAnswer)


async def publish(
    connection: Connection,
    subject: str,
    data: bytes,
    *,
    message_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> PubAck:
    """Publish, and wait until the stream has it. Raises as :meth:`berth.bus.interface.Session.publish`."""
    all_headers = dict(headers) if headers else {}
    if message_id is not None:
        all_headers[MESSAGE_ID] = message_id
    msg = await connection.request(subject, data, all_headers)
    answer = read_answer(f"publishing to {subject!r}", msg.data, _answers)
    return PubAck(stream=answer.stream, sequence=answer.seq, duplicate=answer.duplicate)


PAGE: Final = 1000

_NOT_FOUND: Final = "404"

_END: Final = "204"

_LEFT: Final = "Nats-Num-Pending"

_SEQUENCE: Final = "Nats-Sequence"

_SUBJECT: Final = "Nats-Subject"

_TIME: Final = "Nats-Time-Stamp"

_ADDED: Final = frozenset(
    {"Nats-Stream", _SUBJECT, _SEQUENCE, _TIME, _LEFT, "Nats-Last-Sequence", "Nats-UpTo-Sequence"}
)
"""Headers that the server adds to an answer; the others are the message's own."""


async def last(connection: Connection, stream: str, subject: str) -> StoredMessage | None:
    """The last message under a subject or filter, ``None`` when there is none."""
    request = msgspec.json.encode({"last_by_subj": subject})
    msg = await connection.request(f"{API}.DIRECT.GET.{stream}", request)
    headers = msg.headers or {}
    if _SEQUENCE in headers:
        return _stored(msg, headers)
    if headers.get(STATUS) == _NOT_FOUND:
        return None
    raise _refused(f"reading {subject!r} of {stream}", headers)


async def scan(connection: Connection, stream: str, subject: str, after: int) -> AsyncIterator[StoredMessage]:
    """Every message under the filter, in order, a page at a time."""
    left = True
    while left:
        page, left = await _page(connection, stream, subject, after)
        for message in page:
            yield message
        after = page[-1].sequence if page else after


async def _page(connection: Connection, stream: str, subject: str, after: int) -> tuple[list[StoredMessage], bool]:
    """One page, and whether there is more."""
    answers: asyncio.Queue[Msg | None] = asyncio.Queue()
    inbox = connection.new_inbox()
    off = connection.on_lost(lambda: answers.put_nowait(None))
    subscription = await connection.subscribe(inbox, answers.put)
    try:
        request = {"seq": after + 1, "batch": PAGE, "next_by_subj": subject}
        await connection.publish(f"{API}.DIRECT.GET.{stream}", msgspec.json.encode(request), reply=inbox)
        return await _collect(connection, answers, f"looking through {subject!r} of {stream}")
    finally:
        off()
        await connection.unsubscribe(subscription)


async def _collect(
    connection: Connection, answers: asyncio.Queue[Msg | None], doing: str
) -> tuple[list[StoredMessage], bool]:
    page: list[StoredMessage] = []
    while True:
        headers = (msg := await _next(connection, answers, doing)).headers or {}
        if _SEQUENCE in headers:
            page.append(_stored(msg, headers))
        elif headers.get(STATUS) == _END:
            return page, bool(page) and int(headers.get(_LEFT, "0")) > 0
        elif headers.get(STATUS) == _NOT_FOUND:
            return page, False
        else:
            raise _refused(doing, headers)


async def _next(connection: Connection, answers: asyncio.Queue[Msg | None], doing: str) -> Msg:
    patience = connection.settings.answer_timeout.total_seconds()
    try:
        async with asyncio.timeout(patience):
            msg = await answers.get()
    except TimeoutError as exc:
        raise UnansweredError(f"{doing}: no answer within {patience:g} s") from exc
    if msg is None:
        raise connection.loss()
    return msg


def _stored(msg: Msg, headers: Mapping[str, str]) -> StoredMessage:
    return StoredMessage(
        subject=headers[_SUBJECT],
        sequence=int(headers[_SEQUENCE]),
        data=msg.data,
        headers={name: value for name, value in headers.items() if name not in _ADDED},
        time=datetime.fromisoformat(headers[_TIME]),
    )


def _refused(doing: str, headers: Mapping[str, str]) -> BerthError:
    status = headers.get(STATUS, "0")
    if status == NO_RESPONDERS:
        return MissingError(f"{doing}: nobody answers there: no such stream, or no JetStream")
    return error_from(doing, JetStreamError(code=int(status), description=headers.get(DESCRIPTION, "")))
