"""From verdicts to the messages that everybody reads.

Commitments that cannot go on now: which pause, until when, and whose ``waiting`` is to be said.

The end of a commitment: what is given back, and the Decision that says so.

What is on the wire to the API server, and whether it answers at all.

The requests of commitments: each takes a place on the wire until it is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.api.messages import Decision, Outcome
from berth.api.subjects import Epoch
from berth.framework.status import Status
from berth_binder.attempt import AttemptPhase, BindingAttempt
from berth_binder.cache import Cache
from berth_binder.conflictcheck import EvictionPlan
from berth_binder.effects import Answer, Demote, Effect, Evict, GetPod, Post, Publish, Verdict, WriteVolumes, waiting
from berth_binder.pluginsteps import PluginSteps
from berth_binder.settings import CoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """On whose behalf Decisions are made."""

    epoch: Epoch
    config: str
    """Digest of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBuilder:
    """Makes the Decisions of one epoch, each with everything that explains it."""

    cache: Cache
    stand: ViewState

    def final(self, commitment: BindingAttempt, verdict: Verdict) -> Decision:
        """What became of the pod, for its highest attempt."""
        return self._decision(commitment, verdict, repeat=0)

    def waiting(self, commitment: BindingAttempt) -> Decision:
        """That it is not decided yet, and why; the next one is another message."""
        word = self._decision(commitment, waiting(commitment.node, commitment.hold_up), repeat=commitment.repeats)
        commitment.repeats += 1
        commitment.is_waiting = True
        return word

    def _decision(self, commitment: BindingAttempt, verdict: Verdict, *, repeat: int) -> Decision:
        ranked, metadata = commitment.foremost.ranked, commitment.pod.metadata
        conflict = verdict.outcome is Outcome.CONFLICT
        return Decision(
            config=self.stand.config,
            attempt=ranked.attempt,
            epoch=self.stand.epoch,
            outcome=verdict.outcome,
            profile=ranked.profile,
            namespace=metadata.namespace,
            pod=metadata.name,
            uid=metadata.uid,
            node=verdict.node,
            reason=verdict.reason,
            message=verdict.message,
            repeat=repeat,
            evaluated=ranked.evaluated,
            feasible=ranked.feasible,
            candidates=ranked.candidates,
            rejections=list(verdict.refusals) or ranked.rejections,
            blockers=list(verdict.blockers) or ranked.blockers,
            preemption=verdict.preemption,
            positions=ranked.positions,
            resource_versions=self.cache.newest_resource_versions() if conflict else {},
            scorer=ranked.scorer,
            view_age_seconds=ranked.view_age_seconds,
            asked_at=ranked.asked_at,
        )


SILENT = "the API server has not answered yet"

BROKEN = "trying again after an exception"


