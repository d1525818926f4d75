"""The result of the conflict check for a RANKED message, rule by rule (docs/protocol.md, 5)."""

import pytest

from berth.api.messages import Candidate, Outcome, Ranked, Reason
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition, PodSpec
from berth.api.subjects import Attempt
from berth.framework.profile import Profile, WeightedScore
from berth.kube.watch import Current, Upserted
from berth.plugins.additional.freecapacity import FreeCapacity
from berth.plugins.additional.nodelabel import NodeScoreLabel, NodeScoreLabelArgs
from berth.plugins.additional.tenantspread import TenantSpread, TenantSpreadArgs
from berth.plugins.prioritysort import PrioritySort
from berth_binder.cache import NODES, PODS, Cache
from berth_binder.conflictcheck import NodeChoice
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


# Untouched first.


def touch(bench: Bench, *nodes: str) -> None:
    for node in nodes:
        bench.show(make_pod(f"other-{node}", cpu="100m", node=node))


def test_untouched_node_is_taken_before_a_better_touched_one(bench):
    touch(bench, "n1")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == [("web", "n2", "10")]


def test_node_with_the_pods_that_the_scorer_counted_is_untouched(bench):
    touch(bench, "n1")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", counted=1))) == [("web", "n1", "10")]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_first_three_attempts_are_ranked_again_when_all_were_touched(bench, n):
    touch(bench, "n1", "n2", "n3")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", n=n))) == []
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.STALE)


def test_fourth_attempt_takes_a_touched_node(bench):
    touch(bench, "n1", "n2", "n3")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", n=4))) == [("web", "n1", "10")]


def test_touched_node_is_taken_when_fewer_than_k_are_feasible(bench):
    touch(bench, "n1", "n2")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", feasible=2))) == [("web", "n1", "10")]


@pytest.mark.parametrize(("n", "feasible"), [(4, 100), (1, 2)], ids=["fourth attempt", "no better list"])
def test_least_touched_node_is_taken(bench, n, feasible):
    touch(bench, "n1", "n2", "n3")
    bench.show(make_pod("second-on-n1", cpu="100m", node="n1"))
    pod = bench.show(make_pod("web"))
    # by count minus counted: n1 2, n2 1, n3 1
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", n=n, feasible=feasible))) == [("web", "n2", "10")]


def test_touched_nodes_are_taken_without_untouched_first(bench):
    touch(bench, "n1", "n2", "n3")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", untouched_first=False))) == [("web", "n1", "10")]


def test_assumed_pod_touches_a_node(bench):
    one, two = bench.show(make_pod("one")), bench.show(make_pod("two"))
    bench.take(ranked(one, "n1", "n2", "n3"))
    assert posts(bench.take(ranked(two, "n1", "n2", "n3"))) == [("two", "n2", "10")]


# What touches a node, and which nodes are as good as each other.


LABEL = WeightedScore(NodeScoreLabel(NodeScoreLabelArgs()), 1)
FREE = WeightedScore(FreeCapacity(), 1)


def spread(weight: int) -> WeightedScore:
    return WeightedScore(TenantSpread(TenantSpreadArgs()), weight)


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


def chosen(cache: Cache, pod: Pod, with_profile: Profile, *candidates: Candidate, n: int = 1, feasible: int = 0):
    """The node that the binder takes from a scorer's list; three nodes are a full list."""
    message = Ranked(
        attempt=str(first_attempt(pod)),
        profile="berth",
        pod=pod,
        candidates=list(candidates),
        feasible=feasible or len(candidates),
    )
    attempt = first_attempt(pod)
    found = NodeChoice(cache=cache, best=3).choose(
        message, Attempt(uid=attempt.uid, term=attempt.term, n=n), pod, with_profile
    )
    return found if isinstance(found, str) else found.reason


def saw(node: str, pods: int, **scores: int) -> Candidate:
    return Candidate(node=node, total=sum(scores.values()), scores=scores, pods=pods)


def test_avoided_node_is_not_taken_for_being_untouched():
    cache = cache_with(a="x x", b="x", hello="")
    listed = saw("a", 0, NodeScoreLabel=100), saw("b", 0, NodeScoreLabel=100), saw("hello", 0, NodeScoreLabel=0)
    # touched since: a by 2, b by 1; hello is not, but has fewer of the points that pods do not change
    assert chosen(cache, a_pod(), profile(LABEL, FREE), *listed, n=4) == "b"
    assert chosen(cache, a_pod(), profile(LABEL, FREE), *listed, n=1) is Reason.STALE


def test_avoided_node_is_taken_from_the_fourth_attempt_on():
    cache = cache_with(hello="")
    listed = saw("gone", 0, NodeScoreLabel=100), saw("hello", 0, NodeScoreLabel=0)
    assert chosen(cache, a_pod(), profile(LABEL), *listed, n=3) is Reason.STALE
    assert chosen(cache, a_pod(), profile(LABEL), *listed, n=4) == "hello"
    assert chosen(cache, a_pod(), profile(LABEL), saw("hello", 0, NodeScoreLabel=0)) == "hello"


def test_scores_that_pods_change_do_not_count_as_fixed_points():
    listed = saw("a", 0, FreeCapacity=100), saw("b", 0, FreeCapacity=90)
    assert chosen(cache_with(a="x", b=""), a_pod(), profile(FREE), *listed) == "b"


def test_pods_of_other_tenants_do_not_touch_a_node():
    cache = cache_with(a="blue blue", b="red")
    assert chosen(cache, of("red"), profile(spread(101), FREE), saw("a", 0), saw("b", 1)) == "a"


def test_node_with_the_fewest_pods_of_the_tenant_is_taken():
    cache = cache_with(a="red red", b="red", c="red red")
    # the scorer saw 0, 1 and 2; two came to a since
    assert chosen(cache, of("red"), profile(spread(101), FREE), saw("a", 0), saw("b", 1), saw("c", 2)) == "b"


@pytest.mark.parametrize(
    ("n", "feasible", "expected"),
    [
        pytest.param(1, 4, Reason.STALE, id="a better list can be had"),
        pytest.param(4, 4, "a", id="not again"),
        pytest.param(1, 2, "a", id="fewer nodes than a list holds"),
    ],
)
def test_pod_is_ranked_again_when_a_node_beyond_the_list_has_fewer(n, feasible, expected):
    cache = cache_with(a="red red", b="red red red", c="red red", d="red")
    listed = saw("a", 1), saw("b", 1), saw("c", 1)
    assert chosen(cache, of("red"), profile(spread(101), FREE), *listed, n=n, feasible=feasible) == expected


def test_all_pods_count_when_the_spread_does_not_outweigh_other_scores():
    cache = cache_with(a="blue", b="red")
    # weight 100 is not more than 100 x 1: all pods count, so blue's pod touches a
    assert chosen(cache, of("red"), profile(spread(100), FREE), saw("a", 0), saw("b", 1)) == "b"
