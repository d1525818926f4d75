"""Whatever value stands in whichever field of a configuration: the file is refused in sentences, or every pod goes on.

As `fuzz.test_whole_cycle`, with each field of the file's types and of every plugin's arguments. Of a value that the
file may have, the services' settings are made, the file is written again, and pods go through a whole cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import pytest

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.encode import as_document, digests
from berth.api.config.load import ConfigurationError, load
from berth.api.config.presets import DEFAULT
from berth.api.config.types import File
from berth.profiles.installed import known_plugins
from berth.settings.file import file_values, public_configuration
from berth.settings.sources import SettingsError, read_settings
from berth_metrics_collector.queries import ScrapeSeconds, traffic_queries
from berth_metrics_collector.settings import maximum_ages, traffic_queries_of
from berth_watcher.settings import watcher_settings
from fuzz.fields import ANY, MISSING, Odd, Path, at, odd_values, struct_fields, with_value
from fuzz.ordinary import Body, asking_for_the_slot, cluster, plain_pod
from fuzz.test_whole_cycle import check_guards, check_people
from fuzz.wholecycle import WholeCycle
from harness.plugins.long_runs import IS_LONG

EVERY: Final = 1 if IS_LONG else 19
"""Each run of `make test` tries every so many-th value of a field, another one in each field; `make test-long` all."""
LONGEST_PROBLEM: Final = 1_000
"""Characters of a sentence about the file."""
SECONDS: Final = 2.0
_OWN: Final[Mapping[str, Body]] = {
    "NodeFailures": {"remember": "5m", "backOff": "1m"},
    "NetworkTraffic": {
        "ip": "",
        "deviceName": "",
        "timeRange": None,
        "url": "http://127.0.0.1:9090",
        "devices": ["eth0"],
        "range": "1m",
        "direction": "receive",
        "scoring": "Capacity",
        "capacity": "1G",
        "unknownScore": 50,
        "maximumAge": "5m",
        "podBandwidth": "10M",
        "saturationPercent": 90,
        "nodeLabel": "node",
        "labels": {"cluster": "east"},
    },
    "NodeLoad": {
        "url": "http://127.0.0.1:9090",
        "range": "1m",
        "maximumAge": "5m",
        "resourceWeights": {"cpu": 1, "memory": 2},
        "balanceWeight": 1,
        "usageThresholds": {"cpu": 99},
        "estimatedScalingFactors": {"cpu": 50},
        "labels": {"cluster": "east"},
    },
    "LoadAwareScheduling": {
        "filterExpiredNodeMetrics": True,
        "enableScheduleWhenNodeMetricsExpired": False,
        "resourceWeights": {"cpu": 1, "memory": 2},
        "dominantResourceWeight": 1,
        "usageThresholds": {"cpu": 99},
        "prodUsageThresholds": {"cpu": 98},
        "scoreAccordingProdUsage": True,
        "estimator": "defaultEstimator",
        "estimatedScalingFactors": {"cpu": 50},
        "estimatedSecondsAfterPodScheduled": 30,
        "aggregated": {
            "usageThresholds": {"cpu": 99},
            "usageAggregationType": "p95",
            "usageAggregatedDuration": "10m",
            "scoreAggregationType": "p50",
            "scoreAggregatedDuration": "10m",
        },
        "supportedResources": ["cpu"],
    },
    "TargetLoadPacking": {
        "metricProvider": {
            "type": "Prometheus",
            "address": "http://127.0.0.1:9090",
            "token": "",
            "insecureSkipVerify": False,
        },
        "watcherAddress": "",
        "defaultRequests": {"cpu": "1"},
    },
    "LoadVariationRiskBalancing": {
        "metricProvider": {"type": "KubernetesMetricsServer", "address": "", "token": "", "insecureSkipVerify": False},
        "watcherAddress": "http://127.0.0.1:2020",
        "safeVarianceMargin": 1.0,
        "safeVarianceSensitivity": 2.0,
    },
    "DynamicResources": {"filterTimeout": "10s", "bindingTimeout": "10m"},
    "VolumeBinding": {
        "bindTimeoutSeconds": 600,
        "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}],
    },
    "PodTopologySpread": {
        "defaultingType": "List",
        "defaultConstraints": [{"maxSkew": 3, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    },
    "NodeResourcesBalancedAllocation": {"resources": [{"name": "cpu", "weight": 1}]},
    "NodeResourcesFit": {
        "ignoredResources": ["example.com/ignored"],
        "ignoredResourceGroups": ["example.org"],
        "scoringStrategy": {
            "type": "RequestedToCapacityRatio",
            "resources": [{"name": "cpu", "weight": 1}, {"name": "example.com/gpu", "weight": 3}],
            "requestedToCapacityRatio": {
                "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}],
            },
        },
    },
    "NodeAffinity": {
        "addedAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists", "values": []}]}]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 3,
                    "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                }
            ],
        }
    },
}
"""Arguments whose default is no ordinary value: none, or empty."""


def _ordinary_defaults(kind: type[msgspec.Struct]) -> Body:
    fields = msgspec.structs.fields(kind)
    return {
        each.encode_name: each.default for each in fields if isinstance(each.default, str | int) and each.default != ""
    }


ARGS: Final[Mapping[str, Body]] = {
    plugin.name: {**_ordinary_defaults(plugin.args_type), **_OWN.get(plugin.name, {})}
    for plugin in known_plugins().values()
    if plugin.args_type is not None
}
"""Every argument of every plugin that has some."""
EXTENDER: Final[Body] = {
    "urlPrefix": "http://127.0.0.1:9/extend",
    "filterVerb": "filter",
    "preemptVerb": "preempt",
    "prioritizeVerb": "prioritize",
    "weight": 1,
    "bindVerb": "bind",
    "enableHTTPS": False,
    "tlsConfig": {
        "insecure": True,
        "serverName": "",
        "certFile": "",
        "keyFile": "",
        "caFile": "",
        "certData": "",
        "keyData": "",
        "caData": "",
    },
    "httpTimeout": "5s",
    "nodeCacheCapable": True,
    "managedResources": [{"name": "example.com/managed", "ignoredByScheduler": False}],
    "ignorable": True,
}
"""Asked about pods with a resource that no pod here has."""


def configuration() -> Body:
    """A file with every field."""
    sets = {field.encode_name: {"enabled": [], "disabled": []} for field in _plugin_sets()}
    scored = ("NetworkTraffic", "NodeScoreLabel", "TenantSpread", "FreeCapacity")
    sets["score"] = {
        "enabled": [{"name": name, "weight": 2} for name in scored],
        "disabled": [{"name": "ImageLocality", "weight": 0}],
    }
    sets["filter"]["enabled"] = [{"name": name} for name in ("NodeReady", "NetworkTraffic", "NodeFilterLabel")]
    profile = {
        "schedulerName": "berth",
        "percentageOfNodesToScore": 100,
        "plugins": sets,
        "pluginConfig": [{"name": name, "args": args} for name, args in ARGS.items()],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "parallelism": 16,
        "leaderElection": {
            "leaderElect": True,
            "leaseDuration": "15s",
            "renewDeadline": "10s",
            "retryPeriod": "2s",
            "resourceLock": "leases",
            "resourceName": "berth",
            "resourceNamespace": "berth",
        },
        "clientConnection": {
            "kubeconfig": "",
            "acceptContentTypes": "",
            "contentType": "",
            "qps": 50,
            "burst": 100,
        },
        "enableProfiling": False,
        "enableContentionProfiling": False,
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 10,
        "profiles": [profile],
        "extenders": [EXTENDER],
        "delayCacheUntilActive": False,
    }


def _plugin_sets() -> Iterator[msgspec.structs.FieldInfo]:
    profile = next(field for field in msgspec.structs.fields(File) if field.name == "profiles")
    (of_profile,) = [each for each in profile.type.__args__ if each is not type(None)]
    plugins = next(field for field in msgspec.structs.fields(of_profile.__args__[0]) if field.name == "plugins")
    yield from msgspec.structs.fields(plugins.type)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A value in a field of the file, or of a plugin's arguments in it."""

    odd: Odd
    plugin: str = ""

    def __str__(self) -> str:
        return f"{self.plugin} {self.odd}".strip()

    @property
    def text(self) -> str:
        body = configuration()
        if not self.plugin:
            return with_value(body, self.odd.path, self.odd.value).decode()
        for config in body["profiles"][0]["pluginConfig"]:
            if config["name"] == self.plugin:
                config["args"] = msgspec.Raw(with_value(config["args"], self.odd.path, self.odd.value))
        return msgspec.json.encode(body).decode()


