"""PodGroups in words: what each waits for, where its members are, and its last Decision, as text and as JSON.

The leading watcher has the groups that wait, the mirror PodGroups and pods that are placed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from berth.api.podgroups import (
    CoschedulingPodGroup,
    Dialect,
    GroupKey,
    Members,
    PodGroup,
    UpstreamPodGroup,
    group_of,
    of_coscheduling,
    of_upstream,
    refusal_of,
)
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS
from berth.cluster.podgroups import STRUCTS
from berth.cluster.snapshot import Snapshot
from berth.errors import BerthError
from berth.messages.attempts import ClassResult, Decision, GroupResult
from berth.messages.earmarks import Earmark
from berth.messages.encoding import decode
from berth.messages.groupattempts import group_named, subject_name
from berth.messages.queue import INCOMPLETE, UNUSABLE, WITH_GROUP, QueueAnswer, QueuedPodDetail, WaitingPod
from berth_cli.mirror import open_mirror
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.timeline import reason_text
from berth_cli.pods.waiting import (
    NoLeaderError,
    helping_lines,
    may_be_helped,
    queue_pages,
    queued_pod,
    state_lines,
)
from berth_cli.rendering import ago, and_more, clock, duration, indented, natural, new_table, plain
from berth_cli.simulate.inputs import counted

# Its minimum is on nodes; pods beyond it may wait.
BOUND: Final = "bound"
# States of a group without waiting pods: a part of its minimum is on nodes, or nothing says how many it needs. The
# mirror has no finished pods.
PARTIAL: Final = "partly gone"
NO_POD_GROUP: Final = "no PodGroup"
EMPTY: Final = "no pods"

# Neither mirror nor queue has pods that wait for other schedulers.
_NONE: Final = "none is on a node, or waits with a schedulerName of berth's"
_OTHERS: Final = "the others have finished or are gone, and pods in their place are tried as they come"
_BY_LABEL: Final = Dialect.COSCHEDULING
_SHADOWED: Final = (
    f"{Dialect.UPSTREAM.value} has a PodGroup of this name too: pods that name that one in spec.schedulingGroup are "
    "members of that one, not of this one"
)
_BY_THEMSELVES: Final = frozenset({"unschedulable", "backoff", "gated"})  # queues of pods that are not with a group
_MOST_MEMBERS: Final = 20  # members without --all
_MOST_NODES: Final = 8  # earmarked nodes that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A pod of a group. ``node`` is empty while it waits, ``message`` says why."""

    pod: str
    node: str = ""
    message: str = ""


