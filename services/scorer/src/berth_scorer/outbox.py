"""What a scorer publishes: RANKED, dead letters, acknowledgements. Each PENDING is held until its answer is stored."""

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

RETRY_DELAY: Final = timedelta(seconds=2)
"""When a message is redelivered whose answer could not be stored."""
PAYLOAD_QUOTED: Final = 4096
"""Bytes of a message that its dead letter quotes."""


class Outbox:
    """Publishes in the background, so that the next pod is ranked while the stream stores the last one's answer."""

    def __init__(self, session: Session, metrics: Meter) -> None:
        self._session = session
        self._metrics = metrics
        self._held: dict[int, Delivery] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, delivery: Delivery) -> None:
        """Send ``in_progress`` for a message from here on."""
        self._held[delivery.sequence] = delivery

    def release(self, delivery: Delivery) -> None:
        """Return a message unanswered: another scorer gets it at once."""
        self._held.pop(delivery.sequence, None)
        delivery.nak()

    def send_in_progress(self) -> None:
        """Send ``in_progress`` for every message held."""
        for delivery in self._held.values():
            delivery.in_progress()

    def send(self, item: PendingDelivery, message: Ranked, headers: Mapping[str, str]) -> None:
        """Publish an answer in the background."""
        self._start(self.publish(item, message, headers))

    def send_dead_letter(self, delivery: Delivery, reason: str, attempt: str = "") -> None:
        """Publish a dead letter about a pod that cannot be ranked, in the background."""
        self._metrics.count("berth_dead_letters_total", cause="failed")
        self._start(publish_dead_letter(self._session, dead_letter(delivery, reason, attempt)))

    async def reject(self, delivery: Delivery, reason: str) -> None:
        """A message that cannot be decoded: its dead letter is stored, then it is acknowledged."""
        self._metrics.count("berth_dead_letters_total", cause="undecodable")
        await publish_dead_letter(self._session, dead_letter(delivery, reason))
        delivery.ack()

    async def publish(self, item: PendingDelivery, message: Ranked, headers: Mapping[str, str]) -> None:
        """Publish RANKED; PENDING is acknowledged only when the stream has it (a duplicate counts too)."""
        timed = msgspec.structs.replace(message, asked_at=item.delivery.time)
        try:
            await publish_ranked(self._session, timed, headers=headers)
        except TemporaryError:
            item.delivery.nak(RETRY_DELAY)
            raise
        else:
            item.delivery.ack()
            self._metrics.count("berth_messages_published_total", stream=RANKED)
        finally:
            self._held.pop(item.delivery.sequence, None)

    async def wait_empty(self, *, within: timedelta | None = None) -> None:
        """Wait until everything is published."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within.total_seconds() if within else None)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("publishing failed, the message is redelivered", reason=str(error))


def dead_letter(delivery: Delivery, reason: str, attempt: str = "") -> DeadLetter:
    """A dead letter that quotes the message."""
    payload = delivery.data[:PAYLOAD_QUOTED].decode(errors="replace")
    return DeadLetter(subject=delivery.subject, reason=reason, service="scorer", attempt=attempt, payload=payload)
