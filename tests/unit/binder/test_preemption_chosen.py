"""The binder chooses where it preempts: whatever a scorer's message says, no eviction costs more than the best one."""

from __future__ import annotations

import random

import msgspec
import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import Affinity, Container, Pod, PodAffinity, PodAffinityTerm, PodCondition, ResourceRequirements
from berth.api.workloads import BudgetStatus, PodDisruptionBudget, SelectorSpec
from berth.framework.cycle import any_feasible_node, feasible_nodes
from berth.framework.disruptionbudgets import DisruptionBudgets
from berth.framework.extending import EXTENDER
from berth.framework.preemption import NO_CANDIDATE, Evictions, confirm
from berth.kube.listwatch import Upserted
from berth.messages.attempts import Outcome, Preemption, Ranked, Reason, Victim
from berth.plugins.defaultpreemption import plugin
from berth.plugins.defaultpreemption.victims import Cost, Victims
from berth_binder.attempts.pods import MOST_QUESTIONS
from berth_binder.attempts.queue import ABOUT_EVICTIONS
from berth_binder.events import (
    AskAboutEvictions,
    AskAboutNodes,
    ClearNomination,
    Effect,
    EvictionsAnswered,
    EvictPods,
    GetPod,
    NodesAnswered,
)
from berth_binder.settings import CoreSettings
from harness.plugins.long_runs import often
from harness.worlds.binder_bench import BACKOFF, PROFILE, Bench, labelled, make_pod, nominated, posts, ranked, reads

HOSTNAME = "kubernetes.io/hostname"
MOST = 2**63 - 1


@pytest.fixture
def bench() -> Bench:
    """On n1 three pods of priority 900 whose budget allows no eviction; on n2 one of priority 1 and two of 900."""
    bench = Bench(nodes=2, cpu="3")
    for name in ("a", "b", "c"):
        bench.show(running(name, "n1", priority=900, labels={"app": "database"}))
    bench.show(running("cheap", "n2", priority=1))
    for name in ("d", "e"):
        bench.show(running(name, "n2", priority=900))
    budget(bench, "database")
    return bench


def running(name: str, node: str, *, priority: int = 0, labels: dict[str, str] | None = None, **given: object) -> Pod:
    return make_pod(name, node=node, metadata={"labels": labels}, spec={"priority": priority}, **given)


def important(cpu: str = "1", **spec: object) -> Pod:
    return make_pod("vip", cpu=cpu, spec={"priority": 1000, **spec})


def budget(bench: Bench, app: str, allowed: int = 0) -> None:
    metadata = ObjectMeta(name=app, namespace="default", uid=f"budget-{app}", resource_version="13")
    selector = SelectorSpec(selector=LabelSelector(match_labels={"app": app}))
    made = PodDisruptionBudget(metadata=metadata, spec=selector, status=BudgetStatus(disruptions_allowed=allowed))
    bench.observe(Upserted(kind="poddisruptionbudget", object=made))


def proposing(pod: Pod, node: str, *victims: str, n: int = 1, violations: int = 0, **parts: object) -> Ranked:
    named = [Victim(uid=f"uid-{name}", namespace="default", name=name) for name in victims]
    preemption = Preemption(node=node, victims=named, violations=violations)
    return ranked(pod, n=n, message="none fits", preemption=preemption, **parts)


def evictions(effects: list[Effect]) -> list[tuple[str, list[str]]]:
    found = [each for each in effects if isinstance(each, EvictPods)]
    return [(each.node, [victim.metadata.name for victim in each.victims]) for each in found]


