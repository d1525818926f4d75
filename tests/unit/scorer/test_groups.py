"""Groups in the scorer's core: planned in slices between pods, one at a time, and answered in one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.pod import Pod
from berth.framework.extending import Extension
from berth.groups import planner
from berth.groups.workspace import Steps
from berth.messages.attempts import Positions
from berth.messages.bundles import bundled
from berth.messages.groupattempts import GroupPending, GroupRanked
from berth.ranking.groupranker import GroupRanker
from berth_scorer.backlog import Turns, rank_of
from berth_scorer.core import LONG_SECONDS, PLAN_SLICE_SECONDS, SUSPECT_DELIVERIES
from berth_scorer.events import (
    AckPending,
    AskExtenders,
    CountSuspect,
    Effect,
    ExtendersAnswered,
    ExtendersFailed,
    LogFailure,
    NakPending,
    ObservePlan,
    PendingReceived,
    PublishRanked,
    RankedStored,
    SuspectCounted,
    WriteDeadLetter,
)
from harness.builders.groups import a_group, members
from harness.builders.objects import a_node
from harness.builders.profiles import default_profile
from unit.scorer.test_core import Bench, FakeDelivery, extended, of, small

FOREVER = 20  # calls of a core, more than any plan here has slices


class Groups(Bench):
    """A core on two nodes of 4 cpus each; a step of a plan takes as long as the slices are."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror(a_node("a", cpu="4"), a_node("b", cpu="4"))
        self._ticks = count()
        self.core._stopwatch = self._ticking

    def _ticking(self) -> float:
        return next(self._ticks) * PLAN_SLICE_SECONDS

    def group(
        self, name: str, amount: int, *, after: int = 0, delivered: int = 1, **changes: object
    ) -> PendingReceived:
        return self.group_of(name, members(amount, name, cpu="1"), after=after, delivered=delivered, **changes)

    def group_of(
        self, name: str, pods: list[Pod], *, after: int = 0, delivered: int = 1, **changes: object
    ) -> PendingReceived:
        self._sequence += 1
        values = {
            "attempt": f"uid-{name}.1.1",
            "profile": "berth",
            "group": a_group(name, minimum=len(pods)),
            "bundle": bundled(pods, dict.fromkeys((pod.uid for pod in pods), 1)),
            "need": len(pods),
            "after": Positions(cluster=after),
        }
        delivery = FakeDelivery(sequence=self._sequence, delivered=delivered)
        return PendingReceived(delivery=delivery, pending=GroupPending(**{**values, **changes}))

    def rest(self) -> list[Effect]:
        """What the core does until it waits for something."""
        effects: list[Effect] = []
        for _ in range(FOREVER):
            if self.core.due() != 0.0:
                return effects
            effects += self.handle(may_continue=lambda: False)
        raise AssertionError("it works without end")


@pytest.fixture
def bench() -> Groups:
    return Groups()


def in_order(effects: list[Effect]) -> list[str]:
    """The names of the pods and groups whose answers are published."""
    messages = [each.message for each in of(PublishRanked, effects)]
    return [each.group.name if isinstance(each, GroupRanked) else each.pod.metadata.name for each in messages]


def answer_about(name: str, effects: list[Effect]) -> GroupRanked:
    messages = [each.message for each in of(PublishRanked, effects)]
    return next(each for each in messages if isinstance(each, GroupRanked) and each.group.name == name)


def test_a_group_is_answered_in_one_message_and_acknowledged_once_it_is_stored(bench):
    message = bench.group("gang", 6)
    effects = [*bench.handle(message), *bench.rest()]
    assert in_order(effects) == ["gang"]
    plan = answer_about("gang", effects).plan
    assert {member.uid for member in plan.members} == {f"uid-gang{number:03}" for number in range(6)}
    assert len(of(ObservePlan, effects)) == 1
    assert bench.handle(RankedStored(sequence=1)) == [AckPending(delivery=message.delivery)]
    assert (bench.core.held, bench.core.rankings) == (0, 1)


def test_other_pods_are_ranked_between_the_slices_of_a_plan(bench):
    effects = bench.handle(bench.group("gang", 6), may_continue=lambda: False)
    effects += bench.handle(*(bench.message(small(name)) for name in ("x", "y")), may_continue=lambda: False)
    effects += bench.rest()
    assert sorted(in_order(effects)) == ["gang", "x", "y"]
    assert in_order(effects)[0] == "x"


