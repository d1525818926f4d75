"""The result of the conflict check for a RANKED message, rule by rule (docs/protocol.md, 5)."""

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition, PodSpec
from berth.framework.profile import Profile, WeightedScore
from berth.kube.listwatch import Current, Upserted
from berth.messages.attempts import Candidate, Outcome, Ranked, Reason
from berth.plugins.additional.freecapacity import FreeCapacity
from berth.plugins.additional.tenantspread import TenantSpread, TenantSpreadArgs
from berth.plugins.prioritysort import PrioritySort
from berth_binder.cache import NODES, PODS, Cache
from berth_binder.decisions.conflictcheck import NodeChoice
from berth_binder.decisions.verdict import Placement, RecheckError
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.worlds.binder_bench import Bench, at_version, gated, labelled, make_node, make_pod, on_node, posts, ranked


@pytest.fixture
def bench() -> Bench:
    return Bench()


# The pod.


@pytest.mark.parametrize(("node", "outcome"), [("n2", "bound"), ("n3", "gone")])
def test_bound_pod_is_bound_on_a_candidate_and_gone_elsewhere(bench, node, outcome):
    pod = make_pod("web")
    bench.show(on_node(pod, node))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == []
    assert bench.outcomes == [outcome]


def test_unknown_uid_with_an_old_resource_version_is_gone(bench):
    bench.cache.observe(Current(kind=PODS, resource_version="50"))
    assert posts(bench.take(ranked(make_pod("web", version=50), "n1"))) == []
    assert bench.outcomes == ["gone"]


def test_unbound_pod_that_terminates_is_gone(bench):
    pod = make_pod("web")
    bench.show(make_pod("web", version=12, metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}))
    bench.take(ranked(pod, "n1"))
    assert bench.outcomes == ["gone"]


def test_finished_pod_is_gone(bench):
    pod = bench.show(make_pod("job"))
    bench.show(make_pod("job", version=12, status={"phase": "Failed"}))
    bench.take(ranked(pod, "n1"))
    assert bench.outcomes == ["gone"]


def test_changed_pod_is_a_conflict(bench):
    pod = bench.show(make_pod("web"))
    bench.show(labelled(pod, 12))
    bench.take(ranked(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.CHANGED)


def test_gated_pod_is_a_conflict(bench):
    pod = bench.show(make_pod("web"))
    bench.show(at_version(gated(pod), 12))
    bench.take(ranked(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.CHANGED)


def test_condition_or_nomination_is_no_change(bench):
    pod = bench.show(make_pod("web"))
    fence = PodCondition(type="berth/fence", status="True", message="7")
    bench.show(make_pod("web", version=12, status={"conditions": [fence], "nominated_node_name": "n3"}))
    assert posts(bench.take(ranked(pod, "n1"))) == [("web", "n1", "12")]


def test_error_about_a_pod_that_no_message_has_room_for_is_an_error_and_no_conflict(bench):
    pod = bench.show(labelled(make_pod("web"), 12))
    name_only = Pod(
        metadata=ObjectMeta(name="web", namespace=pod.metadata.namespace, uid=pod.uid, resource_version="12"),
        spec=PodSpec(scheduler_name=pod.spec.scheduler_name),
    )
    bench.take(ranked(name_only, error="the pod takes 9 bytes as a message"))
    assert [(each.outcome, each.message) for each in bench.decisions] == [
        (Outcome.ERROR, "the pod takes 9 bytes as a message")
    ]


def test_scorers_error_is_an_error_with_its_message(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, error="parsing spec.containers[0]: '4x'"))
    assert (bench.decisions[0].outcome, bench.decisions[0].message) == (
        Outcome.ERROR,
        "parsing spec.containers[0]: '4x'",
    )


def test_no_candidate_is_unschedulable_with_the_scorers_reasons(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, message="0/3 nodes are available", blockers=["NodeResourcesFit"]))
    (decision,) = bench.decisions
    assert (decision.outcome, decision.message, decision.blockers) == (
        Outcome.UNSCHEDULABLE,
        "0/3 nodes are available",
        ["NodeResourcesFit"],
    )


def test_without_nodes_a_pod_waits_for_nodes(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, message="no nodes available to schedule pods", nodes=0))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.UNSCHEDULABLE, Reason.NO_NODES)


