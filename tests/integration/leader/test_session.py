"""Leading: Lease, number, pairing, on a bus in memory and a simulated API server, with a clock that the test moves."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from berth.bus.interface import WrongLastSequenceError
from berth.kube.client import KubeClient
from berth.leader import session as leader_session
from berth.leader.lease import LeaseObservations
from berth.leader.session import LeaderSession, NoLongerLeadingError, NotLeadingError, lead
from berth.lifecycle.process import Process
from berth.settings.settings import LeaderElectionSettings, Settings
from berth_sim.faults import Reject
from harness.fakes.memory_bus import MemoryBus, MemorySession
from harness.fakes.recording_meter import RecordingMeter
from harness.fakes.ticking_clock import TickingClock

LEASES = "/apis/coordination.k8s.io/v1/namespaces/berth/leases"
SECOND_BUS = "another"


def settings(identity: str, **election) -> Settings:
    return Settings(identity=identity, leader_election=LeaderElectionSettings(**election))


@dataclass
class Contender:
    """A process that wants to lead; `leadership` is there once it does."""

    process: Process
    session: MemorySession
    role: str
    observations: LeaseObservations | None = None
    leadership: LeaderSession | None = None
    failure: BaseException | None = None
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task | None = None

    @property
    def leads(self) -> bool:
        return self.leadership is not None and not self.leadership.expired()

    @property
    def sentence(self) -> str:
        return self.process.health.condition("leadership").sentence

    async def run(self, client: KubeClient) -> None:
        try:
            async with lead(
                role=self.role,
                session=self.session,
                client=client,
                process=self.process,
                observations=self.observations,
            ) as self.leadership:
                await self.leave.wait()
        except NotLeadingError as error:
            self.failure = error


class Stage:
    """One cluster, a bus or two, and contenders."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.clock = TickingClock()
        self.bus = MemoryBus()
        self.bus.apply()
        self.contenders = []

    async def enter(self, identity: str, *, role="watcher", bus=None, observations=None, **election) -> Contender:
        session = await (bus or self.bus).connect(name=identity)
        process = Process(
            name=role, metrics=RecordingMeter(), settings=settings(identity, **election), clock=self.clock
        )
        contender = Contender(process=process, session=session, role=role, observations=observations)
        contender.task = asyncio.create_task(contender.run(self.cluster.client))
        self.contenders.append(contender)
        return contender

    async def leader(self, identity: str, **how) -> Contender:
        contender = await self.enter(identity, **how)
        await self.clock.run_until(lambda: contender.leads)
        return contender

    async def end(self, contender: Contender) -> None:
        contender.leave.set()
        await self.clock.run_until(contender.task.done)

    async def kill(self, contender: Contender) -> None:
        """As by kill -9: nothing is given back."""
        contender.leadership._lease.release = noop
        contender.task.cancel()
        await asyncio.wait([contender.task])
        contender.session.lose("killed")

    async def lease(self, role="watcher") -> dict:
        return (await self.cluster.api.get(f"{LEASES}/berth-{role}")).body

    async def control(self, key: str) -> str:
        session = await self.bus.connect(name="test")
        entry = await session.get("control", key)
        await session.close()
        return entry.data.decode() if entry else ""


async def noop() -> None:
    pass


@pytest.fixture
async def stage(simulated_cluster):
    made = Stage(simulated_cluster)
    yield made
    for contender in made.contenders:
        contender.task.cancel()
    await asyncio.gather(*(contender.task for contender in made.contenders), return_exceptions=True)


async def test_first_watcher_writes_term_1_to_the_lease_and_to_control(stage):
    watcher = await stage.leader("a")
    lease = await stage.lease()
    assert watcher.leadership.number == 1
    assert lease["spec"]["holderIdentity"] == "a"
    assert lease["metadata"]["annotations"] == {"berth/term": "1", "bus.id": stage.bus.bus_id()}
    assert await stage.control("term.watcher") == "1"
    assert watcher.process.health.is_working
    assert watcher.process.metrics.value("leader_election_master_status", name="berth-watcher") == 1