def trials_of_file() -> list[Trial]:
    ordinary = configuration()
    missing = [
        ".".join(path)
        for path, _ in struct_fields(File)
        if at(ordinary, path) is MISSING and not _is_of_an_empty_set(path)
    ]
    assert not missing, f"the ordinary file has no {', '.join(missing)}"
    return [Trial(odd=odd) for odd in odd_values(File, ordinary) if odd.field[-2:] != ("args", ANY)]


def _is_of_an_empty_set(path: Path) -> bool:
    """The plugins of a point are tried at the points that have some here: all points have one type."""
    return path[:3] == ("profiles", ANY, "plugins") and ANY in path[4:]


def trials_of_args(plugin: str) -> list[Trial]:
    kind, ordinary = known_plugins()[plugin].args_type, ARGS[plugin]
    assert kind is not None
    return [Trial(odd=odd, plugin=plugin) for odd in odd_values(kind, ordinary)]


def chosen(trials: list[Trial]) -> list[Trial]:
    return trials[::EVERY] + [each for each in trials if str(each) in FOUND]


FOUND: Final = frozenset(
    {
        "podInitialBackoffSeconds: least int64",
        "podMaxBackoffSeconds: least int64",
        "NetworkTraffic timeRange: int64",
        "podInitialBackoffSeconds: int64",
        "podMaxBackoffSeconds: int64",
        "NetworkTraffic range: 100,000 digits of an exponent",
        "PodTopologySpread defaultingType: 100,000 digits as text",
    }
)
"""What broke something once."""
SUBJECTS: Final = ("the file", *ARGS)


