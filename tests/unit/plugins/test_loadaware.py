"""LoadAwareScheduling: Koordinator's arithmetic, its thresholds in their order, and where berth differs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.config.load import load
from berth.api.config.nodeload.koordinator import (
    LoadAwareSchedulingAggregatedArgs,
    LoadAwareSchedulingArgs,
    readings_of,
    usual_reading,
)
from berth.api.config.presets import DEFAULT
from berth.api.pod import Pod
from berth.cluster.nodes import node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.events import Action, ClusterEvent, LiveDataUpdate, Resource
from berth.framework.status import CycleState
from berth.messages.livedata import LiveSource, NodeSample, encode_sample
from berth.plugins.nodeload.koordinator import FACTORS, FACTORY, LoadAwareScheduling, priority_class
from berth.plugins.registry import BUILT_IN
from berth.profiles.configuration import profiles_of
from berth_cli.remedies.rejections import remedies_of
from harness.builders.loads import NOW, labelled, measured, percents, points, using
from harness.builders.objects import a_node, first_attempt
from harness.builders.profiles import profile_of
from harness.plugins.long_runs import often
from harness.worlds.queueing_hints import may_help

WEB = using(cpu="1", memory="1Gi")  # estimated at 850 millicores and 0.7 GiB: 8.5 % and 7 % of a node
P95 = LoadAwareSchedulingAggregatedArgs(usage_thresholds={"cpu": 60}, usage_aggregation_type="p95")


def args(**more) -> LoadAwareSchedulingArgs:
    return LoadAwareSchedulingArgs(**more)


def cluster(how: LoadAwareSchedulingArgs, **samples: NodeSample | None) -> Snapshot:
    return measured(samples, *readings_of(how))


SCORES = [
    # cpu (10000 - 5850) * 100 / 10000 = 41; memory (10 - 2.7) * 100 / 10 = 72 (73 less a byte); (41 + 72) / 2
    pytest.param({}, percents(50, 20), 56, id="the mean of whole numbers"),
    # (41 x 3 + 72) / 4 = 48
    pytest.param({"resource_weights": {"cpu": 3, "memory": 1}}, percents(50, 20), 48, id="weights"),
    # the lowest is 41: (41 + 72 + 41 x 2) / 4 = 48
    pytest.param(
        {"resource_weights": {"cpu": 1, "memory": 1}, "dominant_resource_weight": 2},
        percents(50, 20),
        48,
        id="dominant",
    ),
    pytest.param({"dominant_resource_weight": 1}, percents(50, 20), 41, id="dominant alone"),
    pytest.param({}, percents(150, 20), 36, id="beyond what is allocatable 0"),
]


@pytest.mark.parametrize(("more", "sample", "expected"), SCORES)
def test_scores(more, sample, expected):
    how = args(**more)
    assert points(LoadAwareScheduling(how), cluster(how, a=sample), WEB) == {"a": expected}


def test_a_percentile_scores_where_it_is_asked_for():
    how = args(resource_weights={"cpu": 1}, aggregated=LoadAwareSchedulingAggregatedArgs(score_aggregation_type="p95"))
    assert points(LoadAwareScheduling(how), cluster(how, a=percents(10, p95=7000.0)), WEB) == {"a": 21}


def test_a_node_without_a_recent_sample_is_the_mean_and_not_0_points():
    how = args(resource_weights={"cpu": 1})  # samples count for 180 s
    snapshot = cluster(how, low=percents(10), high=percents(50), old=percents(1, ago=181))
    assert points(LoadAwareScheduling(how), snapshot, WEB) == {"low": 81, "high": 41, "old": 61}


def test_pods_of_batch_are_estimated_by_what_they_request_in_place_of_cpu():
    how = args(resource_weights={"cpu": 1})
    batch = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1Gi"}
    pod = labelled(using(**batch), **{"koordinator.sh/priority-class": "koord-batch"})
    # 85 % of 2000 millicores = 17 %
    assert points(LoadAwareScheduling(how), cluster(how, a=percents(0)), pod) == {"a": 83}


def test_an_estimate_is_held_for_the_seconds_that_are_asked_for():
    how = args(resource_weights={"cpu": 1}, estimated_seconds_after_pod_scheduled=60)
    snapshot = cluster(how, a=percents(0))
    snapshot.place(using("held", cpu="2"), "a", bound_at=NOW - 60)  # 17 %, not faded yet
    snapshot.place(using("fading", cpu="2"), "a", bound_at=NOW - 60 - 150)  # of the range of 300 s half: 8.5 %
    assert points(LoadAwareScheduling(how), snapshot, using(cpu="1")) == {"a": 66}  # 100 - 17 - 8.5 - 8.5


@pytest.mark.parametrize(
    ("scheduled", "initialized", "held"), [(60, 0, 60), (0, 90, 90), (60, 90, 90), (90, 60, 90), (0, 0, 0)]
)
def test_both_times_count_from_the_binding_and_the_longer_holds(scheduled, initialized, held):
    how = args(estimated_seconds_after_pod_scheduled=scheduled, estimated_seconds_after_initialized=initialized)
    assert free_after(how, using("web", cpu="2"), since=held) == 74  # 100 - 17, held in full, - 8.5
    assert free_after(how, using("web", cpu="2"), since=held + 300) == 91  # 100 - 0 - 8.5


def free_after(how: LoadAwareSchedulingArgs, pod: Pod, since: float) -> int:
    """The score by CPU of a node for WEB, with a pod that was bound to it this many seconds ago."""
    how = msgspec.structs.replace(how, resource_weights={"cpu": 1})
    snapshot = cluster(how, a=percents(0))
    snapshot.place(pod, "a", bound_at=NOW - since)
    return points(LoadAwareScheduling(how), snapshot, WEB)["a"]


def annotated(**values: str) -> Pod:
    """A pod of 2 cores with Koordinator's annotations of this ending."""
    pod = using("web", cpu="2")
    annotations = {
        f"scheduling.koordinator.sh/load-estimated-{name.replace('_', '-')}": v for name, v in values.items()
    }
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))