@dataclass(slots=True, kw_only=True)
class GroupSummary:
    """A PodGroup, or one that pods name and that the mirror does not have (``group`` is None).

    ``row``: its entry in the watcher's queue. ``waiting``: the pods that wait with it; ``placed``: by pod, its node;
    ``earmark``: the nodes that are kept for it.
    """

    key: GroupKey
    group: PodGroup | None = None
    row: WaitingPod | None = None
    placed: dict[str, str] = field(default_factory=dict)
    waiting: list[WaitingPod] = field(default_factory=list)
    earmark: Earmark | None = None

    @property
    def uid(self) -> str:
        """The PodGroup's; empty if there is none."""
        known = self.group or self.row
        return "" if known is None else known.uid

    @property
    def minimum(self) -> int:
        state = self.row.members if self.row is not None else None
        if self.group is not None:
            return self.group.minimum
        return 0 if state is None else state.minimum

    @property
    def state(self) -> str:
        if self.row is not None:
            return self.row.queue
        if any(pod.queue == WITH_GROUP for pod in self.waiting):
            return INCOMPLETE
        if self.group is not None and len(self.placed) >= self.minimum:
            return BOUND
        if self.waiting:
            return self.waiting[0].queue
        return (NO_POD_GROUP if self.group is None else PARTIAL) if self.placed else EMPTY

    @property
    def is_ordinary(self) -> bool:
        """Whether its pods are scheduled one by one, whatever they request."""
        return self.group is not None and self.group.is_ordinary({})

    @property
    def is_in_one_domain(self) -> bool:
        """Whether all members must be in one domain, if its plans have one: by its topology, or by their affinity."""
        return self.group is None or self.group.topology is None or self.group.topology.required

    @property
    def problems(self) -> tuple[str, ...]:
        return () if self.group is None else self.group.problems

    @property
    def since(self) -> datetime | None:
        """When the first of its waiting pods was created."""
        return min((pod.since for pod in (*self.waiting, *filter(None, [self.row]))), default=None)

    @property
    def message(self) -> str:
        if self.problems:
            return "; ".join(self.problems)
        waiting = sorted(self.waiting, key=lambda pod: pod.queue != WITH_GROUP)  # others say why they wait themselves
        said = (pod.message for pod in (*filter(None, [self.row]), *waiting) if pod.message)
        state = self.state
        why = next(said, _NONE if state == EMPTY else "")
        if state == PARTIAL:
            return f"{len(self.placed)} of {self.minimum} members are bound, and no pod waits: {_OTHERS}"
        if state == NO_POD_GROUP:
            return refusal_of(self.key, None, Members(), {self.key.dialect})
        there = len(self.members())
        beyond = there - len(self.placed)
        if state == BOUND and beyond:
            return f"{_pods_wait(beyond)} beyond the minimum{f': {why}' if why else ''}"
        if state == "gated" and there < self.minimum:  # pods of other schedulers are not in the queue
            return f"{why}; {there} of {self.minimum} members are bound or wait for berth"
        return why

    def members(self) -> list[Member]:
        placed = [Member(pod=pod, node=node) for pod, node in self.placed.items()]
        waiting = [Member(pod=pod.name, message=pod.message) for pod in self.waiting if pod.name not in self.placed]
        return sorted((*placed, *waiting), key=lambda each: natural(each.pod))

    def as_json(self) -> dict[str, object]:
        topology = self.group.topology if self.group is not None else None
        return {
            "group": str(self.key),
            "dialect": self.key.dialect.value,
            "state": self.state,
            "minimum": self.minimum,
            "bound": len(self.placed),
            "waiting": len(self.waiting),
            "since": self.since,
            "message": self.message,
            "topology_key": topology.key if topology is not None else "",
            "earmark": self.earmark,
            "members": [{"pod": each.pod, "node": each.node, "message": each.message} for each in self.members()],
        }


async def read_groups(session: Session, namespace: str = "") -> tuple[list[GroupSummary], str]:
    """The groups in order of their names, and why the waiting ones are unknown; empty if they are known."""
    async with open_mirror(session) as mirror:
        found = groups_of(mirror.snapshot, namespace)
    problem = ""
    try:
        async for answer in queue_pages(session, namespace=namespace):
            add_waiting(found, answer.pods)
    except NoLeaderError as error:
        problem = str(error)
    return sorted(found.values(), key=lambda each: (each.key.namespace, natural(each.key.name), each.key)), problem


def groups_of(snapshot: Snapshot, namespace: str = "") -> dict[GroupKey, GroupSummary]:
    """The PodGroups of the mirror, and those that placed pods name, with these pods."""
    forms = [*map(of_coscheduling, snapshot.objects(CoschedulingPodGroup))]
    forms += map(of_upstream, snapshot.objects(UpstreamPodGroup))
    found = {form.key: GroupSummary(key=form.key, group=form) for form in forms if namespace in {"", form.namespace}}
    for earmark in snapshot.earmarks.values():
        if earmark.group in found:
            found[earmark.group].earmark = earmark
    for row, node in enumerate(snapshot.rows.names):  # pods keep the name of a Node that is gone
        for placed in snapshot.placed_on_row(row):
            key = group_of(placed.pod)
            if key is None or namespace not in {"", key.namespace}:
                continue
            if key in found or not snapshot.objects(STRUCTS[key.dialect]).unread:
                summary = found.setdefault(key, GroupSummary(key=key))
                summary.placed[placed.pod.metadata.name] = node
    return found