@dataclass(slots=True, kw_only=True)
class PausedAttempts:
    """Few as a rule: looking through them is cheaper than keeping them in order."""

    settings: CoreSettings
    statements: DecisionBuilder
    _paused: dict[str, BindingAttempt] = field(default_factory=dict)
    _troubled: dict[str, BindingAttempt] = field(default_factory=dict)

    def pause(self, commitment: BindingAttempt, answer: Answer | None, now: float) -> list[Effect]:
        """Back off: after an answer that leaves things open, or (``None``) after an exception."""
        commitment.failures += 1
        pause = self.settings.backoff.after(commitment.failures, answer.retry_after if answer is not None else None)
        self._put_off(commitment, now + pause, BROKEN if answer is None else SILENT)
        if commitment.next_word is None:
            commitment.next_word = now + self.settings.waiting_interval.total_seconds()
        return []

    def await_plugin(self, commitment: BindingAttempt, steps: PluginSteps, status: Status, now: float) -> list[Effect]:
        """A plugin says wait: the room stays reserved, the window's place is free at once."""
        due = min(now + self.settings.plugin_interval.total_seconds(), steps.waits_until)
        why = f"waiting for {status.plugin}: {', '.join(status.reasons) or 'no reason given'}"
        self._put_off(commitment, due, why)
        return [] if commitment.is_waiting else [self.word(commitment, now)]

    def word(self, commitment: BindingAttempt, now: float) -> Effect:
        """Say ``waiting``; the next time is in a while."""
        said = self.statements.waiting(commitment)
        commitment.next_word = now + self.settings.waiting_interval.total_seconds()
        return Publish(decision=said, held=commitment.foremost.held)

    def words(self, now: float) -> list[Effect]:
        """What is to be said (again) by now."""
        troubled = list(self._troubled.values())
        return [self.word(it, now) for it in troubled if it.next_word is not None and it.next_word <= now]

    def _put_off(self, commitment: BindingAttempt, due: float, why: str) -> None:
        """Pause until then; from now on it counts as held up until it is settled."""
        commitment.phase = AttemptPhase.PAUSED
        commitment.due, commitment.hold_up = due, why
        self._paused[commitment.uid] = commitment
        self._troubled[commitment.uid] = commitment

    def resume(self, now: float) -> BindingAttempt | None:
        """Of the pauses that are over, take the one that stands first in the stream."""
        over = [it for it in self._paused.values() if it.due <= now]
        first = min(over, key=lambda it: it.sequence, default=None)
        if first is not None:
            del self._paused[first.uid]
        return first

    def settled(self, uid: str) -> None:
        """It has come to its end."""
        self._paused.pop(uid, None)
        self._troubled.pop(uid, None)

    def due(self, *, has_place: bool) -> float | None:
        """When something is due by the clock alone. A pause that is over ends only when there is a place for it."""
        times = [it.next_word for it in self._troubled.values() if it.next_word is not None]
        if has_place:
            times += [it.due for it in self._paused.values()]
        return min(times, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """Ends commitments of one epoch."""

    cache: Cache
    statements: DecisionBuilder
    hold_ups: PausedAttempts

    def settle(self, commitment: BindingAttempt, verdict: Verdict, *, bury: bool = False) -> list[Effect]:
        """Have the verdict published; unless the pod is bound, its room and what plugins keep for it is free again."""
        if verdict.outcome is Outcome.BOUND:
            self._confirm(commitment)
        else:
            self._give_back(commitment)
        self.hold_ups.settled(commitment.uid)
        commitment.phase = AttemptPhase.DECIDING
        commitment.decision = self.statements.final(commitment, verdict)
        commitment.decided = commitment.foremost.attempt
        said = Publish(decision=commitment.decision, held=commitment.foremost.held, bury=bury)
        return [said, *_demoted(commitment, verdict)]

    def undo(self, commitment: BindingAttempt) -> None:
        """The pod is not going to that node after all: plugins hear of it."""
        steps, commitment.steps = commitment.steps, None
        if steps is not None:
            steps.undo()

    def _confirm(self, commitment: BindingAttempt) -> None:
        self.cache.finish_binding(commitment.uid)
        if commitment.steps is not None:
            commitment.steps.after_binding()

    def _give_back(self, commitment: BindingAttempt) -> None:
        self.cache.forget(commitment.uid)
        self.cache.withdraw_nomination(commitment.uid)
        self.undo(commitment)


def _demoted(commitment: BindingAttempt, verdict: Verdict) -> list[Effect]:
    """A node that is kept for a pod which nothing helps is kept for nothing."""
    pod, ranked = commitment.pod, commitment.foremost.ranked
    is_of_no_use = verdict.outcome is Outcome.UNSCHEDULABLE and ranked.clears_nomination
    return [Demote(pod=pod)] if is_of_no_use and pod.status.nominated_node_name else []


class RequestsInFlight:
    """A bounded number of places, one for each pod with a request under way."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._pods: set[str] = set()
        self._silence = 0

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def has_place(self) -> bool:
        """Whether one more request may start."""
        return len(self._pods) < self._places

    @property
    def is_silent(self) -> bool:
        """Whether as many requests in a row as there are places were left open: then nothing new is started."""
        return self._silence >= self._places

    def start(self, uid: str) -> None:
        """A request for the pod starts."""
        self._pods.add(uid)

    def end(self, uid: str, answer: Answer) -> bool:
        """The request is answered, or will not be; false when there was none."""
        if uid not in self._pods:
            return False
        self._pods.discard(uid)
        self._silence = self._silence + 1 if answer.is_open else 0
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSender:
    """Starts requests of one epoch."""

    cache: Cache
    wire: RequestsInFlight

    def evict(self, commitment: BindingAttempt, eviction: EvictionPlan) -> list[Effect]:
        """Have the victims go. The node is kept for the pod from here on: its room is nobody else's."""
        commitment.pod, commitment.eviction, commitment.phase = eviction.pod, eviction, AttemptPhase.EVICTING
        victims = frozenset(victim.uid for victim in eviction.victims)
        self.cache.nominate(eviction.pod, eviction.node, victims)
        self.wire.start(commitment.uid)
        demoted = [Demote(pod=pod) for pod in eviction.demoted]
        return [*demoted, Evict(pod=eviction.pod, node=eviction.node, victims=eviction.victims)]

    def write(self, commitment: BindingAttempt, steps: PluginSteps) -> list[Effect]:
        """Write what plugins want written before the Binding."""
        commitment.phase = AttemptPhase.WRITING
        self.wire.start(commitment.uid)
        return [WriteVolumes(pod=commitment.pod, requests=steps.unwritten)]

    def have_been_seen(self, commitment: BindingAttempt) -> bool:
        """Whether the watches have shown what was written."""
        return all(self.cache.reached(kind) >= version for kind, version in commitment.unseen.items())

    def post(self, commitment: BindingAttempt, steps: PluginSteps) -> list[Effect]:
        """Bind the pod as it is known now."""
        node = steps.binding().node
        commitment.posted()
        self.wire.start(commitment.uid)
        return [Post(pod=commitment.pod, node=node)]

    def look(self, commitment: BindingAttempt) -> list[Effect]:
        """Read the pod."""
        commitment.phase = AttemptPhase.READING
        self.wire.start(commitment.uid)
        return [GetPod(pod=commitment.pod)]
