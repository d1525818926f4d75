"""Calls of the profiles' QueueSort and PreEnqueue plugins.

An exception or a timeout fails one pod: it is published with the reason, which the binder records for its owner. A
plugin that times out for several pods in a row is not called for a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

from berth.api.pod import Pod
from berth.framework.interface import Plugin
from berth.framework.plugincalls import (
    ONE_TIME,
    PluginFailure,
    PluginTimeout,
    SortKey,
    default_sort_key,
    run_pre_enqueue,
    run_sort_key,
)
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Status
from berth_watcher.events import Warn
from berth_watcher.queue.queuedpod import EventClock, QueuedPod

R = TypeVar("R")

MAX_TIMEOUTS: Final = 3  # consecutive timeouts of a plugin after which it is suspended
SUSPENDED_SECONDS: Final = 60.0  # also the interval between two warnings about a plugin, which may fail for every pod


class Place(NamedTuple):
    """A pod's place among the active pods, by the QueueSort plugin."""

    rank: SortKey  # its sort key at a fixed timestamp: equal for pods that only their age separates
    key: SortKey  # orders pods within their namespace


class QueuePlugins:
    """Calls plugins for one pod at a time, and keeps warnings about failures until ``take_warnings``."""

    def __init__(self, profiles: Mapping[str, Profile], clock: EventClock) -> None:
        self._profiles = profiles
        self._clock = clock
        self._warnings: list[Warn] = []
        self._timeouts: Counter[str] = Counter()
        self._suspended: dict[str, float] = {}
        self._warned: dict[str, float] = {}

    def place(self, pod: QueuedPod) -> Place:
        """The pod's place in the queue; the default plugin's if its own fails."""
        if not pod.failure:
            try:
                return Place(self.sort_key(pod.pod, ONE_TIME), self.sort_key(pod.pod, pod.timestamp))
            except PluginFailure as failure:
                pod.record_failure(failure, self._clock.now)
        return Place(default_sort_key(pod.pod, ONE_TIME), default_sort_key(pod.pod, pod.timestamp))

    def sort_key(self, pod: Pod, since: datetime) -> SortKey:
        """The pod's sort key with ``since`` as its timestamp.

        Raises:
            PluginFailure: the plugin failed for this pod.
        """
        plugin = self._profiles[pod.spec.scheduler_name].queue_sort
        return self.call(plugin, pod, partial(run_sort_key, plugin, pod, since))

    def pre_enqueue(self, pod: Pod) -> Status:
        """Run the PreEnqueue plugins until one rejects the pod.

        Raises:
            PluginFailure: one of them failed for this pod.
        """
        for plugin in self._profiles[pod.spec.scheduler_name].pre_enqueues:
            status = self.call(plugin, pod, partial(run_pre_enqueue, plugin, pod))
            if not status.is_success:
                return status
        return SUCCESS

    def take_warnings(self) -> list[Warn]:
        """Warnings about failures since the last call, at most one per plugin and minute."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def call(self, plugin: Plugin, pod: Pod, work: Callable[[], R]) -> R:
        """Do this work of the plugin for the pod.

        Raises:
            PluginFailure: the plugin failed for this pod, or is suspended.
        """
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
            self._warnings.append(Warn(message="a plugin failed", fields={"pod": pod.key, "error": str(failure)}))
