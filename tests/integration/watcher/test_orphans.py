"""A message that PENDING holds and its consumer does not deliver: the watcher makes the consumer anew."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest

from berth.bus.interface import Delivery, Session
from berth.leader import checks
from berth.messages.attempts import Outcome, Pending
from berth.messages.encoding import decode
from berth.settings.settings import Numbers
from berth_watcher import service
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.watcher_service import WatcherWorld, bound, watcher_world

Take = Callable[[Session, Delivery], Awaitable[None]]


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> MemoryBus:
    monkeypatch.setattr(checks, "CHECK_SECONDS", 0.05)
    return MemoryBus()


@pytest.fixture
async def world(simulated_cluster: Cluster, bus: MemoryBus) -> AsyncIterator[WatcherWorld]:
    async with watcher_world(simulated_cluster, bus) as world:
        yield world


async def none_is_left(world: WatcherWorld) -> bool:
    session = await world.session()
    left = (await session.state("PENDING")).messages
    await session.close()
    return not left


async def test_a_pod_whose_message_is_delivered_no_more_is_bound(world, bus):
    def forget_once(pending: Pending) -> Outcome | None:
        if len(world.attempts) > 1:
            return bound(pending)
        bus._store.queue("PENDING").consumers["scorer"].forget()
        return None

    world.answer = forget_once
    watcher = await world.leading_watcher()
    await world.add_pod("web")
    await world.until(world.all_bound)

    assert len(world.attempts) == 2
    assert len(set(world.attempts)) == 1
    assert watcher.process.metrics.value("berth_orphans_found_total", stream="PENDING") == 1
    await world.until(lambda: none_is_left(world))


async def test_a_message_of_a_pod_that_waits_no_more_does_not_stay(world, bus):
    def forget_and_bind(pending: Pending) -> Outcome | None:
        if len(world.attempts) == 1:
            bus._store.queue("PENDING").consumers["scorer"].forget()
        return bound(pending) if len(world.attempts) == 1 else None

    world.answer = forget_and_bind
    await world.leading_watcher()
    await world.add_pod("web")
    await world.until(world.all_bound)
    await world.until(lambda: none_is_left(world))
    assert len(set(world.attempts)) == 1


async def test_pods_are_bound_after_somebody_has_deleted_the_consumer(
    simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checks, "CHECK_SECONDS", 0.05)
    async with watcher_world(simulated_cluster, nats_bus_under_test.bus) as world:
        watcher = await world.leading_watcher()
        session = await world.session()
        await session.delete_consumer("PENDING", "scorer")
        await world.add_pod("web")
        await world.until(world.all_bound)
        await session.close()
        await world.until(lambda: watcher.leads)


async def test_a_pod_is_bound_whose_message_a_scorer_has_put_off_for_a_century(
    simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest
):
    put_off: list[str] = []

    async def put_first_off(take: Take, session: Session, delivery: Delivery) -> None:
        if not put_off:
            put_off.append(decode(delivery.data, Pending).attempt)
            delivery.nak(timedelta(days=36500))
        else:
            await take(session, delivery)

    async with watcher_world(simulated_cluster, nats_bus_under_test.bus) as world:
        world._take = partial(put_first_off, world._take)
        await world.leading_watcher(numbers=Numbers(silent_attempt=timedelta(seconds=1)))
        await world.add_pod("web")
        await world.until(world.all_bound)
        await world.until(lambda: none_is_left(world))
    assert world.attempts != put_off


async def test_messages_put_off_for_a_century_end_with_their_pods(
    simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "END_SECONDS", 0.1)
    put_off: list[str] = []

    async def put_all_off(take: Take, session: Session, delivery: Delivery) -> None:
        put_off.append(decode(delivery.data, Pending).pod.metadata.name)
        if put_off[-1] == "decided":
            await take(session, PutOff(delivery))
        else:
            delivery.nak(timedelta(days=36500))

    async with watcher_world(simulated_cluster, nats_bus_under_test.bus) as world:
        world._take = partial(put_all_off, world._take)
        watcher = await world.leading_watcher()
        for name in ("decided", "deleted"):
            await world.add_pod(name)
        await world.until(lambda: set(put_off) == {"decided", "deleted"})
        api = world.cluster.api
        assert (await api.delete(f"{api.pods}/deleted", {"gracePeriodSeconds": 0})).code == 200
        await world.until(lambda: none_is_left(world))
        assert watcher.leads


@dataclass
class PutOff:
    """A delivery that is never acknowledged."""

    delivery: Delivery

    @property
    def data(self) -> bytes:
        return self.delivery.data

    def ack(self) -> None:
        self.delivery.nak(timedelta(days=36500))
