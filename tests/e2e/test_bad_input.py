"""Invalid input is reported clearly where its owner looks, and it neither blocks nor loses other pods."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from berth_sim.nodes import node_manifest
from harness.servers.child_processes import free_ports
from harness.servers.control_plane import ControlPlane, kubeconfig
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

USAGE = 2
UNREACHABLE = 3
STARTED_SECONDS = 60.0
NO_NATS = "nats://127.0.0.1:1"
CONFIGURATION = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
STARTS = "leaderElection: {leaderElect: false}\n"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory):
    """A pipeline on a simulated cluster, which accepts objects that the real API server would reject."""
    with berth_up("--nodes", 5, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


@asynccontextmanager
async def cluster_of(berth: BerthUp) -> AsyncIterator[ClusterUser]:
    async with cluster_user(berth.kubeconfig) as seen:
        yield seen


def anywhere(seen: ClusterUser, name: str, **form: object) -> dict:
    """Return a pod that fits on any node of the simulated cluster."""
    return seen.pod(name, spec={"nodeSelector": {}}, **form)


async def test_a_pod_with_an_invalid_quantity_is_rejected_and_others_are_bound(simulated: BerthUp):
    async with cluster_of(simulated) as seen:
        await seen.create([anywhere(seen, "broken", cpu="one and a half"), anywhere(seen, "sound")])
        await seen.all_bound(["sound"])
        (event,) = await eventually(lambda: seen.events("FailedScheduling"), "an Event on the pod")
        assert event["regarding"]["name"] == "broken"
        assert "one and a half" in event["note"]
        condition = await eventually(lambda: seen.condition("broken"), "a condition on the pod")
        assert condition["status"] == "False"
        assert "one and a half" in condition["message"]
        assert "broken" not in await seen.placed()
        await seen.create([anywhere(seen, "after")])
        await seen.all_bound(["after"])


async def test_a_node_without_a_status_gets_no_pod_until_it_has_one(simulated: BerthUp):
    async with cluster_of(simulated) as seen:
        blank = node_manifest("blank")
        status = blank.pop("status")
        await seen.create([blank])
        wants_blank = {"nodeSelector": {"kubernetes.io/hostname": "blank"}}
        await seen.create([seen.pod("patient", spec=wants_blank), anywhere(seen, "other")])
        await seen.all_bound(["other"])
        condition = await eventually(lambda: seen.condition("patient"), "a condition on the pod")
        assert condition["reason"] == "Unschedulable"
        await seen.report_status("blank", status)
        assert (await seen.all_bound(["patient"]))["patient"] == "blank"


async def test_a_node_with_an_invalid_quantity_gets_no_pod_and_others_do(simulated: BerthUp):
    async with cluster_of(simulated) as seen:
        await seen.create([node_manifest("odd", cpu="plenty")])
        names = [f"web-{number}" for number in range(10)]
        await seen.create(anywhere(seen, name) for name in names)
        placed = await seen.all_bound(names)
        assert "odd" not in placed.values()


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\xff\x00 no JSON", id="no JSON"),
        pytest.param(b'{"schema": 1, "attempt": 7}', id="JSON of another shape"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"[" * 5_000, id="deeply nested"),
    ],
)
async def test_garbage_on_the_bus_becomes_a_dead_letter_and_pods_are_bound(simulated: BerthUp, garbage: bytes):
    async with cluster_of(simulated) as seen:
        subject = f"berth.pending.berth.{seen.namespace}.garbage"
        watcher, people = await simulated.session("watcher"), await simulated.session()
        await watcher.publish(subject, garbage)
        await seen.create([anywhere(seen, "sound")])
        await seen.all_bound(["sound"])

        async def dead_letter() -> dict | None:
            found = await people.last("dead", subject.replace("pending", "dead"))
            return json.loads(found.data) if found else None

        letter = await eventually(dead_letter, "a dead letter")
        assert letter["subject"] == subject
        assert letter["reason"]

        async def is_empty() -> bool:
            return (await people.state("PENDING")).messages == 0

        await eventually(is_empty, "PENDING to be empty")
        await watcher.close()
        await people.close()


def test_an_unknown_plugin_is_reported_with_its_path(tmp_path: Path):
    profile = "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit}, {name: NodeMagic}]}}}]\n"
    output = refused(tmp_path, CONFIGURATION + profile)
    assert "profiles[0].plugins.score.enabled[1].name" in output
    assert "NodeMagic" in output


def test_an_unknown_field_is_reported_with_its_path(tmp_path: Path):
    output = refused(tmp_path, CONFIGURATION + "profiles: [{schedularName: berth}]\n")
    assert "profiles[0].schedularName" in output


def test_all_errors_of_a_configuration_are_reported_together(tmp_path: Path):
    output = refused(tmp_path, CONFIGURATION + "profiles: [{schedularName: berth}]\npodMaxBackofSeconds: 3\n")
    assert "profiles[0].schedularName" in output
    assert "podMaxBackofSeconds" in output


def refused(folder: Path, text: str) -> str:
    """Start with an invalid configuration; return the error output."""
    path = folder / "config.yaml"
    path.write_text(text)
    with berth_up("--config", path, folder=folder) as berth:
        assert berth.wait(STARTED_SECONDS) == USAGE, berth.said
        return error_output(berth, about=path)


def error_output(berth: BerthUp, *, about: object) -> str:
    """Return the error output of a run that ended at once. Each line is berth's and names the given object."""
    assert berth.printed == ""
    assert berth.living() == []
    assert berth.files_left() == []
    lines = berth.said.splitlines()
    assert lines
    assert all(line.startswith("berth: ") for line in lines), berth.said
    assert all(str(about) in line for line in lines), berth.said
    return berth.said


