"""With what a touched node is compared: nodes as good in all that pods cannot change, and by the pods that matter."""

import pytest

from berth.api.messages import Candidate, Ranked, Reason
from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.framework.equivalencecache import WeightedScore
from berth.framework.profile import Profile
from berth.plugins.additional.freecapacity import FreeCapacity
from berth.plugins.additional.nodelabel import NodeScoreLabel, NodeScoreLabelArgs
from berth.plugins.additional.tenantspread import TenantSpread, TenantSpreadArgs
from berth.plugins.prioritysort import PrioritySort
from berth_binder.cache import Cache
from berth_binder.conflictcheck import NodeChoice
from harness.builders.objects import a_node, a_pod, first_attempt

LABEL = WeightedScore(NodeScoreLabel(NodeScoreLabelArgs()), 1)
FREE = WeightedScore(FreeCapacity(), 1)


def spread(weight: int) -> WeightedScore:
    return WeightedScore(TenantSpread(TenantSpreadArgs()), weight)


def profile(*scores: WeightedScore) -> Profile:
    return Profile(scheduler_name="berth", queue_sort=PrioritySort(), scores=scores)


def of(tenant: str, name: str = "new") -> Pod:
    return a_pod(name, labels={"tenant": tenant})


def cache_with(**pods: str) -> Cache:
    """Nodes by name, with a pod of each tenant that is named: ``a="red red blue"``."""
    cache = Cache()
    for node, tenants in pods.items():
        cache.snapshot.set_node(a_node(node))
        for number, tenant in enumerate(tenants.split()):
            cache.snapshot.place(of(tenant, f"{node}-{number}"), node)
    return cache


def chosen(cache: Cache, pod: Pod, with_profile: Profile, *candidates: Candidate, n: int = 1, feasible: int = 0):
    """What the binder takes of a scorer's list; a list is full with three."""
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


def test_an_untouched_node_that_everybody_avoids_is_not_taken_for_touched_ones():
    cache = cache_with(a="x x", b="x", hello="")
    listed = saw("a", 0, NodeScoreLabel=100), saw("b", 0, NodeScoreLabel=100), saw("hello", 0, NodeScoreLabel=0)
    # touched since: a by 2, b by 1; hello is not, but has fewer of the points that pods do not change
    assert chosen(cache, a_pod(), profile(LABEL, FREE), *listed, n=4) == "b"
    assert chosen(cache, a_pod(), profile(LABEL, FREE), *listed, n=1) is Reason.STALE


def test_the_avoided_node_is_taken_only_when_ranking_again_found_no_other_that_passes():
    cache = cache_with(hello="")
    listed = saw("gone", 0, NodeScoreLabel=100), saw("hello", 0, NodeScoreLabel=0)
    assert chosen(cache, a_pod(), profile(LABEL), *listed, n=3) is Reason.STALE
    assert chosen(cache, a_pod(), profile(LABEL), *listed, n=4) == "hello"
    assert chosen(cache, a_pod(), profile(LABEL), saw("hello", 0, NodeScoreLabel=0)) == "hello"


def test_points_that_pods_change_keep_no_untouched_node_from_being_taken():
    listed = saw("a", 0, FreeCapacity=100), saw("b", 0, FreeCapacity=90)
    assert chosen(cache_with(a="x", b=""), a_pod(), profile(FREE), *listed) == "b"


def test_pods_of_other_tenants_do_not_touch_a_node():
    cache = cache_with(a="blue blue", b="red")
    assert chosen(cache, of("red"), profile(spread(101), FREE), saw("a", 0), saw("b", 1)) == "a"


def test_the_node_with_the_fewest_pods_of_the_tenant_by_now_is_taken():
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
def test_when_a_node_beyond_the_list_has_fewer_the_pod_is_ranked_again(n, feasible, expected):
    cache = cache_with(a="red red", b="red red red", c="red red", d="red")
    listed = saw("a", 1), saw("b", 1), saw("c", 1)
    assert chosen(cache, of("red"), profile(spread(101), FREE), *listed, n=n, feasible=feasible) == expected


def test_a_spread_that_does_not_outweigh_the_other_scores_leaves_them_their_say():
    cache = cache_with(a="blue", b="red")
    # weight 100 is not more than 100 x 1: all pods count, so blue's pod touches a
    assert chosen(cache, of("red"), profile(spread(100), FREE), saw("a", 0), saw("b", 1)) == "b"
