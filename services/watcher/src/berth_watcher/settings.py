"""How long pods wait for what, and how many are on their way: the numbers of the core.

The watcher's own numbers, beside those that the services share (PROTOCOL 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.process.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """How long a refused pod is left alone: doubling from the first to the longest."""

    first_seconds: float = 1.0
    longest_seconds: float = 10.0

    def seconds(self, failures: int) -> float:
        """After so many failures, one after the other."""
        doublings = min(max(failures, 1) - 1, 30)
        return float(min(self.first_seconds * 2**doublings, self.longest_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueSettings:
    """How long pods wait for what."""

    back_off: BackOff = field(default_factory=BackOff)
    longest_sleep_seconds: float = 300.0
    """After which an unschedulable pod is tried again without any event; kube-scheduler's five minutes."""
    preemption_seconds: float = 10.0
    """After which a pod is tried again whose victims are still going."""
    versions_seconds: float = 10.0
    """After which a conflict goes on though the reflectors have not reached what it names: a broken watch must not
    hold a pod for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """What is agreed on about attempts."""

    config: str = ""
    """The configuration's digest, written into every message."""
    window_floor: int = 64
    """Pods in flight that are always allowed."""
    silent_seconds: float = 10.0
    """After which an attempt of which nothing is heard is looked up, and again each time that it has passed."""
    patience: RequeueSettings = field(default_factory=RequeueSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherSettings:
    """How the watcher works."""

    attempts: AttemptSettings = field(default_factory=AttemptSettings)
    writes_at_once: int = 256
    """Writes of the mirror on the wire, 1 or more: enough to fill a round trip, few enough that a takeover of a large
    cluster does not hold up everything else in the connection's buffer."""
    look_ups_at_once: int = 64
    """Direct Gets at once during a takeover, 1 or more."""
    batch: int = 512
    """Events taken in before anything else may run, 1 or more: some milliseconds of work."""
    figures_every: timedelta = timedelta(seconds=1)
    """Between two updates of the gauges."""


def watcher_settings(settings: Settings, configuration: KubeSchedulerConfiguration) -> WatcherSettings:
    """The watcher's numbers that follow from those of all services and from the configuration."""
    numbers = settings.numbers
    back_off = BackOff(
        first_seconds=configuration.pod_initial_backoff.total_seconds(),
        longest_seconds=configuration.pod_max_backoff.total_seconds(),
    )
    attempts = AttemptSettings(
        config=configuration.digest,
        window_floor=numbers.window_floor,
        silent_seconds=numbers.silent_attempt.total_seconds(),
        patience=RequeueSettings(back_off=back_off),
    )
    return WatcherSettings(attempts=attempts)
