"""Pods placed one by one: independently, or each on the Snapshot after the earlier ones."""

import dataclasses

import msgspec
import pytest

from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import ClaimSource, PodSchedulingGate, PodStatus, Toleration, Volume
from berth.api.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from berth.api.workloads import BudgetStatus, PodDisruptionBudget, SelectorSpec
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import ReservePlugin, ScorePlugin
from berth.framework.status import Status
from berth.plugins.noderesources.fit import FACTORY as FIT
from berth.plugins.podtopologyspread.plugin import FACTORY as SPREAD
from berth.plugins.schedulinggates import SchedulingGates
from berth_cli.simulate.engine import NodeRejection, PodReport, Simulation
from harness.builders.objects import a_container, a_node, a_pod
from harness.builders.profiles import default_profile, profile_of

FULL = "0/1 nodes are available: 1 Insufficient cpu."


def simulation(*nodes, placed=(), profile=None):
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    for pod, node in placed:
        snapshot.place(pod, node)
    return Simulation(snapshot=snapshot, profiles={"berth": profile or default_profile()})


def wanting(name, cpu, *, labels=None, created=None, status=None, **spec):
    pod = a_pod(name, labels=labels, containers=[a_container(cpu=cpu)], **spec)
    metadata = msgspec.structs.replace(pod.metadata, creation_timestamp=created)
    return msgspec.structs.replace(pod, metadata=metadata, status=status or PodStatus())


def places(decided):
    return {one.pod.removeprefix("default/"): one.bound for one in decided}


def test_independently_sees_the_same_state():
    asked = simulation(a_node("n1", cpu="1"))
    decided = asked.independently([wanting("a", "1"), wanting("b", "1")])
    assert places(decided) == {"a": "n1", "b": "n1"}


def test_a_pod_with_more_than_a_cycle_can_take_is_refused_with_the_reason():
    asked = simulation(a_node("n1"))
    [one] = asked.independently([wanting("huge", "1", tolerations=[Toleration()] * 1001)])
    reason = "the pod has more than a scheduling cycle can take: 1001 tolerations (at most 1000)"
    assert (one.bound, one.message, asked.failures) == (None, reason, {"default/huge": reason})


def test_in_queue_order_each_sees_the_earlier():
    first, second = simulation(a_node("n1", cpu="1")).in_queue_order([wanting("a", "1"), wanting("b", "1")])
    assert first.bound == "n1"
    message = f"{FULL} preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    assert (second.bound, second.message) == (None, message)


def test_priority_goes_first_then_age_then_the_order_of_the_files():
    pods = [
        wanting("new", "1"),
        wanting("newer", "1"),
        wanting("young", "1", created="2026-11-21T08:00:00Z"),
        wanting("old", "1", created="2026-11-21T07:00:00Z"),
        wanting("urgent", "1", priority=1000),
    ]
    decided = simulation(a_node("n1", cpu="64")).in_queue_order(pods)
    assert list(places(decided)) == ["urgent", "old", "young", "new", "newer"]


def test_a_single_feasible_node_is_not_scored():
    (line,) = simulation(a_node("n1"), a_node("n2", unschedulable=True)).independently([a_pod()])
    assert line == PodReport(
        pod="default/web",
        profile="berth",
        bound="n1",
        feasible=["n1"],
        rejections={"n2": NodeRejection(plugin="NodeUnschedulable", reasons=("node(s) were unschedulable",))},
    )


def test_scores_are_weighted_and_add_up_to_the_totals():
    (line,) = simulation(a_node("n1"), a_node("n2", cpu="2")).independently([wanting("a", "1")])
    assert line.feasible == ["n1", "n2"]
    assert line.scores["TaintToleration"] == {"n1": 300, "n2": 300}  # 100 x weight 3
    assert line.totals == {node: sum(points[node] for points in line.scores.values()) for node in ("n1", "n2")}


