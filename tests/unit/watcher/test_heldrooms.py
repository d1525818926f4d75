"""Pods that only a waiting pod keeps out are unschedulable: the end of the wait tries them again."""

import msgspec
import pytest

from berth.api.kinds import WATCHED_KINDS
from berth.api.meta import KubernetesObject, LabelSelector, ObjectMeta
from berth.api.node import Node, NodeCondition, Taint
from berth.api.pod import (
    Affinity,
    ClaimSource,
    CSISource,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodStatus,
    TopologySpreadConstraint,
    Volume,
)
from berth.api.volumes import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from berth.messages.attempts import Decision, Outcome, Positions, Reason
from berth_watcher.events import FoundDecision, FoundInFlight, StreamsRead
from harness.builders import objects
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_namespace, a_node, a_pod, attempt

KINDS = tuple(kind.name for kind in WATCHED_KINDS)
NOT_READY = NodeCondition(type="Ready", status="False")


def apart_from(topology_key: str, **labels: str) -> Affinity:
    selector = LabelSelector(match_labels=labels or None)
    term = PodAffinityTerm(topology_key=topology_key, label_selector=selector)
    return Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[term]))


APART = apart_from("zone")
ENDS = [Outcome.UNSCHEDULABLE, Outcome.ERROR, Outcome.CONFLICT, Outcome.GONE]


def rejected(watcher: WatcherUnderTest, name: str = "second", decisions: int | None = None) -> None:
    """A ranking that had read everything rejected the pod for lack of resources."""
    read = watcher.decisions if decisions is None else decisions
    positions = Positions(cluster=watcher.sequence, decisions=read)
    watcher.decide(name, Outcome.UNSCHEDULABLE, positions=positions, blockers=["NodeResourcesFit"])


@pytest.fixture
def watcher() -> WatcherUnderTest:
    """``first`` waits on n1 and fills it; ``second`` has been rejected for it."""
    watcher = WatcherUnderTest().lead(a_node("n1"), a_node("n2", cpu="0"), a_pod("first", cpu="3"))
    watcher.decide("first", Outcome.WAITING, node="n1")
    watcher.show(a_pod("second", cpu="2"))
    rejected(watcher)
    watcher.advance(2)
    assert watcher.stage("second") == "unschedulable"
    return watcher


def tries(watcher: WatcherUnderTest, name: str = "second") -> int:
    return watcher.pods_published.count(name)


def test_pod_kept_out_by_a_waiting_pod_is_not_tried_every_second(watcher):
    for number in range(1, 30):
        watcher.advance(10)
        watcher.decide("first", Outcome.WAITING, node="n1", repeat=number)
    assert tries(watcher) == 1


@pytest.mark.parametrize("outcome", ENDS)
def test_wait_that_ends_without_a_binding_tries_it_again_on_a_view_that_shows_it(watcher, outcome):
    watcher.decide("first", outcome, node="n1", blockers=["VolumeBinding"])
    assert tries(watcher) == 2
    assert watcher.published[-1].message.after.decisions == watcher.decisions or outcome is Outcome.CONFLICT


def test_waiting_pod_that_is_deleted_tries_it_again_once_the_binder_has_let_it_go(watcher):
    watcher.delete(a_pod("first", cpu="3", version=9))
    assert tries(watcher) == 1
    watcher.decide("first", Outcome.GONE)
    assert tries(watcher) == 2


def test_pod_deleted_before_its_wait_is_received_counts_too():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("first", cpu="3"), a_pod("second", cpu="2"))
    watcher.delete(a_pod("first", cpu="3", version=9))
    watcher.decide("first", Outcome.WAITING, node="n1")
    rejected(watcher)
    watcher.decide("first", Outcome.GONE)
    assert tries(watcher) == 2
    assert len(watcher.core._held_rooms) == 0


def test_pod_deleted_while_its_attempt_is_under_way_is_forgotten_without_a_decision():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("first", cpu="3"), a_pod("second", cpu="3"))
    watcher.delete(a_pod("first", cpu="3", version=9))
    watcher.advance(20)
    watcher.delete(a_pod("second", cpu="3", version=10))
    watcher.advance(11)
    assert len(watcher.core._held_rooms) == 1
    watcher.advance(20)
    assert len(watcher.core._held_rooms) == 0


def test_binding_to_another_node_tries_it_again(watcher):
    watcher.decide("first", Outcome.BOUND, node="n2")
    assert tries(watcher) == 2


