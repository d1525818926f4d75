"""docs/moving-over.md, word by word, and berth beside the real kube-scheduler that has the same profile."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import yaml

from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane, assets_folder
from harness.servers.nats_server import nats_server
from harness.servers.static_pods import static_pods
from harness.worlds.accounts import grant, kubeconfig_of
from harness.worlds.cluster_user import ClusterUser, eventually, node_of
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server", "kubectl"), pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs/moving-over.md"
ETC = "/etc/kubernetes"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
OWN_LEASE = "/apis/coordination.k8s.io/v1/namespaces/berth/leases/berth-watcher"
LEASE_SECONDS = 15.0
SLACK_SECONDS = 10.0
"""For a machine that runs other tests meanwhile."""


def blocks(language: str) -> list[str]:
    """Of the steps, which come before the heading about clusters without another scheduler."""
    steps, heading, _ = PAGE.read_text().partition("\n## A cluster whose only scheduler is berth\n")
    assert heading
    return re.findall(rf"^```{language}\n(.*?)^```", steps, re.DOTALL | re.MULTILINE)


@pytest.fixture
def etc(tmp_path: Path, own_control_plane: ControlPlane) -> Iterator[Path]:
    """/etc/kubernetes of a node with the page's file, whose manifests run."""
    programs = assets_folder()
    assert programs is not None
    if not (programs / "kube-scheduler").is_file():
        pytest.skip(f"no kube-scheduler beside the control plane's programs in {programs}")
    folder = tmp_path / "etc"
    (folder / "manifests").mkdir(parents=True)
    (folder / "scheduler.conf").write_text(own_control_plane.kubeconfig_path.read_text())
    (configuration,) = blocks("yaml")
    (folder / "scheduler.yaml").write_text(configuration.replace(ETC, str(folder)))
    command = ["kube-scheduler", f"--config={folder}/scheduler.yaml", "--secure-port=0"]
    manifest = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"command": command}]}}
    (folder / "kube-scheduler.yaml").write_text(yaml.safe_dump(manifest))
    with static_pods(folder / "manifests", programs, tmp_path / "kube-scheduler.log"):
        yield folder


async def kube_scheduler_leads(seen: ClusterUser) -> str:
    async def holder() -> str:
        lease = await seen.api.get(LEASE)
        return "" if lease.code == 404 else lease.body["spec"].get("holderIdentity", "")

    return await eventually(holder, "kube-scheduler to lead", 60)


