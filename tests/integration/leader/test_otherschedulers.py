"""Another scheduler of the same pods, by its Lease: berth leads when that has ended, and not before."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from berth.kube.errors import ApiUnreachableError
from berth.kube.http1 import Response
from berth.leader.otherschedulers import OtherSchedulers
from berth.leader.samepods import LeaseName
from berth.leader.session import NotLeadingError, lead
from berth.lifecycle.process import Process
from berth.settings.settings import Settings
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter
from harness.fakes.ticking_clock import TickingClock

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
NAME = "kube-scheduler"
DURATION = 15


class OtherScheduler:
    """kube-scheduler as its Lease shows it. The times in it are of no clock."""

    def __init__(self, api) -> None:
        self._api = api
        self._renewals = 0

    async def starts(self) -> None:
        spec = {"holderIdentity": "kube_1", "leaseDurationSeconds": DURATION, "renewTime": self._time()}
        answer = await self._api.post(LEASES, {"metadata": {"name": NAME}, "spec": spec})
        assert answer.code == 201

    async def renews(self) -> None:
        await self._write({"renewTime": self._time()})

    async def is_stopped(self) -> None:
        await self._write({"holderIdentity": "", "leaseDurationSeconds": 1})

    def _time(self) -> str:
        self._renewals += 1
        return f"2001-01-01T00:00:{self._renewals:02}.000000Z"

    async def _write(self, spec: dict) -> None:
        assert (await self._api.patch(f"{LEASES}/{NAME}", {"spec": spec})).code == 200


class Watcher:
    """A watcher that wants to lead."""

    def __init__(
        self, cluster, bus: MemoryBus, *, identity: str = "w", is_allowed: bool = False, looks_with=None
    ) -> None:
        self.clock = TickingClock()
        self.process = Process(
            name="watcher", metrics=RecordingMeter(), settings=Settings(identity=identity), clock=self.clock
        )
        self.warnings: list[str] = []
        self.leadership = None
        self._cluster, self._bus = cluster, bus
        self._others = OtherSchedulers(
            looks_with or cluster.client,
            [LeaseName(namespace="kube-system", name=NAME)],
            is_allowed=is_allowed,
            clock=self.clock,
            warn=self.warnings.append,
        )

    @property
    def leads(self) -> bool:
        return self.leadership is not None and not self.leadership.expired()

    @property
    def sentence(self) -> str:
        return self.process.health.condition("leadership").sentence

    async def run(self) -> None:
        while not self.process.stopping.is_set():
            session = await self._bus.connect(name="w")
            how = {"session": session, "client": self._cluster.client, "process": self.process}
            try:
                async with lead(role="watcher", others=self._others, **how) as self.leadership:
                    await self.leadership.lost.wait()
            except NotLeadingError:
                pass
            finally:
                await session.close()


@pytest.fixture
async def started(simulated_cluster):
    tasks, bus = [], MemoryBus()
    bus.apply()

    def start(**how) -> Watcher:
        watcher = Watcher(simulated_cluster, bus, **how)
        tasks.append(asyncio.create_task(watcher.run()))
        return watcher

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def other(simulated_cluster) -> OtherScheduler:
    return OtherScheduler(simulated_cluster.api)


async def test_berth_does_not_lead_beside_a_scheduler_that_lives(started, other):
    await other.starts()
    watcher = started()
    for _ in range(8):
        await watcher.clock.run(4)
        await other.renews()
    assert not watcher.leads
    assert not watcher.process.health.is_ready
    assert "'kube_1' holds the Lease 'kube-system/kube-scheduler'" in watcher.sentence
    assert "--allow-other-scheduler" in watcher.sentence


async def test_berth_leads_as_soon_as_that_scheduler_has_released_its_lease(started, other):
    await other.starts()
    watcher = started()
    await watcher.clock.run(4)
    await other.is_stopped()
    assert await watcher.clock.run_until(lambda: watcher.leads) <= 4


async def test_a_lease_that_was_not_released_holds_berth_up_for_its_duration(started, other):
    await other.starts()
    watcher = started()
    await watcher.clock.run(4)
    assert "waiting up to 15 s to see whether 'kube_1' still renews" in watcher.sentence
    assert DURATION - 4 <= await watcher.clock.run_until(lambda: watcher.leads) <= DURATION


async def test_a_leader_steps_down_when_that_scheduler_starts_and_comes_back_when_it_ends(started, other):
    watcher = started()
    await watcher.clock.run_until(lambda: watcher.leads)
    leadership = watcher.leadership
    await other.starts()
    assert await watcher.clock.run_until(leadership.lost.is_set) <= 6
    assert "'kube_1' holds the Lease" in leadership.reason
    await watcher.clock.run(4)
    assert not watcher.leads
    assert not watcher.process.health.is_ready
    await other.is_stopped()
    await watcher.clock.run_until(lambda: watcher.leads)
    assert watcher.leadership.number == 2


async def test_a_standby_is_not_ready_either(started, other):
    leader = started(identity="first")
    await leader.clock.run_until(lambda: leader.leads)
    standby = started(identity="second")
    await standby.clock.run_until(lambda: "standing by" in standby.sentence)
    await other.starts()
    await standby.clock.run_until(lambda: "another scheduler of the same pods leads" in standby.sentence)
    assert not standby.process.health.is_ready


async def test_where_it_is_allowed_berth_leads_and_warns_once(started, other):
    await other.starts()
    watcher = started(is_allowed=True)
    assert await watcher.clock.run_until(lambda: watcher.leads) <= 2
    for _ in range(4):
        await watcher.clock.run(5)
        await other.renews()
    assert watcher.leads
    assert watcher.warnings == [
        "'kube_1' holds the Lease 'kube-system/kube-scheduler': it binds the same pods as berth"
    ]


class Answers:
    """A client for the look alone; its answers are the test's."""

    def __init__(self, answer: Callable[[], Response]) -> None:
        self._answer = answer

    async def call(self, *_: object, **__: object) -> Response:
        return self._answer()


