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

    @staticmethod
    def validate(args: object, path: str) -> list[str]:
        limit = args.limit  # type: ignore[attr-defined]  # only FitArgs has a validation here
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


def loaded(body: str):
    return load(HEAD + body, known=KNOWN, preset=PRESET)


def problems(body: str, head: str = HEAD) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load(head + body, known=KNOWN, preset=PRESET)
    return caught.value.problems


def names(configuration, point: Point) -> list[tuple[str, int | None]]:
    return [(ref.name, ref.weight) for ref in configuration.profiles[0].plugins[point]]


def test_without_a_file_there_is_one_profile_named_berth_with_the_presets_plugins():
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


def test_a_weight_at_the_point_beats_the_weight_of_multi_point_and_comes_first():
    configuration = loaded("profiles: [{plugins: {score: {enabled: [{name: Fit, weight: 7}]}}}]")
    assert names(configuration, Point.SCORE) == [("Fit", 7), ("Taint", 3)]


def test_a_plugin_enabled_again_at_multi_point_keeps_its_place_with_its_new_weight():
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
leaderElection: {leaseDuration: 5s, renewDeadline: ten}
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
                "profiles[0].plugins.score.enabled[0].name: unknown plugin 'Fitt', known are "
                "Bind, Fit, Label, OtherSort, Sort, Taint"
            ),
            "profiles[0].plugins.score.enabled[1].weight: want 0..2147483647, got -1",
            "profiles[0].plugins.score.enabled[2].name: plugin 'Bind' has no score; it has bind",
            "profiles[0].pluginConfig[0].args.strateggy: unknown field, did you mean 'strategy'?",
            "profiles[2].plugins.queueSort: want exactly one plugin, got []",
            "profiles[1].schedulerName: 'a' is the name of another profile",
            "profiles[2].plugins.queueSort: want the same as in profiles[0], they share one queue",
            "leaderElection.renewDeadline: want less than leaseDuration (0:00:05), got '0:00:10'",
        )
    )


def test_a_plugins_own_validation_is_heard():
    assert problems("profiles: [{pluginConfig: [{name: Fit, args: {limit: 12}}]}]") == (
        "profiles[0].pluginConfig[0].args.limit: want less than 10, got 12",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("a: [", "not YAML", id="not YAML"),
        pytest.param("- a", "want a KubeSchedulerConfiguration, got ['a']", id="a list"),
        pytest.param("", "want a KubeSchedulerConfiguration, got None", id="empty"),
        pytest.param("kind: KubeSchedulerConfiguration", "apiVersion: required", id="no version"),
        pytest.param(HEAD + "profiles: 3", "profiles: want a list, got 3", id="not a list"),
        pytest.param(HEAD + "parallelism: true", "parallelism: want a whole number, got True", id="not a number"),
        pytest.param(HEAD + "extenders: [{urlPrefix: x}]", "extenders: not supported", id="extenders"),
        pytest.param(HEAD + "leaderElection: {resourceLock: endpoints}", "resourceLock: want 'leases'", id="old lock"),
    ],
)
def test_what_is_no_configuration_is_refused_with_a_sentence(text, sentence):
    assert any(sentence in problem for problem in problems(text, head=""))


def test_known_fields_that_mean_nothing_here_are_listed():
    assert loaded("parallelism: 16\nclientConnection: {contentType: x}").ignored == (
        "parallelism",
        "clientConnection.contentType",
    )


def test_a_percentage_of_nodes_means_nothing_since_every_node_is_scored():
    assert loaded("percentageOfNodesToScore: 50\nprofiles: [{percentageOfNodesToScore: 30}]").ignored == (
        "percentageOfNodesToScore",
        "profiles[0].percentageOfNodesToScore",
    )
    assert loaded("percentageOfNodesToScore: 0\nprofiles: [{percentageOfNodesToScore: 100}]").ignored == ()


def test_the_digest_follows_what_the_file_says_and_not_its_layout():
    assert loaded("parallelism: 16").digest == loaded("# note\nparallelism:   16").digest
    assert loaded("parallelism: 16").digest != loaded("parallelism: 15").digest