def test_wait_that_moves_to_another_node_tries_it_again(watcher):
    watcher.decide("first", Outcome.WAITING, node="n2")
    assert tries(watcher) == 2


def test_pod_bound_by_another_client_elsewhere_tries_it_again(watcher):
    watcher.show(a_pod("first", cpu="3", node="n2", version=9))
    assert tries(watcher) == 2


def test_pod_bound_and_deleted_before_the_watch_shows_it_bound_tries_it_again(watcher):
    watcher.decide("first", Outcome.BOUND, node="n1")
    assert tries(watcher) == 1
    watcher.delete(a_pod("first", cpu="3", version=9))
    assert tries(watcher) == 2


def test_pod_bound_and_finished_before_the_watch_shows_it_bound_tries_it_again(watcher):
    watcher.decide("first", Outcome.BOUND, node="n1")
    watcher.show(a_pod("first", cpu="3", node="n1", phase="Succeeded", version=9))
    assert tries(watcher) == 2


@pytest.mark.parametrize("outcome", [Outcome.WAITING, Outcome.GONE])
def test_decision_on_what_is_no_attempt_changes_nothing(watcher, outcome):
    watcher.decide("first", outcome, node="n2", attempt="nonsense")
    assert tries(watcher) == 1
    watcher.decide("first", Outcome.GONE, node="n1")
    assert tries(watcher) == 2


def test_binding_to_its_node_is_no_event_of_the_room(watcher):
    watcher.decide("first", Outcome.BOUND, node="n1")
    watcher.show(a_pod("first", cpu="3", node="n1", version=9))
    watcher.advance(60)
    assert tries(watcher) == 1


def test_end_of_the_wait_that_the_ranking_missed_counts():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("first", cpu="3"), a_pod("second", cpu="2"))
    watcher.decide("first", Outcome.WAITING, node="n1")
    read = watcher.decisions
    watcher.decide("first", Outcome.ERROR, node="n1")
    rejected(watcher, decisions=read)
    assert tries(watcher) == 2


def test_end_of_the_wait_that_the_ranking_has_seen_does_not_count():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("first", cpu="3"), a_pod("second", cpu="2"))
    watcher.decide("first", Outcome.WAITING, node="n1")
    watcher.decide("first", Outcome.GONE, node="n1")
    rejected(watcher)
    watcher.advance(20)
    assert tries(watcher) == 1


def test_end_of_its_own_wait_does_not_try_a_pod_again():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("first", cpu="3"))
    watcher.decide("first", Outcome.WAITING, node="n1")
    rejected(watcher, "first", decisions=0)
    watcher.advance(20)
    assert tries(watcher, "first") == 1


def test_pod_that_gave_up_its_room_to_another_comes_after_it(watcher):
    """An event that may help ends neither its back-off early nor the wait for one."""
    watcher.decide("first", Outcome.UNSCHEDULABLE, node="n1", reason=Reason.PREEMPTED)
    watcher.show(a_node("n3", cpu="4"))
    watcher.advance(0.9)
    assert tries(watcher, "first") == 1
    watcher.advance(0.1)
    assert tries(watcher, "first") == 2


def test_decision_on_an_earlier_attempt_ends_no_wait(watcher):
    current = watcher.attempt_of("first")
    watcher.decide("first", Outcome.WAITING, node="n1", attempt=current.replace(".1", ".2"), epoch=1)
    watcher.decide("first", Outcome.ERROR, node="n1", attempt=current, epoch=1)
    assert tries(watcher) == 1


def test_new_leader_knows_who_waits():
    waits = Decision(
        attempt=str(attempt("first", 6, 1)),
        epoch=1,
        outcome=Outcome.WAITING,
        profile="berth",
        namespace="default",
        pod="first",
        uid="uid-first",
        node="n1",
    )
    streams = StreamsRead(
        in_flight={"uid-first": FoundInFlight(attempt=attempt("first", 6, 1), pod=a_pod("first", cpu="3"), failures=0)},
        decisions={"uid-first": FoundDecision(decision=waits, time=EPOCH, age_seconds=0.0)},
    )
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("first", cpu="3"), a_pod("second", cpu="2"), streams=streams)
    rejected(watcher)
    watcher.advance(2)
    watcher.decide("first", Outcome.GONE, attempt=waits.attempt)
    assert tries(watcher) == 2


# A preemptor whose nominated node becomes impossible.


@pytest.fixture
def preempting() -> WatcherUnderTest:
    """``vip`` is nominated to n1, where its victim terminates for longer than the test lasts."""
    return preempting_with(a_pod("vip", cpu="4", priority=10))