async def test_without_the_right_to_look_berth_says_so_once_and_leads(started):
    denied = (
        'leases "kube-scheduler" is forbidden: User "w" cannot get resource "leases" in API group'
        ' "coordination.k8s.io" in the namespace "kube-system"'
    )
    body = msgspec.json.encode({"message": denied, "code": 403, "details": {"name": NAME}})
    watcher = started(looks_with=Answers(lambda: Response(status=403, body=body)))
    await watcher.clock.run_until(lambda: watcher.leads)
    await watcher.clock.run(20)
    assert watcher.leads
    (sentence,) = watcher.warnings
    assert sentence.startswith("cannot see whether another scheduler has the same pods: reading lease")
    assert sentence.endswith('resourceNames: ["kube-scheduler"] (docs/security.md#rights-in-the-cluster)')


async def test_a_lease_that_nobody_renews_ends_no_leadership(started):
    """Seen first by a leader that was not allowed to look before: its holder may have ended without a word."""
    spec = {"holderIdentity": "kube_1", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:01.000000Z"}
    lease = Response(status=200, body=msgspec.json.encode({"metadata": {"name": NAME}, "spec": spec}))
    denied = Response(status=403, body=b"{}")
    answers = [denied] * 4
    watcher = started(looks_with=Answers(lambda: answers.pop() if answers else lease))
    await watcher.clock.run_until(lambda: watcher.leads)
    leadership = watcher.leadership
    assert await watcher.clock.run_until(lambda: not answers) <= 20
    await watcher.clock.run(12)
    assert watcher.leadership is leadership
    assert watcher.leads


async def test_a_leader_goes_on_while_its_look_is_not_answered(started):
    answers = [Response(status=404, body=b"{}")] * 2

    def answer() -> Response:
        if not answers:
            raise ApiUnreachableError("no answer")
        return answers.pop()

    watcher = started(looks_with=Answers(answer))
    await watcher.clock.run_until(lambda: watcher.leads)
    await watcher.clock.run(20)
    assert watcher.leads
    assert not answers
