"""Files of older versions become v1 where their meaning is clear; the rest is rejected with what to write."""

import pytest

from berth.api.config.load import ConfigurationError, load
from berth.api.config.presets import DEFAULT
from berth.api.config.types import Point
from berth.plugins.registry import BUILT_IN

GROUP = "kubescheduler.config.k8s.io"


def loaded(version: str, body: str = ""):
    text = f"apiVersion: {version}\nkind: KubeSchedulerConfiguration\n{body}"
    return load(text, known=BUILT_IN, preset=DEFAULT)


def refused(version: str, body: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        loaded(version, body)
    return caught.value.problems


def scores(configuration) -> list[str]:
    return [ref.name for ref in configuration.profiles[0].plugins[Point.SCORE]]


@pytest.mark.parametrize("version", ["v1beta3", "v1beta2", "v1beta1", "v1alpha2"])
def test_profiles_of_an_older_version_mean_the_same(version):
    configuration = loaded(
        f"{GROUP}/{version}",
        f"""
healthzBindAddress: 0.0.0.0:10251
profiles:
- schedulerName: mine
  plugins: {{score: {{enabled: [{{name: NodeScoreLabel}}], disabled: [{{name: "*"}}]}}}}
  pluginConfig:
  - name: NodeResourcesFit
    args: {{apiVersion: {GROUP}/{version}, kind: NodeResourcesFitArgs, ignoredResources: [example.com/gpu]}}
""",
    )
    assert configuration.scheduler_names == {"mine"}
    assert scores(configuration) == ["NodeScoreLabel"]
    assert configuration.profiles[0].args["NodeResourcesFit"].ignored_resources == ["example.com/gpu"]
    assert f"apiVersion: read {GROUP}/{version} as {GROUP}/v1" in configuration.converted
    assert any(line.startswith("healthzBindAddress: left out") for line in configuration.converted)


@pytest.mark.parametrize("version", [f"{GROUP}/v1alpha1", "componentconfig/v1alpha1"])
def test_the_single_scheduler_of_the_first_versions_becomes_a_profile(version):
    configuration = loaded(
        version,
        """
schedulerName: mine
kubeAPIQPS: 80
leaderElection: {leaderElect: true, resourceLock: endpoints, lockObjectName: my-lock}
plugins: {score: {enabled: [{name: NodeScoreLabel, weight: 5}]}}
""",
    )
    assert configuration.scheduler_names == {"mine"}
    assert scores(configuration)[-1] == "NodeScoreLabel"
    assert configuration.client_connection.qps == 80
    assert configuration.leader_election.resource_name == "my-lock"
    assert "leaderElection.resourceLock: endpoints is gone, Leases are used" in configuration.converted


def test_a_plugin_that_is_gone_may_be_disabled():
    body = "profiles: [{plugins: {score: {disabled: [{name: NodePreferAvoidPods}, {name: TaintToleration}]}}}]"
    configuration = loaded(f"{GROUP}/v1beta1", body)
    assert "TaintToleration" not in scores(configuration)
    assert "profiles[0].plugins.score.disabled: NodePreferAvoidPods is gone anyway" in configuration.converted


@pytest.mark.parametrize(
    ("version", "body", "sentence"),
    [
        pytest.param(
            f"{GROUP}/v1alpha1",
            "algorithmSource: {provider: ClusterAutoscalerProvider}",
            "algorithmSource.provider: not part of v1; "
            "start with --algorithm-provider=ClusterAutoscalerProvider instead",
            id="a provider",
        ),
        pytest.param(
            f"{GROUP}/v1alpha1",
            "algorithmSource: {policy: {file: {path: /p}}}",
            "algorithmSource: not part of v1; write what the policy names as plugins of a profile",
            id="a policy",
        ),
        pytest.param(
            "componentconfig/v1alpha1",
            "algorithmProvider: DefaultProvider",
            "algorithmProvider: not part of v1; start with --algorithm-provider=NAME instead",
            id="a provider of the first version",
        ),
        pytest.param(
            f"{GROUP}/v1alpha2",
            "profiles: [{plugins: {unreserve: {enabled: [{name: X}]}}}]",
            "profiles[0].plugins.unreserve: not part of v1; write its plugins under reserve",
            id="a point that is gone",
        ),
        pytest.param(
            f"{GROUP}/v1beta1",
            "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesMostAllocated}]}}}]",
            "profiles[0].plugins.score.enabled[0].name: 'NodeResourcesMostAllocated' was invalid in version "
            "'kubescheduler.config.k8s.io/v1'; "
            "write NodeResourcesFit with the args scoringStrategy: {type: MostAllocated}",
            id="a plugin that is gone",
        ),
        pytest.param(
            f"{GROUP}/v2",
            "",
            f"apiVersion: want '{GROUP}/v1', got '{GROUP}/v2'; write v1, or a version back to v1alpha1",
            id="an unknown version",
        ),
        pytest.param(
            f"{GROUP}/v1beta3", "profile: []", "profile: unknown field, did you mean 'profiles'?", id="a typing error"
        ),
    ],
)
def test_a_setting_that_v1_has_elsewhere_is_rejected_with_what_to_write(version, body, sentence):
    assert sentence in refused(version, body)


def test_a_file_of_v1_is_not_converted():
    assert loaded(f"{GROUP}/v1").converted == ()
    assert "healthzBindAddress: unknown field" in refused(f"{GROUP}/v1", "healthzBindAddress: x")


def test_every_problem_of_an_old_file_is_reported_at_once():
    found = refused(f"{GROUP}/v1alpha1", "disablePreemption: true\nbindTimeoutSeconds: 600\nextender: 3")
    assert [problem.split(":")[0] for problem in found] == ["disablePreemption", "bindTimeoutSeconds", "extender"]
