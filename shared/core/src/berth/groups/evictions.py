"""The evictions that make room for a whole group: one dry run for all members that are needed (ADR 72).

Units of lower priority are taken out, the least important first, until the group has a plan: as few as a bisection
finds. Then they are given back, the most important first, wherever the members still pass. A unit is a pod, or a whole
group that goes as one. Those that a PodDisruptionBudget protects are the most important, as they are for a single pod.
What is terminating goes anyway, and counts as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from berth.api.pod import PREEMPT_NEVER, Pod, priority_of
from berth.api.podgroups import GroupKey, PodGroup, group_of
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check
from berth.framework.disruptionbudgets import DisruptionBudgets
from berth.framework.profile import Profile
from berth.groups.domains import MinResources
from berth.groups.planner import Planner
from berth.groups.question import GroupClass, GroupQuestion, claims_devices
from berth.groups.workspace import MemberError, Workspace
from berth.messages.attempts import MOST_VICTIMS
from berth.messages.groups import GroupPlan

# Pods given back or taken out between two looks at the clock: about 5 ms.
_AT_ONCE: Final = 256

Evicting = Generator[None, None, "GroupEvictions | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Pods that are evicted together."""

    pods: tuple[PlacedPod, ...]
    priority: int
    breaks_group: bool = False  # takes its group below its minimum
    is_group: bool = False
    created: str = ""

    @property
    def importance(self) -> tuple[int, bool, bool]:
        return self.priority, self.breaks_group, self.is_group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvictions:
    """``plan`` holds once ``victims`` are gone, the most important first, and all that is terminating."""

    plan: GroupPlan
    victims: tuple[Pod, ...]


def may_preempt(question: GroupQuestion, snapshot: Snapshot) -> bool:
    """Whether pods may be evicted for the group: not for a member with Never, one domain, or devices."""
    topology = question.group.topology
    return (
        question.group.may_preempt
        and (topology is None or not topology.required)
        and not claims_devices(question, snapshot)
        and all(pod.spec.preemption_policy != PREEMPT_NEVER for pod in question.members)
    )


def may_help(snapshot: Snapshot, priority: int) -> bool:
    """Whether some pod may be evicted for this priority, or is terminating."""
    placed = (each.pod for row in range(snapshot.size) for each in snapshot.placed_on_row(row))
    return any(priority_of(pod) < priority or pod.metadata.deletion_timestamp is not None for pod in placed)


def plan_evictions(  # noqa: PLR0913 - the question, the cluster, and the clock
    question: GroupQuestion,
    snapshot: Snapshot,
    profile: Profile,
    *,
    priority: int,
    groups: Mapping[GroupKey, PodGroup],
    absent: Iterable[str] = (),
    may_continue: Callable[[], bool] = lambda: True,
) -> Evicting:
    """The evictions, or None where none help. The Snapshot is not changed; works on a copy from the start.

    ``priority`` is the group's; ``groups`` are those of placed pods; ``absent``: uids of pods that do not count. Yields
    when ``may_continue`` says that its time is over. Raises no exception.
    """
    if not may_preempt(question, snapshot):
        return None
    copy = snapshot.copied()
    for uid in absent:
        copy.remove_pod(uid)
    dry_run = GroupDryRun(question, copy, profile.of_plans, priority, groups)
    try:
        for _ in dry_run.run():
            if not may_continue():
                yield
    except MemberError:
        return None
    return dry_run.result


def units_of(snapshot: Snapshot, priority: int, groups: Mapping[GroupKey, PodGroup], *, spared: GroupKey) -> list[Unit]:
    """The units of lower priority that are not terminating, the least important first: of equals the youngest.

    Last come those that violate a PodDisruptionBudget if what is before them goes too. ``spared``: the group whose own
    members are none.
    """
    of_group: dict[GroupKey, list[PlacedPod]] = {}
    units: list[Unit] = []
    for row in range(snapshot.size):
        for placed in snapshot.placed_on_row(row):
            if placed.pod.metadata.deletion_timestamp is not None:
                continue
            key = group_of(placed.pod)
            if key == spared:
                continue
            if key is not None and key in groups:
                of_group.setdefault(key, []).append(placed)
            elif priority_of(placed.pod) < priority:
                units.append(_single(placed, breaks_group=False))
    for key, members in of_group.items():
        units += _units_of_group(groups[key], members, priority)
    units.sort(key=lambda each: (each.created, each.pods[0].pod.uid), reverse=True)
    units.sort(key=lambda each: each.importance)
    # Each pod counts against its budgets, also behind one that violates one.
    budgets, left = DisruptionBudgets.of(snapshot), dict[int, int]()
    return sorted(units, key=lambda unit: sum(budgets.violates(placed, left) for placed in unit.pods) > 0)


