"""Leading by a Lease against API servers, real and simulated: one at a time, whatever becomes of the leader."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from berth.api.workloads import Lease
from berth.kube.errors import ApiRefusedError
from berth.leader.elector import Elector, Unelected
from berth.leader.heldlease import AnnotationConflictError, HeldLease, LeadershipLostError
from berth.leader.lease import (
    ANNOTATION_BUS_ID,
    ANNOTATION_TERM,
    LeaseConflictError,
    LeaseObject,
    write_annotations,
)
from berth.leader.onecluster import OtherBus, OtherBusWatch
from berth.settings.settings import LeaseSettings
from berth_sim.faults import Delay, Fail, LoseAnswer, Reject
from harness.plugins.fixtures_kube import Cluster

ENOUGH = 60.0
NAME = "berth-binder"
QUICK = LeaseSettings(
    duration=timedelta(seconds=2),
    renew_deadline=timedelta(seconds=1),
    retry_period=timedelta(seconds=0.2),
    clock_slack=timedelta(seconds=0.3),
)


PATIENT = replace(
    QUICK, duration=timedelta(seconds=20), renew_deadline=timedelta(seconds=15), retry_period=timedelta(seconds=5)
)


class MovableClock:
    """The loop's clock, which a test can put forward: a process that was paused without being paused."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _elector(cluster: Cluster, identity: str, clock: MovableClock | None = None) -> Elector:
    return Elector(cluster.client, cluster.api.namespace, NAME, identity, QUICK, clock)


def _lease(cluster: Cluster) -> LeaseObject:
    return LeaseObject(cluster.client, cluster.api.namespace, NAME)


async def _spec(cluster: Cluster) -> dict:
    return (await cluster.api.get(f"{cluster.api.leases}/{NAME}")).body["spec"]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not condition():  # noqa: ASYNC110 - of a watch
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _leading(elector: Elector) -> AsyncIterator[HeldLease]:
    async with asyncio.timeout(ENOUGH):
        block = elector.lead()
        leadership = await block.__aenter__()
    try:
        yield leadership
    finally:
        await block.__aexit__(None, None, None)


async def _lost(leadership: HeldLease) -> float:
    """Wait until it is lost; returns how long that took."""
    began = time.monotonic()
    async with asyncio.timeout(ENOUGH):
        await leadership.lost.wait()
    return time.monotonic() - began


async def test_first_one_leads_and_writes_a_record_that_people_can_read(cluster: Cluster):
    async with _leading(_elector(cluster, "host_1")) as leadership:
        spec = await _spec(cluster)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("host_1", 2, 1)
        assert spec["renewTime"].endswith("Z")
        assert not leadership.expired()


async def test_leader_goes_on_leading_and_the_other_waits(cluster: Cluster):
    second = _elector(cluster, "second")
    async with _leading(_elector(cluster, "first")) as leadership:
        waiting = asyncio.create_task(second.lead().__aenter__())
        await asyncio.sleep(3)  # longer than the duration: it was renewed
        assert not waiting.done()
        assert not leadership.expired()
        assert second.status.holder == "first"
        waiting.cancel()


async def test_lease_that_is_given_back_is_taken_within_a_retry_period(cluster: Cluster):
    second = _elector(cluster, "second")
    async with _leading(_elector(cluster, "first")) as leadership:
        block = second.lead()
        waiting = asyncio.create_task(block.__aenter__())
        await asyncio.sleep(0.3)
    assert leadership.expired()
    released = time.monotonic()
    await asyncio.wait_for(waiting, ENOUGH)
    assert time.monotonic() - released < QUICK.duration.total_seconds()  # after which it would be taken anyway
    assert (await _spec(cluster))["holderIdentity"] == "second"
    await block.__aexit__(None, None, None)
    assert (await _spec(cluster)).get("holderIdentity", "") == ""


async def test_lease_that_is_given_back_is_taken_at_once(cluster: Cluster):
    second = Elector(cluster.client, cluster.api.namespace, NAME, "second", PATIENT)
    async with _leading(_elector(cluster, "first")):
        block = second.lead()
        waiting = asyncio.create_task(block.__aenter__())
        await asyncio.sleep(0.5)
    released = time.monotonic()
    await asyncio.wait_for(waiting, ENOUGH)
    assert time.monotonic() - released < PATIENT.retry_period.total_seconds() / 2
    await block.__aexit__(None, None, None)


