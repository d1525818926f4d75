"""PodGroups: pods that are placed all or none, in the two dialects of Kubernetes, decoded into one form.

Coscheduling (``scheduling.x-k8s.io/v1alpha1``) names the group of a pod in a label, upstream (``scheduling.k8s.io``,
v1alpha2 and v1beta1) in ``spec.schedulingGroup``. Members belong by namespace and name, because controllers delete and
remake a PodGroup under living pods. ``Members`` has the states of a group's pods and how many must still be placed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from berth.api.meta import Int32, Name, ObjectMeta, Trimmed
from berth.api.pod import PREEMPT_NEVER, Pod, PodCondition, Quantities, controller_of, is_finished, priority_of
from berth.api.resources import Amounts, read_amounts

# The label by which pods name their group in Coscheduling's dialect.
GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
# Annotations of a Coscheduling PodGroup: the key of a node label whose value all members must, or should, share.
TOPOLOGY_ANNOTATION: Final = "berth/topology"
PREFERRED_TOPOLOGY_ANNOTATION: Final = "berth/topology-preferred"
_OWN_PREFIX: Final = "berth/"

# By version, the condition that says that the minimum of a group is bound.
SCHEDULED: Final = {"v1beta1": "PodGroupInitiallyScheduled", "v1alpha2": "PodGroupScheduled"}

# Pending members that one plan takes. A plan of so many takes at most two seconds in four orders.
MOST_MEMBERS: Final = 2000
# Resources in minResources: as many as the smallest form of a pod keeps.
MOST_RESOURCES: Final = 32
# Seconds after which a rest without a place is reported, where the group says none.
DEFAULT_TIMEOUT_SECONDS: Final = 60

# A domain of 253 characters, a slash, and a name of 63.
LabelKey = Annotated[str, msgspec.Meta(max_length=317)]

_LABEL_KEY: Final = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


class CoschedulingSpec(Trimmed, frozen=True, kw_only=True):
    """Changes at any time. Without ``min_member`` it is 1. ``left_out``: why the spec is not here."""

    left_out: str = ""
    min_member: Int32 | None = None
    min_resources: Quantities | None = None
    schedule_timeout_seconds: Int32 | None = None


class CoschedulingPodGroup(Trimmed, frozen=True, kw_only=True):
    """PodGroup of ``scheduling.x-k8s.io/v1alpha1``."""

    metadata: ObjectMeta
    spec: CoschedulingSpec = CoschedulingSpec()


class GangPolicy(Trimmed, frozen=True, kw_only=True):
    min_count: Int32 | None = None


class BasicPolicy(Trimmed, frozen=True, kw_only=True):
    """The pods are placed one by one."""


class SchedulingPolicy(Trimmed, frozen=True, kw_only=True):
    """Exactly one is set; none is a policy that this release does not know."""

    gang: GangPolicy | None = None
    basic: BasicPolicy | None = None


class TopologyConstraint(Trimmed, frozen=True, kw_only=True):
    """A node label whose value all members must share."""

    key: str = ""


class SchedulingConstraints(Trimmed, frozen=True, kw_only=True):
    topology: list[TopologyConstraint] | None = None


class DisruptionModes(Trimmed, frozen=True, kw_only=True):
    """v1beta1's form: exactly one is set."""

    all: BasicPolicy | None = None
    single: BasicPolicy | None = None


class UpstreamSpec(Trimmed, frozen=True, kw_only=True):
    """v1alpha2 and v1beta1, which differ in ``disruption_mode``: a word, or one of two fields.

    ``left_out``: why the spec is not here.
    """

    left_out: str = ""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: str | DisruptionModes | None = None
    priority_class_name: str = ""
    priority: Int32 | None = None
    preemption_policy: str | None = None
    parent_composite_pod_group_name: str = ""


class UpstreamStatus(Trimmed, frozen=True, kw_only=True):
    conditions: list[PodCondition] | None = None


class UpstreamPodGroup(Trimmed, frozen=True, kw_only=True):
    """PodGroup of ``scheduling.k8s.io``."""

    metadata: ObjectMeta
    spec: UpstreamSpec = UpstreamSpec()
    status: UpstreamStatus = UpstreamStatus()


