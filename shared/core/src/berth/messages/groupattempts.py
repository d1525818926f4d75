"""PENDING and RANKED of a group: schema 2, which readers of pods' messages refuse and leave to newer ones (ADR 72).

Their subject has the group's name behind ``~`` in place of a pod's, and ``~~`` for a group of ``scheduling.k8s.io``: no
pod's name has one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from berth.api.meta import Name, ObjectMeta
from berth.api.pod import priority_of
from berth.api.podgroups import MOST_MEMBERS, Dialect, GroupKey, PodGroup
from berth.errors import DecodeError
from berth.messages.attempts import (
    MESSAGE_CHARACTERS,
    MOST_REJECTIONS,
    AttemptText,
    Count,
    PlanSeconds,
    Positions,
    Preemption,
    RankedNode,
    RankedSummary,
    Received,
    Text,
    Time,
    check_names,
)
from berth.messages.bounds import bounded_names, bounded_rejection, shortened
from berth.messages.bundles import Bundle
from berth.messages.encoding import Message, decode_versioned, encode
from berth.messages.groups import ClassPlan, GroupPlan
from berth.messages.subjects import Attempt, escape_dotted

# The schema of messages about groups.
GROUP_SCHEMA: Final = 2
# Bytes of a message. 1,000 pods of a Job take 250,000 in PENDING.
MOST_GROUP_BYTES: Final = 512 * 1024

# What a message that is too large leaves out of each class, the least first.
_LEFT_OUT: Final[tuple[dict[str, Any], ...]] = ({}, {"scores": {}}, {"scores": {}, "alternates": []})

_PREFIXES: Final = {Dialect.COSCHEDULING: "~", Dialect.UPSTREAM: "~~"}

# In the subject of every message about a group, and of none about a pod.
GROUP_SUBJECT: Final = escape_dotted("~")


def _schema() -> int:
    return GROUP_SCHEMA


class GroupMessage(Message, frozen=True, kw_only=True):
    """What PENDING and RANKED of a group share.

    ``attempt`` is the group's, by the PodGroup's uid; members have their own in ``bundle``. ``need``: how many must be
    placed together. ``bound``: uids of bound members. ``failures``: the group's attempts in a row that ended in
    back-off.
    """

    schema: int = msgspec.field(default_factory=_schema)
    attempt: AttemptText
    profile: Name
    group: PodGroup
    bundle: Bundle
    need: Count
    bound: Annotated[list[Name], msgspec.Meta(max_length=MOST_MEMBERS)] = msgspec.field(default_factory=list)
    failures: Count = 0

    @property
    def priority(self) -> int:
        """The lowest of the group's and its members'."""
        of_group = [] if self.group.priority is None else [self.group.priority]
        return min([*of_group, *map(priority_of, self.bundle.classes)], default=0)


class GroupPending(GroupMessage, frozen=True, kw_only=True):
    """PENDING: plan this group; otherwise as of a pod."""

    after: Positions = Positions()
    error: Text = ""
    suspect: bool = False


class GroupRanked(GroupMessage, frozen=True, kw_only=True):
    """RANKED: the plan, or why there is none. ``seconds``: what it took, which sets the group's back-off.

    ``positions`` and ``received`` are those of the plan's begin, right after the scorer's ranking ``begun_after``.
    ``preemption``, without a plan: the pods whose eviction makes room for ``need`` members; without victims, what is
    terminating makes enough. ``behind`` and ``proposals_counted`` as of a pod.
    """

    plan: GroupPlan
    preemption: Preemption | None = None
    scorer: Name = ""
    asked_at: Time | None = None
    positions: Positions = Positions()
    received: Received = Received()
    begun_after: AttemptText = ""
    view_age_seconds: float | None = None
    seconds: PlanSeconds = 0
    behind: bool = False
    proposals_counted: bool = False

    def pending(self, after: Positions) -> GroupPending:
        """The PENDING to plan the group again."""
        names = (name for name in GroupMessage.__struct_fields__ if name != "schema")
        return GroupPending(**{name: getattr(self, name) for name in names}, after=after)

    def rankings(self) -> list[RankedSummary]:
        """Each member's part, as scorers read rankings of pods; without a node for members that have no place."""
        term, plan = Attempt.parse(self.attempt).term, self.plan
        nodes = {member.uid: plan.nodes[member.node] for member in plan.members}
        return [
            RankedSummary(
                config=self.config,
                attempt=str(attempt),
                pod=pod,
                candidates=[RankedNode(node=nodes[pod.uid])] if pod.uid in nodes else [],
                scorer=self.scorer,
                devices=plan.devices.get(pod.uid, {}),
                proposals_counted=self.proposals_counted,
            )
            for pod, attempt in zip(self.bundle.pods(), self.bundle.attempts(term), strict=True)
        ]


