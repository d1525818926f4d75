"""Calls of the profiles' plugins in the watcher: QueueSort, PreEnqueue, and the queueing hints.

What one of them raises, and a call that takes too long, is the failure of one pod: it is published with the reason, so
that the binder tells the pod's owner; a hint that fails counts as yes. A plugin that takes too long for one pod after
the other is left alone for a minute, so that it does not hold up the pods of other plugins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from berth.api.messages import Outcome
from berth.api.pod import Pod
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import Plugin
from berth.framework.plugincalls import (
    PluginFailure,
    PluginTimeout,
    SortKey,
    run_hint,
    run_pre_enqueue,
    run_sort_key,
)
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Status
from berth_watcher.queue import EventClock, QueuedPod

R = TypeVar("R")

VICTIM_DELETED: Final = ClusterEvent(Resource.POD, Action.DELETE)
"""A pod whose victims were evicted waits for this, whatever its unschedulable plugins registered for."""


MAX_TIMEOUTS: Final = 3
"""Consecutive calls of a plugin that took too long, after which it is not called for some time."""
SUSPENDED_SECONDS: Final = 60.0
"""How long it is not called. Also the time between two warnings about a plugin, which may fail for every pod."""


class QueuePlugins:
    """Calls plugins. Failures are reported to ``warn`` with the pod."""

    def __init__(self, profiles: Mapping[str, Profile], clock: EventClock, warn: Callable[[str, str], None]) -> None:
        self._profiles = profiles
        self._clock = clock
        self._warn = warn
        self._timeouts: Counter[str] = Counter()
        self._suspended: dict[str, float] = {}
        self._warned: dict[str, float] = {}
        self._of_interest: dict[ClusterEvent, bool] = {}

    def sort_key(self, pod: Pod, since: datetime) -> SortKey:
        """The pod's place in the queue.

        Raises:
            PluginFailure: the plugin failed for this pod.
        """
        plugin = self._profiles[pod.spec.scheduler_name].queue_sort
        return self._call(plugin, pod, partial(run_sort_key, plugin, pod, since))

    def pre_enqueue(self, pod: Pod) -> Status:
        """Whether the PreEnqueue plugins let the pod into the queue.

        Raises:
            PluginFailure: one of them failed for this pod.
        """
        for plugin in self._profiles[pod.spec.scheduler_name].pre_enqueues:
            status = self._call(plugin, pod, partial(run_pre_enqueue, plugin, pod))
            if not status.is_success:
                return status
        return SUCCESS

    def may_help(self, pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether an event may help a pod: one that no plugin rejected, or one without events, is helped by any."""
        if pod.outcome is Outcome.PREEMPTING and VICTIM_DELETED.matches(event):
            return not isinstance(old, Pod) or not pod.node or old.spec.node_name == pod.node
        profile = self._profiles[pod.profile]
        if not pod.unschedulable_plugins:
            return True
        for name in pod.unschedulable_plugins:
            hints = profile.event_hints.get(name)
            if hints is None:
                return True
            plugin = profile.requeueing[name]
            if any(hint.event.matches(event) and self.ask(plugin, hint, pod.pod, old, new) for hint in hints):
                return True
        return False

    def ask(self, plugin: Plugin, hint: EventHint, pod: Pod, old: object, new: object) -> bool:
        """Whether one hint says that an event may help a pod."""
        try:
            return self._call(plugin, pod, partial(run_hint, plugin, hint, pod, old, new))
        except PluginFailure:
            return True

    def is_event_of_interest(self, event: ClusterEvent) -> bool:
        """Whether any plugin of any profile registered for the event, so that it has to be remembered."""
        answer = self._of_interest.get(event)
        if answer is None:
            registered = (hints for profile in self._profiles.values() for hints in profile.event_hints.values())
            answer = self._of_interest[event] = VICTIM_DELETED.matches(event) or any(
                hints is None or any(hint.event.matches(event) for hint in hints) for hints in registered
            )
        return answer

    def _call(self, plugin: Plugin, pod: Pod, work: Callable[[], R]) -> R:
        if self._suspended and self._clock.now < self._suspended.get(plugin.name, 0.0):
            raise PluginTimeout(f'plugin "{plugin.name}" is not called, since it took too long for several pods')
        try:
            result = work()
        except PluginTimeout as failure:
            self._timeouts[plugin.name] += 1
            if self._timeouts[plugin.name] >= MAX_TIMEOUTS:
                del self._timeouts[plugin.name]
                self._suspended[plugin.name] = self._clock.now + SUSPENDED_SECONDS
            self._report(plugin, pod, failure)
            raise
        except PluginFailure as failure:
            self._report(plugin, pod, failure)
            raise
        if self._timeouts:
            self._timeouts.pop(plugin.name, None)
        return result

    def _report(self, plugin: Plugin, pod: Pod, failure: PluginFailure) -> None:
        if self._clock.now >= self._warned.get(plugin.name, 0.0):
            self._warned[plugin.name] = self._clock.now + SUSPENDED_SECONDS
            self._warn(str(failure), pod.key)
