"""Bad input ends in a clear sentence where its owner looks; nothing is stuck by it, nothing lost."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest

from berth.sim.nodes import node_manifest
from harness.servers.child_processes import free_ports
from harness.servers.control_plane import ControlPlane, kubeconfig
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

USAGE = 2
UNREACHABLE = 3
NO_NATS = "nats://127.0.0.1:1"
CONFIGURATION = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
STARTS = "leaderElection: {leaderElect: false}\n"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory):
    """A pipeline on a simulated cluster, which lets objects through that the real API server would refuse."""
    with berth_up("--nodes", 5, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


@asynccontextmanager
async def looking_at(berth: BerthUp) -> AsyncIterator[ClusterUser]:
    async with cluster_user(berth.kubeconfig) as seen:
        yield seen


def anywhere(seen: ClusterUser, name: str, **form: object) -> dict:
    """Return a pod that any node of the simulated cluster may take."""
    return seen.pod(name, spec={"nodeSelector": {}}, **form)


async def test_pod_with_an_unreadable_quantity_is_told_so_and_others_are_bound(simulated: BerthUp):
    async with looking_at(simulated) as seen:
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


async def test_node_without_a_status_takes_no_pod_until_it_has_one(simulated: BerthUp):
    async with looking_at(simulated) as seen:
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


async def test_node_with_an_unreadable_quantity_takes_no_pod_and_others_do(simulated: BerthUp):
    async with looking_at(simulated) as seen:
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
        pytest.param(b"[" * 5_000, id="nested without end"),
    ],
)
async def test_garbage_on_the_bus_is_put_aside_and_pods_go_on(simulated: BerthUp, garbage: bytes):
    async with looking_at(simulated) as seen:
        subject = f"berth.pending.berth.{seen.namespace}.garbage"
        client = await nats.connect(simulated.nats, allow_reconnect=False)
        jetstream = client.jetstream()
        await jetstream.publish(subject, garbage)
        await seen.create([anywhere(seen, "sound")])
        await seen.all_bound(["sound"])

        async def buried() -> dict | None:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                found = await jetstream.get_last_msg("dead", subject.replace("pending", "dead"))
                return json.loads(found.data or b"{}")
            return None

        letter = await eventually(buried, "a dead letter")
        assert letter["subject"] == subject
        assert letter["reason"]

        async def taken() -> bool:
            return (await jetstream.stream_info("PENDING")).state.messages == 0

        await eventually(taken, "PENDING to be empty")
        await client.close()


def test_unknown_plugin_is_refused_by_its_path(tmp_path: Path):
    profile = "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit}, {name: NodeMagic}]}}}]\n"
    said = refused(tmp_path, CONFIGURATION + profile)
    assert "profiles[0].plugins.score.enabled[1].name" in said
    assert "NodeMagic" in said


def test_unknown_field_is_refused_by_its_path(tmp_path: Path):
    said = refused(tmp_path, CONFIGURATION + "profiles: [{schedularName: berth}]\n")
    assert "profiles[0].schedularName" in said


def test_every_error_of_a_configuration_is_said_at_once(tmp_path: Path):
    said = refused(tmp_path, CONFIGURATION + "profiles: [{schedularName: berth}]\npodMaxBackofSeconds: 3\n")
    assert "profiles[0].schedularName" in said
    assert "podMaxBackofSeconds" in said


def refused(folder: Path, text: str) -> str:
    """Start with a configuration that cannot be used; return what was said."""
    path = folder / "config.yaml"
    path.write_text(text)
    with berth_up("--config", path, folder=folder) as berth:
        assert berth.wait() == USAGE, berth.said
        return the_one_complaint(berth, about=path)


def the_one_complaint(berth: BerthUp, *, about: object) -> str:
    """Return what a run said that ended at once: sentences of its own, each naming what they are about."""
    assert berth.printed == ""
    assert berth.living() == []
    assert berth.files_left() == []
    lines = berth.said.splitlines()
    assert lines
    assert all(line.startswith("berth: ") for line in lines), berth.said
    assert all(str(about) in line for line in lines), berth.said
    return berth.said


def test_missing_kubeconfig_is_named_in_one_sentence(tmp_path: Path):
    path = tmp_path / "nowhere" / "kubeconfig"
    with berth_up("--kubeconfig", path, folder=tmp_path) as berth:
        assert berth.wait() == USAGE, berth.said
        assert len(the_one_complaint(berth, about=path).splitlines()) == 1


def test_kubeconfig_that_is_none_is_named_in_one_sentence(tmp_path: Path):
    path = tmp_path / "kubeconfig"
    path.write_text("certainly: [not, a, kubeconfig")
    with berth_up("--kubeconfig", path, folder=tmp_path) as berth:
        assert berth.wait() == USAGE, berth.said
        assert len(the_one_complaint(berth, about=path).splitlines()) == 1


def test_kubeconfig_that_points_nowhere_is_told_in_one_sentence(tmp_path: Path):
    (port,) = free_ports(1)
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{port}", tmp_path / "ca.crt", "admin", "token")))
    with berth_up("--kubeconfig", path, folder=tmp_path) as berth:
        assert berth.wait(30) == UNREACHABLE, berth.said
        assert len(the_one_complaint(berth, about=f"127.0.0.1:{port}").splitlines()) == 1


def test_nats_that_is_not_there_is_told_in_one_sentence(tmp_path: Path):
    with berth_up("--nats", NO_NATS, folder=tmp_path) as berth:
        assert berth.wait(30) == UNREACHABLE, berth.said
        assert len(the_one_complaint(berth, about=NO_NATS).splitlines()) == 1


@pytest.mark.requires("kubebuilder_assets")
async def test_second_pipeline_on_a_cluster_says_so_and_takes_over_when_the_first_ends(
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
        second.wait_for(lambda: "another bus" in second.said or "bus.id" in second.said, "the second to say so")
        await cluster_outside.all_bound(await cluster_outside.add_pods(10, "first"))
        assert second.printed == ""
        assert first.pids.keys() >= {"watcher", "binder", "scorer-1"}
        before = first.said
        assert await asyncio.to_thread(first.interrupt) == 0
        assert "ended (" not in before
        await asyncio.to_thread(second.wait_until_ready)
        await cluster_outside.all_bound(await cluster_outside.add_pods(10, "second"))
