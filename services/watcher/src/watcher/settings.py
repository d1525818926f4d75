"""The watcher's own numbers, beside those that the services share (PROTOCOL 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.service.settings import Settings
from watcher.limits import AttemptSettings, BackOff, Patience


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
        patience=Patience(back_off=back_off),
    )
    return WatcherSettings(attempts=attempts)
