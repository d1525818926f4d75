"""Fixtures that give a file of tests a real cluster and a whole pipeline on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from harness.plugins.left_out import require
from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, cluster_user
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.podgroups import define_podgroups_at


@pytest.fixture(scope="module")
def own_control_plane(real_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The run's API server, empty before and after the file.

    A pipeline schedules every pod of its cluster, also those of other files; and not every file reads objects that are
    made to be hard to read.
    """
    real_control_plane.empty()
    yield real_control_plane
    real_control_plane.empty()


@pytest.fixture(scope="module")
def plane_with_podgroups(own_control_plane: ControlPlane) -> ControlPlane:
    """The same, with the definition of PodGroups."""
    asyncio.run(define_podgroups_at(own_control_plane.kubeconfig_path))
    return own_control_plane


@pytest.fixture(scope="module")
def pipeline(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """`berth up` on it, ready, with one scorer."""
    require("nats-server")
    folder = tmp_path_factory.mktemp("berth-up")
    with berth_up("--kubeconfig", own_control_plane.kubeconfig_path, folder=folder) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def cluster_outside(own_control_plane: ControlPlane) -> AsyncIterator[ClusterUser]:
    """The file's cluster as its users see it; the nodes and pods of a test are removed at its end."""
    async with cluster_user(own_control_plane.kubeconfig_path) as seen:
        yield seen