class Dialect(StrEnum):
    """The API group of a PodGroup."""

    COSCHEDULING = "scheduling.x-k8s.io"
    UPSTREAM = "scheduling.k8s.io"


class GroupKey(NamedTuple):
    """Groups of one name in both dialects are two groups."""

    dialect: Dialect
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def in_full(self) -> str:
        return f"{self} ({self.dialect})"


class Topology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node label whose value all members must share, or should if it is not ``required``."""

    key: LabelKey
    required: bool = True


class PodGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of either dialect.

    ``minimum``: members that are placed together or not at all. ``min_resources``: what the nodes must have free for
    all of the group, as amounts (millicores, bytes). ``goes_as_one``: evicting one member means evicting all.
    ``problems``: why the group is not scheduled as it is.
    """

    dialect: Dialect
    namespace: Name
    name: Name
    uid: Name
    resource_version: Name = ""
    created: str = ""
    minimum: int = 1
    min_resources: dict[str, int] = {}
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    topology: Topology | None = None
    priority: int | None = None
    may_preempt: bool = True
    goes_as_one: bool = False
    is_terminating: bool = False
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.dialect, self.namespace, self.name)

    def is_ordinary(self, requests: Mapping[str, int]) -> bool:
        """Whether its pods, which request these amounts each, are scheduled one by one."""
        alone = self.minimum <= 1 and self.topology is None and not self.problems
        return alone and all(amount <= requests.get(name, 0) for name, amount in self.min_resources.items())


def is_scheduled(group: UpstreamPodGroup) -> bool:
    """Whether its status says that the minimum is bound."""
    return any(each.type in SCHEDULED.values() and each.status == "True" for each in group.status.conditions or ())


def group_of(pod: Pod) -> GroupKey | None:
    """The group that the pod names, by its field before its label; it need not exist."""
    named = pod.spec.scheduling_group
    if named is not None and named.pod_group_name:
        return GroupKey(Dialect.UPSTREAM, pod.metadata.namespace, named.pod_group_name)
    labels = pod.metadata.labels
    name = labels.get(GROUP_LABEL) if labels else None
    return GroupKey(Dialect.COSCHEDULING, pod.metadata.namespace, name) if name else None


def of_coscheduling(group: CoschedulingPodGroup) -> PodGroup:
    problems = _left_out_problems(group.spec.left_out)
    minimum = _minimum(group.spec.min_member, "spec.minMember", problems)
    return _form(
        Dialect.COSCHEDULING,
        group.metadata,
        minimum=minimum,
        min_resources=_min_resources(group.spec.min_resources, problems),
        timeout_seconds=max(0, group.spec.schedule_timeout_seconds or 0) or DEFAULT_TIMEOUT_SECONDS,
        topology=_annotated_topology(group.metadata.annotations or {}, problems),
        problems=tuple(problems),
    )


def of_upstream(group: UpstreamPodGroup) -> PodGroup:
    spec, problems = group.spec, _left_out_problems(group.spec.left_out)
    policy = spec.scheduling_policy
    if not problems and (policy.gang is None) == (policy.basic is None):
        problems.append("spec.schedulingPolicy: want gang or basic")
    if spec.parent_composite_pod_group_name:
        problems.append("spec.parentCompositePodGroupName: groups of groups are not scheduled")
    annotations = group.metadata.annotations or {}
    problems += _unread(annotations, "want spec.schedulingConstraints.topology, as this dialect has it")
    gang = policy.gang
    return _form(
        Dialect.UPSTREAM,
        group.metadata,
        minimum=1 if gang is None else _minimum(gang.min_count, "spec.schedulingPolicy.gang.minCount", problems),
        topology=_constrained_topology(spec.scheduling_constraints, problems),
        priority=spec.priority,
        may_preempt=spec.preemption_policy != PREEMPT_NEVER,
        goes_as_one=_goes_as_one(spec.disruption_mode, problems),
        problems=tuple(problems),
    )


def _left_out_problems(left_out: str) -> list[str]:
    return [f"the PodGroup {left_out}"] if left_out else []