ANNOTATED = [
    # 100 - 8.5 - 2000 millicores x 10 % of 10 cores = 2
    pytest.param({"scaling_factors": '{"cpu": 10}'}, 89, id="its own factor"),
    pytest.param({"scaling_factors": '{"memory": 10}'}, 74, id="another resource's"),
    pytest.param({"scaling_factors": '{"cpu": "10"}'}, 74, id="not numbers"),
    pytest.param({"scaling_factors": '{"cpu": 1001}'}, 74, id="too large a number"),
    pytest.param({"scaling_factors": '{"cpu": 10'}, 74, id="not JSON"),
    pytest.param({"scaling_factors": " " * 300 + '{"cpu": 10}'}, 74, id="too long"),
]


@pytest.mark.parametrize(("annotations", "expected"), ANNOTATED)
def test_a_pods_own_factors_count_if_that_is_allowed(annotations, expected):
    assert free_after(args(allow_customize_estimation=True), annotated(**annotations), since=0) == expected
    assert free_after(args(), annotated(**annotations), since=0) == 74


SECONDS = [
    pytest.param({"seconds_after_pod_scheduled": "300"}, 74, id="its own seconds"),
    pytest.param({"seconds_after_initialized": "300"}, 74, id="after initialization"),
    pytest.param({"seconds_after_pod_scheduled": "0"}, 91, id="none"),
    # the file's 60 s: of the range of 300 s a fifth is left: 100 - 17 / 5 - 8.5 = 88.1
    pytest.param({"seconds_after_pod_scheduled": "-1"}, 88, id="no number of seconds"),
    pytest.param({"seconds_after_pod_scheduled": "9" * 5000}, 88, id="more than a day"),
]


@pytest.mark.parametrize(("annotations", "expected"), SECONDS)
def test_a_pods_own_seconds_count_if_that_is_allowed(annotations, expected):
    how = args(estimated_seconds_after_pod_scheduled=60, allow_customize_estimation=True)
    assert free_after(how, annotated(**annotations), since=300) == expected


CLASSES = [
    pytest.param({}, {"koordinator.sh/priority-class": "koord-mid"}, "koord-mid", id="label"),
    pytest.param({"priority": 5500}, {}, "koord-batch", id="priority"),
    pytest.param({"priority": 100}, {}, "koord-prod", id="a priority of no class"),
    pytest.param({}, {"koordinator.sh/qosClass": "BE"}, "koord-batch", id="QoS"),
    pytest.param({}, {"koordinator.sh/qosClass": "LSR"}, "koord-prod", id="QoS of services"),
]


