"""What the plugins by measured load have in common: sources, the two forms of a score, its explanation, the filter.

A node that is unknown counts as the mean of the others; a plugin with too few known nodes abstains: it gives every node
0, which changes no order. The filter passes unknown nodes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from berth.api.config.nodeload.queries import AVERAGE, MEASURED, LoadReading, MeasuredResource, Statistic
from berth.api.pod import Pod
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes
from berth.cluster.pods import EquivalenceClass
from berth.cluster.snapshot import Snapshot
from berth.framework.events import (
    Action,
    ClusterEvent,
    EventHint,
    IdentityCache,
    LiveDataUpdate,
    Resource,
    nothing,
    was_placed,
)
from berth.framework.interface import (
    EnqueueExtensions,
    LivePlugin,
    Reads,
    RemedyPlugin,
    RemedySentence,
    RowChanges,
    Scores,
    VectorExplainingPlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.status import SUCCESS, CycleState, StateKey, Status, Verdicts
from berth.messages.livedata import BANDWIDTH, LiveSource, MeasuredUsage, decode_sample
from berth.plugins.nodeload.estimates import ClassEstimates, Estimate
from berth.plugins.nodeload.loads import Amount, NodeLoads, Term

# Of one node: what it would use with the pod, and what it has.
Usage = tuple[float, float]

# In texts for people.
WORDS: Final[Mapping[MeasuredResource, str]] = {"cpu": "CPU", "memory": "memory"}
TOO_MUCH: Final = "node(s) had too much {} in use"
# Percent of the node by which its use must be below the threshold to requeue a pod, of thresholds below 10 the half.
# Use that swings around the threshold would requeue every pod with each sample.
RELIEF_PERCENT: Final = 5

# Points that a formula makes whole may be a little less, because shares are binary fractions.
ROUNDING: Final = 1e-9


def source_of(reading: LoadReading) -> LiveSource:
    return LiveSource(bucket=BANDWIDTH, name=reading.query.token)


class LoadScore(VectorScorePlugin, VectorExplainingPlugin, LivePlugin):
    """A score by measured load. Plugins say for which resources, by which loads and formula."""

    reads = Reads.NODE | Reads.PODS
    counts_others = True

    # The resources that the formula reads.
    resources: Sequence[MeasuredResource]

    # A statistic that the formula reads beside the loads' own.
    second_statistic: Statistic | None = None

    @abstractmethod
    def loads_for(self, pod: Pod, snapshot: Snapshot) -> NodeLoads:
        """The loads for a pod's score, refreshed."""

    @abstractmethod
    def estimate(self, pod: Pod, pod_class: EquivalenceClass) -> Estimate:
        """What the pod is estimated to use."""

    @abstractmethod
    def points(self, pod: Pod, nodes: Nodes, loads: Loads) -> Amount:
        """float64[nodes], 0..100, of which the whole numbers count."""

    @abstractmethod
    def points_of(self, row: int, loads: NodeLoads, usages: Mapping[MeasuredResource, Usage]) -> float:
        """The points of one row, as ``points``; ``usages``: of each resource that is known."""

    @cached_property
    def _key(self) -> StateKey[tuple[NodeLoads, Estimate]]:
        return StateKey(self.name)

    def _read(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> tuple[NodeLoads, Estimate]:
        """The loads and the estimate for the pod's class. Later cycles refresh these loads by ``row_changes``."""
        known = state.find(self._key)
        if known is None:
            known = self.loads_for(pod, snapshot), self.estimate(pod, state.pod_class)
            state.write(self._key, known)
        return known

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        # In plain numbers: every cycle scores the last pod's row, and arrays of one element take four times as long.
        row, pods = node.row, 1 + node.others
        loads, estimate = self._read(state, pod, node.snapshot)
        usages: dict[MeasuredResource, Usage] = {}
        for resource, place, measured, newcomers, allocatable, _ in loads.terms(self.resources):
            used = measured.item(row) + (newcomers.item(row) + pods * estimate[place])
            usages[resource] = used, allocatable.item(row)
        return int(self.points_of(row, loads, usages) + ROUNDING) if usages else 0

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """Pods that a view shows beside count with the whole estimate, as a pod that was just placed."""
        loads, estimate = self._read(state, pod, nodes.snapshot)
        terms = loads.terms(self.resources)
        if not terms:
            return np.zeros(len(nodes), dtype=np.int64)
        pods = 1 + nodes.others
        used, allocatable = {}, {}
        for term in terms:
            # Newcomers first: whole numbers, whose sum is the same once the pods that a view shows beside have come.
            with_pods = nodes.take(term.newcomers) + pods * estimate[term.place]
            with_pods += nodes.take(term.measured)
            used[term.resource] = with_pods
            allocatable[term.resource] = nodes.take(term.allocatable)
        points = self.points(pod, nodes, Loads(used=used, allocatable=allocatable))
        points += ROUNDING
        return points.astype(np.int64)

    def left_out(self, pod: Pod, snapshot: Snapshot) -> str:
        """For people: the resources of which too few nodes have a recent sample to score them; empty without any."""
        return _left_out(self.resources, self.loads_for(pod, snapshot))

    def explain(self, state: CycleState, pod: Pod, node: NodeInfo) -> str:
        """For people: measured use, its age, and the estimates."""
        return self.explain_all(state, pod, Nodes(node.snapshot, np.array([node.row])))[0]

    def explain_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> list[str]:
        loads, _ = self._read(state, pod, nodes.snapshot)
        terms, kept, rows = loads.terms(self.resources), loads.lines, nodes.rows.tolist()
        if terms:
            lines = [kept.get(row) or _new_line(row, loads, terms, self.second_statistic) for row in rows]
        if len(terms) == len(self.resources):
            return lines
        left_out = _left_out(self.resources, loads)
        return [f"{line}; {left_out}" for line in lines] if terms else [left_out] * len(rows)


class OneReadingScore(LoadScore):
    """A score with one reading and one estimate for all pods of an equivalence class."""

    def __init__(
        self,
        reading: LoadReading,
        resources: Sequence[MeasuredResource],
        estimate: Callable[[EquivalenceClass], Estimate],
    ) -> None:
        self.reading = reading
        self.resources = resources
        self.live_sources = frozenset({source_of(reading)})
        self._estimates = ClassEstimates(estimate)

    def loads_for(self, pod: Pod, snapshot: Snapshot) -> NodeLoads:
        del pod
        return self._loads(snapshot)

    def _loads(self, snapshot: Snapshot) -> NodeLoads:
        loads = snapshot.derived(self, lambda: NodeLoads(snapshot, self.reading, self._estimates.of_placed))
        loads.refresh()
        return loads

    def row_changes(self, snapshot: Snapshot, since: int) -> RowChanges:
        return self._loads(snapshot).log.since(since)

    def estimate(self, pod: Pod, pod_class: EquivalenceClass) -> Estimate:
        del pod
        return self._estimates.of(pod_class)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """By resource, what each node would use with the pod, and what it has: float64[nodes], millicores or bytes."""

    used: Mapping[MeasuredResource, Amount]
    allocatable: Mapping[MeasuredResource, Amount]

    def share(self, resource: MeasuredResource) -> Amount:
        return self.used[resource] / self.allocatable[resource]


def _new_line(row: int, loads: NodeLoads, terms: Sequence[Term], second: Statistic | None) -> str:
    """``71 % of CPU used, sample 12 s old, 2 newcomers estimated at 4 %``, which is kept until it changes."""
    text = loads.measured_lines.get(row)
    if text is None:
        text = loads.measured_lines[row] = _measured_line(row, loads, terms, second)
    if count := loads.newcomers_on(row):
        shares = " and ".join([_percent(row, newcomers, allocatable) for _, _, _, newcomers, allocatable, _ in terms])
        text = f"{text}, {count} newcomer{'s' if count > 1 else ''} estimated at {shares}"
    loads.lines[row] = text
    return text


def _measured_line(row: int, loads: NodeLoads, terms: Sequence[Term], second: Statistic | None) -> str:
    unknown, used = [], []
    for resource, _, measured, _, allocatable, known in terms:
        if not known.item(row):
            unknown.append(WORDS[resource])
        share = _percent(row, measured, allocatable)
        if second is not None:
            share += f" ({second} {_percent(row, loads.measured(resource, second).amount, allocatable)})"
        used.append(f"{share} of {WORDS[resource]}")
    text = f"{' and '.join(unknown)} counted as the mean: " if unknown else ""
    text += f"{' and '.join(used)} used{loads.of_whom}"
    if loads.statistic != AVERAGE:
        text += f" ({loads.statistic})"
    sampled_at = loads.sampled_at(row)
    if math.isnan(sampled_at):
        return f"{text}, no sample"
    age = round(max(loads.now - sampled_at, 0.0))
    loads.lines_until = min(loads.lines_until, sampled_at + age + 0.5)
    return f"{text}, sample {age} s old"


def _percent(row: int, amount: Amount, allocatable: Amount) -> str:
    return f"{100 * amount.item(row) / allocatable.item(row):.0f} %"


def _left_out(resources: Sequence[MeasuredResource], loads: NodeLoads) -> str:
    known = [term.resource for term in loads.terms(resources)]
    if len(known) == len(resources):
        return ""
    verb, sentences = "left out" if known else "abstains", []
    for resource in resources:
        if resource not in known:
            measured = loads.measured(resource)
            count = f"{measured.count} of {measured.nodes} nodes have a recent sample"
            sentences.append(f"{WORDS[resource]} {verb}: {count}")
    return "; ".join(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimit:
    """Percent by resource above which a node is refused, by which reading of a sample."""

    percents: Mapping[MeasuredResource, int]
    reading: LoadReading


class LoadFilter(VectorFilterPlugin, RemedyPlugin, EnqueueExtensions):
    """A filter by measured load: it refuses nodes that the pod would bring above a limit. Unknown nodes pass.

    Evictions do not help, because they change no sample. Pods of DaemonSets pass: each has its one node.
    """

    @abstractmethod
    def limit_for(self, pod: Pod) -> LoadLimit: ...

    @abstractmethod
    def filter_loads(self, pod: Pod, snapshot: Snapshot) -> NodeLoads:
        """The loads by the limit's reading, refreshed."""

    @abstractmethod
    def estimate(self, pod: Pod, pod_class: EquivalenceClass) -> Estimate:
        """What the pod is estimated to use."""

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        percents, bits, row = self.limit_for(pod).percents, 0, node.row
        if not percents or state.pod_class.of_daemon_set:
            return SUCCESS
        loads, added = self.filter_loads(pod, node.snapshot), self.estimate(pod, state.pod_class)
        for bit, resource in enumerate(MEASURED):
            if resource in percents and (measured := loads.measured(resource)).known.item(row):
                used = measured.amount.item(row) + loads.newcomers(resource).item(row) + added[bit]
                share = 100 * used / measured.allocatable.item(row)
                bits |= (math.floor(share + 0.5) > percents[resource]) << bit
        return _refusal(bits) if bits else SUCCESS

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        if not self.limit_for(pod).percents or state.pod_class.of_daemon_set:
            return Verdicts.all_fit(len(nodes))
        bits = np.zeros(len(nodes), dtype=np.int64)
        for bit, (_, refused) in self._shares(pod, state.pod_class, nodes).items():
            bits |= refused.astype(np.int64) << bit
        return Verdicts.of_bits(bits, len(MEASURED), _refusal)

    def _shares(self, pod: Pod, pod_class: EquivalenceClass, nodes: Nodes) -> dict[int, tuple[Amount, Mask]]:
        """By the place of a limited resource: each node's percent with the pod, and whether that is too much."""
        percents, found = self.limit_for(pod).percents, {}
        loads, added = self.filter_loads(pod, nodes.snapshot), self.estimate(pod, pod_class)
        for place, resource in enumerate(MEASURED):
            if resource in percents:
                measured = loads.measured(resource)
                used = nodes.take(measured.amount) + nodes.take(loads.newcomers(resource)) + added[place]
                share = 100 * used / nodes.take(measured.allocatable)
                found[place] = share, nodes.take(measured.known) & (np.floor(share + 0.5) > percents[resource])
        return found

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        """For each resource the node least used with the pod, if possible one without another obstacle."""
        limit, added = self.limit_for(pod).percents, self.estimate(pod, state.pod_class)
        of_whom = self.filter_loads(pod, nodes.snapshot).of_whom
        for place, (share, refused) in self._shares(pod, state.pod_class, nodes).items():
            if not refused.any():
                continue
            resource, alone = MEASURED[place], refused & nodes.alone
            among = alone if alone.any() else refused
            best = int(np.argmin(np.where(among, share, np.inf)))
            own = 100 * added[place] / max(nodes.allocatable(resource).item(best), 1)
            name, count = nodes.names[best], int(np.count_nonzero(among))
            which = f"the least used of {count} nodes, {name}," if count > 1 else name
            yield RemedySentence(
                about=resource,
                nodes=refused,
                text=f"would bring {WORDS[resource]} above {limit[resource]} %: {which} has "
                f"{share.item(best) - own:.0f} % in use{of_whom}, and the pod is estimated at {own:.0f} %",
                examples=[name],
            )

    def events(self) -> Sequence[EventHint]:
        """A sample well below the limits; a new node, which has no sample yet; more allocatable; a pod is deleted."""
        return (
            EventHint(ClusterEvent(Resource.BANDWIDTH, Action.UPDATE), self.is_relieved, key=self.hint_key),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE)),
            EventHint(ClusterEvent(Resource.POD, Action.DELETE), was_placed, key=nothing),
        )

    def hint_key(self, pod: Pod) -> Hashable:
        """Pods with an equal key have one limit, and estimates that count as equal."""
        return self._least_estimate(pod)

    @cached_property
    def _least_estimate(self) -> IdentityCache[Pod, tuple[int, ...]]:
        """A little less than the estimate, so that pods of many sizes have few keys."""
        return IdentityCache(lambda pod: tuple(map(_rounded_down, self.estimate(pod, EquivalenceClass(b"", pod.spec)))))

    def is_relieved(self, pod: Pod, _: object, news: object) -> bool:
        """Decide by the sample and the pod alone, because estimates of others that may have refused the node fade."""
        limit = self.limit_for(pod)
        if not isinstance(news, LiveDataUpdate) or news.source != source_of(limit.reading):
            return False
        if news.data is None:
            return True
        sample = decode_sample(news.data)
        usages = {"cpu": sample.cpu, "memory": sample.memory}
        return all(
            self._is_well_below(pod, least, usages[resource], limit.percents[resource])
            for resource, least in zip(MEASURED, self._least_estimate(pod), strict=True)
            if resource in limit.percents
        )

    def least_used(self, pod: Pod, amount: float) -> float:
        """What of a sample's amount counts for the pod for certain."""
        del pod
        return amount

    def _is_well_below(self, pod: Pod, added: int, usage: MeasuredUsage | None, percent: int) -> bool:
        amount: float | None = None if usage is None else getattr(usage, self.limit_for(pod).reading.statistic)
        if usage is None or amount is None or not usage.allocatable:
            return True  # unknown nodes pass
        used = self.least_used(pod, amount)
        share, with_pod = 100 * used / usage.allocatable, 100 * (used + added) / usage.allocatable
        return share <= max(percent - RELIEF_PERCENT, percent / 2) and math.floor(with_pod + 0.5) <= percent


def _rounded_down(amount: float) -> int:
    """To the first four binary digits: by an eighth at most."""
    whole = int(amount)
    others = max(whole.bit_length() - 4, 0)
    return whole >> others << others


def _refusal(bits: int) -> Status:
    found = [resource for bit, resource in enumerate(MEASURED) if bits >> bit & 1]
    return Status.unresolvable(*(TOO_MUCH.format(WORDS[resource]) for resource in found))