def add_waiting(found: dict[GroupKey, GroupSummary], pods: Iterable[WaitingPod]) -> None:
    """Add the pods of a page of the queue. A pod may be on two pages."""
    for pod in pods:
        key = group_named(pod.namespace, pod.name if pod.members is not None else pod.group)
        if key is None:
            continue
        summary = found.setdefault(key, GroupSummary(key=key))
        if pod.members is not None:
            summary.row = pod
        elif all(pod.uid != known.uid for known in summary.waiting):
            summary.waiting.append(pod)


def summary_lines(
    groups: Sequence[GroupSummary], now: datetime, *, rows: int | None, problem: str = ""
) -> Iterator[RenderableType]:
    """A table of the first ``rows`` groups, those that wait before the others; ``None`` is all.

    ``problem``: why the pods that wait are unknown.
    """
    if problem and not groups:  # also a mirror that no watcher has written yet has none
        yield plain(f"whether there are PodGroups is not known yet: {problem}", "yellow")
        return
    waiting = sum(each.state not in {BOUND, PARTIAL, NO_POD_GROUP, EMPTY} for each in groups)
    if not groups:
        yield "no PodGroup, and no pod names one"
        return
    yield plain(f"{counted(len(groups), 'group')}, {waiting} waiting")
    table = new_table("GROUP", "STATE", "BOUND", "WAITING", "MINIMUM", "AGE", "WHY", numbers=_NUMBERS)
    shown = sorted(groups, key=_is_settled)[: rows or len(groups)]
    names = Counter(str(each.key) for each in groups)
    for each in shown:
        title = str(each.key) if names[str(each.key)] == 1 else each.key.in_full
        age = "" if each.since is None else duration(max(0.0, (now - each.since).total_seconds()))
        bound, waits, minimum = str(len(each.placed)), str(len(each.waiting)), str(each.minimum or "")
        table.add_row(*map(plain, (title, each.state, bound, waits, minimum, age, each.message)))
    yield ""
    yield table
    yield from and_more(len(groups) - len(shown))
    if problem:
        yield _unknown(problem)


def _unknown(problem: str) -> Text:
    return plain(f"waiting pods are unknown: {problem}", "yellow")


_NUMBERS: Final = ("BOUND", "WAITING", "MINIMUM", "AGE")


def _is_settled(group: GroupSummary) -> bool:
    """Whether none of its pods waits, and its minimum is bound or unknown."""
    return group.state in {BOUND, NO_POD_GROUP, EMPTY} and not group.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGroup:
    """``detail`` is the watcher's, while pods wait; ``decision`` is the group's last one, at a time on NATS's clock.

    ``is_shadowed``: the other dialect has a group of its name, to which pods that name both belong. ``problem``: why
    the pods that wait are unknown.
    """

    summary: GroupSummary
    now: datetime
    answer: QueueAnswer = field(default_factory=QueueAnswer)
    detail: QueuedPodDetail | None = None
    decision: Decision | None = None
    at: datetime | None = None
    is_shadowed: bool = False
    problem: str = ""

    @property
    def unplaced(self) -> str:
        """The name of a member that had no place when the group was decided; empty if none waits for one."""
        if self.detail is None or not may_be_helped(self.detail):
            return ""
        result = self.decision.group if self.decision is not None else None
        lacking = (each for each in (result.classes if result is not None else ()) if each.placed < each.members)
        return next((each.example for each in lacking if each.example), "")


async def explain_groups(session: Session, namespace: str, name: str) -> list[ExplainedGroup]:
    """The group of this name, or both if each dialect has one.

    Raises:
        NotFoundError: there is no such PodGroup, and no pod that waits names it.
    """
    groups, problem = await read_groups(session, namespace)
    found = [await explain_summary(session, each) for each in groups if each.key.name == name]
    if not found:
        named = next((each for each in groups if any(member.pod == name for member in each.members())), None)
        raise no_group(f"{namespace}/{name}", problem, named)
    return [
        replace(each, is_shadowed=len(found) > 1 and each.summary.key.dialect is _BY_LABEL, problem=problem)
        for each in found
    ]


