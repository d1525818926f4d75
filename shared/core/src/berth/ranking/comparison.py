"""Compares a shadow's ranking of a pod, or plan of a group, with the live one; adds the Decision (ADR 35). No I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from berth.api.meta import NAME_CHARACTERS
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth.messages.attempts import DecisionSummary, Preemption, Ranked, Rejection
from berth.messages.groupattempts import GroupRanked, subject_name
from berth.messages.shadow import (
    SHOWN_CANDIDATES,
    SHOWN_REJECTIONS,
    TEXT_CHARACTERS,
    ShadowComparison,
    ShadowFigures,
    ShadowResult,
    ShownRanking,
    SkipReason,
)

MOST_UNDECIDED: Final = 4096  # comparisons held for their Decision: many times the pods in flight
# Wait for a Decision: after it, the Decision was missed, or the pod waits minutes for a volume.
UNDECIDED_SECONDS: Final = 60.0


Side = Literal["live", "shadow"]


def best_node(ranked: Ranked) -> str:
    return ranked.candidates[0].node if ranked.candidates else ""


def skip_reason(live: Ranked | GroupRanked, profile: Profile | None) -> SkipReason | None:
    """Why a live ranking is skipped; ``None`` if it is compared. ``profile``: the shadow's of the same name."""
    if profile is None:
        return SkipReason.PROFILE
    error, pods = (live.plan.error, live.bundle.classes) if isinstance(live, GroupRanked) else (live.error, [live.pod])
    if error or live.behind:
        return SkipReason.LIVE
    return SkipReason.EXTENDERS if any(map(profile.asks_extenders, pods)) else None


def compare(live: Ranked, own: Ranked, *, shadow: str, rejection: Status | None = None) -> ShadowComparison:
    """Compare two rankings of one attempt. ``rejection``: the shadow's filter Status for the live best node."""
    apart, place = _points_apart(live, own)
    refused = rejection is not None and not rejection.is_success
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
        refused_by=rejection.plugin[:NAME_CHARACTERS] if refused and rejection is not None else "",
        reason=_cut(", ".join(rejection.reasons)) if refused and rejection is not None else "",
        live=_shown(live, besides=best_node(own)),
        own=_shown(own, besides=best_node(live)),
    )


def compare_plans(live: GroupRanked, own: GroupRanked, *, shadow: str) -> ShadowComparison:
    """Compare two plans of one attempt of a group. Equal pods are interchangeable: the number on each node counts."""
    elsewhere = _elsewhere(live, own)
    rejection = next(iter(_rejections(own)), None) if live.plan.is_found else None
    return ShadowComparison(
        config=own.config,
        shadow=shadow,
        attempt=live.attempt,
        profile=live.profile,
        namespace=live.group.namespace,
        pod=subject_name(live.group.key),
        uid=live.group.uid,
        result=_result_of_plans(live, own, elsewhere),
        elsewhere=elsewhere,
        refused_by="" if rejection is None else rejection.plugin[:NAME_CHARACTERS],
        reason="" if rejection is None else _cut(rejection.reason),
        live=_shown_plan(live),
        own=_shown_plan(own),
    )


def _elsewhere(live: GroupRanked, own: GroupRanked) -> int | None:
    if not live.plan.is_found or not own.plan.is_found:
        return None
    one, other = _places(live), _places(own)
    return max((one - other).total(), (other - one).total())


def _places(ranked: GroupRanked) -> Counter[tuple[int, str]]:
    """The number of members by class and node."""
    of_class = {member.uid: member.of_class for member in ranked.bundle.members}
    return Counter((of_class[member.uid], ranked.plan.nodes[member.node]) for member in ranked.plan.members)


def _result_of_plans(live: GroupRanked, own: GroupRanked, elsewhere: int | None) -> ShadowResult:
    if own.plan.error:
        return ShadowResult.ERROR
    if elsewhere is not None:
        return ShadowResult.NODE if elsewhere else ShadowResult.EQUAL
    if live.plan.is_found:
        return ShadowResult.REFUSED
    if own.plan.is_found:
        return ShadowResult.FEASIBLE
    same = (live.preemption is None) == (own.preemption is None)
    return ShadowResult.EQUAL if same else ShadowResult.PREEMPTION


