"""Leading on the real API server and on the simulated one: what is written there, and that it is accepted."""

import asyncio

from berth.leader.session import lead
from berth.lifecycle.process import Process
from berth.settings.settings import LeaderElectionSettings, Settings
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter

LEASE = "/apis/coordination.k8s.io/v1/namespaces/berth/leases/berth-watcher"


async def test_terms_follow_each_other_with_and_without_election(cluster):
    await cluster.api.delete(LEASE)
    bus = MemoryBus()
    bus.apply()
    for term, elected in ((1, True), (2, False), (3, True)):
        election = LeaderElectionSettings(leader_elect=elected)
        process = Process(
            name="watcher", metrics=RecordingMeter(), settings=Settings(identity="host_1", leader_election=election)
        )
        session = await bus.connect(name="watcher")
        async with asyncio.timeout(30):
            async with lead(role="watcher", session=session, client=cluster.client, process=process) as leadership:
                lease = (await cluster.api.get(LEASE)).body
                assert leadership.number == term
                assert lease["metadata"]["annotations"] == {"berth/term": str(term), "bus.id": bus.bus_id()}
                assert (lease["spec"].get("holderIdentity") or "") == ("host_1" if elected else "")
        assert not (await cluster.api.get(LEASE)).body["spec"].get("holderIdentity")
    await cluster.api.delete(LEASE)
