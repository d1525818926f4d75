"""Loading a KubeSchedulerConfiguration."""

from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

from berth.api.config.load import ConfigurationError, default_configuration, load
from berth.api.config.types import FileType, PluginRef, Plugins, PluginSet, Point


class FitArgs(FileType, frozen=True, kw_only=True):
    strategy: str = "Least"
    limit: int = 5


@dataclass(frozen=True)
class Known:
    points: tuple[Point, ...]
    args_type: type[msgspec.Struct] | None = None
    only_in_presets: bool = False

    @staticmethod
    def validate(args: object, path: str) -> list[str]:
        limit = getattr(args, "limit", 0)  # only FitArgs has one
        return [] if limit < 10 else [f"{path}.limit: want less than 10, got {limit}"]


KNOWN = {
    "Sort": Known((Point.QUEUE_SORT,)),
    "OtherSort": Known((Point.QUEUE_SORT,)),
    "Fit": Known((Point.FILTER, Point.SCORE), FitArgs),
    "Taint": Known((Point.FILTER, Point.SCORE)),
    "Label": Known((Point.SCORE,)),
    "Bind": Known((Point.BIND,)),
}
PRESET = Plugins(
    multi_point=PluginSet(
        enabled=[
            PluginRef(name="Sort"),
            PluginRef(name="Taint", weight=3),
            PluginRef(name="Fit", weight=1),
            PluginRef(name="Bind"),
        ]
    )
)
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
ALL_KNOWN = "known are Bind, Fit, Label, OtherSort, Sort, Taint; your own is known where its package is installed"


def loaded(body: str):
    return load(HEAD + body, known=KNOWN, preset=PRESET)


def problems(body: str, head: str = HEAD) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load(head + body, known=KNOWN, preset=PRESET)
    return caught.value.problems


def names(configuration, point: Point) -> list[tuple[str, int | None]]:
    return [(ref.name, ref.weight) for ref in configuration.profiles[0].plugins[point]]


def test_without_a_file_there_is_one_profile_with_the_presets_plugins():
    configuration = default_configuration(KNOWN, PRESET)
    assert configuration.scheduler_names == {"berth"}
    assert names(configuration, Point.SCORE) == [("Taint", 3), ("Fit", 1)]
    assert configuration.profiles[0].args == {"Fit": FitArgs()}


def test_defaults_are_berths_where_those_of_v1_would_hurt():
    configuration = loaded("")
    assert configuration.leader_election.resource_name == "berth"
    assert configuration.client_connection.qps is None
    assert configuration.pod_max_backoff == timedelta(seconds=10)


def test_a_star_stops_the_expansion_into_that_point_only():
    configuration = loaded(
        """
profiles:
- schedulerName: nodelabelscore
  plugins:
    score:
      enabled: [{name: Label}]
      disabled: [{name: "*"}]
"""
    )
    assert names(configuration, Point.SCORE) == [("Label", None)]
    assert names(configuration, Point.FILTER) == [("Taint", 3), ("Fit", 1)]


def test_a_weight_at_the_point_overrides_that_of_multi_point_and_comes_first():
    configuration = loaded("profiles: [{plugins: {score: {enabled: [{name: Fit, weight: 7}]}}}]")
    assert names(configuration, Point.SCORE) == [("Fit", 7), ("Taint", 3)]


def test_a_plugin_enabled_again_at_multi_point_keeps_its_place():
    configuration = loaded("profiles: [{plugins: {multiPoint: {enabled: [{name: Taint, weight: 9}, {name: Label}]}}}]")
    assert names(configuration, Point.SCORE) == [("Taint", 9), ("Fit", 1), ("Label", None)]


def test_a_plugin_is_disabled_by_name_at_one_point():
    configuration = loaded("profiles: [{plugins: {filter: {disabled: [{name: Taint}]}}}]")
    assert names(configuration, Point.FILTER) == [("Fit", 1)]
    assert names(configuration, Point.SCORE) == [("Taint", 3), ("Fit", 1)]


def test_another_queue_sort_replaces_the_default_when_that_is_disabled():
    configuration = loaded(
        'profiles: [{plugins: {queueSort: {enabled: [{name: OtherSort}], disabled: [{name: "*"}]}}}]'
    )
    assert names(configuration, Point.QUEUE_SORT) == [("OtherSort", None)]


def test_arguments_arrive_typed():
    configuration = loaded("profiles: [{pluginConfig: [{name: Fit, args: {kind: FitArgs, limit: 3}}]}]")
    assert configuration.profiles[0].args["Fit"] == FitArgs(limit=3)