# Whatever the message says.


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param({"evaluated": 2, "view_age_seconds": 1.0, "violations": 3}, id="as an honest scorer's"),
        pytest.param({"evaluated": MOST, "view_age_seconds": 0.0, "violations": MOST}, id="all that can be claimed"),
        pytest.param({"evaluated": 0, "view_age_seconds": None, "violations": 0}, id="a view of unknown age"),
        pytest.param({"evaluated": -1, "view_age_seconds": 1e300, "violations": -MOST}, id="an old view of no node"),
    ],
)
@pytest.mark.parametrize(
    ("node", "victims"),
    [
        pytest.param("n1", ("a", "b", "c"), id="a worse node"),
        pytest.param("n1", (), id="a worse node without victims"),
        pytest.param("n2", ("d", "e"), id="the best node, but its important pods"),
        pytest.param("n2", ("cheap", "d", "e"), id="the best node, and all of its pods"),
        pytest.param("elsewhere", ("a",), id="an unknown node"),
        pytest.param("", (), id="no node"),
    ],
)
def test_the_least_important_pod_is_evicted_whatever_is_proposed(bench, node, victims, numbers):
    pod = bench.show(important())
    assert evictions(bench.take(proposing(pod, node, *victims, **numbers))) == [("n2", ["cheap"])]
    bench.evicted(pod, "n2")
    (decision,) = bench.decisions
    assert (decision.outcome, decision.node, decision.preemption.violations) == (Outcome.PREEMPTING, "n2", 0)


def test_among_equal_evictions_the_proposed_one_is_taken():
    bench = Bench(nodes=9, cpu="1")
    for number in range(1, 10):
        bench.show(running(f"low-{number}", f"n{number}"))
    for number in range(1, 10):
        pod = bench.show(make_pod(f"vip-{number}", spec={"priority": 1000}))
        assert evictions(bench.take(proposing(pod, f"n{number}"))) == [(f"n{number}", [f"low-{number}"])]


def test_nothing_is_evicted_by_an_important_pod_that_may_not_preempt(bench):
    pod = bench.show(important(preemption_policy="Never"))
    assert evictions(bench.take(proposing(pod, "n2", "cheap"))) == []
    assert [(each.outcome, each.reason) for each in bench.decisions] == [(Outcome.CONFLICT, Reason.VICTIMS)]


# Extenders that filter evictions.

GPU = "example.com/gpu"


def extended(bench: Bench, *resources: str) -> Bench:
    """With an extender that filters evictions for pods with these resources, or for every pod."""
    one = ExtenderConfiguration(url_prefix="", name="", preempt_verb="preempt", managed_resources=frozenset(resources))
    bench.profiles[PROFILE].extenders = (one,)
    bench.new_epoch(bench.epoch)
    return bench


def question(effects: list[Effect]) -> AskAboutEvictions | None:
    found = [each for each in effects if isinstance(each, AskAboutEvictions)]
    assert len(found) <= 1
    assert not found or evictions(effects) == []
    return found[0] if found else None


def keep(bench: Bench, asked: AskAboutEvictions, *nodes: str) -> list[Effect]:
    """The extenders keep the evictions on these nodes."""
    left = tuple(each for each in asked.candidates if each.node in nodes)
    return bench.handle(EvictionsAnswered(pod=asked.pod, evictions=Evictions(left=left)))


@pytest.mark.parametrize("node", ["n1", "n2", "elsewhere", ""])
def test_a_scorer_does_not_choose_where_a_pod_of_an_extender_preempts(bench, node):
    """The binder asks the extenders about its own candidates, the best first."""
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, node, "a", "b", "c", violations=-MOST)))
    assert [(each.node, each.victims, each.violations) for each in asked.candidates] == [
        ("n2", ("uid-cheap",), 0),
        ("n1", ("uid-c",), 1),
    ]
    assert {uid: victim.metadata.name for uid, victim in asked.victims.items()} == {"uid-cheap": "cheap", "uid-c": "c"}
    assert evictions(keep(bench, asked, "n1", "n2")) == [("n2", ["cheap"])]
    bench.evicted(pod, "n2")
    assert bench.outcomes == ["preempting"]


def test_an_eviction_that_extenders_leave_out_is_not_made(bench):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2", "cheap")))
    assert evictions(keep(bench, asked, "n1")) == [("n1", ["c"])]


