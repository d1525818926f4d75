"""Fixtures that give a file of tests a real cluster and a whole pipeline on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from harness.plugins.left_out import require
from harness.servers.control_plane import ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user
from harness.worlds.pipeline import BerthUp, berth_up


@pytest.fixture(scope="module")
def own_control_plane() -> Iterator[ControlPlane]:
    """A real API server for one file: a pipeline schedules every pod of its cluster, also those of other tests."""
    require("kubebuilder_assets")
    assets = assets_folder()
    assert assets is not None
    with control_plane(assets) as plane:
        yield plane


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
