"""Pods that are evicted for a more important one: the binder's requests, their order, and the pods that stay."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import Pod, PodCondition, PodStatus
from berth.api.workloads import BudgetStatus, PodDisruptionBudget, SelectorSpec
from berth.kube.listwatch import Deleted, Upserted
from berth.messages.attempts import Outcome, Preemption, Ranked, Reason, Victim
from berth_binder.cache import PODS
from berth_binder.events import ClearNomination, Effect, EvictPods
from harness.worlds.binder_bench import Bench, at_version, make_pod, nominated, on_node, posts, ranked

REFUSAL = "0/2 nodes are available: 2 Insufficient cpu."


@pytest.fixture
def bench() -> Bench:
    """Two nodes, each filled by one pod of low priority."""
    bench = Bench(nodes=2, cpu="2")
    for node in ("n1", "n2"):
        bench.show(running(f"low-{node}", node))
    return bench


def running(name: str, node: str, *, cpu: str = "2", priority: int = 0, labels: dict | None = None) -> Pod:
    return make_pod(name, cpu=cpu, node=node, metadata={"labels": labels}, spec={"priority": priority})


def important(name: str = "vip", *, cpu: str = "2", priority: int = 1000) -> Pod:
    return make_pod(name, cpu=cpu, spec={"priority": priority})


def terminating(pod: Pod, version: int = 30) -> Pod:
    """The pod as it terminates after its eviction."""
    condition = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
    metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return at_version(
        msgspec.structs.replace(pod, metadata=metadata, status=PodStatus(conditions=[condition])), version
    )


def proposing(pod: Pod, node: str, *victims: str, n: int = 1, violations: int = 0, **parts: object) -> Ranked:
    """RANKED without a feasible node, but with a proposal."""
    named = [Victim(uid=f"uid-{name}", namespace="default", name=name) for name in victims]
    preemption = Preemption(node=node, victims=named, violations=violations)
    view = {"evaluated": 2, "view_age_seconds": 1.0, "preemption": preemption}
    return ranked(pod, n=n, message=REFUSAL, **{**view, **parts})


def evictions(effects: list[Effect]) -> list[tuple[str, str, list[str]]]:
    found = [each for each in effects if isinstance(each, EvictPods)]
    return [(each.pod.metadata.name, each.node, [victim.metadata.name for victim in each.victims]) for each in found]


# Evictions as proposed.


def test_victims_are_evicted_then_the_pod_is_preempting(bench):
    pod = bench.show(important())
    assert evictions(bench.take(proposing(pod, "n1", "low-n1"))) == [("vip", "n1", ["low-n1"])]
    assert (bench.decisions, bench.acked) == ([], [])
    bench.evicted(pod, "n1")
    (decision,) = bench.decisions
    assert (decision.outcome, decision.node, decision.message) == (Outcome.PREEMPTING, "n1", REFUSAL)
    assert [victim.name for victim in decision.preemption.victims] == ["low-n1"]
    assert bench.acked == [1]


def test_node_is_nominated_from_the_first_eviction_on(bench):
    pod = bench.show(important())
    other = bench.show(make_pod("other", cpu="2"))
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.delete(running("low-n1", "n1"), version=31)
    bench.show(at_version(pod, 32))  # written by another client before its nomination
    assert posts(bench.take(ranked(other, "n1"))) == []
    bench.evicted(pod, "n1", version=33)
    bench.show(at_version(pod, 32))
    assert posts(bench.take(ranked(other, "n1", n=2))) == []


def test_node_is_free_when_the_watch_shows_no_nomination(bench):
    pod = bench.show(important())
    other = bench.show(make_pod("other", cpu="2"))
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, "n1", version=33)
    bench.delete(running("low-n1", "n1"), version=34)
    bench.show(nominated(pod, "n1", 33))
    assert posts(bench.take(ranked(other, "n1"))) == []
    bench.show(nominated(pod, "", 35))
    assert posts(bench.take(ranked(other, "n1", n=2))) == [("other", "n1", "10")]


def test_pod_is_bound_when_its_victims_are_deleted(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, "n1")
    nominee = bench.show(nominated(pod, "n1"))
    bench.delete(running("low-n1", "n1"), version=51)
    assert posts(bench.take(ranked(nominee, "n1", n=2))) == [("vip", "n1", "50")]


def test_less_important_nominee_loses_the_node(bench):
    waiting = bench.show(nominated(important("waiting", priority=5), "n1", 11))
    pod = bench.show(important())
    effects = bench.take(proposing(pod, "n1", "low-n1"))
    assert [each.pod for each in effects if isinstance(each, ClearNomination)] == [waiting]


# By the binder's own state.


def test_pods_that_are_victims_only_by_now_are_evicted(bench):
    pod = bench.show(important())
    bench.delete(running("low-n1", "n1"), version=31)
    bench.show(running("newcomer", "n1"))
    assert evictions(bench.take(proposing(pod, "n1", "low-n1"))) == [("vip", "n1", ["newcomer"])]
    bench.evicted(pod, "n1")
    (decision,) = bench.decisions
    assert [victim.name for victim in decision.preemption.victims] == ["newcomer"]


def test_only_those_still_needed_are_evicted():
    bench = Bench(nodes=1, cpu="3")
    for name in ("a", "b"):
        bench.show(running(name, "n1", cpu="1"))
    pod = bench.show(important(cpu="2"))
    (eviction,) = evictions(bench.take(proposing(pod, "n1", "a", "b")))
    assert eviction == ("vip", "n1", ["b"])


@pytest.mark.parametrize("change", ["the node has gone", "the pod on it is more important"])
def test_where_evictions_do_not_help_any_more_others_are_made(bench, change):
    pod = bench.show(important())
    if change == "the node has gone":
        bench.remove_node("n1")
    else:
        bench.show(at_version(running("low-n1", "n1", priority=2000), 31))
    assert evictions(bench.take(proposing(pod, "n1", "low-n1"))) == [("vip", "n2", ["low-n2"])]


@pytest.mark.parametrize(
    ("change", "reason"), [("a victim has gone", Reason.FITS), ("all are more important", Reason.VICTIMS)]
)
def test_evictions_that_do_not_help_any_more_are_a_conflict(bench, change, reason):
    pod = bench.show(important())
    for node in ("n1", "n2"):
        if reason is Reason.FITS:
            bench.delete(running(f"low-{node}", node), version=31)
        else:
            bench.show(at_version(running(f"low-{node}", node, priority=2000), 31))
    assert evictions(bench.take(proposing(pod, "n1", "low-n1"))) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.reason) == (Outcome.CONFLICT, reason), change
    assert decision.resource_versions[PODS] == "31"


def test_budget_used_up_meanwhile_is_respected(bench):
    labels = {"app": "web"}
    bench.show(at_version(running("low-n1", "n1", labels=labels), 12))
    budget(bench, labels, allowed=0)
    pod = bench.show(important())
    assert evictions(bench.take(proposing(pod, "n1", "low-n1"))) == [("vip", "n2", ["low-n2"])]


def test_budget_is_violated_where_every_eviction_violates_one(bench):
    labels = {"app": "web"}
    for node in ("n1", "n2"):
        bench.show(at_version(running(f"low-{node}", node, labels=labels), 12))
    budget(bench, labels, allowed=0)
    pod = bench.show(important())
    assert evictions(bench.take(proposing(pod, "n1", "low-n1", violations=1))) == [("vip", "n1", ["low-n1"])]


def budget(bench: Bench, labels: dict[str, str], allowed: int) -> None:
    metadata = ObjectMeta(name="web", namespace="default", uid="budget", resource_version="13")
    selector = SelectorSpec(selector=LabelSelector(match_labels=labels))
    status = BudgetStatus(disruptions_allowed=allowed)
    made = PodDisruptionBudget(metadata=metadata, spec=selector, status=status)
    bench.observe(Upserted(kind="poddisruptionbudget", object=made))


def test_assumed_pod_is_not_evicted(bench):
    bench.remove_node("n2")
    bench.delete(running("low-n1", "n1"), version=31)
    on_its_way = bench.show(make_pod("on-its-way", cpu="2"))
    bench.take(ranked(on_its_way, "n1"))
    pod = bench.show(important())
    assert evictions(bench.take(proposing(pod, "n1", "on-its-way"))) == []
    assert [decision.reason for decision in bench.decisions] == [Reason.VICTIMS]


def test_two_pods_do_not_get_the_same_victims(bench):
    first, second = bench.show(important("first")), bench.show(important("second"))
    bench.take(proposing(first, "n1", "low-n1"))
    assert evictions(bench.take(proposing(second, "n1", "low-n1"))) == [("second", "n2", ["low-n2"])]
    third = bench.show(important("third"))
    assert evictions(bench.take(proposing(third, "n1", "low-n1"))) == []
    assert [(decision.pod, decision.reason) for decision in bench.decisions] == [("third", Reason.VICTIMS)]


def test_unschedulable_because_of_proposals_evicts_no_pod(bench):
    pod = bench.show(important())
    assert evictions(bench.take(proposing(pod, "n1", "low-n1", proposals_counted=True))) == []
    assert [decision.reason for decision in bench.decisions] == [Reason.PROPOSALS]


def test_rejection_on_a_view_older_than_asked_evicts_no_pod(bench):
    pod = bench.show(important())
    assert evictions(bench.take(proposing(pod, "n1", "low-n1", behind=True))) == []
    assert [decision.reason for decision in bench.decisions] == [Reason.BEHIND]


def test_bound_or_gone_pod_evicts_no_pod(bench):
    pod = important()
    bench.show(on_node(pod, "n2"))
    assert evictions(bench.take(proposing(pod, "n1", "low-n1"))) == []
    deleted = important("deleted")
    assert evictions(bench.take(proposing(deleted, "n1", "low-n1"))) == []
    assert bench.outcomes == ["gone", "gone"]


# While victims terminate.


def test_no_other_pod_is_evicted_while_victims_terminate(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, "n1")
    bench.show(terminating(running("low-n1", "n1")))
    nominee = bench.show(nominated(pod, "n1"))
    assert evictions(bench.take(proposing(nominee, "n1", n=2))) == []
    assert evictions(bench.take(proposing(nominee, "n2", "low-n2", n=3))) == []
    assert [(decision.outcome, decision.node) for decision in bench.decisions] == [(Outcome.PREEMPTING, "n1")] * 3


def test_victims_that_the_watch_still_shows_running_are_waited_for(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, "n1")
    assert evictions(bench.take(proposing(pod, "n2", "low-n2", n=2))) == []
    assert [(decision.outcome, decision.node) for decision in bench.decisions] == [(Outcome.PREEMPTING, "n1")] * 2


def test_impossible_node_is_not_waited_for(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, "n1")
    bench.show(terminating(running("low-n1", "n1")))
    nominee = bench.show(nominated(pod, "n1"))
    bench.remove_node("n1")
    assert evictions(bench.take(proposing(nominee, "n2", "low-n2", n=2))) == [("vip", "n2", ["low-n2"])]


def test_victims_under_way_are_named_by_the_cache_and_not_by_the_message(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, "n1")
    bench.show(terminating(running("low-n1", "n1")))
    nominee = bench.show(nominated(pod, "n1"))
    forged = Preemption(node="n1", victims=[Victim(uid="uid-low-n1", namespace="kube-system", name="../x")])
    bench.take(proposing(nominee, "n1", n=2, preemption=forged))
    assert bench.decisions[-1].preemption.victims == [Victim(uid="uid-low-n1", namespace="default", name="low-n1")]


def test_pod_that_preemption_does_not_help_loses_its_nomination(bench):
    nominee = bench.show(nominated(important(), "n1"))
    effects = bench.take(ranked(nominee, message=REFUSAL, clears_nomination=True))
    assert [each.pod for each in effects if isinstance(each, ClearNomination)] == [nominee]
    assert bench.outcomes == ["unschedulable"]


def test_pod_that_preemption_may_help_keeps_its_nomination(bench):
    nominee = bench.show(nominated(important(), "n1"))
    effects = bench.take(ranked(nominee, message=REFUSAL))
    assert [each for each in effects if isinstance(each, ClearNomination)] == []


# Lost answers and killed binders.


@pytest.mark.parametrize("status", [0, 429, 500, 401])
def test_evictions_without_an_answer_are_retried(bench, status):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    assert evictions(bench.evicted(pod, status=status)) == []
    assert bench.decisions == []
    assert evictions(bench.wait(1)) == [("vip", "n1", ["low-n1"])]
    bench.evicted(pod, "n1")
    assert bench.outcomes == ["preempting"]


def test_retried_eviction_finishes_what_is_left(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, status=0)
    bench.show(terminating(running("low-n1", "n1")))
    (again,) = [each for each in bench.wait(1) if isinstance(each, EvictPods)]
    assert [victim.metadata.deletion_timestamp for victim in again.victims] == ["2026-01-01T00:00:00Z"]


def test_retried_eviction_evicts_no_pod_when_not_needed_any_more(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, status=0)
    bench.delete(running("low-n1", "n1"), version=40)
    assert evictions(bench.wait(1)) == []
    assert bench.outcomes == ["conflict"]
    other = bench.show(make_pod("other", cpu="2"))
    assert posts(bench.take(ranked(other, "n1"))) == [("other", "n1", "10")]


def test_rejected_eviction_is_an_error_and_nominates_no_node(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, status=403)
    assert bench.outcomes == ["error"]
    assert bench.decisions[0].message.startswith("evicting pods for it rejected by the API server: 403")
    bench.delete(running("low-n1", "n1"), version=40)
    other = bench.show(make_pod("other", cpu="2"))
    assert posts(bench.take(ranked(other, "n1"))) == [("other", "n1", "10")]


def test_preemptor_deleted_during_evictions_is_gone(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.delete(pod, version=40)
    bench.evicted(pod, status=404)
    assert bench.outcomes == ["gone"]
    bench.delete(running("low-n1", "n1"), version=41)
    other = bench.show(make_pod("other", cpu="2"))
    assert posts(bench.take(ranked(other, "n1"))) == [("other", "n1", "10")]


def test_successor_evicts_when_killed_before_the_deletion(bench):
    pod = bench.show(important())
    message = proposing(pod, "n1", "low-n1")
    bench.take(message)
    bench.succeed()
    assert evictions(bench.deliver(message, 1)) == [("vip", "n1", ["low-n1"])]


def test_successor_nominates_when_killed_after_the_deletion(bench):
    pod = bench.show(important())
    message = proposing(pod, "n1", "low-n1")
    bench.take(message)
    bench.show(terminating(running("low-n1", "n1")))
    bench.succeed()
    assert evictions(bench.deliver(message, 1)) == [("vip", "n1", ["low-n1"])]
    bench.evicted(pod, "n1")
    assert bench.outcomes == ["preempting"]


def test_successor_decides_when_killed_before_the_decision(bench):
    pod = bench.show(important())
    message = proposing(pod, "n1", "low-n1")
    bench.take(message)
    bench.show(terminating(running("low-n1", "n1")))
    bench.show(nominated(pod, "n1"))
    bench.succeed()
    assert evictions(bench.deliver(message, 1)) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.epoch, decision.node) == (Outcome.PREEMPTING, 8, "n1")
    assert [victim.name for victim in decision.preemption.victims] == ["low-n1"]


def test_successor_has_the_pod_ranked_when_all_victims_are_deleted(bench):
    pod = bench.show(important())
    message = proposing(pod, "n1", "low-n1")
    bench.take(message)
    bench.delete(running("low-n1", "n1"), version=40)
    bench.succeed()
    assert evictions(bench.deliver(message, 1)) == []
    assert bench.outcomes == ["conflict"]


def test_redelivered_message_evicts_no_pod_twice(bench):
    pod = bench.show(important())
    message = proposing(pod, "n1", "low-n1")
    bench.take(message)
    bench.evicted(pod, "n1")
    assert evictions(bench.deliver(message, 1)) == []
    assert (bench.outcomes, bench.acked) == (["preempting"], [1, 1])


def test_later_attempt_during_evictions_is_decided_with_it(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.take(proposing(pod, "n2", "low-n2", n=2))
    bench.evicted(pod, "n1")
    assert [(decision.outcome, decision.node, decision.attempt) for decision in bench.decisions] == [
        (Outcome.PREEMPTING, "n1", f"{pod.uid}.1.2")
    ]
    assert bench.acked == [1, 2]


def test_scorer_and_binder_count_a_pods_age_alike(bench):
    scheduled = PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:05Z")
    status = {"status": {"start_time": "2026-01-01T00:00:09Z", "conditions": [scheduled]}}
    pod = bench.show(make_pod("web", node="n1", **status))
    assert bench.cache.snapshot.placed(pod.uid).pod.status.start_time == "2026-01-01T00:00:05Z"


def test_deleted_preemptor_loses_its_nomination(bench):
    pod = bench.show(important())
    bench.take(proposing(pod, "n1", "low-n1"))
    bench.evicted(pod, "n1")
    bench.observe(Deleted(kind=PODS, object=at_version(pod, 60)))
    assert list(bench.cache.snapshot.nominations()) == []
