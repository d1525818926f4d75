"""The binder's own numbers, beside those that the services share (docs/protocol.md, 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from berth.clock import Backoff
from berth.settings.settings import Settings

API_BACKOFF: Final = Backoff(initial=timedelta(milliseconds=100), maximum=timedelta(seconds=5))
"""After requests for one pod that failed. An API server that fails over is back within a few hundred milliseconds; the
maximum is well below Lease and proposal, so that a pod is bound soon after the API server answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """The core's numbers."""

    max_in_flight: int = 32
    """Requests to the API server under way at once; 1 is strictly serial."""
    max_exceptions: int = 5
    """Exceptions in the binder for one pod until its attempt ends in an error (docs/protocol.md, 6)."""
    max_conflicts: int = 3
    """409 answers in a row after which to back off: a client writes the pod faster than the binder reads it."""
    unseen_wait: timedelta = timedelta(milliseconds=100)
    """How long a pod that the watch has not shown yet is waited for before it is read: several times what a watch is
    behind (docs/protocol.md, 5)."""
    max_view_age: timedelta = timedelta(seconds=60)
    """The oldest view on which pods are evicted. A quiet kind is known to be complete every 20 to 30 s, when its watch
    ends; twice that means that no watcher writes the mirror."""
    waiting_interval: timedelta = timedelta(seconds=10)
    """Between two ``waiting`` Decisions; a third of the 30 s for which a scorer counts a proposal after the last."""
    plugin_interval: timedelta = timedelta(seconds=1)
    """After which a plugin that answered WAIT is called again, while few pods wait."""
    plugin_step: timedelta = timedelta(milliseconds=2)
    """How much longer that takes for each pod that waits: so all of them cost a fifth of a core at most (0.3 ms each at
    5,000 nodes), and thousands whose volumes never come delay no other pod."""
    nak_delay: timedelta = timedelta(seconds=5)
    """After which a message of an unknown profile is redelivered: a binder that has it may lead by then."""
    backoff: Backoff = API_BACKOFF


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """How many Events and conditions are sent."""

    per_second: float = 1000.0
    """Requests a second, above 0. An Event costs the API server about 1 ms of CPU: this is one core of it at most."""
    burst: int = 200
    """Requests that may be sent at once after a quiet time, 1 or more."""
    refusals_per_second: float = 100.0
    """Of these, Events and conditions of pods that are not bound, above 0: two a pod. kube-scheduler's client sends 50
    requests a second, Bindings included, unless it is told otherwise."""
    refusals_burst: int = 200
    """The same at once after a quiet time, 1 or more."""
    queued: int = 10_000
    """Records that may wait, 1 or more: about 30 MB of pods. The oldest is dropped for a new one."""
    in_flight: int = 16
    """Requests under way at once while no Binding waits."""
    in_flight_behind_bindings: int = 8
    """The same while Bindings wait: in a long drain Events must be sent too, or all come at its end."""
    series: int = 10_000
    """Warnings that are remembered for a time, so that a repeat is counted in its series and creates no other Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderSettings:
    """The numbers of the service round the core."""

    core: CoreSettings = field(default_factory=CoreSettings)
    events: EventSettings = field(default_factory=EventSettings)
    slice: timedelta = timedelta(milliseconds=20)
    """Work of the core before other tasks run, such as the renewal of the Lease: about 64 messages are examined."""
    max_unacked: int = 1024
    """Messages held at once, without those of pods that wait: far more than are in flight, so that none is missed."""
    keep_alive: timedelta = timedelta(seconds=10)
    """Between two ``in_progress`` for held messages: a third of the ack_wait, so that two may be lost."""
    binding_timeout: timedelta = timedelta(seconds=10)
    """After which a Binding counts as not answered. The pod is read then: too short a time costs one request."""
    stalled: timedelta = timedelta(seconds=30)
    """How long messages may wait without any being examined; then the binder is not ready and gives up its Lease. Three
    times what a request may take: with all places taken by requests without an answer, one is free again by then."""
    finish: timedelta = timedelta(seconds=5)
    """How long to wait for requests under way on stopping: half of the 10 s in which the process has to end."""
    unknown_schema_delay: timedelta = timedelta(seconds=5)
    """After which a message of an unknown newer schema is redelivered: a newer binder may lead by then."""


def binder_settings(settings: Settings) -> BinderSettings:
    """The binder's numbers that follow from those of all services."""
    numbers = settings.numbers
    core = CoreSettings(max_in_flight=numbers.max_in_flight_bindings)
    return BinderSettings(core=core, keep_alive=numbers.binder_ack_wait / 3)