def test_unschedulable_because_of_proposals_is_a_conflict(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, message="0/3 nodes are available", proposals_counted=True))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.PROPOSALS)


def test_rejection_on_a_view_older_than_asked_is_a_conflict(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, message="0/33 nodes are available", behind=True))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.BEHIND)


# The nodes.


def test_node_that_no_longer_passes_is_skipped(bench):
    bench.cache.observe(Upserted(kind=NODES, object=make_node("n1", unschedulable=True)))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == [("web", "n2", "10")]


def test_missing_node_is_skipped_though_the_api_would_bind_to_it(bench):
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n9", "n2"))) == [("web", "n2", "10")]


def test_node_that_is_full_of_others_pods_is_skipped(bench):
    bench.show(make_pod("theirs", cpu="4", node="n1", spec={}))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", counted=1))) == [("web", "n2", "10")]


def test_assumed_pod_counts_before_the_watch_shows_it(bench):
    one, two = bench.show(make_pod("one", cpu="3")), bench.show(make_pod("two", cpu="3"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n1", counted=1))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)


def test_nominated_pod_of_higher_priority_counts_on_its_node(bench):
    bench.show(make_pod("vip", cpu="4", spec={"priority": 10}, status={"nominated_node_name": "n1"}))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == [("web", "n2", "10")]


def test_conflict_has_resource_versions_and_rejections(bench):
    for name in ("n1", "n2"):
        bench.cache.observe(Upserted(kind=NODES, object=make_node(name, version=33, unschedulable=True)))
    pod = bench.show(make_pod("web"))
    bench.cache.observe(Current(kind=PODS, resource_version="90"))
    bench.take(ranked(pod, "n1", "n2"))
    (decision,) = bench.decisions
    assert (decision.outcome, decision.reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)
    assert decision.resource_versions == {"node": "33", "pod": "10"}
    assert {each.plugin for each in decision.rejections} == {"NodeUnschedulable"}


def test_only_a_conflict_has_resource_versions(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    assert bench.decisions[0].resource_versions == {}


# Best estimate.


TENANT = WeightedScore(TenantSpread(TenantSpreadArgs()), 101)
FREE = WeightedScore(FreeCapacity(), 1)


def profile(*scores: WeightedScore) -> Profile:
    return Profile(scheduler_name="berth", queue_sort=PrioritySort(), scores=scores)


def of(tenant: str, name: str = "new") -> Pod:
    return a_pod(name, labels={"tenant": tenant})


def cache_with(**pods: str) -> Cache:
    """Nodes by name, with one pod for each tenant in the text: ``a="red red blue"``."""
    cache = Cache()
    for node, tenants in pods.items():
        cache.snapshot.set_node(a_node(node))
        for number, tenant in enumerate(tenants.split()):
            cache.snapshot.place(of(tenant, f"{node}-{number}"), node)
    return cache


def chosen(cache: Cache, *candidates: Candidate, pod: Pod | None = None, scores: tuple[WeightedScore, ...] = (FREE,)):
    """The node that the binder takes from a scorer's list, or the reason why it takes none."""
    pod = pod or a_pod()
    message = Ranked(attempt=str(first_attempt(pod)), profile="berth", pod=pod, candidates=list(candidates))
    found = NodeChoice(cache=cache).choose(message, pod, profile(*scores))
    return found.node if isinstance(found, Placement) else found.reason


def saw(node: str, total: int, *, pods: int = 0, loss: float = 0.0) -> Candidate:
    return Candidate(node=node, total=total, pods=pods, loss=loss)


@pytest.mark.parametrize(
    ("cache", "candidates", "expected"),
    [
        # 90 - 5 x 0
        pytest.param({"a": ""}, (saw("a", 90, loss=5), saw("b", 88)), "a", id="no pod came"),
        # 90 - 5 x 1 = 85 against 88
        pytest.param({"a": "x"}, (saw("a", 90, loss=5), saw("b", 88)), "b", id="the next is better by now"),
        # 90 - 5 x 2 = 80 against 70
        pytest.param({"a": "x x"}, (saw("a", 90, loss=5), saw("b", 70)), "a", id="much better than the next"),
        pytest.param({"a": "x"}, (saw("a", 90, pods=1, loss=5), saw("b", 88)), "a", id="the scorer counted it"),
        # 70 - 10 x (0 - 2) = 90 against 88
        pytest.param({}, (saw("b", 88), saw("a", 70, pods=2, loss=10)), "a", id="pods have gone"),
        # 50 + 4 x 1 = 54 against 52
        pytest.param({"a": "x"}, (saw("b", 52), saw("a", 50, loss=-4)), "a", id="more pods are better"),
        # 90 - 5 x 1 = 85 twice
        pytest.param({"a": "x"}, (saw("a", 90, loss=5), saw("b", 85)), "b", id="fewest newcomers among equals"),
        pytest.param({"a": "x x", "b": "x"}, (saw("a", 9), saw("b", 9)), "b", id="pods that move no points"),
        pytest.param({"a": "x", "b": "x"}, (saw("a", 9), saw("b", 9)), "a", id="then the scorer's order"),
        # an avoided node has fewer points however few pods it has
        pytest.param({"a": "x x x"}, (saw("a", 190, loss=6), saw("b", 90, loss=6)), "a", id="avoided node"),
    ],
)
def test_best_estimate_is_taken(cache, candidates, expected):
    assert chosen(cache_with(**{"a": "", "b": "", **cache}), *candidates) == expected


def test_next_best_estimate_that_passes_is_taken(bench):
    bench.show(make_pod("theirs", cpu="4", node="n2"))
    pod = bench.show(make_pod("web"))
    listed = [saw("n1", 80), saw("n2", 90, pods=1), saw("n3", 85)]
    assert posts(bench.take(ranked(pod, candidates=listed))) == [("web", "n3", "10")]


def test_assumed_pod_is_a_newcomer(bench):
    one, two = bench.show(make_pod("one")), bench.show(make_pod("two"))
    bench.take(ranked(one, "n1", "n2", "n3"))
    assert posts(bench.take(ranked(two, "n1", "n2", "n3"))) == [("two", "n2", "10")]


def test_nominated_pod_is_no_newcomer(bench):
    bench.show(make_pod("vip", cpu="1", spec={"priority": 10}, status={"nominated_node_name": "n1"}))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == [("web", "n1", "10")]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pod_is_never_ranked_again_for_newcomers(bench, n):
    for node in ("n1", "n2", "n3"):
        bench.show(make_pod(f"other-{node}", cpu="100m", node=node))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", n=n))) == [("web", "n1", "10")]


def test_decision_has_the_newcomers_of_each_candidate(bench):
    bench.show(make_pod("other", cpu="100m", node="n1"))
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.answer(pod, 201)
    (decision,) = bench.decisions
    assert [(each.node, each.newcomers) for each in decision.candidates] == [("n1", 1), ("n2", 0)]


def test_decision_repeats_the_candidates_that_explain_the_choice(bench):
    """Those with scores, the chosen one and whatever came before it, and the runner-up; each keeps its place."""
    bench.show(make_pod("theirs", cpu="4", node="n1"))
    pod = bench.show(make_pod("web"))
    explained = [msgspec.structs.replace(saw(node, 50), scores={"A": 50}) for node in ("n1", "gone-0")]
    others = [saw(f"gone-{number}", 40) for number in range(1, 30)]
    listed = [*explained, *others, saw("n3", 60, pods=1), saw("n2", 45), saw("gone-30", 39)]
    assert posts(bench.take(ranked(pod, candidates=listed))) == [("web", "n3", "10")]
    bench.answer(pod, 201)
    (decision,) = bench.decisions
    assert [(each.node, each.place) for each in decision.candidates] == [("n1", 0), ("gone-0", 0), ("n3", 32)]


def test_pods_of_other_tenants_are_no_newcomers():
    cache = cache_with(a="blue blue", b="red")
    listed = saw("a", 10100, loss=101), saw("b", 9999, pods=1, loss=101)
    assert chosen(cache, *listed, pod=of("red"), scores=(TENANT, FREE)) == "a"
    # all pods count where the spread does not outweigh the other scores
    light = WeightedScore(TENANT.plugin, 100)
    assert chosen(cache, *listed, pod=of("red"), scores=(light, FREE)) == "b"


def test_plugin_that_cannot_count_is_a_failure_of_the_pod(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(TENANT.plugin, "counted_pods", fail)
    with pytest.raises(RecheckError, match="TenantSpread"):
        chosen(cache_with(a=""), saw("a", 1), pod=of("red"), scores=(TENANT, FREE))
