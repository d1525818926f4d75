"""PENDING messages that the scorer holds: in the order in which they may be ranked, then until RANKED is stored."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from berth.api.trimming import WHOLE
from berth.bus.interface import BusLostError, Delivery, PubAck, Session, UnansweredError
from berth.bus.stages import StagedMessage, publish_dead_letter, ranked_message
from berth.bus.topology import RANKED
from berth.errors import BerthError, PermanentError
from berth.messages.attempts import DeadLetter, Pending, Positions, Ranked
from berth.observability.logging import get_logger, verbose
from berth.observability.metrics import Meter
from berth.observability.traceparent import trace_id_of
from berth.settings.settings import V_STEP

SUSPECT_DELIVERIES: Final = 4
"""From this delivery on, a message may be the one that ends scorers. It is ranked alone (docs/protocol.md, 6)."""

MOST_WAIT_SECONDS: Final = 30.0
"""For the positions of a message, however the view moves. The largest mirror is read in less. Positions that no reader
ever reaches are those of a store that has lost its last writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """A PENDING message and its delivery. ``taken_at`` in monotonic seconds.

    Namespaces take turns among messages of one ``rank`` that came one after the other.
    """

    delivery: Delivery
    pending: Pending
    taken_at: float
    rank: Hashable = None

    @property
    def suspect(self) -> bool:
        """Whether it was delivered so often that ranking it may be what ends scorers."""
        return self.delivery.delivered >= SUSPECT_DELIVERIES


class Turns:
    """Messages by arrival. Among those of one rank that came one after the other, one of each namespace is next.

    So a pod of another namespace waits for one pod of each, and not for all that the scorer holds of a namespace with
    thousands (docs/adr/0020). A message never passes one of another rank: the watcher has brought those in order.
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[Hashable, OrderedDict[str, deque[PendingDelivery]]]] = deque()
        """Rank, and its messages by namespace; the namespace whose turn it is comes first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, item: PendingDelivery) -> None:
        if not self._rows or self._rows[-1][0] != item.rank:
            self._rows.append((item.rank, OrderedDict()))
        self._rows[-1][1].setdefault(item.pending.pod.metadata.namespace, deque()).append(item)
        self._count += 1

    def popleft(self) -> PendingDelivery:
        _, row = self._rows[0]
        namespace, items = next(iter(row.items()))
        item = items.popleft()
        if items:
            row.move_to_end(namespace)
        else:
            del row[namespace]
        if not row:
            self._rows.popleft()
        self._count -= 1
        return item


