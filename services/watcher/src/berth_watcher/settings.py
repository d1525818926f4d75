"""The watcher's own numbers: how long pods wait for what, and how much is done at once.

The numbers that the services share are in ``berth.settings.settings`` (docs/protocol.md, 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.clock import Backoff
from berth.settings.settings import V_STEP, Settings

POD_BACKOFF: Final = Backoff(initial=timedelta(seconds=1), maximum=timedelta(seconds=10), jitter_ratio=0)
"""kube-scheduler's back-off of a pod after a failed attempt, with its defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueSettings:
    """How long pods wait for what."""

    backoff: Backoff = POD_BACKOFF
    max_unschedulable_seconds: float = 300.0
    """After which an unschedulable pod is tried again without an event: kube-scheduler's five minutes."""
    preemption_seconds: float = 10.0
    """After which a pod is tried again whose victims have not all left."""
    versions_seconds: float = 10.0
    """After which a conflict goes on although the reflectors have not reached the versions that it names. A broken
    watch must not hold a pod for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """How attempts are published and followed."""

    config: str = ""
    """The configuration's digest, written into every message."""
    window_floor: int = 64
    """Slots that the window always has."""
    look_up_seconds: float = 10.0
    """After which an attempt without a message is looked up on the bus, and again after each such time."""
    requeue: RequeueSettings = field(default_factory=RequeueSettings)
    notes_stages: bool = False
    """Whether to note each stage of a pod, for the log at V_STEP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherSettings:
    """How the watcher works."""

    attempts: AttemptSettings = field(default_factory=AttemptSettings)
    max_writes: int = 256
    """Writes of the mirror in flight, 1 or more: enough to fill a round trip, few enough that a takeover of a large
    cluster does not hold up everything else in the connection's buffer."""
    slice: timedelta = timedelta(milliseconds=30)
    """Work of the core before other tasks run, such as the renewal of the Lease: two thirds of it for events, the rest
    for the pods that they may help. Short against the seconds that a renewal has, long against the microseconds that a
    turn of the event loop costs."""
    gauge_interval: timedelta = timedelta(seconds=1)
    """Between two updates of the gauges."""
    stalled: timedelta = timedelta(seconds=30)
    """After which a leader gives up that does nothing about pods that wait for it. Longer than a look-up of an
    attempt takes to come round, so that pods which wait for other services are looked at meanwhile."""


def watcher_settings(settings: Settings, configuration: KubeSchedulerConfiguration) -> WatcherSettings:
    """The watcher's numbers that follow from those of all services and from the configuration."""
    numbers = settings.numbers
    backoff = replace(
        POD_BACKOFF,
        initial=configuration.pod_initial_backoff,
        maximum=configuration.pod_max_backoff,
    )
    attempts = AttemptSettings(
        config=configuration.digest,
        window_floor=numbers.window_floor,
        look_up_seconds=numbers.silent_attempt.total_seconds(),
        requeue=RequeueSettings(backoff=backoff),
        notes_stages=settings.log.verbosity >= V_STEP,
    )
    return WatcherSettings(attempts=attempts)
