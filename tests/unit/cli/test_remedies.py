"""What would help a pod that waits: its requests beside the nodes' room, and what would have to change on how many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.node import UNSCHEDULABLE_TAINT, Taint
from berth.api.pod import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Toleration,
    TopologySpreadConstraint,
)
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import RemedyPlugin, RemedySentence
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth.messages.attempts import Rejection
from berth_cli.remedies.rejections import MOST_REMEDIES, TEXT_CHARACTERS, remedies_by_reasons, remedies_of
from berth_cli.remedies.remedy import remedy_lines
from harness.builders.objects import a_node, a_pod, pod_requesting
from harness.builders.profiles import default_profile
from harness.builders.volumes import a_claim, a_class, a_volume, add_objects, pod_with_claims
from harness.worlds.printed import printed

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
GPU = Taint(key="dedicated", value="gpu", effect="NoSchedule")
PROFILE = default_profile()


def cluster(*nodes, placed=()) -> Snapshot:
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    for pod, name in placed:
        snapshot.place(pod, name)
    return snapshot


def told(pod: Pod, snapshot: Snapshot) -> list[str]:
    return [f"{each.plugin}: {each.text}" for each in remedies_of(pod, snapshot, PROFILE)]


def test_request_stands_beside_the_largest_and_the_freest_node():
    snapshot = cluster(a_node("n2"), a_node("n10", cpu="2"), placed=[(a_pod("there", cpu="1500m"), "n2")])
    (found,) = remedies_of(a_pod(cpu="8"), snapshot, PROFILE)
    assert found.text == "asks for 8 CPU; the largest node has 4, and the freest 2.5 of 4 free (n2)"
    assert (found.plugin, found.about, found.nodes, found.alone) == ("NodeResourcesFit", "cpu", 2, 2)
    assert found.amounts == {"asked": 8000, "largest": 4000, "free": 2500, "allocatable": 4000}


def test_where_a_node_is_large_enough_it_says_how_much_is_missing():
    placed = [(a_pod("one", cpu="1500m"), "n1"), (a_pod("two", cpu="3"), "n2")]
    snapshot = cluster(a_node("n1"), a_node("n2"), placed=placed)
    assert told(a_pod(cpu="3"), snapshot) == [
        "NodeResourcesFit: asks for 3 CPU; the freest node has 2.5 of 4 free (n1), 500m too little"
    ]


def test_each_short_resource_has_a_sentence_and_one_that_no_node_has_is_said():
    pod = pod_requesting(**{"cpu": "5", "memory": "9Gi", "example.com/gpu": "1"})
    assert told(pod, cluster(a_node("n1"))) == [
        "NodeResourcesFit: asks for 5 CPU; the largest node has 4, and the freest 4 of 4 free (n1)",
        "NodeResourcesFit: asks for 9 GiB memory; the largest node has 8 GiB, and the freest 8 GiB of 8 GiB free (n1)",
        "NodeResourcesFit: asks for 1 example.com/gpu; no node has any",
    ]


def test_nodes_that_refuse_the_pod_for_something_else_too_are_left_out_of_the_comparison():
    snapshot = cluster(a_node("n1"), a_node("n2", cpu="2"), a_node("big", cpu="6", taints=[GPU]))
    assert told(a_pod(cpu="8"), snapshot) == [
        (
            "NodeResourcesFit: asks for 8 CPU; of the 2 nodes that nothing else refuses, the largest node has 4, and "
            "the "
            "freest 4 of 4 free (n1)"
        ),
        (
            "TaintToleration: has no toleration of the taint dedicated=gpu:NoSchedule, which 1 node (big) has; "
            "something "
            "else refuses it there too"
        ),
    ]


def test_one_node_that_nothing_else_refuses_is_named():
    snapshot = cluster(a_node("n1"), a_node("big", cpu="16", taints=[GPU]))
    assert told(a_pod(cpu="8"), snapshot) == [
        (
            "TaintToleration: has no toleration of the taint dedicated=gpu:NoSchedule, which 1 node (big) has; nothing "
            "else refuses it there"
        ),
        "NodeResourcesFit: asks for 8 CPU; n1, which nothing else refuses, has 4 of 4 free",
    ]


def test_as_many_pods_as_a_node_may_have_are_said():
    placed = [(a_pod("there"), "n1")]
    assert told(a_pod(), cluster(a_node("n1", pods="1"), placed=placed)) == [
        "NodeResourcesFit: 1 node (n1) has as many pods as they may; nothing else refuses it there"
    ]


def test_a_taint_counts_where_it_is_the_only_one():
    spot = Taint(key="spot", effect="NoExecute")
    nodes = [a_node("n1", taints=[GPU]), a_node("n2", taints=[GPU, spot]), a_node("n3", taints=[spot])]
    assert told(a_pod(tolerations=[Toleration(key="other", operator="Exists")]), cluster(*nodes)) == [
        (
            "TaintToleration: has no toleration of the taint dedicated=gpu:NoSchedule, which 2 nodes (n1, n2) have; "
            "on 1 of them nothing else refuses it"
        ),
        (
            "TaintToleration: has no toleration of the taint spot:NoExecute, which 2 nodes (n2, n3) have; on 1 of them "
            "nothing else refuses it"
        ),
    ]


def test_a_taint_that_the_pod_tolerates_is_not_told():
    spot = Taint(key="spot", effect="NoExecute")
    pod = a_pod(tolerations=[Toleration(key="spot", operator="Exists")])
    found = remedies_of(pod, cluster(a_node("n1", taints=[GPU, spot])), PROFILE)
    assert [each.about for each in found] == ["dedicated=gpu:NoSchedule"]


def test_a_taint_of_kubernetes_is_no_reason_for_a_toleration():
    taint = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
    assert told(a_pod(), cluster(a_node("n1", taints=[taint]), a_node("n2", unschedulable=True))) == [
        "NodeUnschedulable: 1 node (n2) is cordoned; nothing else refuses it there",
        (
            "TaintToleration: 1 node (n1) has node.kubernetes.io/not-ready:NoSchedule, a taint that Kubernetes takes "
            "away once the node is well; nothing else refuses it there"
        ),
    ]


def test_a_cordoned_node_is_told_once_though_kubernetes_taints_it():
    snapshot = cluster(a_node("n1", unschedulable=True))
    assert UNSCHEDULABLE_TAINT in snapshot.columns.taint_sets.values[-1]  # as on a real cluster
    assert told(a_pod(), snapshot) == ["NodeUnschedulable: 1 node (n1) is cordoned; nothing else refuses it there"]


def test_a_cordoned_node_with_a_taint_of_its_own_is_told_for_both():
    both = a_node("n1", unschedulable=True, taints=[GPU])
    nodes = [both, a_node("n2", unschedulable=True), a_node("n3", taints=[GPU])]
    assert told(a_pod(), cluster(*nodes)) == [
        "NodeUnschedulable: 2 nodes (n1, n2) are cordoned; on 1 of them nothing else refuses it",
        (
            "TaintToleration: has no toleration of the taint dedicated=gpu:NoSchedule, which 2 nodes (n1, n3) have; on "
            "1 of them nothing else refuses it"
        ),
    ]


def test_the_taint_of_a_cordon_is_told_where_nothing_else_tells_of_it():
    """On a node that was just uncordoned, and by a profile without NodeUnschedulable."""
    nodes = [a_node("n1", unschedulable=True), a_node("n2", taints=[UNSCHEDULABLE_TAINT])]
    stale = (
        "(n2) has node.kubernetes.io/unschedulable:NoSchedule, a taint that Kubernetes takes away from nodes that are "
        "not cordoned; nothing else refuses it there"
    )
    assert told(a_pod(), cluster(*nodes)) == [
        "NodeUnschedulable: 1 node (n1) is cordoned; nothing else refuses it there",
        f"TaintToleration: 1 node {stale}",
    ]
    without = replace(PROFILE, filters=tuple(each for each in PROFILE.filters if each.name != "NodeUnschedulable"))
    (found,) = remedies_of(a_pod(), cluster(*nodes), without)
    assert (found.plugin, found.nodes, found.alone) == ("TaintToleration", 2, 2)


def test_a_pod_that_tolerates_the_cordon_is_told_the_other_taints():
    tolerates = Toleration(key=UNSCHEDULABLE_TAINT.key, operator="Exists")
    snapshot = cluster(a_node("n1", unschedulable=True, taints=[GPU]))
    assert told(a_pod(tolerations=[tolerates]), snapshot) == [
        (
            "TaintToleration: has no toleration of the taint dedicated=gpu:NoSchedule, which 1 node (n1) has; nothing "
            "else refuses it there"
        )
    ]


@pytest.mark.parametrize("key", ["node.kubernetes.io/out-of-service", "node.kubernetes.io/of-ours"])
def test_a_taint_that_people_set_is_told_as_theirs(key):
    snapshot = cluster(a_node("n1", taints=[Taint(key=key, effect="NoExecute", value="nodeshutdown")]))
    assert told(a_pod(), snapshot) == [
        (
            f"TaintToleration: has no toleration of the taint {key}=nodeshutdown:NoExecute, which 1 node (n1) has; "
            "nothing else refuses it there"
        )
    ]


def test_the_label_that_would_have_to_change_and_on_how_many_nodes():
    nodes = [a_node("n1", labels={"disk": "hdd", "zone": "a"}), a_node("n2", labels={"zone": "a"}), a_node("n3")]
    pod = a_pod(node_selector={"disk": "ssd", "zone": "a"})
    assert told(pod, cluster(*nodes)) == [
        (
            "NodeAffinity: asks for nodes with disk=ssd, and 2 nodes (n1, n2) would match but for that; nothing else "
            "refuses it there"
        )
    ]


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        pytest.param("disk", "In", ["ssd", "nvme"], "disk in (nvme, ssd)", id="one of several"),
        pytest.param("zone", "NotIn", ["a"], "zone not in (a)", id="none of several"),
        pytest.param("gpu", "Exists", None, "gpu", id="there"),
        pytest.param("zone", "DoesNotExist", None, "no zone", id="not there"),
        pytest.param("cores", "Gt", ["8"], "cores > 8", id="more"),
        pytest.param("cores", "Gt", ["many"], "an invalid expression on cores", id="invalid"),
    ],
)
def test_an_expression_is_told_as_it_is_read(key, operator, values, expected):
    pod = a_pod(affinity=requiring(SelectorRequirement(key=key, operator=operator, values=values)))
    (text,) = told(pod, cluster(a_node("n1", labels={"zone": "a", "cores": "4"})))
    assert text.startswith(f"NodeAffinity: asks for nodes with {expected}, and 1 node (n1) would match but for that;")


def test_of_several_terms_the_one_that_comes_nearest_is_told():
    far = [SelectorRequirement(key=key, operator="Exists") for key in ("a", "b")]
    near = [SelectorRequirement(key=key, operator="Exists") for key in ("c", "zone")]
    pod = a_pod(affinity=requiring(far, near))
    assert told(pod, cluster(a_node("n1", labels={"zone": "a"}))) == [
        "NodeAffinity: asks for nodes with c, and 1 node (n1) would match but for that; nothing else refuses it there"
    ]


def requiring(*terms) -> Affinity:
    lists = [term if isinstance(term, list) else [term] for term in terms]
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=term) for term in lists])
    return Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=selector))


def test_a_port_that_another_pod_has_is_told_with_that_pod():
    ports = [Container(name="main", ports=[ContainerPort(container_port=80, host_port=8080)])]
    snapshot = cluster(a_node("n1"), placed=[(a_pod("first", containers=ports), "n1")])
    assert told(a_pod("second", containers=ports), snapshot) == [
        (
            "NodePorts: asks for host port 8080/TCP, which others have, such as default/first, on 1 node (n1); nothing "
            "else refuses it there"
        )
    ]


def test_the_domains_that_a_spread_leaves_open_are_named():
    labels = {"app": "web"}
    spread = TopologySpreadConstraint(
        max_skew=1,
        topology_key=ZONE,
        when_unsatisfiable="DoNotSchedule",
        label_selector=LabelSelector(match_labels=labels),
    )
    nodes = [a_node("n1", labels={ZONE: "a"}), a_node("n2", labels={ZONE: "b"}, cpu="1"), a_node("n3")]
    placed = [(a_pod("there", labels=labels), "n1")]
    pod = a_pod(cpu="2", labels=labels, topology_spread_constraints=[spread])
    assert told(pod, cluster(*nodes, placed=placed)) == [
        "NodeResourcesFit: asks for 2 CPU; n2, which nothing else refuses, has 1 of 1 free",
        (
            "PodTopologySpread: is spread over topology.kubernetes.io/zone, a label that 1 node (n3) lacks; nothing "
            "else "
            "refuses it there"
        ),
        (
            "PodTopologySpread: may be placed only where topology.kubernetes.io/zone is b, by its maxSkew of 1, and 1 "
            "node "
            "(n1) is elsewhere; nothing else refuses it there"
        ),
    ]


def test_pods_that_it_wants_beside_it_or_not_are_told():
    beside, apart = {"app": "cache"}, {"app": "web"}
    affinity = Affinity(pod_affinity=PodAffinity(**term(beside)), pod_anti_affinity=PodAffinity(**term(apart)))
    nodes = [a_node("n1", labels={HOST: "n1"}), a_node("n2", labels={HOST: "n2"})]
    there = [(a_pod("cache", labels=beside), "n1"), (a_pod("web-0", labels=apart), "n1")]
    assert told(a_pod("web-1", affinity=affinity), cluster(*nodes, placed=there)) == [
        (
            "InterPodAffinity: asks to be beside pods with app=cache, and 1 node (n2) has none in their "
            "kubernetes.io/hostname; nothing else refuses it there"
        ),
        (
            "InterPodAffinity: asks to be apart from pods with app=web, and 1 node (n1) has one in their "
            "kubernetes.io/hostname; nothing else refuses it there"
        ),
    ]
    assert told(a_pod("web-1", affinity=affinity), cluster(*nodes)) == [
        (
            "InterPodAffinity: asks to be beside pods with app=cache, of which there is none, on 2 nodes (n1, n2); "
            "nothing "
            "else refuses it there"
        )
    ]


def test_affinity_term_without_a_selector_is_told_as_one():
    required = [PodAffinityTerm(topology_key=HOST)]
    affinity = Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=required))
    assert told(a_pod(affinity=affinity), cluster(a_node("n1", labels={HOST: "n1"}))) == [
        (
            "InterPodAffinity: asks to be beside pods with labels that no labelSelector names, of which there is none, "
            "on 1 node (n1); nothing else refuses it there"
        )
    ]


def test_placed_pods_that_want_to_be_apart_from_it_are_told():
    keeps_away = Affinity(pod_anti_affinity=PodAffinity(**term({"app": "web"})))
    snapshot = cluster(a_node("n1", labels={HOST: "n1"}), placed=[(a_pod("shy", affinity=keeps_away), "n1")])
    assert told(a_pod(labels={"app": "web"}), snapshot) == [
        (
            "InterPodAffinity: pods that ask to be apart from this one are on 1 node (n1) or in their "
            "kubernetes.io/hostname; nothing else refuses it there"
        )
    ]


def term(labels: dict[str, str]) -> dict[str, list[PodAffinityTerm]]:
    wanted = PodAffinityTerm(topology_key=HOST, label_selector=LabelSelector(match_labels=labels))
    return {"required_during_scheduling_ignored_during_execution": [wanted]}


def test_a_volume_that_cannot_be_reached_from_nodes_is_named():
    snapshot = cluster(a_node("n1", labels={HOST: "n1"}), a_node("n2", labels={HOST: "n2"}, cpu="1"))
    add_objects(snapshot, a_class(), a_claim("data", volume="pv-1"), a_volume("pv-1", "n2"))
    assert told(pod_with_claims("web", "data", containers=a_pod(cpu="2").spec.containers), snapshot) == [
        "NodeResourcesFit: asks for 2 CPU; n2, which nothing else refuses, has 1 of 1 free",
        (
            "VolumeBinding: the volume pv-1 of claim data cannot be reached from 1 node (n1); nothing else refuses it "
            "there"
        ),
    ]


def test_a_claim_for_which_there_is_no_volume_is_named():
    snapshot = cluster(a_node("n1", labels={HOST: "n1"}), a_node("n2", labels={HOST: "n2"}))
    add_objects(snapshot, a_class("kubernetes.io/no-provisioner"), a_claim("data"))
    assert told(pod_with_claims("web", "data"), snapshot) == [
        (
            "VolumeBinding: claim data has no volume yet, and none can be bound or made for 2 nodes (n1, n2); nothing "
            "else "
            "refuses it there"
        )
    ]


def test_the_zones_of_its_volumes_are_named():
    snapshot = cluster(a_node("n1", labels={ZONE: "a"}))
    add_objects(snapshot, a_class(), a_claim("data", volume="pv-1"), a_volume("pv-1", labels={ZONE: "b"}))
    assert told(pod_with_claims("web", "data"), snapshot) == [
        (
            "VolumeZone: its volumes are in topology.kubernetes.io/zone=b, and 1 node (n1) is not; nothing else "
            "refuses it "
            "there"
        )
    ]


def test_a_node_that_refuses_it_no_more_is_all_that_is_told():
    assert told(a_pod(cpu="1"), cluster(a_node("n1"), a_node("n2", cpu="500m"))) == [
        ": 1 node passes every filter now, such as n1"
    ]


def test_a_node_that_another_pod_is_nominated_to_is_not_promised():
    snapshot = cluster(a_node("n1"))
    snapshot.nominate(a_pod("first", cpu="3", priority=10), "n1")
    assert told(a_pod(cpu="2"), snapshot) == [
        ": 1 node passes every filter now, such as n1, but pods that are nominated there come first"
    ]


def test_nothing_is_told_where_nothing_is_certain():
    assert told(a_pod(cpu="8"), cluster()) == []
    assert told(a_pod(cpu="no quantity"), cluster(a_node("n1"))) == []
    assert told(pod_with_claims("web", "missing"), cluster(a_node("n1"))) == []


def test_a_placed_pod_does_not_stand_in_its_own_way():
    pod = a_pod(cpu="3", node="n1")
    assert told(pod, cluster(a_node("n1"), placed=[(pod, "n1")])) == [": 1 node passes every filter now, such as n1"]


def test_hostile_names_make_neither_long_nor_many_sentences():
    taints = [
        Taint(key=f"{number}{{nodes}}{'k' * 5000}", value="v" * 5000, effect="NoSchedule") for number in range(99)
    ]
    found = remedies_of(a_pod(), cluster(a_node("n1", taints=taints)), PROFILE)
    assert 0 < len(found) <= MOST_REMEDIES
    assert max(len(each.text) for each in found) < TEXT_CHARACTERS + 100
    assert max(len(each.about) for each in found) <= TEXT_CHARACTERS


def test_of_a_taint_on_each_of_many_nodes_few_are_told():
    nodes = [
        a_node(f"n{number}", taints=[Taint(key=f"key-{number}", effect="NoSchedule")], labels={"own": f"{number}"})
        for number in range(5000)
    ]
    assert len(remedies_of(a_pod(node_selector={"own": "none"}), cluster(*nodes), PROFILE)) == MOST_REMEDIES


def test_of_many_expressions_the_one_that_keeps_most_nodes_comes_first():
    nodes = [a_node(f"n{number}", labels={f"key-{number % 300}": ""}) for number in range(2000)]
    absent = [SelectorRequirement(key=f"key-{number}", operator="DoesNotExist") for number in range(300)]
    first, *_ = remedies_of(a_pod(affinity=requiring(absent)), cluster(*nodes), PROFILE)
    assert first.text.startswith("asks for nodes with no key-")
    assert (first.nodes, first.alone) == (7, 7)


def test_of_a_decision_with_many_reasons_few_are_told():
    many = [Rejection(plugin="NodeResourcesFit", reason=f"Insufficient r{number}", nodes=1) for number in range(99)]
    assert len(remedies_by_reasons(many, cluster(a_node("n1")), PROFILE)) == MOST_REMEDIES


def test_of_a_pod_that_is_not_known_only_the_nodes_are_told():
    short = Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=2)
    other = Rejection(plugin="Own", reason="Insufficient cpu", nodes=2)
    snapshot = cluster(a_node("n1"), a_node("n2", cpu="2"), placed=[(a_pod("there", cpu="3"), "n1")])
    (found,) = remedies_by_reasons([short, other], snapshot, PROFILE)
    assert found.text == "CPU: the largest node has 4, and the freest 2 of 2 free (n2)"
    assert "asked" not in found.amounts
    assert remedies_by_reasons([short], cluster(), PROFILE) == []


def test_lines_have_a_heading_and_the_plugin():
    assert printed(*remedy_lines([]), width=200) == []
    lines = printed(*remedy_lines(remedies_of(a_pod(cpu="8"), cluster(a_node("n1")), PROFILE)), width=200)
    assert lines == [
        "what would help, by the present state of the cluster:",
        "  NodeResourcesFit: asks for 8 CPU; the largest node has 4, and the freest 4 of 4 free (n1)",
    ]


class Licenses(RemedyPlugin):
    """A plugin of others: it rejects every node, and ``say`` is its answer."""

    name = "Licenses"

    def __init__(self, say):
        self._say = say

    def filter(self, state, pod, node):
        return Status.unschedulable("no license is free")

    def remedy(self, state, pod, nodes):
        return self._say(nodes)

    def remedy_by_reason(self, reason, nodes):
        return self._say(nodes)


def with_licenses(say) -> Profile:
    return replace(PROFILE, filters=(*PROFILE.filters, Licenses(say)))


def test_a_plugin_of_others_says_what_would_help():
    snapshot = cluster(a_node("n1"), a_node("n2", unschedulable=True))
    profile = with_licenses(lambda nodes: [RemedySentence(about="license", before="its license is used on")])
    assert [each.sentence for each in remedies_of(a_pod(), snapshot, profile)] == [
        "Licenses: its license is used on 2 nodes (n1, n2); on 1 of them nothing else refuses it",
        "NodeUnschedulable: 1 node (n2) is cordoned; something else refuses it there too",
    ]


def test_a_plugin_sees_the_nodes_that_it_rejects_in_the_order_of_their_names():
    snapshot = cluster(a_node("n10"), a_node("n9", unschedulable=True))
    seen = []
    remedies_of(a_pod(), snapshot, with_licenses(lambda nodes: seen.append(nodes) or []))
    (nodes,) = seen
    assert nodes.names == ["n9", "n10"]
    assert nodes.alone.tolist() == [False, True]
    assert nodes.rejected_by("NodeUnschedulable").tolist() == [True, False]
    assert nodes.rejected_by("VolumeZone").tolist() == [False, False]


def test_nodes_with_two_obstacles_of_one_plugin_have_something_else():
    two = [
        RemedySentence(about="seats", before="there is no seat on"),
        RemedySentence(about="age", nodes=np.array([True, False]), after="have an old license"),
        RemedySentence(about="nothing", nodes=np.array([False, False]), after="have nothing"),
    ]
    found = remedies_of(a_pod(), cluster(a_node("n1"), a_node("n2")), with_licenses(lambda _: two))
    assert [each.text for each in found] == [
        "there is no seat on 2 nodes (n1, n2); on 1 of them nothing else refuses it",
        "1 node (n1) has an old license; something else refuses it there too",
    ]


@pytest.mark.parametrize(
    ("say", "failure"),
    [
        pytest.param(lambda _: 1 / 0, "ZeroDivisionError: division by zero (test_remedies.py:", id="raises"),
        pytest.param(lambda _: ["no license"], "want RemedySentence, got 'no license'", id="another type"),
        pytest.param(lambda _: [RemedySentence(about="", nodes=np.array([True]))], "want bool[2], got ", id="length"),
    ],
)
def test_a_plugin_that_fails_is_named_and_the_others_are_asked(say, failure):
    snapshot = cluster(a_node("n1"), a_node("n2", unschedulable=True))
    found = {each.plugin: each for each in remedies_of(a_pod(), snapshot, with_licenses(say))}
    assert found["NodeUnschedulable"].text == "1 node (n2) is cordoned; something else refuses it there too"
    assert found["Licenses"].text.startswith('what would help is unknown: running Remedy plugin "Licenses": ')
    assert failure in found["Licenses"].text
    assert found["Licenses"].nodes == 2


def test_a_plugin_that_fails_is_named_also_where_only_a_reason_is_known():
    rejection = Rejection(plugin="Licenses", reason="no license is free", nodes=1)
    (found,) = remedies_by_reasons([rejection], cluster(a_node("n1")), with_licenses(lambda _: "no license"))
    assert found.sentence.startswith('Licenses: what would help is unknown: running Remedy plugin "Licenses": want ')
    assert remedies_by_reasons([rejection], cluster(a_node("n1")), with_licenses(lambda _: None)) == []