def test_every_error_of_a_file_is_reported_at_once_with_its_path():
    found = problems(
        """
podInitialBackoffSeconds: 0
percentageOfNodesToScore: 101
leaderElection: {renewDeadline: ten}
clientConection: {}
profiles:
- schedulerName: a
  plugins:
    score:
      enabled: [{name: Fitt}, {name: Fit, weight: -1}, {name: Bind}]
  pluginConfig:
  - name: Fit
    args: {limit: 12, strateggy: x}
- schedulerName: a
- plugins: {queueSort: {disabled: [{name: Sort}]}}
"""
    )
    assert sorted(found) == sorted(
        (
            "clientConection: unknown field, did you mean 'clientConnection'?",
            "leaderElection.renewDeadline: want a duration such as 15s or 1m30s, got 'ten'",
            "percentageOfNodesToScore: want 0..100, got 101",
            "podInitialBackoffSeconds: want at least 1, got 0",
            "profiles[2].schedulerName: required when there are several profiles",
            (
                "profiles[0].plugins.score.enabled[0].name: unknown plugin 'Fitt', did you mean 'Fit'? Known are "
                "Bind, Fit, Label, OtherSort, Sort, Taint; your own is known where its package is installed"
            ),
            "profiles[0].plugins.score.enabled[1].weight: want 0..2147483647, got -1",
            "profiles[0].plugins.score.enabled[2].name: plugin 'Bind' has no score; it has bind",
            "profiles[0].pluginConfig[0].args.strateggy: unknown field, did you mean 'strategy'?",
            "profiles[0].pluginConfig[0].args.limit: want less than 10, got 12",
            "profiles[2].plugins.queueSort: want exactly one plugin, got []",
            "profiles[1].schedulerName: 'a' is the name of another profile",
            "profiles[2].plugins.queueSort: want the same as in profiles[0], they share one queue",
        )
    )


def test_every_known_plugin_is_named_once_however_many_names_are_unknown():
    first, second = problems("profiles: [{plugins: {filter: {enabled: [{name: Nope}], disabled: [{name: Fat}]}}}]")
    assert first.endswith(f"unknown plugin 'Nope', {ALL_KNOWN}")
    assert second.endswith("unknown plugin 'Fat'")


def test_only_a_name_that_is_near_is_offered():
    (problem,) = problems("profiles: [{plugins: {filter: {enabled: [{name: Lately}]}}}]")
    assert "did you mean" not in problem


def test_a_plugins_own_problems_are_reported():
    assert problems("profiles: [{pluginConfig: [{name: Fit, args: {limit: 12}}]}]") == (
        "profiles[0].pluginConfig[0].args.limit: want less than 10, got 12",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("a: [", "not YAML", id="not YAML"),
        pytest.param("- a", "want a KubeSchedulerConfiguration, got ['a']", id="a list"),
        pytest.param("", "is empty: want a KubeSchedulerConfiguration", id="empty"),
        pytest.param("kind: KubeSchedulerConfiguration", "apiVersion: required", id="no version"),
        pytest.param(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: ConfigMap",
            "kind: want 'KubeSchedulerConfiguration', got 'ConfigMap'; write the text that its data has into a file",
            id="the ConfigMap of a file",
        ),
        pytest.param(HEAD + "profiles: 3", "profiles: want a list, got 3", id="not a list"),
        pytest.param(HEAD + "parallelism: true", "parallelism: want a whole number, got True", id="not a number"),
        pytest.param(HEAD + "extenders: [{urlPrefix: x}]", "extenders[0].urlPrefix: want a URL", id="extenders"),
        pytest.param(HEAD + "leaderElection: {resourceLock: endpoints}", "resourceLock: want 'leases'", id="old lock"),
    ],
)
def test_text_that_is_no_configuration_is_rejected(text, sentence):
    assert any(sentence in problem for problem in problems(text, head=""))


def test_known_fields_that_mean_nothing_here_are_listed():
    assert loaded("parallelism: 16\nclientConnection: {contentType: x}").ignored == (
        "parallelism",
        "clientConnection.contentType",
    )


@pytest.mark.parametrize(
    ("body", "percentages"),
    [
        pytest.param("profiles: [{schedulerName: a}]", [0], id="every node unless it is set"),
        pytest.param(
            "percentageOfNodesToScore: 50\nprofiles: [{schedulerName: a}, {schedulerName: b}]", [50, 50], id="for all"
        ),
        pytest.param(
            "percentageOfNodesToScore: 50\n"
            "profiles: [{schedulerName: a, percentageOfNodesToScore: 0}, {schedulerName: b}]",
            [0, 50],
            id="a profile's own number counts, 0 too",
        ),
    ],
)
def test_the_percentage_of_nodes_to_score_is_the_profiles_own_or_the_files(body, percentages):
    assert [profile.percentage_of_nodes_to_score for profile in loaded(body).profiles] == percentages


