"""What a plan is made of: the group, its pending members, and their classes by scarcity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from berth.api.devices import DeviceClass
from berth.api.pod import Pod, priority_of
from berth.api.podgroups import PodGroup
from berth.api.resources import Amounts
from berth.api.selectors import AffinityTermKind
from berth.cluster.nodes import Amount, Mask
from berth.cluster.pods import EquivalenceClass, Trait, has_source
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import label_items
from berth.framework.extending import Extension
from berth.framework.plugincalls import run_pod_keys
from berth.framework.profile import Profile
from berth.groups.workspace import Workspace
from berth.messages.subjects import Attempt

_CLAIMS: Final = int(Trait.RESOURCE_CLAIMS)
_EXTENDED: Final = int(Trait.EXTENDED_RESOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuestion:
    """``members``: pending pods of one profile. ``need``: how many must have a place, 1 or more.

    ``bound``: uids of bound members. ``attempt`` is the group's. ``extensions``: the extenders' answers about one
    member of each class that they were asked about, by its uid.
    """

    group: PodGroup
    attempt: Attempt
    members: Sequence[Pod]
    need: int
    bound: Sequence[str] = ()
    extensions: Mapping[str, Extension] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class GroupClass:
    """Pending members with an equal spec, by priority and age.

    ``runs``: those of them that look alike to every plugin. ``share``: the largest part of all nodes' amounts that one
    of them requests. ``feasible``: bool[rows], the nodes for the first of them before any is placed. ``static``:
    bool[rows], the nodes that neither an extender nor anything but the pods on them rules out. ``room``: float64[rows],
    how many of them the sums of each node leave room for, up to their number; ``loose_room`` without that limit.
    ``counted``: by resource, what must be free for each.
    """

    number: int
    pods: list[Pod]
    runs: list[list[Pod]]
    share: float
    follows: bool  # has required affinity, so that others may have to be placed before
    feasible: Mask
    static: Mask
    room: Amount
    loose_room: Amount
    counted: Mapping[str, int] = field(default_factory=dict)
    extension: Extension | None = None

    @property
    def scarcity(self) -> tuple[int, float, int]:
        """Sort key: the fewest feasible nodes first, then the largest members."""
        return int(np.count_nonzero(self.feasible)), -self.share, self.number


def classes_of(question: GroupQuestion, snapshot: Snapshot) -> list[list[Pod]]:
    """The members by class, in the order of their first members."""
    found: dict[EquivalenceClass, list[Pod]] = {}
    for pod in sorted(question.members, key=_before):
        found.setdefault(snapshot.class_of(pod), []).append(pod)
    return list(found.values())


def claims_devices(question: GroupQuestion, snapshot: Snapshot) -> bool:
    """Whether some member gets devices, by claims or by an extended resource that a DeviceClass may serve."""
    claiming = _CLAIMS | (_EXTENDED if len(snapshot.objects(DeviceClass)) else 0)
    return any(snapshot.traits_of(pod) & claiming for pod in question.members)


def measured(number: int, pods: list[Pod], workspace: Workspace, extension: Extension | None) -> GroupClass:
    """The class with its nodes as they are now.

    Raises:
        MemberError: the first of the pods cannot be ranked.
    """
    snapshot, first = workspace.snapshot, pods[0]
    cycle = workspace.cycle_of(first)
    pod_class, static = snapshot.class_of(first), workspace.guarded(first, cycle.static)
    if extension is not None:
        static &= extension.mask(snapshot)
    terms = pod_class.affinity_terms(first.metadata.namespace)
    return GroupClass(
        number=number,
        pods=pods,
        runs=workspace.guarded(first, lambda: _runs(pods, workspace)),
        share=_dominant_share(pod_class.requests.amounts, snapshot),
        follows=bool(terms.at(AffinityTermKind.REQUIRED_AFFINITY)),
        feasible=workspace.guarded(first, lambda: cycle.feasible().mask) & (True if extension is None else static),
        static=static,
        room=workspace.guarded(first, lambda: cycle.room(static, len(pods))),
        loose_room=cycle.loose_room(static),
        counted=workspace.guarded(first, cycle.counted_amounts),
        extension=extension,
    )


def _before(pod: Pod) -> tuple[int, str, str]:
    return -priority_of(pod), pod.metadata.creation_timestamp or "", pod.uid


def _runs(pods: list[Pod], workspace: Workspace) -> list[list[Pod]]:
    runs: dict[object, list[Pod]] = {}
    for pod in pods:
        runs.setdefault(_alike(pod, workspace.profile, workspace.snapshot.traits_of(pod)), []).append(pod)
    return list(runs.values())


def _alike(pod: Pod, profile: Profile, traits: int) -> object:
    """Equal for pods of a class that look alike to every plugin of the profile."""
    spec, metadata = pod.spec, pod.metadata
    if spec.resource_claims or any(map(has_source, spec.volumes or ())) or pod.status.nominated_node_name:
        return pod.uid
    if profile.is_row_local_for(traits):
        return traits, run_pod_keys(profile.keyed, pod)
    owners = tuple((owner.kind, owner.uid) for owner in metadata.owner_references or ())
    annotations = label_items(metadata.annotations)
    return traits, label_items(metadata.labels), annotations, owners


def _dominant_share(amounts: Amounts, snapshot: Snapshot) -> float:
    exists = snapshot.columns.exists[: snapshot.size]
    shares = [0.0]
    for resource, amount in amounts.items():
        total = float(snapshot.columns.allocatable.of(resource)[: snapshot.size][exists].sum())
        shares.append(amount / total if total else float(amount > 0))
    return max(shares)