@pytest.mark.parametrize(("spec", "labels", "expected"), CLASSES)
def test_the_class_of_a_pod(spec, labels, expected):
    pod = labelled(using(cpu="1"), **labels)
    assert priority_class(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))) == expected


def test_a_pod_without_requests_is_of_batch():
    assert priority_class(using()) == "koord-batch"


# What is kept by class and key.

KEPT = [
    pytest.param(args(), id="thresholds"),
    pytest.param(args(usage_thresholds={"cpu": 0, "memory": 0}, dominant_resource_weight=2), id="score alone"),
    pytest.param(
        args(prod_usage_thresholds={"cpu": 45}, score_according_prod_usage=True, prod_usage_include_sys=True), id="prod"
    ),
    pytest.param(
        args(
            aggregated=msgspec.structs.replace(P95, score_aggregation_type="p90"),
            estimated_seconds_after_initialized=50,
        ),
        id="percentiles",
    ),
    pytest.param(args(allow_customize_estimation=True), id="annotations"),
]
NAMES = "abc"
# Of one spec but for the fourth: what differs besides is read by this plugin alone.
PODS = [
    using("prod", cpu="1", memory="1Gi", **{"kubernetes.io/batch-cpu": "4000"}),
    labelled(
        using("batch", cpu="1", memory="1Gi", **{"kubernetes.io/batch-cpu": "4000"}),
        **{"koordinator.sh/qosClass": "BE"},
    ),
    msgspec.structs.replace(
        using("own", cpu="1", memory="1Gi", **{"kubernetes.io/batch-cpu": "4000"}),
        metadata=msgspec.structs.replace(using("own").metadata, annotations={FACTORS: '{"cpu": 10}'}),
    ),
    using("larger", cpu="3", memory="1Gi", **{"kubernetes.io/batch-cpu": "4000"}),
]
histories = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("pod"), st.sampled_from(NAMES), st.integers(0, 7), st.none() | st.integers(-400, 0)),
        st.tuples(st.just("sample"), st.sampled_from(NAMES), st.none() | st.integers(0, 90), st.integers(0, 150)),
        st.tuples(st.just("time"), st.integers(1, 100)),
    ),
    max_size=20,
)


@pytest.mark.parametrize("how", KEPT)
@settings(max_examples=often(20))
@given(history=histories)
def test_what_is_kept_never_changes_a_ranking_and_pods_with_other_keys_share_no_score(how, history):
    snapshot, profile = (
        cluster(how, **dict.fromkeys(NAMES, percents(30, 30, p90=4000.0))),
        profile_of(FACTORY.build(how)),
    )
    for event in history:
        for pod in PODS:
            new = rank(pod, snapshot.copied(), profile_of(FACTORY.build(how)), attempt=first_attempt(pod))
            assert rank(pod, snapshot, profile, attempt=first_attempt(pod)) == new
        happen(event, snapshot, how)


def happen(event: tuple, snapshot: Snapshot, how: LoadAwareSchedulingArgs) -> None:
    match event:
        case ("node", name, True):
            snapshot.set_node(a_node(name, cpu="10", memory="10Gi"))
        case ("node", name, False):
            snapshot.remove_node(name)
        case ("pod", name, number, since):
            like = PODS[number % 4]
            metadata = msgspec.structs.replace(like.metadata, name=f"p{number}", uid=f"p{number}")
            snapshot.remove_pod(f"p{number}")
            placed = msgspec.structs.replace(like, metadata=metadata)
            snapshot.place(placed, name, bound_at=None if since is None else snapshot.live.now + since)
        case ("sample", name, cpu, ago):
            ago += NOW - snapshot.live.now
            sample = None if cpu is None else percents(cpu, 90 - cpu, ago=ago, p90=100.0 * cpu, p95=105.0 * cpu)
            for reading in readings_of(how):
                snapshot.live.set_sample(reading.query.token, name, sample)
        case ("time", seconds):
            snapshot.live.observe_time(snapshot.live.now + seconds)