async def test_lease_that_may_not_be_watched_is_taken_within_a_retry_period(simulated_cluster: Cluster):
    simulated = simulated_cluster.simulated
    assert simulated is not None
    simulated.faults.inject(Reject(verb="watch", resource="leases", count=None))
    second = _elector(simulated_cluster, "second")
    async with _leading(_elector(simulated_cluster, "first")):
        block = second.lead()
        waiting = asyncio.create_task(block.__aenter__())
        await asyncio.sleep(0.5)
    await asyncio.wait_for(waiting, ENOUGH)
    await block.__aexit__(None, None, None)


async def test_watch_shows_each_change_of_the_lease_and_no_deletion(cluster: Cluster):
    lease, seen = _lease(cluster), []

    def note(change: Lease) -> None:
        seen.append((change.spec.holder_identity or "", change.spec.lease_transitions))

    async def follow() -> None:
        async with aclosing(lease.changes()) as changes:
            async for change in changes:
                note(change)

    await lease.create({"holderIdentity": "a", "leaseTransitions": 1}, {})
    following = asyncio.create_task(follow())
    await _until(lambda: len(seen) == 1)
    await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"spec": {"holderIdentity": "", "leaseTransitions": 2}})
    await cluster.api.delete(f"{cluster.api.leases}/{NAME}")
    await lease.create({"holderIdentity": "b", "leaseTransitions": 3}, {})
    await _until(lambda: len(seen) == 3)
    assert seen == [("a", 1), ("", 2), ("b", 3)]
    following.cancel()


async def test_lease_that_was_renewed_for_the_last_time_is_taken_when_it_has_run_out(cluster: Cluster):
    patient = replace(
        QUICK, duration=timedelta(seconds=3), renew_deadline=timedelta(seconds=2.4), retry_period=timedelta(seconds=1.9)
    )
    second = Elector(cluster.client, cluster.api.namespace, NAME, "second", patient)
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 3, "leaseTransitions": 1}
    await _lease(cluster).create(spec, {})
    waiting = asyncio.create_task(second.lead().__aenter__())
    await asyncio.sleep(0.5)
    renewed = time.monotonic()
    await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"spec": {"leaseTransitions": 2}})
    leadership = await asyncio.wait_for(waiting, ENOUGH)
    assert 3 <= time.monotonic() - renewed < 4.5  # reads come 1.9 s apart
    assert not leadership.expired()
    await leadership.release()


async def test_block_that_ends_in_an_exception_gives_the_lease_back(cluster: Cluster):
    with pytest.raises(ZeroDivisionError):
        async with _elector(cluster, "first").lead():
            raise ZeroDivisionError
    assert (await _spec(cluster)).get("holderIdentity", "") == ""


async def test_only_one_of_many_leads_at_any_time(cluster: Cluster):
    leading, most, turns = 0, 0, []

    async def take_a_turn(number: int) -> None:
        nonlocal leading, most
        async with _elector(cluster, f"elector-{number}").lead() as leadership:
            leading += 1
            most = max(most, leading)
            turns.append(number)
            await asyncio.sleep(0.1)
            assert not leadership.expired()
            leading -= 1

    async with asyncio.timeout(30):
        await asyncio.gather(*(take_a_turn(number) for number in range(6)))
    assert (most, sorted(turns)) == (1, list(range(6)))


async def test_annotations_of_others_stay_and_own_ones_outlive_the_leader(cluster: Cluster):
    async with _leading(_elector(cluster, "first")) as leadership:
        await leadership.annotate({ANNOTATION_TERM: "7"})
        await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"metadata": {"annotations": {"a": "b"}}})
        await leadership.annotate({ANNOTATION_BUS_ID: "bus-1"})
        assert leadership.annotations == {ANNOTATION_TERM: "7", ANNOTATION_BUS_ID: "bus-1", "a": "b"}
    async with _elector(cluster, "second").lead({ANNOTATION_BUS_ID: "bus-2"}) as leadership:
        assert leadership.annotations == {ANNOTATION_TERM: "7", ANNOTATION_BUS_ID: "bus-2", "a": "b"}