async def or_group(
    session: Session, name: PodName, nothing: str, otherwise: str = "", *, command: str = "why"
) -> NotFoundError:
    """The error about a pod: what to ask if a group has the name, and ``otherwise`` if none has."""
    try:
        await explain_groups(session, name.namespace, name.name)
    except BerthError:
        return NotFoundError(f"{nothing}{otherwise}")
    return NotFoundError(f"{nothing}; a group has this name: `berth {command} --group {name}`")


def no_group(name: str, problem: str, of_pod: GroupSummary | None = None) -> NotFoundError:
    """``problem``: why the pods that wait are unknown. ``of_pod``: the group of a pod that has the name."""
    nowhere = f"the mirror has none, and no pod that waits names it{f' ({problem})' if problem else ''}"
    instead = "" if of_pod is None else f"; a pod of group {of_pod.key} has this name: leave out --group"
    return NotFoundError(f"looking for PodGroup {name!r}: {nowhere}{instead}")


async def explain_summary(session: Session, summary: GroupSummary) -> ExplainedGroup:
    """The group with what the watcher knows of it, and its last Decision."""
    namespace = summary.key.namespace
    key = PodName(namespace=namespace, name=subject_name(summary.key))
    answer, detail = QueueAnswer(), None
    if summary.row is not None:
        answer = await queued_pod(session, key)
        detail = answer.detail
    now = (await session.state(DECISIONS)).now
    stored = await session.last(DECISIONS, key.filter("decision"))
    decision = None if stored is None else decode(stored.data, Decision)
    is_current = decision is not None and decision.uid == summary.uid
    return ExplainedGroup(
        summary=summary,
        now=now,
        answer=answer,
        detail=detail,
        decision=decision if is_current else None,
        at=stored.time if stored is not None and is_current else None,
    )


def explained_lines(explained: ExplainedGroup, *, every_row: bool = False) -> Iterator[RenderableType]:
    """Its state, its last Decision, the classes of its members, and each member."""
    summary, decision = explained.summary, explained.decision
    first, *others = explained_sentences(explained)
    yield plain(first, "bold")
    yield from map(indented, others)
    if explained.problem:
        yield _unknown(explained.problem)
    if decision is not None and decision.group is not None:
        yield from _result_lines(decision.group)
    if decision is not None and decision.preemption is not None and decision.preemption.victims:
        names = ", ".join(f"{each.namespace}/{each.name}" for each in decision.preemption.victims)
        yield indented(f"evicts {names}")
    members = summary.members()
    if members:
        shown = members if every_row else members[:_MOST_MEMBERS]
        yield ""
        yield _members_table(shown)
        yield from and_more(len(members) - len(shown))
    if explained.detail is not None:
        yield from helping_lines(explained.detail)


def explained_sentences(explained: ExplainedGroup) -> Iterator[str]:
    """What it does and why; then its counts, what ends its wait, and when it was decided."""
    summary, decision = explained.summary, explained.decision
    if explained.detail is not None and summary.state != UNUSABLE:
        yield from (line.strip() for line in state_lines(explained.answer, explained.detail))
    else:
        yield _headline(summary)
        yield _counts(summary)
    if priority := _priority(summary):
        yield priority
    if by_itself := _waits_by_itself(summary):
        yield by_itself
    if explained.is_shadowed:
        yield _SHADOWED
    if summary.state == UNUSABLE:
        yield "correct its PodGroup, or make it anew: its pods are tried then"
    if summary.earmark is not None:
        yield _earmarked(summary.earmark)
    if decision is not None and explained.at is not None:
        # While members are missing, the watcher's message is about them.
        is_known = explained.detail is not None and explained.detail.pod.message and summary.state != INCOMPLETE
        yield _decided(decision, explained.at, explained.now, has_reason=not is_known)


