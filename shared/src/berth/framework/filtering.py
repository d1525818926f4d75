"""PreFilter, and Filter on one node: also as if the nominated pods were on it.

Filter on all nodes at once is in ``feasible``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from berth.api.pod import Pod, priority_of
from berth.cluster.nodes import NodeInfo
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import PreFilterExtensions, PreFilterResult
from berth.framework.plugincalls import run_add_pod, run_filter, run_pre_filter, with_plugin_name
from berth.framework.profile import Profile
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Status


@dataclass(slots=True)
class PreFiltered:
    """The outcome of PreFilter: ``rejection`` of all nodes, or the nodes that remain to be filtered.

    ``nodes`` are the only nodes that can be feasible, by the plugins in ``restricting``; None when all can.
    """

    state: CycleState
    skipped: set[str] = field(default_factory=set)
    nodes: frozenset[str] | None = None
    restricting: list[str] = field(default_factory=list)
    rejection: Status | None = None

    def add(self, plugin: str, answer: PreFilterResult) -> None:
        """Combine one plugin's answer with the earlier ones."""
        if answer.status.is_skip:
            self.skipped.add(plugin)
        elif not answer.status.is_success:
            self.rejection = answer.status
        elif answer.nodes is not None:
            self.nodes = answer.nodes if self.nodes is None else self.nodes & answer.nodes
            self.restricting.append(plugin)
            if not self.nodes:
                self.rejection = self._no_node_left()

    def status_of_other_nodes(self) -> Status:
        """Why a node that is not among ``nodes`` is rejected."""
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
    found = PreFiltered(state)
    for plugin in profile.pre_filters:
        answer = cached.get(plugin.name)
        found.add(plugin.name, answer if answer is not None else run_pre_filter(plugin, state, pod, snapshot))
        if found.rejection is not None:
            break
    return found


def filter_node(state: CycleState, pod: Pod, node: NodeInfo, profile: Profile, skipped: set[str]) -> Status:
    """All filters on one node, up to the first that rejects it.

    Raises:
        PluginFailure: a plugin failed.
    """
    for plugin in profile.filters:
        if plugin.name not in skipped:
            status = run_filter(plugin, state, pod, node)
            if not status.is_success:
                return with_plugin_name(plugin, "Filter", status)
    return SUCCESS


def filter_node_with(  # noqa: PLR0913 - the parts of one cycle, and the pods to add
    nominated: Sequence[Pod], state: CycleState, pod: Pod, node: NodeInfo, profile: Profile, *, skipped: set[str]
) -> Status:
    """All filters on one node, as if the nominated pods were on it already. ``state`` is not changed.

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


def nominated_pods(pod: Pod, snapshot: Snapshot) -> dict[str, list[Pod]]:
    """By node, the nominated pods of the same priority as this one or higher that are not placed yet."""
    by_node: dict[str, list[Pod]] = {}
    for nominated in snapshot.nominations():
        other = nominated.pod
        if other.uid != pod.uid and priority_of(other) >= priority_of(pod) and snapshot.node_of(other.uid) is None:
            by_node.setdefault(nominated.node, []).append(other)
    return by_node