async def test_term_that_somebody_else_has_raised_is_not_overwritten(cluster: Cluster):
    async with _leading(_elector(cluster, "first")) as leadership:
        await leadership.annotate({ANNOTATION_TERM: "7"})
        await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"metadata": {"annotations": {ANNOTATION_TERM: "9"}}})
        with pytest.raises(AnnotationConflictError, match="decided on '7', but it is '9' now"):
            await leadership.annotate({ANNOTATION_TERM: "8"})
        await leadership.annotate({ANNOTATION_TERM: "10"})
        assert leadership.annotations[ANNOTATION_TERM] == "10"


async def test_annotation_of_somebody_else_is_seen_within_a_retry_period(cluster: Cluster):
    async with _leading(_elector(cluster, "first")) as leadership:
        await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"metadata": {"annotations": {ANNOTATION_TERM: "9"}}})
        await _until(lambda: leadership.annotations.get(ANNOTATION_TERM) == "9")
        assert not leadership.expired()


@pytest.mark.parametrize("form", ["taken", "deleted"])
async def test_leader_that_lost_its_lease_stops_at_its_next_renewal(cluster: Cluster, form: str):
    async with _leading(_elector(cluster, "first")) as leadership:
        if form == "taken":
            await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"spec": {"holderIdentity": "thief"}})
        else:
            await cluster.api.delete(f"{cluster.api.leases}/{NAME}")
        assert await _lost(leadership) < 1
        assert leadership.expired()
        with pytest.raises(LeadershipLostError):
            await leadership.annotate({ANNOTATION_TERM: "8"})
    if form == "taken":
        assert (await _spec(cluster))["holderIdentity"] == "thief"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fail(verb="update", resource="leases", count=None), id="503"),
        pytest.param(Reject(verb="update", resource="leases", count=None), id="403"),
        pytest.param(Delay(verb="update", resource="leases", count=None, seconds=30), id="no answer"),
    ],
)
async def test_leader_that_cannot_renew_stops_before_another_may_start(simulated_cluster: Cluster, fault: Fail):
    async with _leading(_elector(simulated_cluster, "first")) as leadership:
        seen = time.monotonic()
        simulated_cluster.simulated.faults.inject(fault)
        await _lost(leadership)
        # the last renewal was at most a retry period (0.2 s) before; the deadline is 1 s, the duration 2 s
        assert time.monotonic() - seen < 1.8
        assert leadership.expired()
        simulated_cluster.simulated.faults._armed.clear()


async def test_leader_survives_an_outage_shorter_than_the_deadline(simulated_cluster: Cluster):
    async with _leading(_elector(simulated_cluster, "first")) as leadership:
        simulated_cluster.simulated.faults.inject(Fail(verb="update", resource="leases", count=2))
        await asyncio.sleep(1.5)
        assert not leadership.expired()


async def test_renewal_whose_answer_was_lost_is_found_to_be_ones_own(simulated_cluster: Cluster):
    async with _leading(_elector(simulated_cluster, "first")) as leadership:
        simulated_cluster.simulated.faults.inject(LoseAnswer(verb="update", resource="leases"))
        await asyncio.sleep(1.5)
        assert not leadership.expired()


async def test_lease_taken_without_hearing_the_answer_is_led_all_the_same(simulated_cluster: Cluster):
    simulated_cluster.simulated.faults.inject(LoseAnswer(verb="create", resource="leases"))
    async with _leading(_elector(simulated_cluster, "first")) as leadership:
        assert not leadership.expired()
        assert (await _spec(simulated_cluster))["leaseTransitions"] == 1


async def test_dead_leader_is_followed_after_its_duration_and_not_before(cluster: Cluster):
    """The record says 2001 or 2999: only its standing still counts."""
    await _lease(cluster).create(
        {
            "holderIdentity": "dead",
            "leaseDurationSeconds": 2,
            "renewTime": "2001-01-01T00:00:00.000000Z",
            "leaseTransitions": 4,
        },
        {},
    )
    began = time.monotonic()
    async with _leading(_elector(cluster, "heir")):
        assert time.monotonic() - began >= 2
        assert (await _spec(cluster))["leaseTransitions"] == 5


