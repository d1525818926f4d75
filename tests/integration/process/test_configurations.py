"""Services with different configurations on one bus: each says once what differs, and once that it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from berth.bus.interface import Session
from berth.bus.session import NatsBus
from berth_cli.services import attention, seen
from berth_sim.cluster import SimulatedCluster
from harness.servers.bus_users import Services, bus_of_users, services, settings_of
from harness.worlds.cluster_user import cluster_user, eventually

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

SECONDS = 60.0
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"
BERTH = "- schedulerName: berth\n"
OTHER_WEIGHT = BERTH + "  plugins: {multiPoint: {enabled: [{name: NodeResourcesFit, weight: 7}]}}\n"
LATE = "- schedulerName: late\n"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SimulatedCluster]:
    async with SimulatedCluster(kubeconfig_path=tmp_path / "kubeconfig") as cluster:
        yield cluster


@pytest.fixture
def running(cluster: SimulatedCluster, tmp_path: Path) -> Iterator[Services]:
    """Every service with the profiles ``berth`` and ``late``."""
    config = tmp_path / "all.yaml"
    config.write_text(HEAD + BERTH + LATE)
    with bus_of_users() as server, services(server, cluster.kubeconfig_path, config, tmp_path) as running:
        yield running


async def said(running: Services, user: str, *words: str) -> list[str]:
    """The lines of a service's log that have all these words, once there is one."""

    async def found() -> list[str]:
        return [line for line in running.log(user) if all(word in line for word in words)]

    return await eventually(found, f"{words} in the log of {user}", SECONDS)


async def needs_attention(session: Session, beginning: str) -> list[str]:
    """The sentences of `berth top` that begin so."""
    return [each for each in attention(seen(await session.services())) if each.startswith(beginning)]


async def test_another_configuration_is_named_by_both_sides_once_and_again_when_it_is_over(
    running: Services, cluster: SimulatedCluster, tmp_path: Path
):
    other = tmp_path / "other.yaml"
    other.write_text(HEAD + OTHER_WEIGHT)
    running.kill("scorer")
    running.start("scorer", other)
    for user in ("watcher", "binder"):
        assert len(await said(running, user, "profile 'berth'", "other plugins or arguments", "scorer")) == 1
        assert len(await said(running, user, "profile 'late'", "not in the configuration of scorer")) == 1
    assert await said(running, "scorer", "profile 'late' of watcher", "not in the configuration of this scorer")

    session = await NatsBus(settings_of(running.server, "people")).connect(name="people")
    async with cluster_user(cluster.kubeconfig_path) as pods:
        await pods.add_nodes(1)
        await pods.create([pods.pod("waits", scheduler="late")])
        waiting = "1 pod of profile 'late' waits for a scorer: "
        reason = "none of the 1 that answer has this profile in its configuration"
        found = await eventually(lambda: needs_attention(session, waiting), "the reason", SECONDS)
        assert found == [waiting + reason]
    shown = {one.service: one.stats for one in await session.services()}
    assert any("profile 'late'" in sentence for sentence in shown["berth-watcher"]["differences"])
    assert shown["berth-watcher"]["profiles"].keys() == {"berth", "late"}
    assert shown["berth-scorer"]["configuration"] != shown["berth-watcher"]["configuration"]
    await session.close()

    running.kill("scorer")
    running.start("scorer")
    assert await said(running, "watcher", "no longer: ", "profile 'berth'")
    assert await said(running, "watcher", "no longer: ", "profile 'late'")
    assert await said(running, "watcher", "scorer", "has been silent for")
