"""A start on nodes that NATS does not know yet, on a real API server: no pod is ranked on a part of them."""

from pathlib import Path

import pytest

from faults.world import API_FLAGS
from harness.servers.control_plane import assets_folder, control_plane
from harness.worlds.late_nodes import starts_on_late_nodes

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(600)]


async def test_no_pod_is_evicted_or_called_unschedulable_before_all_nodes_are_known(tmp_path: Path):
    assets = assets_folder()
    assert assets is not None
    with control_plane(assets, api_flags=API_FLAGS) as plane:
        starts = await starts_on_late_nodes(plane, tmp_path, nodes=300)
    assert [(start.evicted, start.rejected) for start in starts] == [([], [])] * 2
