"""A message that RANKED holds and the binder's consumer does not deliver: the next epoch has another consumer."""

from collections.abc import AsyncIterator

import pytest

from berth.bus.interface import BusRefusedError
from berth.leader import checks
from berth.leader.checks import OrphanCheck
from berth.messages.attempts import Outcome
from berth_binder.service import BinderEpoch
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import BinderWorld, binder_world


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus()
    bus.apply()
    return bus


@pytest.fixture
async def world(simulated_cluster: Cluster, bus: MemoryBus) -> AsyncIterator[BinderWorld]:
    async with binder_world(simulated_cluster, bus) as world:
        yield world


@pytest.mark.parametrize("refused", [0, 2])
async def test_a_pod_whose_message_is_delivered_no_more_is_bound(
    world, bus, monkeypatch: pytest.MonkeyPatch, refused: int
):
    monkeypatch.setattr(checks, "CHECK_SECONDS", 0.05)
    take, taken = BinderEpoch._take, []
    find, refusals = OrphanCheck.find, iter(["no right"] * refused)

    async def find_after_the_refusals(self) -> str:
        for reason in refusals:
            raise BusRefusedError(reason)
        return await find(self)

    async def take_from_the_second_on(self, delivery):
        taken.append(delivery)
        if len(taken) > 1:
            await take(self, delivery)
            return
        for consumer in bus._store.queue("RANKED").consumers.values():
            consumer.forget()

    monkeypatch.setattr(BinderEpoch, "_take", take_from_the_second_on)
    monkeypatch.setattr(OrphanCheck, "find", find_after_the_refusals)
    node = await world.add_node()
    binder = await world.leading_binder()
    pod = await world.add_pod("web")
    await world.rank(pod, node)

    assert (await world.decision(pod)).outcome is Outcome.BOUND
    await world.nothing_ranked_is_left()
    assert binder.process.metrics.value("berth_orphans_found_total", stream="RANKED") == 1
    assert binder.process.metrics.value("berth_leaderships_total", role="binder") == 2
