"""The binder's settings, beside the shared ones (docs/protocol.md, 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from berth.clock import Backoff
from berth.settings.settings import Settings

# Back-off after failed requests of a pod. An API server fails over within a few hundred milliseconds; the maximum is
# well below Lease and proposal, so that a pod is bound soon after the API server answers again.
API_BACKOFF: Final = Backoff(initial=timedelta(milliseconds=100), maximum=timedelta(seconds=5))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    max_in_flight: int = 32
    """Requests to the API server in flight; 1 is strictly serial."""
    max_exceptions: int = 5
    """Exceptions in the binder for one pod until its attempt ends in an error (docs/protocol.md, 6)."""
    max_conflicts: int = 3
    """409 answers in a row before a back-off, because a client writes the pod faster than the binder reads it."""
    unseen_wait: timedelta = timedelta(milliseconds=100)
    """Wait for the watch to show a pod before it is read: several times a watch's delay (docs/protocol.md, 5)."""
    waiting_interval: timedelta = timedelta(seconds=10)
    """Between two ``waiting`` Decisions: a third of the 30 s for which a scorer counts a proposal after the last."""
    group_earmark_seconds: float = 0.0
    """How long a group waits until nodes are earmarked for it; 0: none are."""
    plugin_interval: timedelta = timedelta(seconds=1)
    """Time until a plugin that answered WAIT is called again, while few pods wait."""
    plugin_step: timedelta = timedelta(milliseconds=2)
    """Added to that for each waiting pod. So all of them cost a fifth of a core at most (0.3 ms each at 5,000 nodes),
    and thousands of pods whose volumes never come delay no other pod."""
    backoff: Backoff = API_BACKOFF


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """Limits of Events and conditions."""

    per_second: float = 1000.0
    """Requests a second, above 0. An Event costs the API server about 1 ms of CPU, so this is one core at most."""
    burst: int = 200
    """Requests at once after a quiet time, 1 or more."""
    refusals_per_second: float = 100.0
    """Of these, requests a second for unbound pods, above 0: two a pod. kube-scheduler's client sends 50 requests a
    second by default, Bindings included."""
    refusals_burst: int = 200
    """Of these, requests at once for unbound pods, 1 or more."""
    queued: int = 10_000
    """Pending records, 1 or more: about 30 MB of pods. A new record drops the oldest."""
    in_flight: int = 16
    """Requests in flight while no Binding waits."""
    in_flight_behind_bindings: int = 8
    """Requests in flight while Bindings wait. In a long drain Events must be sent too, or all come at its end."""
    series: int = 10_000
    """Remembered warnings: a repeat is counted in its series and creates no other Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderSettings:
    core: CoreSettings = field(default_factory=CoreSettings)
    events: EventSettings = field(default_factory=EventSettings)
    slice: timedelta = timedelta(milliseconds=20)
    """Work of the core before other tasks run, such as the renewal of the Lease: about 64 messages are examined."""
    max_unacked: int = 1024
    """Messages held at once, waiting pods excluded: far more than in flight, so that no place in flight stays free."""
    keep_alive: timedelta = timedelta(seconds=10)
    """Between two ``in_progress`` for held messages: a third of the ack_wait, so that two may be lost."""
    binding_timeout: timedelta = timedelta(seconds=10)
    """Time after which a Binding counts as unanswered. The pod is read then: too short a time costs one request."""
    stalled: timedelta = timedelta(seconds=30)
    """Time for which messages may wait without one being examined; then the binder is not ready and gives up its Lease.
    Three times the timeout of a request: even with every place taken by unanswered requests, one is free again by then.
    """
    finish: timedelta = timedelta(seconds=5)
    """Time to wait at the stop for requests in flight: half of the 10 s in which the process has to end."""
    evicts_partial_groups: bool = False
    """Evict groups that this epoch has begun and never seen whole, one a minute (docs/protocol.md, 5.24)."""
    unanswered_delay: timedelta = timedelta(seconds=5)
    """Redelivery delay of a message whose term could not be looked up, because NATS did not answer."""


def binder_settings(settings: Settings) -> BinderSettings:
    numbers = settings.numbers
    core = CoreSettings(
        max_in_flight=numbers.max_in_flight_bindings, group_earmark_seconds=settings.group_earmark_seconds
    )
    return BinderSettings(
        core=core, keep_alive=numbers.binder_ack_wait / 3, evicts_partial_groups=settings.partial_groups == "evict"
    )
