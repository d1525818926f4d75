"""Plugins of other distributions: found, named when they are broken, and never more than their pod's failure."""

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import EntryPoint

import pytest

from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.api.config.types import Point
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, FilterPlugin, PreFilterPlugin, PreFilterResult, ScorePlugin
from berth.framework.profile import Profile, build_profiles
from berth.framework.status import SUCCESS, Status
from berth.plugins.factory import PluginFactory
from berth.plugins.registry import BUILT_IN
from berth.profiles.installed import GROUP, PluginBuildError, RegistryError, installed_plugins
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.worlds.queueing_hints import may_help

ADDED = ClusterEvent(Resource.NODE, Action.ADD)
DEADLINE = timedelta(milliseconds=50)
POINTS = {FilterPlugin: Point.FILTER, ScorePlugin: Point.SCORE, PreFilterPlugin: Point.PRE_FILTER}


def _read(text: str) -> int:
    return json.loads(text)


class Raises(ScorePlugin):
    name = "Raises"

    def score(self, state, pod, node) -> int:
        return _read("{")


class Hangs(FilterPlugin):
    name = "Hangs"

    def filter(self, state, pod, node) -> Status:
        time.sleep(60)
        return SUCCESS


class HangsBefore(PreFilterPlugin):
    name = "HangsBefore"

    def pre_filter(self, state, pod, snapshot) -> PreFilterResult:
        while True:
            pass


class IsSlow(FilterPlugin):
    """Fast enough for one node, too slow for all."""

    name = "IsSlow"

    def filter(self, state, pod, node) -> Status:
        time.sleep(0.02)
        return SUCCESS


class Exceeds(ScorePlugin):
    name = "Exceeds"

    def score(self, state, pod, node) -> int:
        return 101


class HintsForEver(FilterPlugin, EnqueueExtensions):
    name = "HintsForEver"

    def filter(self, state, pod, node) -> Status:
        return Status.unschedulable("not now")

    def events(self):
        def hang(pod, old, new) -> bool:
            while True:
                pass

        return (EventHint(ADDED, hang),)


class AnswersNonsense(FilterPlugin):
    name = "AnswersNonsense"

    def filter(self, state, pod, node) -> Status:
        return "yes"


class CannotBeMade(ScorePlugin):
    name = "CannotBeMade"

    def __init__(self) -> None:
        raise KeyError("address")

    def score(self, state, pod, node) -> int:
        return 0


KINDS = {
    kind.name: kind
    for kind in (Raises, Hangs, HangsBefore, IsSlow, Exceeds, AnswersNonsense, HintsForEver, CannotBeMade)
}


@dataclass
class Installed:
    """An entry point of a package that is not really there."""

    name: str
    value: str = "elsewhere"
    dist: None = None
    points: tuple[Point, ...] | None = None

    def load(self) -> PluginFactory:
        kind = KINDS.get(self.name, Raises)
        points = self.points or tuple(point for base, point in POINTS.items() if issubclass(kind, base))
        return PluginFactory(name=self.name, points=points, build=lambda _: kind())


def profile_with(name: str) -> Profile:
    known = installed_plugins(DEADLINE, points=[Installed(name)]).known
    text = f"""
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: {name}}}]}}}}}}]
"""
    return build_profiles(load(text, known=known, preset=DEFAULT), known)["berth"]


def ranking_with(name: str):
    profile = profile_with(name)
    snapshot = Snapshot()
    for number in range(3):
        snapshot.set_node(a_node(f"n{number}"))
    pod = a_pod()
    return rank(pod, snapshot, profile, attempt=first_attempt(pod)), check(pod, "n0", snapshot, profile)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param(
            "Raises",
            'running Score plugin "Raises": JSONDecodeError: Expecting property name enclosed in double '
            f"quotes: line 1 column 2 (char 1) (test_third_party.py:{_read.__code__.co_firstlineno + 1})",
            id="raises",
        ),
        pytest.param("Hangs", 'running Filter plugin "Hangs": took longer than 0.05 s', id="hangs in a system call"),
        pytest.param(
            "HangsBefore", 'running PreFilter plugin "HangsBefore": took longer than 0.05 s', id="hangs in a loop"
        ),
        pytest.param("IsSlow", 'running Filter plugin "IsSlow": took longer than 0.05 s', id="slow over all nodes"),
        pytest.param(
            "Exceeds",
            'applying score defaultWeights on Score plugins: plugin "Exceeds" returns an invalid score 101, '
            "it should in the range of [0, 100] after normalizing",
            id="returns 101",
        ),
        pytest.param(
            "AnswersNonsense", "running Filter plugin \"AnswersNonsense\": want Status, got 'yes'", id="no Status"
        ),
    ],
)
def test_a_failing_plugin_fails_its_pod_with_an_error_that_names_it(name, sentence):
    ranking, _ = ranking_with(name)
    assert (ranking.error, ranking.candidates) == (sentence, ())


