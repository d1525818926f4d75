"""What the binder publishes, Decisions and dead letters: each until its stream has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from berth.api.errors import TemporaryError
from berth.api.messages import DeadLetter, Decision
from berth.bus.port import BusLostError, Delivery, MissingError, Session, TooLargeError
from berth.bus.stages import bury, publish_decision
from berth.service.logging import get_logger
from berth.service.meter import Meter
from binder.counting import count_decision
from binder.effects import Publish

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
        await _until_stored(lambda: bury(self._session, letter))

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
