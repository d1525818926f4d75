"""What two outcomes of the story differ in, and how long its acts may take."""

import os
from types import SimpleNamespace

import pytest

from harness.worlds import story
from harness.worlds.story import ACT_SECONDS, Outcome, PodState, Story, differences

WAITS = PodState(bound=False, condition="False Unschedulable 0/3 nodes are available", nominated=False)
BOUND = PodState(bound=True, condition="True", nominated=False)


def outcome(**changes):
    parts = {
        "acts": {"fills up": {"a": BOUND, "b": WAITS}, "grows": {"a": BOUND, "b": BOUND}},
        "events": {"a": {"Scheduled"}, "b": {"FailedScheduling", "Scheduled"}},
        "evicted": {"c": "DisruptionTarget True PreemptionByScheduler"},
    }
    return Outcome(**{**parts, **changes})


def found(other):
    return [line.splitlines() for line in differences(outcome(), other, ("theirs", "ours"))]


def test_equal_outcomes_differ_in_nothing_also_if_one_took_longer():
    assert found(outcome(seconds={"grows": 9.0})) == []


def test_a_difference_is_listed_with_the_act_in_which_it_began():
    late = {"fills up": {"a": WAITS, "b": WAITS}, "grows": {"a": WAITS, "b": BOUND}}
    assert found(outcome(acts=late, late={"grows": "{'a': 'Unschedulable'}"})) == [
        ["fills up: a", f"    theirs: {BOUND}", f"    ours: {WAITS}"],
        ["grows: missing at the deadline", "    theirs: nothing", "    ours: {'a': 'Unschedulable'}"],
    ]


def test_an_act_that_was_never_reached_lacks_its_pods():
    (a, b) = found(outcome(acts={"fills up": {"a": BOUND, "b": WAITS}}))
    assert (a[0], a[2]) == ("grows: a", "    ours: gone")
    assert (b[0], b[2]) == ("grows: b", "    ours: gone")


def test_events_and_evictions_are_compared_by_pod():
    other = outcome(events={"a": {"Scheduled"}, "b": {"Scheduled"}}, evicted={"d": "None None None"})
    assert [lines[0] for lines in found(other)] == ["Events: of b", "evictions: of c", "evictions: of d"]


@pytest.mark.parametrize(("processes", "late"), [(1, ["grows"]), (3, [])], ids=["idle", "overloaded"])
async def test_an_act_may_take_longer_where_more_processes_run_than_there_are_cores(monkeypatch, processes, late):
    seconds = iter(range(0, int(3 * ACT_SECONDS), 10))
    monkeypatch.setattr(story, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(story, "STEP_SECONDS", 0)
    monkeypatch.setattr(os, "getloadavg", lambda: (processes * os.cpu_count(), 0, 0))
    now = [0]

    async def pods():
        now[0] = next(seconds)
        return {"a": {"metadata": {}, "status": {}, "spec": {"nodeName": "n1"} if now[0] > 2 * ACT_SECONDS else {}}}

    told = Story(SimpleNamespace(pods=pods, api=None, namespace="x"), "berth")
    await told._settle("grows", bound=["a"])
    assert list(told.outcome.late) == late