@pytest.mark.parametrize(
    ("evictions_kept", "message"),
    [
        pytest.param(Evictions(), f"none fits preemption: {NO_CANDIDATE}", id="they keep none"),
        pytest.param(Evictions(failure="code 503"), "none fits preemption: code 503", id="one fails"),
    ],
)
def test_where_extenders_keep_no_eviction_the_pod_has_the_reason(bench, evictions_kept, message):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2", "cheap", blockers=["NodeResourcesFit"])))
    assert evictions(bench.handle(EvictionsAnswered(pod=asked.pod, evictions=evictions_kept))) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.message) == (Outcome.UNSCHEDULABLE, message)
    assert decision.blockers == ["NodeResourcesFit", EXTENDER]


def test_extenders_that_leave_out_the_cheapest_evictions_are_asked_about_the_next_ones(bench, monkeypatch):
    monkeypatch.setattr(plugin, "ASKED_AT_ONCE", 1)
    pod = extended(bench).show(important())
    first = question(bench.take(proposing(pod, "n2")))
    second = question(keep(bench, first))
    assert [[each.node for each in one.candidates] for one in (first, second)] == [["n2"], ["n1"]]
    assert evictions(keep(bench, second, "n1")) == [("n1", ["c"])]


def test_extenders_are_asked_about_no_more_nodes_than_kube_scheduler_wants_candidates(bench, monkeypatch):
    monkeypatch.setattr(plugin, "ASKED_AT_ONCE", 1)
    monkeypatch.setattr(plugin.DefaultPreemptionArgs, "enough", lambda _args, _nodes: 1)
    pod = extended(bench).show(important())
    assert question(keep(bench, question(bench.take(proposing(pod, "n2"))))) is None
    assert bench.outcomes == ["unschedulable"]


def test_only_pods_of_the_extender_are_asked_about(bench):
    pod = extended(bench, GPU).show(important())
    effects = bench.take(proposing(pod, "n1", "a"))
    assert (question(effects), evictions(effects)) == (None, [("n2", ["cheap"])])


def test_the_pod_that_extenders_are_sent_is_the_whole_one_of_the_api_server(bench):
    bench.reads_preemptors = False
    pod = extended(bench).show(important())
    (read,) = (each for each in bench.take(proposing(pod, "n1", "a")) if isinstance(each, GetPod))
    assert read.keeps_whole
    whole = msgspec.structs.replace(pod, whole=msgspec.Raw(b'{"spec":{}}'))
    asked = question(bench.reading(pod, whole))
    assert bytes(asked.pod.whole) == b'{"spec":{}}'
    keep(bench, asked, "n2")
    (evicted,) = (each for each in bench.reading(pod, whole) if isinstance(each, EvictPods))
    assert bytes(evicted.pod.whole) == b""  # it is kept nowhere


# Extenders that filter nodes.


def filtered(bench: Bench, **verbs: str) -> Bench:
    """With an extender that filters nodes for every pod, and two more nodes on which an important pod fits."""
    bench.profiles[PROFILE].extenders = (
        ExtenderConfiguration(url_prefix="", name="", **{"filter_verb": "filter", **verbs}),
    )
    bench.new_epoch(bench.epoch)
    for name in ("free-1", "free-2"):
        bench.show_node(name, cpu="1")
    return bench


def node_question(effects: list[Effect]) -> AskAboutNodes | None:
    found = [each for each in effects if isinstance(each, AskAboutNodes)]
    assert len(found) <= 1
    assert not found or (evictions(effects), question(effects)) == ([], None)
    return found[0] if found else None


def filtering(bench: Bench, asked: AskAboutNodes, *left: str, failure: str = "") -> list[Effect]:
    """The extenders keep these nodes, or one fails."""
    answer = NodesAnswered(pod=asked.pod, asked=frozenset(asked.nodes), left=frozenset(left), failure=failure)
    return bench.handle(answer)


def test_no_eviction_follows_from_a_scorers_word_that_extenders_refuse_the_nodes_that_fit(bench):
    pod = filtered(bench).show(important())
    effects = bench.take(proposing(pod, "n2", "cheap"))
    assert evictions(effects) == []
    asked = node_question(effects)
    assert {name: node.metadata.name for name, node in asked.nodes.items()} == {"free-1": "free-1", "free-2": "free-2"}
    assert evictions(filtering(bench, asked, "free-2")) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.reason) == (Outcome.CONFLICT, Reason.FITS)
    assert decision.message == "it fits on node 'free-2' without an eviction"


