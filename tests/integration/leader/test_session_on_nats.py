"""Leading on a real NATS server: its death, its lost store, and a bucket that is not what it was."""

import asyncio
from datetime import timedelta

import pytest

from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth.leader.session import LeaderSession, NotLeadingError, lead
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import sessions
from berth.settings.settings import LeaderElectionSettings, Settings
from harness.fakes.recording_meter import RecordingMeter

ELECTION = LeaderElectionSettings(
    lease_duration=timedelta(seconds=4), renew_deadline=timedelta(seconds=1.5), retry_period=timedelta(seconds=0.2)
)


class Watcher:
    """Leads again and again; each leadership is put on `begun`."""

    def __init__(self, bus: NatsBus, client) -> None:
        self.process = Process(
            name="watcher", metrics=RecordingMeter(), settings=Settings(identity="w", leader_election=ELECTION)
        )
        self.begun: asyncio.Queue[LeaderSession] = asyncio.Queue()
        self._bus, self._client = bus, client

    async def run(self) -> None:
        how = {"client": self._client, "process": self.process}
        async for session in sessions(self._bus, name="w", process=self.process, apply_when_missing=True):
            try:
                async with lead(role="watcher", session=session, **how) as leadership:
                    self.begun.put_nowait(leadership)
                    await run_until(asyncio.Event().wait(), leadership.lost, self.process.stopping)
            except NotLeadingError:
                continue

    async def next(self) -> LeaderSession:
        async with asyncio.timeout(20):
            return await self.begun.get()


@pytest.fixture
async def watcher(own_nats_server, simulated_cluster):
    bus = NatsBus(BusSettings(servers=(own_nats_server.address,)))
    made = Watcher(bus, simulated_cluster.client)
    made.bus = bus
    running = asyncio.create_task(made.run())
    yield made
    made.process.stopping.set()
    async with asyncio.timeout(30):
        await running


async def test_each_fault_of_nats_ends_in_a_higher_term(watcher, own_nats_server):
    first = await watcher.next()
    assert first.number == 1

    await asyncio.to_thread(own_nats_server.kill)
    async with asyncio.timeout(30):
        await first.lost.wait()
    assert first.reason == "the connection to NATS was lost"
    assert not watcher.process.health.is_ready
    await asyncio.to_thread(own_nats_server.start)
    assert (await watcher.next()).number == 2

    await asyncio.to_thread(own_nats_server.kill)
    own_nats_server.lose_store()
    await asyncio.to_thread(own_nats_server.start)
    third = await watcher.next()
    assert third.number == 3

    session = await watcher.bus.connect(name="somebody")
    await session.put("control", "term.watcher", b"8")
    async with asyncio.timeout(30):
        await third.lost.wait()
    assert third.reason == "watcher 8 was seen in control, this is 3"
    fourth = await watcher.next()
    assert fourth.number == 9

    await session.put("control", "bus.id", b"another")
    async with asyncio.timeout(30):
        await fourth.lost.wait()
    assert "bus.id has changed" in fourth.reason
    await session.close()