def test_groups_are_planned_one_after_the_other_in_the_order_in_which_they_came(bench, monkeypatch):
    ways = []
    steps = planner.Planner.run

    def followed(self: planner.Planner) -> Steps:
        ways.append(self._question.group.name)
        for _ in steps(self):
            ways.append(self._question.group.name)
            yield

    monkeypatch.setattr(planner.Planner, "run", followed)
    effects = bench.handle(*(bench.group(name, 2) for name in ("one", "two", "three")), may_continue=lambda: False)
    effects += bench.rest()
    assert in_order(effects) == ["one", "two", "three"]
    assert sorted(ways, key=["one", "two", "three"].index) == ways


def test_a_group_counts_what_was_proposed_before_it_and_pods_count_its_members(bench):
    effects = [*bench.handle(bench.group("one", 6)), *bench.rest()]
    effects += [*bench.handle(bench.group("two", 3)), *bench.rest()]
    effects += [*bench.handle(bench.group("three", 2)), *bench.rest()]
    assert answer_about("one", effects).plan.is_found
    assert (answer_about("two", effects).plan.is_found, answer_about("two", effects).proposals_counted) == (False, True)
    assert answer_about("three", effects).plan.is_found
    (publish, _) = bench.handle(bench.message(small("web")))
    assert publish.message.candidates == []


def test_a_group_waits_for_its_positions(bench):
    assert bench.handle(bench.group("gang", 2, after=9)) == []
    assert bench.core.due() == bench.now + 1.0
    bench.now += 1.0
    assert in_order([*bench.handle(), *bench.rest()]) == ["gang"]


def test_a_group_is_announced_while_it_is_held_for_long(bench):
    bench.handle(bench.group("gang", 2, after=9))
    bench.now += LONG_SECONDS
    assert bench.core.held_for_long(bench.now) == ["uid-gang.1.1"]


def test_a_redelivered_group_is_planned_once(bench):
    first = bench.group("gang", 6)
    effects = bench.handle(first, may_continue=lambda: False)
    again = PendingReceived(delivery=FakeDelivery(sequence=1, delivered=2), pending=first.pending)
    effects += bench.handle(again, may_continue=lambda: False)
    effects += bench.rest()
    assert in_order(effects) == ["gang"]
    assert bench.handle(RankedStored(sequence=1)) == [AckPending(delivery=again.delivery)]


def test_a_group_that_the_watcher_refuses_is_passed_on_with_its_error(bench):
    (publish,) = bench.handle(bench.group("gang", 2, error="the group takes 9 bytes"))
    assert (publish.message.plan.error, publish.message.plan.members) == ("the group takes 9 bytes", [])


def test_a_plan_that_raises_gives_an_error_and_a_dead_letter_and_the_next_group_is_planned(bench, monkeypatch):
    answer = GroupRanker.answer

    def failing(self: GroupRanker, pending: GroupPending, *rest: object, **options: object) -> Iterator[None]:
        if pending.group.name != "odd":
            return (yield from answer(self, pending, *rest, **options))
        yield
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(GroupRanker, "answer", failing)
    effects = [*bench.handle(bench.group("odd", 2), bench.group("gang", 2)), *bench.rest()]
    assert in_order(effects) == ["odd", "gang"]
    assert answer_about("odd", effects).plan.error == "planning raised ZeroDivisionError: by nothing"
    assert [type(each) for each in effects][:2] == [LogFailure, WriteDeadLetter]


def test_a_core_that_closes_in_a_plan_returns_all_groups_and_leaves_the_view_as_it_was(bench):
    bench.handle(bench.group("one", 6), bench.group("two", 2), may_continue=lambda: False)
    assert {each.delivery.sequence for each in of(NakPending, bench.core.close())} == {1, 2}
    assert bench.core.view.snapshot.pod_count == 0
    assert (bench.core.held, bench.core.due()) == (0, None)


def test_a_suspected_group_is_counted_and_planned_alone(bench):
    message = bench.group("gang", 6, delivered=SUSPECT_DELIVERIES)
    assert [type(each) for each in bench.handle(message)] == [CountSuspect]
    assert bench.handle(bench.message(small("web"))) == []
    assert in_order(bench.handle(SuspectCounted(tries=1))) == ["gang"]
    assert in_order(bench.handle(RankedStored(sequence=1))) == ["web"]


