"""Profiles made from a configuration, the order of the queue, and which events requeue a pod."""

from datetime import UTC, datetime

import pytest

from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.api.pod import PodSchedulingGate
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, FilterPlugin, PreBindPlugin, PreEnqueuePlugin
from berth.framework.plugincalls import pre_enqueue, run_sort_key
from berth.framework.profile import Profile, build_profiles
from berth.framework.status import SUCCESS, Code
from berth.plugins.registry import BUILT_IN
from harness.builders.objects import a_node, a_pod, pod_requesting
from harness.builders.profiles import default_profile, profile_of
from harness.worlds.queueing_hints import may_help

MORNING, NOON = datetime(2026, 1, 1, 6, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC)
NODE_ADDED = ClusterEvent(Resource.NODE, Action.ADD)
BANDWIDTH = ClusterEvent(Resource.BANDWIDTH, Action.UPDATE)


def profiles(body: str) -> dict[str, Profile]:
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    return build_profiles(load(head + body, known=BUILT_IN, preset=DEFAULT), BUILT_IN)


def test_without_a_file_there_is_one_profile_of_the_default_plugins():
    profile = default_profile()
    assert profile.scheduler_name == "berth"
    assert [p.name for p in profile.filters] == [
        "PodGroupTopology",
        "NodeUnschedulable",
        "NodeName",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "VolumeRestrictions",
        "NodeVolumeLimits",
        "VolumeBinding",
        "VolumeZone",
        "PodTopologySpread",
        "InterPodAffinity",
        "DynamicResources",
        "NodeDeclaredFeatures",
    ]
    assert profile.weights == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "DynamicResources": 2,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }
    assert profile.fewer_pods_first is True


def test_weights_places_and_arguments_come_from_the_file():
    profile = profiles("""
profiles:
- schedulerName: packed
  plugins:
    score: {disabled: [{name: "*"}], enabled: [{name: NodeResourcesFit, weight: 5}, {name: TaintToleration}]}
    filter: {disabled: [{name: NodeName}]}
  pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
""")["packed"]
    assert profile.weights == {"NodeResourcesFit": 5, "TaintToleration": 1}
    assert "NodeName" not in [p.name for p in profile.filters]
    assert profile.fewer_pods_first is False


def test_a_plugin_is_one_instance_at_all_its_points():
    profile = default_profile()
    fits = {id(p) for points in (profile.pre_filters, profile.filters) for p in points if p.name == "NodeResourcesFit"}
    assert fits == {id(s.plugin) for s in profile.scores if s.plugin.name == "NodeResourcesFit"}


def test_important_pods_come_first_then_those_that_waited_longer():
    profile = default_profile()
    keys = {
        "old": run_sort_key(profile.queue_sort, a_pod(), MORNING),
        "young": run_sort_key(profile.queue_sort, a_pod(), NOON),
        "important": run_sort_key(profile.queue_sort, a_pod(priority=5), NOON),
    }
    assert sorted(keys, key=keys.__getitem__) == ["important", "old", "young"]


def test_gates_keep_a_pod_out_of_the_queue():
    gated = a_pod(scheduling_gates=[PodSchedulingGate(name="quota"), PodSchedulingGate(name="image")])
    status = pre_enqueue(default_profile().pre_enqueues, gated)
    assert status.reasons == ("waiting for scheduling gates: [quota image]",)
    assert (status.plugin, status.code) == ("SchedulingGates", Code.UNSCHEDULABLE_AND_UNRESOLVABLE)
    assert pre_enqueue(default_profile().pre_enqueues, a_pod()) is SUCCESS


class BrokenGate(PreEnqueuePlugin):
    name = "BrokenGate"

    def pre_enqueue(self, pod):
        raise OSError("no answer")


def test_a_failing_gate_plugin_keeps_the_pod_out_and_is_named():
    status = pre_enqueue([BrokenGate()], a_pod())
    line = BrokenGate.pre_enqueue.__code__.co_firstlineno + 1
    assert status.reasons == (f'running PreEnqueue plugin "BrokenGate": OSError: no answer (test_profile.py:{line})',)


class Waiting(FilterPlugin, EnqueueExtensions):
    name = "Waiting"

    def __init__(self, *hints: EventHint) -> None:
        self._hints = hints

    def filter(self, state, pod, node):
        return SUCCESS

    def events(self):
        return self._hints


class Silent(FilterPlugin):
    name = "Silent"

    def filter(self, state, pod, node):
        return SUCCESS


def _broken_hint(pod, old, new):
    raise TypeError


@pytest.mark.parametrize(
    ("blockers", "event", "helps"),
    [
        pytest.param(["Waiting"], NODE_ADDED, True, id="its event"),
        pytest.param(["Waiting"], BANDWIDTH, False, id="another event"),
        pytest.param(["Waiting", "Silent"], BANDWIDTH, True, id="a plugin that names no events"),
        pytest.param(["Unknown"], BANDWIDTH, True, id="a plugin that is not there any more"),
        pytest.param([], BANDWIDTH, True, id="no plugin rejected"),
    ],
)
def test_events_that_may_help(blockers, event, helps):
    profile = profile_of(Waiting(EventHint(NODE_ADDED)), Silent())
    assert may_help(profile, blockers, event, a_pod(), None, a_node("n")) is helps


def test_a_hint_decides_by_the_objects_of_the_event():
    profile = profile_of(Waiting(EventHint(NODE_ADDED, lambda pod, old, new: new.metadata.name == "right")))
    assert may_help(profile, ["Waiting"], NODE_ADDED, pod_requesting(), None, a_node("right"))
    assert not may_help(profile, ["Waiting"], NODE_ADDED, pod_requesting(), None, a_node("wrong"))


def test_a_hint_that_fails_requeues_the_pod():
    profile = profile_of(Waiting(EventHint(NODE_ADDED, _broken_hint)))
    assert may_help(profile, ["Waiting"], NODE_ADDED, pod_requesting(), None, a_node("n"))


class Preparing(PreBindPlugin):
    name = "Preparing"

    def pre_bind(self, state, pod, node):
        return SUCCESS


def test_plugins_that_may_reject_a_pod_are_known_by_name():
    """A metric is labelled with these names, and with no other: anybody may write one into a Decision."""
    assert profile_of(Silent(), Preparing()).rejecting == {"Silent", "Preparing", "GroupEarmark"}
