"""`BERTH_PARTIAL_GROUPS=evict` on a real API server: what is bound of groups that never become whole is evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.podgroups import add_podgroup, in_podgroup, podgroups_path
from harness.worlds.policies import refusing_bindings

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(300)]

MEMBERS: Final = ("a", "b", "refused")
EVICTION_SECONDS: Final = 60.0


@pytest.fixture(scope="module")
def evicting_berth(plane_with_podgroups: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    kubeconfig, folder = plane_with_podgroups.kubeconfig_path, tmp_path_factory.mktemp("up")
    setting = {"BERTH_PARTIAL_GROUPS": "evict"}
    with berth_up("--kubeconfig", kubeconfig, folder=folder, environment=setting) as berth:
        berth.wait_until_ready()
        yield berth


async def add_members(seen: ClusterUser, group: str, importance: str, words: Iterable[str] = MEMBERS) -> None:
    form = {"cpu": "1", "labels": in_podgroup(group), "priority_class": importance}
    await seen.create(seen.pod(f"{group}-{word}", **form) for word in words)


async def begin(seen: ClusterUser, group: str, importance: str) -> None:
    """Two of three members are bound: the Binding of the last one is refused."""
    await add_podgroup(seen, group, len(MEMBERS), scheduleTimeoutSeconds=1)
    await add_members(seen, group, importance)
    await seen.all_bound([f"{group}-a", f"{group}-b"])


async def evicted(seen: ClusterUser) -> set[str]:
    return {name for name, pod in (await seen.pods()).items() if "deletionTimestamp" in pod["metadata"]}


async def said_of(seen: ClusterUser, reason: str) -> set[str]:
    """The groups that have an Event with this reason."""
    return {each["regarding"]["name"] for each in await seen.events(reason) if each["regarding"]["kind"] == "PodGroup"}


async def replace_binder(berth: BerthUp, seen: ClusterUser) -> None:
    """Kill the leading binder; another one has bound a pod then."""
    before = berth.kill("binder")
    await asyncio.to_thread(berth.wait_for, lambda: berth.pids.get("binder", before) != before, "another binder")
    await seen.all_bound(await seen.add_pods(1, "single", cpu="100m"))


async def test_the_least_important_group_of_this_epoch_is_evicted_and_then_whole(
    evicting_berth: BerthUp, plane_with_podgroups: ControlPlane
):
    async with cluster_user(plane_with_podgroups.kubeconfig_path) as seen:
        await seen.add_nodes(2, cpu="16")
        high, low = await seen.add_priority_class("high", 10), await seen.add_priority_class("low", -10)
        lowest = await seen.add_priority_class("lowest", -20)
        groups = {"former": lowest, "remade": lowest, "high": high, "low": low}
        async with refusing_bindings(seen.api, ending="-refused"):
            await begin(seen, "former", lowest)
            await replace_binder(evicting_berth, seen)
            for group in ("remade", "high", "low"):
                await begin(seen, group, groups[group])
            await seen.api.delete(f"{podgroups_path(seen.namespace)}/remade")
            await add_podgroup(seen, "remade", len(MEMBERS), scheduleTimeoutSeconds=1)

            async def all_are_reported() -> bool:
                return await said_of(seen, "GroupPartial") == groups.keys()

            await eventually(all_are_reported, "an Event on each group")
            assert await evicted(seen) == set()

            async def both_are_evicted() -> bool:
                return len(await evicted(seen)) > 1

            await eventually(both_are_evicted, "a group to be evicted", EVICTION_SECONDS + 30)
            await asyncio.sleep(3)  # no other group follows
            assert await evicted(seen) == {"low-a", "low-b"}
            assert await said_of(seen, "GroupEvicted") == {"low"}
            assert not (await seen.placed()).keys() & {f"{group}-refused" for group in groups}
        for member in MEMBERS:
            await seen.delete_pod(f"low-{member}")
        await add_members(seen, "low", low)
        await seen.all_bound(f"{group}-{member}" for group in groups for member in MEMBERS)
