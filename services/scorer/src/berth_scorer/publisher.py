"""Publishes the scorer's answers, and dead letters about PENDING messages without an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from berth.api.trimming import WHOLE
from berth.bus.interface import BusLostError, Delivery, PubAck, Session, UnansweredError
from berth.bus.stages import StagedMessage, publish_dead_letter, ranked_message
from berth.bus.topology import RANKED
from berth.errors import BerthError, PermanentError
from berth.messages.attempts import DeadLetter, Ranked
from berth.messages.subjects import trace_id_of
from berth.observability.logging import get_logger, verbose
from berth.observability.metrics import Meter
from berth.settings.settings import V_STEP
from berth_scorer.events import Event, PublishRanked, RankedNotStored, RankedRefused, RankedStored

log = get_logger()

PAYLOAD_QUOTED: Final = 4096  # bytes of a message in its dead letter
# Start of the whole pod in a message. Only extenders read it; its environment may contain passwords.
WHOLE_POD: Final = f',"{WHOLE}":'.encode()


class RankingPublisher:
    """Publishes on one session, without a task per answer; the outcome is an event."""

    def __init__(self, session: Session, metrics: Meter, put: Callable[[Event], None]) -> None:
        self._session = session
        self._metrics = metrics
        self._put = put
        self.sent: Final = SentRankings()

    def publish_soon(self, effect: PublishRanked) -> None:
        try:
            staged = ranked_message(self._session, effect.message, effect.headers)
        except PermanentError as error:
            self._put(RankedRefused(sequence=effect.held.sequence, reason=str(error)))
            return
        self.sent.add(staged.subject, staged.data)
        staged.publish_soon(self._session, partial(self._on_answer, effect, staged))

    async def publish_dead_letter(self, delivery: Delivery, reason: str, attempt: str, *, cause: str) -> None:
        """Publish a dead letter that quotes the message. Raises as :meth:`Session.publish`."""
        self._metrics.count("berth_dead_letters_total", cause=cause)
        await publish_dead_letter(self._session, dead_letter(delivery, reason, attempt))

    def _on_answer(self, effect: PublishRanked, staged: StagedMessage, answer: PubAck | BerthError) -> None:
        sequence = effect.held.sequence
        if isinstance(answer, PubAck):
            self._metrics.count("berth_messages_published_total", stream=RANKED)
            if verbose(V_STEP):
                log_ranking(effect.message, effect.headers)
            if answer.duplicate:
                self.sent.forget(staged.subject)
            self._put(RankedStored(sequence=sequence))
        elif isinstance(answer, PermanentError):
            self._put(RankedRefused(sequence=sequence, reason=str(answer)))
        else:
            log.warning("publishing failed, the message is redelivered", reason=str(answer))
            if not isinstance(answer, UnansweredError | BusLostError):
                self.sent.forget(staged.subject)
            self._put(RankedNotStored(sequence=sequence))


def log_ranking(message: Ranked, headers: Mapping[str, str]) -> None:
    log.info(
        "pod ranked",
        pod=message.pod.key,
        uid=message.pod.uid,
        attempt=message.attempt,
        trace_id=trace_id_of(headers),
        node=message.candidates[0].node if message.candidates else "",
        evaluated=message.evaluated,
        feasible=message.feasible,
        reason=message.error or message.message,
    )


class SentRankings:
    """This scorer's rankings on their way through RANKED.

    Their proposals count since the ranking, so their copies are skipped undecoded, which saves an eighth of a single
    scorer's time.
    """

    # More than are on their way at once. Beyond it the oldest is forgotten, because its copy may be lost.
    MOST: Final = 1024

    def __init__(self) -> None:
        self._by_subject: dict[str, bytes] = {}

    def add(self, subject: str, data: bytes) -> None:
        self._by_subject.pop(subject, None)
        self._by_subject[subject] = data
        if len(self._by_subject) > self.MOST:
            del self._by_subject[next(iter(self._by_subject))]

    def forget(self, subject: str) -> None:
        self._by_subject.pop(subject, None)

    def has(self, subject: str, data: bytes) -> bool:
        """Whether exactly these bytes were sent; true once.

        Other bytes come from another scorer, and end the wait for this scorer's own.
        """
        return self._by_subject.pop(subject, None) == data


def dead_letter(delivery: Delivery, reason: str, attempt: str = "") -> DeadLetter:
    payload = delivery.data.partition(WHOLE_POD)[0][:PAYLOAD_QUOTED].decode(errors="replace")
    return DeadLetter(subject=delivery.subject, reason=reason, service="scorer", attempt=attempt, payload=payload)