def _headline(summary: GroupSummary) -> str:
    states = {EMPTY: "has no pods", NO_POD_GROUP: "has pods on nodes"}
    why = f": {summary.message}" if summary.message else ""
    return f"{summary.key} {states.get(summary.state, f'is {summary.state}')}{why}"


def _counts(summary: GroupSummary) -> str:
    counts = f"{len(summary.placed)} bound, {len(summary.waiting)} waiting"
    return (
        f"PodGroup of {summary.key.dialect.value}, minimum {summary.minimum}, {counts}" if summary.minimum else counts
    )


def _priority(summary: GroupSummary) -> str:
    """Whose priority a group has of which a member has a higher one."""
    row = summary.row
    if row is None or all(pod.priority <= row.priority for pod in summary.waiting):
        return ""
    lowest = next((f"its member {pod.name}" for pod in summary.waiting if pod.priority == row.priority), "its PodGroup")
    return f"priority {row.priority} is that of {lowest}: a group has the lowest priority of its PodGroup and members"


def _waits_by_itself(summary: GroupSummary) -> str:
    """The command for a pod that waits for something of its own; empty without one, or if the whole group is gated."""
    alone = (pod for pod in summary.waiting if pod.queue in _BY_THEMSELVES and summary.state != "gated")
    name = next((f"{pod.namespace}/{pod.name}" for pod in alone), "")
    return f"{name} waits by itself: see `berth why {name}`" if name else ""


def _pods_wait(number: int) -> str:
    return f"{number} pod waits" if number == 1 else f"{number} pods wait"


def _earmarked(earmark: Earmark) -> str:
    nodes = f"{', '.join(earmark.nodes[:_MOST_NODES])}{', ...' if len(earmark.nodes) > _MOST_NODES else ''}"
    return f"pods of priority {earmark.priority} and below are kept off {nodes} for it until {earmark.until}"


def _decided(decision: Decision, at: datetime, now: datetime, *, has_reason: bool) -> str:
    why = reason_text(decision) if has_reason else ""
    took = f", the plan took {duration(decision.plan_seconds)}" if decision.plan_seconds else ""
    return f"decided {ago(at, now)} at {clock(at)}: {decision.outcome}{f': {why}' if why else ''}{took}"


def _result_lines(result: GroupResult) -> Iterator[RenderableType]:
    if result.domain:
        yield indented(f"{result.topology_key}: {result.domain}")
    if result.note:
        yield indented(result.note)
    refused = [each for each in result.classes if each.rejections]
    if refused:
        yield ""
        yield _classes_table(refused)


def _classes_table(classes: Iterable[ClassResult]) -> Table:
    """Kinds of members without a place: how many have one, and why the example has none."""
    table = new_table("MEMBERS", "PLACED", "FOR EXAMPLE", "NODES", "PLUGIN", "REASON", numbers=_OF_CLASSES)
    for each in classes:
        numbers = (str(each.members), str(each.placed), each.example)
        for rejection in each.rejections:
            table.add_row(*map(plain, (*numbers, str(rejection.nodes), rejection.plugin, rejection.reason)))
            numbers = ("", "", "")
    return table


_OF_CLASSES: Final = ("MEMBERS", "PLACED", "NODES")


def _members_table(members: Iterable[Member]) -> Table:
    table = new_table("POD", "NODE")
    for each in members:
        table.add_row(plain(each.pod), plain(each.node or "waits"))
    return table


def explained_json(explained: ExplainedGroup) -> dict[str, object]:
    decision = explained.decision
    return {
        **explained.summary.as_json(),
        "now": explained.now,
        "queued": explained.detail,
        "decided_at": explained.at,
        "decision": None if decision is None else _decision_json(decision),
    }


def _decision_json(decision: Decision) -> dict[str, object]:
    return {
        "outcome": decision.outcome,
        "reason": decision.reason,
        "message": decision.message,
        "attempt": decision.attempt,
        "scorer": decision.scorer,
        "plan_seconds": decision.plan_seconds,
        "blockers": decision.blockers,
        "preemption": decision.preemption,
        "result": decision.group,
    }