def test_pods_are_evicted_where_extenders_refuse_every_node_that_fits(bench):
    pod = filtered(bench).show(important())
    asked = node_question(bench.take(proposing(pod, "n1", "a")))
    assert evictions(filtering(bench, asked)) == [("n2", ["cheap"])]
    bench.evicted(pod, "n2")
    assert bench.outcomes == ["preempting"]


def test_extenders_are_not_asked_about_nodes_where_the_pod_fits_on_none(bench):
    pod = filtered(bench).show(important(cpu="2"))
    effects = bench.take(proposing(pod, "n2", "cheap"))
    assert node_question(effects) is None
    assert evictions(effects)


def test_an_extender_that_fails_to_filter_is_an_error_of_the_pod_with_its_words(bench):
    pod = filtered(bench).show(important())
    asked = node_question(bench.take(proposing(pod, "n2", "cheap")))
    assert evictions(filtering(bench, asked, failure="code 503")) == []
    assert [(each.outcome, each.message) for each in bench.decisions] == [(Outcome.ERROR, "code 503")]


def test_extenders_that_refuse_the_nodes_are_asked_about_evictions_next(bench):
    pod = filtered(bench, preempt_verb="preempt").show(important())
    asked = node_question(bench.take(proposing(pod, "n2", "cheap")))
    then = question(filtering(bench, asked))
    assert [each.node for each in then.candidates] == ["n2", "n1"]
    assert evictions(keep(bench, then, "n1")) == [("n1", ["c"])]


def test_a_node_that_fits_only_by_now_is_asked_about_before_an_eviction(bench):
    pod = filtered(bench, preempt_verb="preempt").show(important())
    then = question(filtering(bench, node_question(bench.take(proposing(pod, "n2", "cheap")))))
    bench.show_node("late", cpu="1")
    again = node_question(keep(bench, then, "n2"))
    assert list(again.nodes) == ["late"]
    assert evictions(keep(bench, question(filtering(bench, again)), "n2")) == [("n2", ["cheap"])]


def test_extenders_are_asked_again_about_the_nodes_of_a_pod_that_has_changed(bench):
    pod = filtered(bench).show(important())
    asked = node_question(bench.take(proposing(pod, "n2")))
    changed = bench.show(labelled(pod, 40))
    assert node_question(bench.take(proposing(changed, "n2", n=2))) is None
    again = node_question(filtering(bench, asked))
    assert again.nodes.keys() == {"free-1", "free-2"}
    assert evictions(filtering(bench, again)) == [("n2", ["cheap"])]


def test_the_whole_pod_is_read_for_extenders_that_filter_nodes(bench):
    bench.reads_preemptors = False
    pod = filtered(bench).show(important())
    (read,) = (each for each in bench.take(proposing(pod, "n1", "a")) if isinstance(each, GetPod))
    assert read.keeps_whole
    whole = msgspec.structs.replace(pod, whole=msgspec.Raw(b'{"spec":{}}'))
    assert bytes(node_question(bench.reading(pod, whole)).pod.whole) == b'{"spec":{}}'


# The cluster changes while extenders are asked.


def test_other_pods_are_bound_while_extenders_are_asked(bench):
    bench.settings = CoreSettings(max_in_flight=1, backoff=BACKOFF)
    pod = extended(bench).show(important())
    bench.show_node("n3", cpu="1")
    bench.show(running("full", "n3", priority=2000))
    assert question(bench.take(proposing(pod, "n1", "a")))
    bench.show_node("n4", cpu="1")
    assert posts(bench.take(ranked(bench.show(make_pod("web")), "n4"))) == [("web", "n4", "10")]


