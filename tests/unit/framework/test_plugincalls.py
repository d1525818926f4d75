"""The timing of a cycle, with a clock that advances one second with every reading."""

from __future__ import annotations

import itertools

from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, rank
from berth.framework.interface import FilterPlugin, PreFilterPlugin, PreFilterResult, ScorePlugin
from berth.framework.plugincalls import Duration, Timing
from berth.framework.status import SUCCESS, Code, Status
from harness.builders.objects import a_node, first_attempt, pod_requesting
from harness.builders.profiles import default_profile, profile_of


def a_timing() -> Timing:
    ticks = itertools.count()
    return Timing(lambda: float(next(ticks)))


def cluster(*names: str) -> Snapshot:
    snapshot = Snapshot()
    for name in names:
        snapshot.set_node(a_node(name))
    return snapshot


def timed(*plugins, nodes=("a", "b"), cpu="1"):
    """A cycle whose plugins are timed."""
    profile, timing, pod = profile_of(*plugins) if plugins else default_profile(), a_timing(), pod_requesting(cpu=cpu)
    profile.time_plugins(timing)
    ranking = rank(pod, cluster(*nodes), profile, attempt=first_attempt(pod), options=RankOptions(timing=timing))
    return ranking, timing


class Even(FilterPlugin):
    """Rejects every other node."""

    name = "Even"

    def __init__(self) -> None:
        self.calls = 0

    def filter(self, state, pod, node):
        self.calls += 1
        return SUCCESS if self.calls % 2 == 0 else Status.unschedulable("odd")


class Broken(ScorePlugin):
    name = "Broken"

    def score(self, state, pod, node):
        raise RuntimeError("no")


class Picky(PreFilterPlugin):
    name = "Picky"

    def pre_filter(self, state, pod, snapshot):
        return PreFilterResult(Status.unresolvable("not today"))


def test_each_extension_point_that_ran_is_timed_with_how_it_ended():
    _, timing = timed()
    assert {point: took.code for point, took in timing.points.items()} == dict.fromkeys(
        ("PreFilter", "Filter", "PreScore", "Score"), Code.SUCCESS
    )
    assert all(took.seconds > 0 for took in timing.points.values())


def test_a_filter_that_rejects_every_node_is_followed_by_post_filter():
    ranking, timing = timed(cpu="100")
    assert not ranking.candidates
    assert timing.points.keys() == {"PreFilter", "Filter", "PostFilter"}
    assert timing.points["PostFilter"].code is Code.UNSCHEDULABLE


def test_a_pre_filter_that_rejects_the_pod_is_timed_as_unschedulable():
    _, timing = timed(Picky())
    assert timing.points["PreFilter"].code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert timing.plugins["Picky", "PreFilter"] == Duration(1.0, Code.UNSCHEDULABLE_AND_UNRESOLVABLE)


def test_all_calls_of_a_plugin_count_together_and_one_success_makes_them_one():
    _, timing = timed(Even(), nodes=("a", "b", "c", "d"))
    # Four calls of a second each: the clock is read before and after each call.
    assert timing.plugins["Even", "Filter"] == Duration(4.0, Code.SUCCESS)


def test_an_error_of_a_plugin_is_its_points_too():
    ranking, timing = timed(Broken())
    assert "Broken" in ranking.error
    assert timing.points["Score"].code is Code.ERROR
    assert timing.plugins["Broken", "Score"].code is Code.ERROR
    assert "Filter" in timing.points


def test_plugins_are_timed_only_while_a_timer_is_set():
    profile, timing, pod = default_profile(), a_timing(), pod_requesting(cpu="1")
    profile.time_plugins(timing)
    profile.time_plugins(None)
    rank(pod, cluster("a", "b"), profile, attempt=first_attempt(pod), options=RankOptions(timing=timing))
    assert timing.plugins == {}
    assert timing.points.keys() >= {"Filter", "Score"}
