"""The configuration file's back-off reaches the pods."""

from datetime import timedelta

import msgspec

from berth.api.config.configuration import EVERY_NODE
from berth.api.config.load import load
from berth.api.messages import Outcome
from berth.plugins.presets import DEFAULT
from berth.plugins.registry import BUILT_IN
from berth.process.settings import Settings
from berth_watcher.settings import watcher_settings
from harness.worlds.watcher_world import WatcherUnderTest, a_pod

FILE = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def configuration(**more: object):
    return load(msgspec.json.encode({**FILE, **more}).decode(), known=BUILT_IN, preset=DEFAULT)


def test_back_off_begins_and_ends_with_the_seconds_of_the_file():
    read = configuration(podInitialBackoffSeconds=3, podMaxBackoffSeconds=7)
    assert (read.pod_initial_backoff, read.pod_max_backoff) == (timedelta(seconds=3), timedelta(seconds=7))
    world = WatcherUnderTest(settings=watcher_settings(Settings(), read).attempts).lead(a_pod("web"))
    waits = []
    for _ in range(3):
        world.decide("web", Outcome.ERROR)
        began = world.now
        while world.stage("web") == "backoff":
            world.advance(0.5)
        waits.append(world.now - began)
    assert waits == [3, 6, 7]


def test_without_a_word_about_it_back_off_is_one_second_to_ten_and_every_node_is_scored():
    read = configuration()
    back_off = watcher_settings(Settings(), read).attempts.requeue.back_off
    assert (back_off.initial_seconds, back_off.max_seconds) == (1, 10)
    assert read.percentage_of_nodes_to_score == EVERY_NODE
