"""Messages of shadows: the numbers of each, and the last differences with both rankings. All of it is bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from berth.errors import DecodeError
from berth.messages.encoding import decode
from berth.messages.groupattempts import group_named
from berth.messages.shadow import (
    MOST_COMPARISON_BYTES,
    ShadowComparison,
    ShadowFigures,
    ShownRanking,
)
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.explain import candidate_json
from berth_cli.services import Seen

MOST_SHADOWS: Final = 8
TEXT_CHARACTERS: Final = 253
DIFFERENCES_KEPT: Final = 64  # per shadow: a page shows them with both rankings


class ShadowLine(msgspec.Struct, frozen=True, kw_only=True):
    process: str
    readiness: str
    figures: ShadowFigures


class DifferenceLine(msgspec.Struct, frozen=True, array_like=True):
    """A difference on the page. ``live`` and ``own`` are the best nodes, ``node`` is the Decision's.

    Of a group ``live`` and ``own`` say where its members would be, and ``elsewhere`` how many are on different nodes.
    """

    at: float
    shadow: str
    namespace: str
    pod: str
    profile: str
    result: str
    live: str
    own: str
    points_apart: int | None
    place: int | None
    refused_by: str
    outcome: str
    node: str
    elsewhere: int | None


@dataclass(slots=True)
class _KeptDifferences:
    by_pod: dict[PodName, ShadowComparison] = field(default_factory=dict)
    lines: deque[DifferenceLine] = field(default_factory=lambda: deque(maxlen=DIFFERENCES_KEPT))


class ShadowLog:
    """The present shadows, and the differences that pages have not received yet."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._by_shadow: dict[str, _KeptDifferences] = {}
        self._new: deque[DifferenceLine] = deque(maxlen=DIFFERENCES_KEPT)
        self._shadows: list[ShadowLine] = []
        self._sent: list[ShadowLine] = []

    def received(self, subject: str, data: bytes, at: float) -> None:
        """``at``: a time on NATS's clock."""
        try:
            comparison = _comparison(subject, data)
        except DecodeError:
            self.unreadable += 1
            return
        known = self._by_shadow.get(comparison.shadow)
        if known is None:
            if len(self._by_shadow) >= MOST_SHADOWS:
                return
            known = self._by_shadow[comparison.shadow] = _KeptDifferences()
        name = PodName(namespace=comparison.namespace, name=comparison.pod)
        known.by_pod.pop(name, None)
        known.by_pod[name] = comparison
        while len(known.by_pod) > DIFFERENCES_KEPT:
            del known.by_pod[next(iter(known.by_pod))]
        line = _line_of(comparison, at)
        known.lines.append(line)
        self._new.append(line)

    def seen(self, processes: Iterable[Seen]) -> None:
        found = [
            ShadowLine(process=one.name, readiness=one.statistics.readiness[:300], figures=one.statistics.shadow)
            for one in processes
            if one.statistics.shadow is not None
        ]
        self._shadows = sorted(found, key=lambda line: (line.figures.name, line.process))[:MOST_SHADOWS]

    def lines(self) -> list[DifferenceLine]:
        """The kept differences, oldest first."""
        return sorted((line for each in self._by_shadow.values() for line in each.lines), key=lambda line: line.at)

    def new_lines(self) -> list[DifferenceLine]:
        new = list(self._new)
        self._new.clear()
        return new

    def shadows(self) -> list[ShadowLine]:
        return self._shadows

    def changed_shadows(self) -> list[ShadowLine] | None:
        if self._shadows == self._sent:
            return None
        self._sent = self._shadows
        return self._shadows

    def document(self, shadow: str, name: PodName) -> dict[str, object]:
        """Both rankings of a pod.

        Raises:
            NotFoundError: no such difference is kept.
        """
        known = self._by_shadow.get(shadow)
        comparison = known.by_pod.get(name) if known is not None else None
        if comparison is None:
            raise NotFoundError(
                f"looking for {str(name)!r:.300} in shadow {shadow!r:.100}: it is not among the last "
                f"{DIFFERENCES_KEPT} differences that this console has received"
            )
        return {
            "shadow": comparison.shadow,
            "pod": str(name),
            "profile": comparison.profile,
            "result": comparison.result,
            "points_apart": comparison.points_apart,
            "place": comparison.place,
            "elsewhere": comparison.elsewhere,
            "refused_by": comparison.refused_by,
            "reason": comparison.reason,
            "live": {**_ranking_json(comparison.live), "outcome": comparison.outcome, "node": comparison.node},
            "own": _ranking_json(comparison.own),
        }


def _comparison(subject: str, data: bytes) -> ShadowComparison:
    """Read a difference.

    Raises:
        DecodeError: malformed, too large, or about another pod or shadow than its subject.
    """
    if len(data) > MOST_COMPARISON_BYTES:
        raise DecodeError(f"decoding a difference: want {MOST_COMPARISON_BYTES} bytes at most, got {len(data)}")
    comparison = decode(data, ShadowComparison)
    if comparison.subject != subject:
        raise DecodeError(f"decoding a difference: want it on {comparison.subject!r:.300}")
    return comparison


def _line_of(comparison: ShadowComparison, at: float) -> DifferenceLine:
    return DifferenceLine(
        at=at,
        shadow=comparison.shadow,
        namespace=comparison.namespace,
        pod=comparison.pod,
        profile=comparison.profile,
        result=comparison.result,
        live=_where(comparison, comparison.live),
        own=_where(comparison, comparison.own),
        points_apart=comparison.points_apart,
        place=comparison.place,
        refused_by=comparison.refused_by,
        outcome=comparison.outcome or "",
        node=comparison.node,
        elsewhere=comparison.elsewhere,
    )


def _where(comparison: ShadowComparison, ranking: ShownRanking) -> str:
    if group_named(comparison.namespace, comparison.pod) is not None:
        return (ranking.error or ranking.message)[:TEXT_CHARACTERS]
    return ranking.candidates[0].node[:253] if ranking.candidates else ""


def _ranking_json(ranking: ShownRanking) -> dict[str, object]:
    return {
        "scorer": ranking.scorer,
        "config": ranking.config,
        "evaluated": ranking.evaluated,
        "feasible": ranking.feasible,
        "candidates": [candidate_json(each, {}) for each in ranking.candidates],
        "rejections": msgspec.to_builtins(ranking.rejections),
        "preempts_on": ranking.preempts_on,
        "message": ranking.message,
        "error": ranking.error,
    }
