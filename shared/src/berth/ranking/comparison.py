"""What a shadow says: how its ranking of a pod differs from the live one, and what became of the pod (ADR 35).

A shadow ranks what live scorers have ranked, by another configuration, and binds nothing. Differences are broadcast on
``berth.shadow.<name>.<profile>.<namespace>.<pod>`` with both rankings, so that a person can read them side by side;
the numbers are in the shadow's metrics and statistics. Here is the comparison; nothing in it does I/O.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from berth.api.messages import (
    NAME_CHARACTERS,
    Candidate,
    DecisionSummary,
    Message,
    Outcome,
    Preemption,
    Ranked,
    Rejection,
)
from berth.api.subjects import PREFIX, escape_dotted, escape_token
from berth.framework.extending import is_interested
from berth.framework.profile import Profile
from berth.framework.status import Status

ALL_SHADOWS: Final = f"{PREFIX}.shadow.>"
SHADOW_SERVICE: Final = "shadow"
"""What a shadow is called among the services."""

SHOWN_CANDIDATES: Final = 8
"""Of each ranking, and the node that the other one has first."""
SHOWN_REJECTIONS: Final = 16
TEXT_CHARACTERS: Final = 1024
MOST_COMPARISON_BYTES: Final = 64 * 1024
"""Of a difference that is broadcast: ten times what one takes. A hostile scorer may write longer names."""

MOST_UNDECIDED: Final = 4096
"""Comparisons that wait for their Decision: many times what is in flight."""
UNDECIDED_SECONDS: Final = 60.0
"""After which the Decision is no longer awaited: it was missed, or a volume has the pod wait for minutes."""


class ShadowResult(StrEnum):
    """How two rankings of a pod compare."""

    EQUAL = "equal"
    """The same node is best, or neither finds one and both would evict on the same node or on none."""
    NODE = "node"
    """Another node is best."""
    REFUSED = "refused"
    """Only the live scorer finds a node."""
    FEASIBLE = "feasible"
    """Only the shadow finds a node."""
    PREEMPTION = "preemption"
    """Neither finds a node, and they differ in where evictions would make room."""
    ERROR = "error"
    """The shadow could not rank the pod."""


class SkipReason(StrEnum):
    """Why a live ranking was not compared."""

    BUSY = "busy"
    """More came than the shadow ranks."""
    MISSED = "missed"
    """NATS dropped the copy, or it cannot be decoded."""
    PROFILE = "profile"
    """The shadow's configuration has no profile of that name."""
    EXTENDERS = "extenders"
    """The shadow's profile has extenders for such a pod, and a shadow asks none."""
    LIVE = "live"
    """The live ranking failed, or was made on a view that was behind: it says nothing about the configuration."""
    UNDECIDED = "undecided"
    """No final Decision followed in time."""


Side = Literal["live", "shadow"]

_Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS + 4)]
_Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]


class ShownRanking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the two rankings, as far as a person reads it. ``preempts_on`` is where evictions would make room."""

    scorer: _Name = ""
    config: _Name = ""
    evaluated: int = 0
    feasible: int = 0
    nodes: int | None = None
    candidates: Annotated[list[Candidate], msgspec.Meta(max_length=2 * SHOWN_CANDIDATES)] = []
    rejections: Annotated[list[Rejection], msgspec.Meta(max_length=SHOWN_REJECTIONS)] = []
    preempts_on: _Name = ""
    message: _Text = ""
    error: _Text = ""


class ShadowComparison(Message, frozen=True, kw_only=True):
    """Two rankings of an attempt. ``config`` is the digest of the shadow's configuration.

    ``points_apart``: by how many of the shadow's points its best node is above the live one; ``place``: which place
    the live best node has among the shadow's nodes (nodes with more points, and 1). Both are ``None`` where the shadow
    has not scored that node; then ``refused_by`` is the plugin that refuses it, if one does, for ``reason``.
    ``outcome`` and ``node`` are the Decision's.
    """

    shadow: _Name
    attempt: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS + 42)]
    profile: _Name
    namespace: _Name
    pod: _Name
    uid: _Name
    result: ShadowResult
    points_apart: int | None = None
    place: int | None = None
    refused_by: _Name = ""
    reason: _Text = ""
    live: ShownRanking
    own: ShownRanking
    outcome: Outcome | None = None
    node: _Name = ""

    @property
    def subject(self) -> str:
        """Where it is broadcast: one subscription follows a pod in all shadows, another everything of one shadow."""
        profile, namespace = escape_token(self.profile), escape_token(self.namespace)
        return f"{PREFIX}.shadow.{escape_token(self.shadow)}.{profile}.{namespace}.{escape_dotted(self.pod)}"


def best_node(ranked: Ranked) -> str:
    """The first candidate's node; empty when there is none."""
    return ranked.candidates[0].node if ranked.candidates else ""