def test_a_missing_kubeconfig_is_reported_in_one_line(tmp_path: Path):
    path = tmp_path / "nowhere" / "kubeconfig"
    with berth_up("--kubeconfig", path, folder=tmp_path) as berth:
        assert berth.wait(STARTED_SECONDS) == USAGE, berth.said
        assert len(error_output(berth, about=path).splitlines()) == 1


def test_an_invalid_kubeconfig_is_reported_in_one_line(tmp_path: Path):
    path = tmp_path / "kubeconfig"
    path.write_text("certainly: [not, a, kubeconfig")
    with berth_up("--kubeconfig", path, folder=tmp_path) as berth:
        assert berth.wait(STARTED_SECONDS) == USAGE, berth.said
        assert len(error_output(berth, about=path).splitlines()) == 1


def test_an_unreachable_api_server_is_waited_for_and_reported_in_one_line(tmp_path: Path):
    (port,) = free_ports(1)
    path, authority = tmp_path / "kubeconfig", tmp_path / "ca.crt"
    authority.touch()
    path.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{port}", authority, "admin", "token")))
    with berth_up("--kubeconfig", path, folder=tmp_path) as berth:
        assert berth.wait(STARTED_SECONDS) == UNREACHABLE, berth.said
        error_output(berth, about=f"127.0.0.1:{port}")
        waiting, error = berth.sentences
        assert waiting.startswith("berth: waiting for the API server of ")
        assert "waiting" not in error


def test_unreachable_nats_is_waited_for_and_reported_in_one_line(tmp_path: Path):
    with berth_up("--nats", NO_NATS, folder=tmp_path) as berth:
        assert berth.wait(STARTED_SECONDS) == UNREACHABLE, berth.said
        error_output(berth, about=NO_NATS)
        waiting, error = berth.sentences
        assert waiting.startswith(f"berth: waiting for NATS at {NO_NATS}: ")
        assert "waiting" not in error
        assert error.endswith("name another server with --nats, or none to run one here")


@pytest.mark.requires("kubebuilder_assets")
async def test_a_second_pipeline_waits_and_takes_over_when_the_first_ends(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    kubeconfig = own_control_plane.kubeconfig_path
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    await cluster_outside.add_nodes(5)
    with (
        berth_up("--kubeconfig", kubeconfig, folder=tmp_path / "first") as first,
        berth_up("--kubeconfig", kubeconfig, folder=tmp_path / "second") as second,
    ):
        os.kill(second.pid, signal.SIGSTOP)  # which one is the first must be certain
        first.wait_until_ready()
        os.kill(second.pid, signal.SIGCONT)
        second.wait_for(
            lambda: "another bus" in second.said or "bus.id" in second.said, "the second to log that it waits"
        )
        await cluster_outside.all_bound(await cluster_outside.add_pods(10, "first"))
        assert second.printed == ""
        assert first.pids.keys() >= {"watcher", "binder", "scorer-1"}
        before = first.said
        assert await asyncio.to_thread(first.interrupt) == 0
        assert "ended (" not in before
        await asyncio.to_thread(second.wait_until_ready)
        await cluster_outside.all_bound(await cluster_outside.add_pods(10, "second"))
