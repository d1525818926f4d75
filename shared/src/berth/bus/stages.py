"""Publishes the messages of the stages: PENDING, RANKED, Decisions and dead letters.

Each goes to its pod's subject with the message id that makes a repeat harmless (docs/protocol.md, 1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from berth.api.errors import DecodeError
from berth.api.messages import DeadLetter, Decision, Pending, Ranked, encode
from berth.api.subjects import PREFIX, Attempt, Epoch, PodSubject, decision_id, escape_token
from berth.bus.interface import PubAck, Session
from berth.bus.topology import DEAD

OUTCOME: Final = "Berth-Outcome"
TRACE: Final = ("traceparent", "tracestate")
"""W3C trace context: the only headers of the received message that are passed on."""
PAYLOAD_CHARACTERS: Final = 64 * 1024
"""How much of a payload a dead letter keeps: enough to read, far below the limit of a message."""

Headers = Mapping[str, str]


async def publish_pending(session: Session, message: Pending, *, headers: Headers | None = None) -> PubAck:
    """Publish to PENDING. The same attempt is stored once. Raises as :meth:`Session.publish`."""
    subject = _pod_subject("pending", message)
    return await session.publish(subject, encode(message), message_id=message.attempt, headers=_trace(headers))


async def publish_ranked(session: Session, message: Ranked, *, headers: Headers | None = None) -> PubAck:
    """Publish to RANKED. A second ranking of the attempt is a duplicate. Raises as :meth:`Session.publish`."""
    subject = _pod_subject("ranked", message)
    return await session.publish(subject, encode(message), message_id=message.attempt, headers=_trace(headers))


async def publish_decision(session: Session, message: Decision, *, headers: Headers | None = None) -> PubAck:
    """Publish to DECISIONS, with the outcome in a header too. Raises as :meth:`Session.publish`."""
    subject = PodSubject(stage="decision", profile=message.profile, namespace=message.namespace, pod=message.pod)
    attempt, epoch = Attempt.parse(message.attempt), Epoch(message.epoch)
    return await session.publish(
        str(subject),
        encode(message),
        message_id=decision_id(attempt, epoch, message.outcome, message.repeat),
        headers={**_trace(headers), OUTCOME: message.outcome.value},
    )


async def publish_dead_letter(session: Session, letter: DeadLetter, *, headers: Headers | None = None) -> None:
    """Publish a dead letter. The same one is stored once. Raises as :meth:`Session.publish`.

    A dead letter about a pod's message goes to that pod's subject (``berth.dead.<profile>.<namespace>.<pod>``), so that
    a subscription to the pod receives it; any other goes to ``berth.dead.<service>``.
    """
    data = encode(msgspec.structs.replace(letter, payload=letter.payload[:PAYLOAD_CHARACTERS]))
    message_id = hashlib.blake2b(data, digest_size=16).hexdigest()
    await session.publish(dead_subject(letter), data, message_id=message_id, headers=_trace(headers))


def dead_subject(letter: DeadLetter) -> str:
    """The subject of a dead letter."""
    try:
        of = PodSubject.parse(letter.subject)
    except DecodeError:
        return f"{PREFIX}.{DEAD}.{escape_token(letter.service)}"
    return str(PodSubject(stage=DEAD, profile=of.profile, namespace=of.namespace, pod=of.pod))


def _pod_subject(stage: str, message: Pending | Ranked) -> str:
    metadata = message.pod.metadata
    return str(PodSubject(stage=stage, profile=message.profile, namespace=metadata.namespace, pod=metadata.name))


def _trace(headers: Headers | None) -> dict[str, str]:
    return {name: headers[name] for name in TRACE if name in headers} if headers else {}
