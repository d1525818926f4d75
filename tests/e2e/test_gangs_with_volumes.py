"""A group whose members have a volume each, on a real API server: bound once all volumes are, else wholly undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.podgroups import add_podgroup, in_podgroup
from harness.worlds.storage import Storage, controllers

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

MEMBERS: Final = ("gang-0", "gang-1", "gang-2")
DEADLINE_SECONDS: Final = 15
CONFIGURATION: Final = f"""\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  pluginConfig:
  - name: VolumeBinding
    args: {{bindTimeoutSeconds: {DEADLINE_SECONDS}}}
"""


@pytest.fixture(scope="module")
def berth_with_groups(
    plane_with_podgroups: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BerthUp]:
    kubeconfig, folder = plane_with_podgroups.kubeconfig_path, tmp_path_factory.mktemp("up")
    (folder / "scheduler.yaml").write_text(CONFIGURATION, encoding="utf-8")
    with berth_up("--kubeconfig", kubeconfig, "--config", folder / "scheduler.yaml", folder=folder) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def storage(berth_with_groups: BerthUp, plane_with_podgroups: ControlPlane) -> AsyncIterator[Storage]:
    """One node, and a gang of three with a claim each; the last one gets no volume at first."""
    async with cluster_user(plane_with_podgroups.kubeconfig_path) as seen:
        storage = Storage(seen)
        storage.withheld = {MEMBERS[-1]}
        await storage.add_class("disks.example.com")
        await seen.add_nodes(1, cpu="4")
        await add_podgroup(seen, "gang", len(MEMBERS))
        for name in MEMBERS:
            await storage.add_claim(name)
        async with controllers(storage):
            await seen.create(
                seen.pod(name, cpu="1", labels=in_podgroup("gang"), spec={"volumes": [volume(name)]})
                for name in MEMBERS
            )
            yield storage


def volume(claim: str) -> dict[str, object]:
    return {"name": "v", "persistentVolumeClaim": {"claimName": claim}}


async def others_have_volumes(storage: Storage) -> bool:
    return all([await storage.is_bound(name) for name in MEMBERS[:-1]])


async def test_no_member_is_bound_before_the_last_volume_is(storage: Storage):
    await eventually(lambda: others_have_volumes(storage), "all volumes but one")
    (single,) = await storage.seen.add_pods(1, "single", cpu="100m")
    assert set(await storage.seen.all_bound([single])) == {single}
    storage.withheld.clear()
    await storage.seen.all_bound(MEMBERS)
    assert await storage.is_bound(MEMBERS[-1])


async def test_a_group_whose_volumes_do_not_come_in_time_gives_its_room_back_whole(storage: Storage):
    await eventually(lambda: others_have_volumes(storage), "all volumes but one")
    (single,) = await storage.seen.add_pods(1, "single", cpu="2")
    condition = await eventually(lambda: storage.seen.condition(single), "the single pod to wait")
    assert "Insufficient cpu" in condition["message"]
    assert set(await storage.seen.all_bound([single])) == {single}
    storage.withheld.clear()
    await storage.seen.delete_pod(single)
    await storage.seen.all_bound(MEMBERS)
