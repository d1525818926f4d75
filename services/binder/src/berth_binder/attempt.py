"""Attempts to bind a pod: the queue of RANKED messages, the state, pauses and end of an attempt, and suspects.

An attempt begins with its first RANKED message and ends with the PubAck of its Decision. There is one per uid: messages
of later attempts of the same uid join it. Its results are a node, an eviction plan, or a verdict that ends it. Every
pause has an end on the clock, so that nothing waits for an event that may never come. Pure, the clock handed in.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from berth.api.decoding import version_number
from berth.api.messages import Candidate, Decision, Outcome, Preemption, Reason, Rejection
from berth.api.pod import Pod, changed, is_gated, is_gone_while_unbound
from berth.api.subjects import Term
from berth.framework.status import Status
from berth.kube.clock import Backoff
from berth_binder.events import RankedDelivery, RequestAnswer
from berth_binder.pluginsteps import PluginSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of an attempt and what explains it; a Decision is built from it."""

    outcome: Outcome
    node: str = ""
    reason: str = ""
    """In one word."""
    message: str = ""
    """For users."""
    rejections: tuple[Rejection, ...] = ()
    """They replace the scorer's: on a conflict the binder has rejected the nodes."""
    blockers: tuple[str, ...] = ()
    """The plugins that rejected the pod; they replace the scorer's."""
    preemption: Preemption | None = None
    """The pods evicted for this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A node for the pod. ``pod`` is its newest known state: its resourceVersion goes into the Binding.

    ``candidates`` are those of RANKED that explain the choice, with the newcomers that the binder counted.
    """

    pod: Pod
    node: str
    candidates: list[Candidate]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """The victims to evict from the node so that the pod fits there."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]
    demoted: tuple[Pod, ...]
    """Less important pods for which the node is nominated; they lose the nomination."""
    preemption: Preemption


class RecheckError(Exception):
    """A plugin could not answer: a failure of the pod or a bug, never a rejection of the node."""


GONE = Verdict(outcome=Outcome.GONE)

CHANGED = Verdict(
    outcome=Outcome.CONFLICT, reason=Reason.CHANGED, message="the pod has changed since it was ranked, or was gated"
)


def bound(node: str) -> Verdict:
    """The API shows the pod on the node, or has answered 201."""
    return Verdict(outcome=Outcome.BOUND, node=node)


def bound_or_gone(node: str, candidates: frozenset[str]) -> Verdict:
    """The API shows the pod on a node: bound on one of the candidates, otherwise bound by another client."""
    if node in candidates:
        return bound(node)
    return Verdict(outcome=Outcome.GONE, node=node, message=f"the pod was bound to {node} by another client")


def failed(message: str, reason: str = "") -> Verdict:
    """The attempt cannot succeed; the message is shown to users."""
    return Verdict(outcome=Outcome.ERROR, message=message, reason=reason)


def refused(request: str, answer: RequestAnswer) -> Verdict:
    """The API server has refused a request for good."""
    reason = answer.missing_right or answer.message or "no reason given"
    return failed(f"{request} rejected by the API server: {answer.status}: {reason}", reason=str(answer.status))


def rejected(node: str, status: Status) -> Verdict:
    """A plugin of Reserve, Permit or PreBind rejects the pod on the node."""
    reasons = ", ".join(status.reasons)
    rejection = Rejection(plugin=status.plugin, reason=reasons, nodes=1, examples=[node])
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=reasons, rejections=(rejection,), blockers=(status.plugin,))


def waiting(node: str, message: str) -> Verdict:
    """Not decided yet: the pod stays assumed on the node."""
    return Verdict(outcome=Outcome.WAITING, node=node, message=message)


def verdict_on(pod: Pod, ranked: Pod, node: str) -> Verdict | None:
    """The verdict on an attempt for the node, given the pod as the API shows it now; ``None``: try again."""
    if pod.uid != ranked.uid:
        return GONE
    if pod.spec.node_name:
        return bound_or_gone(pod.spec.node_name, frozenset({node}))
    if is_gone_while_unbound(pod):
        return GONE
    return CHANGED if changed(ranked, pod) or is_gated(pod) else None


class AttemptPhase(Enum):
    """What an attempt waits for."""

    POSTING = "the answer to a Binding"
    READING = "the answer to the reading of the pod"
    VOIDING = "the answer to the write that makes its Bindings void"
    EVICTING = "the answers to the evictions for it"
    WRITING = "the answers to what is written before the Binding"
    PAUSED = "the end of a back-off"
    COUNTING = "the count of how often it was begun"
    DECIDING = "the PubAck of its Decision"


@dataclass(slots=True, kw_only=True, eq=False)
class BindingAttempt:
    """The state of one uid. Only the core changes it."""

    latest: RankedDelivery
    """The message of the highest attempt."""
    deliveries: list[RankedDelivery]
    """All messages that are held for the pod."""
    phase: AttemptPhase
    pod: Pod
    """The newest known state; its resourceVersion is the Binding's precondition."""
    node: str = ""
    """Where the pod is assumed; empty as long as no node was chosen."""
    candidates: list[Candidate] = field(default_factory=list)
    """The nodes among which it was chosen, with their newcomers; of the attempt that was the latest then."""
    eviction: EvictionPlan | None = None
    """What is being evicted for the pod."""
    steps: PluginSteps | None = None
    """The plugins' steps towards that node."""
    awaited_versions: Mapping[str, int] = field(default_factory=dict)
    """The resourceVersions, by kind, of what was written for the pod: the watches must have reached them."""
    is_posted: bool = False
    """Whether a Binding to that node has ever been sent."""
    posted_version: int = 0
    """The highest resourceVersion that a POST has named: once the pod's is higher, none of them can land any more."""
    lost_version: int = 0
    """The same of the POSTs without an answer: until the pod's version is higher, the node must be kept for it."""
    read: Pod | None = None
    """The pod as the API server has just shown it; ``None`` again after a pause."""
    has_waited_for_watch: bool = False
    """Whether it has had its wait for a watch that has not shown the pod yet."""
    undecided: tuple[Verdict, bool] | None = None
    """A verdict, and whether with a dead letter, that must wait until no POST of the pod can land any more."""
    failures: int = 0
    """Requests for this pod that were not answered or have to be repeated: each makes the next pause longer."""
    conflicts: int = 0
    """409 answers since the last pause."""
    exceptions: int = 0
    """Exceptions in the binder."""
    is_counted: bool = False
    """Whether the bus has stored that it is begun. Of suspects only."""
    due: float = 0.0
    """When the pause ends, on the caller's clock."""
    has_paused: bool = False
    """Whether it was ever paused: its messages do not count among those that may be held."""
    is_waiting: bool = False
    """Whether ``waiting`` was published."""
    waits_for: str = ""
    """What it waits for, as text for users."""
    repeats: int = 0
    """How often ``waiting`` was published for the latest attempt."""
    decision: Decision | None = None
    """The final one, while its PubAck is awaited."""
    decided: RankedDelivery | None = None
    """The message that it decides: one of a later attempt may join meanwhile."""

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def is_suspect(self) -> bool:
        """Whether a former binder may have ended while it bound this pod."""
        return self.deliveries[0].is_suspect

    @property
    def sequence(self) -> int:
        """The pod's place in the order of POSTs: that of its first message."""
        return self.deliveries[0].sequence

    def join(self, delivery: RankedDelivery) -> bool:
        """Hold one more message for the pod; returns whether it is of a later attempt, which is decided instead."""
        self.deliveries.append(delivery)
        if delivery.attempt.order <= self.latest.attempt.order:
            return False
        self.latest = delivery
        self.repeats = 0
        return True

    def decided_deliveries(self) -> list[RankedDelivery]:
        """The messages that the Decision settles: of its attempt, and of earlier ones that were stored before it."""
        decided = self.decided
        return [] if decided is None else [delivery for delivery in self.deliveries if settles(decided, delivery)]

    def undecided_deliveries(self) -> list[RankedDelivery]:
        """The other messages: of a later attempt, or stored later (see ``settles``)."""
        decided = self.decided_deliveries()
        return [delivery for delivery in self.deliveries if delivery not in decided]

    def posted(self) -> None:
        """A Binding with the present resourceVersion is sent."""
        self.phase = AttemptPhase.POSTING
        self.is_posted = True
        self.posted_version = max(self.posted_version, version_number(self.pod.metadata.resource_version))

    def lost_answer(self) -> None:
        """The last POST has no answer: it may still land."""
        self.lost_version = self.posted_version

    @property
    def may_still_land(self) -> bool:
        """Whether a POST without an answer may still land."""
        return 0 < self.lost_version >= version_number(self.pod.metadata.resource_version)


