"""The test bench of the binder's core with a group: its PodGroup and pods in the cache, and its RANKED."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.podgroups import (
    GROUP_LABEL,
    TOPOLOGY_ANNOTATION,
    CoschedulingPodGroup,
    CoschedulingSpec,
    PodGroup,
    of_coscheduling,
)
from berth.groups.evictions import plan_evictions
from berth.groups.planner import plan_at_once
from berth.groups.question import GroupQuestion
from berth.kube.listwatch import Deleted, Upserted
from berth.messages.attempts import Decision, Preemption
from berth.messages.bundles import bundled
from berth.messages.groupattempts import GroupRanked
from berth.messages.subjects import Attempt, Term, Uid
from berth_binder.decisions.preemption import victim_of
from berth_binder.events import (
    Effect,
    GetPod,
    GroupDelivery,
    PostBinding,
    RehearsalAnswer,
    RehearseBinding,
)
from harness.worlds.binder_bench import PROFILE, Bench, make_pod, on_node

NAME = "gang"
LABELS = {GROUP_LABEL: NAME}
KIND = "coschedulingpodgroup"


def a_podgroup(
    minimum: int,
    *,
    name: str = NAME,
    namespace: str = "default",
    uid: str = "",
    version: int = 5,
    topology: str = "",
    **spec: Any,
) -> CoschedulingPodGroup:
    """A PodGroup of Coscheduling's dialect."""
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=uid or f"uid-{name}",
        resource_version=str(version),
        annotations={TOPOLOGY_ANNOTATION: topology} if topology else None,
    )
    return CoschedulingPodGroup(metadata=metadata, spec=CoschedulingSpec(min_member=minimum, **spec))


@dataclass
class GroupBench(Bench):
    """A core with a group. The API server agrees to every rehearsal, unless a test says otherwise."""

    agrees: bool = True

    def show_group(self, minimum: int, **parts: Any) -> PodGroup:
        """The watch shows the PodGroup."""
        podgroup = a_podgroup(minimum, **parts)
        self.observe(Upserted(kind=KIND, object=podgroup))
        return of_coscheduling(podgroup)

    def delete_group(self) -> None:
        """The watch shows that the PodGroup is deleted."""
        self.observe(Deleted(kind=KIND, object=a_podgroup(1, version=99)))

    def show_members(self, count: int, *, cpu: str = "1", **given: Any) -> list[Pod]:
        """The watch shows members ``m1``, ``m2``, ... of the group."""
        return [self.show(make_pod(f"m{number}", cpu=cpu, labels=LABELS, **given)) for number in range(1, count + 1)]

    def question(self, group: PodGroup, pods: Sequence[Pod], need: int) -> GroupQuestion:
        attempt = Attempt(uid=Uid(group.uid), term=Term(1), n=1)
        bound = [pod.uid for pod in self.cache.members_of(group.key).bound]
        return GroupQuestion(group=group, attempt=attempt, members=pods, need=need, bound=bound)

    def plan(
        self,
        group: PodGroup,
        pods: Sequence[Pod],
        *,
        need: int | None = None,
        n: int = 1,
        numbers: Mapping[str, int] | None = None,
        **parts: Any,
    ) -> GroupRanked:
        """RANKED as a scorer makes it that sees what the cache shows; ``numbers``: of its members' attempts."""
        need = len(pods) if need is None else need
        plan = plan_at_once(self.question(group, pods, need), self.cache.snapshot, self.profiles[PROFILE])
        return GroupRanked(
            attempt=f"{group.uid}.1.{n}",
            profile=PROFILE,
            group=group,
            bundle=bundled(pods, numbers or {pod.uid: n for pod in pods}),
            need=need,
            **{"plan": plan, "seconds": 0.25, **parts},
        )

    def proposed(self, group: PodGroup, pods: Sequence[Pod], *, priority: int) -> Preemption:
        """The evictions that a scorer proposes."""
        run = plan_evictions(
            self.question(group, pods, len(pods)),
            self.cache.snapshot,
            self.profiles[PROFILE],
            priority=priority,
            groups=self.cache.groups.known,
        )
        found = _result(run)
        return Preemption(node="", victims=[victim_of(pod) for pod in found.victims])

    def take_group(self, message: GroupRanked, *, is_suspect: bool = False) -> list[Effect]:
        """Deliver RANKED of the group with the next sequence of the stream."""
        self._sequence += 1
        return self.deliver_group(message, self._sequence, is_suspect=is_suspect)

    def deliver_group(self, message: GroupRanked, sequence: int, *, is_suspect: bool = False) -> list[Effect]:
        return self.handle(self.group_delivery(message, sequence, is_suspect=is_suspect))

    def group_delivery(self, message: GroupRanked, sequence: int, *, is_suspect: bool = False) -> GroupDelivery:
        attempt = Attempt.parse(message.attempt)
        return GroupDelivery(ranked=message, attempt=attempt, sequence=sequence, delivery=None, is_suspect=is_suspect)

    def run(self, effects: list[Effect]) -> list[Effect]:
        done: list[Effect] = []
        for effect in super().run(effects):
            done.append(effect)
            if isinstance(effect, RehearseBinding) and self.agrees:
                done += self.handle(RehearsalAnswer(uid=effect.pod.uid, status=201))
        return done

    def _is_preemptor(self, effect: GetPod) -> bool:
        attempt = self.core._attempts[effect.pod.uid]
        return super()._is_preemptor(effect) or (bool(attempt.group) and self.core._groups.is_reading(attempt))

    def bind_all(self, effects: Iterable[Effect]) -> list[Effect]:
        """The API server accepts every Binding, and the watch shows it, until none is left."""
        done: list[Effect] = []
        left = [each for each in effects if isinstance(each, PostBinding)]
        while left:
            post = left.pop(0)
            self.show(on_node(post.pod, post.node))
            answered = self.answer(post.pod, 201)
            done += answered
            left += [each for each in answered if isinstance(each, PostBinding)]
        return done

    @property
    def of_group(self) -> list[Decision]:
        """The Decisions on the group itself."""
        return [decision for decision in self.decisions if decision.pod == f"~{NAME}"]

    @property
    def of_members(self) -> list[tuple[str, str]]:
        """The names and outcomes of the Decisions on its members, in order."""
        return [(each.pod, str(each.outcome)) for each in self.decisions if each.of_group]


def _result(run: Any) -> Any:
    while True:
        try:
            next(run)
        except StopIteration as end:
            return end.value