def _rejections(ranked: GroupRanked) -> list[Rejection]:
    return [] if ranked.plan.is_found else [each for of_class in ranked.plan.classes for each in of_class.rejections]


def _shown_plan(ranked: GroupRanked) -> ShownRanking:
    plan = ranked.plan
    message = plan.message
    if plan.is_found:
        nodes = len({member.node for member in plan.members})
        domain = f", {plan.topology_key} {plan.domain}" if plan.domain else ""
        message = f"{len(plan.members)} members on {nodes} {'node' if nodes == 1 else 'nodes'}{domain}"
    elif ranked.preemption is not None:
        message = f"{message}; evictions would make room"
    return ShownRanking(
        scorer=ranked.scorer[:NAME_CHARACTERS],
        config=ranked.config[:NAME_CHARACTERS],
        rejections=_rejections(ranked)[:SHOWN_REJECTIONS],
        message=_cut(message),
        error=_cut(plan.error),
    )


def result_of(live: Ranked, own: Ranked) -> ShadowResult:
    """How the rankings compare; the live one has no error."""
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
    """Points lost on the live best node by the shadow's scores, and the node's place."""
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


def refusing_plugins(comparison: ShadowComparison, live: Ranked | GroupRanked) -> Iterator[tuple[Side, str]]:
    if comparison.refused_by:
        yield "shadow", comparison.refused_by
    if comparison.result is ShadowResult.FEASIBLE:
        blockers = {each.plugin for each in _rejections(live)} if isinstance(live, GroupRanked) else live.blockers
        yield from (("live", plugin[:NAME_CHARACTERS]) for plugin in blockers if plugin)


class AwaitedDecisions:
    """Comparisons without a Decision. ``now`` is in monotonic seconds."""

    def __init__(self) -> None:
        self._by_attempt: OrderedDict[str, tuple[ShadowComparison, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_attempt)

    def add(self, comparison: ShadowComparison, now: float) -> int:
        """Await a Decision; returns the number of older comparisons dropped."""
        self._by_attempt.pop(comparison.attempt, None)
        self._by_attempt[comparison.attempt] = comparison, now + UNDECIDED_SECONDS
        dropped = 0
        while len(self._by_attempt) > MOST_UNDECIDED:
            self._by_attempt.popitem(last=False)
            dropped += 1
        return dropped

    def decided(self, decision: DecisionSummary) -> ShadowComparison | None:
        """The comparison with its final Decision; ``None`` if not awaited."""
        if not decision.outcome.final:
            return None
        waiting = self._by_attempt.pop(decision.attempt, None)
        if waiting is None:
            return None
        return msgspec.structs.replace(waiting[0], outcome=decision.outcome, node=decision.node[:NAME_CHARACTERS])

    def expire(self, now: float) -> int:
        """Drop overdue comparisons; returns their number."""
        overdue = [attempt for attempt, (_, until) in self._by_attempt.items() if until <= now]
        for attempt in overdue:
            del self._by_attempt[attempt]
        return len(overdue)


# Plugins with a count of their own, because a hostile scorer may invent names.
MOST_PLUGINS: Final = 64


@dataclass(slots=True)
class ShadowCounts:
    results: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    refusals: dict[Side, Counter[str]] = field(default_factory=lambda: {"live": Counter(), "shadow": Counter()})
    _apart: int = 0
    _elsewhere: int = 0

    def count(self, comparison: ShadowComparison) -> None:
        self.results[comparison.result] += 1
        if comparison.result is ShadowResult.NODE and comparison.points_apart is not None:
            self._apart += comparison.points_apart
            self._elsewhere += 1

    def count_refusal(self, side: Side, plugin: str) -> bool:
        """Count a plugin that rejects the other side's node; returns whether under its own name."""
        counts = self.refusals[side]
        known = plugin in counts or len(counts) < MOST_PLUGINS
        if known:
            counts[plugin] += 1
        return known

    def figures(self, name: str) -> ShadowFigures:
        return ShadowFigures(
            name=name,
            compared=self.results.total(),
            results=dict(self.results),
            skipped=dict(self.skipped),
            refused_by=dict(self.refusals["shadow"]),
            placed_against=dict(self.refusals["live"]),
            points_apart=round(self._apart / self._elsewhere, 1) if self._elsewhere else None,
        )
