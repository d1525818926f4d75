"""The collector reads the arguments of plugins with samples from the file that all services share, and no others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from berth.api.config.load import ConfigurationError
from berth.api.config.nodeload.plugins import load_queries
from berth.api.config.presets import DEFAULT_NAME
from berth.profiles.configuration import read_configuration as read_whole
from berth_metrics_collector.settings import maximum_ages, outlived, read_configuration, traffic_queries_of

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
TRAFFIC = "{name: NetworkTraffic, args: {url: 'http://prometheus:9090', range: 60s, maximumAge: 90s}}"
OTHER = "{name: NodeScoreLabel, args: {key: disk, value: ssd}}"
RUNS = "multiPoint: {enabled: [{name: NetworkTraffic}, {name: NodeScoreLabel}]}"


@pytest.fixture
def read(tmp_path: Path):
    def configuration(profiles: str, reader=read_configuration):
        path = tmp_path / "scheduler.yaml"
        path.write_text(f"{HEAD}profiles: [{profiles}]\n")
        return reader(path, provider=DEFAULT_NAME, gates="")

    return configuration


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(f"{{plugins: {{{RUNS}}}, pluginConfig: [{TRAFFIC}, {OTHER}]}}", id="at every point"),
        pytest.param(
            f"{{plugins: {{score: {{enabled: [{{name: network_traffic, weight: 2}}]}}}}, pluginConfig: [{TRAFFIC}]}}",
            id="by its alias, at one point",
        ),
        pytest.param(
            f"{{plugins: {{{RUNS}, score: {{disabled: [{{name: '*'}}]}}}}, pluginConfig: [{TRAFFIC}, {OTHER}]}}",
            id="at filter alone",
        ),
        pytest.param(
            f"{{plugins: {{filter: {{disabled: [{{name: '*'}}]}}}}, pluginConfig: [{TRAFFIC}]}}", id="not at all"
        ),
    ],
)
def test_it_queries_what_a_service_with_all_plugins_would(read, profile):
    own, whole = read(profile), read(profile, read_whole)
    assert traffic_queries_of(own) == traffic_queries_of(whole)
    assert maximum_ages(own) == maximum_ages(whole)
    assert own.digest == whole.digest


def test_a_profile_that_runs_it_is_found(read):
    (query,) = traffic_queries_of(read(f"{{plugins: {{{RUNS}}}, pluginConfig: [{TRAFFIC}]}}"))
    assert (query.url, query.time_range) == ("http://prometheus:9090", timedelta(seconds=60))


def test_a_mistake_in_its_arguments_is_named(read):
    with pytest.raises(ConfigurationError, match=r"profiles\[0\].pluginConfig\[0\].args.range: want 5s..24h, got 1s"):
        read(f"{{plugins: {{{RUNS}}}, pluginConfig: [{TRAFFIC.replace('60s', '1s')}]}}")


def test_what_concerns_other_plugins_is_the_business_of_the_other_services(read):
    profile = "{plugins: {score: {enabled: [{name: OfNobody}]}}, pluginConfig: [{name: OfNobody, args: {a: 1}}]}"
    assert traffic_queries_of(read(profile)) == ()
    with pytest.raises(ConfigurationError, match="unknown plugin 'OfNobody'"):
        read(profile, read_whole)


def test_samples_that_become_too_old_between_two_rounds_are_known_at_the_start():
    """A rule between the file (maximumAge) and the environment (BERTH_COLLECTOR_INTERVAL)."""
    ages = {"short": timedelta(seconds=15), "long": timedelta(seconds=16)}
    assert outlived(ages, timedelta(seconds=15)) == ["short"]


LOAD = "{name: NodeLoad, args: {url: 'http://prometheus:9090', range: 60s, statistic: p95}}"
MEASURED = "multiPoint: {enabled: [{name: NetworkTraffic}, {name: NodeLoad}]}"


def test_a_profile_with_all_kinds_of_samples_has_a_query_of_each(read):
    own = read(f"{{plugins: {{{MEASURED}}}, pluginConfig: [{TRAFFIC}, {LOAD}]}}")
    (traffic,), ((load, demand),) = traffic_queries_of(own), load_queries(own).items()
    assert (load.url, load.time_range, demand.statistics) == (traffic.url, traffic.time_range, {"average", "p95"})
    assert maximum_ages(own) == {traffic.token: timedelta(seconds=90), load.token: timedelta(minutes=5)}
