"""The queueing hints of a profile, as the watcher asks them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from berth.api.pod import Pod
from berth.framework.events import ClusterEvent
from berth.framework.profile import Profile
from berth_watcher.queue.hints import QueueingHints
from berth_watcher.queue.queuedpod import EventClock, QueuedPod, Timestamp
from berth_watcher.queue.schedulingqueue import QueuePlugins

SINCE = datetime(2026, 1, 1, tzinfo=UTC)


def may_help(
    profile: Profile, unschedulable_plugins: Collection[str], event: ClusterEvent, pod: Pod, old: object, new: object
) -> bool:
    """Whether an event may make a pod schedulable that these plugins rejected."""
    queued = QueuedPod(pod=pod, timestamp=SINCE, unschedulable_plugins=frozenset(unschedulable_plugins))
    clock = EventClock(Timestamp(monotonic=0.0, wall=SINCE))
    profiles = {queued.profile: profile}
    hints = QueueingHints(profiles, QueuePlugins(profiles, clock), lambda _: False)
    return hints.may_help(queued, event, old, new)
