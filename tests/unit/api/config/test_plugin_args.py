"""Arguments of the default plugins: what kube-scheduler 1.36 accepts and rejects, berth accepts and rejects."""

import pytest
import yaml

from berth.api.config.load import ConfigurationError, load
from berth.api.config.presets import DEFAULT
from berth.plugins.registry import BUILT_IN

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
ARGS = "profiles[0].pluginConfig[0].args"
TERM = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}


def loaded(*configs: tuple[str, str]):
    profile = {"pluginConfig": [{"name": name, "args": yaml.safe_load(args)} for name, args in configs]}
    return load(HEAD + yaml.safe_dump({"profiles": [profile]}), known=BUILT_IN, preset=DEFAULT).profiles[0]


def problems(*configs: tuple[str, str]) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        loaded(*configs)
    return [problem.removeprefix(ARGS) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        pytest.param("NodeResourcesFit", "{ignoredResources: [cpu, example.com/gpu]}", id="resources of any name"),
        pytest.param("NodeResourcesFit", "{ignoredResourceGroups: [example.com]}", id="a group"),
        pytest.param(
            "NodeResourcesFit",
            "{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 0}, {name: cpu, weight: 100}]}}",
            id="a weight of 0, a resource twice",
        ),
        pytest.param(
            "NodeResourcesFit",
            "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: "
            "{shape: [{utilization: 0, score: 10}, {utilization: 100, score: 0}]}}}",
            id="a falling shape",
        ),
        pytest.param("NodeResourcesFit", "{scoringStrategy: null, ignoredResources: null}", id="nothing set"),
        pytest.param(
            "NodeResourcesFit",
            "{apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeResourcesFitArgs}",
            id="its kind, as v1 writes it",
        ),
        pytest.param("NodeResourcesBalancedAllocation", "{resources: [{name: example.com/gpu}]}", id="a resource"),
        pytest.param(
            "NodeAffinity", f"{{addedAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {TERM}}}}}", id="terms"
        ),
        pytest.param("InterPodAffinity", "{hardPodAffinityWeight: 100}", id="the largest weight"),
        pytest.param("InterPodAffinity", "{hardPodAffinityWeight: 0}", id="no weight"),
        pytest.param(
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: ["
            "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule},"
            "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}",
            id="the same key with another action",
        ),
        pytest.param("PodTopologySpread", "{defaultingType: List}", id="an empty list"),
        pytest.param("VolumeBinding", "{bindTimeoutSeconds: 0}", id="no wait"),
        pytest.param("DefaultPreemption", "{minCandidateNodesPercentage: 0}", id="no percentage"),
        pytest.param(
            "DefaultPreemption", "{minCandidateNodesAbsolute: 0, minCandidateNodesPercentage: 100}", id="no number"
        ),
    ],
)
def test_valid_arguments_are_taken(name, args):
    assert type(loaded((name, args)).args[name]) is BUILT_IN[name].args_type


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        pytest.param(
            "NodeResourcesFit",
            "{ignoredResources: [-gpu], ignoredResourceGroups: [a/b, ''], scoringStrategy: "
            "{type: Best, resources: [{name: cpu, weight: 101}, {name: memory, weight: -1}], "
            "requestedToCapacityRatio: {}}}",
            [
                ".ignoredResources[0]: want a resource such as example.com/gpu, got '-gpu'",
                ".ignoredResourceGroups[0]: want a group such as example.com, without '/', got 'a/b'",
                ".ignoredResourceGroups[1]: want a group such as example.com, without '/', got ''",
                (".scoringStrategy.type: want LeastAllocated, MostAllocated or RequestedToCapacityRatio, got 'Best'"),
                ".scoringStrategy.resources[0].weight: want 1..100, got 101",
                ".scoringStrategy.resources[1].weight: want 1..100, got -1",
                (
                    ".scoringStrategy.requestedToCapacityRatio: "
                    "want it only where type is RequestedToCapacityRatio, got it with 'Best'"
                ),
            ],
            id="everything about fit",
        ),
        pytest.param(
            "NodeResourcesFit",
            "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: "
            "{shape: [{utilization: 10, score: 11}, {utilization: 10, score: -1}, {utilization: 101, score: 1}]}}}",
            [
                ".scoringStrategy.requestedToCapacityRatio.shape[2].utilization: want 0..100, got 101",
                ".scoringStrategy.requestedToCapacityRatio.shape[0].score: want 0..10, got 11",
                ".scoringStrategy.requestedToCapacityRatio.shape[1].score: want 0..10, got -1",
                (
                    ".scoringStrategy.requestedToCapacityRatio.shape[1].utilization: "
                    "want more than that of the point before (10), got 10"
                ),
            ],
            id="a shape that does not rise",
        ),
        pytest.param(
            "NodeResourcesFit",
            "{scoringStrategy: {type: RequestedToCapacityRatio}}",
            [".scoringStrategy.requestedToCapacityRatio.shape: want at least one point, got none"],
            id="no shape",
        ),
        pytest.param(
            "NodeResourcesBalancedAllocation",
            "{resources: [{name: cpu, weight: 2}, {name: cpu}]}",
            [
                ".resources[1].name: want it once, got 'cpu' once more",
                ".resources[0].weight: want 1, got 2",
            ],
            id="balance with weights",
        ),
        pytest.param(
            "InterPodAffinity",
            "{hardPodAffinityWeight: 101}",
            [".hardPodAffinityWeight: want 0..100, got 101"],
            id="a weight beyond 100",
        ),
        pytest.param(
            "PodTopologySpread",
            "{defaultingType: Both, defaultConstraints: ["
            "{maxSkew: 0, topologyKey: '', whenUnsatisfiable: Never, labelSelector: {}},"
            "{maxSkew: 0, topologyKey: '', whenUnsatisfiable: Never}]}",
            [
                ".defaultingType: want System or List, got 'Both'",
                ".defaultConstraints[0].topologyKey: want a label key such as disk or example.com/disk, got ''",
                ".defaultConstraints[0].maxSkew: want more than 0, got 0",
                ".defaultConstraints[0].whenUnsatisfiable: want DoNotSchedule or ScheduleAnyway, got 'Never'",
                (
                    ".defaultConstraints[0].labelSelector: "
                    "want none, it follows from the pod's services and its controller"
                ),
                ".defaultConstraints[1].topologyKey: want a label key such as disk or example.com/disk, got ''",
                ".defaultConstraints[1].maxSkew: want more than 0, got 0",
                ".defaultConstraints[1].whenUnsatisfiable: want DoNotSchedule or ScheduleAnyway, got 'Never'",
                ".defaultConstraints[1]: want a constraint of its own, got '' with 'Never' once more",
            ],
            id="everything about spread",
        ),
        pytest.param(
            "VolumeBinding",
            "{bindTimeoutSeconds: -1, shape: [{utilization: 0, score: 0}]}",
            [
                ".bindTimeoutSeconds: want 0 or more, got -1",
                ".shape: want none (StorageCapacityScoring is off), got 1 points",
            ],
            id="a negative time, and a shape",
        ),
        pytest.param(
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 101, minCandidateNodesAbsolute: -1}",
            [
                ".minCandidateNodesPercentage: want 0..100, got 101",
                ".minCandidateNodesAbsolute: want 0 or more, got -1",
            ],
            id="candidates out of range",
        ),
        pytest.param(
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}",
            [".minCandidateNodesPercentage: want more than 0, or minCandidateNodesAbsolute more than 0, got 0"],
            id="no candidates",
        ),
        pytest.param(
            "TaintToleration",
            "{tolerations: []}",
            [".tolerations: unknown field, 'TaintToleration' takes no arguments"],
            id="a plugin without arguments",
        ),
        pytest.param(
            "NodeResourcesFit",
            "{kind: NodeAffinityArgs, apiVersion: kubescheduler.config.k8s.io/v2, scoringStrategi: {}}",
            [
                ".apiVersion: want 'kubescheduler.config.k8s.io/v1', got 'kubescheduler.config.k8s.io/v2'",
                ".kind: want 'NodeResourcesFitArgs', got 'NodeAffinityArgs'",
                ".scoringStrategi: unknown field, did you mean 'scoringStrategy'?",
            ],
            id="arguments of another kind and version",
        ),
        pytest.param(
            "NodeResourcesFit",
            "{strategy: {}, scoringStrategy: {type: Nonsense, heft: 1}}",
            [
                ".strategy: unknown field",
                ".scoringStrategy.heft: unknown field",
                (
                    ".scoringStrategy.type: want LeastAllocated, MostAllocated or RequestedToCapacityRatio, "
                    "got 'Nonsense'"
                ),
            ],
            id="an invalid value beside unknown fields",
        ),
        pytest.param(
            "VolumeBinding",
            "{bindTimeoutSeconds: long, nonsense: 1}",
            [".nonsense: unknown field", ".bindTimeoutSeconds: want a whole number, got 'long'"],
            id="a value that cannot be read is not checked as if its default was written",
        ),
    ],
)
def test_every_problem_is_reported_in_a_fixed_order_with_its_path(name, args, expected):
    assert problems((name, args)) == expected


