"""What the binder counts (names and meanings: ``berth.process.metrics``).

What the binder publishes, Decisions and dead letters: each until its stream has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec

from berth.api.errors import TemporaryError
from berth.api.messages import DeadLetter, Decision, Outcome
from berth.bus.interface import BusLostError, Delivery, MissingError, Session, TooLargeError
from berth.bus.stages import publish_dead_letter, publish_decision
from berth.process.logging import get_logger
from berth.process.metrics import GaugeName, Meter, result_of
from berth_binder.cache import Cache
from berth_binder.effects import Answer, Publish

GAUGES: Final[tuple[GaugeName, ...]] = ("berth_reservations", "berth_bindings_in_flight", "scheduler_cache_size")
"""What only the one who leads can say."""


def count_decision(metrics: Meter, said: Decision) -> None:
    """Count a Decision that DECISIONS has stored; those that kube-scheduler knows also under its own name."""
    metrics.count("berth_decisions_total", outcome=said.outcome.value, profile=said.profile)
    metrics.count("berth_messages_published_total", stream="DECISIONS")
    if said.outcome is Outcome.CONFLICT:
        metrics.count("berth_conflicts_total", reason=said.reason)
    if said.preemption is not None and said.preemption.victims:
        metrics.observe("scheduler_preemption_victims", len(said.preemption.victims))
    result = result_of(said.outcome)
    if result is not None:
        metrics.count("scheduler_schedule_attempts_total", result=result, profile=said.profile)


def count_binding(metrics: Meter, answer: Answer, seconds: float, *, profile: str) -> None:
    """Count the answer to a Binding, and how long it took; that is also what the extension point Bind takes."""
    status = "Success" if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES else "Error"
    metrics.observe(
        "scheduler_framework_extension_point_duration_seconds",
        seconds,
        extension_point="Bind",
        status=status,
        profile=profile,
    )
    metrics.count("berth_bindings_total", code=str(answer.status) if answer.status else "none")
    metrics.observe("berth_binding_duration_seconds", seconds)


def show(metrics: Meter, cache: Cache, *, on_wire: int) -> None:
    """Set what is shown of how things stand."""
    metrics.set("berth_reservations", len(cache.assumed_pods))
    metrics.set("berth_bindings_in_flight", on_wire)
    metrics.set("scheduler_cache_size", cache.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", cache.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(cache.assumed_pods), type="assumed_pods")


def clear(metrics: Meter) -> None:
    """Take it back: somebody else leads, or nobody."""
    for name in GAUGES:
        metrics.clear(name)


log = get_logger()


NATS_AGAIN_SECONDS: Final = 0.2
"""Before a publish that got no answer is repeated; its id makes it harmless."""


class Publishing:
    """On one connection: when that is lost the leadership ends, and the message comes again."""

    def __init__(self, session: Session, metrics: Meter) -> None:
        self._session = session
        self._metrics = metrics

    async def decide(self, publish: Publish) -> None:
        """Publish a Decision; before it the dead letter of a message that failed for good.

        Raises:
            BusLostError, MissingError: there is nowhere to publish to any more.
        """
        said, delivery = publish.decision, publish.held.delivery
        if publish.bury:
            await self._bury(delivery, said.message, said.attempt, cause="failed")
        await _until_stored(lambda: self._publish(said, delivery))
        count_decision(self._metrics, said)

    async def put_aside(self, delivery: Delivery, reason: str) -> None:
        """Bury a message that cannot be decoded, then acknowledge it.

        Raises:
            BusLostError, MissingError: there is nowhere to publish to any more.
        """
        log.warning("put a message aside", subject=delivery.subject, reason=reason)
        await self._bury(delivery, reason, cause="undecodable")
        delivery.ack()

    async def _bury(self, delivery: Delivery, reason: str, attempt: str = "", *, cause: str) -> None:
        self._metrics.count("berth_dead_letters_total", cause=cause)
        payload = delivery.data.decode(errors="replace")
        letter = DeadLetter(subject=delivery.subject, reason=reason, service="binder", attempt=attempt, payload=payload)
        await _until_stored(lambda: publish_dead_letter(self._session, letter))

    async def _publish(self, said: Decision, delivery: Delivery) -> None:
        timed = msgspec.structs.replace(said, ranked_at=delivery.time)
        try:
            await publish_decision(self._session, timed, headers=delivery.headers)
        except TooLargeError:
            await publish_decision(self._session, _shortened(timed), headers=delivery.headers)


async def _until_stored(publish: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await publish()
        except (BusLostError, MissingError):
            raise
        except TemporaryError as error:
            log.warning("publishing again", reason=str(error))
            await asyncio.sleep(NATS_AGAIN_SECONDS)
        else:
            return


def _shortened(said: Decision) -> Decision:
    """Without what explains it: that a pod is bound must be said however long the explanation is."""
    return msgspec.structs.replace(said, candidates=[], rejections=[], message=said.message[:1024])
