"""PreFilter, and Filter on one node or on all nodes at once.

Nodes with nominated pods are filtered with and without them. Earmarked nodes are closed to newcomers: no profile lists
that filter, and none can leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from berth.api.pod import Pod, priority_of
from berth.cluster.nodes import NodeInfo, Nodes, RowIndex, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import FilterPlugin, PreFilterExtensions, PreFilterResult
from berth.framework.plugincalls import (
    PluginFailure,
    run_add_pod,
    run_filter,
    run_filter_on_all,
    run_pre_filter,
    with_plugin_name,
)
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, CachedVerdicts, Code, Codes, CycleState, Diagnosis, Mask, Status
from berth.messages.earmarks import FILTER, Earmark

# Nominated pods counted per node, even if it allows fewer pods: the kubelet's default limit.
LEAST_COUNTED: Final = 110
# Maximum nominated pods counted per node, however many pods its kubelet says that it allows: twice as many as the
# largest kubelets in use run. Each takes 10 us of a cycle.
MOST_COUNTED: Final = 1024


@dataclass(slots=True)
class PreFiltered:
    """The outcome of PreFilter: ``rejection`` of all nodes, or the nodes to filter.

    ``left_out``: the plugins that have nothing to do for the pod; ``skipped``: also those that returned Skip.
    ``ended_by``: the plugin at which PreFilter ended, if it rejected the pod or left no node.
    ``nodes`` are the only nodes that can be feasible, by the plugins in ``restricting``; None means all nodes.
    ``preferred``: bool[rows], of the feasible nodes those that are taken if there are any; None for all.
    """

    state: CycleState
    left_out: frozenset[str]
    skipped: set[str] = field(default_factory=set)
    nodes: frozenset[str] | None = None
    restricting: list[str] = field(default_factory=list)
    rejection: Status | None = None
    ended_by: str = ""
    preferred: Mask | None = None

    def add(self, plugin: str, answer: PreFilterResult) -> None:
        """Combine one plugin's answer with the earlier ones."""
        code = answer.status.code
        if answer.preferred is not None:
            self.preferred = answer.preferred
        if code is Code.SKIP:
            self.skipped.add(plugin)
        elif code is not Code.SUCCESS:
            self.rejection = answer.status
        elif answer.nodes is not None:
            self.nodes = answer.nodes if self.nodes is None else self.nodes & answer.nodes
            self.restricting.append(plugin)
            if not self.nodes:
                self.rejection = self._no_node_left()

    def status_of_other_nodes(self) -> Status:
        """Why a node outside ``nodes`` is rejected."""
        names = " ".join(sorted(self.restricting))
        return Status(
            Status.unresolvable().code, (f"node(s) didn't satisfy plugin(s) [{names}]",), ",".join(self.restricting)
        )

    def _no_node_left(self) -> Status:
        one = len(self.restricting) == 1
        which = f"plugin {self.restricting[0]}" if one else f"plugin(s) [{' '.join(self.restricting)}] simultaneously"
        return Status(Status.unresolvable().code, (f"node(s) didn't satisfy {which}",), ",".join(self.restricting))


def pre_filter(
    pod: Pod, snapshot: Snapshot, profile: Profile, state: CycleState, cached: Mapping[str, PreFilterResult]
) -> PreFiltered:
    """Run PreFilter up to the first rejection. ``cached``: the answers of row-local plugins, by plugin.

    Raises:
        PluginFailure: a plugin failed.
    """
    left_out = profile.left_out(snapshot.traits_of(pod))
    found = PreFiltered(state, left_out, set(left_out))
    for plugin in profile.pre_filters:
        if plugin.name not in left_out:
            found.add(plugin.name, cached.get(plugin.name) or run_pre_filter(plugin, state, pod, snapshot))
            if found.rejection is not None:
                found.ended_by = plugin.name
                break
    return found


def filter_node(state: CycleState, pod: Pod, node: NodeInfo, profile: Profile, skipped: set[str]) -> Status:
    """Run all filters on one node, up to the first that rejects it.

    Raises:
        PluginFailure: a plugin failed.
    """
    for plugin in profile.filters:
        if plugin.name not in skipped:
            status = run_filter(plugin, state, pod, node)
            if status.code is not Code.SUCCESS:
                return with_plugin_name(plugin, "Filter", status)
    return SUCCESS