class RankedQueue:
    """Messages in stream order: a redelivered one takes its old place; of one sequence the first to arrive is first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, RankedDelivery]] = []
        self._arrivals = count()

    def push(self, delivery: RankedDelivery) -> None:
        heapq.heappush(self._heap, (delivery.sequence, next(self._arrivals), delivery))

    def pop(self) -> RankedDelivery:
        """Remove and return the first message. Raises IndexError when there is none."""
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[RankedDelivery]:
        return (delivery for _, _, delivery in self._heap)


def settles(decided: RankedDelivery, delivery: RankedDelivery) -> bool:
    """Whether the final Decision on one message leaves nothing to decide on another of the same uid.

    A lower number alone does not say that a message is older: a scorer can write any number within a real term, and all
    of the pod's own attempts would be below it. What is stored later was published later, so it is examined. Terms are
    the watcher's: one above the last is refused before.
    """
    mine, other = decided.attempt, delivery.attempt
    if other.term != mine.term:
        return other.term < mine.term
    return other.n == mine.n or (other.n < mine.n and delivery.sequence < decided.sequence)


@dataclass(slots=True, kw_only=True)
class _Decided:
    """What is remembered of a uid's final Decisions in its last term."""

    term: Term
    last: int
    """The number of the attempt that was decided last."""
    highest: int
    """The highest number of a decided attempt."""
    sequence: int
    """The highest sequence of a decided message."""