def _units_of_group(group: PodGroup, members: list[PlacedPod], priority: int) -> list[Unit]:
    highest = max(priority_of(each.pod) for each in members)
    oldest = min(each.pod.metadata.creation_timestamp or "" for each in members)
    if group.goes_as_one:
        whole = Unit(pods=tuple(members), priority=highest, is_group=True, created=oldest)
        return [whole] if highest < priority else []
    # The youngest are beyond the minimum.
    members.sort(key=lambda each: (each.pod.metadata.creation_timestamp or "", each.pod.uid))
    return [
        _single(each, breaks_group=place < group.minimum)
        for place, each in enumerate(members)
        if priority_of(each.pod) < priority
    ]


def _single(placed: PlacedPod, *, breaks_group: bool) -> Unit:
    pod = placed.pod
    created = pod.metadata.creation_timestamp or ""
    return Unit(pods=(placed,), priority=priority_of(pod), breaks_group=breaks_group, created=created)


class GroupDryRun:
    """Takes units of lower priority out of a Snapshot that is its own."""

    def __init__(
        self,
        question: GroupQuestion,
        copy: Snapshot,
        profile: Profile,
        priority: int,
        groups: Mapping[GroupKey, PodGroup],
    ) -> None:
        self._question = question
        self._snapshot = copy
        self._profile = profile
        self._units = units_of(copy, priority, groups, spared=question.group.key)
        self._classes: Sequence[GroupClass] = ()
        self._out = 0  # so many of the first units are taken out
        self.result: GroupEvictions | None = None

    def run(self) -> Generator[None, None, None]:
        """Set ``result``.

        Raises:
            MemberError: a member cannot be ranked.
        """
        found = yield from self.plan()
        if found is not None:
            yield from self._give_back(found)

    def plan(self) -> Generator[None, None, GroupPlan | None]:
        """The plan with as few of the least important units out as a bisection finds; None if all are too few.

        Raises:
            MemberError: a member cannot be ranked.
        """
        if self._question.bound:
            self._snapshot.earmarks = {}  # the rest of a begun group is no newcomer
        for placed in [each for row in range(self._snapshot.size) for each in self._snapshot.placed_on_row(row)]:
            if placed.pod.metadata.deletion_timestamp is not None:
                self._snapshot.remove_pod(placed.pod.uid)
        low, high = 0, len(self._units)
        best = yield from self._plan_without(high)
        while best is not None and low < high:
            middle = (low + high) // 2
            found = yield from self._plan_without(middle)
            if found is None:
                low = middle + 1
            else:
                high, best = middle, found
        yield from self._take_out(high)
        return best

    def _plan_without(self, count: int) -> Generator[None, None, GroupPlan | None]:
        yield from self._take_out(count)
        # Each time on the same copy: nobody else changes it.
        workspace = Workspace(self._snapshot, self._profile, self._question.attempt, is_detached=True)
        planner = Planner(self._question, workspace, only_places=True)
        yield from planner.run()
        workspace.undo()
        self._classes = planner.classes
        return planner.result if planner.result.is_found else None

    def _take_out(self, count: int) -> Generator[None, None, None]:
        moved = 0
        while self._out != count:
            unit = self._units[self._out - (self._out > count)]
            self._move(unit, back=self._out > count)
            self._out += 1 if self._out < count else -1
            moved += len(unit.pods)
            if moved >= _AT_ONCE:
                moved = 0
                yield

    def _move(self, unit: Unit, *, back: bool) -> None:
        for placed in unit.pods:
            if back:
                self._snapshot.place(placed.pod, self._snapshot.rows.names[placed.row], bound_at=placed.bound_at)
            else:
                self._snapshot.remove_pod(placed.pod.uid)

    def _give_back(self, found: GroupPlan) -> Generator[None, None, None]:
        by_uid = {pod.uid: pod for pod in self._question.members}
        nodes = {member.uid: found.nodes[member.node] for member in found.members}
        min_resources = MinResources(self._question, self._classes, self._snapshot)
        for uid, node in nodes.items():
            self._snapshot.place(by_uid[uid], node)
        on_node: dict[str, list[Pod]] = {}
        for uid, node in nodes.items():
            on_node.setdefault(node, []).append(by_uid[uid])
        victims: list[Pod] = []
        for unit in reversed(self._units[: self._out]):
            self._move(unit, back=True)
            if not (self._still_pass(unit, on_node) and min_resources.leave(unit.pods)):
                self._move(unit, back=False)
                victims += [placed.pod for placed in unit.pods]
            yield
        if len(victims) <= MOST_VICTIMS:
            self.result = GroupEvictions(plan=found, victims=tuple(victims))

    def _still_pass(self, unit: Unit, on_node: Mapping[str, Sequence[Pod]]) -> bool:
        names = {self._snapshot.rows.names[placed.row] for placed in unit.pods}
        affected = [
            (pod, node) for node, pods in on_node.items() for pod in pods if node in names or self._looks_far(pod)
        ]
        return all(check(pod, node, self._snapshot, self._profile).is_success for pod, node in affected)

    def _looks_far(self, pod: Pod) -> bool:
        return not self._profile.is_row_local_for(self._snapshot.traits_of(pod))
