"""The order of active pods: ranks, turns of namespaces within a rank, age within a namespace."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.pod import Pod
from berth.messages.attempts import Outcome, Positions
from berth_watcher.queue.schedulingqueue import FRONT, ActiveEntry, ActivePods
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_node, a_pod


class Active:
    """Active pods, by name. Those in ``gone`` have moved since."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.pods = ActivePods(lambda entry: entry.uid not in self.gone)
        self._added = 0

    def add(self, *names: str, rank: int = 0, front: bool = False) -> None:
        """``a3`` is the pod of namespace a whose age is third."""
        for name in names:
            self._added += 1
            entry = ActiveEntry(("n", (int(name[1:]),)), EPOCH, self._added, name)
            self.pods.add(("n", (rank,)), FRONT if front else name[0], entry)

    def take(self, number: int | None = None) -> list[str]:
        taken = []
        while self.pods.first() is not None and len(taken) != number:
            taken.append(self.pods.pop().uid)
        return taken


@pytest.fixture
def active() -> Active:
    return Active()


def test_namespaces_take_turns_and_the_oldest_of_each_goes_first(active):
    active.add("a3", "a1", "a2", "b1", "b2", "c1", "a4")
    assert active.take() == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_namespace_that_comes_later_waits_for_one_pod_of_each_other(active):
    active.add(*(f"a{number}" for number in range(1, 1000)))
    active.take(500)
    active.add("b1")
    assert active.take(2) == ["b1", "a501"]
    active.add("b2")
    assert active.take(3) == ["b2", "a502", "a503"]


def test_a_namespace_that_adds_one_pod_after_the_other_gets_its_share_and_no_more(active):
    active.add(*(f"a{number}" for number in range(1, 10)))
    taken = []
    for number in range(1, 9):
        active.add(f"b{number}")
        taken += active.take(1)
    assert [name[0] for name in taken] == ["a", "b"] * 4


def test_a_group_pays_a_turn_for_each_of_its_members(active):
    active.add("a1", *(f"b{number}" for number in range(1, 10)))
    active.add("a2")
    assert active.pods.pop(turns=5).uid == "a1"
    assert active.take() == ["b1", "b2", "b3", "b4", "b5", "a2", "b6", "b7", "b8", "b9"]


def test_a_namespace_that_has_paid_ahead_and_left_pays_when_it_comes_back(active):
    active.add("a1", *(f"b{number}" for number in range(1, 6)))
    active.pods.pop(turns=3)
    active.add("a2")
    assert active.take() == ["b1", "b2", "b3", "a2", "b4", "b5"]


def test_alone_a_namespace_waits_for_nobody_however_much_it_has_paid(active):
    active.add("a1", "a2")
    active.pods.pop(turns=1000)
    assert active.take() == ["a2"]


def test_a_higher_rank_goes_before_every_turn(active):
    active.add("a1", "b1", rank=5)
    active.add("a2", "a3", rank=-1)
    assert active.take() == ["a2", "a3", "a1", "b1"]


def test_the_front_of_a_rank_goes_before_its_turns_only(active):
    active.add("a1", "b1")
    active.add("a2", rank=-1)
    active.add("c3", "c2", front=True)
    assert active.take() == ["a2", "c2", "c3", "a1", "b1"]


def test_pods_that_have_moved_take_no_turn(active):
    active.add("a1", "a2", "b1", "c1", "c2")
    active.gone |= {"a1", "b1", "c1", "c2"}
    assert active.take() == ["a2"]
    assert len(active.pods) == 0
    active.add("b2")
    assert active.take() == ["b2"]


def test_compacting_drops_what_has_moved_and_keeps_the_order(active):
    active.add("a1", "b1", "a2", "c1", "c2")
    active.add("a5", front=True)
    active.gone |= {"a1", "b1", "c2"}
    active.pods.compact()
    assert len(active.pods) == 3
    assert active.take() == ["a5", "a2", "c1"]


def test_taking_where_there_is_none_is_an_error(active):
    active.add("a1")
    active.gone.add("a1")
    with pytest.raises(LookupError):
        active.pods.pop()


# The same in the watcher's core.


def of(namespace: str, pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace=namespace))


def watcher_with_full_window(pods: list[Pod]) -> WatcherUnderTest:
    return WatcherUnderTest(settings=AttemptSettings(window_floor=4)).lead(a_node("n1"), *pods)


def finish_one(watcher: WatcherUnderTest) -> None:
    """The binder decides the first pod in flight."""
    in_flight = [name for name in watcher.pods_published if watcher.stage(name) == "in flight"]
    watcher.decide(in_flight[0], Outcome.BOUND)


def test_new_pod_of_another_namespace_goes_next_beside_thousands_of_older_ones():
    backlog = [of("noisy", a_pod(f"noisy-{number}", age_seconds=60)) for number in range(2000)]
    watcher = watcher_with_full_window(backlog)

    watcher.show(of("quiet", a_pod("quiet", age_seconds=-60)))
    finish_one(watcher)

    assert watcher.pods_published[4:] == ["quiet"]


def test_one_event_that_wakes_thousands_of_one_namespace_does_not_hold_up_a_new_pod_of_another():
    watcher = watcher_with_full_window([])
    noisy = [of("noisy", a_pod(f"noisy-{number}", age_seconds=60)) for number in range(300)]
    for pod in noisy:
        watcher.show(pod)
        seen = Positions(cluster=watcher.sequence)
        watcher.decide(pod.metadata.name, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=seen)
    watcher.advance(15)
    published = len(watcher.published)

    watcher.show(a_node("n2"))
    assert len(watcher.published) == published + 4
    watcher.show(of("quiet", a_pod("quiet", age_seconds=-60)))
    finish_one(watcher)

    assert watcher.pods_published[-1] == "quiet"


def test_more_important_pod_of_the_same_namespace_goes_before_the_turn_of_another():
    watcher = watcher_with_full_window([of("noisy", a_pod(f"noisy-{number}", age_seconds=60)) for number in range(20)])
    watcher.show(of("quiet", a_pod("quiet", age_seconds=-60)), of("noisy", a_pod("important", priority=10)))
    finish_one(watcher)
    finish_one(watcher)
    assert watcher.pods_published[4:] == ["important", "quiet"]