def why_not_compared(live: Ranked, profile: Profile | None) -> SkipReason | None:
    """Why a live ranking is not compared; ``None``: it is. ``profile`` is the shadow's of that name."""
    if profile is None:
        return SkipReason.PROFILE
    if live.error or live.behind:
        return SkipReason.LIVE
    if any(extender.is_asked and is_interested(extender, live.pod) for extender in profile.extenders):
        return SkipReason.EXTENDERS
    return None


def compare(live: Ranked, own: Ranked, *, shadow: str, refusal: Status | None = None) -> ShadowComparison:
    """Compare two rankings of one attempt. ``refusal``: what the shadow's filters say about the live best node."""
    apart, place = _points_apart(live, own)
    refused = refusal is not None and not refusal.is_success
    metadata = live.pod.metadata
    return ShadowComparison(
        config=own.config,
        shadow=shadow,
        attempt=live.attempt,
        profile=live.profile,
        namespace=metadata.namespace,
        pod=metadata.name,
        uid=metadata.uid,
        result=result_of(live, own),
        points_apart=apart,
        place=place,
        refused_by=refusal.plugin[:NAME_CHARACTERS] if refused and refusal is not None else "",
        reason=_cut(", ".join(refusal.reasons)) if refused and refusal is not None else "",
        live=_shown(live, besides=best_node(own)),
        own=_shown(own, besides=best_node(live)),
    )


def result_of(live: Ranked, own: Ranked) -> ShadowResult:
    """How the rankings compare; the live one has not failed."""
    if own.error:
        return ShadowResult.ERROR
    if live.candidates and own.candidates:
        return ShadowResult.EQUAL if best_node(live) == best_node(own) else ShadowResult.NODE
    if live.candidates:
        return ShadowResult.REFUSED
    if own.candidates:
        return ShadowResult.FEASIBLE
    same = _evicts_on(live.preemption) == _evicts_on(own.preemption)
    return ShadowResult.EQUAL if same else ShadowResult.PREEMPTION


def _evicts_on(preemption: Preemption | None) -> str:
    return "" if preemption is None else preemption.node


def _points_apart(live: Ranked, own: Ranked) -> tuple[int | None, int | None]:
    """By the shadow's points, and the live best node's place."""
    node = best_node(live)
    found = next((each for each in own.candidates if each.node == node), None)
    if found is None:
        return None, None
    place = found.place or 1 + sum(each.total > found.total for each in own.candidates)
    return max(0, own.candidates[0].total - found.total), place


def _shown(ranked: Ranked, *, besides: str) -> ShownRanking:
    first = ranked.candidates[:SHOWN_CANDIDATES]
    further = [each for each in ranked.candidates[SHOWN_CANDIDATES:] if each.node == besides]
    places = {each.node: place for place, each in enumerate(ranked.candidates, start=1)}
    further = [each if each.place else msgspec.structs.replace(each, place=places[each.node]) for each in further]
    return ShownRanking(
        scorer=ranked.scorer[:NAME_CHARACTERS],
        config=ranked.config[:NAME_CHARACTERS],
        evaluated=ranked.evaluated,
        feasible=ranked.feasible,
        nodes=ranked.nodes,
        candidates=[*first, *further],
        rejections=ranked.rejections[:SHOWN_REJECTIONS],
        preempts_on=_evicts_on(ranked.preemption)[:NAME_CHARACTERS],
        message=_cut(ranked.message),
        error=_cut(ranked.error),
    )


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:TEXT_CHARACTERS]}..."


