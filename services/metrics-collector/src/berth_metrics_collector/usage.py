"""From the rows of one query to each node's use of CPU and memory with its time. Pure.

CPU is a rate, which is corrected as traffic is; percentiles, deviation and memory need no correction. An exporter whose
series is too young leaves itself out, so that its node keeps its last sample, which ages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from berth.api.config.nodeload.queries import MeasuredResource, Statistic
from berth.messages.livedata import MAX_TIME, MAX_USAGE, MeasuredUsage, NodeSample, utc_time
from berth_metrics_collector.samples import NodeSamples, Target, age_order, differing_labels, rate_correction

MILLI = 1000
_UNITS: Final[Mapping[MeasuredResource, str]] = {"cpu": "millicores", "memory": "bytes"}
Values = Mapping[Target, float]
Allocatable = Mapping[MeasuredResource, float]  # of a node: millicores, bytes
NOTHING: Final[Mapping[Any, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageValues:
    """The values of one round, by exporter: cores of CPU, bytes of memory. Each may lack exporters."""

    cpu: Mapping[Statistic, Values]
    memory: Mapping[Statistic, Values]
    young: Values
    scraped_at: Values
    young_since: Values = field(default_factory=dict)
    gapped: Values = field(default_factory=dict)
    cpu_over_gaps: Values = field(default_factory=dict)
    had_cpu: AbstractSet[Target] = frozenset()  # exporters with CPU in the round before

    @property
    def targets(self) -> frozenset[Target]:
        return frozenset(self.scraped_at)

    @property
    def with_cpu(self) -> AbstractSet[Target]:
        return self.cpu["average"].keys()


def usage_samples(
    values: UsageValues,
    intervals: Mapping[str, float],
    node_of: Mapping[Target, str],
    time_range: timedelta,
    allocatable: Mapping[str, Allocatable] = NOTHING,
) -> NodeSamples:
    """One sample per node with a current value, of the exporter that was scraped last.

    ``intervals``: seconds between scrapes, by job. ``node_of`` has the nodes of exporters, ``allocatable`` what these
    have. An exporter without a rate of CPU leaves itself out if it had one before: it has too few scrapes.
    """
    by_node: dict[str, list[tuple[Target, NodeSample]]] = {}
    over_gaps = {target: rate for target, rate in values.cpu_over_gaps.items() if rate >= 0}
    cpu_values = {**values.cpu, "average": {**values.cpu["average"], **over_gaps}} if over_gaps else values.cpu
    has_lost_cpu = values.had_cpu - values.with_cpu
    has_unknown_cpu = (values.gapped.keys() & values.with_cpu) - over_gaps.keys()
    young = values.young
    unusable: dict[str, str] = {}
    for target, at in values.scraped_at.items():
        node, factor = node_of.get(target), 1.0
        if node is None or target in has_lost_cpu or target in has_unknown_cpu:
            continue
        if not 0 <= at <= MAX_TIME:
            unusable.setdefault(node, f"time of the scrape: want a year of 1970 to 2286, got {at:g}")
            continue
        if target in young:
            elapsed = at - values.young_since.get(target, at)
            corrected = rate_correction(young[target], intervals.get(target.job), time_range, elapsed)
            if corrected is None:
                continue
            factor = corrected
        has = allocatable.get(node, NOTHING)
        cpu, cpu_reason = _usage("cpu", _amounts(cpu_values, target, MILLI, factor * MILLI), has)
        memory, memory_reason = _usage("memory", _amounts(values.memory, target, 1, 1), has)
        if reason := cpu_reason or memory_reason:
            unusable.setdefault(node, reason)
        if cpu is not None or memory is not None:
            sample = NodeSample(cpu=cpu, memory=memory, sampled_at=utc_time(at))
            by_node.setdefault(node, []).append((target, sample))
    repeated = {node: [target for target, _ in found] for node, found in by_node.items() if len(found) > 1}
    return NodeSamples(
        samples={node: _newest(found, values.scraped_at) for node, found in by_node.items()},
        duplicates=tuple(sorted(repeated)),
        differing=tuple(sorted({label for targets in repeated.values() for label in differing_labels(targets)})),
        unusable=unusable,
    )


def _newest(found: Sequence[tuple[Target, NodeSample]], scraped_at: Values) -> NodeSample:
    if len(found) == 1:
        return found[0][1]
    return max(found, key=lambda one: age_order(one[0], scraped_at[one[0]]))[1]


def _amounts(
    values: Mapping[Statistic, Values], target: Target, factor: float, factor_of_average: float
) -> dict[Statistic, float]:
    return {
        statistic: value * (factor_of_average if statistic == "average" else factor)
        for statistic, of_targets in values.items()
        if (value := of_targets.get(target)) is not None
    }


def _usage(
    resource: MeasuredResource, amounts: Mapping[Statistic, float], has: Allocatable
) -> tuple[MeasuredUsage | None, str]:
    """The possible amounts; and why an amount is impossible, empty if none is."""
    found = {statistic: amount for statistic, amount in amounts.items() if 0 <= amount <= MAX_USAGE}
    usage = MeasuredUsage(**found, allocatable=has.get(resource)) if found else None
    if len(found) == len(amounts):
        return usage, ""
    first = next(amount for statistic, amount in amounts.items() if statistic not in found)
    return usage, f"{resource}: want 0 to {MAX_USAGE:g} {_UNITS[resource]}, got {first:g}"