def preempting_with(vip: Pod) -> WatcherUnderTest:
    placed = (a_pod("victim", node="n1", cpu="3"), a_pod("there", node="n1", cpu="0"), a_pod("elsewhere", node="n2"))
    watcher = WatcherUnderTest(kinds=KINDS).lead(a_node("n1"), a_node("n2", cpu="2"), *placed, vip)
    nominated = PodStatus(nominated_node_name="n1")
    metadata = msgspec.structs.replace(vip.metadata, resource_version="2")
    watcher.show(msgspec.structs.replace(vip, metadata=metadata, status=nominated))
    positions = Positions(cluster=watcher.sequence, decisions=watcher.decisions)
    watcher.decide("vip", Outcome.PREEMPTING, node="n1", positions=positions, blockers=["NodeResourcesFit"])
    watcher.advance(2)
    assert watcher.stage("vip") == "unschedulable"
    return watcher


IMPOSSIBLE = {
    "deleted": lambda watcher: watcher.delete(a_node("n1", version=9)),
    "cordoned": lambda watcher: watcher.show(changed_node(unschedulable=True)),
    "tainted": lambda watcher: watcher.show(changed_node(taints=[Taint(key="gpu", effect="NoSchedule")])),
    "with other labels": lambda watcher: watcher.show(changed_node(labels={"zone": "b"})),
    "smaller": lambda watcher: watcher.show(changed_node(cpu="2")),
    "with another condition": lambda watcher: watcher.show(changed_status(conditions=[NOT_READY])),
    "with fewer features": lambda watcher: watcher.show(changed_status(declared_features=["other"])),
    "filled by a pod that grows": lambda watcher: watcher.show(a_pod("there", node="n1", cpu="2", version=9)),
    "taken by a pod that waits": lambda watcher: takes(watcher, "n1"),
    "nominated by another scheduler": lambda watcher: watcher.show(
        a_pod("theirs", cpu="4", priority=10, nominated="n1", scheduler="other", version=9)
    ),
    "kept off by a pod of its domain": lambda watcher: watcher.show(
        with_spec(a_pod("other", node="n2"), affinity=APART)
    ),
    "of another namespace's anti-affinity": lambda watcher: watcher.show(a_namespace("default")),
    "taken by another pod": lambda watcher: watcher.show(a_pod("other", node="n1", cpu="4", priority=20, version=9)),
    "no longer nominated": lambda watcher: watcher.show(a_pod("vip", cpu="4", priority=10, version=9)),
    "nominated elsewhere": lambda watcher: watcher.show(a_pod("vip", cpu="4", priority=10, nominated="n2", version=9)),
}


def changed_node(**changes: object) -> Node:
    return objects.a_node("n1", version=9, **{"cpu": "4", **changes})


def changed_status(**changes: object) -> Node:
    node = changed_node()
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, **changes))


def with_spec(pod: Pod, **spec: object) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))


def takes(watcher: WatcherUnderTest, node: str) -> None:
    """A pod waits on the node for its volume."""
    watcher.show(a_pod("waits", cpu="4", priority=20))
    watcher.decide("waits", Outcome.WAITING, node=node)


@pytest.mark.parametrize("event", IMPOSSIBLE)
def test_preemptor_looks_elsewhere_at_once(preempting, event):
    IMPOSSIBLE[event](preempting)
    assert tries(preempting, "vip") == 2


OF_OTHERS = {
    "another node deleted": lambda watcher: watcher.delete(a_node("n2", version=9)),
    "another node cordoned": lambda watcher: watcher.show(objects.a_node("n2", cpu="2", version=9, unschedulable=True)),
    "a pod on another node": lambda watcher: watcher.show(a_pod("other", node="n2", cpu="4", version=9)),
    "a pod that grows on another node": lambda watcher: watcher.show(a_pod("elsewhere", node="n2", cpu="2", version=9)),
    "a pod that waits on another node": lambda watcher: takes(watcher, "n2"),
    "a victim that terminates": lambda watcher: watcher.show(
        a_pod("victim", node="n1", cpu="3", deleted=True, version=9)
    ),
    "a terminating victim that grows": lambda watcher: watcher.show(
        a_pod("victim", node="n1", cpu="4", deleted=True, version=9)
    ),
    "an equal that berth nominates": lambda watcher: watcher.show(
        a_pod("equal", cpu="1", priority=10, nominated="n1", version=9)
    ),
    "a less important pod of another scheduler": lambda watcher: watcher.show(
        a_pod("theirs", cpu="4", priority=9, nominated="n1", scheduler="other", version=9)
    ),
    "a pod apart from others on its node": lambda watcher: watcher.show(
        with_spec(a_pod("other", node="n2", version=9), affinity=apart_from("kubernetes.io/hostname"))
    ),
    "a pod apart from other pods in its domain": lambda watcher: watcher.show(
        with_spec(a_pod("other", node="n2", version=9), affinity=apart_from("zone", app="other"))
    ),
}


