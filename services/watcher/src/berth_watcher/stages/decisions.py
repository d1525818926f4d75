"""What follows the Decision on a pod or a group, and an attempt that has none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from berth.api.pod import Pod
from berth.messages.attempts import DecisionSummary, Outcome, Reason
from berth.messages.subjects import Attempt
from berth_watcher.attempts import is_news
from berth_watcher.events import AttemptLookedUp, DecisionReceived, Effect, PodRead, PublishNotStored, PublishRefused
from berth_watcher.queue.groups import GroupEntry
from berth_watcher.queue.queuedpod import QueuedPod, Stage, Timestamp, waits
from berth_watcher.queue.requeue import ROOM_FREED, ROOM_HELD, Wait
from berth_watcher.stages.pods import PodStages, QueueParts

# Outcomes after which a pod is tried again by itself, or goes to its group.
TRIED_AGAIN: Final = frozenset({Outcome.UNSCHEDULABLE, Outcome.PREEMPTING, Outcome.CONFLICT})


class Decisions:
    def __init__(self, parts: QueueParts, pods: PodStages) -> None:
        self._profiles = parts.profiles
        self._clock = parts.clock
        self._mirror = parts.mirror
        self._queue = parts.queue
        self._hints = parts.hints
        self._requeue = parts.requeue
        self._attempts = parts.attempts
        self._grouping = parts.grouping
        self._held_rooms = parts.held_rooms
        self._earmarks = parts.earmarks
        self._pods = pods

    def on_decision(self, event: DecisionReceived) -> Sequence[Effect]:
        if event.decision.outcome is Outcome.BOUND:
            self._hints.nominated_nodes.on_bound(event.decision.uid, event.sequence)
        if event.decision.outcome.final:  # of any attempt: the rate of Decisions sets the size of the window
            self._attempts.window.count_decision(event.decision.profile, self._clock.now)
        return self.decide(event)

    def decide(self, event: DecisionReceived) -> Sequence[Effect]:
        decision = event.decision
        if self._earmarks or decision.earmark is not None:
            self._earmarks.decided(decision, event.time, self._clock.now)
        queued = self._queue.get(decision.uid)
        if self._held_rooms.rooms or self._held_rooms.deleted or decision.outcome is Outcome.WAITING:
            self._update_held_room(decision, queued)
        if queued is None or not is_news(queued, decision):
            return ()
        if decision.outcome.final:
            return self.conclude(queued, decision, event.time)
        if queued.stage is not Stage.IN_FLIGHT:
            return ()
        queued.epoch = decision.epoch
        return [*self._attempts.release(queued), *self._pods.await_decision(queued)]

    # --- rooms that the binder holds for pods that wait

    def pod_shown(self, uid: str, pod: Pod | None) -> None:
        """Take in the API's state of a pod; ``None`` if it is deleted."""
        self._free(self._held_rooms.shown(uid, pod))

    def _update_held_room(self, decision: DecisionSummary, queued: QueuedPod | None) -> None:
        held = self._held_rooms.held(decision.uid)
        self._free(self._held_rooms.decided(decision, None if queued is None else queued.pod))
        holds = self._held_rooms.held(decision.uid)
        if holds is not None and (held is None or held.spec.node_name != holds.spec.node_name):
            self._requeue.on_held_room(ROOM_HELD, holds, self._pods.last_decision, self._mirror.changes)

    def _free(self, pod: Pod | None) -> None:
        """The binder no longer holds the room of a pod that waited."""
        if pod is not None:
            self._requeue.on_held_room(ROOM_FREED, pod, self._pods.last_decision, self._mirror.changes)

    # --- final Decisions

    def conclude(
        self, queued: QueuedPod, decision: DecisionSummary, time: datetime, age_seconds: float = 0.0
    ) -> Sequence[Effect]:
        """Handle a final Decision, stored at ``time``, by its outcome (docs/protocol.md, 5)."""
        decided_at = Timestamp(monotonic=self._clock.now - age_seconds, wall=time)
        effects, has_waited = self._attempts.end(queued), queued.epoch > 0
        queued.record_decision(decision)
        if isinstance(queued, GroupEntry):
            if has_waited and decision.outcome is not Outcome.BOUND:
                self._requeue.on_group_ended(self._pods.last_decision, self._mirror.changes)
            return [*effects, *self._conclude_group(queued, decision, decided_at)]
        if decision.outcome in TRIED_AGAIN and len(self._grouping) and self._grouping.takes(queued):
            return [*effects, *self._pods.move(queued, Stage.GROUPED)]
        return [*effects, *self._conclude_pod(queued, decision, decided_at)]

    def _conclude_pod(self, queued: QueuedPod, decision: DecisionSummary, decided_at: Timestamp) -> Sequence[Effect]:
        wait: Wait | None
        changes = self._mirror.changes
        match decision.outcome:
            case Outcome.UNSCHEDULABLE | Outcome.PREEMPTING:
                wait = self._requeue.on_unschedulable(queued, decision, decided_at, changes, self._pods.known)
                return self._pods.wait_or_activate(queued, wait)
            case Outcome.CONFLICT:
                wait = self._requeue.on_conflict(queued, decision, decided_at, changes)
                return self._pods.wait_or_activate(queued, wait)
            case Outcome.ERROR:
                return self._pods.wait_or_activate(queued, self._requeue.on_error(queued, decided_at))
            case Outcome.GONE:
                return [*self._pods.move(queued, Stage.AWAITING_WATCH), self._pods.read_pod(queued)]
            case Outcome.BOUND:
                return self._pods.await_watch(queued)
            case Outcome.WAITING:
                raise ValueError(f"want a final outcome, got {decision.outcome.value!r}")

    def _conclude_group(self, entry: GroupEntry, decision: DecisionSummary, decided_at: Timestamp) -> Sequence[Effect]:
        """Handle the final Decision of a group; those of its bound members have come before."""
        for queued in self._grouping.queued_members(entry.group):
            queued.message = decision.message
        has_changed, changes = entry.group.has_changed, self._mirror.changes
        wait: Wait | None
        match decision.outcome:
            case Outcome.UNSCHEDULABLE | Outcome.PREEMPTING:
                wait = self._requeue.on_unschedulable(entry, decision, decided_at, changes, self._pods.known)
            case Outcome.CONFLICT:
                if decision.reason == Reason.BEGUN:
                    entry.conflicts = 0
                wait = self._requeue.on_conflict(entry, decision, decided_at, changes)
            case Outcome.ERROR:
                wait = self._requeue.on_error(entry, decided_at)
            case _:  # bound, or gone: the watch shows what is left to do
                self._grouping.landed(entry, helps=True)
                return self._pods.await_watch(entry)
        # Back-offs that may end early do so in this order.
        entry.at_front = entry.at_front or entry.group.is_begun
        # Else room that was made for the group would stand empty for as long as its victims were searched, ten times.
        if decision.outcome is not Outcome.PREEMPTING and entry.backoff_until > self._clock.now:
            before = entry.backoff_until
            entry.back_off_for(decision.plan_seconds, decided_at.monotonic)
            if wait is not None:
                may_end_early = wait.stage is Stage.BACKOFF and (wait.early or wait.due < before)
                longer = wait._replace(due=max(wait.due, entry.backoff_until))
                wait = self._requeue.on_helped(entry) if may_end_early else longer
        self._grouping.landed(entry, helps=has_changed)
        return self._pods.wait_or_activate(entry, wait)

    def on_pod_read(self, event: PodRead) -> Sequence[Effect]:
        """Handle the API's answer about a pod that the binder decided ``gone`` or ``bound``."""
        queued = self._queue.get(event.uid)
        if queued is None or queued.stage is not Stage.AWAITING_WATCH:
            return ()
        if event.pod is None or not waits(event.pod, self._profiles):
            return ()  # gone or bound: the watch will show it
        queued.pod = event.pod
        return self._pods.wait_or_activate(queued, self._requeue.on_still_unbound(queued, self._mirror.changes))

    # --- attempts without a Decision

    def on_looked_up(self, event: AttemptLookedUp) -> Sequence[Effect]:
        """Without a message or final Decision the attempt is lost: publish the next one, or give up after the third."""
        queued, decision = self._in_flight(event.attempt), event.decision
        if queued is None:
            return ()
        if event.held_by is not None:
            return self._on_held(queued, event)
        if decision is not None and decision.attempt == str(event.attempt) and decision.outcome.final:
            return self.conclude(queued, decision, event.time or self._clock.timestamp().wall)
        if reason := self._attempts.on_lost(queued):
            return self._give_up(queued, reason)
        if isinstance(queued, GroupEntry):
            return [*self._attempts.end(queued), *self._gather(queued)]
        return [*self._attempts.stalled.ended(queued.uid), *self._pods.publish(queued)]

    def _on_held(self, queued: QueuedPod, event: AttemptLookedUp) -> Sequence[Effect]:
        """After some time, queue the pod behind its equals; the next attempt's message replaces the held one."""
        effects = self._attempts.on_held(queued, event)
        if not self._attempts.give_slot_back(queued):
            due = self._clock.now + self._attempts.seconds_to_look_up(queued)
            return [*effects, *self._pods.move(queued, Stage.IN_FLIGHT, due=due)]
        queued.timestamp = self._clock.timestamp().wall
        if isinstance(queued, GroupEntry):
            return [*effects, *self._gather(queued)]
        return [*effects, *self._pods.activate(queued)]

    def on_publish_not_stored(self, event: PublishNotStored) -> Sequence[Effect]:
        queued = self._in_flight(event.attempt)
        if queued is not None:
            self._attempts.on_not_stored(queued)
        return ()

    def on_publish_refused(self, event: PublishRefused) -> Sequence[Effect]:
        # The bus will never store this attempt: an error of its pod.
        queued = self._in_flight(event.attempt)
        return () if queued is None else self._give_up(queued, event.reason)

    def _in_flight(self, attempt: Attempt) -> QueuedPod | None:
        """The pod of an attempt in flight; ``None`` if a later attempt replaced it."""
        queued = self._queue.get(attempt.uid)
        if queued is None or queued.stage is not Stage.IN_FLIGHT or queued.attempt != attempt:
            return None
        return queued

    def _give_up(self, queued: QueuedPod, reason: str) -> Sequence[Effect]:
        effects = self._attempts.give_up(queued, reason)
        if isinstance(queued, GroupEntry):
            self._grouping.landed(queued, helps=False)
        wait = self._requeue.on_error(queued, self._clock.timestamp())
        return [*effects, *self._pods.wait_or_activate(queued, wait)]

    def _gather(self, entry: GroupEntry) -> Sequence[Effect]:
        """Begin anew with the group's present members, after an attempt without a Decision."""
        self._grouping.landed(entry, helps=True)
        return self._pods.move(entry, Stage.GROUPED)