def test_a_suspected_group_does_not_wait_for_the_plan_of_another(bench):
    bench.handle(bench.group("slow", 6), may_continue=lambda: False)
    suspect = bench.group("gang", 2, delivered=SUSPECT_DELIVERIES)
    effects = [*bench.handle(suspect, may_continue=lambda: False), *bench.rest()]
    if not of(CountSuspect, effects):
        effects += bench.handle(RankedStored(sequence=1))
    assert in_order(bench.handle(SuspectCounted(tries=1))) == ["gang"]
    effects += [*bench.handle(RankedStored(sequence=2)), *bench.rest()]
    assert in_order(effects) == ["slow"]


def test_a_suspected_group_that_has_ended_three_scorers_is_given_up(bench):
    bench.handle(bench.group("gang", 2, delivered=SUSPECT_DELIVERIES))
    letter, publish = bench.handle(SuspectCounted(tries=4))
    assert publish.message.plan.error == letter.reason == "ranking ended 3 scorers before this one"


# --- extenders


def test_extenders_are_asked_once_about_each_class_that_they_serve(bench):
    pods = [extended("a0"), extended("a1"), extended("b0", cpu="2"), small("c0")]
    effects = bench.handle(bench.group_of("gang", pods))
    (first,) = of(AskExtenders, effects)
    assert (first.pod.metadata.name, set(first.to_extend.nodes)) == ("a0", {"a", "b"})
    (second,) = of(AskExtenders, bench.handle(ExtendersAnswered(sequence=1, extension=kept("a"))))
    assert second.pod.metadata.name == "b0"
    effects = [*bench.handle(ExtendersAnswered(sequence=1, extension=kept("b"))), *bench.rest()]
    plan = answer_about("gang", effects).plan
    nodes = {member.uid: plan.nodes[member.node] for member in plan.members}
    assert (nodes["uid-a0"], nodes["uid-a1"], nodes["uid-b0"], len(nodes)) == ("a", "a", "b", 4)


def test_pods_and_groups_go_on_while_extenders_are_asked_about_a_group(bench):
    effects = bench.handle(
        bench.group_of("slow", [extended("a0")]), bench.group("gang", 2), bench.message(small("web"))
    )
    effects += bench.rest()
    assert sorted(in_order(effects)) == ["gang", "web"]
    effects = [*bench.handle(ExtendersAnswered(sequence=1, extension=kept("a"))), *bench.rest()]
    assert in_order(effects) == ["slow"]


def test_a_failure_of_an_extender_is_the_groups_error(bench):
    bench.handle(bench.group_of("gang", [extended("a0")]))
    (publish,) = bench.handle(ExtendersFailed(sequence=1, reason="code 500"))
    assert publish.message.plan.error == "code 500"


def test_a_group_with_a_member_that_an_extender_binds_is_refused():
    binding = ExtenderConfiguration(
        url_prefix="http://extender", name="binder", bind_verb="bind", managed_resources=frozenset()
    )
    bench = Groups()
    profiles = bench.core._ranker.profiles
    profiles["berth"] = replace(profiles["berth"], extenders=(binding,))
    effects = [*bench.handle(bench.group("gang", 2)), *bench.rest()]
    assert "an extender binds it" in answer_about("gang", effects).plan.error


def kept(*names: str) -> Extension:
    return Extension(asked=frozenset({"a", "b"}), left=frozenset(names))


# --- the order


def test_a_group_has_the_rank_of_its_least_important_member_and_takes_its_namespaces_turn(bench):
    important = members(1, "important", cpu="1", priority=9)
    message = bench.group_of("gang", [*important, *members(2, "plain", cpu="1", priority=5)])
    profile = default_profile()
    assert rank_of(profile, message.pending) == rank_of(profile, bench.group_of("g", members(1, priority=5)).pending)
    assert rank_of(profile, bench.group("empty", 0).pending)
    turns = Turns()
    for name in ("one", "two"):
        held = bench.group(name, 2)
        bench.handle(held, may_continue=lambda: False)
        turns.append(bench.core._held[held.delivery.sequence])
    elsewhere = a_group("other", namespace="other")
    held = bench.group("other", 0, group=elsewhere)
    bench.handle(held, may_continue=lambda: False)
    turns.append(replace(bench.core._held[held.delivery.sequence]))
    assert [turns.popleft().pending.group.name for _ in range(3)] == ["one", "other", "two"]