async def test_the_watcher_says_whose_cluster_the_bus_serves(stage):
    await stage.leader("a")
    namespace = (await stage.cluster.api.get("/api/v1/namespaces/kube-system")).body
    assert await stage.control("cluster.id") == namespace["metadata"]["uid"]


async def test_of_two_contenders_one_leads_and_the_other_is_a_standby(stage):
    first = await stage.leader("a")
    second = await stage.enter("b")
    await stage.clock.run_until(lambda: "standing by" in second.sentence)
    await stage.clock.run(60)
    assert (first.leads, second.leads) == (True, False)
    assert second.sentence == "standing by: Lease 'berth-watcher' is held by 'a'"
    assert (second.process.health.is_ready, second.process.health.is_working) == (True, False)
    for contender, leads in ((first, 1), (second, 0)):
        assert contender.process.metrics.values["leader_election_master_status", "berth-watcher"] == leads
        assert contender.process.metrics.values["berth_leadership_number", "watcher"] == leads


async def test_a_standby_takes_over_at_once_when_the_leader_leaves_and_counts_on(stage):
    first = await stage.leader("a")
    second = await stage.enter("b")
    await stage.clock.run_until(lambda: "standing by" in second.sentence)
    await stage.end(first)
    assert await stage.clock.run_until(lambda: second.leads) < 5
    assert second.leadership.number == 2


async def test_a_standby_takes_over_from_a_killed_leader_after_the_leases_duration(stage):
    first = await stage.leader("a")
    second = await stage.enter("b")
    await stage.clock.run_until(lambda: "standing by" in second.sentence)
    await stage.kill(first)
    took = await stage.clock.run_until(lambda: second.leads)
    assert 11 < took < 22
    assert second.leadership.number == 2


async def test_watcher_and_binder_have_leases_and_numbers_of_their_own(stage):
    watcher = await stage.leader("a")
    binder = await stage.leader("b", role="binder")
    assert (watcher.leadership.number, binder.leadership.number) == (1, 1)
    assert await stage.control("term.binder") == "1"
    assert (await stage.lease("binder"))["spec"]["holderIdentity"] == "b"


async def test_a_binder_without_a_cluster_id_waits_and_takes_no_lease(stage):
    binder = await stage.enter("b", role="binder")
    await stage.clock.run_until(lambda: "cluster.id" in binder.sentence)
    assert (await stage.cluster.api.get(f"{LEASES}/berth-binder")).code == 404
    await stage.leader("a")
    assert await stage.clock.run_until(lambda: binder.leads) < 1.5  # when it is written, not at the next look


async def test_after_the_loss_of_the_store_the_next_term_is_above_the_leases(stage):
    for expected in (1, 2, 3):
        watcher = await stage.leader("a")
        assert watcher.leadership.number == expected
        await stage.end(watcher)
    stage.bus.wipe()
    stage.bus.apply()
    watcher = await stage.leader("a")
    assert watcher.leadership.number == 4
    assert await stage.control("term.watcher") == "4"


async def test_after_the_loss_of_the_lease_the_next_term_is_above_the_stores(stage):
    await stage.end(await stage.leader("a"))
    await stage.end(await stage.leader("a"))
    await stage.cluster.api.delete(f"{LEASES}/berth-watcher")
    assert (await stage.leader("a")).leadership.number == 3


async def test_a_lost_connection_ends_leading_and_gives_the_lease_back(stage):
    watcher = await stage.leader("a")
    stage.bus.cut(watcher.session)
    await stage.clock.run_until(watcher.leadership.lost.is_set, within=1)
    assert watcher.leadership.reason == "the connection to NATS was lost"
    assert watcher.leadership.expired()
    await stage.end(watcher)
    assert (await stage.lease())["spec"]["holderIdentity"] == ""
    assert not watcher.process.health.is_ready
    assert watcher.process.metrics.value("leader_election_master_status", name="berth-watcher") == 0


async def test_a_higher_number_in_control_ends_leading(stage):
    watcher = await stage.leader("a")
    session = await stage.bus.connect(name="other")
    await session.put("control", "term.watcher", b"7")
    await stage.clock.run_until(watcher.leadership.lost.is_set, within=5)
    assert watcher.leadership.reason == "watcher 7 was seen in control, this is 1"


