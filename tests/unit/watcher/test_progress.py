"""A stuck watcher differs from one whose pods wait for other services (docs/protocol.md, 3)."""

from berth_watcher.events import AttemptLookedUp, KeyWriteFailed
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod, attempt

ONE_SLOT = AttemptSettings(window_floor=1)


def test_pods_behind_a_full_window_wait_and_are_looked_at_by_look_ups():
    watcher = WatcherUnderTest(settings=ONE_SLOT).lead(a_pod("first"), a_pod("second"))
    assert watcher.core.waiting == 1
    for _ in range(6):
        before = watcher.core.progress
        watcher.advance(10)
        watcher.send(AttemptLookedUp(attempt=attempt("first", 7, 1), held_by="pending"))
        assert watcher.core.progress > before


def test_pods_behind_a_slot_that_no_pod_has_are_not_looked_at():
    watcher = WatcherUnderTest(settings=ONE_SLOT).lead()
    watcher.core._attempts.window.acquire("uid-nobody", "berth")
    watcher.show(a_pod("web"))
    before = watcher.core.progress
    for _ in range(6):
        watcher.advance(10)
    assert (watcher.core.waiting, watcher.core.progress) == (1, before)


def test_nothing_waits_when_all_pods_are_in_flight_or_unschedulable():
    watcher = WatcherUnderTest().lead(a_pod("web"), a_pod("gated", gates=("later",)))
    assert watcher.core.waiting == 0


def test_takeover_goes_on_by_reading_and_writing_the_mirror():
    watcher = WatcherUnderTest(hold_writes=True).lead(a_node("n1"), a_node("n2"), a_pod("web"))
    assert watcher.core.waiting == 1
    before = watcher.core.progress
    watcher.advance(60)
    assert watcher.core.progress == before

    watcher.answer_write("node.n1")

    assert watcher.core.progress > before


def test_bus_that_stores_nothing_is_no_standstill():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    watcher.hold_writes = True
    watcher.show(a_node("n2"))
    before = watcher.core.progress

    watcher.send(KeyWriteFailed(key="node.n2"))

    assert watcher.core.progress > before