def _form(dialect: Dialect, metadata: ObjectMeta, **values: object) -> PodGroup:
    return PodGroup(
        dialect=dialect,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        created=metadata.creation_timestamp or "",
        is_terminating=metadata.deletion_timestamp is not None,
        **values,  # type: ignore[arg-type]  # each caller names fields of PodGroup
    )


def _minimum(number: int | None, path: str, problems: list[str]) -> int:
    if number is None:
        return 1
    if number < 1:
        problems.append(f"{path}: want 1 or more, got {number}")
    elif number > MOST_MEMBERS:
        most = f"more than a plan can take (at most {MOST_MEMBERS})"
        problems.append(f"{path}: the group asks for a minimum of {number}, {most}")
    return max(1, number)


def _min_resources(quantities: Quantities | None, problems: list[str]) -> Amounts:
    if quantities is not None and len(quantities) > MOST_RESOURCES:
        problems.append(f"spec.minResources: want at most {MOST_RESOURCES} resources, got {len(quantities)}")
        return {}
    return read_amounts(quantities, "spec.minResources", problems.append)


def _annotated_topology(annotations: Mapping[str, str], problems: list[str]) -> Topology | None:
    problems += _unread(
        annotations.keys() - {TOPOLOGY_ANNOTATION, PREFERRED_TOPOLOGY_ANNOTATION},
        f"want {TOPOLOGY_ANNOTATION} or {PREFERRED_TOPOLOGY_ANNOTATION}",
    )
    required, preferred = annotations.get(TOPOLOGY_ANNOTATION), annotations.get(PREFERRED_TOPOLOGY_ANNOTATION)
    if required is not None and preferred is not None:
        problems.append(
            f"metadata.annotations: want {TOPOLOGY_ANNOTATION} or {PREFERRED_TOPOLOGY_ANNOTATION}, got both"
        )
    if required is not None:
        return _topology(required, f"metadata.annotations[{TOPOLOGY_ANNOTATION}]", problems)
    if preferred is not None:
        path = f"metadata.annotations[{PREFERRED_TOPOLOGY_ANNOTATION}]"
        return _topology(preferred, path, problems, required=False)
    return None


def _unread(annotations: Iterable[str], wanted: str) -> list[str]:
    """A problem for each of berth's annotations among these: left out, a group would be placed without its rack."""
    named = sorted(each for each in annotations if each.startswith(_OWN_PREFIX))
    return [f"metadata.annotations[{each:.80}]: {wanted}" for each in named]


def _constrained_topology(constraints: SchedulingConstraints | None, problems: list[str]) -> Topology | None:
    topology = constraints.topology if constraints is not None else None
    if not topology:
        return None
    path = "spec.schedulingConstraints.topology"
    if len(topology) > 1:
        problems.append(f"{path}: want at most 1, got {len(topology)}")
    return _topology(topology[0].key, f"{path}[0].key", problems)


def _topology(key: str, path: str, problems: list[str], *, required: bool = True) -> Topology | None:
    if not _LABEL_KEY.fullmatch(key):
        problems.append(f"{path}: want the key of a node label, got {key!r:.80}")
        return None
    return Topology(key=key, required=required)


def _goes_as_one(mode: str | DisruptionModes | None, problems: list[str]) -> bool:
    if isinstance(mode, DisruptionModes):
        if (mode.all is None) == (mode.single is None):
            problems.append("spec.disruptionMode: want all or single")
        return mode.all is not None
    if mode not in {None, "", "Pod", "PodGroup"}:
        problems.append(f"spec.disruptionMode: want Pod or PodGroup, got {mode!r:.80}")
    return mode == "PodGroup"