class Backlog:
    """Orders messages: first those whose positions the view has reached, in turns of namespaces.

    A message waits for its positions as long as the view moves towards them, and ``position_wait`` longer: a large
    mirror is read to its end first, and a source that stands still holds no pod up. It waits for ``MOST_WAIT_SECONDS``
    at most. ``now`` is in monotonic seconds.
    """

    def __init__(self, *, position_wait: timedelta) -> None:
        self._position_wait = position_wait.total_seconds()
        self._ready = Turns()
        self._waiting: deque[PendingDelivery] = deque()
        self._positions = Positions()
        self._advanced_at: dict[str, float] = {}
        """When the view was last seen to have read more of each source."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._waiting)

    def add(self, item: PendingDelivery, positions: Positions) -> None:
        """Add a message, with the view at these positions."""
        if positions.covers(item.pending.after):
            self._ready.append(item)
        else:
            self._follow(positions, item.taken_at)
            self._waiting.append(item)

    def pop(self, positions: Positions, now: float) -> PendingDelivery | None:
        """Remove and return the next message to rank; ``None`` when none is due."""
        self._promote(positions, now)
        return self._ready.popleft() if self._ready else None

    def due_in(self, now: float) -> float | None:
        """Seconds until the first waiting message is ranked on an older view; ``None`` when none waits."""
        return min((max(0.0, self._due(item) - now) for item in self._waiting), default=None)

    def clear(self) -> list[PendingDelivery]:
        everything = [*(self._ready.popleft() for _ in range(len(self._ready))), *self._waiting]
        self._waiting.clear()
        return everything

    def _promote(self, positions: Positions, now: float) -> None:
        if not self._waiting:
            return
        self._follow(positions, now)
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            due = positions.covers(item.pending.after) or self._due(item) <= now
            (self._ready if due else self._waiting).append(item)

    def _follow(self, positions: Positions, now: float) -> None:
        for source in Positions.__struct_fields__:
            if getattr(positions, source) > getattr(self._positions, source):
                self._advanced_at[source] = now
        self._positions = positions

    def _due(self, item: PendingDelivery) -> float:
        """When it is ranked on a view that has not reached its positions."""
        wanted = item.pending.after
        lacking = (
            self._advanced_at.get(source, item.taken_at)
            for source in Positions.__struct_fields__
            if getattr(wanted, source) > getattr(self._positions, source)
        )
        return min(max((item.taken_at, *lacking)) + self._position_wait, item.taken_at + MOST_WAIT_SECONDS)


log = get_logger()

RETRY_DELAY: Final = timedelta(seconds=2)
"""When a message is redelivered whose answer could not be stored."""
PAYLOAD_QUOTED: Final = 4096
"""Bytes of a message that its dead letter quotes."""


WHOLE_POD: Final = f',"{WHOLE}":'.encode()
"""Where the whole pod begins in a message, which only extenders read: it may have passwords in its environment."""


class Outbox:
    """Publishes in the background, so that the next pod is ranked while the stream stores the last one's answer."""

    def __init__(self, session: Session, metrics: Meter) -> None:
        self._session = session
        self._metrics = metrics
        self._held: dict[int, Delivery] = {}
        """By sequence, the newest delivery of each message that is not settled: the one to settle."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishing = 0
        self._ended = asyncio.Event()
        self.sent: Final = SentRankings()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, delivery: Delivery) -> bool:
        """Send ``in_progress`` for a message from here on; ``False`` when it is held already: it is ranked once."""
        older = self._held.get(delivery.sequence)
        self._held[delivery.sequence] = delivery
        if older is not None:
            older.set_aside()
        return older is None

    def release(self, delivery: Delivery, delay: timedelta | None = None) -> None:
        """Return a message unanswered: another scorer gets it, at once or after the delay."""
        self._take_newest(delivery).nak(delay)

    def send_in_progress(self) -> None:
        """Send ``in_progress`` for every message held."""
        for delivery in self._held.values():
            delivery.in_progress()

    def send(self, item: PendingDelivery, message: Ranked, headers: Mapping[str, str]) -> None:
        """Publish an answer. PENDING is acknowledged only when the stream has it (a duplicate counts too)."""
        self._publish(item, message, headers, _log_failure)

    async def publish(self, item: PendingDelivery, message: Ranked, headers: Mapping[str, str]) -> None:
        """The same, and wait for its end.

        Raises:
            TemporaryError: it is not stored, as far as is known, and PENDING is redelivered.
        """
        ended: asyncio.Future[BerthError | None] = asyncio.get_running_loop().create_future()

        def on_end(error: BerthError | None) -> None:
            if not ended.done():  # whoever waits for it may have been cancelled
                ended.set_result(error)

        self._publish(item, message, headers, on_end)
        if (error := await ended) is not None:
            raise error

    def send_dead_letter(self, delivery: Delivery, reason: str, attempt: str = "") -> None:
        """Publish a dead letter about a pod that cannot be ranked, in the background."""
        self._metrics.count("berth_dead_letters_total", cause="failed")
        self._start(publish_dead_letter(self._session, dead_letter(delivery, reason, attempt)))

    async def reject(self, delivery: Delivery, reason: str) -> None:
        """A message that cannot be decoded: its dead letter is stored, then it is acknowledged."""
        self._metrics.count("berth_dead_letters_total", cause="undecodable")
        await publish_dead_letter(self._session, dead_letter(delivery, reason))
        self._take_newest(delivery).ack()

    def _take_newest(self, delivery: Delivery) -> Delivery:
        """The newest delivery of its message, which is not held any more."""
        return self._held.pop(delivery.sequence, delivery)

    def _publish(self, item: PendingDelivery, message: Ranked, headers: Mapping[str, str], on_end: OnEnd) -> None:
        timed = msgspec.structs.replace(message, asked_at=item.delivery.time)
        try:
            staged = ranked_message(self._session, timed, headers)
        except PermanentError as error:
            self._start(self._give_up(item, str(error), on_end))
            return
        self.sent.add(staged.subject, staged.data)
        self._publishing += 1
        staged.publish_soon(self._session, partial(self._on_answer, _Answered(item, message, headers, staged), on_end))

    def _on_answer(self, answered: _Answered, on_end: OnEnd, answer: PubAck | BerthError) -> None:
        item = answered.item
        if isinstance(answer, PermanentError):
            self._start(self._give_up(item, str(answer), on_end))
        else:
            newest = self._take_newest(item.delivery)
            if isinstance(answer, PubAck):
                newest.ack()
                self._on_stored(answered, answer)
            else:
                if not isinstance(answer, UnansweredError | BusLostError):
                    self.sent.forget(answered.staged.subject)
                newest.nak(RETRY_DELAY)
            on_end(None if isinstance(answer, PubAck) else answer)
        self._publishing -= 1
        self._ended.set()

    def _on_stored(self, answered: _Answered, ack: PubAck) -> None:
        self._metrics.count("berth_messages_published_total", stream=RANKED)
        if verbose(V_STEP):
            log_ranking(answered.message, answered.headers)
        if ack.duplicate:
            self.sent.forget(answered.staged.subject)

    async def _give_up(self, item: PendingDelivery, reason: str, on_end: OnEnd) -> None:
        """The bus will never store the answer. If it does not store the dead letter either, the message comes again."""
        try:
            await self.reject(item.delivery, reason)
        except BerthError as error:
            self.release(item.delivery, RETRY_DELAY)
            on_end(error)
        else:
            on_end(None)
        finally:
            self._held.pop(item.delivery.sequence, None)

    async def wait_empty(self, *, within: timedelta | None = None) -> None:
        """Wait until everything is published."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if within is None else within.total_seconds()):
                while self._publishing or self._tasks:
                    self._ended.clear()
                    await self._ended.wait()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended.set()
        _log_failure(None if task.cancelled() else task.exception())


