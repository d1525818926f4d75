"""The back-off of the configuration file applies to the pods."""

from datetime import timedelta

import msgspec

from berth.api.config.configuration import EVERY_NODE
from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.messages.attempts import Outcome
from berth.plugins.registry import BUILT_IN
from berth.settings.settings import Settings
from berth_watcher.settings import watcher_settings
from harness.worlds.watcher_world import WatcherUnderTest, a_pod

FILE = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def configuration(**more: object):
    return load(msgspec.json.encode({**FILE, **more}).decode(), known=BUILT_IN, preset=DEFAULT)


def test_back_off_has_the_limits_of_the_file():
    read = configuration(podInitialBackoffSeconds=3, podMaxBackoffSeconds=7)
    assert (read.pod_initial_backoff, read.pod_max_backoff) == (timedelta(seconds=3), timedelta(seconds=7))
    watcher = WatcherUnderTest(settings=watcher_settings(Settings(), read).attempts).lead(a_pod("web"))
    waits = []
    for _ in range(3):
        watcher.decide("web", Outcome.ERROR)
        began = watcher.now
        while watcher.stage("web") == "backoff":
            watcher.advance(0.5)
        waits.append(watcher.now - began)
    assert waits == [3, 6, 7]


def test_defaults_are_back_off_of_one_to_ten_seconds_and_every_node():
    read = configuration()
    backoff = watcher_settings(Settings(), read).attempts.requeue.backoff
    assert (backoff.initial, backoff.maximum) == (timedelta(seconds=1), timedelta(seconds=10))
    assert read.percentage_of_nodes_to_score == EVERY_NODE