async def test_paused_leader_is_expired_before_any_task_runs(cluster: Cluster):
    clock = MovableClock()
    async with _leading(_elector(cluster, "first", clock)) as leadership:
        clock.ahead = 1.1
        assert leadership.expired()
        assert not leadership.lost.is_set()  # no task has run yet
        with pytest.raises(LeadershipLostError, match=r"not renewed within 1 s"):
            await leadership.annotate({ANNOTATION_TERM: "8"})
        clock.ahead = 0
        assert leadership.expired()  # once over it stays over
        assert await _lost(leadership) < 1


LEADER = """
import asyncio, sys, time
from datetime import timedelta
from berth.kube.client import KubeClient
from berth.leader.lease import LeaseSettings
from berth.kube.errors import ApiRefusedError
from berth.leader.elector import Elector

async def main(kubeconfig, namespace, name):
    settings = LeaseSettings(duration=timedelta(seconds=2), renew_deadline=timedelta(seconds=1),
                             retry_period=timedelta(seconds=0.2), clock_slack=timedelta(seconds=0.3))
    async with await KubeClient.connect(kubeconfig) as client:
        async with Elector(client, namespace, name, "paused", settings).lead() as leadership:
            print("leads", flush=True)
            while True:
                looked_at = time.monotonic()
                if leadership.expired():
                    print("expired", flush=True)
                    return
                print(looked_at, flush=True)
                await asyncio.sleep(0.005)

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def _leading_process(cluster: Cluster) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = ("-c", LEADER, str(cluster.kubeconfig_path), cluster.api.namespace, NAME)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(ENOUGH):
            assert await process.stdout.readline() == b"leads\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_killed_leader_is_followed(cluster: Cluster):
    async with _leading_process(cluster) as process:
        process.kill()
        killed = time.monotonic()
        async with _leading(_elector(cluster, "heir")):
            assert time.monotonic() - killed >= 1.5  # its last renewal was at most 0.2 s before; the duration is 2 s


async def test_paused_process_never_thinks_that_it_leads_once_another_does(cluster: Cluster):
    async with _leading_process(cluster) as process:
        led_at = float(await process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        async with _leading(_elector(cluster, "heir")) as leadership:
            took_over = time.monotonic()
            os.kill(process.pid, signal.SIGCONT)
            async with asyncio.timeout(ENOUGH):
                said = (await process.stdout.read()).split()
            assert said[-1] == b"expired"
            assert max([led_at, *map(float, said[:-1])]) < took_over
            assert not leadership.expired()


async def test_without_an_election_the_lease_carries_annotations_and_no_holder(cluster: Cluster):
    async with Unelected(cluster.client, cluster.api.namespace, NAME).lead({ANNOTATION_BUS_ID: "bus-1"}) as leadership:
        await leadership.annotate({ANNOTATION_TERM: "7"})
        lease = (await cluster.api.get(f"{cluster.api.leases}/{NAME}")).body
        assert lease["metadata"]["annotations"] == {ANNOTATION_TERM: "7", ANNOTATION_BUS_ID: "bus-1"}
        assert lease["spec"].get("holderIdentity", "") == ""
        assert not leadership.expired()


async def test_unelected_leader_takes_the_holder_out_and_sees_a_higher_term(cluster: Cluster):
    await _lease(cluster).create({"holderIdentity": "dead", "leaseDurationSeconds": 15}, {ANNOTATION_TERM: "3"})
    async with Unelected(cluster.client, cluster.api.namespace, NAME).lead() as leadership:
        assert (await _spec(cluster)).get("holderIdentity", "") == ""
        assert leadership.annotations == {ANNOTATION_TERM: "3"}
        await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"metadata": {"annotations": {ANNOTATION_TERM: "9"}}})
        with pytest.raises(AnnotationConflictError):
            await leadership.annotate({ANNOTATION_TERM: "4"})
        assert leadership.annotations == {ANNOTATION_TERM: "9"}


@pytest.mark.parametrize("is_elected", [True, False])
async def test_leader_whose_leading_is_over_writes_no_annotation(cluster: Cluster, *, is_elected: bool):
    unelected = Unelected(cluster.client, cluster.api.namespace, NAME)
    async with _elector(cluster, "first").lead() if is_elected else unelected.lead() as leadership:
        pass
    with pytest.raises(LeadershipLostError):
        await leadership.annotate({ANNOTATION_TERM: "4"})
    assert ANNOTATION_TERM not in leadership.annotations


async def test_annotations_written_on_an_outdated_lease_are_refused(cluster: Cluster):
    lease = _lease(cluster)
    read = await write_annotations(lease, None, {"a": "1"})
    await write_annotations(lease, read, {"a": "2"})
    with pytest.raises(LeaseConflictError):
        await write_annotations(lease, read, {"a": "3"})
    with pytest.raises(LeaseConflictError):
        await write_annotations(lease, None, {"a": "3"})


async def test_live_lease_on_another_bus_is_found_until_it_expires(cluster: Cluster):
    clock = MovableClock()
    watch = OtherBusWatch(cluster.client, cluster.api.namespace, ["berth-watcher", NAME], identity="me", clock=clock)
    assert await watch.find("bus-1") is None
    await _lease(cluster).create({"holderIdentity": "they", "leaseDurationSeconds": 15}, {ANNOTATION_BUS_ID: "bus-2"})
    other = await watch.find("bus-1")
    assert other == OtherBus(lease=NAME, holder="they", bus_id="bus-2")
    assert str(other) == "lease 'berth-binder' is held by 'they' on the bus 'bus-2'"
    assert await watch.find("bus-2") is None
    clock.ahead = 14
    assert await watch.find("bus-1") is not None
    await cluster.api.patch(f"{cluster.api.leases}/{NAME}", {"spec": {"leaseTransitions": 1}})
    clock.ahead = 28
    assert await watch.find("bus-1") is not None
    clock.ahead = 44
    assert await watch.find("bus-1") is None


@pytest.mark.parametrize("holder", ["", "me"])
async def test_lease_of_nobody_or_of_oneself_is_no_other_berth(cluster: Cluster, holder: str):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15} if holder else {}
    await _lease(cluster).create(spec, {ANNOTATION_BUS_ID: "bus-2"})
    watch = OtherBusWatch(cluster.client, cluster.api.namespace, [NAME], identity="me")
    assert await watch.find("bus-1") is None


async def test_elector_says_why_it_does_not_lead(simulated_cluster: Cluster):
    simulated_cluster.simulated.faults.inject(Reject(verb="get", resource="leases", count=None, user="berth"))
    elector = _elector(simulated_cluster, "first")
    waiting = asyncio.create_task(elector.lead().__aenter__())
    await _until(lambda: "'berth' may not get leases" in (elector.status.last_error or ""))
    waiting.cancel()


def test_settings_that_would_let_two_lead_are_refused(simulated_cluster: Cluster):
    settings = LeaseSettings(renew_deadline=timedelta(seconds=15))
    with pytest.raises(
        ValueError, match=r"leaderElection\.renewDeadline: want less than leaderElection\.leaseDuration"
    ):
        Elector(simulated_cluster.client, "default", NAME, "me", settings)


async def test_namespace_that_is_missing_is_created(cluster: Cluster):
    name = f"berth-{os.urandom(4).hex()}"
    created = await LeaseObject(cluster.client, name, NAME).create({"holderIdentity": "a"}, {})
    assert created.lease.spec.holder_identity == "a"
    assert (await cluster.api.get(f"/api/v1/namespaces/{name}")).code == 200


async def test_namespace_that_may_not_be_created_is_named_with_what_to_do(simulated_cluster: Cluster):
    simulated_cluster.simulated.faults.inject(Fail(verb="create", resource="namespaces", status=403))
    with pytest.raises(ApiRefusedError, match="`kubectl create namespace none`"):
        await LeaseObject(simulated_cluster.client, "none", NAME).create({}, {})
