"""Arguments of the plugins that score by measured load: files of three projects, what they ask, what is refused."""

from datetime import timedelta

import msgspec
import pytest

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import ConfigurationError, load
from berth.api.config.nodeload import koordinator
from berth.api.config.nodeload.plugins import LOAD_PLUGINS, load_queries
from berth.api.config.presets import DEFAULT

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def loaded(name: str, args: str = "{}", *, points: str = "score") -> KubeSchedulerConfiguration:
    plugins = "".join(f"    {point}: {{enabled: [{{name: {name}}}]}}\n" for point in points.split())
    text = f"{HEAD}profiles:\n- plugins:\n{plugins}  pluginConfig:\n  - name: {name}\n    args: {args}\n"
    return load(text, known=LOAD_PLUGINS, preset=DEFAULT, partial=True)


def problems(name: str, args: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        loaded(name, args)
    return [problem.removeprefix("profiles[0].pluginConfig[0].args.") for problem in caught.value.problems]


def asked(configuration: KubeSchedulerConfiguration) -> dict[tuple[str, float], tuple[set[str], float]]:
    """By address and range, the statistics and the maximum age; times in seconds."""
    return {
        (query.url, query.time_range.total_seconds()): (set(demand.statistics), demand.maximum_age.total_seconds())
        for query, demand in load_queries(configuration).items()
    }


def test_node_load_asks_the_cluster_itself_unless_a_prometheus_is_named():
    assert asked(loaded("NodeLoad")) == {("", 300): ({"average"}, 300)}
    args = '{url: "prometheus.monitoring:9090/", range: 1m, statistic: p95, maximumAge: 90s}'
    assert asked(loaded("NodeLoad", args)) == {("http://prometheus.monitoring:9090", 60): ({"average", "p95"}, 90)}


def test_a_query_has_one_token_in_every_process():
    [query] = load_queries(loaded("NodeLoad"))
    [other] = load_queries(loaded("NodeLoad", "{labels: {cluster: east}}"))
    assert {query.token, other.token} == {"l48a7c48442c1", "l29dad9cd72d2"}


KOORDINATOR = """
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: LoadAwareSchedulingArgs
      filterExpiredNodeMetrics: false
      nodeMetricExpirationSeconds: 300
      resourceWeights: {cpu: 1, memory: 1}
      usageThresholds: {cpu: 0, memory: 0}
      prodUsageThresholds: {cpu: 55}
      scoreAccordingProdUsage: true
      estimatedScalingFactors: {cpu: 85, memory: 70}
      aggregated:
        usageThresholds: {cpu: 65}
        usageAggregationType: p95
        usageAggregatedDuration: 10m0s
        scoreAggregationType: p50
"""


def test_koordinators_file_is_taken_as_it_is():
    configuration = loaded("LoadAwareScheduling", KOORDINATOR, points="preFilter filter score reserve")
    assert asked(configuration) == {
        ("", 300): ({"average"}, 300),
        ("", 600): ({"average", "p95"}, 300),
        ("", 1800): ({"average", "p50"}, 300),  # without a duration the longest that a NodeMetric has
    }
    args = configuration.profiles[0].args["LoadAwareScheduling"]
    assert koordinator.thresholds_of(args) == {"cpu": 65}
    assert koordinator.prod_thresholds_of(args) == {"cpu": 55}


def test_koordinators_defaults_are_its_own():
    [profile] = loaded("LoadAwareScheduling").profiles
    args = profile.args["LoadAwareScheduling"]
    assert koordinator.thresholds_of(args) == {"cpu": 65, "memory": 95}
    assert koordinator.weights_of(args) == {"cpu": 1, "memory": 1}
    assert koordinator.usual_reading(args).maximum_age == timedelta(seconds=180)


TRIMARAN = """
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: TargetLoadPackingArgs
      defaultRequests: {cpu: "2000m"}
      defaultRequestsMultiplier: "1"
      targetUtilization: 70
      metricProvider: {type: Prometheus, address: "http://prometheus:9090"}
"""


def test_trimarans_files_are_taken_as_they_are():
    assert asked(loaded("TargetLoadPacking", TRIMARAN)) == {("http://prometheus:9090", 900): ({"average"}, 900)}
    args = '{watcherAddress: "http://load-watcher:2020", safeVarianceMargin: 1, safeVarianceSensitivity: 2}'
    assert asked(loaded("LoadVariationRiskBalancing", args)) == {("", 300): ({"average", "deviation"}, 300)}


@pytest.mark.parametrize("name", ["LowRiskOverCommitment", "Peaks"])
def test_what_is_not_taken_of_trimaran_is_refused_with_a_sentence(name):
    text = f"{HEAD}profiles:\n- plugins: {{score: {{enabled: [{{name: {name}}}]}}}}\n"
    with pytest.raises(ConfigurationError, match=rf"'{name}' is not supported; write .*NodeLoad"):
        load(text, known=LOAD_PLUGINS, preset=DEFAULT)
    disabled = text.replace("enabled", "disabled")
    assert load(disabled, known=LOAD_PLUGINS, preset=DEFAULT, partial=True)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("NodeLoad", "{statistic: max}", ["statistic: want average, p50, p90, p95 or p99, got 'max'"]),
        ("NodeLoad", "{usageThresholds: {cpu: 0}}", ["usageThresholds.cpu: want 1..100, got 0"]),
        (
            "NodeLoad",
            "{resourceWeights: {pods: 1}}",
            ["resourceWeights.pods: want cpu or memory, the resources whose use the collector measures"],
        ),
        (
            "NodeLoad",
            "{resourceWeights: {cpu: 0}}",
            ["resourceWeights: want at least one weight above 0, got {'cpu': 0}"],
        ),
        (
            "NodeLoad",
            "{balanceWeight: 101, range: 1s}",
            ["range: want 5s..24h, got 1s", "balanceWeight: want 0..100, got 101"],
        ),
        (
            "LoadAwareScheduling",
            "{nodeMetricExpirationSeconds: 0}",
            ["nodeMetricExpirationSeconds: want 1..86400, got 0"],
        ),
        (
            "LoadAwareScheduling",
            "{estimatedSecondsAfterInitialized: 86401, estimatedSecondsAfterPodScheduled: -1, estimator: mine}",
            [
                "estimatedSecondsAfterPodScheduled: want 0..86400, got -1",
                "estimatedSecondsAfterInitialized: want 0..86400, got 86401",
                "estimator: want 'defaultEstimator', got 'mine'",
            ],
        ),
        (
            "LoadAwareScheduling",
            "{aggregated: {usageAggregationType: p42}}",
            ["aggregated.usageAggregationType: want one of avg, p50, p90, p95, p99, got 'p42'"],
        ),
        (
            "LoadAwareScheduling",
            "{aggregated: {scoreAggregatedDuration: 720h}}",
            ["aggregated.scoreAggregatedDuration: want 5s..24h, got 2.592e+06s"],
        ),
        (
            "LoadVariationRiskBalancing",
            "{safeVarianceMargin: .nan}",
            ["safeVarianceMargin: want at most 1000, got nan"],
        ),
        (
            "LoadVariationRiskBalancing",
            "{safeVarianceMargin: 2e3, safeVarianceSensitivity: 1e-1}",
            ["safeVarianceMargin: want at most 1000, got 2000.0"],
        ),
        (
            "TargetLoadPacking",
            "{defaultRequests: {cpu: -2}}",
            ["defaultRequests.cpu: want 0 or more, got -2"],
        ),
        (
            "TargetLoadPacking",
            "{metricProvider: {type: Prometheus, address: 'http://p/?x=1'}}",
            ["metricProvider.address: want no query and no fragment in it (? or #)"],
        ),
        (
            "TargetLoadPacking",
            "{metricProvider: {type: SignalFx}, targetUtilization: 120, defaultRequestsMultiplier: much}",
            [
                "metricProvider.type: want KubernetesMetricsServer or Prometheus, got 'SignalFx'",
                "defaultRequestsMultiplier: want a number of 0..1000, got 'much'",
                "targetUtilization: want at most 100, got 120",
            ],
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(name, args, expected):
    assert problems(name, args) == expected


NOT_A_FILTER = "without effect; the plugin is not enabled at filter"
OLD_SAMPLES = "without effect; a node with an old sample counts as the mean of the others"


@pytest.mark.parametrize(
    ("name", "args", "remarks"),
    [
        pytest.param(
            "LoadVariationRiskBalancing",
            "{metricProvider: {type: Prometheus, address: 'https://p', token: t0ps3cret, insecureSkipVerify: true}}",
            [
                "metricProvider.token: not kept; put it into the file of BERTH_PROMETHEUS_TOKEN_FILE",
                "metricProvider.insecureSkipVerify: certificates are verified; name them by BERTH_PROMETHEUS_CA_FILE",
            ],
            id="a Prometheus with a token",
        ),
        pytest.param(
            "TargetLoadPacking",
            "{watcherAddress: 'http://load-watcher:2020'}",
            ["watcherAddress: not asked; the metrics collector asks metrics.k8s.io itself"],
            id="a load-watcher",
        ),
        pytest.param(
            "LoadAwareScheduling",
            "{filterExpiredNodeMetrics: true, enableScheduleWhenNodeMetricsExpired: false,"
            " estimatedSecondsAfterInitialized: 30, allowCustomizeEstimation: true}",
            [
                "estimatedSecondsAfterInitialized: counted from the Binding; the mirror has no time of initialization",
                f"filterExpiredNodeMetrics: {OLD_SAMPLES}",
                f"enableScheduleWhenNodeMetricsExpired: {OLD_SAMPLES}",
            ],
            id="Koordinator's old samples",
        ),
        pytest.param("LoadAwareScheduling", "{filterExpiredNodeMetrics: false}", [], id="nothing to say"),
        pytest.param(
            "NodeLoad",
            "{labels: {cluster: east}, nodeLabel: host}",
            ["labels: without effect without url", "nodeLabel: without effect without url"],
            id="labels of series that nobody asks for",
        ),
        pytest.param("NodeLoad", "{url: 'p:9090', labels: {cluster: east}, nodeLabel: host}", [], id="labels"),
        pytest.param("NodeLoad", "{usageThresholds: {cpu: 70}}", [f"usageThresholds: {NOT_A_FILTER}"], id="no filter"),
        pytest.param(
            "LoadAwareScheduling",
            "{usageThresholds: {cpu: 70}, prodUsageThresholds: {cpu: 60}}",
            [f"usageThresholds: {NOT_A_FILTER}", f"prodUsageThresholds: {NOT_A_FILTER}"],
            id="Koordinator's without a filter",
        ),
        pytest.param(
            "TargetLoadPacking",
            "{metricProvider: {address: 'http://p:9090'}}",
            ["metricProvider.address: without effect without type: Prometheus; metrics.k8s.io is asked"],
            id="a Prometheus without its type",
        ),
        pytest.param(
            "TargetLoadPacking",
            "{metricProvider: {type: Prometheus, address: 'http://p:9090'}, watcherAddress: 'http://w:2020'}",
            [
                "watcherAddress: not asked; the metrics collector asks metrics.k8s.io itself",
                "metricProvider: without effect beside watcherAddress; without that its Prometheus is asked",
            ],
            id="a load-watcher and a Prometheus",
        ),
        pytest.param(
            "TargetLoadPacking",
            "{defaultRequests: {memory: 1Gi}, targetUtilization: 0}",
            [
                "defaultRequests: without cpu a container without request and limit counts as using none",
                "defaultRequests.memory: without effect; the plugin scores CPU alone",
                "targetUtilization: 0 counts as 40",
            ],
            id="a target of 0",
        ),
        pytest.param(
            "LoadVariationRiskBalancing",
            "{safeVarianceMargin: -1, safeVarianceSensitivity: -0.5}",
            ["safeVarianceMargin: -1 counts as 1", "safeVarianceSensitivity: -0.5 counts as 1"],
            id="factors below 0",
        ),
    ],
)
def test_what_is_done_otherwise_is_said_in_a_sentence(name, args, remarks):
    configuration = loaded(name, args)
    assert configuration.converted == tuple(f"profiles[0].pluginConfig ({name}): {each}" for each in remarks)


@pytest.mark.parametrize(
    ("args", "remarks"),
    [
        pytest.param(
            "{aggregated: {usageThresholds: {cpu: 65}}}",
            ["aggregated.usageThresholds: without effect without usageAggregationType"],
            id="percentiles of no type",
        ),
        pytest.param(
            "{aggregated: {usageAggregationType: p95, usageAggregatedDuration: 5m}}",
            [
                "aggregated.usageAggregationType: without effect without usageThresholds",
                "aggregated.usageAggregatedDuration: without effect without usageThresholds and usageAggregationType",
            ],
            id="a type without thresholds",
        ),
        pytest.param(
            "{aggregated: {scoreAggregatedDuration: 5m}}",
            ["aggregated.scoreAggregatedDuration: without effect without scoreAggregationType"],
            id="a range of no percentile",
        ),
        pytest.param(
            "{usageThresholds: {cpu: 75}, aggregated: {usageThresholds: {cpu: 65}, usageAggregationType: p99}}",
            ["usageThresholds: without effect; aggregated.usageThresholds count in their place"],
            id="both thresholds, as in Koordinator's example",
        ),
        pytest.param(
            "{prodUsageIncludeSys: true, prodUsageThresholds: {cpu: 0}}",
            ["prodUsageIncludeSys: without effect without prodUsageThresholds and scoreAccordingProdUsage"],
            id="what koord-prod uses is not asked for",
        ),
        pytest.param("{prodUsageIncludeSys: true, scoreAccordingProdUsage: true}", [], id="it is for the score"),
        pytest.param(
            "{usageThresholds: {cpu: 0}, prodUsageThresholds: {cpu: 60}, aggregated: {scoreAggregationType: p95,"
            " scoreAggregatedDuration: 5m}}",
            [],
            id="all with an effect",
        ),
    ],
)
def test_options_of_koordinator_without_effect_are_named(args, remarks):
    name = "LoadAwareScheduling"
    configuration = loaded(name, args, points="filter score")
    assert configuration.converted == tuple(f"profiles[0].pluginConfig ({name}): {each}" for each in remarks)


def test_arguments_of_a_plugin_that_nothing_enables_are_named():
    text = f"{HEAD}profiles:\n- pluginConfig:\n  - name: NodeLoad\n    args: {{range: 5m}}\n"
    configuration = load(text, known=LOAD_PLUGINS, preset=DEFAULT, partial=True)
    no_point = "args: without effect; no extension point enables the plugin"
    assert configuration.converted == (f"profiles[0].pluginConfig (NodeLoad): {no_point}",)


def test_a_token_in_the_file_is_neither_kept_nor_shown():
    configuration = loaded("TargetLoadPacking", "{metricProvider: {token: t0ps3cret}}")
    args = configuration.profiles[0].args["TargetLoadPacking"]
    assert "t0ps3cret" not in f"{configuration!r} {msgspec.json.encode(args)!r} {configuration.converted}"
    again = loaded("TargetLoadPacking", msgspec.json.encode(args).decode())  # as a recording has it
    assert again.profiles[0].args["TargetLoadPacking"] == args


def test_a_token_is_not_in_the_problems_of_its_file():
    [problem] = problems("TargetLoadPacking", "{metricProvider: {type: SignalFx, token: t0ps3cret}}")
    assert "t0ps3cret" not in problem