def test_a_pod_for_which_extenders_are_asked_long_is_said_to_wait(bench):
    """So its slot in the window is free, and the watcher publishes no next attempt."""
    pod = extended(bench).show(important())
    assert question(bench.take(proposing(pod, "n1", "a")))
    bench.wait(1.0)
    (decision,) = bench.decisions
    assert (decision.outcome, decision.node, decision.message) == (Outcome.WAITING, "", ABOUT_EVICTIONS)


def test_where_a_victim_has_gone_extenders_are_asked_again_and_no_worse_eviction_is_made(bench):
    """n2 needs one victim less by now, and is still better than n1."""
    pod = extended(bench).show(important(cpu="2"))
    asked = question(bench.take(proposing(pod, "n2")))
    assert [each.victims for each in asked.candidates] == [("uid-e", "uid-cheap"), ("uid-b", "uid-c")]
    bench.delete(running("cheap", "n2"), 30)
    assert evictions(keep(bench, asked, "n1", "n2")) == []
    assert [(each.outcome, each.reason) for each in bench.decisions] == [(Outcome.CONFLICT, Reason.VICTIMS)]
    again = question(bench.take(proposing(pod, "n2", n=2)))
    assert evictions(keep(bench, again, "n1", "n2")) == [("n2", ["e"])]


def test_where_the_best_kept_node_has_gone_the_next_one_is_taken(bench):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2")))
    bench.remove_node("n2")
    assert evictions(keep(bench, asked, "n1", "n2")) == [("n1", ["c"])]


def test_where_no_kept_eviction_is_possible_by_now_the_pod_is_tried_again(bench):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2")))
    bench.remove_node("n2")
    assert evictions(keep(bench, asked, "n2")) == []
    assert [(each.outcome, each.reason) for each in bench.decisions] == [(Outcome.CONFLICT, Reason.VICTIMS)]


def test_a_budget_that_allows_less_by_now_is_not_violated(bench):
    budget(bench, "database", allowed=1)
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n1", "c")))
    budget(bench, "database", allowed=0)
    assert evictions(keep(bench, asked, "n1")) == []


def test_a_pod_that_fits_by_now_evicts_none(bench):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2")))
    bench.show_node("n3", cpu="1")
    assert evictions(keep(bench, asked, "n1", "n2")) == []
    assert [each.reason for each in bench.decisions] == [Reason.FITS]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_nothing_is_evicted_for_a_pod_that_has_changed_or_gone(bench, is_deleted):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2")))
    if is_deleted:
        bench.delete(pod, 40)
    else:
        bench.show(labelled(pod, 40))
    assert evictions(keep(bench, asked, "n1", "n2")) == []
    assert bench.outcomes == ["gone" if is_deleted else "conflict"]


def test_extenders_are_asked_again_about_a_pod_that_has_changed_and_was_ranked_again(bench):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2")))
    changed = bench.show(labelled(pod, 40))
    assert question(bench.take(proposing(changed, "n2", n=2))) is None
    again = question(keep(bench, asked, "n1", "n2"))
    assert again.pod.metadata.labels == {"new": "label"}
    assert evictions(keep(bench, again, "n1", "n2")) == [("n2", ["cheap"])]


def test_extenders_are_asked_again_where_the_answer_could_not_be_used_at_once(bench):
    bench.reads_preemptors = False
    pod = extended(bench).show(important())
    bench.take(proposing(pod, "n2"))
    asked = question(bench.reading(pod, pod))
    keep(bench, asked, "n1", "n2")
    bench.reading(pod, None, status=503)
    bench.wait(60)
    assert question(bench.reading(pod, pod))


def test_two_preemptors_that_are_asked_about_at_once_evict_as_one_after_the_other(bench):
    """Another pod of n2 costs less than one of n1, against whose budget it is."""
    first, second = (make_pod(name, spec={"priority": 1000}) for name in ("vip-1", "vip-2"))
    extended(bench)
    asked = [question(bench.take(proposing(bench.show(pod), "n2"))) for pod in (first, second)]
    assert [[each.node for each in one.candidates] for one in asked] == [["n2", "n1"]] * 2
    assert evictions(keep(bench, asked[0], "n1", "n2")) == [("n2", ["cheap"])]
    assert evictions(keep(bench, asked[1], "n1", "n2")) == []
    bench.evicted(first, "n2")
    bench.show(nominated(first, "n2"))
    bench.delete(running("cheap", "n2", priority=1), 60)
    again = question(bench.take(proposing(second, "n2", n=2)))
    assert evictions(keep(bench, again, "n1", "n2")) == [("n2", ["e"])]


