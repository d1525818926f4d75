"""The same story beside kube-scheduler, on a real API server: the same pods bound, conditions, Events and evictions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import cluster_user
from harness.worlds.pipeline import berth_up
from harness.worlds.story import Outcome, differences, story_told_to

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(900)]

PODS = 60
SLOWER = 6.0
"""Seconds that berth may take longer for an act, on a busy machine: less than a back-off that is waited out (9 s where
a node is added; 0.4 s where the back-off ends early, and kube-scheduler 0.1 s)."""


def assets() -> Path:
    folder = assets_folder()
    assert folder is not None
    if not (folder / "kube-scheduler").is_file():
        pytest.skip(f"no kube-scheduler beside the control plane's programs in {folder}")
    return folder


async def told(plane: ControlPlane, scheduler: str) -> Outcome:
    async with cluster_user(plane.kubeconfig_path) as seen, story_told_to(seen, scheduler) as story:
        await story.tell()
    return story.outcome


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


async def test_berth_and_kube_scheduler_tell_the_same_story(tmp_path: Path):
    with berth(tmp_path) as of_berth, kube_scheduler(tmp_path) as of_kube_scheduler:
        stories = told(of_kube_scheduler, "default-scheduler"), told(of_berth, "berth")
        theirs, ours = await asyncio.gather(*stories)  # most of a story is waiting
    took = [f"{seconds:6.2f} {ours.seconds.get(act, 0):6.2f}  {act}" for act, seconds in theirs.seconds.items()]
    (tmp_path / "seconds.txt").write_text("\n".join(["kube-scheduler, berth, act", *took]))
    assert len({pod for act in theirs.acts.values() for pod in act}) >= PODS
    assert theirs.late == {}, "the story expects what kube-scheduler does not do"
    late = [act for act, seconds in theirs.seconds.items() if ours.seconds.get(act, 0) > seconds + SLOWER]
    assert not late, "\n" + "\n".join(took)
    found = differences(theirs, ours, ("kube-scheduler", "berth"))
    assert not found, "\n" + "\n".join(found)