async def test_a_higher_number_in_the_lease_ends_leading(stage):
    watcher = await stage.leader("a")
    patch = {"metadata": {"annotations": {"berth/term": "9"}}}
    await stage.cluster.api.patch(f"{LEASES}/berth-watcher", patch)
    await stage.clock.run_until(watcher.leadership.lost.is_set, within=10)
    assert watcher.leadership.reason == "watcher 9 was seen in the Lease, this is 1"


async def test_a_reported_number_ends_leading_only_if_it_is_higher(stage):
    binder_needs = await stage.leader("a")
    binder = await stage.leader("b", role="binder")
    binder.leadership.report_higher(1, seen_in="a fence")
    assert binder.leads
    binder.leadership.report_higher(2, seen_in="a fence")
    assert binder.leadership.reason == "binder 2 was seen in a fence, this is 1"
    assert binder.leadership.expired()
    assert binder_needs.leads


async def test_a_watch_that_breaks_ends_leading(stage, monkeypatch):
    watcher = await stage.leader("a")
    monkeypatch.setattr(leader_session, "number_on_lease", lambda _lease: int("9" * 5000))
    await stage.clock.run_until(lambda: not watcher.leads)
    assert "watching the leadership failed: ValueError" in watcher.leadership.reason


async def test_a_number_that_neither_place_has_is_not_confirmed(stage):
    watcher = await stage.leader("a")
    await watcher.leadership.confirm()
    assert watcher.leads


@pytest.mark.parametrize("place", ["the Lease", "control"])
async def test_a_number_that_one_place_has_is_confirmed(stage, place):
    watcher = await stage.leader("a")
    if place == "control":
        session = await stage.bus.connect(name="test")
        await session.put("control", "term.watcher", b"9")
        await session.close()
    else:
        path = f"{LEASES}/berth-watcher"
        await stage.cluster.api.patch(path, {"metadata": {"annotations": {"berth/term": "9"}}})
    with pytest.raises(NoLongerLeadingError, match="9 was seen"):
        await watcher.leadership.confirm()


@pytest.mark.parametrize("elect", [True, False])
async def test_successor_knows_whether_everything_was_answered(stage, elect):
    first = await stage.leader("a", leader_elect=elect)
    assert first.leadership.follows_settled, "there was no leader before"
    first.leadership.settled()
    await stage.end(first)
    assert (await stage.lease())["metadata"]["annotations"]["berth/settled"] == "1"
    second = await stage.leader("b", leader_elect=elect)
    assert second.leadership.follows_settled
    assert (await stage.lease())["metadata"]["annotations"]["berth/settled"] == ""
    await stage.end(second)
    third = await stage.leader("c", leader_elect=elect)
    assert not third.leadership.follows_settled


async def test_a_leader_whose_lease_lapsed_does_not_say_that_everything_was_answered(stage):
    first = await stage.leader("a")
    stage.clock._now += 10.5  # what held it up may be a pod, for which the next leader must look
    first.leadership.settled()
    await stage.end(first)
    second = await stage.leader("b")
    assert not second.leadership.follows_settled


LEASE_SECONDS = 15.0
RETRY_SECONDS = 5.0
ANSWERS_SECONDS = 1.0
"""By the moved clock, for the requests between the end of a Lease and leading."""


async def after_lapse(stage: Stage, seconds: float) -> float:
    """How long after the end of its predecessor's Lease a standby leads; that one was killed so long into its lead."""
    rarely = timedelta(seconds=RETRY_SECONDS)
    first = await stage.leader("a", retry_period=rarely)
    second = await stage.enter("b", retry_period=rarely)
    await stage.clock.run(seconds)
    await stage.kill(first)
    lapse = first.leadership._lease._deadline.renewed_at + LEASE_SECONDS
    await stage.clock.run_until(lambda: second.leads)
    return stage.clock.now() - lapse