def test_a_gated_pod_is_not_placed_and_uses_no_resources():
    gated = wanting("gated", "1", priority=10, scheduling_gates=[PodSchedulingGate(name="quota")])
    profile = default_profile()
    assert any(isinstance(plugin, SchedulingGates) for plugin in profile.pre_enqueues)
    first, second = simulation(a_node("n1", cpu="1"), profile=profile).in_queue_order([wanting("a", "1"), gated])
    assert first == PodReport(
        pod="default/gated",
        profile="berth",
        message="Scheduling is blocked due to non-empty scheduling gates",
    )
    assert second.bound == "n1"


def test_without_nodes_there_is_a_sentence():
    (line,) = simulation().independently([a_pod()])
    assert (line.bound, line.message, line.rejections) == (None, "no nodes available to schedule pods", {})


def test_a_line_has_the_documented_members_and_no_others():
    (line,) = simulation(a_node("n1")).independently([a_pod()])
    assert list(msgspec.json.decode(msgspec.json.encode(line))) == [
        "pod",
        "profile",
        "bound",
        "feasible",
        "scores",
        "totals",
        "rejections",
        "message",
        "nominated",
        "victims",
    ]


def full_node(*, nominated=(), budget=None):
    """One node of 2 cpu, filled by two pods of priority 0."""
    low = [wanting(name, "1", labels={"app": "low"}) for name in ("low-b", "low-a")]
    made = simulation(a_node("n1", cpu="2"), placed=[(pod, "n1") for pod in low])
    for pod in nominated:
        made.snapshot.nominate(pod, "n1")
    if budget is not None:
        made.snapshot.objects(PodDisruptionBudget).set("budget", budget)
    return made


def test_victims_are_listed_and_removed_for_later_pods():
    urgent, late = (
        wanting("urgent", "1500m", priority=9),
        wanting("late", "500m"),
    )
    first, second = full_node().in_queue_order([late, urgent])
    assert (first.bound, first.nominated, first.victims) == (None, "n1", ["low-a", "low-b"])
    assert first.message == FULL
    assert second.bound == "n1"  # 2 cpu less the 1500m of the nominated pod


def test_a_nominated_node_is_kept_from_pods_of_lower_priority():
    urgent, late = wanting("urgent", "1500m", priority=9), wanting("late", "1")
    _, second = full_node().in_queue_order([late, urgent])
    assert (second.bound, second.nominated) == (None, None)


def test_independent_pods_do_not_see_each_others_victims():
    made = full_node()
    pods = [wanting("urgent", "2", priority=9), wanting("usual", "2", priority=5)]
    assert [line.victims for line in made.independently(pods)] == [["low-a", "low-b"]] * 2
    assert made.snapshot.pods_on("n1") == 2


def test_a_budget_allows_fewer_evictions_after_each():
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="budget", namespace="default", uid="budget"),
        spec=SelectorSpec(selector=LabelSelector(match_labels={"app": "low"})),
        status=BudgetStatus(disruptions_allowed=1),
    )
    made = full_node(budget=budget)
    (line,) = made.in_queue_order([wanting("urgent", "1", priority=9)])
    assert len(line.victims) == 1
    (left,) = made.snapshot.objects(PodDisruptionBudget).in_namespace("default")
    assert left.status.disruptions_allowed == 0


def test_a_nomination_that_is_no_longer_needed_ends():
    kept = wanting("kept", "4", status=PodStatus(nominated_node_name="n1"))
    made = full_node()
    (line,) = made.in_queue_order([kept])
    assert (line.nominated, list(made.snapshot.nominations())) == (None, [])


def test_preemption_ends_nominations_of_lower_priority_on_the_node():
    lower, higher = wanting("lower", "1"), wanting("higher", "500m", priority=100)
    made = full_node(nominated=[lower, higher])
    list(made.in_queue_order([wanting("urgent", "1500m", priority=9)]))
    assert {one.pod.metadata.name for one in made.snapshot.nominations()} == {"higher", "urgent"}


def test_a_nominated_pod_can_use_its_own_nomination():
    kept = wanting("kept", "2", status=PodStatus(nominated_node_name="n1"))
    made = simulation(a_node("n1", cpu="2"))
    assert places(made.in_queue_order([wanting("first", "1"), kept])) == {"first": None, "kept": "n1"}
    assert list(made.snapshot.nominations()) == []


