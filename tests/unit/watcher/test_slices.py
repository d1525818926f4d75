"""Long work on waiting pods is done in slices and no pod is lost; the order of pods requeued at once."""

from __future__ import annotations

import dataclasses
from itertools import chain, repeat

import msgspec

from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, FilterPlugin
from berth.framework.status import SUCCESS, Status
from berth.messages.attempts import Outcome, Positions
from berth_watcher import core
from berth_watcher.events import BucketEntryRead, StreamsRead
from berth_watcher.queue import requeue
from berth_watcher.settings import AttemptSettings
from harness.builders.profiles import default_profile
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

FIT = ["NodeResourcesFit"]


class Recorder(FilterPlugin, EnqueueExtensions):
    """Its hint says no, and records what it was asked about."""

    name = "Recorder"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    def filter(self, state, pod, node) -> Status:
        return SUCCESS

    def events(self):
        return (EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE), self._record),)

    def _record(self, pod, old, new) -> bool:
        self.asked.append((pod.metadata.name, cpu_of(old), cpu_of(new)))
        return False


def cpu_of(node) -> str:
    return node.status.allocatable["cpu"] if node is not None else ""


def recording(*names: str) -> tuple[WatcherUnderTest, Recorder]:
    """Pods that the recorder rejected, and a node."""
    recorder = Recorder()
    profiles = {"berth": dataclasses.replace(default_profile(), filters=(recorder,))}
    watcher = WatcherUnderTest(profiles=profiles).lead(a_node("n1", cpu="1"), *map(a_pod, names))
    for name in names:
        rejected(watcher, name, "Recorder")
    return watcher, recorder


def rejected(watcher: WatcherUnderTest, name: str, plugin: str) -> None:
    """The plugin rejected the pod on all that the mirror has."""
    seen = Positions(cluster=watcher.sequence)
    watcher.decide(name, Outcome.UNSCHEDULABLE, blockers=[plugin], positions=seen)


def stages(watcher: WatcherUnderTest, pods: int) -> list[str]:
    return [watcher.stage(f"p{n}") for n in range(pods)]


def test_pods_that_wake_at_one_event_are_moved_in_slices_and_none_is_lost():
    pods = 40
    settings = AttemptSettings(window_floor=pods)
    watcher = WatcherUnderTest(settings=settings).lead(*(a_pod(f"p{n}") for n in range(pods)))
    for n in range(pods):
        watcher.decide(f"p{n}", Outcome.UNSCHEDULABLE, blockers=FIT)
    turns = chain([True] * 10, repeat(False))
    watcher.may_continue = lambda: next(turns)

    watcher.show(a_node("n1"))

    assert 1 <= pods - stages(watcher, pods).count("unschedulable") < pods
    assert watcher.core.due() == watcher.now
    for _ in range(pods + 2):
        watcher.advance(0)
    assert "unschedulable" not in stages(watcher, pods)
    assert watcher.core.due() > watcher.now


def test_pod_that_began_to_wait_after_an_event_is_not_woken_by_it():
    watcher = WatcherUnderTest().lead(a_pod("early"), a_pod("early2"), a_pod("late"))
    watcher.decide("early", Outcome.UNSCHEDULABLE, blockers=FIT)
    watcher.decide("early2", Outcome.UNSCHEDULABLE, blockers=["TaintToleration"])
    watcher.may_continue = lambda: False
    watcher.show(a_node("n1"))

    seen = watcher.sequence
    watcher.decide("late", Outcome.UNSCHEDULABLE, blockers=FIT, positions=Positions(cluster=seen))
    for _ in range(10):
        watcher.advance(0)

    assert [watcher.stage(name) for name in ("early", "early2", "late")] == ["in flight", "in flight", "unschedulable"]


def test_updates_of_a_node_that_wait_become_one():
    watcher, recorder = recording("p0")
    updates = [a_node("n1", cpu=cpu, version=int(cpu)) for cpu in ("2", "3", "5")]

    watcher.show(*updates, a_node("n2", cpu="7"))

    assert recorder.asked == [("p0", "1", "5"), ("p0", "", "7")]


def test_updates_of_a_node_are_asked_about_apart_when_a_pod_began_to_wait_between_them():
    watcher, recorder = recording("p0", "p1")
    watcher.show(a_pod("p1", labels={"new": "label"}, version=2))
    watcher.advance(20)
    watcher.send(BucketEntryRead(entry=watcher.put("pod.unknown", None)))
    seen = Positions(cluster=watcher.sequence)
    late = watcher.decision("p1", Outcome.UNSCHEDULABLE, blockers=["Recorder"], positions=seen)
    first, second = (a_node("n1", cpu=cpu, version=int(cpu)) for cpu in ("2", "3"))

    watcher.send(*watcher.upserts(first), late, *watcher.upserts(second))

    assert ("p0", "1", "2") in recorder.asked
    assert ("p1", "2", "3") in recorder.asked


def test_event_wakes_every_pod_when_more_events_wait_than_are_remembered(monkeypatch):
    monkeypatch.setattr(requeue, "MAX_EVENTS", 5)
    watcher, recorder = recording("p0", "p1")
    watcher.may_continue = lambda: False

    watcher.show(*(a_node(f"new-{n}") for n in range(20)))
    for _ in range(60):
        watcher.advance(0)

    assert watcher.stage("p0") == watcher.stage("p1") == "in flight"
    assert len(recorder.asked) < 10


def test_namespaces_take_turns_among_equal_pods_that_wake_at_the_same_event():
    def of(namespace: str, name: str, **more):
        pod = a_pod(name, **more)
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace=namespace))

    many = [of("many", f"many-{n}") for n in range(4)]
    few = [of("few", f"few-{n}") for n in range(2)]
    urgent = of("many", "urgent", priority=9)
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=10)).lead(*many, *few, urgent)
    for pod in (*many, *few, urgent):
        watcher.now += 0.001
        watcher.decide(pod.metadata.name, Outcome.UNSCHEDULABLE, blockers=FIT)
    watcher.now += 20
    watcher.published.clear()

    watcher.show(a_node("n1"))
    watcher.decide("urgent", Outcome.BOUND)

    assert watcher.pods_published == ["urgent", "many-0", "few-0", "many-1", "few-1", "many-2", "many-3"]


def test_term_takes_its_pods_in_step_by_step_and_continues_them_in_slices(monkeypatch):
    pods = 40
    monkeypatch.setattr(core, "OBJECTS_IN_A_STEP", 10)
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=pods))
    watcher.list_objects(*(a_pod(f"p{n}") for n in range(pods)))
    watcher.take_over()
    assert watcher.steps == pods // 10 + 1
    watcher.read_bucket()
    watcher.may_continue = lambda: False
    watcher.send(StreamsRead())
    for left in range(pods - 1, 1, -1):
        assert (watcher.core.is_queue_running, watcher.published) == (False, [])
        assert stages(watcher, pods).count("recovering") == left
        assert watcher.core.due() == watcher.now
        watcher.advance(0)
    for _ in range(2):
        watcher.advance(0)
    assert watcher.core.is_queue_running
    assert len(watcher.published) == pods
