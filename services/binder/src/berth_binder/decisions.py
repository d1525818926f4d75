"""Publishes Decisions and dead letters, each until its stream has stored it, and counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from berth.api.errors import TemporaryError
from berth.api.messages import DeadLetter, Decision, Outcome
from berth.bus.interface import BusLostError, Delivery, MissingError, Session
from berth.bus.stages import publish_dead_letter, publish_decision
from berth.process.logging import get_logger
from berth.process.metrics import Meter, result_of
from berth_binder.events import PublishDecision

log = get_logger()

RETRY_SECONDS: Final = 0.2
"""Before a publish without an answer is repeated; its message id prevents duplicates."""


class DecisionPublisher:
    """Publishes on one session: when that is lost the leadership ends, and the message is delivered again."""

    def __init__(self, session: Session, metrics: Meter) -> None:
        self._session = session
        self._metrics = metrics

    async def publish(self, effect: PublishDecision) -> None:
        """Publish a Decision; before it the dead letter of a message that failed for good.

        Raises:
            BusLostError, MissingError: the connection or the stream is lost.
        """
        decision, delivery = effect.decision, effect.held.delivery
        if effect.dead_letter:
            await self._publish_dead_letter(delivery, decision.message, decision.attempt, cause="failed")
        await _until_stored(lambda: self._publish(decision, delivery))
        count_decision(self._metrics, decision)

    async def reject_unusable(self, delivery: Delivery, reason: str) -> None:
        """Publish a dead letter of a message that cannot be used, then acknowledge it.

        Raises:
            BusLostError, MissingError: the connection or the stream is lost.
        """
        log.warning("cannot use a message, wrote a dead letter", subject=delivery.subject, reason=reason)
        await self._publish_dead_letter(delivery, reason, cause="undecodable")
        delivery.ack()

    async def _publish_dead_letter(self, delivery: Delivery, reason: str, attempt: str = "", *, cause: str) -> None:
        self._metrics.count("berth_dead_letters_total", cause=cause)
        payload = delivery.data.decode(errors="replace")
        letter = DeadLetter(subject=delivery.subject, reason=reason, service="binder", attempt=attempt, payload=payload)
        await _until_stored(lambda: publish_dead_letter(self._session, letter))

    async def _publish(self, decision: Decision, delivery: Delivery) -> None:
        timed = msgspec.structs.replace(decision, ranked_at=delivery.time)
        await publish_decision(self._session, timed, headers=delivery.headers)


async def _until_stored(publish: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await publish()
        except (BusLostError, MissingError):
            raise
        except TemporaryError:  # that NATS stores nothing is said once, for all pods
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


def count_decision(metrics: Meter, decision: Decision) -> None:
    """Count a stored Decision; the outcomes that kube-scheduler has also under its own metric names."""
    metrics.count("berth_decisions_total", outcome=decision.outcome.value, profile=decision.profile)
    metrics.count("berth_messages_published_total", stream="DECISIONS")
    if decision.outcome is Outcome.CONFLICT:
        metrics.count("berth_conflicts_total", reason=decision.reason)
    if decision.preemption is not None and decision.preemption.victims:
        metrics.observe("scheduler_preemption_victims", len(decision.preemption.victims))
    result = result_of(decision.outcome)
    if result is not None:
        metrics.count("scheduler_schedule_attempts_total", result=result, profile=decision.profile)
