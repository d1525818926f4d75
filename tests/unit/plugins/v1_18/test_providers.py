"""The providers of 1.18: the article's lists, what gates add, and how files may change them."""

import json
from pathlib import Path

import pytest

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import ConfigurationError
from berth.api.config.presets import GateError
from berth.api.config.types import Plugins, Point
from berth.lifecycle.start import read_all
from berth.profiles.configuration import profiles_of, read_configuration
from berth.profiles.installed import known_plugins
from berth.settings.presets import gates_for, presets
from berth.settings.sources import SettingsError
from berth_plugins_1_18.disklimits import MOST_DISKS_VARIABLE

ARTICLE = json.loads((Path(__file__).parents[3] / "data" / "articles" / "algorithm-provider.json").read_text())
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
PROVIDERS = list(ARTICLE["providers"])
SPREAD, LIMITS = "EvenPodsSpread", "ResourceLimitsPriorityFunction"
FLAGS = ["--algorithm-provider=ClusterAutoscalerProvider", "--algorithm-provider=DefaultProvider"]
BESIDE = {
    "preEnqueue": ["SchedulingGates"],
    "preFilter": ["DynamicResources"],
    "filter": ["DynamicResources"],
    "postFilter": ["DefaultPreemption"],
    "reserve": ["VolumeBinding", "DynamicResources"],
    "preBind": ["VolumeBinding", "DynamicResources"],
}


def named(article: dict) -> dict[str, list]:
    """What the article lists, under the plugins' own names."""
    own = ARTICLE["names"]
    return {
        point: [own[entry] if isinstance(entry, str) else (own[entry[0]], entry[1]) for entry in entries]
        for point, entries in article.items()
    }


def listed(plugins: Plugins) -> dict[str, list]:
    assert not plugins.multi_point.enabled
    sets = {point: plugins.at(point).enabled or () for point in Point}
    return {
        str(point): [(ref.name, ref.weight) if point is Point.SCORE else ref.name for ref in refs]
        for point, refs in sets.items()
        if refs
    }


def running(configuration: KubeSchedulerConfiguration) -> dict[str, list]:
    (profile,) = configuration.profiles
    return {
        str(point): [(ref.name, ref.weight) if point is Point.SCORE else ref.name for ref in refs]
        for point, refs in profile.plugins.items()
        if refs
    }


def with_gates(provider: str, *gates: str) -> dict[str, list]:
    lists = named(ARTICLE["providers"][provider])
    for added in (named(ARTICLE["gates"][gate]) for gate in gates):
        lists = {point: [*refs, *added.get(point, ())] for point, refs in lists.items()}
    return lists


