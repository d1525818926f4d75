"""What leaves a scorer: RANKED, dead letters, acknowledgements; each PENDING held until its answer is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from berth.api.errors import TemporaryError
from berth.api.messages import DeadLetter, Ranked
from berth.bus.interface import Delivery, Session
from berth.bus.stages import publish_dead_letter, publish_ranked
from berth.bus.topology import RANKED
from berth.process.logging import get_logger
from berth.process.metrics import Meter
from berth_scorer.backlog import PendingDelivery

log = get_logger()

AGAIN: Final = timedelta(seconds=2)
"""When a message is offered again whose answer could not be stored."""
PAYLOAD_SHOWN: Final = 4096
"""Bytes of a message that its dead letter quotes."""


class Outbox:
    """Publishes beside the ranking, so that the next pod is ranked while the stream stores the last one's answer."""

    def __init__(self, session: Session, metrics: Meter) -> None:
        self._session = session
        self._metrics = metrics
        self._held: dict[int, Delivery] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, delivery: Delivery) -> None:
        """Keep a message alive from here on."""
        self._held[delivery.sequence] = delivery

    def release(self, delivery: Delivery) -> None:
        """Give a message back unanswered: it comes again at once, elsewhere."""
        self._held.pop(delivery.sequence, None)
        delivery.nak()

    def keep_alive(self) -> None:
        """Say of everything held that somebody is at it."""
        for delivery in self._held.values():
            delivery.in_progress()

    def send(self, held: PendingDelivery, message: Ranked, headers: Mapping[str, str]) -> None:
        """Publish an answer and acknowledge its question, without waiting for it here."""
        self._go(self.publish(held, message, headers))

    def send_letter(self, delivery: Delivery, reason: str, attempt: str = "") -> None:
        """Put a copy of a message aside for people, without waiting for it here."""
        self._metrics.count("berth_dead_letters_total", cause="failed")
        self._go(publish_dead_letter(self._session, letter(delivery, reason, attempt)))

    async def put_aside(self, delivery: Delivery, reason: str) -> None:
        """A message that cannot be used at all: its copy is stored, then it is acknowledged."""
        self._metrics.count("berth_dead_letters_total", cause="undecodable")
        await publish_dead_letter(self._session, letter(delivery, reason))
        delivery.ack()

    async def publish(self, held: PendingDelivery, message: Ranked, headers: Mapping[str, str]) -> None:
        """RANKED first; only when the stream has it (a duplicate is as good) is PENDING acknowledged."""
        timed = msgspec.structs.replace(message, asked_at=held.delivery.time)
        try:
            await publish_ranked(self._session, timed, headers=headers)
        except TemporaryError:
            held.delivery.nak(AGAIN)
            raise
        else:
            held.delivery.ack()
            self._metrics.count("berth_messages_published_total", stream=RANKED)
        finally:
            self._held.pop(held.delivery.sequence, None)

    async def emptied(self, *, within: timedelta | None = None) -> None:
        """Wait until nothing is under way."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=within.total_seconds() if within else None)

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("publishing failed, the message comes again", reason=str(error))


def letter(delivery: Delivery, reason: str, attempt: str = "") -> DeadLetter:
    """A dead letter that quotes the message."""
    payload = delivery.data[:PAYLOAD_SHOWN].decode(errors="replace")
    return DeadLetter(subject=delivery.subject, reason=reason, service="scorer", attempt=attempt, payload=payload)