@dataclass(slots=True, kw_only=True)
class Members:
    """The states of a group's pods, as one reader of the API server sees them.

    ``bound``: placed and neither finished nor terminating. ``succeeded``: finished members of controllers that still
    have an unfinished one, so that last night's run of a CronJob does not count. ``pending``: may be placed now.
    ``gated``: have scheduling gates. ``others``: by schedulerName, unbound pods that are not berth's.
    """

    bound: list[Pod] = field(default_factory=list)
    succeeded: int = 0
    pending: list[Pod] = field(default_factory=list)
    gated: int = 0
    others: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, pods: Iterable[Pod], profiles: Container[str]) -> Members:
        """``pods``: all that name the group; ``profiles``: berth's schedulerNames."""
        members, succeeded, controllers = cls(), list[str](), set[str]()
        for pod in pods:
            if pod.metadata.deletion_timestamp is not None:
                continue
            controller = "" if (owner := controller_of(pod)) is None else owner.uid
            if is_finished(pod):
                if pod.status.phase == "Succeeded" and controller:
                    succeeded.append(controller)
                continue
            controllers.add(controller)
            if pod.spec.node_name:
                members.bound.append(pod)
            elif pod.spec.scheduler_name not in profiles:
                members.others[pod.spec.scheduler_name] += 1
            elif pod.spec.scheduling_gates:
                members.gated += 1
            else:
                members.pending.append(pod)
        members.succeeded = sum(controller in controllers for controller in succeeded)
        return members

    @property
    def is_begun(self) -> bool:
        return bool(self.bound or self.succeeded)

    def need(self, group: PodGroup) -> int:
        """How many members must be placed together for the minimum: all or none of them."""
        return max(0, group.minimum - len(self.bound) - self.succeeded)

    def wanted(self, group: PodGroup) -> int:
        """The same; of a begun group no more than exist, because nothing waits for members that never come."""
        need = self.need(group)
        return min(need, len(self.pending)) if self.is_begun else need

    def are_enough(self, group: PodGroup) -> bool:
        """Whether the minimum exists."""
        return self.need(group) <= len(self.pending)

    @property
    def profiles(self) -> list[str]:
        """The schedulerNames of pending members; more than one is refused."""
        return sorted({pod.spec.scheduler_name for pod in self.pending})

    def priority(self, group: PodGroup) -> int:
        """The lowest of the group's and its pending members', so that one pod cannot pull a thousand ahead."""
        of_group = [] if group.priority is None else [group.priority]
        return min([*of_group, *map(priority_of, self.pending)], default=0)


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """Pending members as a plan takes them, at most as many as one takes: by priority, then by age."""
    ordered = sorted(pods, key=lambda pod: (-priority_of(pod), pod.metadata.creation_timestamp or "", pod.uid))
    return ordered[:MOST_MEMBERS]


def refusal_of(key: GroupKey, group: PodGroup | None, members: Members, known: Container[Dialect]) -> str:
    """Why the group is not scheduled, however many members there are; empty if it is.

    ``known``: the dialects whose PodGroups can be read.
    """
    if key.dialect not in known:
        return f"it is not known yet whether the API server has PodGroups of {key.dialect.value}"
    if group is None:
        return f'no PodGroup "{key.name}" in {key.dialect.value}'
    if group.is_terminating:
        return f'PodGroup "{key.name}" is being deleted'
    if group.problems:
        return "; ".join(group.problems)
    return several_profiles(members.profiles) if len(members.profiles) > 1 else ""


def missing_members(group: PodGroup, members: Members) -> str:
    """Which pods the minimum lacks, and which of the group's do not count."""
    there = len(members.bound) + members.succeeded + len(members.pending)
    others = bool(members.gated or members.others)
    can = "are bound or can be tried" if members.is_begun else "can be tried"
    parts = [f"{there} of {group.minimum} members {can if others else 'exist'}"]
    parts += [f"{members.gated} of its pods {_have(members.gated)} scheduling gates"] if members.gated else []
    named = sorted(members.others.items())
    parts += [f"{count} of its pods {_have(count)} schedulerName {name}" for name, count in named]
    absent = group.minimum - there - members.gated - members.others.total()
    if others and absent > 0:
        parts += [f"{absent} more {'does' if absent == 1 else 'do'} not exist"]
    return "; ".join(parts)


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def with_untried(message: str, untried: int) -> str:
    """The message with how many pods of the group wait for something of their own."""
    return f"{message}; {untried} of its pods cannot be tried" if untried else message


def several_profiles(names: Iterable[str]) -> str:
    """Upstream's words for a group of two profiles."""
    first, second, *_ = (f'"{name}"' for name in names)
    return f"all pods in a single pod group should have the same .spec.schedulerName set, got: {first} and {second}"
