"""`berth why`, `berth trace` and `berth top` on a running pipeline, with output for people and as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from harness.servers.child_processes import ended_with_the_block, free_ports
from harness.servers.nats_server import NatsServer
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.printed import on_terminal

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

COMMAND_SECONDS = 60.0
SOURCE = re.compile(r"cluster [0-9a-f-]{36}( \(/.+\))?, NATS nats://127\.0\.0\.1:\d+")
NODES = 4
MIRROR_SECONDS = 60.0
"""A watermark is at most half a minute old."""
CRITICAL = {"priorityClassName": "system-cluster-critical"}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """A pipeline on a simulated cluster."""
    with berth_up("--nodes", NODES, "--scorers", 2, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def seen(simulated: BerthUp) -> AsyncIterator[ClusterUser]:
    """The cluster of the pipeline, seen from outside."""
    async with cluster_user(simulated.kubeconfig) as cluster:
        yield cluster


def berth(*arguments: object, of: BerthUp | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command whose output is not a terminal, on the NATS server of a pipeline."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    environment |= {"TMPDIR": str(of.temporary)} if of else {}
    command = [sys.executable, "-m", "berth_cli", *map(str, arguments), *(("--nats", of.nats) if of else ())]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, env=environment
    )


def started(command: list[str], out: IO[bytes], of: BerthUp) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=out, env={**os.environ, "TMPDIR": str(of.temporary)})


def output(answer: subprocess.CompletedProcess[str]) -> str:
    """The answer of a command that succeeded without errors, after the line with cluster and NATS; or a document."""
    assert (answer.returncode, answer.stderr) == (0, "")
    if "-o" in answer.args:
        return answer.stdout
    first, _, rest = answer.stdout.partition("\n")
    assert SOURCE.fullmatch(first), first
    return rest


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def add(cluster: ClusterUser, name: str, cpu: str = "100m") -> str:
    """Create a pod that fits on any node; return it as namespace/name."""
    answer = await cluster.api.post(cluster.api.pods, cluster.pod(name, cpu=cpu, spec={"nodeSelector": {}}))
    assert answer.code == 201
    return f"{cluster.namespace}/{name}"


async def bound(of: BerthUp, cluster: ClusterUser, name: str) -> str:
    """The node of a pod once its Decision is stored: the API server shows a pod bound before."""
    node = (await cluster.all_bound([name]))[name]
    session = await of.session()

    async def is_decided() -> bool:
        found = await session.last("DECISIONS", f"berth.decision.berth.{cluster.namespace}.{name}")
        return found is not None and json.loads(found.data)["outcome"] == "bound"

    try:
        await eventually(is_decided, f"the Decision on {name}")
    finally:
        await session.close()
    return node


async def refused(cluster: ClusterUser, name: str) -> str:
    """Create a pod that fits nowhere, and wait for its condition."""
    pod = await add(cluster, name, cpu="1000")
    await eventually(lambda: cluster.condition(name), "a condition")
    return pod


async def test_why_prints_the_best_nodes_with_all_scores_and_weights(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "web")
    node = await bound(simulated, seen, "web")
    text = output(berth("why", pod, of=simulated))
    assert text.startswith(f"{pod} is on {node}\n")
    assert f"{NODES} of {NODES} nodes were possible" in text
    assert ["100", "x", "3"] in [row[at : at + 3] for row in rows(text) for at in range(len(row))]
    assert "runner-up: " in text
    document = json.loads(output(berth("why", pod, "-o", "json", of=simulated)))
    assert (document["pod"], document["outcome"], document["node"]) == (pod, "bound", node)
    assert SOURCE.fullmatch(f"cluster {document['cluster']}, NATS {document['nats']}")
    assert len(document["candidates"]) == NODES
    for candidate in document["candidates"]:
        scores = candidate["scores"].values()
        assert sum(score["score"] * score["weight"] for score in scores) == candidate["total"]
    assert document["asked_at"] < document["ranked_at"] < document["decided_at"]
    assert document["view_age_seconds"] >= 0


async def test_why_says_of_a_deleted_pod_where_it_was(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "short-lived")
    node = await bound(simulated, seen, "short-lived")
    await seen.delete_pod("short-lived")

    async def said() -> bool:
        return output(berth("why", pod, of=simulated)).startswith(f"{pod} was on {node}; it was deleted")

    await eventually(said, "the pod to have left, by a watermark that is young enough", MIRROR_SECONDS)
    assert json.loads(output(berth("why", pod, "-o", "json", of=simulated)))["has_left"]


async def test_why_explains_a_pod_that_was_made_anew_and_not_the_one_before(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "again-0")
    await seen.all_bound(["again-0"])
    await seen.delete_pod("again-0")
    gates = {"schedulingGates": [{"name": "example.com/quota"}], "nodeSelector": {}}
    await seen.create([seen.pod("again-0", spec=gates)])

    async def said() -> bool:
        return output(berth("why", pod, of=simulated)).startswith(f"{pod} is gated and not scheduled: SchedulingGates")

    await eventually(said, "the mirror to have lost the one before", MIRROR_SECONDS)


async def test_why_prints_how_many_nodes_each_plugin_rejected(simulated: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "large")
    text = output(berth("why", pod, of=simulated))
    assert text.startswith(f"{pod} waits, no node is possible: 0/{NODES} nodes are available: {NODES} Insufficient cpu")
    assert [str(NODES), "NodeResourcesFit", "Insufficient", "cpu"] in [row[:4] for row in rows(text)]
    document = json.loads(output(berth("why", pod, "-o", "json", of=simulated)))
    assert (document["outcome"], document["node"], document["blockers"]) == ("unschedulable", "", ["NodeResourcesFit"])
    assert document["rejections"][0]["nodes"] == NODES


async def test_why_prints_what_a_pod_asks_for_beside_the_nodes(simulated: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "too-large")
    told = output(berth("why", pod, of=simulated))
    asks = r"asks for 1000 CPU; the largest node has \d+, and the freest [\d.]+ of \d+ free \(node-\d+\)"
    heading = "what would help, by the present state of the cluster:"
    assert re.search(rf"^{heading}\n  NodeResourcesFit: {asks}$", told, re.MULTILINE)
    document = json.loads(output(berth("why", pod, "-o", "json", of=simulated)))
    assert document["remedies"][0]["amounts"]["asked"] == 1_000_000


async def test_why_now_ranks_a_bound_pod_without_access_to_the_cluster(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "again")
    node = await bound(simulated, seen, "again")

    async def mirrored() -> bool:
        return berth("why", pod, "--now", of=simulated).returncode == 0

    await eventually(mirrored, "the mirror to show the pod")
    text = output(berth("why", pod, "--now", of=simulated))
    assert text.startswith(f"{pod} is on {node}; ranked now it would go to ")
    document = json.loads(output(berth("why", pod, "--now", "-o", "json", of=simulated)))
    assert (document["node"], len(document["candidates"]), document["refused"]) == (node, NODES, [])


async def test_why_now_has_a_pod_that_waits_from_the_watcher_or_the_cluster(simulated: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "huge")
    cluster = ("--kubeconfig", simulated.kubeconfig)
    text = output(berth("why", pod, "--now", *cluster, of=simulated))
    assert text.startswith(f"{pod} is on no node; ranked now it would wait: ")
    document = json.loads(output(berth("why", pod, "--now", *cluster, "-o", "json", of=simulated)))
    assert {refusal["plugin"] for refusal in document["refused"]} == {"NodeResourcesFit"}
    assert len(document["refused"]) == NODES
    assert output(berth("why", pod, "--now", of=simulated)).startswith(text.partition("\n")[0])
    unknown = berth("why", "default/unknown", "--now", of=simulated)
    assert unknown.returncode == 1
    assert "name the cluster with --kubeconfig" in unknown.stderr


async def test_why_now_warns_when_its_configuration_is_not_the_services(simulated: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "elsewhere")
    cluster = ("--kubeconfig", simulated.kubeconfig)
    assert berth("why", pod, "--now", *cluster, of=simulated).stderr == ""
    answer = berth("why", pod, "--now", *cluster, "--algorithm-provider=FromScratch", of=simulated)
    assert answer.returncode == 0
    (line,) = answer.stderr.splitlines()
    assert line.startswith("berth: ranked under configuration ")
    assert line.endswith("name theirs with --config, --algorithm-provider and --feature-gates")


async def test_why_prints_the_gates_of_a_gated_pod(simulated: BerthUp, seen: ClusterUser):
    gates = {"schedulingGates": [{"name": "example.com/quota"}], "nodeSelector": {}}
    await seen.create([seen.pod("gated", spec=gates)])
    pod, cluster = f"{seen.namespace}/gated", ("--kubeconfig", simulated.kubeconfig)
    words = "waiting for scheduling gates: [example.com/quota]"
    text = output(berth("why", pod, *cluster, of=simulated))
    assert text == f"{pod} is gated and not scheduled: SchedulingGates: {words}\n"
    document = json.loads(output(berth("why", pod, *cluster, "-o", "json", of=simulated)))
    assert (document["outcome"], document["message"], document["blockers"]) == ("gated", words, ["SchedulingGates"])
    now = output(berth("why", pod, "--now", *cluster, of=simulated))
    assert now.startswith(f"{pod} is gated and not scheduled (SchedulingGates: {words}); without that, ranked now")
    alone = output(berth("why", pod, of=simulated))  # the watcher knows it too
    assert alone.startswith(f"{pod} is gated and not scheduled: SchedulingGates: {words}\n")


async def test_why_prints_the_victims_of_a_pod_and_the_preemptor_of_a_victim(simulated: BerthUp, seen: ClusterUser):
    (node,) = await seen.add_nodes(1, cpu="1")
    await seen.all_bound(await seen.add_pods(1, "low", cpu="1"))
    await seen.add_pods(1, "vip", cpu="1", spec=CRITICAL)
    await bound(simulated, seen, "vip-0")
    vip, low = f"{seen.namespace}/vip-0", f"{seen.namespace}/low-0"
    assert f" ago: {low}\n" in output(berth("why", vip, of=simulated))
    document = json.loads(output(berth("why", vip, "-o", "json", of=simulated)))
    assert (document["outcome"], document["preemption"]["node"]) == ("bound", node)
    assert output(berth("why", low, of=simulated)).startswith(f"{low} was evicted from {node} for {vip} ")


async def test_trace_prints_all_stages_of_a_bound_pod(simulated: BerthUp, seen: ClusterUser):
    pod = await add(seen, "traced")
    node = await bound(simulated, seen, "traced")
    lines = rows(output(berth("trace", pod, of=simulated)))
    assert [line[1] for line in lines[1:2]] == ["pending"]
    assert [line[3] for line in lines[2:]] == ["ranked", "decision"]
    assert lines[-1][-2:] == ["bound", node]
    document = json.loads(output(berth("trace", pod, "-o", "json", of=simulated)))
    assert [message["stage"] for message in document["messages"]] == ["pending", "ranked", "decision"]
    assert document["messages"][-1]["message"]["outcome"] == "bound"
    assert all(message["since_seconds"] >= 0 for message in document["messages"][1:])


async def test_trace_follows_a_pod_until_it_is_interrupted(simulated: BerthUp, seen: ClusterUser, tmp_path: Path):
    output = tmp_path / "trace"
    pod = f"{seen.namespace}/coming"
    command = [sys.executable, "-m", "berth_cli", "trace", pod, "-f", "-o", "json", "--nats", simulated.nats]
    with output.open("wb") as out, ended_with_the_block(started(command, out, simulated)) as following:
        await add(seen, "coming")
        await seen.all_bound(["coming"])

        async def stages() -> list[str] | None:
            lines = output.read_text().split("\n")[:-1]  # the last one may be on its way
            found = [json.loads(line)["stage"] for line in lines]
            return found if "decision" in found else None

        assert await eventually(stages, "the decision") == ["pending", "ranked", "decision"]
        following.send_signal(signal.SIGINT)
        assert following.wait(COMMAND_SECONDS) == 0


def test_top_prints_queues_services_and_nodes_once_without_a_terminal(simulated: BerthUp):
    text = output(berth("top", of=simulated))
    first = {row[0]: row for row in rows(text) if row}
    assert first["PENDING"][1] == "scorer"
    assert first["RANKED"][1].startswith("binder-")
    assert {"DECISIONS", "dead", "watcher", "binder", "scorer-1", "scorer-2"} <= first.keys()
    assert len([name for name in first if name.startswith("node-")]) == NODES
    assert "leads for" in " ".join(first["watcher"])
    assert any(line.startswith("waiting pods: active ") for line in text.splitlines())
    assert any(line.startswith("in flight: berth 0 of ") for line in text.splitlines())


async def test_on_a_terminal_of_80_columns_no_line_is_longer(simulated: BerthUp, seen: ClusterUser):
    waiting = await refused(seen, "web-5d59d67564")
    placed = await add(seen, "bound-5d59d67564-x2x4z")
    await bound(simulated, seen, "bound-5d59d67564-x2x4z")
    environment = {**os.environ, "TMPDIR": str(simulated.temporary), "BERTH_NATS_URL": simulated.nats}
    for words, whole in (
        (("top", "--once"), {"scorer-1", "metrics-collector"}),
        (("queue",), {waiting, "NodeResourcesFit"}),
        (("queue", "why", waiting), {waiting, "NodeUpdateNodeAllocatable*,"}),
        (("why", waiting), {waiting, "NodeResourcesFit"}),
        (("why", placed), {placed}),
        (("trace", placed), {"pending", "ranked", "decision"}),
    ):
        lines = on_terminal(words, 80, environment)
        assert [line for line in lines if len(line) > 80] == [], words
        assert whole <= {word for line in lines for word in line.split()}, words


def test_top_prints_the_same_as_json(simulated: BerthUp):
    document = json.loads(output(berth("top", "-o", "json", of=simulated)))
    assert [stream["stream"] for stream in document["streams"]] == ["PENDING", "RANKED", "DECISIONS", "dead"]
    assert document["mirror_age_seconds"] >= 0
    assert document["attention"] == []
    stats = {one["service"]: one["stats"] for one in document["services"]}
    assert stats["berth-watcher"]["leading"]["number"] >= 1
    assert stats["berth-watcher"]["queues"].keys() == {"active", "backoff", "unschedulable", "gated", "with group"}
    assert stats["berth-watcher"]["in_flight"] == {"berth": 0}
    assert (stats["berth-binder"]["leading"]["number"], stats["berth-binder"]["unexamined"]) == (1, 0)
    assert len({one["configuration"] for one in stats.values()}) == 1
    assert len(document["nodes"]) == NODES
    assert all(node["cpu_millicores"]["allocatable"] > 0 for node in document["nodes"])


def test_top_ends_when_q_is_pressed(simulated: BerthUp):
    command = f"{sys.executable} -m berth_cli top --interval 60 --nats {simulated.nats}"
    environment = {**os.environ, "TMPDIR": str(simulated.temporary), "COLUMNS": "80", "TERM": "xterm"}
    with on_a_terminal(command, environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        _read_until(b"DECISIONS", process.stdout)
        process.stdin.write(b"q")
        process.stdin.flush()
        process.stdout.read()
        assert process.wait(COMMAND_SECONDS) == 0


def test_top_goes_on_when_nats_has_come_back(own_nats_server: NatsServer):
    assert berth("bus", "apply", "--nats", own_nats_server.address).stdout == f"applied to {own_nats_server.address}\n"
    command = f"{sys.executable} -m berth_cli top --interval 0.2 --nats {own_nats_server.address}"
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with on_a_terminal(command, environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        _read_until(b"DECISIONS", process.stdout)
        own_nats_server.stop()
        assert b"DECISIONS" in _read_until(b"trying again", process.stdout), "the last overview stays"
        own_nats_server.start()
        while b"trying again" in _read_until(b"no watcher answers", process.stdout):
            pass
        process.stdin.write(b"q")
        process.stdin.flush()
        process.stdout.read()
        assert process.wait(COMMAND_SECONDS) == 0


def on_a_terminal(command: str, environment: dict[str, str]) -> AbstractContextManager[subprocess.Popen[bytes]]:
    script, pipe = ["script", "-qec", command, "/dev/null"], subprocess.PIPE
    return ended_with_the_block(subprocess.Popen(script, stdin=pipe, stdout=pipe, env=environment))


def _read_until(wanted: bytes, stream: IO[bytes]) -> bytes:
    shown = b""
    while wanted not in shown:
        read = stream.read1()  # type: ignore[attr-defined] - a buffered reader
        assert read, f"it ended after {shown[-300:]!r}"
        shown += read
    return shown


def test_top_watch_prints_one_json_document_per_line(simulated: BerthUp):
    command = ["top", "--watch", "--interval", "0.2", "-o", "json", "--nats", simulated.nats]
    watching = [sys.executable, "-m", "berth_cli", *command]
    own = {**os.environ, "TMPDIR": str(simulated.temporary)}
    with ended_with_the_block(subprocess.Popen(watching, stdout=subprocess.PIPE, text=True, env=own)) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert lines[0]["now"] < lines[1]["now"]
        process.send_signal(signal.SIGINT)
        assert process.wait(COMMAND_SECONDS) == 0


@pytest.mark.parametrize("verb", ["why", "trace"])
def test_an_unknown_pod_ends_with_1_and_one_line(verb: str, simulated: BerthUp):
    answer = berth(verb, "default/nobody", of=simulated)
    assert answer.returncode == 1
    assert SOURCE.fullmatch(answer.stdout.rstrip())
    (line,) = answer.stderr.splitlines()
    assert line.startswith("berth: ")
    assert "'default/nobody'" in line


@pytest.mark.parametrize("verb", [("why", "web"), ("why", "web", "--now"), ("trace", "web"), ("top",)])
def test_unreachable_nats_is_reported_on_one_line(verb: tuple[str, ...]):
    answer = berth(*verb, "--nats", f"nats://127.0.0.1:{free_ports(1)[0]}")
    assert answer.returncode == 3
    (line,) = answer.stderr.splitlines()
    assert line.endswith("start `berth up`, or name the server with --nats")


@pytest.mark.parametrize("arguments", [("why", "a/b/c"), ("trace", "/"), ("top", "--nats", "somewhere")])
def test_invalid_arguments_are_a_usage_error(arguments: tuple[str, ...]):
    answer = berth(*arguments)
    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) == 1


def test_a_nats_server_without_berths_streams_is_reported(own_nats_server):
    answer = berth("top", "--nats", own_nats_server.address)
    assert answer.returncode == 3
    assert "it has no streams of berth" in answer.stderr
