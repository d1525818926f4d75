"""A cluster that kube-scheduler schedules, and one of berth, to which one story is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import cluster_user
from harness.worlds.pipeline import berth_up
from harness.worlds.story import S, story_told_to


def assets() -> Path:
    folder = assets_folder()
    assert folder is not None
    if not (folder / "kube-scheduler").is_file():
        pytest.skip(f"no kube-scheduler beside the control plane's programs in {folder}")
    return folder


async def told(plane: ControlPlane, scheduler: str, kind: type[S]) -> S:
    """Tell the scheduler of this cluster a story."""
    async with cluster_user(plane.kubeconfig_path) as seen, story_told_to(seen, scheduler, kind) as story:
        await story.tell()
    return story


@contextmanager
def kube_scheduler(folder: Path) -> Iterator[ControlPlane]:
    """A cluster that kube-scheduler schedules."""
    program = assets() / "kube-scheduler"
    with control_plane(assets()) as plane:
        config = folder / "kube-scheduler.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": {"kubeconfig": str(plane.kubeconfig_path)},
                }
            )
        )
        process = spawn([str(program), f"--config={config}", "--secure-port=0"], folder / "kube-scheduler.log")
        try:
            yield plane
        finally:
            stop([process])


@contextmanager
def berth(folder: Path) -> Iterator[ControlPlane]:
    """A cluster that berth schedules."""
    with (
        control_plane(assets()) as plane,
        berth_up("--kubeconfig", plane.kubeconfig_path, "--scorers", 2, folder=folder) as up,
    ):
        up.wait_until_ready()
        yield plane
