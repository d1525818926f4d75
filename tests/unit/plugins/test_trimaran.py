"""TargetLoadPacking and LoadVariationRiskBalancing: Trimaran's arithmetic, and where berth differs."""

from __future__ import annotations

import pytest

from berth.api.config.load import load
from berth.api.config.nodeload.trimaran import (
    LoadVariationRiskBalancingArgs,
    TargetLoadPackingArgs,
    balancing_readings,
    packing_readings,
)
from berth.api.config.presets import DEFAULT
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.messages.livedata import NodeSample
from berth.plugins.nodeload.trimaran import LoadVariationRiskBalancing, TargetLoadPacking
from berth.plugins.registry import BUILT_IN
from berth.profiles.configuration import profiles_of
from harness.builders.loads import NOW, measured, percents, points, using
from harness.builders.objects import a_container, a_node, a_pod, first_attempt
from harness.builders.profiles import profile_of

CORE = using(limits={"cpu": "1"}, memory="1Gi")  # 10 % of a node


def packing(how: TargetLoadPackingArgs, **samples: NodeSample | None) -> Snapshot:
    return measured(samples, *packing_readings(how))


def packed(sample: NodeSample, pod=CORE, **more) -> int:
    how = TargetLoadPackingArgs(**more)
    return points(TargetLoadPacking(how), packing(how, a=sample), pod)["a"]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (0, 55),  # p = 10: 60 x 10 / 40 + 40
        (10, 70),  # p = 20: 60 x 20 / 40 + 40
        (30, 100),  # p = 40, the target
        (31, 39),  # p = 41: 40 x 59 / 60 = 39.3
        (60, 20),  # p = 70: 40 x 30 / 60
        (90, 0),  # p = 100
        (95, 0),  # p = 105
    ],
)
def test_nodes_are_filled_up_to_the_target(used, expected):
    assert packed(percents(used)) == expected


def test_the_target_can_be_other_and_0_is_the_default():
    assert packed(percents(60), target_utilization=70) == 100
    assert packed(percents(30), target_utilization=0) == 100
    assert packed(percents(90), target_utilization=100) == 100
    assert packed(percents(95), target_utilization=100) == 0


PREDICTIONS = [
    # With T = 40 an empty node has 60 p / 40 + 40 points.
    pytest.param(using(cpu="1"), {}, 63, id="1.5 times the request: p = 15, 62.5"),
    pytest.param(using(cpu="1"), {"default_requests_multiplier": "1"}, 55, id="the multiplier of the file"),
    pytest.param(using(cpu="1", limits={"cpu": "2"}), {}, 70, id="the limit"),
    pytest.param(using(), {}, 55, id="1 core without either"),
    pytest.param(using(), {"default_requests": {"cpu": "2000m"}}, 70, id="what the file has instead"),
    pytest.param(using(), {"default_requests": {"memory": "1Gi"}}, 40, id="nothing of CPU in it"),
    # 1500 + 1000 + 500 millicores: p = 30
    pytest.param(
        a_pod(containers=[a_container(cpu="1"), a_container()], overhead={"cpu": "500m"}),
        {},
        85,
        id="containers, overhead",
    ),
]


@pytest.mark.parametrize(("pod", "more", "expected"), PREDICTIONS)
def test_what_a_pod_is_predicted_to_use(pod, more, expected):
    assert packed(percents(0), pod, **more) == expected


def test_newcomers_count_and_fade():
    how = TargetLoadPackingArgs()
    snapshot = packing(how, a=percents(0))
    snapshot.place(using("promised", limits={"cpu": "1"}), "a")
    snapshot.place(using("old", limits={"cpu": "1"}), "a", bound_at=NOW - 150)  # of the range of 300 s half
    # p = 10 + 10 + 5: 60 x 25 / 40 + 40 = 77.5
    assert points(TargetLoadPacking(how), snapshot, CORE) == {"a": 78}


def test_a_node_without_a_sample_is_the_mean_and_not_0_points():
    how = TargetLoadPackingArgs()
    assert points(TargetLoadPacking(how), packing(how, a=percents(0), b=percents(20), c=None), CORE) == {
        "a": 55,
        "b": 85,
        "c": 70,
    }


def balanced(sample: NodeSample, pod=None, **more) -> int:
    how = LoadVariationRiskBalancingArgs(**more)
    pod = pod or using(cpu="0", memory="0")
    return points(LoadVariationRiskBalancing(how), measured({"a": sample}, *balancing_readings(how)), pod)["a"]