def filter_node_with(  # noqa: PLR0913 - the parts of one cycle, and the pods to add
    nominated: Sequence[Pod], state: CycleState, pod: Pod, node: NodeInfo, profile: Profile, *, skipped: set[str]
) -> Status:
    """Run all filters on one node as if the nominated pods were already on it. ``state`` is not changed.

    Raises:
        PluginFailure: a plugin failed.
    """
    with node.snapshot.supposing(placed=[(other, node.name) for other in nominated]):
        state = state.clone()
        for plugin in profile.pre_filters:
            if isinstance(plugin, PreFilterExtensions) and plugin.name not in skipped:
                for other in nominated:
                    run_add_pod(plugin, state, pod, other, node)
        return filter_node(state, pod, node, profile, skipped)


def checked(node: NodeInfo, check: Callable[[], Status]) -> Status:
    """The answer of a check of one node; a check that breaks rejects the node.

    The node's state is what broke it, so the pod may still go to any other.

    Raises:
        PluginFailure: a plugin failed.
    """
    try:
        return check()
    except PluginFailure:
        raise
    except Exception as exc:  # noqa: BLE001 - odd objects may raise anything
        node.snapshot.report_unchecked(node.row, exc)
        return Status.unresolvable(f"node(s) cannot be checked ({type(exc).__name__})")


def nominated_pods(pod: Pod, node: NodeInfo) -> list[Pod]:
    """The unplaced pods nominated to the node with the same priority as this one or higher."""
    snapshot, priority = node.snapshot, priority_of(pod)
    others = (nominated.pod for nominated in snapshot.nominations_to(node.name))
    counted = (
        other
        for other in others
        if other.uid != pod.uid and priority_of(other) >= priority and snapshot.node_of(other.uid) is None
    )
    # Beside as many as the node allows it has no room for this pod. Anyone who may write pod status can nominate ten
    # thousand, and placing those would take a tenth of a second per cycle.
    return list(islice(counted, min(max(node.allowed_pods, LEAST_COUNTED), MOST_COUNTED)))


def earmark_on(pod: Pod, node: str, snapshot: Snapshot) -> Status:
    """Whether an earmark keeps the pod off the node (ADR 74). Its nominated node is held for it already."""
    for earmark in snapshot.earmarks.values():
        if node in earmark.nodes and earmark.keeps_out(pod) and node != pod.status.nominated_node_name:
            return _earmarked(earmark)
    return SUCCESS


def earmarked_rows(pod: Pod, snapshot: Snapshot) -> Iterator[tuple[Status, RowIndex]]:
    """The rows that each earmark keeps the pod off."""
    for earmark in snapshot.earmarks.values():
        if earmark.keeps_out(pod):
            names = (name for name in earmark.nodes if name != pod.status.nominated_node_name)
            rows = [row for name in names if (row := snapshot.rows.of(name)) is not None]
            yield _earmarked(earmark), np.array(rows, dtype=np.intp)


def _earmarked(earmark: Earmark) -> Status:
    # Evicting pods there helps no pod that is kept out, so that none is evicted for it.
    reason = f"node(s) are earmarked for group {earmark.group}"
    return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (reason,), FILTER)


