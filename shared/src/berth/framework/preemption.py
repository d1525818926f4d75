"""A dry run: the filters of one cycle, asked again of a node as if some of the pods on it were gone.

PostFilter: what can be done when no node is feasible, and the same asked once more before it is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from berth.api.pod import Pod
from berth.cluster.equivalence import Placed
from berth.cluster.nodes import Gone, Mask, NodeInfo, Nodes, NodesWithout, RowIndex
from berth.cluster.snapshot import Snapshot
from berth.framework.diagnosis import Diagnosis
from berth.framework.filtering import PreFiltered, filter_one, filter_with, nominated_by_node, pre_filter
from berth.framework.interface import (
    FilterPlugin,
    Nomination,
    PostFilterResult,
    PreFilterExtensions,
    Reads,
    VectorFilterPlugin,
)
from berth.framework.plugincalls import PluginFailure, call, evaluate_filter, named
from berth.framework.profile import Profile
from berth.framework.state import CycleState
from berth.framework.status import Status, Verdicts


class DryRun:
    """Asked by PostFilter. The Snapshot is as it was whenever nothing is being supposed."""

    def __init__(self, pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered) -> None:
        self.pod = pod
        self.snapshot = snapshot
        self._profile = profile
        self._found = found
        self._filters = [plugin for plugin in profile.filters if plugin.name not in found.skipped]
        self._counting = [
            plugin
            for plugin in profile.pre_filters
            if isinstance(plugin, PreFilterExtensions) and plugin.name not in found.skipped
        ]

    @contextmanager
    def vacating(self, node: NodeInfo, pods: Collection[Placed]) -> Iterator[Vacated]:
        """The node without these pods, until the context ends.

        Raises:
            PluginFailure: a plugin failed.
        """
        with self.snapshot.supposing(removed=[each.pod.uid for each in pods]):
            vacated = Vacated(self, node, self._found.state.clone())
            for each in pods:
                vacated.left(each)
            yield vacated

    def filter(self, state: CycleState, node: NodeInfo) -> Status:
        """All filters on the node as it is supposed to be, with nominated pods of equal or higher priority and without.

        Raises:
            PluginFailure: a plugin failed.
        """
        if self._found.rejection is not None:
            return self._found.rejection  # without a state that the other plugins could be asked with
        nominated = self.nominated.get(node.name)
        if nominated:
            status = filter_with(nominated, self.pod, node, self._profile, self._found, state=state)
            if not status.is_success:
                return status
        return filter_one(state, self.pod, node, self._profile, self._found)

    @cached_property
    def nominated(self) -> dict[str, list[Pod]]:
        """By node, the pods for which room is kept before this one."""
        return nominated_by_node(self.pod, self.snapshot)

    def refused_without(self, rows: RowIndex, gone: Gone, refusals: Diagnosis) -> tuple[Mask, Mask]:
        """Rows that are refused for certain once these pods are gone, of many at once.

        Filters are asked that look at no pods or at their sums, and others for what they know of it. A row goes into
        ``refusals`` where the first filter that refuses it is known. Returns bool[rows]: those refused, and of these
        those without a word.
        """
        if self._found.rejection is not None:
            refusals.add(self._found.rejection, rows)
            return np.ones(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
        remaining = np.ones(len(rows), dtype=np.bool_)
        unsure = np.isin(rows, [info.row for name in self.nominated if (info := self.snapshot.node_info(name))])
        wordless = np.zeros(len(rows), dtype=np.bool_)
        for plugin in self._filters:
            verdicts = self._verdicts(plugin, rows, gone)
            is_certain = verdicts is not None
            verdicts = verdicts or self._guess(plugin, rows, gone)
            refused = remaining & (verdicts.codes != 0)
            for code in np.unique(verdicts.codes[refused & ~unsure]).tolist():
                status = named(plugin, "Filter", verdicts.statuses[code])
                refusals.add(status, rows[refused & ~unsure & (verdicts.codes == code)])
            wordless |= refused & unsure
            remaining &= ~refused
            if not is_certain:
                unsure |= remaining  # it might be the first to refuse any of these
        return ~remaining, wordless

    def sums_fit(self, rows: RowIndex, gone: Gone) -> Mask:
        """bool[rows]: whether the sums of what is left on each node let the pod in; a necessary condition."""
        fit = np.ones(len(rows), dtype=np.bool_)
        for plugin in self._filters:
            if _sums_only(plugin):
                nodes = NodesWithout(self.snapshot, rows, gone)
                fit &= evaluate_filter(plugin, self._found.state, self.pod, nodes).codes == 0
        return fit

    def tell(self, state: CycleState, node: NodeInfo, other: Pod, *, came: bool) -> None:
        """Tell the plugins whose PreFilter counted pods that one came, or left.

        Raises:
            PluginFailure: a plugin failed.
        """
        point = "AddPod" if came else "RemovePod"
        for plugin in self._counting:
            method = plugin.add_pod if came else plugin.remove_pod
            status = call(plugin, point, method, Status, state, self.pod, other, node)
            if not status.is_success:
                raise PluginFailure(f'running {point} on PreFilter plugin "{plugin.name}": {status.reasons}')

    def _verdicts(self, plugin: FilterPlugin, rows: RowIndex, gone: Gone) -> Verdicts | None:
        """What a filter says of all rows at once; ``None`` where each has to be asked by itself."""
        if _sums_only(plugin):
            nodes = NodesWithout(self.snapshot, rows, gone)
            return evaluate_filter(plugin, self._found.state, self.pod, nodes)
        column = self._found.view.columns.get(plugin.name)
        if column is None or Reads.PODS in plugin.reads:
            return None
        return Verdicts(column.codes[rows], tuple(column.statuses))

    def _guess(self, plugin: FilterPlugin, rows: RowIndex, gone: Gone) -> Verdicts:
        """What another filter refuses for certain; it may refuse more."""
        if isinstance(plugin, PreFilterExtensions):
            arguments = (self._found.state, self.pod, Nodes(self.snapshot, rows), gone)
            answer = call(plugin, "Filter", plugin.refused_without, object, *arguments)
            if isinstance(answer, Verdicts):
                return answer
        return Verdicts.all_fit(len(rows))


class Vacated:
    """A node that some pods are supposed to have left. What changes is told to the plugins that count pods."""

    def __init__(self, dry_run: DryRun, node: NodeInfo, state: CycleState) -> None:
        self._dry_run = dry_run
        self._node = node
        self._state = state

    def status(self) -> Status:
        """Whether the pod may be on the node now."""
        return self._dry_run.filter(self._state, self._node)

    def put_back(self, placed: Placed) -> None:
        """A pod that was supposed to be gone is there after all."""
        self._dry_run.snapshot.place(placed.pod, self._node.name, bound_at=placed.bound_at)
        self._dry_run.tell(self._state, self._node, placed.pod, came=True)

    def take_away(self, placed: Placed) -> None:
        """The pod is gone again."""
        self._dry_run.snapshot.remove_pod(placed.pod.uid)
        self.left(placed)

    def left(self, placed: Placed) -> None:
        """The Snapshot does not show the pod any more: tell who counts."""
        self._dry_run.tell(self._state, self._node, placed.pod, came=False)


def _sums_only(plugin: FilterPlugin) -> bool:
    return isinstance(plugin, VectorFilterPlugin) and plugin.sums_only


def post_filter(
    pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered, refusals: Diagnosis
) -> PostFilterResult:
    """Ask one plugin after another, up to the first that can do something. All that they say is joined.

    Without such a plugin nothing can be done, and a node that is kept for the pod is kept for nothing.

    Raises:
        PluginFailure: a plugin failed.
    """
    dry_run = DryRun(pod, snapshot, profile, found)
    said: list[str] = []
    clears = not profile.post_filters
    for plugin in profile.post_filters:
        arguments = (found.state, pod, snapshot, refusals, dry_run)
        answer = call(plugin, "PostFilter", plugin.post_filter, PostFilterResult, *arguments)
        said.extend([answer.message] if answer.message else [])
        if answer.nomination is not None:
            return PostFilterResult(answer.nomination, ", ".join(said))
        clears = clears or answer.clears_nomination
        if answer.is_last_word:
            break
    return PostFilterResult(None, ", ".join(said), clears)


def confirm(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Nomination | None:
    """What must go from the node for the pod to fit, by this state; None when nothing helps, or nothing has to go.

    Raises:
        PluginFailure: a plugin failed.
    """
    found = pre_filter(pod, snapshot, profile)
    dry_run = DryRun(pod, snapshot, profile, found)
    for plugin in profile.post_filters:
        answer = call(plugin, "PostFilter", plugin.confirm, object, pod, node, dry_run)
        if isinstance(answer, Nomination):
            return answer
    return None
