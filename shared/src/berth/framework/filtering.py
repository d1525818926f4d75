"""PreFilter and Filter of one cycle, nominated pods included: which nodes are feasible, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from berth.api.pod import Pod, priority_of
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.diagnosis import Diagnosis
from berth.framework.equivalencecache import EquivalenceView
from berth.framework.interface import FilterPlugin, PreFilterExtensions, PreFilterPlugin, PreFilterResult
from berth.framework.plugincalls import PluginFailure, call, evaluate_filter, named
from berth.framework.profile import Profile
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Codes, Mask, Status


@dataclass(slots=True)
class PreFiltered:
    """What PreFilter found: ``rejection`` for all nodes, or what is left to filter.

    ``nodes`` are the only nodes that ``restricting`` plugins let be feasible; None when all can.
    """

    view: EquivalenceView
    state: CycleState
    skipped: set[str] = field(default_factory=set)
    nodes: frozenset[str] | None = None
    restricting: list[str] = field(default_factory=list)
    rejection: Status | None = None

    def take(self, plugin: PreFilterPlugin, answer: PreFilterResult) -> None:
        """Join one plugin's answer to those before."""
        if answer.status.is_skip:
            self.skipped.add(plugin.name)
        elif not answer.status.is_success:
            self.rejection = answer.status
        elif answer.nodes is not None:
            self.nodes = answer.nodes if self.nodes is None else self.nodes & answer.nodes
            self.restricting.append(plugin.name)
            if not self.nodes:
                self.rejection = self._contradiction()

    def outside(self) -> Status:
        """Why a node that is not among ``nodes`` is refused."""
        names = " ".join(sorted(self.restricting))
        return Status(
            Status.unresolvable().code, (f"node(s) didn't satisfy plugin(s) [{names}]",), ",".join(self.restricting)
        )

    def _contradiction(self) -> Status:
        one = len(self.restricting) == 1
        which = f"plugin {self.restricting[0]}" if one else f"plugin(s) [{' '.join(self.restricting)}] simultaneously"
        return Status(Status.unresolvable().code, (f"node(s) didn't satisfy {which}",), ",".join(self.restricting))


def pre_filter(pod: Pod, snapshot: Snapshot, profile: Profile) -> PreFiltered:
    """Run PreFilter, up to the first rejection; answers of row-local plugins are those of the pod's class.

    Raises:
        PluginFailure: a plugin failed.
    """
    view = profile.memory_of(snapshot).view_of(pod)
    found = PreFiltered(view, CycleState(view.state.pod_class, view.state))
    for plugin in profile.pre_filters:
        answer = view.pre_filtered.get(plugin.name)
        found.take(plugin, answer if answer is not None else _ask(plugin, found.state, pod, snapshot))
        if found.rejection is not None:
            break
    return found