class Terminal:
    """Runs a block of the page in a folder, with the documented paths in that folder."""

    def __init__(self, folder: Path, etc: Path, kubeconfig: Path) -> None:
        self.folder = folder
        self._etc = etc
        sudo = folder / "bin" / "sudo"
        sudo.parent.mkdir()
        sudo.write_text('#!/bin/sh\nexec "$@"\n')
        sudo.chmod(0o755)
        path = os.pathsep.join((str(sudo.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
        self.environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}

    async def type(self, block: str, **environment: str) -> str:
        """Type all of its lines; returns what they print."""
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-euo", "pipefail", "-c", block.replace(ETC, str(self._etc))],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout

    async def type_all_but_the_last(self, block: str) -> list[str]:
        """Type all lines but `berth up`, the last one; returns its arguments."""
        *lines, last = block.splitlines()
        await self.type("\n".join(lines) or "true")
        berth, up, *arguments = shlex.split(last)
        assert (berth, up) == ("berth", "up")
        return [str(self.folder / word) if not word.startswith("--") else word for word in arguments]

    def on(self, berth: BerthUp) -> dict[str, str]:
        """Where `berth why` finds this run."""
        return {"TMPDIR": str(berth.temporary), "BERTH_NATS_URL": berth.nats}


@asynccontextmanager
async def kubelet(seen: ClusterUser) -> AsyncIterator[None]:
    """Removes pods that are being deleted."""
    pods = "/api/v1/namespaces/default/pods"

    async def remove() -> None:
        while True:
            for pod in (await seen.api.get(pods)).body["items"]:
                if "deletionTimestamp" in pod["metadata"]:
                    await seen.api.call("DELETE", f"{pods}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
            await asyncio.sleep(0.2)

    removing = asyncio.create_task(remove())
    try:
        yield
    finally:
        removing.cancel()


async def node_of_web(seen: ClusterUser) -> str:
    return node_of((await seen.api.get("/api/v1/namespaces/default/pods/web")).body)


async def test_every_step_of_the_page_works_in_its_order(
    etc: Path, own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    beside, pod_of_berth, too_early, stopping, in_its_place, any_pod, back = blocks("sh")
    seen, manifest = cluster_outside, etc / "kube-scheduler.yaml"
    await grant(seen.api)
    own = await kubeconfig_of(own_control_plane, seen.api, "berth")
    (tmp_path / "berth.kubeconfig").write_text(own.read_text())
    terminal = Terminal(tmp_path, etc, own_control_plane.kubeconfig_path)
    await seen.add_nodes(1)
    manifest.rename(etc / "manifests" / manifest.name)
    await kube_scheduler_leads(seen)

    async with kubelet(seen):
        arguments = await terminal.type_all_but_the_last(beside)
        with berth_up(*arguments, folder=folder(tmp_path, "beside")) as berth:
            berth.wait_until_ready()
            assert "warning" not in berth.said
            creating, why, deleting = pod_of_berth.splitlines()
            await terminal.type(creating)
            await eventually(lambda: node_of_web(seen), "web to be bound by berth")
            assert "default/web is on" in await terminal.type(why, **terminal.on(berth))
            await terminal.type(deleting)
            assert berth.interrupt() == 0

        arguments = await terminal.type_all_but_the_last(too_early)
        with berth_up(*arguments, folder=folder(tmp_path, "early")) as berth:
            assert berth.wait(60) == 1
            last = berth.said.splitlines()[-1]
        shown = next(line for line in PAGE.read_text().splitlines() if line.startswith("berth: another"))
        assert re.fullmatch(re.escape(shown).replace("node\\-1_\\.\\.\\.", "[^']+").replace("\\.\\.\\.", ".*"), last)
        assert "warning: kube-scheduler has the profile 'default-scheduler' too" in berth.said
        with berth_up(*arguments, "--allow-other-scheduler", folder=folder(tmp_path, "allowed")) as berth:
            berth.wait_until_ready()
            assert "it binds the same pods as berth" in berth.said
            assert berth.interrupt() == 0

        await terminal.type(stopping)
        assert not list((etc / "manifests").iterdir())
        arguments = await terminal.type_all_but_the_last(in_its_place)
        with berth_up(*arguments, folder=folder(tmp_path, "alone")) as berth:
            berth.wait_until_ready()
            creating, why = any_pod.splitlines()
            await terminal.type(creating)
            await eventually(lambda: node_of_web(seen), "web to be bound by berth")
            assert "default/web is on" in await terminal.type(why, **terminal.on(berth))
            assert "may not" not in berth.said
            assert berth.interrupt() == 0

        await terminal.type(back)
        await seen.create([seen.pod("theirs", scheduler="default-scheduler")])
        await seen.all_bound(["theirs"], seconds=60)


def folder(place: Path, name: str) -> Path:
    made = place / name
    made.mkdir()
    return made


@contextmanager
def watcher(nats: str, kubeconfig: Path, config: Path, place: Path, *flags: str) -> Iterator[Path]:
    """A watcher; yields its log."""
    log = place / "watcher.log"
    command = [sys.executable, "-m", "berth_watcher", "--nats", nats, "--kubeconfig", str(kubeconfig)]
    process = spawn([*command, "--config", str(config), "--logging-format", "text", *flags], log)
    try:
        yield log
    finally:
        stop([process])


@pytest.fixture
async def world(etc: Path, own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path):
    """kube-scheduler leads, and a watcher's account and file for the same profile are there."""
    await grant(cluster_outside.api)
    kubeconfig = await kubeconfig_of(own_control_plane, cluster_outside.api, "berth-watcher")
    config = tmp_path / "berth.yaml"
    lines = (etc / "scheduler.yaml").read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "resourceName" not in line))
    (etc / "kube-scheduler.yaml").rename(etc / "manifests" / "kube-scheduler.yaml")
    await kube_scheduler_leads(cluster_outside)
    with nats_server() as nats:
        yield nats.address, kubeconfig, config


async def leads(seen: ClusterUser) -> bool:
    lease = await seen.api.get(OWN_LEASE)
    return lease.code == 200 and bool(lease.body["spec"].get("holderIdentity"))


async def test_watcher_leads_when_kube_scheduler_has_ended_and_gives_way_when_it_comes_back(
    world, etc: Path, cluster_outside: ClusterUser, tmp_path: Path
):
    seen, manifests = cluster_outside, etc / "manifests" / "kube-scheduler.yaml"
    with watcher(*world, tmp_path) as log:
        await eventually(lambda: said(log, "another scheduler of the same pods leads"), "the watcher to see it", 60)
        assert not await leads(seen)
        manifests.rename(etc / "kube-scheduler.yaml")
        await eventually(lambda: leads(seen), "the watcher to lead", LEASE_SECONDS + SLACK_SECONDS)

        (etc / "kube-scheduler.yaml").rename(manifests)
        await kube_scheduler_leads(seen)

        async def gave_way() -> bool:
            return not await leads(seen)

        await eventually(gave_way, "the watcher to give way", 5 + SLACK_SECONDS)


async def said(log: Path, words: str) -> bool:
    return words in await asyncio.to_thread(log.read_text)
