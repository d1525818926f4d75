"""`berth queue`, `dead` and `drain` on a running pipeline, and `berth why` about pods without a Decision."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from berth.bus.stages import publish_dead_letter
from berth.messages.attempts import DeadLetter
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

COMMAND_SECONDS = 60.0
SOURCE = re.compile(r"cluster [0-9a-f-]{36}( \(/.+\))?, NATS nats://127\.0\.0\.1:\d+")
NODES = 4


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    with berth_up("--nodes", NODES, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def seen(running: BerthUp) -> AsyncIterator[ClusterUser]:
    async with cluster_user(running.kubeconfig) as cluster:
        yield cluster


def berth(*arguments: object, of: BerthUp, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose output is not a terminal, on the NATS server of a pipeline, without any kubeconfig."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "KUBE"))}
    environment |= {"TMPDIR": str(of.temporary), "HOME": str(of.temporary), **variables}
    command = [sys.executable, "-m", "berth_cli", *map(str, arguments), "--nats", of.nats]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, env=environment
    )


def output(answer: subprocess.CompletedProcess[str]) -> str:
    """The answer of a command that succeeded without errors, after the line with cluster and NATS; or a document."""
    assert (answer.returncode, answer.stderr) == (0, "")
    if "-o" in answer.args:
        return answer.stdout
    first, _, rest = answer.stdout.partition("\n")
    assert SOURCE.fullmatch(first), first
    return rest


async def refused(cluster: ClusterUser, name: str) -> str:
    """A pod that fits nowhere, once its condition says so; as namespace/name."""
    pod = cluster.pod(name, cpu="1000", spec={"nodeSelector": {}})
    assert (await cluster.api.post(cluster.api.pods, pod)).code == 201
    await eventually(lambda: cluster.condition(name), "a condition")
    return f"{cluster.namespace}/{name}"


async def test_queue_lists_the_pods_that_wait_and_why(running: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "large")
    gates = {"schedulingGates": [{"name": "example.com/quota"}], "nodeSelector": {}}
    await seen.create([seen.pod("gated", spec=gates)])

    async def both() -> str | None:
        text = output(berth("queue", "-n", seen.namespace, of=running))
        return text if "SchedulingGates" in text else None

    lines = (await eventually(both, "the gated pod")).splitlines()
    rows = [line.split() for line in lines]
    assert [row[:2] for row in rows[3:5]] == [[pod, "unschedulable"], [f"{seen.namespace}/gated", "gated"]]
    assert [row[-1] for row in rows[3:5]] == ["NodeResourcesFit", "SchedulingGates"]
    assert lines[6] == f"{pod}, refused by NodeResourcesFit: what would help"
    assert re.fullmatch(
        r"  NodeResourcesFit: asks for 1000 CPU; the largest node has \d+, and the freest .* free \(node-\d\)", lines[7]
    )
    assert "what would help" not in output(berth("queue", "-n", seen.namespace, "--no-advice", of=running))
    (group,) = json.loads(output(berth("queue", "-n", seen.namespace, "-o", "json", of=running)))["groups"]
    assert (group["pods"], group["example"], group["remedies"][0]["amounts"]["asked"]) == (1, pod, 1_000_000)
    listed = yaml.safe_load(
        output(berth("queue", "list", "-n", seen.namespace, "--queue", "gated", "-o", "yaml", of=running))
    )
    assert [(one["name"], one["plugins"]) for one in listed["pods"]] == [("gated", ["SchedulingGates"])]
    assert output(berth("queue", "-n", "nobodys", of=running)).splitlines()[-1] == "no pod waits in namespace 'nobodys'"


async def test_queue_why_names_the_events_that_a_pod_waits_for(running: BerthUp, seen: ClusterUser):
    await refused(seen, "waits")
    text = output(berth("queue", "why", "waits", "-n", seen.namespace, of=running))
    assert text.startswith(f"{seen.namespace}/waits is unschedulable: 0/{NODES} nodes are available: ")
    assert re.search(r"tried again in (5 min 0|4 min \d+) s, earlier ", text)
    (row,) = [line for line in text.splitlines() if line.startswith("NodeResourcesFit")]
    assert "NodeAdd*" in row
    document = json.loads(output(berth("queue", "why", f"{seen.namespace}/waits", "-o", "json", of=running)))
    assert (document["outcome"], document["blockers"]) == ("unschedulable", ["NodeResourcesFit"])
    assert document["queued"]["helping"][0]["plugin"] == "NodeResourcesFit"
    assert "  NodeResourcesFit: asks for 1000 CPU; the largest node has " in text


def on_a_terminal(words: list[str], of: BerthUp) -> list[str]:
    """The lines of a command on a terminal of 80 columns, without colours."""
    command = " ".join([sys.executable, "-m", "berth_cli", *words, "--nats", of.nats])
    environment = {**os.environ, "TMPDIR": str(of.temporary), "COLUMNS": "80", "TERM": "xterm"}
    shown = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=COMMAND_SECONDS,
    ).stdout
    return [line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()]


async def test_tables_are_readable_at_80_columns(running: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "narrow")
    for words in (["queue", "-n", seen.namespace], ["queue", "why", pod], ["dead"], ["top", "--once"]):
        lines = await asyncio.to_thread(on_a_terminal, words, running)
        assert max(map(len, lines)) <= 80
    lines = await asyncio.to_thread(on_a_terminal, ["queue", "-n", seen.namespace], running)
    assert [line.split()[-1] for line in lines if "unschedulable " in line][-1] == "NodeResourcesFit"


async def test_a_pod_that_does_not_wait_is_not_in_the_queue(running: BerthUp, seen: ClusterUser):
    answer = berth("queue", "why", "default/nobody", of=running)
    assert answer.returncode == 1
    assert "it does not wait for berth" in answer.stderr


async def test_why_says_whose_a_pod_is_that_berth_has_never_seen(running: BerthUp, seen: ClusterUser):
    forgotten = seen.pod("forgotten", spec={"nodeSelector": {}, "schedulerName": "default-scheduler"})
    await seen.create([forgotten])
    pod, cluster = f"{seen.namespace}/forgotten", str(running.kubeconfig)
    sentence = "is not berth's: its schedulerName is 'default-scheduler', and berth schedules those with berth"
    for variable in ("KUBECONFIG", "BERTH_KUBECONFIG"):
        assert output(berth("why", pod, of=running, **{variable: cluster})) == f"{pod} {sentence}\n"
    document = json.loads(output(berth("why", pod, "-o", "json", of=running, KUBECONFIG=cluster)))
    assert (document["scheduler"], document["message"]) == ("default-scheduler", sentence)
    alone = berth("why", pod, of=running)
    assert alone.returncode == 1
    assert SOURCE.fullmatch(alone.stdout.rstrip())
    assert alone.stderr.endswith("no cluster was asked: name one with --kubeconfig\n")


async def test_why_says_what_it_could_not_look_up(running: BerthUp, seen: ClusterUser, tmp_path: Path):
    gone = tmp_path / "kubeconfig"
    text = json.loads(running.kubeconfig.read_text())
    text["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    gone.write_text(json.dumps(text))
    answer = berth("why", "default/nobody", of=running, KUBECONFIG=str(gone))
    assert answer.returncode == 1
    assert "; could not look it up in the cluster: " in answer.stderr
    answer = berth("why", "default/nobody", of=running, KUBECONFIG=str(running.kubeconfig))
    assert (answer.returncode, answer.stderr.strip().endswith("the API server has no such pod")) == (1, True)


async def test_dead_letters_are_listed_and_shown_and_their_pod_is_tried_again(running: BerthUp, seen: ClusterUser):
    pod = await refused(seen, "dies")
    session = await running.session("binder")
    subject = f"berth.ranked.berth.{seen.namespace}.dies"
    letter = DeadLetter(subject=subject, reason="five exceptions in a row", service="binder", payload='{"odd": 1}')
    await publish_dead_letter(session, letter)
    await session.close()
    listed = output(berth("dead", "list", "-n", seen.namespace, of=running)).splitlines()
    number, *_ = listed[1].split()
    assert listed[1].split()[-7:] == ["binder", pod, "five", "exceptions", "in", "a", "row"]
    shown = output(berth("dead", "show", number, of=running))
    assert shown.startswith(f"{pod}: five exceptions in a row\n")
    assert f"the message was on {subject}\n" in shown
    assert '{"odd": 1}' in shown
    document = json.loads(output(berth("dead", "show", pod, "-o", "json", of=running)))
    assert (document["number"], document["letter"]["service"]) == (int(number), "binder")
    assert output(berth("dead", "retry", number, of=running)) == f"{pod} is tried again now: it was unschedulable\n"

    async def again() -> bool:
        document = json.loads(output(berth("queue", "why", pod, "-o", "json", of=running)))
        return document["queued"]["pod"].get("attempts", 0) >= 2 and document["outcome"] == "unschedulable"

    await eventually(again, "another attempt")


async def test_what_cannot_be_retried_is_said(running: BerthUp, seen: ClusterUser):
    session = await running.session("scorer")
    await publish_dead_letter(session, DeadLetter(subject="odd", reason="no subject of a pod", service="scorer"))
    await session.close()
    listed = json.loads(output(berth("dead", "-o", "json", of=running)))["letters"]
    (odd,) = [one["number"] for one in listed if one["pod"] is None]
    answer = berth("dead", "retry", odd, of=running)
    assert (answer.returncode, "it is about 'scorer', not about a pod" in answer.stderr) == (1, True)
    answer = berth("dead", "retry", "default/nobody", of=running)
    assert (answer.returncode, "it does not wait for berth" in answer.stderr) == (1, True)
    answer = berth("dead", "show", "999", of=running)
    assert (answer.returncode, "not found" in answer.stderr) == (1, True)


async def test_people_may_look_and_not_retry_or_drain(running: BerthUp, seen: ClusterUser, tmp_path: Path):
    pod = await refused(seen, "kept")
    password = next(running.temporary.glob("berth-of-*/credentials/people")).read_text()
    as_people = {
        "TMPDIR": str(tmp_path),  # where the pipeline's own passwords are not found
        "BERTH_NATS_USER": "people",
        "BERTH_NATS_PASSWORD": password,
        "BERTH_NATS_DOMAIN": "berth",
    }
    assert "unschedulable" in output(berth("queue", "why", pod, of=running, **as_people))
    for command in (["dead", "retry", pod], ["drain"], ["drain", "--stop"]):
        answer = berth(*command, of=running, **as_people)
        assert answer.returncode in {0, 2}, answer.stderr
        if command != ["drain", "--stop"]:  # there is nothing to stop, so nothing is sent
            assert answer.stderr.splitlines()[-1].endswith("this is an admin's command: connect as NATS's user 'apply'")


async def test_a_drained_pipeline_publishes_nothing_until_it_is_stopped(running: BerthUp, seen: ClusterUser):
    drained = berth("drain", "--timeout", "60", of=running)
    assert (drained.returncode, "\ndrained: no pod is under way, " in drained.stdout) == (0, True)
    assert drained.stderr.startswith("berth: no pod is published until `berth drain --stop`;")
    await seen.create([seen.pod("late", spec={"nodeSelector": {}})])

    async def waiting() -> str | None:
        text = output(berth("queue", "-n", seen.namespace, of=running))
        return text if f"{seen.namespace}/late" in text else None

    text = await eventually(waiting, "the pod")
    assert "draining: no pod is published until `berth drain --stop`" in text
    assert "draining: " in output(berth("top", "--once", of=running))
    assert not (await seen.pods())["late"]["spec"].get("nodeName")
    assert output(berth("drain", "--stop", of=running)) == "pods are published again\n"
    await seen.all_bound(["late"])
    assert output(berth("drain", "--stop", of=running)) == "it was not drained\n"