@pytest.mark.parametrize("seconds", [6.0, 7.0, 8.0, 9.0])
async def test_a_standby_leads_once_the_lease_of_a_killed_leader_has_run_out_and_not_before(stage, seconds):
    assert 0 <= await after_lapse(stage, seconds) <= ANSWERS_SECONDS


@pytest.mark.parametrize("seconds", [6.0, 7.0, 8.0, 9.0])
async def test_a_standby_that_may_not_watch_is_late_by_the_time_between_its_reads_at_most(stage, seconds):
    stage.cluster.simulated.faults.inject(Reject(verb="watch", resource="leases", count=None))
    assert 0 <= await after_lapse(stage, seconds) <= RETRY_SECONDS + ANSWERS_SECONDS


async def test_another_bus_id_under_a_living_connection_ends_leading(stage):
    watcher = await stage.leader("a")
    session = await stage.bus.connect(name="other")
    await session.put("control", "bus.id", b"somebody-elses")
    await stage.clock.run_until(watcher.leadership.lost.is_set, within=5)
    assert "bus.id has changed" in watcher.leadership.reason


async def test_a_paused_leader_stops_by_its_own_clock_before_it_acts(stage):
    watcher = await stage.leader("a")
    stage.clock._now += 10.5  # nobody gets to run meanwhile, no event is set yet
    assert not watcher.leadership.lost.is_set()
    assert watcher.leadership.expired()


async def other_bus() -> MemoryBus:
    bus = MemoryBus(name=SECOND_BUS)
    bus.apply()
    return bus


async def test_a_second_bus_is_refused_until_the_lease_of_the_first_expires(stage):
    first = await stage.leader("a")
    second = await stage.enter("b", bus=await other_bus())
    await stage.clock.run_until(lambda: "refusing" in second.sentence)
    assert not second.process.health.is_ready
    await stage.clock.run(60)
    assert "is held by 'a' on the bus 'memory-1'" in second.sentence
    assert not second.task.done()
    await stage.kill(first)
    took = await stage.clock.run_until(lambda: second.leads)
    assert 11 < took < 22  # one duration, for the check of the bus and for the election
    assert second.leadership.number == 2


async def test_a_leader_that_died_with_the_store_is_waited_for_once(stage):
    first = await stage.leader("a")
    observations = LeaseObservations()
    second = await stage.enter("b", observations=observations)
    await stage.clock.run_until(lambda: "standing by" in second.sentence)
    await stage.kill(first)
    second.session.lose("killed")
    await stage.clock.run(10)  # without NATS
    third = await stage.enter("b", bus=await other_bus(), observations=observations)
    assert await stage.clock.run_until(lambda: third.leads) < 12  # not a duration from here on, and another one


async def test_a_binder_of_one_bus_stops_a_watcher_of_another_from_leading(stage):
    await stage.end(await stage.leader("a"))
    await stage.leader("b", role="binder")
    watcher = await stage.enter("c", bus=await other_bus())
    await stage.clock.run_until(lambda: "refusing" in watcher.sentence)
    await stage.clock.run(30)
    assert not watcher.leads
    assert (await stage.lease())["spec"]["holderIdentity"] == ""


async def test_a_bus_that_serves_another_cluster_is_refused_and_nothing_is_written(stage):
    session = await stage.bus.connect(name="other")
    await session.put("control", "cluster.id", b"elsewhere")
    watcher = await stage.enter("a")
    await stage.clock.run_until(lambda: "serves the cluster 'elsewhere'" in watcher.sentence)
    await stage.clock.run(10)
    assert (await stage.cluster.api.get(f"{LEASES}/berth-watcher")).code == 404
    assert await stage.control("term.watcher") == ""
    assert not watcher.process.health.is_ready


async def test_a_refusal_ends_when_its_cause_does(stage):
    session = await stage.bus.connect(name="other")
    await session.put("control", "cluster.id", b"elsewhere")
    watcher = await stage.enter("a")
    await stage.clock.run_until(lambda: "refusing" in watcher.sentence)
    await session.purge("control", "cluster.id")
    assert await stage.clock.run_until(lambda: watcher.leads) < 5


