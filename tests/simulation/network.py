"""What lies between the processes and the servers: delays, and what gets lost on the way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from simulation.loop import SimulatedProcess, VirtualLoop

Trace = Callable[[str, str, str], None]
"""Called with who, what and the particulars."""


class Fate(Enum):
    """What becomes of a request."""

    ANSWERED = auto()
    LOST = auto()
    """It never arrives."""
    UNANSWERED = auto()
    """It is carried out, and the answer is lost."""
    LATE = auto()
    """It is carried out after its client has given up."""


@dataclass
class Link:
    """One process's way to one server. The script of a run changes it."""

    is_cut: bool = False
    """Nothing passes; nobody notices at once (half open)."""
    lost: float = 0.0
    """Share of the requests that get another fate than an answer."""
    delay: float = 0.001
    """Seconds one way, at most."""
    late_bindings: bool = False
    """Bindings arrive long after their client has given up."""
    held_bindings: bool = False
    """Bindings arrive when the next binder leads."""
    slow_messages: float = 0.0
    """Seconds by which what the server sends on its own (deliveries, watch events) is late, at most."""
    slow_kinds: dict[str, float] = field(default_factory=dict)
    """By kind, the seconds by which its watch events are late, at most."""
    slow_mirror: float = 0.0
    """Seconds by which writes to the bucket ``cluster`` arrive late, at most: only its stream is busy."""
    slow_readers: float = 0.0
    """Seconds by which what a stream has stored reaches its readers late, at most; deliveries of a queue do not."""


@dataclass
class Network:
    """All links, and the chance of the run."""

    loop: VirtualLoop
    chance: random.Random
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    """How often each fault has happened."""
    late_until: float = 0.0
    """When the last of the late requests arrives, by the loop's time."""

    held: list[Callable[[], None]] = field(default_factory=list)
    """Requests that arrive when the next binder leads."""

    on_leading: list[Callable[[], object]] = field(default_factory=list)
    """Called once, when the next binder leads."""

    def hold(self, arrive: Callable[[], None]) -> None:
        self.count("api: held until the next binder leads")
        self.held.append(arrive)

    def release(self) -> None:
        """A binder leads: what was held arrives before, in and after its takeover."""
        waiting, self.on_leading = self.on_leading, []
        for callback in waiting:
            callback()
        held, self.held = self.held, []
        for arrive in held:
            self.loop.in_world(self.late(self.chance.choice((0.05, 0.5, 3.0)) * self.chance.random()), arrive)

    def late(self, seconds: float) -> float:
        """A request arrives so much later."""
        self.late_until = max(self.late_until, self.loop.time() + seconds)
        return seconds

    def link(self, process: SimulatedProcess, server: str) -> Link:
        """The way from a process to ``api`` or ``bus``."""
        return self.links.setdefault((process.name, server), Link())

    @property
    def is_slow(self) -> bool:
        """Whether requests take long on some link."""
        return any(link.delay > Link.delay for link in self.links.values())

    def latency(self, link: Link) -> float:
        """Seconds of one way."""
        return link.delay * (0.2 + 0.8 * self.chance.random())

    def fate(self, link: Link, server: str) -> Fate:
        """What becomes of the next request."""
        if link.is_cut:
            self.count(f"{server}: request into a cut link")
            return Fate.LOST
        if not link.lost or self.chance.random() >= link.lost:
            return Fate.ANSWERED
        fate = self.chance.choice((Fate.LOST, Fate.UNANSWERED, Fate.UNANSWERED, Fate.LATE))
        self.count(f"{server}: {fate.name.lower()}")
        return fate

    def count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1