def test_nodes_are_not_scored_again_for_a_pod_of_a_known_key():
    plugin = LoadAwareScheduling(args())
    scored = Counter[str]()
    vector_form = plugin.score_all

    def counted(state, pod, nodes):
        scored[pod.metadata.name] += len(nodes)
        return vector_form(state, pod, nodes)

    plugin.score_all = counted
    snapshot, profile = cluster(args(), a=percents(30, 30), b=percents(30, 30)), profile_of(plugin)
    for number in range(3):
        for like in PODS[:2]:
            metadata = msgspec.structs.replace(like.metadata, uid=f"{like.metadata.name}-{number}")
            pod = msgspec.structs.replace(like, metadata=metadata)
            rank(pod, snapshot, profile, attempt=first_attempt(pod))
    assert scored == {"prod": 2, "batch": 2}


# Filter.

CPU = "node(s) had too much CPU in use"


def reasons(how: LoadAwareSchedulingArgs, snapshot: Snapshot, pod=WEB) -> dict[str, tuple[str, ...]]:
    profile = profile_of(FACTORY.build(how))
    return {name: check(pod, name, snapshot, profile).reasons for name in snapshot.node_names()}


def test_the_default_thresholds_are_65_and_95_percent():
    how = args()
    # 56.4 + 8.5 = 64.9, rounded 65: fits; 57 + 8.5 = 65.5, rounded 66
    snapshot = cluster(how, fits=percents(56.4, 80), full=percents(57, 80), old=percents(99, 99, ago=181), none=None)
    assert reasons(how, snapshot) == {"fits": (), "full": (CPU,), "old": (), "none": ()}


def test_expired_metrics_refuse_no_node_however_the_file_is_written():
    how = args(filter_expired_node_metrics=True, enable_schedule_when_node_metrics_expired=False)
    assert reasons(how, cluster(how, old=percents(10, 10, ago=1000))) == {"old": ()}
    assert profile_of(FACTORY.build(how)).rejects_for == {"LoadAwareScheduling": 180.0}


def test_a_threshold_of_0_is_none():
    how = args(usage_thresholds={"cpu": 0, "memory": 0})
    assert type(FACTORY.build(how)) is LoadAwareScheduling


def test_the_percentile_replaces_the_mean():
    how = args(usage_thresholds={"cpu": 10}, aggregated=P95)
    snapshot = cluster(how, calm=percents(50, p95=5100.0), peaks=percents(50, p95=5300.0))
    assert reasons(how, snapshot) == {"calm": (), "peaks": (CPU,)}


def on_a_node(how: LoadAwareSchedulingArgs, cpu_percent: float) -> Snapshot:
    """A node that uses so much, with 4 cores of koord-prod and 4 of koord-batch that samples show."""
    snapshot = cluster(how, a=percents(cpu_percent, 10))
    snapshot.place(using("prod", cpu="4"), "a", bound_at=NOW - 1000)
    batch = labelled(using("batch", **{"kubernetes.io/batch-cpu": "4000"}), **{"koordinator.sh/qosClass": "BE"})
    snapshot.place(batch, "a", bound_at=NOW - 1000)
    return snapshot


def test_pods_of_prod_have_their_own_threshold_by_what_prod_uses():
    how = args(usage_thresholds={"cpu": 90}, prod_usage_thresholds={"cpu": 45})
    # of 72 %, half is koord-prod's: 36 + 8.5 = 44.5, rounded 45; of 74 %: 37 + 8.5 = 45.5, rounded 46
    assert reasons(how, on_a_node(how, 72)) == {"a": ()}
    assert reasons(how, on_a_node(how, 74)) == {"a": (CPU,)}
    # a pod of koord-batch: 74 + 2.5 for the default of 250 millicores
    assert reasons(how, on_a_node(how, 74), using()) == {"a": ()}


def test_what_no_pod_is_estimated_to_use_counts_as_prods_where_that_is_asked_for():
    # koord-batch is estimated at 34 %: 90 - 34 = 56, and more than half of 90
    how = args(resource_weights={"cpu": 1}, score_according_prod_usage=True)
    assert points(LoadAwareScheduling(how), on_a_node(how, 90), WEB) == {"a": 46}  # 100 - 45 - 8.5
    how = args(resource_weights={"cpu": 1}, score_according_prod_usage=True, prod_usage_include_sys=True)
    assert points(LoadAwareScheduling(how), on_a_node(how, 90), WEB) == {"a": 35}  # 100 - 56 - 8.5


