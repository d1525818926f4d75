"""Events are gathered while pods wait for a slot of the window, and handled at once otherwise."""

from berth_watcher.core import GATHER_SECONDS
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_pod


def test_events_are_gathered_only_while_pods_wait_for_a_slot():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(a_pod("first"))
    assert watcher.core.gather_seconds() == 0
    watcher.show(a_pod("second"))
    assert watcher.core.gather_seconds() == GATHER_SECONDS


def test_events_of_a_takeover_are_not_gathered():
    watcher = WatcherUnderTest()
    watcher.list_objects(a_pod("web"))
    watcher.take_over()
    assert watcher.core.waiting
    assert watcher.core.gather_seconds() == 0