class DecidedAttempts:
    """What has a final Decision, so that a redelivery is only acknowledged. Bounded.

    A redelivery comes within ack_wait (30 s): the default holds more than that at a thousand pods a second. One that
    comes later is examined again, and gets the same outcome (bound, gone) from what the API shows.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._by_uid: OrderedDict[str, _Decided] = OrderedDict()

    def add(self, delivery: RankedDelivery) -> None:
        """The message has its final Decision."""
        attempt, sequence = delivery.attempt, delivery.sequence
        known = self._by_uid.pop(attempt.uid, None)
        if known is None or known.term < attempt.term:
            known = _Decided(term=attempt.term, last=attempt.n, highest=attempt.n, sequence=sequence)
        elif known.term == attempt.term:
            known.last = attempt.n
            known.highest, known.sequence = max(known.highest, attempt.n), max(known.sequence, sequence)
        self._by_uid[attempt.uid] = known
        if len(self._by_uid) > self._limit:
            self._by_uid.popitem(last=False)

    def covers(self, delivery: RankedDelivery) -> bool:
        """Whether a Decision has settled the message; as in ``settles``."""
        attempt = delivery.attempt
        known = self._by_uid.get(attempt.uid)
        if known is None or attempt.term != known.term:
            return known is not None and attempt.term < known.term
        return attempt.n == known.last or (attempt.n <= known.highest and delivery.sequence <= known.sequence)

    def __len__(self) -> int:
        return len(self._by_uid)


class Deadlines:
    """Attempts by the time at which something is due for each. The first is found at once, also among thousands."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, int, BindingAttempt]] = {}
        self._heap: list[tuple[float, int, BindingAttempt]] = []
        self._arrivals = count()

    def set(self, attempt: BindingAttempt, time: float) -> None:
        """Set the time of an attempt; a former one of its uid no longer counts."""
        entry = (time, next(self._arrivals), attempt)
        self._entries[attempt.uid] = entry
        heapq.heappush(self._heap, entry)

    def remove(self, uid: str) -> None:
        self._entries.pop(uid, None)

    def first(self) -> float | None:
        """The earliest time; ``None`` when nothing is due."""
        while self._heap and self._entries.get(self._heap[0][2].uid) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> BindingAttempt | None:
        """Remove and return an attempt whose time has come, the earliest first."""
        first = self.first()
        if first is None or first > now:
            return None
        attempt = heapq.heappop(self._heap)[2]
        del self._entries[attempt.uid]
        return attempt

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class PausedAttempts:
    """Attempts that are paused. Of those whose pause is over, the first in the stream goes on first."""

    def __init__(self) -> None:
        self._pauses = Deadlines()
        self._over: list[tuple[int, int, BindingAttempt]] = []
        self._arrivals = count()

    def add(self, attempt: BindingAttempt) -> None:
        """Pause the attempt until its ``due``."""
        self._pauses.set(attempt, attempt.due)

    def end_pauses(self, now: float) -> None:
        """Note whose pause is over."""
        while (attempt := self._pauses.pop(now)) is not None:
            heapq.heappush(self._over, (attempt.sequence, next(self._arrivals), attempt))

    @property
    def any_over(self) -> bool:
        """Whether the pause of an attempt is over that has not gone on yet."""
        return bool(self._over)

    def pop(self) -> BindingAttempt:
        """Remove and return the first whose pause is over. Raises IndexError when there is none."""
        return heapq.heappop(self._over)[2]

    def first(self) -> float | None:
        """When the next pause ends, of those that are not over."""
        return self._pauses.first()

    def __len__(self) -> int:
        return len(self._pauses) + len(self._over)


