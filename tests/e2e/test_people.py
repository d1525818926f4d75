"""`berth why`, `berth trace` and `berth top` against a running pipeline, as a person or a program calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import pytest

from harness.servers.child_processes import free_ports
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

COMMAND_SECONDS = 60.0
NODES = 4
CRITICAL = {"priorityClassName": "system-cluster-critical"}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """A pipeline on a simulated cluster."""
    with berth_up("--nodes", NODES, "--scorers", 2, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def seen(simulated: BerthUp) -> AsyncIterator[ClusterUser]:
    """Its cluster from outside."""
    async with cluster_user(simulated.kubeconfig) as cluster:
        yield cluster


def berth(*arguments: object, nats: str | None = None) -> subprocess.CompletedProcess[str]:
    """Type a command; what it prints has no terminal."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    command = [sys.executable, "-m", "berth.cli", *map(str, arguments), *(("--nats", nats) if nats else ())]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, env=environment
    )


def started(command: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    """A command that goes on."""
    return subprocess.Popen(command, stdout=out)


def told(answer: subprocess.CompletedProcess[str]) -> str:
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def add(cluster: ClusterUser, name: str, cpu: str = "100m") -> str:
    """Create a pod that any node may take; returns it as it is typed."""
    answer = await cluster.api.post(cluster.api.pods, cluster.pod(name, cpu=cpu, spec={"nodeSelector": {}}))
    assert answer.code == 201
    return f"{cluster.namespace}/{name}"


async def refused(cluster: ClusterUser, name: str) -> str:
    """Create a pod that fits nowhere, and wait until it has been told so."""
    pod = await add(cluster, name, cpu="1000")
    await eventually(lambda: cluster.condition(name), "a condition")
    return pod


async def test_why_tells_the_best_nodes_with_every_plugins_score_and_weight(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "web")
    node = (await seen.all_bound(["web"]))["web"]
    text = told(berth("why", pod, nats=simulated.nats))
    assert text.startswith(f"{pod} is on {node}\n")
    assert f"{NODES} of {NODES} nodes were possible" in text
    assert ["100", "x", "3"] in [row[at : at + 3] for row in rows(text) for at in range(len(row))]
    assert "runner-up: " in text
    said = json.loads(told(berth("why", pod, "-o", "json", nats=simulated.nats)))
    assert (said["pod"], said["outcome"], said["node"]) == (pod, "bound", node)
    assert len(said["candidates"]) == NODES
    for candidate in said["candidates"]:
        scores = candidate["scores"].values()
        assert sum(score["score"] * score["weight"] for score in scores) == candidate["total"]
    assert said["asked_at"] < said["ranked_at"] < said["decided_at"]
    assert said["view_age_seconds"] >= 0


async def test_why_tells_of_a_waiting_pod_who_refused_how_many_nodes(simulated: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "large")
    text = told(berth("why", pod, nats=simulated.nats))
    assert text.startswith(f"{pod} waits, no node is possible: 0/{NODES} nodes are available: {NODES} Insufficient cpu")
    assert [str(NODES), "NodeResourcesFit", "Insufficient", "cpu"] in [row[:4] for row in rows(text)]
    said = json.loads(told(berth("why", pod, "-o", "json", nats=simulated.nats)))
    assert (said["outcome"], said["node"], said["blockers"]) == ("unschedulable", "", ["NodeResourcesFit"])
    assert said["rejections"][0]["nodes"] == NODES


async def test_why_now_ranks_a_bound_pod_on_every_node_without_a_cluster_to_ask(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "again")
    node = (await seen.all_bound(["again"]))["again"]

    async def mirrored() -> bool:
        return berth("why", pod, "--now", nats=simulated.nats).returncode == 0

    await eventually(mirrored, "the mirror to show the pod")
    text = told(berth("why", pod, "--now", nats=simulated.nats))
    assert text.startswith(f"{pod} is on {node}; ranked now it would go to ")
    said = json.loads(told(berth("why", pod, "--now", "-o", "json", nats=simulated.nats)))
    assert (said["node"], len(said["candidates"]), said["refused"]) == (node, NODES, [])


async def test_why_now_reads_a_sleeping_pod_from_the_cluster_and_tells_every_node(
    simulated: BerthUp, seen: ClusterUser
):
    pod = await refused(seen, "huge")
    cluster = ("--kubeconfig", simulated.kubeconfig)
    text = told(berth("why", pod, "--now", *cluster, nats=simulated.nats))
    assert text.startswith(f"{pod} is on no node; ranked now it would wait: ")
    said = json.loads(told(berth("why", pod, "--now", *cluster, "-o", "json", nats=simulated.nats)))
    assert {refusal["plugin"] for refusal in said["refused"]} == {"NodeResourcesFit"}
    assert len(said["refused"]) == NODES
    alone = berth("why", pod, "--now", nats=simulated.nats)
    assert alone.returncode == 1
    assert "name the cluster with --kubeconfig" in alone.stderr


async def test_why_now_under_another_configuration_than_the_services_says_so(simulated: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "elsewhere")
    cluster = ("--kubeconfig", simulated.kubeconfig)
    assert berth("why", pod, "--now", *cluster, nats=simulated.nats).stderr == ""
    answer = berth("why", pod, "--now", *cluster, "--algorithm-provider=FromScratch", nats=simulated.nats)
    assert answer.returncode == 0
    (line,) = answer.stderr.splitlines()
    assert line.startswith("berth: ranked under configuration ")
    assert line.endswith("name theirs with --config, --algorithm-provider and --feature-gates")


async def test_why_says_of_a_gated_pod_that_nobody_looks_for_a_node(simulated: BerthUp, seen: ClusterUser):
    gates = {"schedulingGates": [{"name": "example.com/quota"}], "nodeSelector": {}}
    await seen.create([seen.pod("gated", spec=gates)])
    pod, cluster = f"{seen.namespace}/gated", ("--kubeconfig", simulated.kubeconfig)
    words = "waiting for scheduling gates: [example.com/quota]"
    text = told(berth("why", pod, *cluster, nats=simulated.nats))
    assert text == f"{pod} is gated, nobody looks for a node: SchedulingGates: {words}\n"
    said = json.loads(told(berth("why", pod, *cluster, "-o", "json", nats=simulated.nats)))
    assert (said["outcome"], said["message"], said["blockers"]) == ("gated", words, ["SchedulingGates"])
    now = told(berth("why", pod, "--now", *cluster, nats=simulated.nats))
    assert now.startswith(
        f"{pod} is gated, nobody looks for a node (SchedulingGates: {words}); without that, ranked now"
    )
    alone = berth("why", pod, nats=simulated.nats)
    assert alone.returncode == 1
    assert "Is it gated? Then name the cluster with --kubeconfig" in alone.stderr


async def test_why_says_whom_a_pods_room_cost_and_for_whom_a_pod_had_to_go(simulated: BerthUp, seen: ClusterUser):
    (node,) = await seen.add_nodes(1, cpu="1")
    await seen.all_bound(await seen.add_pods(1, "low", cpu="1"))
    await seen.all_bound(await seen.add_pods(1, "vip", cpu="1", spec=CRITICAL))
    vip, low = f"{seen.namespace}/vip-0", f"{seen.namespace}/low-0"
    assert f": evicted {low}\n" in told(berth("why", vip, nats=simulated.nats))
    said = json.loads(told(berth("why", vip, "-o", "json", nats=simulated.nats)))
    assert (said["outcome"], said["preemption"]["node"]) == ("bound", node)
    assert told(berth("why", low, nats=simulated.nats)).startswith(f"{low} was evicted from {node} for {vip} ")


async def test_trace_tells_the_whole_way_of_a_pod_that_is_bound_already(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "traced")
    node = (await seen.all_bound(["traced"]))["traced"]
    lines = rows(told(berth("trace", pod, nats=simulated.nats)))
    assert [line[1] for line in lines[1:2]] == ["pending"]
    assert [line[3] for line in lines[2:]] == ["ranked", "decision"]
    assert lines[-1][-2:] == ["bound", node]
    said = json.loads(told(berth("trace", pod, "-o", "json", nats=simulated.nats)))
    assert [message["stage"] for message in said["messages"]] == ["pending", "ranked", "decision"]
    assert said["messages"][-1]["message"]["outcome"] == "bound"
    assert all(message["since_seconds"] >= 0 for message in said["messages"][1:])


async def test_trace_follows_a_pod_until_it_is_interrupted(simulated: BerthUp, seen: ClusterUser, tmp_path: Path):
    output = tmp_path / "trace"
    pod = f"{seen.namespace}/coming"
    command = [sys.executable, "-m", "berth.cli", "trace", pod, "-f", "-o", "json", "--nats", simulated.nats]
    with output.open("wb") as out, started(command, out) as following:
        try:
            await add(seen, "coming")
            await seen.all_bound(["coming"])

            async def stages() -> list[str] | None:
                found = [json.loads(line)["stage"] for line in output.read_text().splitlines()]
                return found if "decision" in found else None

            assert await eventually(stages, "the decision") == ["pending", "ranked", "decision"]
            following.send_signal(signal.SIGINT)
            assert following.wait(COMMAND_SECONDS) == 0
        finally:
            following.kill()


def test_top_tells_queues_services_and_nodes_once_where_there_is_no_terminal(simulated: BerthUp):
    text = told(berth("top", nats=simulated.nats))
    first = {row[0]: row for row in rows(text) if row}
    assert first["PENDING"][1] == "scorer"
    assert first["RANKED"][1].startswith("binder-")
    assert {"DECISIONS", "dead", "berth-watcher", "berth-binder", "berth-scorer"} <= first.keys()
    assert len([row for row in rows(text) if row[1:2] in (["scorer-1"], ["scorer-2"])]) == 2
    assert len([name for name in first if name.startswith("node-")]) == NODES


def test_top_tells_programs_the_same(simulated: BerthUp):
    said = json.loads(told(berth("top", "-o", "json", nats=simulated.nats)))
    assert [stream["stream"] for stream in said["streams"]] == ["PENDING", "RANKED", "DECISIONS", "dead"]
    assert said["mirror_age_seconds"] >= 0
    assert len(said["nodes"]) == NODES
    assert all(node["cpu_millicores"]["allocatable"] > 0 for node in said["nodes"])


def test_top_goes_on_for_programs_with_a_document_a_line(simulated: BerthUp):
    command = ["top", "--watch", "--interval", "0.2", "-o", "json", "--nats", simulated.nats]
    with subprocess.Popen([sys.executable, "-m", "berth.cli", *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(2)]
            assert lines[0]["now"] < lines[1]["now"]
            process.send_signal(signal.SIGINT)
            assert process.wait(COMMAND_SECONDS) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("verb", ["why", "trace"])
def test_a_pod_that_nobody_knows_is_a_no_on_one_line(verb: str, simulated: BerthUp):
    answer = berth(verb, "default/nobody", nats=simulated.nats)
    assert (answer.returncode, answer.stdout) == (1, "")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("berth: ")
    assert "'default/nobody'" in line


@pytest.mark.parametrize("verb", [("why", "web"), ("why", "web", "--now"), ("trace", "web"), ("top",)])
def test_nats_that_is_not_there_is_said_on_one_line(verb: tuple[str, ...]):
    answer = berth(*verb, nats=f"nats://127.0.0.1:{free_ports(1)[0]}")
    assert answer.returncode == 3
    (line,) = answer.stderr.splitlines()
    assert line.endswith("start `berth up`, or name the server with --nats")


@pytest.mark.parametrize("arguments", [("why", "a/b/c"), ("trace", "/"), ("top", "--nats", "somewhere")])
def test_what_cannot_be_understood_is_a_usage_error(arguments: tuple[str, ...]):
    answer = berth(*arguments)
    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) == 1


def test_a_nats_without_anything_of_berth_is_said_to_be_one(own_nats_server):
    answer = berth("top", nats=own_nats_server.address)
    assert answer.returncode == 3
    assert "it has nothing of berth" in answer.stderr
