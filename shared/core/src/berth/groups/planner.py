"""The plan of a group on one Snapshot (docs/adr/0072-a-group-is-planned-as-one.md).

Members are placed class by class, each where it would go by itself, and all that are pending are tried; ``need`` of
them with a place is success. One order refuses what another places, so that there are up to four, each in the domains
that bounds leave; then members of unlike requests are packed. The plan is made in steps, and depends neither on their
length nor on a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from berth.api.pod import Pod
from berth.api.podgroups import MOST_MEMBERS
from berth.api.resources import amount_in_words
from berth.cluster.nodes import Mask
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, rank
from berth.framework.extending import Extension
from berth.framework.profile import Profile
from berth.framework.status import NO_NODES, Diagnosis
from berth.groups.domains import Domain, DomainChoice, domains_of
from berth.groups.packing import packed, scarcity_of
from berth.groups.question import GroupClass, GroupQuestion, claims_devices, classes_of, measured
from berth.groups.workspace import CountedSteps, MemberError, Steps, Workspace
from berth.messages.attempts import MOST_CLASSES, Candidate, Rejection
from berth.messages.groups import (
    MOST_ALTERNATES,
    Alternate,
    ClassPlan,
    GroupPlan,
    PlannedMember,
)

# Cycles of a plan. 2,000 members in four orders, which take two seconds at 5,000 nodes.
MOST_STEPS: Final = 8000

T = TypeVar("T")

Planning = Generator[None, None, GroupPlan]


def plan(
    question: GroupQuestion, snapshot: Snapshot, profile: Profile, *, may_continue: Callable[[], bool] = lambda: True
) -> Planning:
    """Make a plan, or say why there is none. Yields when ``may_continue`` says that its time is over.

    From the first time on it works on a copy. The Snapshot is as before whenever this yields or returns. Groups with
    devices are planned in one piece, because a copy has no assumed devices. Raises no exception.
    """
    workspace = Workspace(snapshot, profile.of_plans, question.attempt)
    workspace.begin(question.members)
    if question.bound and snapshot.earmarks:
        workspace.lift_earmarks()
    planner = Planner(question, workspace)
    may_detach = not claims_devices(question, snapshot)
    try:
        for _ in planner.run():
            if may_detach and not may_continue():
                workspace.detach()
                yield
    except MemberError as error:
        return planner.failed(str(error))
    finally:
        workspace.end()
    return planner.result


def plan_at_once(question: GroupQuestion, snapshot: Snapshot, profile: Profile) -> GroupPlan:
    """The same plan without a pause."""
    return at_once(plan(question, snapshot, profile))


def at_once(steps: Generator[None, None, T]) -> T:
    """What the steps come to, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


@dataclass(slots=True)
class _Attempt:
    """One order in one domain. ``placed``: by class, how many members have a place."""

    domain: Domain
    placed: dict[GroupClass, int] = field(default_factory=dict)
    missing: dict[GroupClass, Pod] = field(default_factory=dict)  # the first member without a place
    rejections: dict[GroupClass, tuple[Rejection, ...]] = field(default_factory=dict)
    reasons: dict[GroupClass, str] = field(default_factory=dict)  # the same as a sentence
    lacking: dict[GroupClass, Mapping[str, int]] = field(default_factory=dict)  # what a member asks for and nodes lack

    @property
    def count(self) -> int:
        return sum(self.placed.values())


