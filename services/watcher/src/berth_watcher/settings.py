"""The watcher's settings, beside the shared ones (docs/protocol.md, 7)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.clock import Backoff
from berth.settings.settings import V_STEP, Settings

# kube-scheduler's back-off after a failed attempt, with its defaults.
POD_BACKOFF: Final = Backoff(initial=timedelta(seconds=1), maximum=timedelta(seconds=10), jitter_ratio=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueSettings:
    """How long pods wait."""

    backoff: Backoff = POD_BACKOFF
    max_unschedulable_seconds: float = 300.0
    """Until an unschedulable pod is tried again without an event: kube-scheduler's five minutes."""
    preemption_seconds: float = 10.0
    """Until a pod is tried again although not all its victims are gone."""
    versions_seconds: float = 10.0
    """Until a pod is tried again although the reflectors have not reached the versions that its conflict names: a
    broken watch must not block a pod for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    config: str = ""
    """The configuration's digest, written into every message."""
    window_floor: int = 64
    """Slots that the window has at least."""
    look_up_seconds: float = 10.0
    """Until an attempt without a Decision is looked up on the bus, and between two look-ups."""
    requeue: RequeueSettings = field(default_factory=RequeueSettings)
    logs_stages: bool = False
    """If true, log each stage of a pod (at V_STEP)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherSettings:
    attempts: AttemptSettings = field(default_factory=AttemptSettings)
    max_writes: int = 256
    """Writes of the mirror in flight, 1 or more: enough to fill a round trip, few enough that a takeover of a large
    cluster does not delay other messages in the connection's buffer."""
    slice: timedelta = timedelta(milliseconds=30)
    """Work of the core before other tasks run, such as the renewal of the Lease: two thirds for events, the rest for
    the pods that they may help. Short against the seconds of a renewal, long against the microseconds of a turn of
    the event loop."""
    gauge_interval: timedelta = timedelta(seconds=1)
    """Between two updates of the gauges."""
    stalled: timedelta = timedelta(seconds=30)
    """Until a leader gives up that does no work although pods wait for it. Longer than the look-up interval of an
    attempt, so that looking up pods that wait for other services counts as work."""


def watcher_settings(settings: Settings, configuration: KubeSchedulerConfiguration) -> WatcherSettings:
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
        logs_stages=settings.log.verbosity >= V_STEP,
    )
    return WatcherSettings(attempts=attempts)