@pytest.mark.parametrize("provider", PROVIDERS)
def test_without_gates_a_provider_has_the_articles_plugins_in_order(provider):
    assert listed(presets()[provider].plugins) == named(ARTICLE["providers"][provider])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("text", "on"),
    [
        pytest.param("", [SPREAD], id="as the release had them"),
        pytest.param(f"{SPREAD}=false", [], id="both off"),
        pytest.param(f"{SPREAD}=1,{LIMITS}=T", [SPREAD, LIMITS], id="both on, as Go writes booleans"),
        pytest.param(f"{LIMITS}=true", [SPREAD, LIMITS], id="one named, the other as it was"),
        pytest.param(f"{LIMITS}=true, {SPREAD}=False", [LIMITS], id="the other way round"),
        pytest.param(f"{SPREAD}=false,{SPREAD}=true", [SPREAD], id="the last value counts"),
    ],
)
def test_gates_append_their_plugins(provider, text, on):
    assert listed(presets()[provider].gated(gates_for(provider, text))) == with_gates(provider, *on)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_profile_runs_the_gated_list_and_what_1_18_did_outside_of_plugins(provider):
    configuration = read_configuration(None, provider=provider, gates=f"{LIMITS}=true")
    gated = with_gates(provider, SPREAD, LIMITS)
    assert running(configuration) == {
        point: [*gated.get(point, ()), *BESIDE.get(point, ())] for point in (*gated, *BESIDE)
    }
    profile = profiles_of(configuration)["berth"]
    assert [plugin.name for plugin in profile.of_plans.filters] == running(configuration)["filter"]
    assert [plugin.name for plugin in profile.pre_scores] == running(configuration)["preScore"]
    assert list(profile.weights.items()) == running(configuration)["score"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_listed_plugins_also_run_after_a_node_is_chosen(provider):
    """1.18 reserved and bound volumes outside of plugins: listed plugins with such a point must run there."""
    lists = running(read_configuration(None, provider=provider))
    known = known_plugins(release="1.18")
    for point in (Point.RESERVE, Point.PERMIT, Point.PRE_BIND, Point.POST_BIND):
        doing = {name for name in lists["filter"] if point in known[name].points}
        assert doing <= set(lists.get(str(point), []))


def test_every_combination_of_provider_and_gates_is_another_configuration():
    text = ["", f"{SPREAD}=false", f"{LIMITS}=true", f"{SPREAD}=false,{LIMITS}=true"]
    digests = {read_configuration(None, provider=provider, gates=g).digest for provider in PROVIDERS for g in text}
    assert len(digests) == len(PROVIDERS) * len(text)


def test_full_nodes_are_better_only_for_the_cluster_autoscaler():
    first = {name: profiles_of(read_configuration(None, provider=name))["berth"].fewer_pods_first for name in PROVIDERS}
    assert first == {"DefaultProvider": True, "ClusterAutoscalerProvider": False}


@pytest.mark.parametrize(
    ("provider", "text", "sentence"),
    [
        ("DefaultProvider", "Even=true", f"want {SPREAD} or {LIMITS}, got 'Even'"),
        ("DefaultProvider", f"{SPREAD}=yes", f"want {SPREAD}=true or {SPREAD}=false, got '{SPREAD}=yes'"),
        ("DefaultProvider", SPREAD, f"want {SPREAD}=true or {SPREAD}=false, got '{SPREAD}'"),
        (
            "default",
            f"{SPREAD}=true",
            f"{SPREAD}: preset 'default' has no gates; start with {' or '.join(FLAGS)}",
        ),
    ],
)
def test_an_invalid_gate_is_rejected_with_the_valid_ones(provider, text, sentence):
    with pytest.raises(GateError) as caught:
        read_configuration(None, provider=provider, gates=text)
    assert str(caught.value) == f"featureGates: {sentence}"


def test_services_take_gates_from_their_flag_or_variable():
    provider = {"algorithm_provider": "DefaultProvider"}
    _, configuration = read_all(
        {**provider, "feature_gates": f"{SPREAD}=false"}, {"BERTH_FEATURE_GATES": f"{LIMITS}=true"}, read_configuration
    )
    assert running(configuration)["preScore"] == with_gates("DefaultProvider")["preScore"]
    _, configuration = read_all(provider, {"BERTH_FEATURE_GATES": f"{LIMITS}=true"}, read_configuration)
    assert running(configuration)["preScore"] == with_gates("DefaultProvider", SPREAD, LIMITS)["preScore"]
    with pytest.raises(SettingsError, match=f"featureGates: want {SPREAD} or {LIMITS}, got 'Odd'"):
        read_all(provider, {"BERTH_FEATURE_GATES": "Odd=true"}, read_configuration)


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "scheduler.yaml"
        path.write_text(HEAD + text)
        return path

    return write


@pytest.mark.parametrize("provider", ["default", *PROVIDERS])
@pytest.mark.parametrize("plugin", ["EBSLimits", "GCEPDLimits", "AzureDiskLimits", "NodePreferAvoidPods"])
def test_no_file_can_enable_or_configure_a_removed_plugin(written, provider, plugin):
    point = "score" if plugin == "NodePreferAvoidPods" else "filter"
    path = written(
        f"profiles: [{{plugins: {{{point}: {{enabled: [{{name: {plugin}}}]}}}}, pluginConfig: [{{name: {plugin}}}]}}]\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(path, provider=provider)
    gone = f"{plugin!r} was invalid in version 'kubescheduler.config.k8s.io/v1'; write "
    first, second = caught.value.problems
    assert first.startswith(f"profiles[0].plugins.{point}.enabled[0].name: {gone}")
    assert second.startswith(f"profiles[0].pluginConfig[0].name: {gone}")


def test_a_file_can_disable_and_enable_plugins_of_a_provider(written):
    path = written(
        "profiles: [{plugins: {filter: {disabled: [{name: EBSLimits}]}, "
        "score: {disabled: [{name: NodePreferAvoidPods}], enabled: [{name: NodeResourcesFit, weight: 5}]}}}]\n"
    )
    lists = running(read_configuration(path, provider="DefaultProvider"))
    expected = with_gates("DefaultProvider", SPREAD)
    assert lists["filter"] == [name for name in expected["filter"] if name != "EBSLimits"] + BESIDE["filter"]
    kept = [entry for entry in expected["score"] if entry[0] != "NodePreferAvoidPods"]
    assert lists["score"] == [*kept, ("NodeResourcesFit", 5)]


def test_arguments_apply_where_that_release_had_them(written):
    path = written(
        "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 7}}, "
        "{name: PodTopologySpread, args: {defaultConstraints: "
        "[{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}}]}]\n"
    )
    args = read_configuration(path, provider="DefaultProvider").profiles[0].args
    assert args["InterPodAffinity"].hard_pod_affinity_weight == 7
    assert [c.topology_key for c in args["PodTopologySpread"].default_constraints] == ["zone"]


def test_pods_without_constraints_are_not_spread_by_default():
    args = read_configuration(None, provider="DefaultProvider").profiles[0].args["PodTopologySpread"]
    assert (args.defaulting_type, args.default_constraints) == ("List", None)


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_an_invalid_number_of_disks_is_rejected(monkeypatch, text):
    monkeypatch.setenv(MOST_DISKS_VARIABLE, text)
    read_configuration(None)
    with pytest.raises(ConfigurationError, match=f"KUBE_MAX_PD_VOLS: want a whole number above 0, got '{text}'"):
        read_configuration(None, provider="DefaultProvider")