def test_an_answer_of_a_former_leadership_changes_nothing(bench):
    pod = extended(bench).show(important())
    asked = question(bench.take(proposing(pod, "n2")))
    bench.succeed()
    assert keep(bench, asked, "n2") == []


def test_no_more_pods_are_asked_about_at_once_than_the_bound_and_all_are_in_the_end(bench):
    extended(bench)
    asked = []
    for number in range(MOST_QUESTIONS + 2):
        effects = bench.take(proposing(bench.show(make_pod(f"vip-{number}", spec={"priority": 1000})), "n2"))
        asked += [each for each in effects if isinstance(each, AskAboutEvictions)]
    assert len(asked) == MOST_QUESTIONS
    assert [each for each in bench.wait(1.0) if isinstance(each, AskAboutEvictions)] == []
    for one in asked:
        bench.handle(EvictionsAnswered(pod=one.pod, evictions=Evictions()))
    late = [each for each in bench.wait(1.1) if isinstance(each, AskAboutEvictions)]
    assert len({one.pod.uid for one in (*asked, *late)}) == MOST_QUESTIONS + 2


def test_a_pod_asked_about_again_keeps_its_place_among_those_asked_about(bench):
    filtered(bench, preempt_verb="preempt")
    pods = [bench.show(important_named(f"vip-{number}")) for number in range(MOST_QUESTIONS + 1)]
    asked = [node_question(bench.take(proposing(pod, "n2"))) for pod in pods]
    assert asked.pop() is None
    bench.reads_preemptors = False
    assert reads(filtering(bench, asked[0])) == ["vip-0"]
    assert reads(bench.wait(1.0)) == [], "none takes its place"
    assert question(bench.reading(pods[0], pods[0])) is not None, "about evictions"
    assert reads(filtering(bench, asked[1], "free-1")) == ["vip-1"]
    bench.reading(pods[1], pods[1])
    assert bench.outcomes[-1] == Outcome.CONFLICT
    assert reads(bench.wait(1.1)) == [f"vip-{MOST_QUESTIONS}"]


def test_pods_being_read_count_among_those_asked_about(bench):
    extended(bench)
    bench.reads_preemptors = False
    pods = [bench.show(important_named(f"vip-{number}")) for number in range(MOST_QUESTIONS + 1)]
    assert reads(bench.take(proposing(pods[0], "n2"))) == ["vip-0"]
    asked = []
    for pod in pods[1:]:
        effects = bench.take(proposing(pod, "n2"))
        if reads(effects):
            asked.append(question(bench.reading(pod, pod)))
    assert len(asked) == MOST_QUESTIONS - 1
    assert question(bench.reading(pods[0], pods[0])) is not None


def test_a_pod_that_cannot_be_read_leaves_its_place_among_those_asked_about(bench):
    extended(bench)
    bench.reads_preemptors = False
    for number in range(MOST_QUESTIONS):
        pod = bench.show(important_named(f"vip-{number}"))
        bench.take(proposing(pod, "n2"))
        bench.reading(pod, None, *([503] if number % 2 else []))
    pod = bench.show(important_named("vip"))
    bench.take(proposing(pod, "n2"))
    assert question(bench.reading(pod, pod)) is not None


def important_named(name: str) -> Pod:
    return make_pod(name, spec={"priority": 1000})


