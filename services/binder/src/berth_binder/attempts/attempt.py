"""An attempt to bind a pod, from its first RANKED message to the PubAck of its Decision, and what is decided.

There is one per uid: messages of later attempts of the same uid join it. Pure, the clock handed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from berth.api.pod import Pod
from berth.decoding import version_number
from berth.messages.attempts import Candidate, Decision
from berth.messages.subjects import Term
from berth_binder.attempts.pluginsteps import PluginSteps
from berth_binder.decisions.verdict import EvictionPlan, Placement, Verdict
from berth_binder.events import (
    GetPod,
    PostBinding,
    RankedDelivery,
    SetAside,
    VoidBindings,
    WriteVolumes,
)

MOST_HELD: Final = 8
"""Messages that are held for one pod. A pod may wait for its volume for hours, and messages for it may come as quickly
as its owner changes it, or as a scorer likes to write them."""


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
    """The state of one uid. The core changes it, and ``BindingQueue`` what says when it goes on."""

    latest: RankedDelivery
    """The message of the highest attempt."""
    deliveries: list[RankedDelivery]
    """The messages that are held for the pod, in the order in which they came: ``MOST_HELD`` at most."""
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

    def take_surplus(self) -> RankedDelivery | None:
        """Stop holding one message where there are too many, and return it.

        The first stays, which is the pod's place; the latest and the one that is being decided; and the newest in the
        stream. That one is not always the latest, as a scorer can write any number, and as long as it is there the pod
        is: a next leader fences the pod and examines it, and a watcher publishes no further attempt. Of the others the
        oldest goes: whatever is decided, the watcher has asked again since.
        """
        if len(self.deliveries) <= MOST_HELD:
            return None
        newest = max(self.deliveries, key=_sequence)
        kept = (self.deliveries[0], self.latest, self.decided, newest)
        surplus = min((each for each in self.deliveries if each not in kept), key=_sequence)
        self.deliveries.remove(surplus)
        return surplus

    def holds(self, sequence: int) -> bool:
        """Whether the message of this place in the stream is held."""
        return any(each.sequence == sequence for each in self.deliveries)

    def decided_deliveries(self) -> list[RankedDelivery]:
        """The messages that the Decision settles: of its attempt, and of earlier ones that were stored before it."""
        decided = self.decided
        return [] if decided is None else [delivery for delivery in self.deliveries if settles(decided, delivery)]

    def undecided_deliveries(self) -> list[RankedDelivery]:
        """The other messages: of a later attempt, or stored later (see ``settles``)."""
        decided = self.decided
        return [delivery for delivery in self.deliveries if decided is None or not settles(decided, delivery)]

    def take(self, placement: Placement) -> None:
        """Go to the node: nothing was written or posted for it yet."""
        self.pod, self.node, self.candidates = placement.pod, placement.node, placement.candidates
        self.is_posted, self.awaited_versions = False, {}

    def unreserve(self) -> None:
        """Undo what plugins have reserved on the node."""
        steps, self.steps = self.steps, None
        if steps is not None:
            steps.undo()

    # One request of a pod is under way at most; each of these begins one.

    def begin_posting(self, node: str, *, by_extender: bool = False) -> PostBinding:
        """Send a Binding with the present resourceVersion, or have an extender bind the pod."""
        self.phase = AttemptPhase.POSTING
        self.is_posted = True
        self.posted_version = max(self.posted_version, version_number(self.pod.metadata.resource_version))
        return PostBinding(pod=self.pod, node=node, by_extender=by_extender)

    def begin_reading(self) -> GetPod:
        self.phase = AttemptPhase.READING
        return GetPod(pod=self.pod)

    def begin_voiding(self) -> VoidBindings:
        """Make the pod's Bindings void before its node is free for others: one of them has no answer yet."""
        self.phase = AttemptPhase.VOIDING
        return VoidBindings(pod=self.pod)

    def begin_writing(self, steps: PluginSteps) -> WriteVolumes:
        self.phase = AttemptPhase.WRITING
        return WriteVolumes(pod=self.pod, requests=steps.unwritten)

    def begin_evicting(self, plan: EvictionPlan) -> None:
        self.pod, self.eviction, self.phase = plan.pod, plan, AttemptPhase.EVICTING

    def pause(self, due: float, waits_for: str) -> list[SetAside]:
        """Pause until then. From the first pause on, its messages do not count among those that may be held."""
        self.phase = AttemptPhase.PAUSED
        self.due, self.waits_for = due, waits_for
        if self.has_paused:
            return []
        self.has_paused = True
        return [SetAside(held=delivery) for delivery in self.deliveries]

    def decide(self, decision: Decision) -> None:
        """The Decision is being published: it settles the messages that are held by now."""
        self.phase = AttemptPhase.DECIDING
        self.decision, self.decided = decision, self.latest

    def lost_answer(self) -> None:
        """The last POST has no answer: it may still land."""
        self.lost_version = self.posted_version

    @property
    def may_still_land(self) -> bool:
        """Whether a POST without an answer may still land."""
        return 0 < self.lost_version >= version_number(self.pod.metadata.resource_version)


def _sequence(delivery: RankedDelivery) -> int:
    return delivery.sequence


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
    at: float
    """When the last Decision was stored, in monotonic seconds."""


class DecidedAttempts:
    """What has a final Decision, so that a redelivery is only acknowledged. Bounded in time and number.

    A redelivery comes within ack_wait (30 s), of which ``REMEMBERED_SECONDS`` is four; the limit holds more than that
    at 800 pods a second. One that comes later is examined again, and gets the same outcome (bound, gone) from what the
    API shows.
    """

    REMEMBERED_SECONDS: Final = 120.0

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._by_uid: OrderedDict[str, _Decided] = OrderedDict()

    def add(self, delivery: RankedDelivery, now: float) -> None:
        """The message has its final Decision."""
        self._forget_old(now)
        attempt, sequence = delivery.attempt, delivery.sequence
        known = self._by_uid.pop(attempt.uid, None)
        if known is None or known.term < attempt.term:
            known = _Decided(term=attempt.term, last=attempt.n, highest=attempt.n, sequence=sequence, at=now)
        elif known.term == attempt.term:
            known.last = attempt.n
            known.highest, known.sequence = max(known.highest, attempt.n), max(known.sequence, sequence)
        known.at = now
        self._by_uid[attempt.uid] = known
        if len(self._by_uid) > self._limit:
            self._by_uid.popitem(last=False)

    def _forget_old(self, now: float) -> None:
        while self._by_uid and next(iter(self._by_uid.values())).at < now - self.REMEMBERED_SECONDS:
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
