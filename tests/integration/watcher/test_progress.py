"""A watcher that does nothing about pods that wait for it is not ready and gives up its Lease."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from berth.leader import checks
from berth.observability.health import Progress
from berth_watcher import service
from berth_watcher.stages.pods import PodStages
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.watcher_service import WatcherWorld, watcher_world

STALLED = timedelta(seconds=0.5)


@pytest.fixture
async def world(simulated_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatcherWorld]:
    monkeypatch.setattr(service, "Progress", lambda health, clock, limit: Progress(health, clock, limit=STALLED))
    monkeypatch.setattr(checks, "PROGRESS_SECONDS", 0.05)
    async with watcher_world(simulated_cluster, MemoryBus()) as world:
        yield world


async def test_leader_that_publishes_no_pod_gives_up_the_lease(world, monkeypatch):
    """As with slots of the window that no pod in flight has: nothing is published and nothing looked up."""
    shipped = PodStages.publish_active
    monkeypatch.setattr(PodStages, "publish_active", lambda *_: [])
    watcher = await world.leading_watcher()
    await world.add_pod("web")
    seen: list[str] = []
    watcher.process.health.on_change(lambda: seen.append(watcher.process.health.summary()))

    await world.until(lambda: any("1 pods wait: none was begun for" in summary for summary in seen))
    monkeypatch.setattr(PodStages, "publish_active", shipped)

    await world.until(world.all_bound)
    await world.until(lambda: watcher.leads)
    assert watcher.process.metrics.value("berth_stalls_total", role="watcher") >= 1