def test_pods_of_a_slow_extender_hold_up_no_question_to_others(bench):
    slow, quick = (
        ExtenderConfiguration(url_prefix="", name=name, preempt_verb="preempt", managed_resources=frozenset({name}))
        for name in ("example.com/slow", "example.com/quick")
    )
    bench.profiles[PROFILE].extenders = (slow, quick)
    for number in range(MOST_QUESTIONS + 1):
        effects = bench.take(proposing(bench.show(requesting(f"vip-{number}", slow.name)), "n2"))
        assert (question(effects) is None) is (number == MOST_QUESTIONS)
    assert question(bench.take(proposing(bench.show(requesting("vip", quick.name)), "n2")))


def requesting(name: str, resource: str) -> Pod:
    """An important pod that extenders of this resource handle, and that fits with an eviction."""
    pod = make_pod(name, spec={"priority": 1000})
    limited = Container(name="c", resources=ResourceRequirements(requests={"cpu": "1"}, limits={resource: "1"}))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[limited]))


# A nomination holds while victims terminate.


def terminating(pod: Pod) -> Pod:
    condition = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
    metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", resource_version="60")
    return msgspec.structs.replace(
        pod, metadata=metadata, status=msgspec.structs.replace(pod.status, conditions=[condition])
    )


@pytest.mark.parametrize("is_shown", [False, True])
def test_no_message_clears_a_nomination_whose_victims_terminate(bench, is_shown):
    """Otherwise the next message would have other pods evicted for the same pod."""
    pod = bench.show(important())
    bench.take(proposing(pod, "n2", "cheap"))
    bench.evicted(pod, "n2")
    nominee = bench.show(nominated(pod, "n2"))
    if is_shown:
        bench.show(terminating(running("cheap", "n2", priority=1)))
    effects = bench.take(ranked(nominee, n=2, message="none fits", clears_nomination=True))
    assert [each for each in effects if isinstance(each, ClearNomination)] == []
    assert evictions(bench.take(proposing(nominee, "n1", "a", n=3))) == []
    assert bench.outcomes == ["preempting", "unschedulable", "preempting"]


# By chance.


def a_random_bench(chance: random.Random) -> Bench:
    """Full nodes of pods of few priorities, some with budgets or anti-affinity."""
    bench = Bench(nodes=chance.randint(2, 9), cpu="4")
    for number in range(1, bench.nodes + 1):
        room = 4
        while room:
            cpu = chance.randint(1, min(room, 2))
            room -= cpu if chance.random() < 0.9 else room
            seconds = f"2026-01-01T00:00:{chance.randrange(3):02}Z"
            pod = running(
                f"p{number}-{room}",
                f"n{number}",
                cpu=str(cpu),
                priority=chance.choice((0, 1, 1, 5, 900, 2000)),
                labels={"app": chance.choice("abc")},
                status={"start_time": seconds},
            )
            bench.show(pod)
    for app in "ab":
        budget(bench, app, chance.randint(-1, 2))
    return bench


def a_random_preemptor(chance: random.Random) -> Pod:
    """Now and then it may not be beside pods of an app, so that sums alone are a bad bound."""
    term = PodAffinityTerm(topology_key=HOSTNAME, label_selector=LabelSelector(match_labels={"app": "a"}))
    apart = Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[term]))
    return important(str(chance.randint(1, 3)), affinity=apart if chance.random() < 0.4 else None)


def a_hostile_proposal(chance: random.Random, pod: Pod, bench: Bench, n: int) -> Ranked:
    node = f"n{chance.randint(0, bench.nodes)}"
    there = [placed.pod.metadata.name for placed in bench.cache.snapshot.placed_on_row(chance.randrange(bench.nodes))]
    return proposing(
        pod,
        node,
        *chance.sample(there, chance.randint(0, len(there))),
        n=n,
        violations=chance.choice((0, 1, MOST)),
        evaluated=chance.choice((0, bench.nodes, MOST)),
        view_age_seconds=chance.choice((None, 0.0, 1e9)),
    )


def cost_of(pod: Pod, node: str, bench: Bench) -> Cost | None:
    """The cost of the dry run on one node."""
    snapshot = bench.cache.snapshot
    found = confirm(pod, node, snapshot, bench.profiles[PROFILE])
    if found is None:
        return None
    placed = tuple(snapshot.placed(uid) for uid in found.victims)
    violating, _ = DisruptionBudgets(snapshot).split(placed)
    assert found.violations >= len(violating)
    return Victims(placed[0].row, placed, found.violations).cost


