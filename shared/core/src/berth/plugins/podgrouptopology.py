"""PodGroupTopology: pods that come when the minimum of their group is bound go where the group is (ADR 72).

A PodGroup with a required topology key has one value of that node label: the one that most of its placed members have.
Every other node is rejected for its further pods; without such a member, every node without the label. With a preferred
key the nodes of that value are taken if one of them is feasible. It is part of every profile; plans of whole groups
choose domains themselves, and leave it out (``Profile.of_plans``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from berth.api.pod import Pod
from berth.api.podgroups import GroupKey, group_of
from berth.cluster.columns import ABSENT
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes
from berth.cluster.podgroups import STRUCTS, PodGroups, home_domain
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.interface import (
    EnqueueExtensions,
    PreFilterPlugin,
    PreFilterResult,
    RemedyPlugin,
    RemedySentence,
    VectorFilterPlugin,
)
from berth.framework.status import SKIP, SUCCESS, CycleState, StateKey, Status, Verdicts

NAME: Final = "PodGroupTopology"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The domain of a pod's group. ``rows``: bool[rows]; ``name``: empty if no member is in one.

    ``note``: of members that are elsewhere, which are never moved.
    """

    key: str
    name: str
    rows: Mask
    required: bool
    note: str = ""

    @property
    def rejection(self) -> Status:
        if not self.name:
            return Status.unresolvable(f"node(s) without the label {self.key} of the pod's group")
        return Status.unresolvable(f"node(s) outside {self.key} {self.name} where the pod's group runs")

    @property
    def sentence(self) -> str:
        kept = (
            f"kept to {self.key} {self.name}, where its group runs" if self.name else f"kept to nodes with {self.key}"
        )
        return f"the pod is {kept}{f'; {self.note}' if self.note else ''}"


def home_of(pod: Pod, snapshot: Snapshot) -> Home | None:
    """Where the group of the pod is; None if it may be anywhere."""
    key = group_of(pod)
    group = None if key is None else PodGroups.of(snapshot).get(key)
    if key is None or group is None or group.topology is None:
        return None
    topology = group.topology
    column = snapshot.label_column(topology.key)
    codes = np.where(snapshot.columns.exists[: snapshot.size], column.codes[: snapshot.size], ABSENT)

    def is_member(other: Pod) -> bool:
        return group_of(other) == key and other.metadata.deletion_timestamp is None

    home, note = home_domain(snapshot, topology.key, snapshot.group_members.rows(key), codes, is_member)
    if home is None and not topology.required:
        return None
    name = "" if home is None else column.values[home]
    rows = codes != ABSENT if home is None else codes == home
    return Home(key=topology.key, name=name, rows=rows, required=topology.required, note=note)


HOME: Final = StateKey[Home](f"{NAME}.home")


class PodGroupTopology(PreFilterPlugin, VectorFilterPlugin, RemedyPlugin, EnqueueExtensions):
    name: ClassVar[str] = NAME
    only_for = Trait.GROUPED

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod that may be anywhere."""
        home = home_of(pod, snapshot)
        if home is None:
            return PreFilterResult(SKIP)
        if not home.required:
            return PreFilterResult(SKIP, preferred=home.rows)
        state.write(HOME, home)
        return PreFilterResult(SUCCESS)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        home = state.read(HOME)
        return SUCCESS if home.rows[node.row] else home.rejection

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        home = state.read(HOME)
        return Verdicts.refusing(~nodes.take(home.rows), home.rejection)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        home = state.read(HOME)
        yield RemedySentence(about=home.key, nodes=~nodes.take(home.rows), text=home.sentence)

    def events(self) -> Sequence[EventHint]:
        labels = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
        members = ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_TERMINATING)
        groups = ClusterEvent(Resource.POD_GROUP, Action.ADD | Action.UPDATE | Action.DELETE)
        return (
            EventHint(labels, key=nothing),
            EventHint(members, _was_member, key=_group),
            EventHint(groups, _is_the_group, key=_group),
        )


def _group(pod: Pod) -> Hashable:
    return group_of(pod)


def _was_member(pod: Pod, old: object, _: object) -> bool:
    return isinstance(old, Pod) and group_of(old) == group_of(pod)


def _is_the_group(pod: Pod, old: object, new: object) -> bool:
    return group_of(pod) in {_key_of(old), _key_of(new)}


def _key_of(thing: object) -> GroupKey | None:
    for dialect, kind in STRUCTS.items():
        if isinstance(thing, kind):
            return GroupKey(dialect, thing.metadata.namespace, thing.metadata.name)
    return None