OnEnd = Callable[[BerthError | None], None]
"""Called once, when an answer is stored, or with why it is not."""


class _Answered(NamedTuple):
    """An answer that is being published."""

    item: PendingDelivery
    message: Ranked
    headers: Mapping[str, str]
    staged: StagedMessage


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        log.warning("publishing failed, the message is redelivered", reason=str(error))


def log_ranking(message: Ranked, headers: Mapping[str, str]) -> None:
    """One line about a ranking that is stored."""
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
    """What this scorer has published to RANKED and not read back yet.

    Its proposals count from the ranking on, so a copy of what it has sent itself is left out undecoded: that saves an
    eighth of a scorer's time when it is alone.
    """

    MOST: Final = 1024
    """More than are on their way at once. A copy can be lost; the oldest is forgotten then."""

    def __init__(self) -> None:
        self._by_subject: dict[str, bytes] = {}

    def add(self, subject: str, data: bytes) -> None:
        """It is being published."""
        self._by_subject.pop(subject, None)
        self._by_subject[subject] = data
        if len(self._by_subject) > self.MOST:
            del self._by_subject[next(iter(self._by_subject))]

    def forget(self, subject: str) -> None:
        """The stream has not stored it, so no copy of what was sent comes."""
        self._by_subject.pop(subject, None)

    def has(self, subject: str, data: bytes) -> bool:
        """Whether these very bytes were sent; true once only.

        Others are another scorer's, of this attempt or another one: what was sent is not waited for any more then.
        """
        return self._by_subject.pop(subject, None) == data


def dead_letter(delivery: Delivery, reason: str, attempt: str = "") -> DeadLetter:
    """A dead letter that quotes the message."""
    payload = delivery.data.partition(WHOLE_POD)[0][:PAYLOAD_QUOTED].decode(errors="replace")
    return DeadLetter(subject=delivery.subject, reason=reason, service="scorer", attempt=attempt, payload=payload)