async def test_two_buses_that_take_the_two_leases_at_once_do_not_both_lead(stage):
    second = await other_bus()
    namespace = (await stage.cluster.api.get("/api/v1/namespaces/kube-system")).body
    for bus in (stage.bus, second):
        session = await bus.connect(name="before")
        await session.put("control", "cluster.id", namespace["metadata"]["uid"].encode())
    watcher = await stage.enter("a")
    binder = await stage.enter("b", role="binder", bus=second)
    for _ in range(120):
        await stage.clock.run(0.5)
        assert not (watcher.leads and binder.leads)


async def test_without_election_the_lease_has_a_term_and_no_holder(stage):
    watcher = await stage.leader("a", leader_elect=False)
    lease = await stage.lease()
    assert lease["metadata"]["annotations"] == {"berth/term": "1", "bus.id": stage.bus.bus_id()}
    assert not lease["spec"].get("holderIdentity")
    await stage.clock.run(60)
    assert watcher.leads


async def test_without_election_a_later_term_ends_the_earlier_one(stage):
    first = await stage.leader("a", leader_elect=False)
    second = await stage.leader("b", leader_elect=False)
    await stage.clock.run_until(first.leadership.lost.is_set, within=10)
    assert (first.leadership.number, second.leadership.number) == (1, 2)


async def test_a_number_that_is_none_is_said_and_waited_for(stage):
    session = await stage.bus.connect(name="other")
    await session.put("control", "term.watcher", b"twelve")
    watcher = await stage.enter("a")
    await stage.clock.run_until(lambda: "want a number, got 'twelve'" in watcher.sentence)
    await session.put("control", "term.watcher", b"12")
    await stage.clock.run_until(lambda: watcher.leads)
    assert watcher.leadership.number == 13


async def test_a_number_that_is_none_gives_way_to_that_of_the_lease(stage):
    first = await stage.leader("a")
    session = await stage.bus.connect(name="other")
    await session.put("control", "term.watcher", b"twelve")
    await stage.clock.run_until(first.leadership.lost.is_set, within=10)
    await stage.end(first)
    second = await stage.leader("b")
    assert second.leadership.number == 2
    assert await stage.control("term.watcher") == "2"


async def test_a_number_taken_by_somebody_else_at_the_same_time_is_gone_above(stage, monkeypatch):
    put, stolen = MemorySession.put, []

    async def somebody_is_faster(session, bucket, key, data, *, expected=None):
        if key == "term.watcher" and not stolen:
            stolen.append(await put(session, bucket, key, b"5"))
            raise WrongLastSequenceError("somebody wrote in between")
        return await put(session, bucket, key, data, expected=expected)

    monkeypatch.setattr(MemorySession, "put", somebody_is_faster)
    assert (await stage.leader("a")).leadership.number == 6
    assert (await stage.lease())["metadata"]["annotations"]["berth/term"] == "6"


@pytest.mark.parametrize("cause", ["the process is stopping", "the connection to NATS was lost"])
async def test_waiting_to_lead_ends_when_there_is_nothing_to_wait_for(stage, cause):
    await stage.leader("a")
    second = await stage.enter("b")
    await stage.clock.run_until(lambda: "standing by" in second.sentence)
    if "stopping" in cause:
        second.process.stopping.set()
    else:
        stage.bus.cut(second.session)
    await stage.clock.run_until(second.task.done, within=5)
    assert cause in str(second.failure)


async def test_settings_of_the_election_reach_the_lease(stage):
    await stage.leader(
        "a",
        lease_duration=timedelta(seconds=25),
        renew_deadline=timedelta(seconds=20),
        retry_period=timedelta(seconds=1),
    )
    assert (await stage.lease())["spec"]["leaseDurationSeconds"] == 25


async def test_no_task_is_left_behind(stage):
    before = asyncio.all_tasks()
    watcher = await stage.leader("a")
    await stage.end(watcher)
    await watcher.session.close()
    left = asyncio.all_tasks() - before - {watcher.task}
    assert [task for task in left if "aiohttp" not in repr(task)] == []  # the server keeps one for each connection
