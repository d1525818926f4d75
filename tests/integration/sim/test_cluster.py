"""The simulated cluster as a whole: its kubelets, its initial objects, and its command."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import yaml

from berth.kube.errors import KubeconfigError
from berth_cli.simulate.live import read_cluster
from berth_sim import cluster as snapshot
from berth_sim.__main__ import parser
from berth_sim.apiserver.kinds import ABSENT_KINDS, NAMESPACES, NODES, PODS, SimulatedKind
from berth_sim.cluster import SimulatedCluster, SnapshotError
from berth_sim.nodes import ZONE_LABEL, KubeletSettings, node_manifest, node_manifests, pod_manifest
from berth_sim.tables import human_duration
from harness.servers.child_processes import ended_with_the_block
from harness.worlds.kubernetes_api import KubernetesApi
from harness.worlds.kubernetes_api import kubernetes_api as connected

AT_ONCE = KubeletSettings(start_delay=timedelta(0), longest_grace=timedelta(0))


async def never() -> None:
    raise AssertionError("no test here compacts the history")


@asynccontextmanager
async def cluster_of_one_node() -> AsyncIterator[KubernetesApi]:
    nodes = [node_manifest("node-1")]
    async with SimulatedCluster(nodes=nodes, kubelet=AT_ONCE) as cluster, connected(cluster.url, never) as api:
        yield api


async def test_bound_pod_starts_to_run():
    async with cluster_of_one_node() as api, api.watch(api.pods) as events:
        await api.add_pod("web")
        await api.bind("web", "node-1")
        seen = [(await events.next())["object"] for _ in range(3)]
    assert [pod["status"]["phase"] for pod in seen] == ["Pending", "Pending", "Running"]
    conditions = {entry["type"]: entry["status"] for entry in seen[-1]["status"]["conditions"]}
    assert (conditions["PodScheduled"], conditions["Ready"]) == ("True", "True")
    assert seen[-1]["status"]["startTime"]


async def test_terminating_pod_is_ended_by_its_kubelet():
    async with cluster_of_one_node() as api, api.watch(api.pods) as events:
        await api.add_pod("web")
        await api.bind("web", "node-1")
        for _ in range(3):
            await events.next()
        await api.delete(f"{api.pods}/web")
        types = []
        while "DELETED" not in types:
            types.append((await events.next())["type"])
    assert types[0] == "MODIFIED"


async def test_pod_on_a_node_that_does_not_exist_is_left_alone():
    async with cluster_of_one_node() as api:
        await api.add_pod("lost")
        await api.bind("lost", "nowhere")
        await api.add_pod("web")
        async with api.watch(api.pods, resourceVersion=(await api.get(api.pods)).version) as events:
            await api.bind("web", "node-1")
            assert await events.names(2) == [("MODIFIED", "web"), ("MODIFIED", "web")]
        assert (await api.get(f"{api.pods}/lost")).body["status"]["phase"] == "Pending"


async def test_a_cordoned_node_is_tainted_until_it_is_uncordoned():
    own = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    of_the_cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    async with cluster_of_one_node() as api, api.watch("/api/v1/nodes") as events:
        await events.next()
        for change in ({"taints": [own], "unschedulable": True}, {"unschedulable": None}, {"taints": [of_the_cordon]}):
            await api.patch("/api/v1/nodes/node-1", {"spec": change})
        specs = [(await events.next())["object"]["spec"] for _ in range(6)]
    assert specs == [
        {"taints": [own], "unschedulable": True},
        {"taints": [own, of_the_cordon], "unschedulable": True},
        {"taints": [own, of_the_cordon]},
        {"taints": [own]},
        {"taints": [of_the_cordon]},
        {},
    ]


def test_manifest_of_a_cordoned_node_has_the_taint():
    spec = node_manifest("n", taints=[{"key": "k", "effect": "NoExecute"}], unschedulable=True)["spec"]
    assert [taint["key"] for taint in spec["taints"]] == ["k", "node.kubernetes.io/unschedulable"]
    assert spec["unschedulable"]


async def test_invalid_quantity_is_accepted():
    async with cluster_of_one_node() as api:
        container = {"name": "main", "resources": {"requests": {"cpu": "many"}}}
        assert (await api.add_pod("web", containers=[container])).code == 201


async def test_server_has_the_namespaces_and_priority_classes_of_a_new_cluster():
    async with cluster_of_one_node() as api:
        assert {"default", "kube-system"} < set((await api.get("/api/v1/namespaces")).names)
        spec = (await api.add_pod("web", priorityClassName="system-node-critical")).body["spec"]
        assert spec["priority"] == 2_000_001_000


AS_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


async def test_kubectl_gets_tables():
    async with (
        SimulatedCluster(nodes=node_manifests(2)) as cluster,
        aiohttp.ClientSession(cluster.url) as session,
        session.get("/api/v1/nodes", headers=AS_TABLE) as answer,
    ):
        table = await answer.json()
    assert table["kind"] == "Table"
    assert [column["name"] for column in table["columnDefinitions"]][:3] == ["Name", "Status", "Roles"]
    assert [row["cells"][:2] for row in table["rows"]] == [["node-0", "Ready"], ["node-1", "Ready"]]


@pytest.mark.parametrize(
    ("times", "seen"),
    [
        pytest.param({"eventTime": "2026-01-01T00:00:00.123456Z"}, "d", id="of a scheduler"),
        pytest.param({"lastTimestamp": "2026-01-01T00:00:00Z", "count": 2}, "d", id="of the old form"),
        pytest.param({"eventTime": "yesterday"}, "<invalid>", id="no time"),
        pytest.param({}, "<unknown>", id="without one"),
    ],
)
async def test_kubectl_shows_what_an_event_says(times, seen):
    async with SimulatedCluster() as cluster, aiohttp.ClientSession(cluster.url) as session:
        event = {
            "metadata": {"name": "web.1"},
            "involvedObject": {"kind": "Pod", "name": "web"},
            "reason": "Scheduled",
            "message": "to node-1",
            "type": "Normal",
            **times,
        }
        path = "/api/v1/namespaces/default/events"
        assert (await session.post(path, json={"apiVersion": "v1", "kind": "Event", **event})).status == 201
        async with session.get(path, headers=AS_TABLE) as answer:
            table = await answer.json()
    titles = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert titles == ["Last Seen", "Type", "Reason", "Object", "Message"]
    (cells,) = (row["cells"] for row in table["rows"])
    assert cells[0].endswith(seen)
    assert cells[1:5] == ["Normal", "Scheduled", "pod/web", "to node-1"]


AGES = [(0, "0s"), (119, "119s"), (120, "2m"), (3 * 3600, "3h"), (2 * 86_400, "2d")]


async def test_a_pod_without_a_scheduler_gets_the_only_one_there_is():
    async with SimulatedCluster(default_scheduler="berth") as cluster, connected(cluster.url, never) as api:
        given = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "c"}]},
        }
        created = await api.post(api.pods, given)
        assert created.body["spec"]["schedulerName"] == "berth"
        named = {**given, "metadata": {"name": "other"}, "spec": {**given["spec"], "schedulerName": "other"}}
        assert (await api.post(api.pods, named)).body["spec"]["schedulerName"] == "other"


@pytest.mark.parametrize("kind", ABSENT_KINDS, ids=lambda kind: kind.plural)
async def test_a_kind_without_effect_is_listed_empty_and_refused_with_a_sentence(kind: SimulatedKind):
    async with cluster_of_one_node() as api:
        namespace = "namespaces/default/" if kind.namespaced else ""
        path = f"/apis/{kind.group}/v1/" if kind.group else "/api/v1/"
        listed = await api.get(f"{path}{kind.plural}")
        assert (listed.code, listed.body["items"]) == (200, [])
        body = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "a"}}
        refused = await api.post(f"{path}{namespace}{kind.plural}", body)
        assert (refused.code, refused.body["reason"]) == (405, "MethodNotAllowed")
        assert refused.body["message"].startswith("the simulated cluster ")
        assert kind.name in refused.body["message"]
        assert (await api.get(f"{path}{namespace}{kind.plural}/a")).code == 404


async def test_an_exported_cluster_has_the_objects_as_kubectl_prints_them():
    nodes = [node_manifest(f"node-{number}") for number in range(501)]  # two pages
    async with SimulatedCluster(nodes=nodes) as cluster, connected(cluster.url, never) as api:
        await api.add_pod("web")
        exported = json.loads((await read_cluster(Path(cluster.kubeconfig_path), None)).objects)
        with pytest.raises(KubeconfigError, match="other"):
            await read_cluster(Path(cluster.kubeconfig_path), "other")
    kinds = Counter(each["kind"] for each in exported["items"])
    assert (exported["kind"], kinds["Node"], kinds["Pod"]) == ("List", 501, 1)
    assert {each["apiVersion"] for each in exported["items"] if each["kind"] == "Node"} == {"v1"}
    assert not [each for each in exported["items"] if "managedFields" in each["metadata"]]


async def kubectl(cluster: SimulatedCluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", "--kubeconfig", cluster.kubeconfig_path, *words]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "soon"])
def test_a_delay_that_is_no_time_is_an_error_of_usage(seconds: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--start-delay", seconds])
    assert ended.value.code == 2
    assert f"argument --start-delay: want seconds, got '{seconds}'" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_age_is_written_as_kubectl_does(seconds: int, text: str):
    assert human_duration(seconds) == text


async def test_cluster_uses_the_given_clock():
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    async with SimulatedCluster(clock=lambda: moment) as cluster, connected(cluster.url, never) as api:
        assert (await api.add_pod("web")).body["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
async def test_snapshot_of_a_cluster_is_loaded_unchanged(tmp_path: Path, write):
    pod = pod_manifest("web", namespace="shop", node="node-1")
    pod["metadata"] |= {"uid": "u-1", "resourceVersion": "9", "creationTimestamp": "2026-01-02T03:04:05Z"}
    pod["status"] = {"phase": "Running"}
    strange = {"apiVersion": "example.com/v1", "kind": "Strange", "metadata": {"name": "x"}}
    path = tmp_path / "cluster"
    path.write_text(write({"kind": "List", "items": [pod, node_manifest("node-1", zone="a"), strange]}))
    cluster = SimulatedCluster(objects=snapshot.read(path))
    assert cluster.loaded == {"Pod": 1, "Node": 1, "!Strange": 1}
    kept = cluster.resources.find(PODS, ("shop", "web")).value
    assert (kept["metadata"]["uid"], kept["status"]["phase"]) == ("u-1", "Running")
    assert kept["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert kept["spec"]["nodeName"] == "node-1"
    assert cluster.resources.find(NODES, ("", "node-1")).value["metadata"]["labels"][ZONE_LABEL] == "a"


@pytest.mark.parametrize("text", ["{", "just words", "[1, 2]", "a: [b"])
def test_file_that_is_not_a_snapshot_is_an_error_with_its_name(tmp_path: Path, text: str):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(SnapshotError, match=r"reading snapshot '.*cluster.yaml'"):
        snapshot.read(path)


def test_simulated_nodes_are_spread_over_three_zones():
    nodes = node_manifests(4)
    assert [node["metadata"]["labels"][ZONE_LABEL] for node in nodes] == ["zone-a", "zone-b", "zone-c", "zone-a"]


def test_command_prints_its_address_and_ends_on_sigterm(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "berth_sim", "--nodes", "3", "--kubeconfig-out", str(kubeconfig)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with ended_with_the_block(started) as process:
        assert process.stdout is not None
        printed = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert (printed["event"], printed["nodes"], process.returncode, errors) == ("listening", 3, 0, "")
    assert json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == printed["url"]


def test_command_reports_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "berth_sim", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 3
    assert ended.stderr.startswith(f"starting the simulated cluster on 127.0.0.1:{port}: ")


def test_command_reports_a_missing_snapshot():
    command = [sys.executable, "-m", "berth_sim", "--load", "/nowhere/cluster.json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("reading snapshot '/nowhere/cluster.json': ")


async def test_a_restart_with_an_identity_keeps_the_cluster_and_its_revisions():
    lives = []
    for second in (1, 2):
        clock = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
        async with (
            SimulatedCluster(
                nodes=[node_manifest("a")], clock=lambda clock=clock: clock, identity="compose"
            ) as cluster,
            connected(cluster.url, never) as api,
        ):
            known = (await api.get("/api/v1/namespaces/kube-system")).body["metadata"]["uid"]
            node = (await api.get("/api/v1/nodes/a")).body["metadata"]
            watched = await api.get("/api/v1/nodes", watch="true", resourceVersion=1)
            lives.append((known, node["uid"], int(node["resourceVersion"])))
            assert watched.body["object"]["code"] == 410
    (known, before, old), (known_again, after, new) = lives
    assert known == known_again
    assert before != after
    assert new > old


async def test_a_restart_without_an_identity_is_a_new_cluster():
    async with SimulatedCluster() as one, SimulatedCluster() as other:
        namespaces = [each.resources.store.table(NAMESPACES).items["", "kube-system"] for each in (one, other)]
    assert namespaces[0].value["metadata"]["uid"] != namespaces[1].value["metadata"]["uid"]


async def test_a_kubeconfig_is_whole_as_soon_as_it_is_there(tmp_path):
    """`berth up` reads it once it exists: a file that is written over is empty for a moment, a replaced one never."""
    path = tmp_path / "kubeconfig"
    path.write_text("of a former run")
    with path.open() as former:
        async with SimulatedCluster(kubeconfig_path=path) as cluster:
            assert former.read() == "of a former run"
            assert json.loads(path.read_text())["clusters"][0]["cluster"]["server"] == cluster.url
            assert list(tmp_path.iterdir()) == [path]
