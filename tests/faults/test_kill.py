"""kill -9 of each process while pods are being bound: no pod is lost or bound twice, and no node is overcommitted.

The default size is small. `BERTH_FAULTS_PODS=1000 make test ARGS=tests/faults` is thorough.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.audit import Audit, audit, successful_bindings
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(300)]

PODS = int(os.environ.get("BERTH_FAULTS_PODS", "150"))
PER_NODE = 10
"""Pods that fit on a node: so few that a single miscounted pod is noticed."""
RECOVERED_SECONDS = 90.0
"""All pods are bound by then. An unreleased Lease expires after 15 s, an attempt without a Decision after 10 s."""
ALL_SERVICES = ("watcher", "binder", "scorer-1", "scorer-2")


@pytest.fixture(scope="module")
def bus() -> Iterator[NatsServer]:
    """The pipeline's NATS server, which the tests kill and start themselves."""
    with nats_server() as server:
        yield server


@pytest.fixture(scope="module")
def victim(
    own_control_plane: ControlPlane, bus: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BerthUp]:
    """A pipeline with two scorers."""
    arguments = ("--kubeconfig", own_control_plane.kubeconfig_path, "--nats", bus.address, "--scorers", 2)
    with berth_up(*arguments, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth
        assert berth.interrupt() == 0


@asynccontextmanager
async def run_of_pods(seen: ClusterUser) -> AsyncIterator[Audit]:
    """Create pods during the block; afterwards check that each is bound once, to a node with room for it."""
    await seen.add_nodes(PODS // PER_NODE + 1, cpu="1")
    before = await successful_bindings(seen)
    async with audit(seen) as found:
        adding = asyncio.create_task(seen.add_pods(PODS, cpu="100m"))
        await bound(found, PODS // 10)
        yield found
        await seen.all_bound(await adding, RECOVERED_SECONDS)
    assert found.problems == []
    assert found.placements == PODS
    assert await successful_bindings(seen) - before <= PODS  # a Binding whose client was killed is not counted


async def bound(found: Audit, count: int) -> None:
    """Wait until this number of pods has been seen bound."""

    async def reached() -> bool:
        return found.placements >= count

    await eventually(reached, f"{count} pods to be bound", RECOVERED_SECONDS)


@pytest.mark.parametrize("name", ALL_SERVICES[:3])
async def test_run_survives_the_kill_of(name: str, victim: BerthUp, cluster_outside: ClusterUser):
    async with run_of_pods(cluster_outside):
        killed = {name: victim.kill(name)}
    await back(victim, killed)


async def back(victim: BerthUp, killed: dict[str, int]) -> None:
    """Wait until each killed process runs again under a new process id."""

    async def all_back() -> bool:
        pids = victim.pids
        return all(pids.get(name, pid) != pid for name, pid in killed.items())

    await eventually(all_back, f"{', '.join(killed)} to be back")


async def test_run_survives_a_second_kill_before_it_has_recovered(victim: BerthUp, cluster_outside: ClusterUser):
    async with run_of_pods(cluster_outside):
        killed = {"binder": victim.kill("binder")}
        await back(victim, killed)
        killed = {name: victim.kill(name) for name in ("binder", "watcher")}
    await back(victim, killed)


@pytest.mark.parametrize(
    "end", [pytest.param(NatsServer.kill, id="kept"), pytest.param(NatsServer.lose_store, id="lost")]
)
async def test_run_survives_the_kill_of_nats_with_its_store(
    end: Callable[[NatsServer], None], victim: BerthUp, bus: NatsServer, cluster_outside: ClusterUser
):
    before = victim.pids
    async with run_of_pods(cluster_outside):
        end(bus)
        bus.start()
    assert victim.pids == before, victim.said[-3000:]


async def test_run_survives_the_kill_of_all_services_and_the_loss_of_the_store(
    victim: BerthUp, bus: NatsServer, cluster_outside: ClusterUser
):
    async with run_of_pods(cluster_outside):
        killed = {name: victim.kill(name) for name in ALL_SERVICES}
        bus.lose_store()
        bus.start()
    await back(victim, killed)
