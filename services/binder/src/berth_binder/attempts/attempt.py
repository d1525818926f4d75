"""An attempt to bind a pod, from its first RANKED message to the PubAck of its Decision, and the decided attempts.

A pod has one attempt: messages of later attempts of the same uid join it. Once a node is chosen, the attempt takes its
steps through the plugins: Reserve, Permit, PreBind, Bind, PostBind; Unreserve after a failure. Pure: the clock is
injected, and ``PodBinding`` makes the requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from berth.api.devices import Allocations
from berth.api.pod import Pod, changed
from berth.cluster.snapshot import Snapshot
from berth.decoding import version_number
from berth.framework.interface import (
    SNAPSHOT,
    Binding,
    Permission,
    Plugin,
    PreBindPlugin,
    ReleaseClaim,
    Write,
)
from berth.framework.plugincalls import PluginFailure, call, error_of, with_plugin_name
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Code, CycleState, Status
from berth.messages.attempts import Candidate, Decision
from berth.messages.subjects import Term
from berth_binder.decisions.verdict import (
    EvictionPlan,
    EvictionQuestion,
    Freeing,
    NodeQuestion,
    Placement,
    Verdict,
)
from berth_binder.events import (
    AskAboutEvictions,
    AskAboutNodes,
    EvictionsAnswered,
    GetPod,
    Held,
    NodesAnswered,
    Nominate,
    PostBinding,
    RankedDelivery,
    RehearseBinding,
    ReleaseClaims,
    SetAside,
    VoidBindings,
    WriteObjects,
)

P = TypeVar("P", bound=Plugin)

# Messages held for one pod. A pod may wait for its volume for hours, while its owner or a scorer causes messages at any
# rate.
MOST_HELD: Final = 8


class AttemptPhase(Enum):
    """The event for which an attempt waits."""

    POSTING = "the answer to a Binding"
    READING = "the answer to the reading of the pod"
    VOIDING = "the answer to the write that makes its Bindings void"
    ASKING = "the extenders' answer about nodes or evictions for it"
    EVICTING = "the answers to the evictions for it"
    WRITING = "the answers to the writes before the Binding"
    RELEASING = "the answers to the writes that take these back"
    FREEING = "the answer to the write that frees a claim"
    NOMINATING = "the answer to the nomination before a wait"
    REHEARSING = "the answer to the dry run of its Binding"
    READY = "the other members of its group"
    PAUSED = "the end of a back-off"
    COUNTING = "the count of how often it was begun"
    DECIDING = "the PubAck of its Decision"


class Postponed(NamedTuple):
    """A verdict that waits for requests, and whether it has a dead letter."""

    verdict: Verdict
    dead_letter: bool


@dataclass(slots=True, kw_only=True, eq=False)
class BindingAttempt:
    """The state of one uid. ``PodBinding`` changes it; ``BindingQueue`` changes the fields that say when it goes on."""

    latest: RankedDelivery  # of the highest attempt
    deliveries: list[RankedDelivery]  # at most MOST_HELD, in order of arrival
    phase: AttemptPhase
    pod: Pod  # newest known state; its resourceVersion is the Binding's precondition
    node: str = ""  # where the pod is assumed; empty before a node is chosen
    # The nodes from which it was chosen, with their newcomers, of the latest attempt at that time.
    candidates: list[Candidate] = field(default_factory=list)
    eviction: EvictionPlan | None = None
    freeing: Freeing | None = None
    steps: PluginSteps | None = None  # on the chosen node
    # By kind, the resourceVersions written for the pod; the watches must reach them before the Binding.
    awaited_versions: Mapping[str, int] = field(default_factory=dict)
    is_unseen: bool = False  # whether it is paused until the watches reach them
    nominated: str = ""  # the node that the pod is nominated to while it waits; cleared unless it is bound
    nominated_version: int = 0  # the resourceVersion of that write
    is_posted: bool = False  # whether a Binding to that node was ever sent
    # The highest resourceVersion of a POST: once the pod's own is higher, no POST can land any more.
    posted_version: int = 0
    # The same for POSTs without an answer: their node is kept until the pod's own resourceVersion is higher.
    lost_version: int = 0
    read: Pod | None = None  # the API server's answer; None again after a pause
    refused: frozenset[str] = frozenset()  # the nodes that extenders have refused, on which it fits without evictions
    asked: frozenset[str] = frozenset()  # the nodes on which extenders were asked about evictions
    answered: EvictionsAnswered | NodesAnswered | None = None  # by extenders, for the evictions that come next
    has_waited_for_watch: bool = False  # for a watch that has not shown the pod yet
    # Until no POST of the pod can land any more and its claims are released.
    postponed: Postponed | None = None
    # Requests that were not answered or must be repeated; each lengthens the next pause.
    failures: int = 0
    conflicts: int = 0  # 409 answers since the last pause
    exceptions: int = 0  # raised in the binder
    due: float = 0.0  # end of the pause, on the caller's clock
    # Whether it was ever paused: then its messages do not count against ``max_unacked``.
    has_paused: bool = False
    is_waiting: bool = False  # whether ``waiting`` was published
    is_stray: bool = False  # until the pod is found waiting: it may be of no pod
    group: str = ""  # the uid of the PodGroup with which it is bound; empty: it is bound by itself
    waits_for: str = ""  # text for users
    repeats: int = 0  # how often ``waiting`` was published for the latest attempt
    decision: Decision | None = None  # the final one, until its PubAck
    decided: RankedDelivery | None = None  # the decided message: a later attempt may join meanwhile
    uid: str = field(init=False)

    def __post_init__(self) -> None:
        self.uid = self.latest.attempt.uid

    @property
    def is_suspect(self) -> bool:
        """Whether a former binder may have ended while it bound this pod."""
        return self.deliveries[0].is_suspect

    @property
    def sequence(self) -> int:
        return self.deliveries[0].sequence

    def join(self, delivery: RankedDelivery) -> bool:
        """Hold another message of the pod. Returns whether it is of a later attempt, which is then the latest."""
        self.deliveries.append(delivery)
        if delivery.attempt.order <= self.latest.attempt.order:
            return False
        self.latest = delivery
        self.repeats = 0
        return True

    def take_surplus(self) -> RankedDelivery | None:
        """Release one message if more than MOST_HELD are held, and return it.

        The oldest goes; never the first (the pod's place), the latest, the decided one, or the newest in the stream.
        """
        if len(self.deliveries) <= MOST_HELD:
            return None
        newest = max(self.deliveries, key=_sequence)
        # A scorer can write any number, so the newest need not be the latest. As long as it is stored, a next leader
        # fences and examines the pod, and the watcher publishes no further attempt.
        kept = (self.deliveries[0], self.latest, self.decided, newest)
        surplus = min((each for each in self.deliveries if each not in kept), key=_sequence)
        self.deliveries.remove(surplus)
        return surplus

    def holds(self, sequence: int) -> bool:
        return any(each.sequence == sequence for each in self.deliveries)

    def decided_deliveries(self) -> list[RankedDelivery]:
        decided = self.decided
        return [] if decided is None else [delivery for delivery in self.deliveries if settles(decided, delivery)]

    def undecided_deliveries(self) -> list[RankedDelivery]:
        decided = self.decided
        return [delivery for delivery in self.deliveries if decided is None or not settles(decided, delivery)]

    def take(self, placement: Placement) -> None:
        """Go to the node, for which no object was written or posted yet."""
        self.pod, self.node, self.candidates = placement.pod, placement.node, placement.candidates
        self.is_posted, self.awaited_versions = False, {}

    def await_version(self, kind: str, version: int) -> None:
        self.awaited_versions = {**self.awaited_versions, kind: max(version, self.awaited_versions.get(kind, 0))}

    def releases(self) -> tuple[ReleaseClaim, ...]:
        """What takes back the writes to the pod's claims; empty once they are released."""
        return () if self.steps is None else self.steps.releases()

    def unreserve(self) -> None:
        steps, self.steps = self.steps, None
        if steps is not None:
            steps.undo()

    # A pod has at most one request in flight; each of these methods begins one.

    def begin_posting(self, node: str, *, by_extender: bool = False) -> PostBinding:
        """Send a Binding with the current resourceVersion, or have an extender bind the pod."""
        self.phase = AttemptPhase.POSTING
        self.is_posted = True
        self.posted_version = max(self.posted_version, version_number(self.pod.metadata.resource_version))
        return PostBinding(pod=self.pod, node=node, by_extender=by_extender)

    def begin_rehearsing(self) -> RehearseBinding:
        """Send the Binding as a dry run."""
        self.phase = AttemptPhase.REHEARSING
        return RehearseBinding(pod=self.pod, node=self.node)

    def begin_reading(self, *, keeps_whole: bool) -> GetPod:
        self.phase = AttemptPhase.READING
        return GetPod(pod=self.pod, keeps_whole=keeps_whole)

    def begin_voiding(self) -> VoidBindings:
        """Void the pod's Bindings before its node is free for others, because one of them has no answer yet."""
        self.phase = AttemptPhase.VOIDING
        return VoidBindings(pod=self.pod)

    def begin_writing(self, steps: PluginSteps) -> WriteObjects:
        self.phase = AttemptPhase.WRITING
        steps.has_sent = True
        return WriteObjects(pod=self.pod, requests=steps.unwritten)

    def begin_releasing(self, releases: tuple[ReleaseClaim, ...]) -> ReleaseClaims:
        self.phase = AttemptPhase.RELEASING
        return ReleaseClaims(pod=self.pod, requests=releases, voids=bool(self.failures or self.exceptions))

    def begin_freeing(self, freeing: Freeing) -> ReleaseClaims:
        self.phase, self.freeing = AttemptPhase.FREEING, freeing
        return ReleaseClaims(pod=freeing.pod, requests=(freeing.claim,))

    def begin_nominating(self) -> Nominate:
        self.phase = AttemptPhase.NOMINATING
        return Nominate(pod=self.pod, node=self.node)

    def begin_evicting(self, plan: EvictionPlan) -> None:
        self.pod, self.eviction, self.phase = plan.pod, plan, AttemptPhase.EVICTING

    def begin_asking(self, question: EvictionQuestion | NodeQuestion) -> AskAboutEvictions | AskAboutNodes:
        self.phase = AttemptPhase.ASKING
        pod, self.read = self.read or self.pod, None
        if isinstance(question, NodeQuestion):
            return AskAboutNodes(pod=pod, nodes=question.nodes)
        self.asked = self.asked.union(each.node for each in question.candidates)
        return AskAboutEvictions(pod=pod, candidates=question.candidates, victims=question.victims)

    def take_answer(self, pod: Pod) -> EvictionsAnswered | NodesAnswered | None:
        """The extenders' answer about the pod, which is used once; without one, all earlier ones are dropped."""
        answered, self.answered = self.answered, None
        if answered is None or changed(answered.pod, pod):
            self.refused = self.asked = frozenset()
            return None
        if isinstance(answered, NodesAnswered):  # which evictions are possible may have changed meanwhile
            self.refused, self.asked = self.refused | answered.asked, frozenset()
        return answered

    def pause(self, due: float, waits_for: str) -> list[SetAside]:
        """Pause until ``due``. After the first pause, the attempt's messages do not count against ``max_unacked``."""
        self.phase = AttemptPhase.PAUSED
        self.due, self.waits_for = due, waits_for
        if self.has_paused or self.group:
            return []
        self.has_paused = True
        return [SetAside(held=delivery) for delivery in self.deliveries]

    def decide(self, decision: Decision) -> None:
        """The Decision is being published; it settles the messages held now."""
        self.phase = AttemptPhase.DECIDING
        self.decision, self.decided = decision, self.latest

    def lost_answer(self) -> None:
        self.lost_version = self.posted_version

    def is_nominated(self, shown: Pod) -> bool:
        """Whether the nomination that this attempt wrote is still in effect, as far as known."""
        is_unseen = version_number(shown.metadata.resource_version) < self.nominated_version
        return bool(self.nominated) and (is_unseen or shown.status.nominated_node_name == self.nominated)

    @property
    def may_give_up(self) -> bool:
        """Whether it waits, and no Binding was sent: then its room may be given to a more important pod."""
        return self.is_waiting and self.phase is AttemptPhase.PAUSED and not self.is_posted

    @property
    def may_still_land(self) -> bool:
        return 0 < self.lost_version >= version_number(self.pod.metadata.resource_version)


def _sequence(delivery: RankedDelivery) -> int:
    return delivery.sequence


def settles(decided: Held, delivery: Held) -> bool:
    """Whether the final Decision on one message also settles another message of the same uid.

    A lower number alone does not make a message older: a scorer can write any number within a real term, and all real
    attempts of the pod would be below it. A message stored later was published later, so it is examined. Terms come
    from the watcher: a term above the last one was rejected before.
    """
    mine, other = decided.attempt, delivery.attempt
    if other.term != mine.term:
        return other.term < mine.term
    return other.n == mine.n or (other.n < mine.n and delivery.sequence < decided.sequence)


@dataclass(slots=True, kw_only=True)
class _Decided:
    term: Term
    last: int  # number of the last decided attempt
    highest: int  # highest number of a decided attempt
    sequence: int  # highest sequence of a decided message
    at: float  # monotonic seconds of the last Decision


class DecidedAttempts:
    """Attempts with a final Decision, whose redeliveries are only acknowledged. Bounded in time and number.

    A later redelivery is examined again, with the same outcome (bound or gone), because the API shows it.
    """

    REMEMBERED_SECONDS: Final = 120.0

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._by_uid: OrderedDict[str, _Decided] = OrderedDict()

    def add(self, delivery: Held, now: float) -> None:
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

    def covers(self, delivery: Held) -> bool:
        """Whether a Decision has settled the message; as in ``settles``."""
        attempt = delivery.attempt
        known = self._by_uid.get(attempt.uid)
        if known is None or attempt.term != known.term:
            return known is not None and attempt.term < known.term
        return attempt.n == known.last or (attempt.n <= known.highest and delivery.sequence <= known.sequence)

    def __len__(self) -> int:
        return len(self._by_uid)


NO_DEADLINE = float("inf")


@dataclass(slots=True, kw_only=True, eq=False)
class PluginSteps:
    profile: Profile
    state: CycleState
    pod: Pod
    node: str
    # Deadline on the caller's clock: a pod whose Permit plugins still answer WAIT is rejected then.
    waits_until: float = field(default=NO_DEADLINE)
    # Writes to send before PreBind; the core empties it once all are written.
    unwritten: tuple[Write, ...] = field(default=())
    has_sent: bool = field(default=False)  # whether any of them was sent
    is_released: bool = field(default=False)  # whether they were taken back
    wait_event: tuple[str, str] | None = field(default=None)  # to record; the core empties it
    _left_out: frozenset[str] = field(default=frozenset())  # the plugins that have nothing to do for the pod
    _has_asked_for_writes: bool = field(default=False)
    _is_permitted: bool = field(default=False)
    _is_reserved: bool = field(default=False)
    _waiting_since: dict[str, float] = field(default_factory=dict)

    @classmethod
    def on(cls, node: str, pod: Pod, snapshot: Snapshot, profile: Profile) -> PluginSteps:
        """Steps with a new CycleState for a pod that was just assumed on the node."""
        state = CycleState(snapshot.class_of(pod))
        state.write(SNAPSHOT, snapshot)
        left_out = profile.left_out(snapshot.traits_of(pod))
        return cls(profile=profile, state=state, pod=pod, node=node, _left_out=left_out)

    def before_binding(self, now: float) -> Status:
        """Run the remaining steps before the Binding. On WAIT call again; any other failure rejects the pod.

        Raises:
            PluginFailure: a plugin could not answer.
        """
        for step in (self._reserve, self._permit, self._collect_writes, self._pre_bind):
            status = step(now)
            if not status.is_success:
                return status
        return SUCCESS

    def binding(self) -> Binding:
        """The Binding to send.

        Raises:
            PluginFailure: no plugin of the profile binds this pod, or one could not answer.
        """
        for plugin in self.profile.binds:
            found = call(plugin, "Bind", plugin.bind, object, self.state, self.pod, self.node)
            if isinstance(found, Binding):
                return found
        raise PluginFailure(
            f"binding {self.pod.key!r}: no Bind plugin of profile {self.profile.scheduler_name!r} takes it"
        )

    def releases(self) -> tuple[ReleaseClaim, ...]:
        """What takes the writes back, and reservations of an earlier attempt."""
        if not self._is_reserved or self.is_released:
            return ()
        found: list[ReleaseClaim] = []
        for plugin in self._concerned(self.profile.pre_binds):
            with suppress(PluginFailure):  # the outcome is final: a plugin's failure changes nothing
                found += call(
                    plugin, "PreBind", plugin.releases, tuple, self.state, self.pod, self.node, sent=self.has_sent
                )
        return tuple(found)

    def devices(self) -> Allocations:
        """The devices that the pod has got, by claim."""
        found: Allocations = {}
        if self._is_reserved:
            for plugin in self._concerned(self.profile.allocating):
                found |= call(plugin, "Reserve", plugin.reserved, dict, self.state)
        return found

    def after_binding(self) -> None:
        for reserve in self._concerned(self.profile.reserves):
            with suppress(PluginFailure):
                call(reserve, "PostBind", reserve.finish_binding, object, self.state, self.pod, self.node)
        for plugin in self.profile.post_binds:
            with suppress(PluginFailure):  # the pod is bound: a plugin's failure changes nothing
                call(plugin, "PostBind", plugin.post_bind, object, self.state, self.pod, self.node)

    def undo(self) -> None:
        """Run Unreserve of all Reserve plugins in reverse order, because the pod was not bound to the node."""
        if not self._is_reserved:
            return
        self._is_reserved = False
        for plugin in reversed(self._concerned(self.profile.reserves)):
            with suppress(PluginFailure):  # the outcome is final: a plugin's failure changes nothing
                call(plugin, "Unreserve", plugin.unreserve, object, self.state, self.pod, self.node)

    def _concerned(self, plugins: Sequence[P]) -> list[P]:
        return [plugin for plugin in plugins if plugin.name not in self._left_out]

    def _reserve(self, _now: float) -> Status:
        return self.reserve()

    def reserve(self) -> Status:
        """Run all Reserve plugins. If one fails, undo the reservations, so that the next try starts anew."""
        if self._is_reserved:
            return SUCCESS
        self._is_reserved = True
        try:
            for plugin in self._concerned(self.profile.reserves):
                answer = call(plugin, "Reserve", plugin.reserve, Status, self.state, self.pod, self.node)
                status = with_plugin_name(plugin, "Reserve", answer)
                if not status.is_success:
                    return status
        except PluginFailure:
            self.undo()
            raise
        return SUCCESS

    def _permit(self, now: float) -> Status:
        """Run all Permit plugins, again while one answers WAIT. The earliest deadline counts, from the first WAIT."""
        if self._is_permitted:
            return SUCCESS
        waits = SUCCESS
        for plugin in self._concerned(self.profile.permits):
            answer = call(plugin, "Permit", plugin.permit, Permission, self.state, self.pod, self.node)
            status = with_plugin_name(plugin, "Permit", answer.status)
            if status.code is Code.WAIT:
                waits = status
                self.waits_until = min(self.waits_until, now + answer.timeout_seconds)
            elif not status.is_success:
                return status
        if waits.code is Code.WAIT and now >= self.waits_until:
            return Status(Code.UNSCHEDULABLE, (f'rejected: "{waits.plugin}" gave no permission in time',), waits.plugin)
        self._is_permitted = waits.is_success
        return waits

    def _collect_writes(self, _now: float) -> Status:
        if not self._has_asked_for_writes:
            plugins = self._concerned(self.profile.pre_binds)
            found = [call(p, "PreBind", p.writes, tuple, self.state, self.pod, self.node) for p in plugins]
            self.unwritten = tuple(write for writes in found for write in writes)
            self._has_asked_for_writes = True
        return Status(Code.WAIT, ("writes before the Binding are under way",)) if self.unwritten else SUCCESS

    def _pre_bind(self, now: float) -> Status:
        """Run all PreBind plugins, again while one answers WAIT. Each has ``wait_seconds`` from its first WAIT on."""
        for plugin in self._concerned(self.profile.pre_binds):
            answer = call(plugin, "PreBind", plugin.pre_bind, Status, self.state, self.pod, self.node)
            if answer.code is Code.ERROR:
                return error_of(plugin, "PreBind", answer)
            status = with_plugin_name(plugin, "PreBind", answer)
            if status.code is Code.WAIT:
                return self._wait_or_reject(plugin, status, now)
            if not status.is_success:
                return status
        return SUCCESS

    def _wait_or_reject(self, plugin: PreBindPlugin, status: Status, now: float) -> Status:
        if plugin.name not in self._waiting_since and plugin.wait_event is not None:
            reason, text = plugin.wait_event
            self.wait_event = reason, text.format(node=self.node)
        since = self._waiting_since.setdefault(plugin.name, now)
        if now < since + plugin.wait_seconds:
            return status
        if plugin.late_is_error:
            return error_of(plugin, "PreBind", Status.error(plugin.too_late))
        return Status(Code.UNSCHEDULABLE, (plugin.too_late,), plugin.name)
