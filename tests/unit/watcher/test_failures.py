"""The watcher writes which workloads failed where, and requeues the pods that NodeFailures has kept out."""

from datetime import timedelta

import msgspec

from berth.messages.attempts import Outcome, Positions
from berth.messages.encoding import encode
from berth.messages.livedata import POD_FAILURES, FailuresOnNode
from berth.plugins.additional.nodefailures import FACTORY, NodeFailuresArgs
from berth_watcher.events import FactNotWritten, LiveDataComplete, WriteFailures
from harness.builders.owners import failed, owned_by
from harness.builders.profiles import profile_of
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_pod

ARGS = NodeFailuresArgs(remember=timedelta(minutes=5), back_off=timedelta(minutes=1))


def a_watcher(args: NodeFailuresArgs | None = ARGS) -> WatcherUnderTest:
    return WatcherUnderTest(profiles=None if args is None else {"berth": profile_of(FACTORY.build(args))})


def web(name: str = "web-1", **more):
    return owned_by("web", a_pod(name, **more))


def refused(name: str = "web-1", *, version: int = 1):
    return failed(web(name, version=version), "n1", EPOCH.timestamp())


def written(watcher: WatcherUnderTest) -> list[FailuresOnNode | None]:
    return [effect.fact for effect in watcher.of(WriteFailures)]


def complete(watcher: WatcherUnderTest) -> WatcherUnderTest:
    watcher.send(LiveDataComplete(bucket="facts"))
    return watcher


def test_a_failure_is_written_before_the_pod_that_replaces_the_failed_one_is_published():
    watcher = complete(a_watcher().lead(web()))
    effects = watcher.core.handle(watcher.upserts(refused(version=2), web("web-2", version=3)), watcher.now)
    kinds = [type(effect).__name__ for effect in effects]
    assert kinds.index("WriteFailures") < kinds.index("PublishPending")
    [fact] = [effect.fact for effect in effects if isinstance(effect, WriteFailures)]
    assert fact.workloads["uid-of-web"].pod == "default/web-1"


def test_nothing_is_written_unless_a_profile_asks():
    watcher = complete(a_watcher(None).lead(refused()))
    watcher.advance(100)
    assert written(watcher) == []
    assert watcher.core.live_buckets() == []


def test_a_profile_that_only_scores_has_failures_written_too():
    watcher = a_watcher(NodeFailuresArgs()).lead(refused())
    assert watcher.core.live_buckets() == ["facts"]
    assert len(written(complete(watcher))) == 1


def test_a_new_leader_keeps_the_failures_of_deleted_pods():
    former = complete(a_watcher().lead(refused()))
    [fact] = written(former)
    watcher = a_watcher().lead()
    watcher.put_live_data("facts", f"{POD_FAILURES.name}.n1", encode(fact), sequence=1)
    watcher.put_live_data("facts", f"{POD_FAILURES.name}.n2", b"nonsense", sequence=2)
    watcher.put_live_data("facts", f"{POD_FAILURES.name}.n3", None, sequence=3)
    assert written(watcher) == []
    assert [each.workloads for each in written(complete(watcher))] == [fact.workloads]


def test_a_fact_that_nats_did_not_store_is_written_again():
    watcher = complete(a_watcher().lead(refused()))
    watcher.send(FactNotWritten(node="n1"))
    watcher.advance(5)
    assert len(written(watcher)) == 2


def test_a_pod_that_was_kept_out_is_tried_again_when_the_back_off_ends():
    watcher = complete(a_watcher().lead(web("web-2")))
    watcher.show(refused())
    sequence = 1
    watcher.put_live_data("facts", f"{POD_FAILURES.name}.n1", encode(written(watcher)[-1]), sequence=sequence)
    positions = Positions(cluster=watcher.sequence, facts=sequence)
    watcher.decide("web-2", Outcome.UNSCHEDULABLE, positions=positions, blockers=["NodeFailures"])
    watcher.advance(30)
    assert watcher.stage("web-2") == "unschedulable"

    due = watcher.core.due()
    assert due is not None
    watcher.advance(due - watcher.now)  # 60 s after the failure
    last = written(watcher)[-1]
    assert last.written_at - last.workloads["uid-of-web"].at == timedelta(minutes=1)
    watcher.put_live_data("facts", f"{POD_FAILURES.name}.n1", encode(last), sequence=sequence + 1)

    assert watcher.attempt_of("web-2") == "uid-web-2.7.2"


def test_the_last_write_removes_the_fact():
    watcher = complete(a_watcher().lead(refused()))
    while (due := watcher.core.due()) is not None and watcher.now < 2000:
        watcher.advance(max(due - watcher.now, 0.001))
    facts = written(watcher)
    assert facts[-1] is None
    assert len(facts) == 5
    assert msgspec.json.decode(encode(facts[0]))["workloads"]["uid-of-web"]["reason"] == "OutOfcpu"