@pytest.mark.slow
def test_a_filter_that_hangs_fails_the_binders_check_too():
    _, status = ranking_with("Hangs")
    assert status.reasons == ('running Filter plugin "Hangs": took longer than 0.05 s',)


def test_a_hint_that_hangs_counts_as_yes():
    profile = profile_with("HintsForEver")
    assert may_help(profile, ["HintsForEver"], ADDED, a_pod(), None, a_node("n0"))


def test_a_plugin_that_cannot_be_made_is_named():
    with pytest.raises(PluginBuildError, match="making plugin 'CannotBeMade': KeyError: 'address'"):
        ranking_with("CannotBeMade")


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        pytest.param(
            (Point.SCORE, Point.FILTER),
            "its factory has the point 'filter', and Raises does not inherit from FilterPlugin",
            id="one too many",
        ),
        pytest.param(
            (Point.FILTER,),
            "its factory has the point 'filter', and Raises does not inherit from FilterPlugin",
            id="another",
        ),
    ],
)
def test_a_factory_whose_points_are_not_its_plugins_is_named(points, sentence):
    factory = installed_plugins(DEADLINE, points=[Installed("Raises", points=points)]).known["Raises"]
    with pytest.raises(PluginBuildError, match=f"making plugin 'Raises': {sentence}"):
        factory.build(None)


def test_a_point_that_the_factory_leaves_out_is_named():
    class Both(Raises, FilterPlugin):
        def filter(self, state, pod, node) -> Status:
            return SUCCESS

    found = Installed("Raises", points=(Point.SCORE,))
    found.load = lambda: PluginFactory(name="Raises", points=(Point.SCORE,), build=lambda _: Both())
    factory = installed_plugins(DEADLINE, points=[found]).known["Raises"]
    with pytest.raises(
        PluginBuildError, match="Both inherits from FilterPlugin, and its factory has no point 'filter'"
    ):
        factory.build(None)


@pytest.mark.parametrize("names", [("NodeName",), ("Raises", "Raises")])
def test_a_name_that_is_taken_is_refused_with_its_package(names):
    with pytest.raises(RegistryError, match=f"registering plugin '{names[-1]}': the name is taken: uninstall"):
        installed_plugins(DEADLINE, points=[Installed(name) for name in names])


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        pytest.param(
            EntryPoint(name="X", value="no_such_module:X", group=GROUP),
            "loading plugin 'X' from 'no_such_module:X': ModuleNotFoundError",
            id="cannot be imported",
        ),
        pytest.param(
            EntryPoint(name="X", value="math:pi", group=GROUP),
            "loading plugin 'X' from 'math:pi': want a berth.plugins.factory.PluginFactory, got 3.14",
            id="no factory",
        ),
        pytest.param(
            EntryPoint(name="X", value="berth.plugins.nodename:FACTORY", group=GROUP),
            "loading plugin 'X' from 'berth.plugins.nodename:FACTORY': want a plugin of that name, "
            "got one named 'NodeName'",
            id="another name",
        ),
    ],
)
def test_a_package_that_is_broken_is_left_out_and_named(broken, sentence):
    found = installed_plugins(DEADLINE, points=[broken])
    assert found.known == BUILT_IN
    assert found.broken[0].startswith(sentence)


def test_a_plugin_of_a_release_replaces_the_built_in_one_for_that_release_alone():
    def loaded() -> PluginFactory:
        return PluginFactory(name="NodeName", points=(Point.SCORE,), build=lambda _: Raises())

    old = Installed("NodeName@1.2")
    old.load = loaded
    assert installed_plugins(DEADLINE, points=[old]).known == BUILT_IN
    assert installed_plugins(DEADLINE, "1.2", [old]).known["NodeName"].points == (Point.SCORE,)
