"""The articles' configurations, and the presets and flags that replace what the articles write in code."""

from pathlib import Path

import msgspec
import pytest

from berth.api.config.encode import as_document
from berth.api.config.load import load
from berth.api.config.presets import CURRENT_RELEASE
from berth.api.config.types import Point
from berth.framework.profile import build_profiles
from berth.lifecycle.start import read_all
from berth.plugins.registry import BUILT_IN
from berth.profiles.configuration import read_configuration
from berth.settings.presets import UnknownPresetError, preset, presets
from berth.settings.sources import SettingsError

ARTICLES = Path(__file__).parents[3] / "data" / "articles"


def article(name: str, provider: str = "default"):
    return read_configuration(ARTICLES / f"{name}.yaml", provider=provider)


def names(configuration, point: Point) -> list[str]:
    return [ref.name for ref in configuration.profiles[0].plugins[point]]


@pytest.mark.parametrize("path", sorted(ARTICLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_articles_configuration_loads_and_its_profiles_can_be_made(path):
    configuration = read_configuration(path)
    assert build_profiles(configuration, BUILT_IN).keys() == configuration.scheduler_names


def test_the_score_label_is_the_only_score_and_the_default_filters_stay():
    configuration = article("node-score-label")
    assert configuration.scheduler_names == {"nodelabelscore"}
    assert configuration.client_connection.kubeconfig == "/etc/kubernetes/scheduler.conf"
    assert names(configuration, Point.SCORE) == ["NodeScoreLabel"]
    assert "NodeResourcesFit" in names(configuration, Point.FILTER)
    assert build_profiles(configuration, BUILT_IN)["nodelabelscore"].weights == {"NodeScoreLabel": 1}


def test_the_filter_label_is_added_to_the_default_filters():
    configuration = article("node-filter-label")
    assert names(configuration, Point.FILTER)[-1] == "NodeFilterLabel"
    assert "TaintToleration" in names(configuration, Point.FILTER)


def test_arguments_of_network_traffic_apply_under_its_alias():
    configuration = article("network-traffic")
    args = configuration.profiles[0].args["NetworkTraffic"]
    assert (args.ip, args.device_name, args.time_range) == ("prometheus.kube-system:9090", "eth0", 60)
    assert "NetworkTraffic" in names(configuration, Point.SCORE)
    assert configuration.leader_election.leader_elect is False


def test_the_from_scratch_preset_runs_the_articles_plugins():
    configuration = article("from-scratch", "FromScratch")
    assert configuration.scheduler_names == {"my-custom-scheduler"}
    assert names(configuration, Point.FILTER) == ["NodeReady", "NodeResourcesFit", "NodeAffinity", "DynamicResources"]
    assert names(configuration, Point.SCORE) == ["FreeCapacity"]
    assert names(configuration, Point.QUEUE_SORT) == ["PrioritySort"]
    assert names(configuration, Point.BIND) == ["DefaultBinder"]
    assert configuration.leader_election.resource_name == "custom-scheduler-lock"


def test_the_spread_of_tenants_outweighs_any_score_of_free_capacity():
    configuration = article("from-scratch", "FromScratchMultiTenant")
    weights = build_profiles(configuration, BUILT_IN)["my-custom-scheduler"].weights
    # one place of TenantSpread is 1 x 101; FreeCapacity is at most 100 x 1
    assert weights == {"TenantSpread": 101, "FreeCapacity": 1}
    assert names(configuration, Point.PRE_FILTER)[0] == "TenantSpread"


def test_a_preset_takes_the_place_of_the_default_plugins_of_every_profile(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {score: {enabled: [{name: NodeScoreLabel}]}}}]"
    )
    first, second = read_configuration(path, provider="FromScratch").profiles
    assert [ref.name for ref in first.plugins[Point.SCORE]] == ["FreeCapacity"]
    assert [ref.name for ref in second.plugins[Point.SCORE]] == ["FreeCapacity", "NodeScoreLabel"]


def test_an_unknown_preset_is_answered_by_the_valid_names():
    with pytest.raises(UnknownPresetError, match=r"want one of default, .*, DefaultProvider, got 'Scratch'"):
        preset("Scratch")


def test_services_read_the_preset_from_flag_or_variable():
    _, configuration = read_all(
        {"algorithm_provider": "FromScratch"}, {"BERTH_ALGORITHM_PROVIDER": "default"}, read_configuration
    )
    assert names(configuration, Point.SCORE) == ["FreeCapacity"]
    with pytest.raises(SettingsError) as caught:
        read_all({}, {"BERTH_ALGORITHM_PROVIDER": "Scratch"}, read_configuration)
    assert caught.value.problems == (f"BERTH_ALGORITHM_PROVIDER: want one of {', '.join(presets())}, got 'Scratch'",)


def test_configurations_of_different_presets_have_different_digests():
    assert article("from-scratch").digest != article("from-scratch", "FromScratch").digest


@pytest.mark.parametrize("provider", [name for name, each in presets().items() if each.release == CURRENT_RELEASE])
@pytest.mark.parametrize("path", sorted(ARTICLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shown_configuration_loads_as_the_same_one_with_any_preset(path, provider):
    configuration = read_configuration(path, provider=provider)
    shown = msgspec.json.encode(as_document(configuration)).decode()
    for start in presets().values():
        again = load(shown, known=BUILT_IN, preset=start.plugins)
        assert as_document(again) == as_document(configuration)
        assert again.profiles[0].args == configuration.profiles[0].args
