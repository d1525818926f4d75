"""A plugin that fails in the watcher is a failure of its pod: the owner sees the reason, other pods go on."""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from typing import Any

import pytest

from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, FilterPlugin, PreEnqueuePlugin, QueueSortPlugin
from berth.framework.status import SUCCESS, Status
from berth.messages.attempts import Outcome
from berth.profiles.installed import CallDeadline
from berth_watcher.events import Warn
from harness.builders.profiles import default_profile
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

LIMIT = CallDeadline(timedelta(milliseconds=20))


class ByLabel(QueueSortPlugin):
    """Fails in a way that the pod's label names."""

    name = "ByLabel"
    limit = LIMIT

    def sort_key(self, pod, since) -> tuple[Any, ...]:
        label = (pod.metadata.labels or {}).get("sort", "")
        if label == "raises":
            raise ZeroDivisionError("division by zero")
        if label == "hangs":
            time.sleep(60)
        odd = {"none": (None,), "object": (object(),), "nan": (float("nan"),), "list": [1], "text": ("z", since)}
        return odd.get(label, (0, since))


class ByGate(PreEnqueuePlugin):
    name = "ByGate"
    limit = LIMIT

    def pre_enqueue(self, pod) -> Status:
        label = (pod.metadata.labels or {}).get("gate", "")
        if label == "raises":
            raise OSError("no answer")
        if label == "hangs":
            time.sleep(60)
        return SUCCESS


class HintHangs(FilterPlugin, EnqueueExtensions):
    name = "HintHangs"
    limit = LIMIT
    calls = 0

    def filter(self, state, pod, node) -> Status:
        return SUCCESS

    def events(self):
        return (EventHint(ClusterEvent(Resource.NODE, Action.ADD), self._hang),)

    def _hang(self, *_: object) -> bool:
        self.calls += 1
        time.sleep(60)
        return False


def watcher_with(**points: Any) -> WatcherUnderTest:
    return WatcherUnderTest(profiles={"berth": dataclasses.replace(default_profile(), **points)})


def errors(watcher: WatcherUnderTest) -> dict[str, str]:
    """The reasons published for the owners of pods."""
    found = (each.message for each in watcher.published)
    return {message.pod.metadata.name: message.error for message in found if message.error}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", "ZeroDivisionError: division by zero"),
        ("hangs", r"took longer than 0.02 s"),
        ("none", "want a tuple of numbers, texts and times, got (None,)"),
        ("object", "want a tuple of numbers, texts and times"),
        ("nan", "want a tuple of numbers, texts and times, got (nan,)"),
        ("list", "want tuple, got [1]"),
    ],
)
def test_sort_key_that_fails_for_one_pod_costs_that_pod_only(how, reason):
    watcher = watcher_with(queue_sort=ByLabel()).lead(a_pod("fine"))

    watcher.show(a_pod("odd", labels={"sort": how}), a_pod("other"))

    assert sorted(watcher.pods_published) == ["fine", "odd", "other"]
    assert errors(watcher).keys() == {"odd"}
    assert 'running QueueSort plugin "ByLabel": ' in errors(watcher)["odd"]
    assert reason in errors(watcher)["odd"]
    assert [warning.fields["pod"] for warning in watcher.of(Warn)] == ["default/odd"]


def test_sort_keys_of_different_types_are_not_compared():
    watcher = watcher_with(queue_sort=ByLabel()).lead()

    watcher.show(a_pod("text", labels={"sort": "text"}), a_pod("number"), a_pod("more", labels={"sort": "text"}))

    assert sorted(watcher.pods_published) == ["more", "number", "text"]
    assert errors(watcher) == {}


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_pre_enqueue_that_fails_for_one_pod_costs_that_pod_only(how):
    watcher = watcher_with(pre_enqueues=(ByGate(),)).lead()

    watcher.show(a_pod("odd", labels={"gate": how}), a_pod("other"))

    assert watcher.stage("odd") == "in flight"
    assert errors(watcher).keys() == {"odd"}
    assert 'running PreEnqueue plugin "ByGate": ' in errors(watcher)["odd"]


def test_pod_is_scheduled_once_the_plugin_does_not_fail_any_more():
    watcher = watcher_with(queue_sort=ByLabel(), pre_enqueues=(ByGate(),)).lead()
    watcher.show(a_pod("odd", labels={"gate": "raises", "sort": "raises"}))
    watcher.decide("odd", Outcome.ERROR)
    assert watcher.stage("odd") == "backoff"

    watcher.show(a_pod("odd", version=2))
    watcher.advance(10)

    assert [each.message.error == "" for each in watcher.published] == [False, True]


def test_plugin_that_hung_for_a_pod_is_asked_again_only_when_the_pod_changes_or_after_minutes():
    watcher = watcher_with(queue_sort=ByLabel()).lead()
    watcher.show(a_pod("odd", labels={"sort": "hangs"}))
    watcher.decide("odd", Outcome.ERROR)

    watcher.advance(60)
    assert len(watcher.published) == 1

    watcher.show(a_pod("odd", version=2))
    assert [each.message.error == "" for each in watcher.published] == [False, True]


@pytest.mark.slow
def test_plugin_that_hangs_for_every_pod_is_left_alone_for_a_minute():
    watcher = watcher_with(queue_sort=ByLabel()).lead()

    began = time.process_time()
    watcher.show(*(a_pod(f"odd-{n}", labels={"sort": "hangs"}) for n in range(60)))

    assert time.process_time() - began < 1
    assert len(errors(watcher)) == 60
    assert "is not called" in errors(watcher)["odd-59"]
    watcher.advance(61)
    watcher.show(a_pod("fine"))
    assert "fine" not in errors(watcher)


@pytest.mark.slow
def test_hint_that_hangs_wakes_the_pods_and_is_left_alone_for_a_minute():
    plugin = HintHangs()
    watcher = watcher_with(filters=(plugin,)).lead(*(a_pod(f"p{n}") for n in range(20)))
    for n in range(20):
        watcher.decide(f"p{n}", Outcome.UNSCHEDULABLE, blockers=[plugin.name])
    assert watcher.stage("p7") == "unschedulable"

    watcher.show(a_node("n1"))

    assert "unschedulable" not in {watcher.stage(f"p{n}") for n in range(20)}
    assert plugin.calls == 3
    (warning,) = watcher.of(Warn)
    assert 'plugin "HintHangs": took longer than 0.02 s' in warning.fields["error"]
