"""A cycle with the answers of extenders: which nodes count, what is said of the others, and points that do not move."""

from datetime import timedelta

import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.pod import Container, Pod, ResourceRequirements
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, ToExtend, nodes_to_extend, rank
from berth.framework.extending import EXTENDER, Extension, is_interested
from berth.framework.interface import Nomination
from berth.framework.preemption import eviction_candidates
from berth.framework.status import Code, Status
from harness.builders.objects import a_container, a_node, a_pod, first_attempt, pod_requesting
from harness.builders.profiles import default_profile

PROFILE = default_profile()


def cluster(*names: str) -> Snapshot:
    snapshot = Snapshot()
    for name in names:
        snapshot.set_node(a_node(name))
    return snapshot


def said(*left: str, asked: str = "abc", rejected=(), points=()) -> Extension:
    return Extension(
        asked=frozenset(asked), left=frozenset(left), rejected=dict(rejected), points={"http://x": dict(points)}
    )


def ranked(snapshot: Snapshot, extension: Extension | None, pod=None, **options):
    pod = pod or a_pod()
    return rank(pod, snapshot, PROFILE, attempt=first_attempt(pod), options=RankOptions(extension=extension, **options))


def rejection(code: Code, reason: str) -> Status:
    return Status(code, (reason,), EXTENDER)


def test_only_nodes_that_extenders_leave_and_that_pass_now_count():
    ranking = ranked(cluster("a", "b", "c", "new"), said("a", "b", "gone"))
    assert {each.node for each in ranking.candidates} == {"a", "b"}


def test_points_are_added_shown_and_no_part_of_the_loss():
    before = {each.node: each for each in ranked(cluster("a", "b"), said("a", "b")).candidates}
    ranking = ranked(cluster("a", "b"), said("a", "b", points={"b": 70, "elsewhere": 9}))
    assert [each.node for each in ranking.candidates] == ["b", "a"]
    for each in ranking.candidates:
        more = {"b": 70}.get(each.node, 0)
        assert (each.total, each.loss) == (before[each.node].total + more, before[each.node].loss)
        assert each.scores["http://x"] == more


def test_the_message_has_the_extenders_reasons():
    rejected = {
        "a": rejection(Code.UNSCHEDULABLE, "too small"),
        "b": rejection(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "too far"),
    }
    ranking = ranked(cluster("a", "b", "c"), said(rejected=rejected), may_preempt=False)
    assert ranking.message == "0/3 nodes are available: 1 too far, 1 too small."
    assert ranking.unschedulable_plugins == (EXTENDER,)
    assert {each.reason: each.resolvable for each in ranking.rejections} == {"too small": True, "too far": False}


def test_a_node_that_came_meanwhile_counts_only_where_that_is_asked_for():
    snapshot = cluster("a", "new")
    assert "1 extender(s) were not asked about the node(s)" in ranked(snapshot, said(asked="a")).message
    ranking = ranked(snapshot, said(asked="a"), unasked=True)
    assert [each.node for each in ranking.candidates] == ["new"]


def test_the_nodes_to_ask_about_are_those_that_pass_the_filters():
    snapshot = cluster("a", "b")
    assert nodes_to_extend(a_pod(), snapshot, PROFILE) == ToExtend(("a", "b"))
    assert nodes_to_extend(pod_requesting(cpu="1000"), snapshot, PROFILE) == ToExtend()
    assert nodes_to_extend(pod_requesting(cpu="junk"), snapshot, PROFILE) == ToExtend()
    assert nodes_to_extend(a_pod(), Snapshot(), PROFILE) == ToExtend()


@pytest.mark.parametrize(
    ("nodes", "is_final"),
    [
        pytest.param(["a"], True, id="left"),
        pytest.param(["b"], True, id="asked about"),
        pytest.param([], True, id="none"),
        pytest.param(["new"], False, id="not asked about"),
        pytest.param(["new", "a"], True, id="left, and another"),
    ],
)
def test_a_further_question_is_needed_only_about_other_nodes(nodes, is_final):
    assert said("a", asked="ab").is_final_for(nodes) is is_final


@pytest.mark.parametrize(
    ("field", "resources", "interested"),
    [
        pytest.param("containers", ResourceRequirements(requests={"a/b": "1"}), True, id="a request"),
        pytest.param("containers", ResourceRequirements(limits={"a/b": "1"}), True, id="a limit"),
        pytest.param("init_containers", ResourceRequirements(limits={"a/b": "1"}), True, id="an init container"),
        pytest.param("containers", ResourceRequirements(requests={"a/c": "1"}), False, id="another"),
        pytest.param("containers", None, False, id="nothing"),
    ],
)
def test_an_extender_is_interested_in_pods_with_its_resources(field, resources, interested):
    extender = ExtenderConfiguration(url_prefix="", name="", managed_resources=frozenset({"a/b"}))
    pod = a_pod()
    spec = {field: [Container(name="c", resources=resources)]}
    made = type(pod)(metadata=pod.metadata, spec=type(pod.spec)(**spec))
    assert is_interested(extender, made) is interested
    assert is_interested(ExtenderConfiguration(url_prefix="", name="", timeout=timedelta(1)), made)


def full(**priorities: int) -> Snapshot:
    """Nodes of one CPU by name, each with a pod of one CPU and this priority."""
    snapshot = Snapshot()
    for name, priority in priorities.items():
        snapshot.set_node(a_node(name, cpu="1"))
        snapshot.place(a_pod(f"low-{name}", priority=priority, containers=[a_container(cpu="1")]), name)
    return snapshot


def important() -> Pod:
    return a_pod("vip", priority=1000, containers=[a_container(cpu="1")])


def evictions_in(snapshot: Snapshot, proposed: str = "") -> list[Nomination]:
    return eviction_candidates(important(), proposed, snapshot, PROFILE, ())


def uid_of(name: str) -> str:
    return a_pod(name).uid


def test_extenders_are_asked_about_every_candidate_the_best_first():
    found = evictions_in(full(a=3, b=1, c=2, d=2000))
    assert found == [Nomination(name, (uid_of(f"low-{name}"),)) for name in "bca"]


@pytest.mark.parametrize("proposed", list("abc"))
def test_the_proposed_node_comes_first_among_equals(proposed):
    best, *_ = evictions_in(full(a=1, b=1, c=1, d=2), proposed)
    assert best.node == proposed


def test_a_worse_proposed_node_stays_in_its_place():
    assert [each.node for each in evictions_in(full(a=1, b=3, c=2), "b")] == ["a", "c", "b"]


def test_a_pod_that_may_not_preempt_has_no_candidates():
    never = a_pod("vip", priority=1000, containers=[a_container(cpu="1")], preemption_policy="Never")
    assert eviction_candidates(never, "a", full(a=1), PROFILE, ()) == []
