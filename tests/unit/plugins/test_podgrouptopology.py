"""Further pods of a bound group go where it runs (ADR 72)."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSchedulingGroup
from berth.api.podgroups import (
    GROUP_LABEL,
    PREFERRED_TOPOLOGY_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    CoschedulingPodGroup,
    SchedulingConstraints,
    TopologyConstraint,
    UpstreamPodGroup,
    UpstreamSpec,
)
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.events import Action, ClusterEvent, Resource
from berth.messages.subjects import Attempt, Term, Uid
from berth.plugins.podgrouptopology import NAME, PodGroupTopology, home_of
from harness.builders.groups import RACK, racks
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile

LABELS = {GROUP_LABEL: "gang"}
ATTEMPT = Attempt(uid=Uid("uid-further"), term=Term(1), n=1)


def member(name: str, cpu: str = "1", **given: object) -> Pod:
    return a_pod(name, labels=LABELS, cpu=cpu, **given)


def cluster(*used: list[int], annotation: str = TOPOLOGY_ANNOTATION) -> Snapshot:
    """Racks with a PodGroup that has two members on the first node of rack r1."""
    snapshot = racks(*used)
    metadata = ObjectMeta(name="gang", namespace="default", uid="uid-gang", annotations={annotation: RACK})
    snapshot.objects(CoschedulingPodGroup).set("uid-gang", CoschedulingPodGroup(metadata=metadata))
    for name in ("m1", "m2"):
        snapshot.place(member(name), "r1n0")
    return snapshot


def candidates(pod: Pod, snapshot: Snapshot) -> list[str]:
    ranking = rank(pod, snapshot, default_profile(), attempt=ATTEMPT)
    return [each.node for each in ranking.candidates] or [ranking.message]


def test_a_further_pod_goes_to_the_rack_of_its_group_where_others_are_emptier():
    snapshot = cluster([0, 0], [0, 2, 4])
    assert sorted(candidates(member("further"), snapshot)) == ["r1n0", "r1n1"]
    assert len(candidates(a_pod("other"), snapshot)) == 5


def test_a_further_pod_without_a_place_there_says_where_it_is_kept():
    snapshot = cluster([0], [2, 4])
    ranking = rank(member("further", cpu="3"), snapshot, default_profile(), attempt=ATTEMPT)
    assert ranking.message.startswith(
        "0/3 nodes are available: 1 node(s) outside rack r1 where the pod's group runs, 2 Insufficient cpu."
    )
    assert set(ranking.unschedulable_plugins) == {NAME, "NodeResourcesFit"}


def test_no_pod_is_evicted_outside_the_rack():
    snapshot = cluster([4], [2])
    ranking = rank(member("further", cpu="4", priority=100), snapshot, default_profile(), attempt=ATTEMPT)
    assert ranking.nomination is None or ranking.nomination.node == "r1n0"


def test_the_binder_asks_the_same_of_a_single_node():
    snapshot = cluster([0], [0])
    assert check(member("further"), "r1n0", snapshot, default_profile()).is_success
    refused = check(member("further"), "r0n0", snapshot, default_profile())
    assert (refused.plugin, refused.reasons) == (NAME, ("node(s) outside rack r1 where the pod's group runs",))


def test_the_rack_with_most_members_counts_and_those_that_end_do_not():
    snapshot = cluster([0], [0])
    for name in ("m3", "m4", "m5"):
        snapshot.place(member(name), "r0n0")
    assert candidates(member("further"), snapshot) == ["r0n0"]
    for name in ("m4", "m5"):
        going = member(name)
        metadata = msgspec.structs.replace(going.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        snapshot.place(msgspec.structs.replace(going, metadata=metadata), "r0n0")
    assert candidates(member("further"), snapshot) == ["r1n0"]


def test_members_on_a_node_without_the_label_are_said_and_decide_nothing():
    snapshot = cluster([0], [0])
    snapshot.set_node(a_node("bare", cpu="8"))
    for name in ("m3", "m4", "m5"):
        snapshot.place(member(name), "bare")
    going = member("m0")
    metadata = msgspec.structs.replace(going.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    snapshot.place(msgspec.structs.replace(going, metadata=metadata), "bare")
    assert candidates(member("further"), snapshot) == ["r1n0"]
    home = home_of(member("further"), snapshot)
    assert home is not None
    assert home.sentence == (
        "the pod is kept to rack r1, where its group runs; "
        "3 bound members are on nodes without the label rack: m3 on bare, ..."
    )


def test_without_a_member_in_a_rack_every_rack_will_do_and_no_node_without_the_label():
    snapshot = cluster([0], [0])
    snapshot.set_node(a_node("bare", cpu="8"))
    for name in ("m1", "m2"):
        snapshot.remove_pod(member(name).uid)
    assert sorted(candidates(member("further"), snapshot)) == ["r0n0", "r1n0"]
    assert check(member("further"), "bare", snapshot, default_profile()).reasons == (
        "node(s) without the label rack of the pod's group",
    )


def test_a_preferred_rack_is_taken_while_it_has_room():
    snapshot = cluster([0, 0], [0, 3], annotation=PREFERRED_TOPOLOGY_ANNOTATION)
    assert sorted(candidates(member("further"), snapshot)) == ["r1n0", "r1n1"]
    assert sorted(candidates(member("further", cpu="3"), snapshot)) == ["r0n0", "r0n1"]
    assert check(member("further"), "r0n0", snapshot, default_profile()).is_success


def test_upstreams_groups_are_kept_together_too():
    snapshot = racks([0, 0], [0])
    spec = UpstreamSpec(scheduling_constraints=SchedulingConstraints(topology=[TopologyConstraint(key=RACK)]))
    metadata = ObjectMeta(name="gang", namespace="default", uid="uid-gang")
    snapshot.objects(UpstreamPodGroup).set("uid-gang", UpstreamPodGroup(metadata=metadata, spec=spec))

    def of_field(name: str) -> Pod:
        pod = a_pod(name)
        group = PodSchedulingGroup(pod_group_name="gang")
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_group=group))

    snapshot.place(of_field("m1"), "r1n0")
    assert candidates(of_field("further"), snapshot) == ["r1n0"]


def test_the_members_of_a_copy_move_apart_from_the_original():
    snapshot = cluster([0], [0])
    copy = snapshot.copied()
    for name in ("m3", "m4", "m5"):
        copy.place(member(name), "r0n0")
    assert candidates(member("further"), snapshot) == ["r1n0"]
    assert candidates(member("further"), copy) == ["r0n0"]


@pytest.mark.parametrize(
    ("resource", "action", "old", "helps"),
    [
        (Resource.POD, Action.DELETE, member("m1"), True),
        (Resource.POD, Action.DELETE, a_pod("other"), False),
        (
            Resource.POD_GROUP,
            Action.UPDATE,
            CoschedulingPodGroup(metadata=ObjectMeta(name="gang", namespace="default")),
            True,
        ),
        (
            Resource.POD_GROUP,
            Action.UPDATE,
            CoschedulingPodGroup(metadata=ObjectMeta(name="gang", namespace="x")),
            False,
        ),
        (Resource.NODE, Action.UPDATE_NODE_LABEL, a_node("n1"), True),
    ],
    ids=["its member is gone", "another pod is gone", "its group", "another group", "a label"],
)
def test_what_moves_the_group_helps(resource, action, old, helps):
    happened = ClusterEvent(resource, action)
    hints = [hint for hint in PodGroupTopology().events() if hint.event.matches(happened)]
    assert any(hint.hint is None or hint.hint(member("further"), old, None) for hint in hints) is helps


def test_a_further_pod_evicts_no_member_of_its_group():
    further = member("further", cpu="2", priority=100)
    snapshot = cluster([], [0], annotation="")
    snapshot.place(a_pod("other", cpu="2"), "r1n0")
    nomination = rank(further, snapshot, default_profile(), attempt=ATTEMPT).nomination
    assert nomination is not None
    assert nomination.victims == ("uid-other",)
    snapshot.remove_pod("uid-other")
    snapshot.place(member("m3", cpu="2"), "r1n0")
    assert rank(further, snapshot, default_profile(), attempt=ATTEMPT).nomination is None
    snapshot.objects(CoschedulingPodGroup).remove("uid-gang")
    assert rank(further, snapshot, default_profile(), attempt=ATTEMPT).nomination is not None
