"""Plugins are left out of the cycle of exactly those pods for which they would do nothing (`Plugin.only_for`)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.meta import LabelSelector, ObjectMeta, OwnerReference
from berth.api.pod import (
    Affinity,
    ClaimSource,
    Container,
    ContainerPort,
    NodeAffinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodResourceClaim,
    PodSchedulingGate,
    PodSpec,
    TopologySpreadConstraint,
    Volume,
)
from berth.api.workloads import Service
from berth.cluster.nodes import Nodes
from berth.cluster.pods import TRAITS_OF_CLASS, Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.interface import (
    SNAPSHOT,
    FilterPlugin,
    Plugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    Reads,
    ReservePlugin,
    ScorePlugin,
    VectorFilterPlugin,
)
from berth.framework.plugincalls import run_filter_on_all
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Code, CycleState
from berth.plugins.nodeaffinity import NodeAffinityArgs, NodeAffinityPlugin
from berth.plugins.schedulinggates import SchedulingGates
from berth.profiles.configuration import profiles_of, read_configuration
from berth.settings.presets import every_gate
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile, profile_of
from harness.builders.random_clusters import histories, pods, replayed
from harness.plugins.long_runs import often

OF_1_18 = read_configuration(
    None, provider="DefaultProvider", gates=",".join(f"{gate.name}=true" for gate in every_gate())
)


def of_1_18() -> Profile:
    return profiles_of(OF_1_18)["berth"]


def calling_all(profile: Profile) -> Profile:
    for plugin in plugins_of(profile).values():
        plugin.only_for = None
    return replace(profile)


def plugins_of(profile: Profile) -> dict[str, Plugin]:
    scoring = (*profile.pre_scores, *(score.plugin for score in profile.scores))
    steps = (*profile.reserves, *profile.permits, *profile.pre_binds)
    return {p.name: p for p in (*profile.pre_filters, *profile.filters, *scoring, *steps)}


@pytest.mark.slow
@pytest.mark.parametrize("make", [default_profile, of_1_18])
@settings(max_examples=often(6), deadline=None)
@given(history=histories(), waiting=st.lists(pods, min_size=5, max_size=5))
def test_a_plugin_that_is_left_out_would_do_nothing(make, history, waiting):
    for pod in waiting:
        snapshot, profile = replayed(history), make()
        for name in profile.left_out(snapshot.traits_of(pod)):
            does_nothing(plugins_of(profile)[name], pod, snapshot)
        rankings = [rank(pod, snapshot, each, attempt=first_attempt(pod)) for each in (profile, calling_all(make()))]
        assert rankings[0] == rankings[1]


def does_nothing(plugin: Plugin, pod: Pod, snapshot: Snapshot) -> None:
    state, nodes, name = CycleState(snapshot.class_of(pod)), Nodes(snapshot), plugin.name
    state.write(SNAPSHOT, snapshot)
    if isinstance(plugin, PreFilterPlugin):
        assert plugin.pre_filter(state, pod, snapshot).status.code is Code.SKIP, name
    elif isinstance(plugin, FilterPlugin):
        assert not run_filter_on_all(plugin, state, pod, nodes).codes[nodes.exists].any(), name
    if isinstance(plugin, ScorePlugin):
        assert isinstance(plugin, PreScorePlugin), f"{name} without PreScore adds a part to the scores"
        assert plugin.pre_score(state, pod, nodes).code is Code.SKIP, name
    for node in snapshot.node_names():
        if isinstance(plugin, ReservePlugin):
            assert plugin.reserve(state, pod, node) == SUCCESS, name
        if isinstance(plugin, PreBindPlugin):
            assert plugin.writes(state, pod, node) == (), name
            assert plugin.pre_bind(state, pod, node) == SUCCESS, name


def with_spec(**fields: object) -> Pod:
    return Pod(metadata=ObjectMeta(name="p", namespace="default", uid="p"), spec=PodSpec(**fields))


TERM = PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels={"app": "web"}))
ANTI_AFFINITY = Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[TERM]))
CLAIM = Volume(name="v", persistent_volume_claim=ClaimSource(claim_name="c"))
SPREAD = TopologySpreadConstraint(max_skew=1, topology_key="zone", when_unsatisfiable="DoNotSchedule")
OWNED = Pod(
    metadata=ObjectMeta(
        name="p",
        namespace="default",
        uid="p",
        owner_references=[OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="r", uid="r", controller=True)],
    ),
    spec=PodSpec(),
)
VOLUMES = ("VolumeRestrictions", "VolumeBinding", "VolumeZone", "NodeVolumeLimits")


@pytest.mark.parametrize(
    ("pod", "called"),
    [
        pytest.param(with_spec(), (), id="plain"),
        pytest.param(with_spec(volumes=[Volume(name="kube-api-access-x")]), (), id="token"),
        pytest.param(with_spec(volumes=[CLAIM]), VOLUMES, id="claim"),
        pytest.param(with_spec(node_name="n"), ("NodeName",), id="node name"),
        pytest.param(with_spec(node_selector={"a": "b"}), ("NodeAffinity",), id="node selector"),
        pytest.param(with_spec(affinity=Affinity(node_affinity=NodeAffinity())), ("NodeAffinity",), id="node affinity"),
        pytest.param(
            with_spec(containers=[Container(name="c", ports=[ContainerPort(host_port=80)])]),
            ("NodePorts",),
            id="host port",
        ),
        pytest.param(with_spec(host_users=False), ("NodeDeclaredFeatures",), id="host users"),
        pytest.param(
            with_spec(resource_claims=[PodResourceClaim(name="gpu")]), ("DynamicResources",), id="resource claim"
        ),
        pytest.param(with_spec(affinity=ANTI_AFFINITY), ("InterPodAffinity",), id="pod affinity"),
        pytest.param(with_spec(topology_spread_constraints=[SPREAD]), ("PodTopologySpread",), id="spread"),
        pytest.param(OWNED, ("PodTopologySpread",), id="owned"),
    ],
)
def test_a_pod_with_a_trait_has_the_plugins_of_this_trait(pod, called):
    profile, snapshot = default_profile(), Snapshot()
    particular = {p.name for p in plugins_of(profile).values() if p.only_for is not None}
    assert particular - profile.left_out(snapshot.traits_of(pod)) == set(called)


def test_what_is_in_the_snapshot_decides_too():
    profile, snapshot, pod = default_profile(), Snapshot(), with_spec()
    before = profile.left_out(snapshot.traits_of(pod))
    snapshot.place(Pod(metadata=ObjectMeta(name="o", uid="o"), spec=PodSpec(affinity=ANTI_AFFINITY)), "n")
    assert before - profile.left_out(snapshot.traits_of(pod)) == {"InterPodAffinity"}
    service = Service(metadata=ObjectMeta(name="s", namespace="default"))
    snapshot.objects(Service).set("default/s", service)
    assert before - profile.left_out(snapshot.traits_of(pod)) == {"InterPodAffinity", "PodTopologySpread"}


def test_a_cordoned_node_decides_for_pods_of_known_classes_too():
    profile, snapshot, pod = default_profile(), Snapshot(), a_pod()
    snapshot.set_node(a_node("n"))
    for is_cordoned in (False, True, False):
        snapshot.set_node(a_node("n", unschedulable=is_cordoned))
        assert ("NodeUnschedulable" in profile.left_out(snapshot.traits_of(pod))) is not is_cordoned
        found = rank(pod, snapshot, profile, attempt=first_attempt(pod))
        assert bool(found.candidates) is not is_cordoned
        assert [each.plugin for each in found.rejections] == ["NodeUnschedulable"] * is_cordoned


def test_added_affinity_matters_to_every_pod():
    profile = profile_of(NodeAffinityPlugin(NodeAffinityArgs(added_affinity=NodeAffinity())))
    assert profile.left_out(0) == frozenset()


def test_a_filter_without_its_pre_filter_is_called():
    """It never returns Skip then, and fails as in kube-scheduler if it needs what PreFilter stores."""
    profile = default_profile()
    without = tuple(p for p in profile.pre_filters if p.name != "PodTopologySpread")
    assert "PodTopologySpread" not in replace(profile, pre_filters=without).left_out(0)
    assert "PodTopologySpread" in profile.left_out(0)


class ForVolumes(VectorFilterPlugin):
    """Of somebody else: row-local, so its verdict is kept for pods of the class with volumes and without."""

    name: ClassVar[str] = "ForVolumes"
    reads = Reads.NODE
    only_for = Trait.VOLUMES

    def filter(self, state, pod, node):
        return SUCCESS

    def filter_all(self, state, pod, nodes):
        raise NotImplementedError


def test_a_row_local_plugin_is_left_out_only_by_traits_of_the_class():
    assert not Trait.VOLUMES & TRAITS_OF_CLASS
    assert profile_of(ForVolumes()).left_out(0) == frozenset()


class Admitting(PreEnqueuePlugin):
    """Of somebody else: at PreEnqueue there is no Snapshot, whose objects decide which volumes plugins read."""

    name: ClassVar[str] = "Admitting"
    only_for = Trait.VOLUMES

    def pre_enqueue(self, pod):
        return SUCCESS


def test_pre_enqueue_leaves_out_what_matters_to_gated_pods_only():
    profile, gated = (
        profile_of(SchedulingGates(), Admitting()),
        with_spec(scheduling_gates=[PodSchedulingGate(name="g")]),
    )
    assert [plugin.name for plugin in profile.pre_enqueues_of(gated)] == ["SchedulingGates", "Admitting"]
    assert [plugin.name for plugin in profile.pre_enqueues_of(with_spec())] == ["Admitting"]
    for plugin in set(profile.pre_enqueues) - set(profile.pre_enqueues_of(with_spec())):
        assert plugin.pre_enqueue(with_spec()) == SUCCESS


def test_a_plugin_of_somebody_else_is_called_for_every_pod():
    calls = []

    class Counting(ScorePlugin):
        name: ClassVar[str] = "Counting"

        def score(self, state, pod, node):
            calls.append(node.name)
            return 1

    snapshot = Snapshot()
    for name in ("a", "b"):
        snapshot.set_node(a_node(name))
    rank(a_pod(), snapshot, profile_of(Counting()), attempt=first_attempt(a_pod()))
    assert {"a", "b"} <= set(calls)
