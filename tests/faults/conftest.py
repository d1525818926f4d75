"""What the runs on a real API server share; each brings its own NATS server as the fixture ``bus``."""

from collections.abc import Iterator

import pytest

from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import NatsServer
from harness.worlds.pipeline import BerthUp, berth_up


@pytest.fixture(scope="module")
def berth(
    own_control_plane: ControlPlane, bus: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BerthUp]:
    """The whole pipeline, ready."""
    arguments = ("--kubeconfig", own_control_plane.kubeconfig_path, "--nats", bus.address)
    with berth_up(*arguments, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth
