"""Who may lead, judged from a Lease and one's own clock. No I/O: Lease and clock come in, a decision goes out.

Times that a Lease carries are its holder's wall clock and are never reckoned with: a Lease is over when its record has
not been seen to change for its whole duration, by the clock of whoever looks.
"""

from __future__ import annotations

import socket
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from berth.api.lease import Lease, LeaseSpec
from berth.kube.timestamps import micro_time

JITTER_RATIO = 1.2
"""How much longer than a retry period the pause between two tries may come out, as in other Kubernetes clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How long a Lease lasts and how hard it is kept. They must keep: retry < renew deadline < duration."""

    duration: timedelta = timedelta(seconds=15)
    """How long others wait after the last change before they take the Lease; whole seconds, since the API has no parts.
    Longer: a dead leader is missed longer. Shorter than the 30 s of a proposal (PROTOCOL 7)."""
    renew_deadline: timedelta = timedelta(seconds=10)
    """How long after its last renewal a leader goes on leading. The rest of the duration is for what is on the wire."""
    retry_period: timedelta = timedelta(seconds=2)
    """Between two renewals, and between two looks of who waits: how late a Lease that was given back is taken."""
    clock_slack: timedelta = timedelta(seconds=2)
    """How far apart two machines' clocks may come within one duration, pauses of a scheduler of processes included."""

    def problems(self, path: str = "leaderElection") -> list[str]:
        """Everything that is wrong with them, each with its path and value; empty when nothing is."""
        found = []
        if self.duration < timedelta(seconds=1) or self.duration % timedelta(seconds=1):
            found.append(f"{path}.leaseDuration: want whole seconds, 1 or more, got {_seconds(self.duration)}")
        if self.renew_deadline + self.clock_slack >= self.duration:
            want = f"want less than leaseDuration ({_seconds(self.duration)}) - {_seconds(self.clock_slack)}"
            found.append(f"{path}.renewDeadline: {want}, got {_seconds(self.renew_deadline)}")
        if self.retry_period <= timedelta() or self.retry_period * JITTER_RATIO >= self.renew_deadline:
            want = f"want more than 0 s and {JITTER_RATIO} times it less than renewDeadline"
            found.append(
                f"{path}.retryPeriod: {want} ({_seconds(self.renew_deadline)}), got {_seconds(self.retry_period)}"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A Lease as it was read, and since when its record has been the same, on one's own clock."""

    lease: Lease
    unchanged_since: float

    @property
    def holder(self) -> str:
        """Who holds it; empty when nobody does."""
        return self.lease.spec.holder_identity or ""


class Decision(Enum):
    """What someone who wants to lead does about the Lease."""

    CREATE = auto()
    """There is none."""
    TAKE = auto()
    """It is free, or over, or one's own."""
    WAIT = auto()
    """Somebody holds it."""


def sight(before: Sighting | None, lease: Lease, now: float) -> Sighting:
    """The Lease has been read just now. A record that is the same as before keeps its age; annotations do not count."""
    same = before is not None and before.lease.metadata.uid == lease.metadata.uid and before.lease.spec == lease.spec
    return Sighting(lease=lease, unchanged_since=before.unchanged_since if same and before else now)


def is_live(sighting: Sighting, now: float) -> bool:
    """Whether somebody holds it and its duration has not passed since it was first seen, or seen to change."""
    seconds = sighting.lease.spec.lease_duration_seconds or 0
    return bool(sighting.holder) and now - sighting.unchanged_since < seconds


def decide(sighting: Sighting | None, identity: str, now: float) -> Decision:
    """What ``identity``, who does not lead, does about the Lease."""
    if sighting is None:
        return Decision.CREATE
    if sighting.holder == identity or not is_live(sighting, now):
        return Decision.TAKE
    return Decision.WAIT


def held_by(identity: str, before: LeaseSpec, settings: LeaseSettings, wall: datetime) -> dict[str, Any]:
    """The record by which ``identity`` takes or renews the Lease; taking it counts a transition, renewing does not."""
    renewing = before.holder_identity == identity
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": round(settings.duration.total_seconds()),
        "acquireTime": before.acquire_time if renewing and before.acquire_time else micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": (before.lease_transitions or 0) + (0 if renewing else 1),
    }


def released(before: LeaseSpec, wall: datetime) -> dict[str, Any]:
    """The record by which a holder gives the Lease back: nobody's, and over after a second for whoever reckons so."""
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": before.lease_transitions or 0,
    }


@dataclass(slots=True)
class Tenure:
    """A leadership by its holder's clock: it ends when its renewals do, and once over it stays over."""

    renewed_at: float
    deadline_seconds: float
    over: bool = False

    def expired(self, now: float) -> bool:
        """Whether the renew deadline has passed; others may begin only some seconds later."""
        self.over = self.over or self.seconds_left(now) <= 0
        return self.over

    def seconds_left(self, now: float) -> float:
        """Seconds until the renew deadline."""
        return self.renewed_at + self.deadline_seconds - now

    def renewed(self, sent_at: float, now: float) -> bool:
        """A renewal that was sent at ``sent_at`` is answered. Whether it came in time; later it changes nothing."""
        if self.expired(now):
            return False
        self.renewed_at = sent_at
        return True


def own_identity() -> str:
    """Host name and a uuid: another one in each process."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
