"""`berth up`: what it prints, which processes it restarts, and that all its processes end with it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from berth.bus.jetstream import stream_info
from berth.bus.settings import MEBIBYTE
from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import nats_server
from harness.servers.small_disk import small_disk
from harness.worlds.cluster_user import ClusterUser, cluster_user
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

CHILDREN = {"watcher", "binder", "scorer-1", "metrics-collector", "nats-server", "cluster"}
ORPHANS_SECONDS = 5.0
"""The kernel signals the children as soon as their parent ends; then they shut down."""


async def test_it_reports_ready_and_a_prefix_is_on_every_name_and_an_interrupt_ends_every_process(tmp_path: Path):
    prefix = {"BERTH_NATS_PREFIX": "east"}
    environment = {**prefix, "BERTH_LOG_FORMAT": "text", "NO_COLOR": "1"}
    with berth_up("--nodes", 3, "--scorers", 2, folder=tmp_path, environment=environment) as berth:
        berth.wait_until_ready()
        berth.wait_for(lambda: berth.printed, "the line")
        assert berth.printed.splitlines() == ["ready"]
        assert berth.ready_file.read_text() == "ready\n"
        assert berth.pids.keys() == {*CHILDREN, "scorer-2"}
        async with cluster_user(berth.kubeconfig) as seen:
            leases = (await seen.api.get("/apis/coordination.k8s.io/v1/namespaces/berth/leases")).body["items"]
            assert {lease["metadata"]["name"]: bool(lease["spec"]["holderIdentity"]) for lease in leases} == {
                "berth-binder": True,
                "berth-watcher": True,
            }
            named, unnamed = (seen.pod(name, spec={"nodeSelector": {}}) for name in ("first", "without-a-scheduler"))
            del unnamed["spec"]["schedulerName"]
            await seen.create([named, unnamed])
            await seen.all_bound(["first", "without-a-scheduler"])
        pod = f"{seen.namespace}/first"
        for command in (
            ["why", pod],
            ["trace", pod],
            ["top", "--once"],
            ["queue"],
            ["dead", "list"],
            ["drain"],
        ):
            answer = told(*command, of=berth, **prefix)
            assert answer.returncode == 0, (command, answer.stderr)
        assert told("why", pod, of=berth).returncode == 2  # a berth without prefix has neither users nor streams there
        assert berth.interrupt() == 0
        assert berth.living() == []
        assert berth.files_left() == []
        assert not berth.ready_file.exists()
        assert "Traceback" not in berth.said
        for name in ("watcher", "binder", "metrics-collector", "scorer-1", "scorer-2"):
            assert re.search(rf"started .*service={name}\b(?!-)", berth.said), name


def told(*arguments: str, of: BerthUp, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a command says on the NATS server of a pipeline."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "KUBE"))}
    environment |= {"TMPDIR": str(of.temporary), "HOME": str(of.temporary), **variables}
    command = [sys.executable, "-m", "berth_cli", *arguments, "--nats", of.nats]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize(
    ("configuration", "remedy", "code"),
    [
        pytest.param("jetstream: false\n", "start nats-server with -js", 3, id="no JetStream"),
        pytest.param(
            "authorization { users: [{user: a, password: b}] }\n", "BERTH_NATS_USER", 2, id="a user is asked for"
        ),
    ],
)
def test_a_nats_server_of_no_use_is_told_the_remedy(tmp_path: Path, configuration: str, remedy: str, code: int):
    with nats_server(configuration) as server, berth_up("--nats", server.address, folder=tmp_path) as berth:
        assert berth.wait(60) == code
        assert remedy in berth.sentences[0]
        assert remedy in berth.sentences[-1]


def test_credentials_that_the_api_server_refuses_are_one_sentence(own_control_plane: ControlPlane, tmp_path: Path):
    kubeconfig = own_control_plane.write_kubeconfig("stranger", "wrong")
    with berth_up("--kubeconfig", kubeconfig, folder=tmp_path) as berth:
        assert berth.wait(60) == 2
        (line,) = berth.sentences
        assert f"refuses the credentials of kubeconfig {str(kubeconfig)!r} (401): renew them" in line


@pytest.mark.requires("small-disk")
async def test_streams_are_as_large_as_the_disk_allows(tmp_path: Path):
    with small_disk(tmp_path / "tmp", 64), berth_up("--nodes", 1, folder=tmp_path) as berth:
        berth.wait_until_ready()  # so all services agree on the sizes
        session = await berth.session()
        try:
            async with session.read_stream("DECISIONS"):
                config = (await stream_info(session._connection, "DECISIONS")).config
        finally:
            await session.close()
        assert 14 * MEBIBYTE <= config["max_bytes"] <= 16 * MEBIBYTE
        assert berth.interrupt() == 0


@pytest.mark.requires("small-disk")
def test_a_disk_without_room_for_nats_is_one_sentence(tmp_path: Path):
    with small_disk(tmp_path / "tmp", 12) as disk, berth_up("--nodes", 1, folder=tmp_path) as berth:
        assert berth.wait(60) == 1
        (line,) = berth.said.splitlines()
        assert line.startswith(f"berth: starting NATS: {disk.folder} has 12.0 MiB free, and NATS needs 16.0 MiB there")


@pytest.mark.requires("small-disk")
def test_a_ready_file_on_a_full_disk_is_one_line(tmp_path: Path):
    with small_disk(tmp_path / "disk", 1) as disk:
        disk.fill()
        ready_file = disk.folder / "ready"
        with berth_up("--nodes", 1, "--ready-file", ready_file, folder=tmp_path) as berth:
            assert berth.wait(60) == 1
            said = f"berth: writing the ready file '{ready_file}': No space left on device"
            assert berth.said.splitlines()[-1] == said
            assert "Traceback" not in berth.said


def test_kill_of_the_parent_ends_every_child_and_the_next_runs_leave_no_file(tmp_path: Path):
    with berth_up("--nodes", 3, "--scorers", 2, folder=tmp_path) as berth:
        berth.wait_until_ready()
        assert len(berth.living()) == len(CHILDREN) + 3  # a second scorer, the parent, and what forks the services
        berth.kill_itself()
        berth.wait_until_nothing_lives(ORPHANS_SECONDS)
        assert berth.files_left() != []
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C, and a terminal that is closed
        with berth_up("--nodes", 3, folder=tmp_path) as berth:
            berth.wait_for(lambda berth=berth: "watcher" in berth.pids, "a service to be started")
            os.kill(berth.pid, number)
            assert berth.wait() == 0
            assert berth.living() == []
            assert berth.files_left() == []


@pytest.mark.parametrize("name", ["watcher", "binder", "scorer-1", "metrics-collector", "nats-server"])
def test_a_child_that_dies_is_restarted_and_a_line_says_so(name: str, restarted: BerthUp):
    before = restarted.said
    pid = restarted.kill(name)
    restarted.wait_for(lambda: restarted.pids.get(name, pid) != pid, f"{name} to be back")
    assert f"berth: {name} ended (killed by SIGKILL); restarting it in" in restarted.said.removeprefix(before)


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory):
    """A pipeline whose children the test kills one after another."""
    with berth_up("--nodes", 3, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.mark.requires("kubebuilder_assets")
async def test_pods_that_waited_for_a_scheduler_are_bound_by_priority(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    urgent = await cluster_outside.add_priority_class("urgent", 1_000)
    await cluster_outside.add_nodes(1, pods=5)
    await cluster_outside.add_pods(10, "any")
    wanted = await cluster_outside.add_pods(5, "urgent", priority_class=urgent)
    with berth_up("--kubeconfig", own_control_plane.kubeconfig_path, folder=tmp_path) as berth:
        berth.wait_until_ready()
        placed = await cluster_outside.all_bound(wanted)
        assert placed.keys() == set(wanted)
        assert berth.interrupt() == 0
