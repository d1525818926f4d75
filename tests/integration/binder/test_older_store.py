"""The API server has an older store, as after etcd was restored: versions that the binder awaits may never come."""

from collections.abc import AsyncIterator

import pytest

from berth.kube.listwatch import Listed
from berth.messages.attempts import Outcome
from berth_binder import service
from berth_binder.cache import CLAIMS
from berth_binder.service import BinderEpoch
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import BinderWorld, binder_world


@pytest.fixture
async def world(simulated_cluster: Cluster) -> AsyncIterator[BinderWorld]:
    bus = MemoryBus()
    bus.apply()
    async with binder_world(simulated_cluster, bus) as world:
        yield world


async def test_a_new_leadership_begins_and_binds(world: BinderWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "FENCES_SECONDS", 0.02)
    epochs: list[BinderEpoch] = []
    run = BinderEpoch.run

    async def running(self: BinderEpoch) -> None:
        epochs.append(self)
        await run(self)

    monkeypatch.setattr(BinderEpoch, "run", running)
    node, binder = await world.add_node(), await world.leading_binder()
    cache = epochs[0]._parts.cache
    await world.until(lambda: cache.reached(CLAIMS) > 1)
    cache.observe(Listed(kind=CLAIMS, objects=(), resource_version="1"))
    await world.until(lambda: len(epochs) > 1)
    pod = await world.add_pod("web")
    await world.rank(pod, node)
    decision = await world.decision(pod)
    assert (decision.outcome, decision.epoch) == (Outcome.BOUND, 2)
    assert binder.process.metrics.value("berth_leaderships_total", role="binder") == 2