@pytest.mark.parametrize("event", OF_OTHERS)
def test_events_of_other_nodes_do_not_try_a_preemptor_again(preempting, event):
    OF_OTHERS[event](preempting)
    assert tries(preempting, "vip") == 1


def test_event_that_the_preemptors_ranking_missed_tries_it_again():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("victim", node="n1", cpu="4"), a_pod("vip", cpu="4"))
    positions = Positions(cluster=watcher.sequence)
    watcher.delete(a_node("n1", version=9))
    watcher.decide("vip", Outcome.PREEMPTING, node="n1", positions=positions, blockers=["NodeResourcesFit"])
    assert tries(watcher, "vip") == 2


@pytest.mark.parametrize("shown_first", [True, False], ids=["shown before the answer", "shown after it"])
@pytest.mark.parametrize(("had_read", "expected"), [(1, 1), (0, 2)], ids=["counted", "missed"])
def test_pod_whose_binding_the_ranking_counted_does_not_try_a_preemptor_again(shown_first, had_read, expected):
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("low", cpu="4"))
    watcher.decide("low", Outcome.BOUND, node="n1")
    watcher.show(a_pod("vip", cpu="4", priority=10))
    positions = Positions(cluster=watcher.sequence, decisions=had_read)
    low = a_pod("low", node="n1", cpu="4", version=9)
    if shown_first:
        watcher.show(low)
    watcher.decide("vip", Outcome.PREEMPTING, node="n1", positions=positions, blockers=["NodeResourcesFit"])
    watcher.advance(2)
    if not shown_first:
        watcher.show(low)
    assert tries(watcher, "vip") == expected


SPREAD = [TopologySpreadConstraint(max_skew=1, topology_key="zone", when_unsatisfiable="DoNotSchedule")]
TOGETHER = Affinity(pod_affinity=APART.pod_anti_affinity)
CLAIM = [Volume(name="data", persistent_volume_claim=ClaimSource(claim_name="data"))]
CSI = [Volume(name="data", csi=CSISource(driver="disk.example.com"))]


def named(kind: type, name: str, **more: object) -> KubernetesObject:
    return kind(metadata=ObjectMeta(name=name, uid=f"uid-{name}", resource_version="9", **more))


FAR_AWAY = {
    "anti-affinity: a pod is placed": ({"affinity": APART}, a_pod("other", node="n2", version=9)),
    "anti-affinity: a pod has other labels": (
        {"affinity": APART},
        a_pod("elsewhere", node="n2", labels={"app": "x"}, version=9),
    ),
    "affinity: a pod finishes": ({"affinity": TOGETHER}, a_pod("elsewhere", node="n2", phase="Failed", version=9)),
    "spread: a pod terminates": (
        {"topology_spread_constraints": SPREAD},
        a_pod("elsewhere", node="n2", deleted=True, version=9),
    ),
    "spread: an empty domain": ({"topology_spread_constraints": SPREAD}, a_node("n3", cpu="0", version=9)),
    "claim: it changes": ({"volumes": CLAIM}, named(PersistentVolumeClaim, "data", namespace="default")),
    "claim: a volume changes": ({"volumes": CLAIM}, named(PersistentVolume, "v")),
    "claim: a class changes": ({"volumes": CLAIM}, named(StorageClass, "fast")),
    "inline volume: the node's limits change": ({"volumes": CSI}, named(CSINode, "n1")),
}


@pytest.mark.parametrize("case", FAR_AWAY)
def test_preemptor_is_tried_again_for_what_its_node_depends_on(case):
    spec, thing = FAR_AWAY[case]
    watcher = preempting_with(with_spec(a_pod("vip", cpu="4", priority=10), **spec))
    watcher.show(thing)
    assert tries(watcher, "vip") == 2
    others = preempting_with(a_pod("vip", cpu="4", priority=10))
    others.show(thing)
    assert tries(others, "vip") == 1