def _ask(plugin: PreFilterPlugin, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
    answer = call(plugin, "PreFilter", plugin.pre_filter, PreFilterResult, state, pod, snapshot)
    return PreFilterResult(named(plugin, "PreFilter", answer.status), answer.nodes)


class Filtering:
    """The filters of one cycle. ``feasible``: bool[rows]; ``refusals`` say why the others are not, once asked for."""

    def __init__(self, pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered) -> None:
        self._pod = pod
        self._snapshot = snapshot
        self._found = found
        self._profile = profile
        self._filters = [f for f in profile.filters if f.name not in found.skipped]
        self._refusals: Diagnosis | None = None
        self._nominated: dict[int, Status] = {}
        self.feasible: Mask = np.zeros(0, dtype=np.bool_)

    def run(self) -> None:
        """Find the feasible nodes.

        Raises:
            PluginFailure: a plugin failed.
        """
        view, size = self._found.view, self._snapshot.size
        view.refresh_filters()
        self._nominated = self._refused_for_nominated()
        if self._can_look_up():
            self.feasible = view.fits[:size].copy()
            self.feasible[list(self._nominated)] = False
        else:
            self._walk()

    def refusals(self) -> Diagnosis:
        """Why nodes were refused."""
        if self._refusals is None:
            self._walk()
        return self._refusals or Diagnosis(self._snapshot.node_count)

    def _can_look_up(self) -> bool:
        local = all(f.is_row_local for f in self._filters) and self._found.nodes is None
        return local and not any(column.errors for column in self._found.view.columns.values())

    def _walk(self) -> None:
        """Filter after filter, each on what the ones before have left, noting why."""
        self._refusals = refusals = Diagnosis(self._snapshot.node_count)
        remaining = self._snapshot.columns.exists[: self._snapshot.size].copy()
        self._leave_out_unnamed(remaining, refusals)
        self._leave_out_nominated(remaining, refusals)
        for plugin in self._filters:
            codes, statuses = self._verdicts(plugin, remaining)
            refused = remaining & (codes != 0)
            refusals.add_codes(statuses, codes, refused)
            remaining &= ~refused
        self.feasible = remaining

    def _verdicts(self, plugin: FilterPlugin, remaining: Mask) -> tuple[Codes, Sequence[Status]]:
        column = self._found.view.columns.get(plugin.name)
        if column is None:
            codes, statuses = self._ask(plugin, remaining)
        else:
            codes, statuses = column.codes[: len(remaining)], column.statuses
        for code, status in enumerate(statuses):
            if status.code is status.code.ERROR and np.any(remaining & (codes == code)):
                named(plugin, "Filter", status)
        return codes, statuses

    def _ask(self, plugin: FilterPlugin, remaining: Mask) -> tuple[Codes, Sequence[Status]]:
        rows = np.flatnonzero(remaining)
        verdicts = evaluate_filter(plugin, self._found.state, self._pod, Nodes(self._snapshot, rows))
        codes: Codes = np.zeros(len(remaining), dtype=np.int32)
        codes[rows] = verdicts.codes
        return codes, [SUCCESS, *(Status(s.code, s.reasons, plugin.name) for s in verdicts.statuses[1:])]

    def _leave_out_unnamed(self, remaining: Mask, refusals: Diagnosis) -> None:
        if self._found.nodes is None:
            return
        named_rows = [row for name in self._found.nodes if (row := self._snapshot.rows.of(name)) is not None]
        outside = remaining.copy()
        outside[named_rows] = False
        refusals.add(self._found.outside(), np.flatnonzero(outside))
        remaining &= ~outside

    def _leave_out_nominated(self, remaining: Mask, refusals: Diagnosis) -> None:
        for row, status in self._nominated.items():
            if remaining[row]:
                refusals.add(status, np.array([row]))
                remaining[row] = False

    def _refused_for_nominated(self) -> dict[int, Status]:
        refused: dict[int, Status] = {}
        for node, nominated in nominated_by_node(self._pod, self._snapshot).items():
            info = self._snapshot.node_info(node)
            if info is not None:
                status = filter_with(nominated, self._pod, info, self._profile, self._found)
                if not status.is_success:
                    refused[info.row] = status
        return refused


def nominated_by_node(pod: Pod, snapshot: Snapshot) -> dict[str, list[Pod]]:
    """Pods for which room is kept, by node: those that are as important as this one or more, and are not placed yet."""
    by_node: dict[str, list[Pod]] = {}
    for nominated in snapshot.nominations():
        other = nominated.pod
        if other.uid != pod.uid and priority_of(other) >= priority_of(pod) and snapshot.node_of(other.uid) is None:
            by_node.setdefault(nominated.node, []).append(other)
    return by_node


def filter_with(  # noqa: PLR0913 - one cycle's parts; the state where it is another than PreFilter's
    nominated: Sequence[Pod],
    pod: Pod,
    node: NodeInfo,
    profile: Profile,
    found: PreFiltered,
    *,
    state: CycleState | None = None,
) -> Status:
    """All filters on one node, as if the nominated pods were on it already.

    Raises:
        PluginFailure: a plugin failed.
    """
    with node.snapshot.supposing(placed=[(other, node.name) for other in nominated]):
        state = (state or found.state).clone()
        for plugin in profile.pre_filters:
            if isinstance(plugin, PreFilterExtensions) and plugin.name not in found.skipped:
                for other in nominated:
                    status = call(plugin, "AddPod", plugin.add_pod, Status, state, pod, other, node)
                    if not status.is_success:
                        raise PluginFailure(f'running AddPod on PreFilter plugin "{plugin.name}": {status.reasons}')
        return filter_one(state, pod, node, profile, found)


def filter_one(state: CycleState, pod: Pod, node: NodeInfo, profile: Profile, found: PreFiltered) -> Status:
    """All filters on one node, up to the first that refuses it.

    Raises:
        PluginFailure: a plugin failed.
    """
    for plugin in profile.filters:
        if plugin.name not in found.skipped:
            status = call(plugin, "Filter", plugin.filter, Status, state, pod, node)
            if not status.is_success:
                return named(plugin, "Filter", status)
    return SUCCESS