BALANCED = [
    # (0.5 + 0.2) / 2 = 0.35
    pytest.param(percents(50, deviation=2000.0), {}, 65, id="mean and deviation"),
    # 0.04 ^ (1/2) = 0.2
    pytest.param(percents(50, deviation=400.0), {"safe_variance_sensitivity": 2.0}, 65, id="sensitivity"),
    # (0.5 + 2 x 0.2) / 2 = 0.45
    pytest.param(percents(50, deviation=2000.0), {"safe_variance_margin": 2.0}, 55, id="margin"),
    # (0.5 + 1) / 2
    pytest.param(percents(50, deviation=2000.0), {"safe_variance_margin": 20.0}, 25, id="the second part is at most 1"),
    pytest.param(percents(50, deviation=2000.0), {"safe_variance_sensitivity": 0.0}, 75, id="the root of 0"),
    pytest.param(percents(50, deviation=2000.0), {"safe_variance_margin": -1.0}, 65, id="below 0 is the default"),
]


@pytest.mark.parametrize(("sample", "more", "expected"), BALANCED)
def test_nodes_with_a_low_and_steady_load_are_preferred(sample, more, expected):
    assert balanced(sample, **more) == expected


def test_the_pods_request_is_added_and_the_lower_of_cpu_and_memory_counts():
    # CPU: (0.5 + 0.1 + 0.2) / 2 = 0.4; memory has no deviation: (0.9 + 0) / 2 = 0.45
    sample = percents(50, 90, deviation=2000.0)
    assert balanced(sample, using(cpu="1", memory="0")) == 55
    assert balanced(percents(50, 10, deviation=2000.0), using(cpu="1", memory="0")) == 60


def test_newcomers_count_for_both():
    how = LoadVariationRiskBalancingArgs()
    snapshot = measured({"a": percents(50, 10, deviation=2000.0)}, *balancing_readings(how))
    snapshot.place(using("promised", cpu="1"), "a")
    # (0.5 + 0.1 + 0.1 + 0.2) / 2 = 0.45
    assert points(LoadVariationRiskBalancing(how), snapshot, using(cpu="1", memory="0")) == {"a": 55}


def test_a_node_whose_deviation_alone_has_changed_is_scored_again():
    how, pod = LoadVariationRiskBalancingArgs(), using(cpu="1", memory="0")
    readings, profile = balancing_readings(how), profile_of(LoadVariationRiskBalancing(how))
    snapshot = measured({"a": percents(50, 10, deviation=2000.0), "b": percents(50, 10, deviation=0.0)}, *readings)
    for best, other in (("b", "a"), ("a", "b")):
        found = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates
        assert [each.node for each in found] == [best, other]
        snapshot.live.set_sample(readings[0].query.token, "b", percents(50, 10, deviation=8000.0))


def test_the_explanation_has_the_deviation_and_follows_it():
    how, pod = LoadVariationRiskBalancingArgs(), using(cpu="1", memory="0")
    readings, profile = balancing_readings(how), profile_of(LoadVariationRiskBalancing(how))
    snapshot = measured({"a": percents(40, 10, deviation=4000.0), "b": percents(40, 10, deviation=0.0)}, *readings)
    snapshot.set_node(a_node("c", cpu="10", memory="10Gi"))

    def explained() -> dict[str, str]:
        found = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates
        return {each.node: each.details["LoadVariationRiskBalancing"] for each in found}

    memory = "10 % (deviation 0 %) of memory used"
    unknown = "CPU and memory counted as the mean: 40 % (deviation {} %) of CPU and " + memory + ", no sample"
    assert explained() == {
        "a": f"40 % (deviation 40 %) of CPU and {memory}, sample 0 s old",
        "b": f"40 % (deviation 0 %) of CPU and {memory}, sample 0 s old",
        "c": unknown.format(20),
    }
    snapshot.live.set_sample(readings[0].query.token, "b", percents(40, 10, deviation=8000.0))
    assert explained() == {
        "a": f"40 % (deviation 40 %) of CPU and {memory}, sample 0 s old",
        "b": f"40 % (deviation 80 %) of CPU and {memory}, sample 0 s old",
        "c": unknown.format(60),
    }


FILE = """\
apiVersion: kubescheduler.config.k8s.io/v1beta3
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: trimaran
  plugins:
    score:
      disabled: [{name: NodeResourcesBalancedAllocation}, {name: NodeResourcesLeastAllocated}]
      enabled: [{name: TargetLoadPacking}]
  pluginConfig:
  - name: TargetLoadPacking
    args:
      defaultRequestsMultiplier: "1"
      targetUtilization: 40
      metricProvider: {type: Prometheus, address: "http://prometheus:9090"}
"""


def test_a_file_of_trimaran_makes_a_profile_with_its_score():
    profile = profiles_of(load(FILE, known=BUILT_IN, preset=DEFAULT))["trimaran"]
    names = [score.plugin.name for score in profile.scores]
    assert "TargetLoadPacking" in names
    assert "NodeResourcesBalancedAllocation" not in names