def test_where_the_nominated_node_passes_no_other_is_tried():
    sure = wanting("sure", "1", status=PodStatus(nominated_node_name="n1"))
    made = simulation(a_node("n1"), a_node("n2"))
    first, second = made.independently([sure, wanting("other", "1")])
    assert (first.feasible, second.feasible) == (["n1"], ["n1", "n2"])
    assert made.nominated_first == {"default/sure"}


class Failing(ScorePlugin):
    name = "Failing"

    def score(self, state, pod, node):
        raise ZeroDivisionError("by zero")


def test_a_plugin_failure_is_reported_and_the_other_pods_continue():
    made = simulation(a_node("n1"), a_node("n2"), profile=profile_of(Failing()))
    first, second = made.independently([a_pod("a"), a_pod("b")])
    assert list(made.failures) == ["default/a", "default/b"]
    assert first.message == made.failures["default/a"]
    assert "Failing" in (second.message or "")
    assert (first.feasible, first.scores, first.rejections) == ([], {}, {})


def test_equal_pods_are_spread_one_after_another():
    nodes = [a_node(f"n{number}", labels={"kubernetes.io/hostname": f"n{number}"}) for number in range(4)]
    made = simulation(*nodes, profile=profile_of(FIT.build(None), SPREAD.build(None)))
    decided = list(made.in_queue_order(wanting(f"p{number}", "100m") for number in range(12)))
    assert sorted(made.snapshot.pods_on(f"n{number}") for number in range(4)) == [3, 3, 3, 3]
    assert all(one.bound for one in decided)


class Refusing(ReservePlugin):
    """Rejects the node, and records the calls of Unreserve."""

    name = "Refusing"

    def __init__(self, status):
        self.status, self.unreserved = status, []

    def reserve(self, state, pod, node):
        return self.status

    def unreserve(self, state, pod, node):
        self.unreserved.append((pod.metadata.name, node))


@pytest.mark.parametrize(
    ("status", "fails"),
    [(Status.unschedulable("not now"), False), (Status.error("broken"), True)],
    ids=["a rejection", "an error"],
)
def test_a_node_that_cannot_be_reserved_is_not_taken(status, fails):
    plugin = Refusing(status)
    made = simulation(a_node("n1"), profile=dataclasses.replace(default_profile(), reserves=(plugin,)))
    (line,) = made.in_queue_order([a_pod()])
    assert (line.bound, line.feasible, bool(made.failures)) == (None, ["n1"], fails)
    assert status.reasons[0] in (line.message or "")
    assert made.snapshot.pods_on("n1") == 0
    assert plugin.unreserved == ([] if fails else [("web", "n1")])


def claiming(number):
    volume = Volume(name="v", persistent_volume_claim=ClaimSource(claim_name=f"claim-{number}"))
    return a_pod(f"p{number}", volumes=[volume])


def test_a_volume_of_an_earlier_pod_is_not_available_to_the_next():
    made = simulation(a_node("n1"))
    storage_class = {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"}
    waits = msgspec.convert({**storage_class, "volumeBindingMode": "WaitForFirstConsumer"}, StorageClass)
    made.snapshot.objects(StorageClass).set("local", waits)
    size = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]}
    volume = {
        "metadata": {"name": "disk"},
        "spec": {**size, "capacity": {"storage": "1Gi"}},
        "status": {"phase": "Available"},
    }
    made.snapshot.objects(PersistentVolume).set("disk", msgspec.convert(volume, PersistentVolume))
    for number in (1, 2):
        metadata = {"name": f"claim-{number}", "namespace": "default", "uid": f"claim-{number}"}
        claim = {"metadata": metadata, "spec": {**size, "resources": {"requests": {"storage": "1Gi"}}}}
        made.snapshot.objects(PersistentVolumeClaim).set(metadata["uid"], msgspec.convert(claim, PersistentVolumeClaim))
    assert places(made.independently([claiming(1), claiming(2)])) == {"p1": "n1", "p2": "n1"}
    first, second = made.in_queue_order([claiming(1), claiming(2)])
    assert (first.bound, second.bound) == ("n1", None)
    assert "node(s) didn't find available persistent volumes to bind" in (second.message or "")