def test_problems_always_come_in_the_same_order():
    unknown = [f"field{n}" for n in range(20)]
    body = "".join(f"{name}: 1\n" for name in unknown)
    assert [problem.split(":")[0] for problem in problems(body)] == unknown


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        pytest.param("parallelism: -3", "parallelism: want more than 0, got -3", id="parallelism"),
        pytest.param(
            "podMaxBackoffSeconds: 1\npodInitialBackoffSeconds: 2",
            "podMaxBackoffSeconds: want at least podInitialBackoffSeconds (2), got 1",
            id="back-off",
        ),
        pytest.param(
            "podInitialBackoffSeconds: -1", "podInitialBackoffSeconds: want at least 1, got -1", id="negative"
        ),
        pytest.param(
            "profiles: [{percentageOfNodesToScore: -1}]",
            "profiles[0].percentageOfNodesToScore: want 0..100, got -1",
            id="a profile's percentage",
        ),
        pytest.param(
            "clientConnection: {burst: -1}", "clientConnection.burst: want 0 or more, got -1", id="negative burst"
        ),
        pytest.param(
            "profiles: [{plugins: {placementScore: {enabled: [{name: Fit}]}}}]",
            "profiles[0].plugins.placementScore: not supported; groups are placed without plugins",
            id="placements of groups",
        ),
        pytest.param(
            "profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]",
            f"profiles[0].plugins.filter.enabled[0].name: unknown plugin 'Nope', {ALL_KNOWN}",
            id="a name that is near to none",
        ),
        pytest.param(
            "profiles: [{pluginConfig: [{name: Fit, args: {kind: TaintArgs, apiVersion: v1}}]}]",
            "profiles[0].pluginConfig[0].args.kind: want 'FitArgs', got 'TaintArgs'",
            id="arguments of another kind",
        ),
        pytest.param(
            "profiles: [{pluginConfig: [{name: Fit}, {name: Fit}]}]",
            "profiles[0].pluginConfig[1].name: 'Fit' is listed more than once",
            id="arguments twice",
        ),
        pytest.param(
            "profiles: [{plugins: {queueSort: {enabled: [{name: OtherSort}]}}}]",
            "profiles[0].plugins.queueSort: want exactly one plugin, got ['Sort', 'OtherSort']",
            id="two orders",
        ),
        pytest.param(
            "profiles: [{plugins: {bind: {disabled: [{name: Bind}]}}}]",
            "profiles[0].plugins.bind: want at least one plugin, got none",
            id="nothing binds",
        ),
    ],
)
def test_files_that_kube_scheduler_rejects_are_rejected(body, sentence):
    assert sentence in problems(body)


def test_without_election_its_times_are_not_checked():
    off = "leaderElection: {leaderElect: false, leaseDuration: 1s, resourceLock: endpoints}"
    assert loaded(off).leader_election.lease_duration == timedelta(seconds=1)


def test_times_of_zero_are_those_that_are_not_written():
    assert loaded("leaderElection: {leaseDuration: 0s, renewDeadline: 0s}").leader_election.lease_duration == timedelta(
        seconds=15
    )


@pytest.mark.parametrize("qps", ["0", "-1"])
def test_a_rate_of_zero_or_less_is_no_limit(qps):
    assert loaded(f"clientConnection: {{qps: {qps}}}").client_connection.qps is None


def test_disabling_an_unsupported_kube_scheduler_plugin_is_reported():
    body = "profiles: [{plugins: {multiPoint: {disabled: [{name: GangScheduling}, {name: Taint}]}}}]"
    configuration = loaded(body)
    assert names(configuration, Point.FILTER) == [("Fit", 1)]
    assert configuration.ignored == ("profiles[0].plugins.multiPoint.disabled[0] (GangScheduling)",)


COSCHEDULING = """
profiles:
- schedulerName: scheduler-plugins-scheduler
  plugins:
    %s
  pluginConfig:
  - name: Coscheduling
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: CoschedulingArgs
      permitWaitingTimeSeconds: 10
      podGroupBackoffSeconds: 0
"""


