"""PostFilter: finds pods to evict if no node is feasible. The binder checks them again before it evicts.

The dry run that PostFilter plugins get runs the cycle's filters as if some pods were removed from a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Mask, NodeInfo, Nodes, NodesWithoutPods, RemovedPods, RowIndex, node_info
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.framework.equivalencecache import EquivalenceCache
from berth.framework.filtering import (
    FeasibleNodes,
    PreFiltered,
    checked,
    filter_node,
    filter_node_with,
    nominated_pods,
    pre_filter,
)
from berth.framework.interface import (
    FilterPlugin,
    Nomination,
    PostFilterResult,
    PreFilterExtensions,
    Reads,
    VectorFilterPlugin,
)
from berth.framework.plugincalls import (
    call,
    run_add_pod,
    run_filter_on_all,
    run_refused_without,
    run_remove_pod,
    with_plugin_name,
)
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, CycleState, Diagnosis, FilterColumn, Status, Verdicts

# kube-scheduler's message if extenders keep no candidate.
NO_CANDIDATE: Final = "no candidate node for preemption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """The candidates that extenders keep, the best first; empty if one that is not ignorable failed."""

    left: tuple[Nomination, ...] = ()
    failure: str = ""

    @property
    def is_final(self) -> bool:
        """Whether extenders are not to be asked about further candidates."""
        return bool(self.left or self.failure)

    @property
    def message(self) -> str:
        """Why no candidate is left, as in kube-scheduler."""
        return self.failure or NO_CANDIDATE


def post_filter(  # noqa: PLR0913 - the parts of one cycle
    pod: Pod,
    snapshot: Snapshot,
    profile: Profile,
    found: PreFiltered,
    columns: Mapping[str, FilterColumn],
    *,
    diagnosis: Diagnosis,
) -> PostFilterResult:
    """Run the PostFilter plugins up to the first nomination and join all messages.

    Without a PostFilter plugin, a nomination of the pod is cleared.

    Raises:
        PluginFailure: a plugin failed.
    """
    dry_run = FilterDryRun(pod, snapshot, profile, found, columns)
    messages: list[str] = []
    unschedulable: set[str] = set()
    clears = not profile.post_filters
    for plugin in profile.post_filters:
        arguments = (found.state, pod, snapshot, diagnosis, dry_run)
        answer = call(plugin, "PostFilter", plugin.post_filter, PostFilterResult, *arguments)
        messages.extend([answer.message] if answer.message else [])
        if answer.nomination is not None:
            return PostFilterResult(answer.nomination, ", ".join(messages))
        unschedulable.update(answer.unschedulable_plugins)
        clears = clears or answer.clears_nomination
        if answer.is_last_word:
            break
    return PostFilterResult(None, ", ".join(messages), clears, unschedulable_plugins=tuple(unschedulable))


def confirm(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Nomination | None:
    """The victims on the node by this Snapshot; None if evictions do not help or are not needed.

    Raises:
        PluginFailure: a plugin failed.
    """
    dry_run = dry_run_of(pod, snapshot, profile)
    for plugin in profile.post_filters:
        answer = call(plugin, "PostFilter", plugin.confirm, object, pod, node, dry_run)
        if isinstance(answer, Nomination):
            return answer
    return None


def best_eviction(pod: Pod, proposed: str, snapshot: Snapshot, profile: Profile) -> Nomination | None:
    """The best eviction by this Snapshot; None if evictions do not help. The binder's choice (docs/protocol.md, 5.16).

    ``proposed``: a scorer's node, taken if no other is better.

    Raises:
        PluginFailure: a plugin failed.
    """
    if (searched := _search(pod, snapshot, profile)) is None:
        return None
    for plugin in profile.post_filters:
        answer = call(plugin, "PostFilter", plugin.choose, object, pod, proposed, *searched)
        if isinstance(answer, Nomination):
            return answer
    return None


def eviction_candidates(
    pod: Pod, proposed: str, snapshot: Snapshot, profile: Profile, asked: Collection[str]
) -> list[Nomination]:
    """The evictions by this Snapshot to ask extenders about, the best first; ``proposed`` as in ``best_eviction``.

    ``asked``: nodes about which they were asked before.

    Raises:
        PluginFailure: a plugin failed.
    """
    if (searched := _search(pod, snapshot, profile)) is None:
        return []
    for plugin in profile.post_filters:
        found: list[Nomination] = call(plugin, "PostFilter", plugin.candidates, list, pod, proposed, *searched, asked)
        if found:
            return found
    return []


def _search(pod: Pod, snapshot: Snapshot, profile: Profile) -> tuple[Diagnosis, FilterDryRun] | None:
    """The reason against each node, and the dry run; None if PreFilter rejects the pod."""
    results = EquivalenceCache.of(snapshot, profile).results_of(pod)
    found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
    if found.rejection is not None:
        return None
    cached = results.refresh_filters()
    feasible = FeasibleNodes(pod, snapshot, profile, found, cached)
    return feasible.diagnosis(), FilterDryRun(pod, snapshot, profile, found, cached.columns)


def dry_run_of(pod: Pod, snapshot: Snapshot, profile: Profile) -> FilterDryRun:
    """A dry run outside a cycle: it runs PreFilter first, without cached verdicts.

    Raises:
        PluginFailure: a plugin failed.
    """
    results = EquivalenceCache.of(snapshot, profile).results_of(pod)
    found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
    return FilterDryRun(pod, snapshot, profile, found, {})


class FilterDryRun:
    """The ``DryRun`` of the plugin contract. ``columns``: cached verdicts of row-local filters, by plugin."""

    def __init__(
        self,
        pod: Pod,
        snapshot: Snapshot,
        profile: Profile,
        found: PreFiltered,
        columns: Mapping[str, FilterColumn],
    ) -> None:
        self.pod = pod
        self.snapshot = snapshot
        self._profile = profile
        self._found = found
        self._columns = columns
        self._nominated: dict[int, list[Pod]] = {}
        self._filters = [plugin for plugin in profile.filters if plugin.name not in found.skipped]
        self._extensions = [
            plugin
            for plugin in profile.pre_filters
            if isinstance(plugin, PreFilterExtensions) and plugin.name not in found.skipped
        ]

    def came_to(self, plugin: str) -> bool:
        names = [each.name for each in self._profile.pre_filters]
        ended_at = names.index(self._found.ended_by) if self._found.ended_by else len(names)
        return plugin in names[: ended_at + 1]

    @contextmanager
    def removing(self, node: NodeInfo, pods: Collection[PlacedPod]) -> Iterator[FilterDryRunNode]:
        state = self._found.state.clone()
        with self.snapshot.supposing(removed=[each.pod.uid for each in pods]):
            for each in pods:
                self.run_remove_pod(state, each.pod, node)
            yield FilterDryRunNode(self, node, state)

    def rejected_without(self, rows: RowIndex, removed: RemovedPods, diagnosis: Diagnosis) -> tuple[Mask, Mask]:
        if self._found.rejection is not None:
            diagnosis.add(self._found.rejection, rows)
            return np.ones(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
        remaining = np.ones(len(rows), dtype=np.bool_)
        unsure = np.isin(rows, self._nominated_rows())
        without_reason = np.zeros(len(rows), dtype=np.bool_)
        for plugin in self._filters:
            verdicts = self._verdicts(plugin, rows, removed)
            is_certain = verdicts is not None
            verdicts = verdicts or self._certain_rejections(plugin, rows, removed)
            refused = remaining & (verdicts.codes != 0)
            for code in np.unique(verdicts.codes[refused & ~unsure]).tolist():
                status = with_plugin_name(plugin, "Filter", verdicts.statuses[code])
                diagnosis.add(status, rows[refused & ~unsure & (verdicts.codes == code)])
            without_reason |= refused & unsure
            remaining &= ~refused
            if not is_certain:
                unsure |= remaining  # this filter may be the first to reject any of these
        return ~remaining, without_reason

    def sums_fit(self, rows: RowIndex, removed: RemovedPods) -> Mask:
        fit = np.ones(len(rows), dtype=np.bool_)
        for plugin in self._filters:
            if _sums_only(plugin):
                nodes = NodesWithoutPods(self.snapshot, rows, removed)
                fit &= run_filter_on_all(plugin, self._found.state, self.pod, nodes).codes == 0
        return fit

    def status(self, state: CycleState, node: NodeInfo) -> Status:
        """All filters on the node as it is now, with nominated pods of equal or higher priority and without."""
        if self._found.rejection is not None:
            return self._found.rejection  # PreFilter ended early: the state is not complete
        return checked(node, partial(self._status, state, node))

    def _status(self, state: CycleState, node: NodeInfo) -> Status:
        skipped = self._found.skipped
        nominated = self._nominated_to(node)
        if nominated:
            status = filter_node_with(nominated, state, self.pod, node, self._profile, skipped=skipped)
            if not status.is_success:
                return status
        return filter_node(state, self.pod, node, self._profile, skipped)

    def run_add_pod(self, state: CycleState, added: Pod, node: NodeInfo) -> None:
        for plugin in self._extensions:
            run_add_pod(plugin, state, self.pod, added, node)

    def run_remove_pod(self, state: CycleState, removed: Pod, node: NodeInfo) -> None:
        for plugin in self._extensions:
            run_remove_pod(plugin, state, self.pod, removed, node)

    def _nominated_rows(self) -> list[int]:
        """The rows on which nominated pods count."""
        infos = (node_info(self.snapshot, name) for name in self.snapshot.nominated_nodes)
        return [
            info.row
            for info in infos
            if info is not None and not checked(info, partial(self._status_of_nominations, info)).is_success
        ]

    def _status_of_nominations(self, node: NodeInfo) -> Status:
        return Status.unschedulable() if self._nominated_to(node) else SUCCESS

    def _nominated_to(self, node: NodeInfo) -> list[Pod]:
        # The pods that count on the node are the same for all victims that are tried.
        known = self._nominated.get(node.row)
        if known is None:
            known = self._nominated[node.row] = nominated_pods(self.pod, node)
        return known

    def _verdicts(self, plugin: FilterPlugin, rows: RowIndex, removed: RemovedPods) -> Verdicts | None:
        """A filter's answer for all rows at once; None if each row must be filtered by itself."""
        if _sums_only(plugin):
            nodes = NodesWithoutPods(self.snapshot, rows, removed)
            return run_filter_on_all(plugin, self._found.state, self.pod, nodes)
        column = self._columns.get(plugin.name)
        if column is None or Reads.PODS in plugin.reads:
            return None
        return Verdicts(column.codes[rows], tuple(column.statuses))

    def _certain_rejections(self, plugin: FilterPlugin, rows: RowIndex, removed: RemovedPods) -> Verdicts:
        """Certain rejections by any other filter; it may reject more."""
        if isinstance(plugin, PreFilterExtensions):
            nodes = Nodes(self.snapshot, rows)
            verdicts = run_refused_without(plugin, self._found.state, self.pod, nodes, removed)
            if verdicts is not None:
                return verdicts
        return Verdicts.all_fit(len(rows))


class FilterDryRunNode:
    """The ``DryRunNode`` of the plugin contract."""

    def __init__(self, dry_run: FilterDryRun, node: NodeInfo, state: CycleState) -> None:
        self._dry_run = dry_run
        self._node = node
        self._state = state

    def status(self) -> Status:
        return self._dry_run.status(self._state, self._node)

    def add(self, placed: PlacedPod) -> None:
        self._dry_run.snapshot.place(placed.pod, self._node.name, bound_at=placed.bound_at)
        self._dry_run.run_add_pod(self._state, placed.pod, self._node)

    def remove(self, placed: PlacedPod) -> None:
        self._dry_run.snapshot.remove_pod(placed.pod.uid)
        self._dry_run.run_remove_pod(self._state, placed.pod, self._node)


def _sums_only(plugin: FilterPlugin) -> bool:
    return isinstance(plugin, VectorFilterPlugin) and plugin.sums_only
