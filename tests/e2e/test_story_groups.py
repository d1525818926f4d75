"""Groups of pods on a real API server: all of a group are bound, or none, and each waiting member says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from harness.servers.control_plane import ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, condition_of, eventually, node_of
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.podgroups import SERVED, add_podgroup, in_podgroup

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def berth_with_groups(
    plane_with_podgroups: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BerthUp]:
    """`berth up` with two scorers."""
    kubeconfig = plane_with_podgroups.kubeconfig_path
    with berth_up("--kubeconfig", kubeconfig, "--scorers", 2, folder=tmp_path_factory.mktemp("up")) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def user(berth_with_groups: BerthUp, plane_with_podgroups: ControlPlane) -> AsyncIterator[ClusterUser]:
    async with cluster_user(plane_with_podgroups.kubeconfig_path) as seen:
        yield seen


async def of_group(seen: ClusterUser, group: str) -> dict[str, dict]:
    return {name: pod for name, pod in (await seen.pods()).items() if name.startswith(f"{group}-")}


async def all_wait(seen: ClusterUser, group: str, count: int) -> dict[str, dict]:
    """Wait until each member has a condition that says why it waits."""

    async def conditions() -> dict[str, dict] | None:
        found = {name: condition_of(pod) for name, pod in (await of_group(seen, group)).items()}
        told = {name: each for name, each in found.items() if each.get("status") == "False"}
        return told if len(told) == count else None

    return await eventually(conditions, f"{count} members of {group} to say why they wait")


async def test_a_group_is_bound_whole_or_not_at_all(user: ClusterUser):
    await user.add_nodes(2, cpu="3")
    await add_podgroup(user, "first", 4)
    first = await user.add_pods(4, "first", cpu="1", labels=in_podgroup("first"))
    await user.all_bound(first)
    await add_podgroup(user, "second", 4)
    second = await user.add_pods(4, "second", cpu="1", labels=in_podgroup("second"))
    waiting = await all_wait(user, "second", 4)
    assert {each["reason"] for each in waiting.values()} == {"Unschedulable"}
    assert not any(map(node_of, (await of_group(user, "second")).values()))
    single = await user.add_pods(2, "single", cpu="1")
    await user.all_bound(single)
    for name in first:
        await user.delete_pod(name)
    await user.all_bound(second)


async def test_a_group_waits_for_its_members_and_a_lost_one_is_replaced_while_another_waits(user: ClusterUser):
    await user.add_nodes(1, cpu="4")
    await add_podgroup(user, "gang", 4)
    labels = in_podgroup("gang")
    first = await user.add_pods(3, "early", cpu="1", labels=labels)
    (single,) = await user.add_pods(1, "single", cpu="1")
    await user.all_bound([single])
    assert set(await user.placed()) == {single}
    waiting = await all_wait(user, "early", 3)
    assert {(each["reason"], each["message"]) for each in waiting.values()} == {
        ("WaitingForPodGroup", "3 of 4 members exist")
    }
    await user.delete_pod(single)
    late = await user.add_pods(1, "late", cpu="1", labels=labels)
    await user.all_bound([*first, *late])
    await add_podgroup(user, "rival", 2)
    rival = await user.add_pods(2, "rival", cpu="500m", labels=in_podgroup("rival"))
    await all_wait(user, "rival", 2)
    await user.delete_pod(first[0])
    replacement = await user.add_pods(1, "replacement", cpu="1", labels=labels)
    await user.all_bound(replacement)
    assert not {*await user.placed()} & {*rival}, "the place of a lost member is its replacement's"


@pytest.fixture(scope="module")
def upstream_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with Kubernetes' own PodGroups, and `berth up`."""
    folder = assets_folder()
    assert folder is not None
    with (
        control_plane(folder, api_flags=SERVED) as plane,
        berth_up("--kubeconfig", plane.kubeconfig_path, folder=tmp_path_factory.mktemp("up")) as berth,
    ):
        berth.wait_until_ready()
        yield plane


async def test_a_group_of_kubernetes_own_kind_is_bound_whole_and_its_condition_says_so(upstream_plane: ControlPlane):
    async with cluster_user(upstream_plane.kubeconfig_path) as seen:
        path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{seen.namespace}/podgroups"

        async def condition(name: str, status: str) -> dict | None:
            conditions = (await seen.api.get(f"{path}/{name}")).body.get("status", {}).get("conditions", [])
            return next((each for each in conditions if each["status"] == status), None)

        await seen.add_nodes(2, cpu="3")
        for name in ("first", "second"):
            spec = {"schedulingPolicy": {"gang": {"minCount": 4}}}
            made = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}}
            assert (await seen.api.post(path, {**made, "spec": spec})).code == 201
        of = {name: {"schedulingGroup": {"podGroupName": name}} for name in ("first", "second")}
        first = await seen.add_pods(4, "first", cpu="1", spec=of["first"])
        await seen.all_bound(first)
        whole = await eventually(lambda: condition("first", "True"), "the condition of the first group")
        assert (whole["type"], whole["reason"]) == ("PodGroupScheduled", "Scheduled")
        await seen.add_pods(4, "second", cpu="1", spec=of["second"])
        refused = await eventually(lambda: condition("second", "False"), "the condition of the second group")
        assert (refused["type"], refused["reason"]) == ("PodGroupScheduled", "Unschedulable")
        assert "2 of 4" in refused["message"]
        assert not any(map(node_of, (await of_group(seen, "second")).values()))