class Planner:
    def __init__(self, question: GroupQuestion, workspace: Workspace, *, only_places: bool = False) -> None:
        """``only_places``: no alternates, and not why there is no plan. They take longer than to place the members."""
        self._only_places = only_places
        self._question = question
        self._workspace = workspace
        self.classes: list[GroupClass] = []
        self._steps = 0
        self._orders = 0
        self._packs = False
        self._best: _Attempt | None = None
        self.result = GroupPlan(need=question.need)

    def failed(self, error: str) -> GroupPlan:
        return GroupPlan(need=self._question.need, error=error, orders=self._orders, steps=self._steps)

    def run(self) -> Steps:
        """Set ``result``.

        Raises:
            MemberError: a member cannot be ranked.
        """
        snapshot, question = self._workspace.snapshot, self._question
        by_class = classes_of(question, snapshot)
        if too_much := _too_much(len(question.members), len(by_class)):
            self.result = self.failed(too_much)
            return
        if not snapshot.node_count:
            self.result = GroupPlan(need=question.need, message=NO_NODES, is_impossible=True)
            return
        yield from self._measure(by_class)
        domains = domains_of(question, self.classes, self._workspace.snapshot)
        yield from self._search(domains)
        if self._best is not None and self._best.count >= question.need:
            yield from self._succeed(self._best, domains)
            return
        if self._only_places:
            return
        if self._best is None and domains.best is not None:
            # Bounds rule it out; people want to know who has no place.
            yield from self._try(self._by_scarcity(), domains.best, domains)
            self._workspace.undo()
        self.result = self._explained(domains)

    def _measure(self, by_class: Sequence[list[Pod]]) -> Steps:
        for number, pods in enumerate(by_class):
            if self._workspace.profile.is_bound_by_extender(pods[0]):
                # It could not be rehearsed, and a late Binding could not be fenced.
                raise MemberError(f"{pods[0].key}: an extender binds it, so that it cannot be bound with a group")
            extensions = self._question.extensions
            answers = (extensions[pod.uid] for pod in pods if pod.uid in extensions)
            self.classes.append(measured(number, pods, self._workspace, next(answers, None)))
            yield from self._step()

    def _search(self, domains: DomainChoice) -> Steps:
        """Try orders and domains up to the first plan, whose members stay placed."""
        for trying in self._tries(domains):
            yield from trying
            if self._best is not None and self._best.count >= self._question.need:
                return
            self._workspace.undo()
            if self._steps >= MOST_STEPS:
                return

    def _tries(self, domains: DomainChoice) -> Iterator[Steps]:
        for order in self._order_by_order():
            self._orders += 1
            for domain in domains.tried:
                yield self._try(order, domain, domains)
            if not domains.tried:
                return
        if len(self.classes) == 1:
            return  # equal members leave the same over in any order
        self._packs = True
        order, scarcity = self._largest_first(), scarcity_of(self.classes, self._workspace.snapshot)
        for domain in domains.tried:
            yield self._try(order, domain, domains, scarcity)
        for domain in domains.tried:
            yield self._try_packed(order, domain, domains, scarcity)

    def _step(self) -> Steps:
        self._steps += 1
        yield

    def _order_by_order(self) -> list[Sequence[GroupClass]]:
        """The distinct orders: by scarcity, the largest first, those that others follow first, reversed."""
        scarce, largest = self._by_scarcity(), self._largest_first()
        leaders = sorted(scarce, key=lambda each: each.follows)
        distinct = {tuple(each.number for each in order): order for order in (scarce, largest, leaders, scarce[::-1])}
        return list(distinct.values())

    def _by_scarcity(self) -> list[GroupClass]:
        return sorted(self.classes, key=lambda each: each.scarcity)

    def _largest_first(self) -> list[GroupClass]:
        return sorted(self._by_scarcity(), key=lambda each: -each.share)

    def _try(
        self,
        order: Sequence[GroupClass],
        domain: Domain,
        domains: DomainChoice,
        scarcity: Mapping[str, float] | None = None,
    ) -> Steps:
        """Place the members, and leave them placed. With ``scarcity`` on the tightest nodes, else on the best."""
        attempt = _Attempt(domain)
        left = len(self._question.members)
        for each in order:
            if self._best is not None and attempt.count + left < self._question.need:
                return  # an earlier attempt explains as well what is missing
            left -= len(each.pods)
            attempt.placed[each] = 0
            for run in each.runs:
                yield from self._place(attempt, each, run, domains, scarcity)
        self._compare(attempt)

    def _try_packed(
        self, order: Sequence[GroupClass], domain: Domain, domains: DomainChoice, scarcity: Mapping[str, float]
    ) -> Steps:
        """Place as many as are needed where a search of sums has found room, then the others where they fit best."""
        found: Mapping[GroupClass, list[int]] = {}
        for rows in _parts(domain, domains):
            if not found:
                found = yield from packed(order, rows, self._workspace.snapshot, self._question.need, scarcity)
            yield from self._step()
        if not found:
            return
        attempt = _Attempt(domain, dict.fromkeys(order, 0))
        for each, places in found.items():
            for pod, row in zip(each.pods, places, strict=False):
                only = np.zeros(len(domain.rows), dtype=np.bool_)
                only[row] = True
                attempt.placed[each] += yield from self._counting(
                    self._workspace.place_alike([pod], only, each.extension)
                )
        placed = {each.pod.uid for each in self._workspace.placed}
        for each in order:
            for run in each.runs:
                yield from self._place(attempt, each, [pod for pod in run if pod.uid not in placed], domains)
        self._compare(attempt)

    def _compare(self, attempt: _Attempt) -> None:
        if self._best is None or attempt.count > self._best.count:
            self._best = attempt

    def _place(
        self,
        attempt: _Attempt,
        of_class: GroupClass,
        pods: Sequence[Pod],
        domains: DomainChoice,
        scarcity: Mapping[str, float] | None = None,
    ) -> Steps:
        space, done = self._workspace, 0
        for rows in _parts(attempt.domain, domains):
            if scarcity is None:
                placing = space.place_alike(pods[done:], rows, of_class.extension)
            else:
                placing = space.place_tightly(pods[done:], rows, scarcity, of_class.extension)
            done += yield from self._counting(placing)
            if done == len(pods):
                break
        attempt.placed[of_class] += done
        if done < len(pods) and of_class not in attempt.missing and not self._only_places:
            attempt.missing[of_class] = pods[done]
            diagnosis = self._diagnosis(pods[done], rows, of_class.extension)
            attempt.rejections[of_class] = diagnosis.rejections(self._workspace.snapshot.rows.names)
            attempt.reasons[of_class] = diagnosis.message().removesuffix(".")
            attempt.lacking[of_class] = self._lacking(of_class, rows)
            yield from self._step()

    def _lacking(self, of_class: GroupClass, rows: Mask) -> dict[str, int]:
        """What one more member asks for, of the resources that some node has too little of now."""
        size, columns = self._workspace.snapshot.size, self._workspace.snapshot.columns
        among = rows & of_class.static
        return {
            resource: amount
            for resource, amount in of_class.counted.items()
            if (columns.allocatable.of(resource)[:size] - columns.requested.of(resource)[:size] < amount)[among].any()
        }

    def _counting(self, placing: CountedSteps) -> CountedSteps:
        """Each step counts as one of the plan's."""
        try:
            while True:
                next(placing)
                yield from self._step()
        except StopIteration as end:
            done: int = end.value
            return done

    def _diagnosis(self, pod: Pod, rows: Mask, extension: Extension | None) -> Diagnosis:
        """Why none of these rows takes the pod now."""
        snapshot = self._workspace.snapshot
        cycle = self._workspace.cycle_of(pod)
        diagnosis = Diagnosis(int(np.count_nonzero(rows)))
        if cycle.found.rejection is not None:
            diagnosis.add(cycle.found.rejection, np.flatnonzero(rows))
        else:
            feasible = self._workspace.guarded(pod, cycle.feasible)
            for entry in self._workspace.guarded(pod, feasible.diagnosis).entries:
                diagnosis.add(entry.status, entry.rows[rows[entry.rows]])
            if extension is not None:
                extension.diagnose(feasible.mask & rows, snapshot, diagnosis)
        return diagnosis

    def _succeed(self, attempt: _Attempt, domains: DomainChoice) -> Steps:
        """The plan, with alternates as the nodes are once all members are placed."""
        nodes = _NodeTable()
        number_of = {pod.uid: each.number for each in self.classes for pod in each.pods}
        placed = self._workspace.placed
        domain, note = _named(attempt.domain, [each.node for each in placed], self._workspace.snapshot, domains)
        members = [PlannedMember(each.pod.uid, number_of[each.pod.uid], nodes.number(each.node)) for each in placed]
        rows = attempt.domain.rows if domains.outside is None else domains.outside
        classes: list[ClassPlan] = []
        for each in () if self._only_places else self.classes:
            found = self._alternates(each, rows)
            fits = self._fits(each, found)
            yield from self._step()
            classes.append(
                ClassPlan(
                    members=len(each.pods),
                    placed=attempt.placed[each],
                    example=attempt.missing.get(each, each.pods[0]).metadata.name,
                    alternates=[
                        Alternate(nodes.number(one.node), one.total, one.pods, one.loss, count)
                        for one, count in zip(found, fits, strict=True)
                    ],
                    scores=found[0].scores if found else {},
                    rejections=list(attempt.rejections.get(each, ())),
                )
            )
        self.result = GroupPlan(
            need=self._question.need,
            nodes=nodes.names,
            members=members,
            classes=classes,
            topology_key=domains.key,
            domain=domain,
            note=note,
            orders=self._orders,
            steps=self._steps,
            devices={each.pod.uid: each.devices for each in placed if each.devices},
        )

    def _alternates(self, of_class: GroupClass, rows: Mask) -> Sequence[Candidate]:
        pod = of_class.pods[0]
        extension = of_class.extension
        options = RankOptions(best=MOST_ALTERNATES, explained=1, may_preempt=False, only=rows, extension=extension)
        another = self._workspace.unplaced(pod)
        ranking = rank(
            another, self._workspace.snapshot, self._workspace.profile, attempt=self._question.attempt, options=options
        )
        if ranking.error:
            raise MemberError(f"{pod.key}: {ranking.error}")
        return ranking.candidates

    def _fits(self, of_class: GroupClass, alternates: Sequence[Candidate]) -> list[int]:
        """How many more members of the class each of these nodes takes, as far as its sums say."""
        snapshot, pod = self._workspace.snapshot, self._workspace.unplaced(of_class.pods[0])
        cycle = self._workspace.cycle_of(pod)
        among = np.zeros(snapshot.size, dtype=np.bool_)
        places = [row for each in alternates if (row := snapshot.rows.of(each.node)) is not None]
        among[places] = True
        if not cycle.is_countable:
            return [1] * len(places)
        room = self._workspace.guarded(pod, lambda: cycle.room(among, len(of_class.pods)))
        return [max(1, int(room[row])) for row in places]

    def _explained(self, domains: DomainChoice) -> GroupPlan:
        """Why there is no plan."""
        question, best = self._question, self._best
        if best is None:
            message = f"no node has the label {domains.key}"
            return GroupPlan(need=question.need, message=message, topology_key=domains.key, is_impossible=True)
        where = ""
        if domains.is_home:
            where = f" in {domains.key} {best.domain.name} where the group runs"
        elif domains.key and domains.outside is None:
            where = f" in the best domain, {domains.key} {best.domain.name}"
        needed = "" if question.need == len(question.members) else f", {question.need} are needed"
        count = len(question.bound)
        bound = f"{count} {'is' if count == 1 else 'are'} bound, " if count else ""
        parts = [f"{bound}{best.count} of {len(question.members)} have a place{where}{needed}"]
        for each, pod in best.missing.items():
            count = len(each.pods) - best.placed[each]
            verb = "does" if count == 1 else "do"
            parts.append(f"{count} like {pod.metadata.name} {verb} not fit: {best.reasons[each]}")
        if domains.shortage:
            parts.append(domains.shortage)
        elif domains.is_impossible:
            parts.append(f"there is no room for {'so many' if needed else 'all of them'}{self._missing_room(best)}")
        else:
            tightly = ", nor by packing nodes tightly" * self._packs
            parts.append(f"no placement found in {self._orders} order{'s' * (self._orders > 1)}{tightly}")
        classes = [
            ClassPlan(
                members=len(each.pods),
                placed=best.placed.get(each, 0),
                example=best.missing.get(each, each.pods[0]).metadata.name,
                rejections=list(best.rejections.get(each, ())),
            )
            for each in self.classes
        ]
        return GroupPlan(
            need=question.need,
            classes=classes,
            topology_key=domains.key,
            domain=best.domain.name if domains.outside is None else "",
            note=domains.note,
            message="; ".join(parts),
            is_impossible=domains.is_impossible,
            orders=self._orders,
            steps=self._steps,
        )

    def _missing_room(self, best: _Attempt) -> str:
        """How many more members are needed, and what they ask for of the resources that nodes lack."""
        count = self._question.need - best.count
        lacking = [best.lacking[each] for each in best.missing for _ in each.pods[best.placed[each] :]]
        resources = sorted({resource for each in lacking for resource in each})
        if not resources or count < 1:
            return ""
        # Of unlike members those that ask for least may do.
        least = {name: sum(sorted(each.get(name, 0) for each in lacking)[:count]) for name in resources}
        at_least = "at least " * (len(best.missing) > 1 and count < len(lacking))
        amounts = " and ".join(f"{amount_in_words(name, amount, up=True)} {name}" for name, amount in least.items())
        return f": {count} more {'asks' if count == 1 else 'ask'} for {at_least}{amounts}"


def _named(domain: Domain, nodes: Sequence[str], snapshot: Snapshot, domains: DomainChoice) -> tuple[str, str]:
    """The domain that has these nodes, and what to know of it: of a preferred one, how many are in it if not all."""
    inside = sum(bool(domain.rows[row]) for node in nodes if (row := snapshot.rows.of(node)) is not None)
    if domains.outside is None or inside == len(nodes):
        return domain.name, domains.note
    return "", f"{inside} of {len(nodes)} are in {domains.key} {domain.name}, the preferred one"


def _parts(domain: Domain, domains: DomainChoice) -> Sequence[Mask]:
    """The rows for members, the best first: those of a preferred domain, then all."""
    return (domain.rows,) if domains.outside is None else (domain.rows, domains.outside)


class _NodeTable:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def number(self, node: str) -> int:
        return self._numbers.setdefault(node, len(self._numbers))


def _too_much(members: int, classes: int) -> str:
    if members > MOST_MEMBERS:
        return f"the group has more than a plan can take: {members} members (at most {MOST_MEMBERS})"
    if classes > MOST_CLASSES:
        return f"the group has more than a plan can take: {classes} kinds of members (at most {MOST_CLASSES})"
    return ""