def test_every_argument_of_every_plugin_is_tried():
    for name in ARGS:
        kind = known_plugins()[name].args_type
        missing = [path for path, _ in struct_fields(kind) if len(path) == 1 and at(ARGS[name], path) is MISSING]
        assert not missing, f"give {name} in _OWN an ordinary value of {missing}"


def problem_of(trial: Trial) -> str:
    """What is wrong with the file, or with the services that have it; empty if all is well."""
    try:
        read = load(trial.text, known=known_plugins(), preset=DEFAULT)
    except ConfigurationError as error:
        return _problem_of_sentences(error)
    except Exception as error:  # noqa: BLE001 - it becomes the sentence of the failure
        return f"{type(error).__name__}: {error!s:.300}"
    try:
        check_services(read)
        check_cycle(read)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error!s:.300}"
    return ""


def _problem_of_sentences(error: ConfigurationError) -> str:
    for problem in error.problems:
        if len(problem) > LONGEST_PROBLEM:
            return f"a sentence of {len(problem)} characters: {problem:.100}"
    return "" if error.problems else "no sentence"


def check_services(read: KubeSchedulerConfiguration) -> None:
    """The settings of each service; a broken one is a sentence."""
    try:
        settings = read_settings(file=file_values(read))
    except SettingsError:
        return
    public_configuration(read, settings)
    watcher_settings(settings, read)
    digests(read)
    for query in traffic_queries_of(read):
        traffic_queries(query, ScrapeSeconds(15.0, 15.0))
    maximum_ages(read)
    again = load(msgspec.json.encode(as_document(read)).decode(), known=known_plugins(), preset=DEFAULT)
    assert digests(again).profiles == digests(read).profiles, "the file that is written again has other profiles"


def check_cycle(read: KubeSchedulerConfiguration) -> None:
    world = WholeCycle(read)
    for kind, body in cluster():
        world.apply(kind, body)
    world.apply("pod", plain_pod("honest-pod"))
    world.apply("pod", asking_for_the_slot("urgent", priority=1000))
    world.settle(seconds=SECONDS)
    check_people(world)
    check_guards(world)
    if "berth" in read.scheduler_names:
        assert "uid-honest-pod" in world.bound or world.said_of("honest-pod"), "nothing is said of the honest pod"


@pytest.mark.parametrize("subject", SUBJECTS)
def test_an_odd_value_of_a_configuration_is_refused_or_borne(subject: str):
    trials = trials_of_file() if subject == SUBJECTS[0] else trials_of_args(subject)
    found = [f"{trial}: {problem}" for trial in chosen(trials) if (problem := problem_of(trial))]
    assert not found, "\n".join(found[:20])
