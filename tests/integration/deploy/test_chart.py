"""The chart: its presets are the overlays, each value has its effect, and helm installs and upgrades it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import pytest
import yaml

from berth import __version__
from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser
from harness.worlds.manifests import (
    CHART,
    PUT_TOGETHER,
    ROOT,
    Object,
    add_custom_kinds,
    charted,
    containers,
    decoded,
    helm,
    named,
    of_kind,
    overlay,
    pod_templates,
    preset,
)

pytestmark = pytest.mark.requires("helm")

OF_HELM: Final = ("app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart")
"""Labels that say who applied an object."""
HASHED: Final = re.compile(r"^(nats|nats-accounts|berth-settings|berth-configuration|berth-shadow)-[a-z0-9]{10}$")
"""Names that kustomize gives a ConfigMap; the chart puts a sum of its text into the pods that read it."""
UNORDERED: Final = ("env", "volumes", "volumeMounts")
SHADOWS: Final = yaml.safe_load((ROOT / "deploy/kubernetes/components/shadow/scheduler.yaml").read_text())
AS_OVERLAYS: Final = {
    "namespace": {"create": True},
    "nats": {"secrets": {"create": False}},
    "console": {"enabled": False},
    "podGroups": {"define": False},
}
"""What differs for all: helm makes the namespace and the Secrets, and has console and PodGroups from the start."""
ALIKE: Final[Mapping[str, Mapping[str, Any]]] = {
    "minimal": preset("minimal"),
    "second-scheduler": preset("beside"),
    "production": preset("production"),
    "changed": {
        **preset("production"),
        "scheduler": {"configuration": yaml.safe_load((PUT_TOGETHER / "changed/scheduler.yaml").read_text())},
        "settings": {"BERTH_NATS_DECISIONS_MEBIBYTES": 256},
    },
    "keda": {**preset("production"), "scorer": {"autoscaling": {"type": "keda"}}},
    "existing-nats": {"nats": {"mode": "external", "external": {"url": "tls://nats.example.com:4222"}}},
    "console": {"console": {"enabled": True}},
    "recorder": {"recorder": {"enabled": True}},
    "metrics-api": {"metricsCollector": {"metricsApi": True}},
    "shadow": {"shadow": {"enabled": True, "configuration": SHADOWS}},
    "podgroups": {"podGroups": {"define": True}},
}
"""By overlay, the values that give the same objects."""


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The first with what the second has, maps merged as helm does."""
    found = dict(first)
    for key, value in second.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


def comparable(each: Object) -> Object:
    """Without what differs by who applies it."""
    found: dict[str, Any] = json.loads(json.dumps(each), object_hook=_without_order_and_hash)
    for label in OF_HELM:
        found["metadata"].get("labels", {}).pop(label, None)
    if found["kind"] in ("Deployment", "StatefulSet"):
        found["spec"]["template"]["metadata"].pop("annotations", None)
    if found["kind"] == "CustomResourceDefinition":
        found["metadata"].pop("annotations", None)
    if found["kind"] == "ConfigMap":
        data = found["data"]
        found["data"] = {key: yaml.safe_load(data[key]) if key.endswith(".yaml") else data[key] for key in data}
    return found


def _without_order_and_hash(found: dict[str, Any]) -> dict[str, Any]:
    found.pop("imagePullPolicy", None)  # IfNotPresent, which is the default for a tag
    for key, value in found.items():
        if isinstance(value, str):
            found[key] = HASHED.sub(r"\1", value.rstrip("\n"))
        elif key in UNORDERED:
            found[key] = sorted(value, key=lambda each: json.dumps(each, sort_keys=True))
    return found


@pytest.mark.requires("kubectl")
@pytest.mark.parametrize("name", ALIKE)
def test_chart_and_overlay_have_the_same_objects(name):
    def by_name(objects: tuple[Object, ...]) -> dict[tuple[str, str, str], Object]:
        alike = [comparable(each) for each in objects]
        return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in alike}

    made = by_name(charted(merged(AS_OVERLAYS, ALIKE[name])))
    known = by_name(overlay(name))
    assert made.keys() == known.keys()
    assert {key for key in made if made[key] != known[key]} == set()


@pytest.mark.parametrize("name", sorted(path.stem for path in CHART.glob("presets/*.yaml")))
def test_lint_finds_nothing(name):
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--values", str(CHART / f"presets/{name}.yaml"))


def test_version_is_that_of_the_code():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


# Every value, with another one, and what must be given beside it.