G = TypeVar("G", GroupPending, GroupRanked)


def within_bounds(message: GroupRanked, most: int = MOST_GROUP_BYTES) -> GroupRanked:
    """The message cut to its readers' limits: texts, then points, then alternates. Members are never left out."""
    plan = message.plan
    classes = [_bounded(each) for each in plan.classes]
    texts = {name: shortened(getattr(plan, name), MESSAGE_CHARACTERS) for name in ("message", "note", "error")}
    for left_out in _LEFT_OUT:
        smaller = [msgspec.structs.replace(each, **left_out) for each in classes]
        numbers = [each.node for each in plan.members]  # members have the first nodes
        numbers += [one.node for each in smaller for one in each.alternates]
        nodes = plan.nodes[: max(numbers, default=-1) + 1]
        bounded = msgspec.structs.replace(plan, classes=smaller, nodes=nodes, **texts)
        message = msgspec.structs.replace(message, plan=bounded)
        if len(encode(message)) <= most:
            break
    return message


def _bounded(given: ClassPlan) -> ClassPlan:
    rejections = [bounded_rejection(each) for each in given.rejections[:MOST_REJECTIONS]]
    scores = {name: given.scores[name] for name in bounded_names(given.scores)}
    return msgspec.structs.replace(given, rejections=rejections, scores=scores)


def subject_name(key: GroupKey) -> str:
    """The group's name in a subject, in place of a pod's."""
    return f"{_PREFIXES[key.dialect]}{key.name}"


def group_named(namespace: str, name: str) -> GroupKey | None:
    """The group of a subject's last part; None for a pod's."""
    for dialect in (Dialect.UPSTREAM, Dialect.COSCHEDULING):
        prefix = _PREFIXES[dialect]
        if name.startswith(prefix):
            return GroupKey(dialect, namespace, name.removeprefix(prefix))
    return None


def decode_group(data: bytes, kind: type[G]) -> G:
    """Decode and check a message about a group.

    Raises:
        UnknownSchemaError: another schema.
        DecodeError: malformed, or its parts do not fit together.
    """
    message = decode_versioned(data, kind, "a message about a group", GROUP_SCHEMA)
    _check(message)
    return message


def _check(message: GroupPending | GroupRanked) -> None:
    group, bundle = message.group, message.bundle
    attempt = Attempt.parse(message.attempt)
    if not attempt.uid or attempt.uid != group.uid:
        raise _unfit(f"want an attempt of group {group.uid!r:.80}, got {message.attempt!r:.80}")
    check_names(ObjectMeta(name=group.name, namespace=group.namespace, uid=group.uid))
    uids = {member.uid for member in bundle.members}
    if len(uids) != len(bundle.members):
        raise _unfit("want each member once")
    if any(member.of_class >= len(bundle.classes) for member in bundle.members):
        raise _unfit(f"want members of {len(bundle.classes)} classes")
    for pod in bundle.pods():
        check_names(pod.metadata)
        if pod.metadata.namespace != group.namespace:
            raise _unfit(f"want members in namespace {group.namespace!r:.80}, got {pod.metadata.namespace!r:.80}")
    if isinstance(message, GroupRanked):
        _check_plan(message.plan, uids)


def _check_plan(plan: GroupPlan, uids: set[str]) -> None:
    planned = [member.uid for member in plan.members]
    if len(set(planned)) != len(planned) or not uids.issuperset(planned):
        raise _unfit("want a plan of members, each once")
    nodes, classes = len(plan.nodes), len(plan.classes)
    if any(member.node >= nodes or member.of_class >= classes for member in plan.members):
        raise _unfit(f"want a plan on {nodes} nodes for {classes} classes")
    if any(alternate.node >= nodes for of_class in plan.classes for alternate in of_class.alternates):
        raise _unfit(f"want alternates on {nodes} nodes")


def _unfit(want: str) -> DecodeError:
    return DecodeError(f"decoding a message about a group: {want}")
