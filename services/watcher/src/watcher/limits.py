"""How long pods wait for what, and how many are on their way: the numbers of the core."""

from __future__ import annotations

from dataclasses import dataclass, field


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
class Patience:
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
    patience: Patience = field(default_factory=Patience)