@pytest.mark.parametrize(
    "plugins",
    [
        pytest.param(
            """queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
    preFilter: {enabled: [{name: Coscheduling}]}
    permit: {enabled: [{name: Coscheduling}]}
    reserve: {enabled: [{name: Coscheduling}]}""",
            id="at each point",
        ),
        pytest.param("multiPoint: {enabled: [{name: Coscheduling}], disabled: [{name: Sort}]}", id="everywhere"),
        pytest.param(
            """multiPoint: {enabled: [{name: Coscheduling}]}
    queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}""",
            id="both",
        ),
    ],
)
def test_a_file_with_coscheduling_loads_and_says_what_berth_does_instead(plugins):
    configuration = loaded(COSCHEDULING % plugins)
    default = loaded("profiles: [{schedulerName: scheduler-plugins-scheduler}]")
    assert configuration.profiles == default.profiles
    assert configuration.converted == (
        "profiles[0].plugins: Coscheduling is left out, groups are placed all or none without a plugin",
        (
            "profiles[0].pluginConfig[0].args.permitWaitingTimeSeconds has no effect, "
            "a group that waits holds no room, so that none has to be given back"
        ),
        (
            "profiles[0].pluginConfig[0].args.podGroupBackoffSeconds has no effect, "
            "groups back off by podInitialBackoffSeconds and podMaxBackoffSeconds, as pods do"
        ),
    )


def test_another_profile_may_leave_the_queue_to_its_default():
    body = (
        "profiles: [{schedulerName: a}, {schedulerName: b, "
        'plugins: {queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}}}]'
    )
    assert names(loaded(body), Point.QUEUE_SORT) == [("Sort", None)]


def test_the_plugins_of_upstreams_groups_are_left_out_with_a_sentence():
    body = (
        "profiles: [{plugins: {multiPoint: {enabled: [{name: GangScheduling}]}, "
        "placementGenerate: {enabled: [{name: TopologyPlacement}]}, "
        "placementScore: {enabled: [{name: PodGroupPodsCount, weight: 2}]}}}]"
    )
    assert loaded(body).profiles == loaded("").profiles
    assert loaded(body).converted == (
        "profiles[0].plugins: GangScheduling is left out, groups are placed all or none without a plugin",
        (
            "profiles[0].plugins: TopologyPlacement is left out, "
            "a group that names a topology key is placed in one of its domains without a plugin"
        ),
        (
            "profiles[0].plugins: PodGroupPodsCount is left out, "
            "of the domains that hold a whole group the fullest is tried first"
        ),
    )


def test_arguments_of_coscheduling_are_checked():
    args = "{permitWaitingTimeSeconds: -1, podGroupBackoffSeconds: soon, waitingTime: 1}"
    assert problems(f"profiles: [{{pluginConfig: [{{name: Coscheduling, args: {args}}}]}}]") == (
        "profiles[0].pluginConfig[0].args.waitingTime: unknown field",
        "profiles[0].pluginConfig[0].args.podGroupBackoffSeconds: want a whole number, got 'soon'",
    )
    args = "{permitWaitingTimeSeconds: -1}"
    assert problems(f"profiles: [{{pluginConfig: [{{name: Coscheduling, args: {args}}}]}}]") == (
        "profiles[0].pluginConfig[0].args.permitWaitingTimeSeconds: want 0 or more, got -1",
    )


def test_an_installed_plugin_named_coscheduling_stays():
    known = {**KNOWN, "Coscheduling": Known((Point.QUEUE_SORT,))}
    body = 'profiles: [{plugins: {queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}}}]'
    configuration = load(HEAD + body, known=known, preset=PRESET)
    assert (names(configuration, Point.QUEUE_SORT), configuration.converted) == ([("Coscheduling", None)], ())


def test_a_whole_number_may_be_written_with_a_point():
    assert loaded("percentageOfNodesToScore: 40.0").percentage_of_nodes_to_score == 40


def test_sets_for_placements_of_groups_may_disable_what_is_not_there():
    body = "profiles: [{plugins: {placementGenerate: {disabled: [{name: TopologyPlacement}]}}}]"
    configuration = loaded(body)
    assert names(configuration, Point.FILTER) == [("Taint", 3), ("Fit", 1)]


def test_queue_sort_plugins_have_the_same_arguments_in_all_profiles():
    known = {**KNOWN, "Sort": Known((Point.QUEUE_SORT,), FitArgs)}
    body = (
        "profiles: [{schedulerName: a}, "
        "{schedulerName: b, pluginConfig: [{name: Sort, args: {limit: 2}}]}, {schedulerName: c}]"
    )
    with pytest.raises(ConfigurationError) as caught:
        load(HEAD + body, known=known, preset=PRESET)
    assert caught.value.problems == (
        "profiles[1].pluginConfig: want arguments of 'Sort' the same as in profiles[0], they share one queue",
    )


def test_the_digest_depends_on_the_content_and_not_on_the_layout():
    assert loaded("parallelism: 16").digest == loaded("# note\nparallelism:   16").digest
    assert loaded("parallelism: 16").digest != loaded("parallelism: 15").digest