def refusing_plugins(comparison: ShadowComparison, live: Ranked) -> Iterator[tuple[Side, str]]:
    """Which plugins keep the pod from where the other side would have it: the shadow's, then the live ones."""
    if comparison.refused_by:
        yield "shadow", comparison.refused_by
    if comparison.result is ShadowResult.FEASIBLE:
        yield from (("live", plugin[:NAME_CHARACTERS]) for plugin in live.blockers)


class AwaitedDecisions:
    """Comparisons whose Decision has not been read. ``now`` is in monotonic seconds."""

    def __init__(self) -> None:
        self._by_attempt: OrderedDict[str, tuple[ShadowComparison, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_attempt)

    def add(self, comparison: ShadowComparison, now: float) -> int:
        """Await its Decision; returns how many older ones are no longer awaited for it."""
        self._by_attempt.pop(comparison.attempt, None)
        self._by_attempt[comparison.attempt] = comparison, now + UNDECIDED_SECONDS
        dropped = 0
        while len(self._by_attempt) > MOST_UNDECIDED:
            self._by_attempt.popitem(last=False)
            dropped += 1
        return dropped

    def decided(self, decision: DecisionSummary) -> ShadowComparison | None:
        """The comparison with its final Decision; ``None`` when none waits for it."""
        if not decision.outcome.final:
            return None
        waiting = self._by_attempt.pop(decision.attempt, None)
        if waiting is None:
            return None
        return msgspec.structs.replace(waiting[0], outcome=decision.outcome, node=decision.node[:NAME_CHARACTERS])

    def expire(self, now: float) -> int:
        """Stop waiting for those that are overdue; returns how many they are."""
        overdue = [attempt for attempt, (_, until) in self._by_attempt.items() if until <= now]
        for attempt in overdue:
            del self._by_attempt[attempt]
        return len(overdue)


class ShadowFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shadow's numbers since it was started, as its statistics have them.

    ``refused_by`` counts, by plugin, the live best nodes that the shadow refuses; ``placed_against`` the live plugins
    that refused what the shadow would place. ``points_apart`` is the mean over the pods with another node.
    """

    name: _Name
    compared: int = 0
    results: Annotated[dict[_Name, int], msgspec.Meta(max_length=16)] = {}
    skipped: Annotated[dict[_Name, int], msgspec.Meta(max_length=16)] = {}
    refused_by: Annotated[dict[_Name, int], msgspec.Meta(max_length=64)] = {}
    placed_against: Annotated[dict[_Name, int], msgspec.Meta(max_length=64)] = {}
    points_apart: float | None = None


MOST_PLUGINS: Final = 64
"""Plugins that are counted apart: a hostile scorer may invent names."""


@dataclass(slots=True)
class ShadowCounts:
    """The numbers of a shadow, kept while it runs, also from one connection to the next."""

    results: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    refusals: dict[Side, Counter[str]] = field(default_factory=lambda: {"live": Counter(), "shadow": Counter()})
    _apart: int = 0
    _elsewhere: int = 0

    def count(self, comparison: ShadowComparison) -> None:
        """A comparison has its Decision."""
        self.results[comparison.result] += 1
        if comparison.result is ShadowResult.NODE and comparison.points_apart is not None:
            self._apart += comparison.points_apart
            self._elsewhere += 1

    def count_refusal(self, side: Side, plugin: str) -> bool:
        """A plugin kept the pod from where the other side would have it. Returns whether it is counted by its name."""
        counts = self.refusals[side]
        known = plugin in counts or len(counts) < MOST_PLUGINS
        if known:
            counts[plugin] += 1
        return known

    def figures(self, name: str) -> ShadowFigures:
        """The numbers now."""
        return ShadowFigures(
            name=name,
            compared=self.results.total(),
            results=dict(self.results),
            skipped=dict(self.skipped),
            refused_by=dict(self.refusals["shadow"]),
            placed_against=dict(self.refusals["live"]),
            points_apart=round(self._apart / self._elsewhere, 1) if self._elsewhere else None,
        )
