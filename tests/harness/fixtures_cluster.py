"""Fixtures that give a test a cluster."""

from collections.abc import Iterator

import pytest

from harness.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane


@pytest.fixture(scope="session")
def real_control_plane() -> Iterator[ControlPlane]:
    """Etcd and kube-apiserver, started once for the whole run; tests keep apart by namespaces of their own."""
    assets = assets_folder()
    if assets is None:
        pytest.skip(HOW_TO_GET_IT)
    with control_plane(assets) as plane:
        yield plane