RESOURCES: Final = {"requests": {"cpu": "77m"}}
OTHER: Final[Mapping[str, tuple[Any, Mapping[str, Any]]]] = {
    "image.repository": ("registry.example.com/berth", {}),
    "image.tag": ("1.2.3", {}),
    "image.digest": ("sha256:" + "a" * 64, {}),
    "image.pullPolicy": ("Always", {}),
    "imagePullSecrets": ([{"name": "pulls"}], {}),
    "namespace.create": (True, {}),
    "scheduler.configuration": ({"profiles": [{"schedulerName": "ours"}]}, {}),
    "podGroups.define": (False, {}),
    "logVerbosity": (4, {}),
    "settings": ({"BERTH_NATS_DECISIONS_MEBIBYTES": 256}, {}),
    "nats.mode": ("single", {}),
    "nats.image.repository": ("registry.example.com/nats", {}),
    "nats.image.tag": ("2.99", {}),
    "nats.storage.size": ("9Gi", {}),
    "nats.storage.className": ("fast", {}),
    "nats.resources": (RESOURCES, {}),
    "nats.secrets.create": (False, {}),
    "nats.secrets.names": (["nats.example.com"], {}),
    "nats.external.url": ("nats://other.example.com:4222", ALIKE["existing-nats"]),
    "nats.external.replicas": (5, ALIKE["existing-nats"]),
    "nats.external.users": (False, ALIKE["existing-nats"]),
    "watcher.replicas": (3, {}),
    "watcher.resources": (RESOURCES, {}),
    "binder.replicas": (3, {}),
    "binder.resources": (RESOURCES, {}),
    "scorer.replicas": (3, {}),
    "scorer.autoscaling.type": ("hpa", {}),
    "scorer.autoscaling.minReplicas": (3, {"scorer": {"autoscaling": {"type": "hpa"}}}),
    "scorer.autoscaling.maxReplicas": (9, {"scorer": {"autoscaling": {"type": "hpa"}}}),
    "scorer.autoscaling.prometheus": ("http://other:9090", {"scorer": {"autoscaling": {"type": "keda"}}}),
    "scorer.resources": (RESOURCES, {}),
    "metricsCollector.metricsApi": (True, {}),
    "metricsCollector.prometheusTokenSecret": ("prometheus-token", {}),
    "metricsCollector.replicas": (2, {}),
    "metricsCollector.resources": (RESOURCES, {}),
    "priorityClassName": ("", {}),
    "nodeSelector": ({"pool": "system"}, {}),
    "tolerations": ([{"operator": "Exists"}], {}),
    "plugins": ([{"name": "ours", "image": "registry.example.com/ours:1.0"}], {}),
    "console.enabled": (False, {}),
    "console.ingress.enabled": (True, {"console": {"ingress": {"host": "berth.example.com"}}}),
    "console.resources": (RESOURCES, {}),
    "recorder.enabled": (True, {}),
    "recorder.keep": ("2h", {"recorder": {"enabled": True}}),
    "recorder.keepSize": ("2Gi", {"recorder": {"enabled": True}}),
    "recorder.storage.size": ("9Gi", {"recorder": {"enabled": True}}),
    "recorder.storage.className": ("fast", {"recorder": {"enabled": True}}),
    "recorder.resources": (RESOURCES, {"recorder": {"enabled": True}}),
    "shadow.enabled": (True, {"shadow": {"configuration": SHADOWS}}),
    "shadow.configuration": ({"profiles": [{"schedulerName": "berth"}]}, ALIKE["shadow"]),
    "shadow.resources": (RESOURCES, ALIKE["shadow"]),
    "prometheus.podMonitor": (True, {}),
    "prometheus.rules": (True, {}),
    "prometheus.dashboards": (True, {}),
    "prometheus.labels": ({"release": "ours"}, {"prometheus": {"rules": True}}),
    "networkPolicies.enabled": (False, {}),
    "networkPolicies.apiServerPorts": ([16443], {}),
    "networkPolicies.prometheusPorts": ([19090], {}),
} | {
    f"console.ingress.{key}": (
        value,
        {"console": {"ingress": {"enabled": True, "host": "berth.example.com"}}},
    )
    for key, value in {
        "className": "nginx",
        "host": "other.example.com",
        "annotations": {"a": "b"},
        "tlsSecret": "certificate",
    }.items()
}
WHOLE: Final = ("resources", "configuration", "annotations", "settings", "nodeSelector", "labels")
"""Maps that are one value."""


def leaves(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in WHOLE:
            yield from leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def test_every_value_has_another_one_here():
    assert set(leaves(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))) == set(OTHER)


@pytest.mark.parametrize("path", OTHER)
def test_value_has_an_effect(path):
    value, beside = OTHER[path]
    without_secrets = {} if path.startswith("nats.secrets") else {"nats": {"secrets": {"create": False}}}
    beside = merged(beside, without_secrets)
    changed: dict[str, Any] = {path.split(".")[-1]: value}
    for key in reversed(path.split(".")[:-1]):
        changed = {key: changed}
    assert charted(merged(beside, changed)) != unchanged(json.dumps(beside))


@cache
def unchanged(values: str) -> tuple[Object, ...]:
    return charted(json.loads(values))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"watcher": {"replica": 3}}, "at '/watcher': additional properties 'replica' not allowed"),
        ({"image": {"digest": "abc"}}, "at '/image/digest': 'abc' does not match"),
        ({"scorer": {"autoscaling": {"type": "vpa"}}}, "at '/scorer/autoscaling/type': value must be one of"),
        ({"settings": {"DEBUG": "1"}}, "'DEBUG' does not match"),
        ({"nats": {"mode": "external"}}, "nats.external.url: with nats.mode external, give the address"),
        ({"shadow": {"enabled": True}}, "shadow.configuration: give the KubeSchedulerConfiguration"),
        ({"console": {"ingress": {"enabled": True}}}, "console.ingress.host: give the name"),
        (
            {"settings": {"BERTH_NATS_PREFIX": "east"}},
            "settings.BERTH_NATS_PREFIX: the bundled servers of nats.mode cluster have one berth, without a prefix",
        ),
        ({"settings": {"BERTH_NATS_URL": "nats://own"}}, "settings.BERTH_NATS_URL: give nats.external.url instead"),
        ({"settings": {"BERTH_NATS_REPLICAS": 1}}, "settings.BERTH_NATS_REPLICAS: give nats.external.replicas instead"),
        ({"settings": {"BERTH_LOG_VERBOSITY": 4}}, "settings.BERTH_LOG_VERBOSITY: give logVerbosity instead"),
        (
            {"scorer": {"autoscaling": {"type": "keda"}}, "nats": {"mode": "single"}},
            "scorer.autoscaling.type: keda reads the servers of nats.mode cluster",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_value_is_refused_by_its_path(values, error):
    with pytest.raises(AssertionError) as refused:
        charted(values)
    assert error in str(refused.value)


def test_leases_are_in_the_release_namespace_unless_the_configuration_says_otherwise():
    def namespace(**configuration: object) -> str:
        profiles = {"profiles": [{"schedulerName": "berth"}]}
        objects = charted({"scheduler": {"configuration": profiles | configuration}}, namespace="elsewhere")
        assert {each["metadata"].get("namespace") for each in of_kind(objects, "Deployment")} == {"elsewhere"}
        text = named(objects, "ConfigMap", "berth-configuration")["data"]["scheduler.yaml"]
        return str(yaml.safe_load(text)["leaderElection"]["resourceNamespace"])

    assert namespace() == "elsewhere"
    assert namespace(leaderElection={"resourceNamespace": "ours"}) == "ours"


@pytest.mark.parametrize(
    "nats", [{"mode": "single"}, {"mode": "external", "external": {"url": "nats://own", "users": False}}]
)
def test_a_prefix_needs_no_users(nats):
    objects = charted({"nats": nats, "settings": {"BERTH_NATS_PREFIX": "east"}})
    assert named(objects, "ConfigMap", "berth-settings")["data"]["BERTH_NATS_PREFIX"] == "east"
    assert "BERTH_NATS_USER" not in json.dumps(objects)


def test_users_of_ones_own_servers_are_those_that_the_command_prints_for_the_prefix():
    objects = charted(
        {
            **ALIKE["shadow"],
            "recorder": {"enabled": True},
            "nats": {"mode": "external", "external": {"url": "tls://own"}},
            "settings": {"BERTH_NATS_PREFIX": "east"},
        }
    )
    printed = permissions_of("east")
    users = set(re.findall(r"user: (\S+),", printed))
    used = set()
    for name, template in pod_templates(objects):
        for each in containers(template):
            told = {variable["name"]: variable.get("value") for variable in each.get("env", [])}
            used.add(told["BERTH_NATS_USER"])
            inbox = told.get("BERTH_NATS_INBOX_PREFIX", "_INBOX")
            assert f'"{inbox}.>"' in printed, name
    assert used == users - {"east-facts"}  # who writes facts is elsewhere


def permissions_of(prefix: str) -> str:
    command = [sys.executable, "-m", "berth_cli", "bus", "permissions", "--prefix", prefix]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_console_answers_to_the_name_of_its_ingress():
    objects = charted({"console": {"ingress": {"enabled": True, "host": "berth.example.com"}}})
    (console,) = named(objects, "Deployment", "berth-console")["spec"]["template"]["spec"]["containers"]
    assert console["args"][-2:] == ["--allowed-host", "berth.example.com"]


def test_only_the_collector_has_the_token_for_prometheus():
    objects = charted({"metricsCollector": {"prometheusTokenSecret": "prometheus-token"}})
    (name,) = (name for name, template in pod_templates(objects) if "prometheus-token" in json.dumps(template))
    assert name == "Deployment/berth-metrics-collector"
    spec = named(objects, "Deployment", "berth-metrics-collector")["spec"]["template"]["spec"]
    (collector,) = spec["containers"]
    (place,) = (each["mountPath"] for each in collector["volumeMounts"] if each["name"] == "prometheus")
    assert {"name": "BERTH_PROMETHEUS_TOKEN_FILE", "value": f"{place}/token"} in collector["env"]
    (volume,) = (each["secret"] for each in spec["volumes"] if each["name"] == "prometheus")
    assert volume == {"secretName": "prometheus-token", "defaultMode": 0o440}


def test_plugins_of_others_are_copied_before_each_program_starts():
    objects = charted({**ALIKE["shadow"], "plugins": [{"name": "ours", "image": "registry.example.com/ours:1.0"}]})
    programs = [(name, spec) for name, spec in pod_templates(objects) if not name.endswith("/nats")]
    assert len(programs) == 6
    for name, template in programs:
        assert "plugin-ours" in [each["name"] for each in containers(template)], name
        assert {"name": "PYTHONPATH", "value": "/opt/plugins"} in template["spec"]["containers"][0]["env"]


@pytest.mark.requires("kubebuilder_assets", "kubectl")
@pytest.mark.timeout(300)
async def test_podgroups_are_defined_once_and_outlive_the_release(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser
):
    there = ("--namespace", "helmed", "--kubeconfig", str(own_control_plane.kubeconfig_path))
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.scheduling.x-k8s.io"

    async def owner() -> tuple[str, str]:
        metadata = (await cluster_outside.api.get(definition)).body["metadata"]
        return metadata["uid"], metadata["annotations"].get("meta.helm.sh/release-name", "")

    helm("install", "berth", str(CHART), *there, "--create-namespace")
    first, release = await owner()
    assert release == "berth"
    helm("upgrade", "berth", str(CHART), *there, "--set", "podGroups.define=false")
    assert await owner() == (first, "berth")
    helm("upgrade", "berth", str(CHART), *there, "--set", "podGroups.define=true")
    helm("uninstall", "berth", *there)
    assert await owner() == (first, "berth")
    elsewhere = ("--namespace", "elsewhere", *there[2:])
    helm("install", "other", str(CHART), *elsewhere, "--create-namespace")
    assert await owner() == (first, "berth")
    helm("uninstall", "other", *elsewhere)
    assert await owner() == (first, "berth")


@pytest.mark.requires("kubebuilder_assets", "kubectl")
@pytest.mark.timeout(300)
async def test_helm_installs_upgrades_and_rolls_back_and_keeps_the_secrets(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser
):
    add_custom_kinds(own_control_plane)
    to_it = ("berth", str(CHART), "--namespace", "helmed", "--kubeconfig", str(own_control_plane.kubeconfig_path))
    said = helm("install", *to_it, "--create-namespace")
    assert "exec deployment/berth-console -- berth why default/first" in said

    async def made() -> dict[str, dict[str, str]]:
        answer = await cluster_outside.api.get("/api/v1/namespaces/helmed/secrets")
        ours = [each for each in answer.body["items"] if each["metadata"]["name"].startswith("berth-")]
        return {each["metadata"]["name"]: decoded(each) for each in ours}

    first = await made()
    assert len(first) == 10
    assert len({secret["password"] for secret in first.values() if "password" in secret}) == 8
    assert first["berth-nats-people"]["password"] in first["berth-nats-server"]["passwords.conf"]
    helm("upgrade", *to_it, "--set", "scorer.autoscaling.type=hpa,prometheus.podMonitor=true,prometheus.rules=true")
    assert await made() == first
    there = ("--namespace", "helmed", "--kubeconfig", str(own_control_plane.kubeconfig_path))
    helm("rollback", "berth", "1", *there)
    assert await made() == first
    # A release of a chart that did not know this user: the others keep their passwords, and the server its certificate.
    await cluster_outside.api.call("DELETE", "/api/v1/namespaces/helmed/secrets/berth-nats-facts")
    helm("upgrade", *to_it)
    later = await made()
    former, password = (secrets["berth-nats-facts"].pop("password") for secrets in (first, later))
    passwords = first["berth-nats-server"].pop("passwords.conf").replace(former, password)
    assert later["berth-nats-server"].pop("passwords.conf") == passwords
    assert len(password) == 48
    assert later == first
    autoscalers = "/apis/autoscaling/v2/namespaces/helmed/horizontalpodautoscalers"
    assert (await cluster_outside.api.get(autoscalers)).body["items"] == []
    helm("uninstall", "berth", *there)
    assert await made() == {}