@pytest.mark.parametrize(
    ("name", "args"),
    [
        pytest.param("PodTopologySpread", "{defaultingType: ''}", id="no type"),
        pytest.param("NodeResourcesBalancedAllocation", "{resources: []}", id="no resources to balance"),
        pytest.param(
            "NodeResourcesBalancedAllocation", "{resources: [{name: cpu, weight: 0}, {name: memory}]}", id="0"
        ),
        pytest.param("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, resources: []}}", id="no resources"),
        pytest.param(
            "NodeResourcesFit",
            "{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: 0}, {name: memory}]}}",
            id="a weight of 0",
        ),
    ],
)
def test_what_is_empty_or_zero_is_as_if_it_was_not_written(name, args):
    assert loaded((name, args)).args[name] == BUILT_IN[name].args_type()


def test_labels_of_added_affinity_must_be_ones_that_nodes_can_have():
    term = {"key": "a b", "operator": "In", "values": ["c", "d e"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    path = ".addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
    assert problems(
        ("NodeAffinity", f"{{addedAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {required}}}}}")
    ) == [
        f"{path}.key: want a label key such as disk or example.com/disk, got 'a b'",
        f"{path}.values[1]: want a label value of at most 63 letters, digits, '-', '_' and '.', got 'd e'",
    ]


def test_problems_of_several_plugins_are_reported_together():
    found = problems(("InterPodAffinity", "{hardPodAffinityWeight: -1}"), ("VolumeBinding", "{bindTimeoutSeconds: -1}"))
    assert found == [
        ".hardPodAffinityWeight: want 0..100, got -1",
        "profiles[0].pluginConfig[1].args.bindTimeoutSeconds: want 0 or more, got -1",
    ]
