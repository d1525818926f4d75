"""PodGroups whose definition comes to a running berth, with the first group right behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from harness.servers.control_plane import assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, condition_of, eventually, node_of
from harness.worlds.pipeline import berth_up
from harness.worlds.podgroups import add_podgroup, define_podgroups_for_good, in_podgroup

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(120)]

GANGS: Final = ("a", "b")
MEMBERS: Final = 6


async def test_pods_of_the_first_groups_are_no_single_pods(tmp_path: Path):
    """One of the two groups fits; members that were taken for single pods would share the nodes between the groups."""
    folder = assets_folder()
    assert folder is not None
    with (
        control_plane(folder) as plane,
        berth_up("--kubeconfig", plane.kubeconfig_path, folder=tmp_path) as berth,
    ):
        async with cluster_user(plane.kubeconfig_path) as seen:
            await seen.add_nodes(2, cpu="4")
            berth.wait_until_ready()
            await seen.create([seen.pod("alone", cpu="1", labels=in_podgroup("nobody"))])
            await seen.all_bound(["alone"])
            await define_podgroups_for_good(seen.api)
            for gang in GANGS:
                await add_podgroup(seen, gang, MEMBERS)
            await seen.create(
                seen.pod(f"{gang}-{number}", cpu="1", labels=in_podgroup(gang))
                for number in range(MEMBERS)
                for gang in GANGS
            )
            await eventually(lambda: is_refused(seen), "one group to be refused", 60.0)
            bound = {name for name in await seen.placed() if name != "alone"}
            assert bound in [{f"{gang}-{number}" for number in range(MEMBERS)} for gang in GANGS]


async def is_refused(seen: ClusterUser) -> bool:
    """Whether all members of a group say that it found no room, and the others are bound."""
    pods = [pod for name, pod in (await seen.pods()).items() if name != "alone"]
    refused = [pod for pod in pods if condition_of(pod).get("reason") == "Unschedulable"]
    return len(refused) == MEMBERS and all(pod in refused or node_of(pod) for pod in pods)
