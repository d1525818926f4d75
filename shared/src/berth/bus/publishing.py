"""Confirmed publishes: the headers that JetStream reads, and the PubAck that it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from berth.bus.connection import Connection
from berth.bus.port import PubAck
from berth.bus.wire import PublishAnswer, read_answer

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
    """Publish, and wait until the stream has it. Raises as :meth:`berth.bus.port.Session.publish`."""
    all_headers = dict(headers) if headers else {}
    if message_id is not None:
        all_headers[MESSAGE_ID] = message_id
    msg = await connection.request(subject, data, all_headers)
    answer = read_answer(f"publishing to {subject!r}", msg.data, _answers)
    return PubAck(stream=answer.stream, sequence=answer.seq, duplicate=answer.duplicate)
