"""A stream or bucket that somebody deletes while a watcher leads: it is made anew, used by the watcher or not."""

import pytest

from berth.errors import BerthError
from berth.leader import checks
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.watcher_service import watcher_world


@pytest.mark.parametrize("stream", ["KV_tries", "KV_facts", "KV_cluster", "DECISIONS", "dead"])
async def test_what_is_deleted_is_made_anew_and_pods_are_bound(
    simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest, monkeypatch: pytest.MonkeyPatch, stream: str
):
    monkeypatch.setattr(checks, "CHECK_SECONDS", 0.05)
    async with watcher_world(simulated_cluster, nats_bus_under_test.bus) as world:
        watcher = await world.leading_watcher()
        session = await world.session()
        await session._connection.request(f"$JS.API.STREAM.DELETE.{stream}")
        await session.close()

        async def is_there() -> bool:
            try:
                session = await world.session()
            except BerthError:
                return False
            try:
                await session.verify()
            except BerthError:
                return False
            finally:
                await session.close()
            return True

        await world.until(is_there)
        await world.until(lambda: watcher.leads)
        await world.add_pod("web")
        await world.until(world.all_bound)
