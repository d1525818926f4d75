"""What a simulation decided: a value for each pod, and counts over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class NodeRejection(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin that rejected a node, and its reasons."""

    plugin: str
    reasons: tuple[str, ...]


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a pod: a line of ``-o json``, these members and no others.

    ``scores`` are weighted, by plugin and node; a plugin that skipped itself is not listed. A single feasible node is
    not scored: then ``scores`` and ``totals`` are empty. ``message`` is the reason why there is no node, ``None`` when
    there is one. ``nominated`` is the node where ``victims``, pods by name, would be evicted.
    """

    pod: str
    profile: str
    bound: str | None = None
    feasible: list[str] = []
    scores: dict[str, dict[str, int]] = {}
    totals: dict[str, int] = {}
    rejections: dict[str, NodeRejection] = {}
    message: str | None = None
    nominated: str | None = None
    victims: list[str] = []


@dataclass(slots=True)
class ReportCounts:
    """How many pods there were, got a node, or would get one by preemption; ``nodes`` are those that got pods."""

    pods: int = 0
    placed: int = 0
    nominated: int = 0
    nodes: set[str] = field(default_factory=set)

    def add(self, one: PodReport) -> None:
        self.pods += 1
        self.nominated += one.nominated is not None
        if one.bound is not None:
            self.placed += 1
            self.nodes.add(one.bound)