@pytest.mark.parametrize("seed", range(often(60)))
def test_no_hostile_proposal_evicts_more_than_the_best_dry_run_of_every_node(seed):
    chance = random.Random(seed)
    bench, n = a_random_bench(chance), 0
    pod = bench.show(a_random_preemptor(chance))
    costs = {f"n{each}": cost_of(pod, f"n{each}", bench) for each in range(1, bench.nodes + 1)}
    possible = [cost for cost in costs.values() if cost is not None]
    fits = any_feasible_node(pod, bench.cache.snapshot, bench.profiles[PROFILE])
    for n in range(1, 6):
        bench.succeed()
        found = evictions(bench.take(a_hostile_proposal(chance, pod, bench, n)))
        if fits or not possible:
            assert (found, bench.decisions[-1].reason) == ([], Reason.FITS if fits else Reason.VICTIMS)
        else:
            assert [costs[node] for node, _ in found] == [min(possible)]


@pytest.mark.parametrize("seed", range(often(60)))
def test_no_hostile_proposal_evicts_more_than_the_best_dry_run_that_extenders_keep(seed):
    chance = random.Random(seed)
    bench = extended(a_random_bench(chance))
    pod = bench.show(a_random_preemptor(chance))
    costs = {f"n{each}": cost_of(pod, f"n{each}", bench) for each in range(1, bench.nodes + 1)}
    fits = any_feasible_node(pod, bench.cache.snapshot, bench.profiles[PROFILE])
    for n in range(1, 6):
        bench.succeed()
        asked = question(bench.take(a_hostile_proposal(chance, pod, bench, n)))
        if asked is None:
            assert fits or not any(costs.values())
            continue
        possible = [node for node, cost in costs.items() if cost is not None]
        assert sorted(each.node for each in asked.candidates) == possible
        kept = {node: costs[node] for node in possible if chance.random() < 0.6}
        found = evictions(keep(bench, asked, *kept))
        assert [costs[node] for node, _ in found] == ([min(kept.values())] if kept else [])
        assert [node for node, _ in found if node not in kept] == []


@pytest.mark.parametrize("seed", range(often(60)))
def test_no_hostile_proposal_evicts_where_extenders_keep_a_node_that_fits(seed):
    chance = random.Random(seed)
    bench = filtered(a_random_bench(chance))
    pod = bench.show(a_random_preemptor(chance))
    fitting = set(feasible_nodes(pod, bench.cache.snapshot, bench.profiles[PROFILE]))
    costs = {f"n{each}": cost_of(pod, f"n{each}", bench) for each in range(1, bench.nodes + 1)}
    possible = [cost for cost in costs.values() if cost is not None]
    for n in range(1, 6):
        bench.succeed()
        effects = bench.take(a_hostile_proposal(chance, pod, bench, n))
        asked = node_question(effects)
        assert (set(asked.nodes) if asked else set()) == fitting
        left = [node for node in fitting if chance.random() < 0.2]
        found = evictions(filtering(bench, asked, *left) if asked else effects)
        assert [costs[node] for node, _ in found] == ([] if left or not possible else [min(possible)])


def test_the_random_clusters_need_evictions():
    kinds = set()
    for seed in range(60):
        chance = random.Random(seed)
        bench = a_random_bench(chance)
        pod = bench.show(a_random_preemptor(chance))
        costs = {cost_of(pod, f"n{each}", bench) for each in range(1, bench.nodes + 1)} - {None}
        if any_feasible_node(pod, bench.cache.snapshot, bench.profiles[PROFILE]):
            kinds.add("fits")
        elif len(costs) > 1:
            kinds.add("better and worse ones, " + ("some against a budget" if max(costs)[0] else "no budgets"))
        else:
            kinds.add("one cost or none")
    assert len(kinds) == 4
