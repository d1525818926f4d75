"""Reviews of groups: their pods join or leave them, and their entries wait, are let go, or leave the queue (ADR 72)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from berth.api.podgroups import Members
from berth_watcher.events import CountWholeGroup, Effect
from berth_watcher.grouping import form_of
from berth_watcher.queue.groups import GroupEntry, GroupGate, QueuedGroup, Way
from berth_watcher.queue.queuedpod import Stage
from berth_watcher.stages.pods import HEAD_START_SECONDS, PodStages, QueueParts
from berth_watcher.store import ObjectChange

# Stages of a group whose last attempt failed.
WAITING_IN_VAIN: Final = frozenset({Stage.AWAITING_WATCH, Stage.BACKOFF, Stage.UNSCHEDULABLE})


class GroupStages:
    def __init__(self, parts: QueueParts, pods: PodStages) -> None:
        self._clock = parts.clock
        self._mirror = parts.mirror
        self._requeue = parts.requeue
        self._grouping = parts.grouping
        self._earmarks = parts.earmarks
        self._pods = pods

    def on_pod_group(self, change: ObjectChange) -> None:
        form, former = form_of(change.new), form_of(change.old)
        if self._earmarks:
            self._earmarks.observe_group(former, form)
        if form is not None:
            self._grouping.observe_group(form)
        elif former is not None:
            self._grouping.remove_group(former)

    def review_changed(self) -> Sequence[Effect]:
        """Look at the groups that have changed: their pods join or leave them, and their entries wait or go."""
        effects: list[Effect] = []
        while self._grouping.changed:
            for group, helps in self._grouping.take_changed().items():
                effects += self._review(group, helps=helps)
                if self._earmarks and group.way is not Way.TOGETHER:
                    self._earmarks.end_of(group.key)
        for queued in self._grouping.take_left():
            effects += self._pods.activate(queued)
        return effects

    def _review(self, group: QueuedGroup, *, helps: bool) -> Sequence[Effect]:
        if group.is_in_flight:
            return ()
        review = self._grouping.review(group)
        whole_after = review.seconds_to_whole
        effects: list[Effect] = [] if whole_after is None else [CountWholeGroup(seconds=whole_after)]
        former, entry = self._grouping.entry_for(group, review)
        if former is not None:
            effects += self._pods.remove(former)
        if not self._pods.is_running:  # a takeover looks for the messages of the entry too
            return effects
        for queued in review.joining:
            self._requeue.on_removed(queued)
            effects += self._pods.move(queued, Stage.GROUPED)
        for queued in review.leaving:
            effects += self._pods.activate(queued)
        if review.gate.way is Way.GATED:
            for queued in self._grouping.queued_members(group):
                queued.message = review.gate.message
        if entry is None:
            return effects
        if review.gate.way is Way.TOGETHER:
            return [*effects, *self._let_go(entry, review.members, helps=helps)]
        return [*effects, *self._close_gate(entry, review.gate)]

    def _go_after_helped(self, fresh: GroupEntry) -> Sequence[Effect]:
        """Let equals go first that have waited longer, if only the pause between early ends of back-off holds them.

        Else groups that come again and again would take all room that becomes free within a second of their attempts.
        Published with them, the group could be placed before them by another scorer.
        """
        effects: list[Effect] = []
        for helped in self._grouping.take_helped(fresh):
            self._requeue.end_back_off(helped)
            effects += self._pods.activate(helped)
            fresh.gives_way_until = fresh.gives_way_until or self._clock.now + HEAD_START_SECONDS
        if self._clock.now < fresh.gives_way_until:
            return [*effects, *self._pods.move(fresh, Stage.GROUPED, due=fresh.gives_way_until)]
        return [*effects, *self._pods.try_again(fresh)]

    def _close_gate(self, entry: GroupEntry, gate: GroupGate) -> Sequence[Effect]:
        entry.message, entry.unschedulable_plugins = gate.message, frozenset()
        if entry.stage is Stage.AWAITING_WATCH and gate.due is None:
            return ()  # its timer runs
        self._requeue.on_removed(entry)
        return self._pods.move(entry, Stage.GROUPED, due=gate.due)

    def _let_go(self, entry: GroupEntry, members: Members, *, helps: bool) -> Sequence[Effect]:
        """The group may be tried: at once, unless it backs off or waits for an event."""
        if entry.stage in {Stage.GROUPED, Stage.RECOVERING}:
            for queued in (entry, *self._grouping.queued_members(entry.group)):
                queued.message = ""  # why the gate was closed
            entry.timestamp = max(entry.timestamp, entry.group.complete_since(entry.form, members) or entry.timestamp)
        has_moved = self._grouping.update_entry(entry, members)
        if any(pod.spec.resource_claims for pod in entry.members):
            entry.mirror_change = self._mirror.changes
        if entry.stage in {Stage.GROUPED, Stage.RECOVERING} and not entry.failures and not members.is_begun:
            return self._go_after_helped(entry)
        if entry.stage in {Stage.GROUPED, Stage.RECOVERING} or (helps and entry.stage in WAITING_IN_VAIN):
            return self._pods.try_again(entry)
        return self._pods.move(entry, Stage.ACTIVE) if has_moved and entry.stage is Stage.ACTIVE else ()
