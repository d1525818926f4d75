"""The faults of a run, drawn before it starts: the same seed gives the same faults at the same instants."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Seconds = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: when it begins, how long it lasts, and the seed of the choices that it makes when it happens."""

    at: float
    kind: str
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind} for {self.seconds:.1f} s"


def draw(seed: int, *, faults: int, gap_seconds: float, kinds: Mapping[str, Seconds]) -> Sequence[Fault]:
    """Draw so many faults: each kind as often as every other, in random order, at random instants.

    `kinds` has the shortest and longest duration of each.
    """
    chance = random.Random(seed)
    deck: list[str] = []
    while len(deck) < faults:
        names = sorted(kinds)
        chance.shuffle(names)
        deck += names
    drawn, at = [], 0.0
    for kind in deck[:faults]:
        at += chance.expovariate(1 / gap_seconds)
        drawn.append(Fault(at=at, kind=kind, seconds=chance.uniform(*kinds[kind]), seed=chance.getrandbits(32)))
    return drawn