def test_the_explanation_of_what_prod_uses_follows_the_pods_on_the_node():
    how = args(score_according_prod_usage=True)
    others = {f"n{number}": percents(50, 50) for number in range(9)}  # enough for a change of one to leave the rest
    snapshot = cluster(how, a=percents(50, 50), **others)
    profile = profile_of(LoadAwareScheduling(how))
    pods = [using("batch"), using("prod", cpu="1"), using("another", cpu="1")]
    for pod in pods:
        kept, new = (rank(WEB, each, profile, attempt=first_attempt(WEB)) for each in (snapshot, snapshot.copied()))
        assert [each.details for each in kept.candidates] == [each.details for each in new.candidates]
        snapshot.place(pod, "a", bound_at=NOW - 1000)


def test_what_prod_uses_is_called_so():
    how = args(resource_weights={"cpu": 1}, score_according_prod_usage=True, prod_usage_thresholds={"cpu": 45})
    plugin, snapshot = FACTORY.build(how), on_a_node(how, 80)
    line = plugin.explain(CycleState(snapshot.class_of(WEB)), WEB, node_info(snapshot, "a"))
    assert line == "40 % of CPU used by koord-prod, sample 0 s old"
    (found,) = remedies_of(WEB, snapshot, profile_of(plugin))
    assert found.text == (
        "would bring CPU above 45 %: a has 40 % in use by koord-prod, and the pod is estimated at 8 %"
    )


def test_newcomers_of_other_classes_do_not_count_for_prod():
    how = args(resource_weights={"cpu": 1}, score_according_prod_usage=True)
    snapshot = on_a_node(how, 80)
    batch = labelled(using("new", **{"kubernetes.io/batch-cpu": "4000"}), **{"koordinator.sh/qosClass": "BE"})
    snapshot.place(batch, "a")
    assert points(LoadAwareScheduling(how), snapshot, WEB) == {"a": 51}  # 100 - 40 - 8.5
    snapshot.place(using("prod-new", cpu="1"), "a")
    assert points(LoadAwareScheduling(how), snapshot, WEB) == {"a": 43}


@pytest.mark.parametrize(
    ("pod", "cpu", "helps"),
    [
        pytest.param(using(), 85.0, True, id="5 points below the threshold of others"),
        pytest.param(using(), 86.0, False, id="less than 5 points below"),
        pytest.param(WEB, 99.0, True, id="nobody knows what koord-prod uses of it"),
        pytest.param(using(cpu="6"), 1.0, False, id="the pod alone is above the threshold of koord-prod"),
    ],
)
def test_a_sample_below_the_pods_own_threshold_helps(pod, cpu, helps):
    how = args(usage_thresholds={"cpu": 90}, prod_usage_thresholds={"cpu": 45})
    source = LiveSource(bucket="bandwidth", name=usual_reading(how).query.token)
    update = LiveDataUpdate(source=source, node="n", data=encode_sample(percents(cpu, 10)))
    event = ClusterEvent(Resource.BANDWIDTH, Action.UPDATE)
    assert may_help(profile_of(FACTORY.build(how)), ["LoadAwareScheduling"], event, pod, None, update) is helps


def test_ranges_of_percentiles_are_their_own_queries():
    how = args(aggregated=msgspec.structs.replace(P95, usage_aggregated_duration=timedelta(minutes=10)))
    assert [reading.query.time_range.total_seconds() for reading in readings_of(how)] == [300, 600]
    assert len(FACTORY.build(how).live_sources) == 2


FILE = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: koord-scheduler
  pluginConfig:
  - name: LoadAwareScheduling
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: LoadAwareSchedulingArgs
      filterExpiredNodeMetrics: false
      nodeMetricExpirationSeconds: 300
      resourceWeights: {cpu: 1, memory: 1}
      usageThresholds: {cpu: 65, memory: 95}
      estimatedScalingFactors: {cpu: 85, memory: 70}
  plugins:
    preFilter: {enabled: [{name: LoadAwareScheduling}]}
    filter: {enabled: [{name: LoadAwareScheduling}]}
    score: {enabled: [{name: LoadAwareScheduling, weight: 2}]}
    reserve: {enabled: [{name: LoadAwareScheduling}]}
"""


def test_a_file_of_koordinator_makes_a_profile_with_its_filter_and_score():
    profile = profiles_of(load(FILE, known=BUILT_IN, preset=DEFAULT))["koord-scheduler"]
    assert [plugin.name for plugin in profile.filters][-1] == "LoadAwareScheduling"
    assert [score.weight for score in profile.scores if score.plugin.name == "LoadAwareScheduling"] == [2]
