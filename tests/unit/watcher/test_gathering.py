"""Events are gathered while pods wait for a slot of the window, and handled at once otherwise."""

from berth_watcher.service import GATHER_SECONDS, gather_seconds
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_pod


def test_events_are_gathered_only_while_pods_wait_for_a_slot():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(a_pod("first"))
    assert gather_seconds(watcher.core) == 0
    watcher.show(a_pod("second"))
    assert gather_seconds(watcher.core) == GATHER_SECONDS


def test_events_of_a_takeover_are_not_gathered():
    watcher = WatcherUnderTest()
    watcher.list_objects(a_pod("web"))
    watcher.take_over()
    assert watcher.core.waiting
    assert gather_seconds(watcher.core) == 0