class FeasibleNodes:
    """Runs the filters of one cycle. ``mask``: bool[rows], the feasible nodes, after ``find``.

    ``cached`` has the verdicts of row-local filters. If all filters are row-local, ``find`` runs them only for nodes
    with nominated pods; the reasons of rejected nodes are computed when ``diagnosis`` is called.
    """

    def __init__(
        self, pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered, cached: CachedVerdicts
    ) -> None:
        self._pod = pod
        self._snapshot = snapshot
        self._found = found
        self._cached = cached
        self._profile = profile
        self._filters = [f for f in profile.filters if f.name not in found.skipped]
        self._diagnosis: Diagnosis | None = None
        self._nominated: dict[int, Status] = {}
        self._earmarked = [*earmarked_rows(pod, snapshot)] if snapshot.earmarks else []
        self.mask: Mask = np.zeros(0, dtype=np.bool_)

    def find(self) -> None:
        """Find the feasible nodes.

        Raises:
            PluginFailure: a plugin failed.
        """
        if self._all_cached():
            # Only nodes that fit without nominated pods, which on a full cluster with a thousand nominations are few.
            self.mask = self._cached.fits[: self._snapshot.size].copy()
            for _, rows in self._earmarked:
                self.mask[rows] = False
            self.mask[list(self._rejected_with_nominated_pods(self.mask))] = False
        else:
            self._run_filters()

    def diagnosis(self) -> Diagnosis:
        """Why nodes are rejected.

        Raises:
            PluginFailure: a plugin failed.
        """
        if self._diagnosis is None:
            self._run_filters()
        return self._diagnosis or Diagnosis(self._snapshot.node_count)

    def _all_cached(self) -> bool:
        local = all(f.is_row_local for f in self._filters) and self._found.nodes is None
        return local and not any(column.errors for column in self._cached.columns.values())

    def _run_filters(self) -> None:
        # Each filter runs on the nodes that the filters before it accepted.
        self._diagnosis = diagnosis = Diagnosis(self._snapshot.node_count)
        remaining = self._snapshot.columns.exists[: self._snapshot.size].copy()
        for status, rows in self._earmarked:
            left = rows[remaining[rows]]
            diagnosis.add(status, left)
            remaining[left] = False
        self._nominated = self._rejected_with_nominated_pods(remaining)
        self._reject_other_nodes(remaining, diagnosis)
        self._reject_for_nominated_pods(remaining, diagnosis)
        for plugin in self._filters:
            codes, statuses = self._verdicts(plugin, remaining)
            rejected = remaining & (codes != 0)
            if np.count_nonzero(rejected):
                diagnosis.add_codes(statuses, codes, rejected)
                remaining &= ~rejected
        self.mask = remaining

    def _verdicts(self, plugin: FilterPlugin, remaining: Mask) -> tuple[Codes, Sequence[Status]]:
        column = self._cached.columns.get(plugin.name)
        if column is None:
            codes, statuses = self._run(plugin, remaining)
        else:
            codes, statuses = column.codes[: len(remaining)], column.statuses
        for code, status in enumerate(statuses):
            if status.code is status.code.ERROR and np.any(remaining & (codes == code)):
                with_plugin_name(plugin, "Filter", status)
        return codes, statuses

    def _run(self, plugin: FilterPlugin, remaining: Mask) -> tuple[Codes, Sequence[Status]]:
        rows = remaining.nonzero()[0]
        verdicts = run_filter_on_all(plugin, self._found.state, self._pod, Nodes(self._snapshot, rows))
        codes: Codes = np.zeros(len(remaining), dtype=np.int32)
        codes[rows] = verdicts.codes
        return codes, [SUCCESS, *(Status(s.code, s.reasons, plugin.name) for s in verdicts.statuses[1:])]

    def _reject_other_nodes(self, remaining: Mask, diagnosis: Diagnosis) -> None:
        # PreFilter named the only nodes that can be feasible.
        if self._found.nodes is None:
            return
        rows = [row for name in self._found.nodes if (row := self._snapshot.rows.of(name)) is not None]
        others = remaining.copy()
        others[rows] = False
        diagnosis.add(self._found.status_of_other_nodes(), np.flatnonzero(others))
        remaining &= ~others

    def _reject_for_nominated_pods(self, remaining: Mask, diagnosis: Diagnosis) -> None:
        for row, status in self._nominated.items():
            if remaining[row]:
                diagnosis.add(status, np.array([row]))
                remaining[row] = False

    def _rejected_with_nominated_pods(self, rows: Mask) -> dict[int, Status]:
        """The rows on which the pod does not fit together with their nominated pods."""
        rejected: dict[int, Status] = {}
        for node in self._snapshot.nominated_nodes:
            info = node_info(self._snapshot, node)
            if info is not None and rows[info.row]:
                status = checked(info, partial(self._status_with_nominated_pods, info))
                if not status.is_success:
                    rejected[info.row] = status
        return rejected

    def _status_with_nominated_pods(self, info: NodeInfo) -> Status:
        nominated = nominated_pods(self._pod, info)
        if not nominated:
            return SUCCESS
        state, skipped = self._found.state, self._found.skipped
        return filter_node_with(nominated, state, self._pod, info, self._profile, skipped=skipped)
