"""The limits of what one pod may ask of a scheduling cycle."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodCondition,
    PodStatus,
    PreferredNodeTerm,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
    Volume,
    WeightedPodAffinityTerm,
)
from berth.api.podlimits import MOST_BYTES, PARTS, bytes_of, cycle_milliseconds, pod_affinity_counts, refusal
from berth.api.trimming import with_whole
from berth.cluster.pods import EquivalenceClasses
from harness.builders.objects import a_pod

LIMITS = Path(__file__).parents[3] / "docs" / "configuration.md"


def expression(number: int, values: int = 1) -> SelectorRequirement:
    return SelectorRequirement(key="zone", operator="NotIn", values=[f"{number}-{each}" for each in range(values)])


def node_terms(number: int, values: int = 1) -> list[NodeSelectorTerm]:
    return [NodeSelectorTerm(match_expressions=[expression(each, values)]) for each in range(number)]


def on_nodes(terms: list[NodeSelectorTerm]) -> Affinity:
    required = NodeSelector(node_selector_terms=terms)
    return Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))


def preferring_nodes(terms: list[NodeSelectorTerm]) -> Affinity:
    preferred = [PreferredNodeTerm(weight=1, preference=term) for term in terms]
    return Affinity(node_affinity=NodeAffinity(preferred_during_scheduling_ignored_during_execution=preferred))


def term(requirements: int = 1, namespaces: int = 0) -> PodAffinityTerm:
    return PodAffinityTerm(
        topology_key="zone",
        label_selector=LabelSelector(match_labels={f"key-{number}": "" for number in range(requirements)}),
        namespaces=[f"team-{number}" for number in range(namespaces)],
    )


def apart(terms: list[PodAffinityTerm]) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=terms))


def preferably_apart(terms: list[PodAffinityTerm]) -> Affinity:
    weighted = [WeightedPodAffinityTerm(weight=1, pod_affinity_term=each) for each in terms]
    return Affinity(pod_anti_affinity=PodAffinity(preferred_during_scheduling_ignored_during_execution=weighted))


def spread(number: int, requirements: int = 1) -> list[TopologySpreadConstraint]:
    labels = LabelSelector(match_labels={f"key-{each}": "" for each in range(requirements)})
    return [
        TopologySpreadConstraint(
            max_skew=1, topology_key=f"key-{each}", when_unsatisfiable="DoNotSchedule", label_selector=labels
        )
        for each in range(number)
    ]


def container(ports: int = 0, requests: int = 0) -> Container:
    return Container(
        name="main",
        ports=[ContainerPort(container_port=number + 1) for number in range(ports)],
        resources=ResourceRequirements(requests={f"example.com/{number}": "1" for number in range(requests)}),
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"node_selector": {f"k{n}": "" for n in range(1001)}}, "1001 node selector", id="node selector"),
        pytest.param({"affinity": on_nodes(node_terms(12_000))}, "12000 node selector expressions", id="required"),
        pytest.param({"affinity": on_nodes([NodeSelectorTerm()] * 1001)}, "1001 node selector", id="empty terms"),
        pytest.param({"affinity": preferring_nodes(node_terms(1001))}, "1001 node selector", id="preferred"),
        pytest.param({"affinity": on_nodes(node_terms(3, 7000))}, "21000 values of node", id="values"),
        pytest.param({"affinity": apart([term()] * 257)}, "257 pod affinity and anti-affinity terms", id="terms"),
        pytest.param({"affinity": preferably_apart([term()] * 257)}, "257 pod affinity", id="preferred terms"),
        pytest.param({"affinity": apart([term(600)] * 2)}, "1200 requirements of pod label selectors", id="labels"),
        pytest.param({"affinity": apart([term(1, 501)] * 2)}, "1002 namespaces of pod affinity", id="namespaces"),
        pytest.param({"topology_spread_constraints": spread(65)}, "65 topology spread constraints", id="spread"),
        pytest.param({"topology_spread_constraints": spread(2, 501)}, "1002 requirements", id="spread labels"),
        pytest.param({"tolerations": [Toleration()] * 1001}, "1001 tolerations", id="tolerations"),
        pytest.param({"containers": [container()] * 1001}, "1001 containers", id="containers"),
        pytest.param({"init_containers": [container()] * 1001}, "1002 containers", id="init containers"),
        pytest.param({"containers": [container(ports=2001)]}, "2001 container ports", id="ports"),
        pytest.param({"containers": [container(requests=4001)]}, "4001 requests and limits", id="requests"),
        pytest.param({"volumes": [Volume(name="data")] * 1001}, "1001 volumes", id="volumes"),
    ],
)
def test_a_pod_with_too_much_of_anything_is_refused_with_the_number_and_the_limit(spec, said):
    reason = refusal(a_pod(**spec))
    assert said in reason
    assert reason.startswith("the pod has more than a scheduling cycle can take: ")
    assert "(at most " in reason


def test_every_excess_is_named():
    reason = refusal(a_pod(affinity=apart([term()] * 300), tolerations=[Toleration()] * 2000))
    assert reason.endswith("300 pod affinity and anti-affinity terms (at most 256), 2000 tolerations (at most 1000)")


def test_a_pod_of_too_many_bytes_is_refused_though_no_part_is_too_many():
    values = [f"{number:063}" for number in range(1000)]
    expression = SelectorRequirement(key="zone", operator="NotIn", values=values)
    pod = a_pod(affinity=on_nodes([NodeSelectorTerm(match_expressions=[expression])]))
    assert refusal(pod) == f"the pod has more than a scheduling cycle can take: {bytes_of(pod)} bytes (at most 65536)"
    assert refusal(a_pod(labels={"a": "x" * MOST_BYTES})) != ""
    assert refusal(a_pod(containers=[Container(name="main", image="x" * MOST_BYTES)])) != ""


def test_what_others_write_about_a_pod_and_what_only_extenders_read_do_not_count_as_its_bytes():
    pod = with_whole(a_pod(), b'{"spec":{"env":"' + b"x" * MOST_BYTES + b'"}}')
    told = PodStatus(conditions=[PodCondition(type="PodScheduled", message="x" * MOST_BYTES)])
    assert refusal(msgspec.structs.replace(pod, status=told)) == ""


@pytest.mark.parametrize("excess", [0, 200])
def test_scorer_and_binder_refuse_the_same_bytes(excess):
    pod = a_pod(labels={"a": ""}, volumes=[Volume(name="data")])
    pod = a_pod(labels={"a": "x" * (MOST_BYTES - bytes_of(pod) + excess)}, volumes=[Volume(name="data")])
    assert EquivalenceClasses().of(pod).refusal(pod) == refusal(pod)
    assert bool(refusal(pod)) == bool(excess)


def test_a_large_but_ordinary_pod_is_scheduled():
    hosts = SelectorRequirement(key="kubernetes.io/hostname", operator="NotIn", values=[f"n{n}" for n in range(2000)])
    affinity = Affinity(
        node_affinity=on_nodes([NodeSelectorTerm(match_expressions=[hosts])] * 2).node_affinity,
        pod_anti_affinity=apart([term(5, 3)] * 20).pod_anti_affinity,
    )
    pod = a_pod(
        affinity=affinity,
        tolerations=[Toleration(key="spot", operator="Exists")] * 50,
        topology_spread_constraints=spread(6),
        containers=[container(ports=20, requests=8)] * 30,
        volumes=[Volume(name="data")] * 100,
    )
    assert refusal(pod) == ""
    assert cycle_milliseconds(pod) <= 12
    assert cycle_milliseconds(a_pod()) == 0


def test_each_limit_alone_keeps_a_cycle_below_26_milliseconds():
    assert [part.name for part in PARTS if part.most * part.microseconds > 26_000] == []


def test_the_affinity_of_a_placed_pod_counts_within_the_limits_only():
    assert pod_affinity_counts(apart([term()] * 256))
    assert not pod_affinity_counts(apart([term()] * 257))
    assert not pod_affinity_counts(apart([term(1, 1001)]))


def test_the_documented_limits_are_those_in_force():
    table = [line.split(" | ") for line in LIMITS.read_text().splitlines() if line.endswith(" us |")]
    documented = [(name.strip("| "), int(most), float(cost.split()[0])) for name, most, cost in table]
    assert documented == [(part.name, part.most, part.microseconds) for part in PARTS]
