"""NetworkTraffic in a configuration file: its two names, both forms of its arguments, and what is wrong with them."""

from datetime import timedelta

import pytest

from berth.api.config.load import ConfigurationError, load
from berth.api.config.networktraffic import NAME, maximum_age_of, query_of, url_problems
from berth.api.config.presets import DEFAULT
from berth.api.config.types import Point
from berth.plugins.registry import BUILT_IN
from berth_metrics_collector.settings import traffic_queries_of

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def loaded(enabled: str, configured: str, args: str, *, more: str = ""):
    return load(
        f"""{HEAD}profiles:
- schedulerName: networktraffic-scheduler
  plugins:
    score:
      enabled:
      - name: {enabled}
  pluginConfig:
  - name: {configured}
    args: {args}
{more}""",
        known=BUILT_IN,
        preset=DEFAULT,
    )


def problems(args: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        loaded("NetworkTraffic", "NetworkTraffic", args)
    return caught.value.problems


SHORT = '{ip: "prometheus.kube-system:9090", deviceName: eth0, timeRange: 60}'


@pytest.mark.parametrize("enabled", ["network_traffic", "NetworkTraffic"])
@pytest.mark.parametrize("configured", ["network_traffic", "NetworkTraffic"])
def test_arguments_arrive_under_either_name(enabled, configured):
    [profile] = loaded(enabled, configured, SHORT).profiles
    assert NAME in [ref.name for ref in profile.plugins[Point.SCORE]]
    query = query_of(profile.args[NAME])
    assert (query.url, query.devices, query.time_range) == (
        "http://prometheus.kube-system:9090",
        ("eth0",),
        timedelta(hours=1),
    )


def test_the_full_form_means_the_same():
    full = "{url: 'http://prometheus.kube-system:9090/', devices: [eth0], range: 1h}"
    [short], [long] = (traffic_queries_of(loaded("NetworkTraffic", "NetworkTraffic", args)) for args in (SHORT, full))
    assert short.token == long.token


def test_enabling_both_names_is_a_duplicate():
    text = (
        f"{HEAD}profiles: [{{plugins: {{score: {{enabled: [{{name: network_traffic}}, {{name: NetworkTraffic}}]}}}}}}]"
    )
    with pytest.raises(ConfigurationError, match="'NetworkTraffic' is listed more than once"):
        load(text, known=BUILT_IN, preset=DEFAULT)


def test_it_can_be_disabled_under_its_alias():
    text = f"""{HEAD}profiles:
- plugins:
    multiPoint: {{enabled: [{{name: NetworkTraffic}}]}}
    score: {{disabled: [{{name: network_traffic}}]}}
  pluginConfig: [{{name: NetworkTraffic, args: {{url: "http://p"}}}}]"""
    [profile] = load(text, known=BUILT_IN, preset=DEFAULT).profiles
    assert NAME not in [ref.name for ref in profile.plugins[Point.SCORE]]
    assert NAME in [ref.name for ref in profile.plugins[Point.FILTER]]


def test_enabled_without_an_address_is_an_error():
    text = f"{HEAD}profiles: [{{plugins: {{score: {{enabled: [{{name: NetworkTraffic}}]}}}}}}]"
    with pytest.raises(ConfigurationError, match=r"pluginConfig\.NetworkTraffic\.url: required"):
        load(text, known=BUILT_IN, preset=DEFAULT)


PATH = "profiles[0].pluginConfig[0].args."


def test_every_error_is_reported_at_once_with_its_path():
    found = problems(
        "{ip: p, url: 'ftp://x', deviceName: eth0, devices: ['('], timeRange: 0, range: 1s, direction: up,"
        " scoring: Best, capacity: much, unknownScore: 101, saturationPercent: -1, podBandwidth: '-1', maximumAge: 1s,"
        " nodeLabel: 'a b'}"
    )
    assert {problem.removeprefix(PATH).partition(":")[0] for problem in found} == {
        "url",
        "devices",
        "devices[0]",
        "range",
        "timeRange",
        "direction",
        "scoring",
        "capacity",
        "unknownScore",
        "saturationPercent",
        "podBandwidth",
        "maximumAge",
        "nodeLabel",
    }
    assert f"{PATH}direction: want receive, transmit or both, got 'up'" in found


ODD = [
    "http://",
    "http://h:99999",
    "http://u:secret@h",
    "://",
    "http://[::1",
    "http://a b",
    "${PROMETHEUS}",
    "{{ .Url }}",
]


@pytest.mark.parametrize("url", [f"'{url}'" for url in ODD])
def test_an_invalid_address_is_rejected_without_quoting_a_password(url):
    [problem] = problems(f"{{url: {url}}}")
    assert problem.startswith(f"{PATH}url: want ")
    assert "secret" not in problem


@pytest.mark.parametrize(
    "url", ["http://a_b.c-d:9090/e", "h:1", "10.0.0.1", "https://[fd00::1]:9090", "http://[fe80::1%25eth0]"]
)
def test_a_host_is_a_name_or_an_address(url):
    assert not url_problems(url, "url")


@pytest.mark.parametrize("url", ["http://h/?token=secret", "http://h?", "http://h:9090/#graph", "h/p?x=1#y"])
def test_an_address_has_neither_query_nor_fragment(url):
    """What is asked for stands behind it."""
    assert problems(f"{{url: '{url}'}}") == (f"{PATH}url: want no query and no fragment in it (? or #)",)


@pytest.mark.parametrize("label", ["a b", "device", "__name__"])
def test_series_are_not_selected_by_what_the_query_selects_itself(label):
    assert problems(f"{{url: 'http://h', labels: {{{label}: x}}}}") == (
        f"{PATH}labels: want names of labels other than device and __name__, got {label!r}",
    )


def test_the_maximum_age_is_the_range_and_at_least_five_minutes():
    def age(text: str) -> timedelta:
        [profile] = loaded("NetworkTraffic", "NetworkTraffic", text).profiles
        return maximum_age_of(profile.args[NAME])

    assert age("{url: 'http://p', timeRange: 60}") == timedelta(hours=1)
    assert age("{url: 'http://p', range: 30s}") == timedelta(minutes=5)
    assert age("{url: 'http://p', timeRange: 60, maximumAge: 90s}") == timedelta(seconds=90)


def test_each_different_query_of_all_profiles_runs_once():
    text = f"""{HEAD}profiles:
- schedulerName: one
  plugins: {{score: {{enabled: [{{name: NetworkTraffic}}]}}}}
  pluginConfig: [{{name: NetworkTraffic, args: {{url: "http://p", direction: both}}}}]
- schedulerName: two
  plugins: {{score: {{enabled: [{{name: NetworkTraffic}}]}}}}
  pluginConfig: [{{name: NetworkTraffic, args: {{url: "http://p", podBandwidth: 1M}}}}]
- schedulerName: three
  plugins: {{score: {{enabled: [{{name: NetworkTraffic}}]}}}}
  pluginConfig: [{{name: NetworkTraffic, args: {{url: "http://p", timeRange: 60}}}}]
- schedulerName: four
  pluginConfig: [{{name: NetworkTraffic, args: {{url: "http://unused"}}}}]"""
    asked = traffic_queries_of(load(text, known=BUILT_IN, preset=DEFAULT))
    assert [(query.url, query.time_range.total_seconds()) for query in asked] == [("http://p", 300), ("http://p", 3600)]


def test_there_are_no_queries_without_the_plugin():
    assert traffic_queries_of(load(HEAD, known=BUILT_IN, preset=DEFAULT)) == ()