class ApiSilence:
    """Whether the API server answers. While it does not, messages are examined one at a time, after a back-off each.

    The back-off is a time and never a wait for an answer: what is paused may settle without any request, and then no
    answer would come.
    """

    def __init__(self, limit: int, backoff: Backoff) -> None:
        """``limit``: so many requests in a row left open are a silence."""
        self._limit = limit
        self._backoff = backoff
        self._open_in_a_row = 0
        self._probes = 0
        self._next_probe = 0.0

    @property
    def is_silent(self) -> bool:
        return self._open_in_a_row >= self._limit

    def answered(self, now: float, *, is_open: bool) -> None:
        """A request was answered, or left open."""
        if not is_open:
            self._open_in_a_row = self._probes = 0
            return
        self._open_in_a_row += 1
        if self._open_in_a_row == self._limit:
            self.probed(now)

    def probed(self, now: float) -> None:
        """A message that was examined during the silence has led to a request."""
        self._probes += 1
        self._next_probe = now + self._backoff.after(self._probes)

    @property
    def may_examine_from(self) -> float:
        """The time from which on a message may be examined; in the past while the API server answers."""
        return self._next_probe if self.is_silent else 0.0


class Suspects:
    """Pods that a former binder left when it ended: one of them may be what ended it (docs/protocol.md, 6).

    Each is counted before it goes on. One that was counted before goes on alone, so that the next end is its own.
    """

    def __init__(self) -> None:
        self._counting: str | None = None
        self._next_alone: BindingAttempt | None = None
        self._alone: str | None = None

    @property
    def hold_up_others(self) -> bool:
        """Whether nothing else may be started now."""
        return self._counting is not None or self._next_alone is not None or self._alone is not None

    def count(self, uid: str) -> None:
        """The pod's count is being stored."""
        self._counting = uid

    def counted(self, uid: str) -> bool:
        """The count is stored. Returns whether that was awaited."""
        awaited = self._counting == uid
        if awaited:
            self._counting = None
        return awaited

    def put_off(self, attempt: BindingAttempt) -> None:
        """The attempt goes on when nothing else is under way."""
        self._next_alone = attempt

    def take_alone(self) -> BindingAttempt | None:
        """Remove and return the attempt that was put off: nothing else is under way. It is alone until it ``ended``."""
        attempt, self._next_alone = self._next_alone, None
        self._alone = attempt.uid if attempt is not None else self._alone
        return attempt

    def ended(self, uid: str) -> None:
        """The pod is decided, or pauses."""
        if self._alone == uid:
            self._alone = None
