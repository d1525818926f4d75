"""Which plugins run at a point, in which order and with which weight, where multiPoint and the point are both set.

The expected lists are those of kube-scheduler 1.36 for the same file: the profile's sets are merged with those of its
default, then what multiPoint enables is expanded into each point.
"""

from dataclasses import dataclass

import msgspec
import pytest

from berth.api.config.load import ConfigurationError, load
from berth.api.config.types import PluginRef, Plugins, PluginSet, Point

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@dataclass(frozen=True)
class Known:
    points: tuple[Point, ...]
    args_type: type[msgspec.Struct] | None = None
    only_in_presets: bool = False

    @staticmethod
    def validate(_args: object, _path: str) -> list[str]:
        return []


BOTH = (Point.FILTER, Point.SCORE)
KNOWN = {
    "Sort": Known((Point.QUEUE_SORT,)),
    "Bind": Known((Point.BIND,)),
    "A": Known(BOTH),
    "B": Known(BOTH),
    "C": Known((Point.SCORE,)),
    "Mine": Known(BOTH),
    "Other": Known(BOTH),
}


def refs(*names: str) -> list[PluginRef]:
    """``A:3`` is A of weight 3."""
    split = (name.partition(":") for name in names)
    return [PluginRef(name=name, weight=int(weight) if weight else None) for name, _, weight in split]


PRESET = Plugins(multi_point=PluginSet(enabled=refs("Sort", "A:3", "B:2", "C:1", "Bind")))
PRESET_BY_POINT = Plugins(
    queue_sort=PluginSet(enabled=refs("Sort")),
    filter=PluginSet(enabled=refs("A", "B")),
    score=PluginSet(enabled=refs("A:3", "B:2")),
    bind=PluginSet(enabled=refs("Bind")),
)


def listed(plugins: str, point: Point = Point.SCORE, preset: Plugins = PRESET) -> str:
    """The plugins of a point as ``A:3 B:2``; a weight that is not written is 1."""
    configuration = load(f"{HEAD}profiles: [{{plugins: {plugins}}}]\n", known=KNOWN, preset=preset)
    return " ".join(f"{ref.name}:{ref.weight or 1}" for ref in configuration.profiles[0].plugins[point])


@pytest.mark.parametrize(
    ("plugins", "score"),
    [
        pytest.param("{}", "A:3 B:2 C:1", id="nothing is set"),
        pytest.param("{score: {enabled: [{name: B, weight: 9}]}}", "B:9 A:3 C:1", id="the point's weight and place"),
        pytest.param("{score: {enabled: [{name: B}]}}", "B:1 A:3 C:1", id="the point's weight is 1 when not written"),
        pytest.param(
            "{score: {enabled: [{name: B, weight: 0}]}}", "B:1 A:3 C:1", id="0 is no weight, not that of multiPoint"
        ),
        pytest.param(
            "{score: {enabled: [{name: Mine}, {name: C, weight: 5}, {name: A}]}}",
            "C:5 A:1 B:2 Mine:1",
            id="overriding ones first, in the point's order, new ones last",
        ),
        pytest.param("{score: {disabled: [{name: A}]}}", "B:2 C:1", id="disabled at the point"),
        pytest.param("{score: {disabled: [{name: '*'}]}}", "", id="all disabled at the point"),
        pytest.param(
            "{score: {disabled: [{name: '*'}], enabled: [{name: C, weight: 4}, {name: A}]}}",
            "C:4 A:1",
            id="all disabled, some enabled again",
        ),
        pytest.param(
            "{score: {disabled: [{name: A}], enabled: [{name: A, weight: 8}]}}",
            "B:2 C:1 A:8",
            id="disabled and enabled at the point: last, like a plugin that is not in multiPoint",
        ),
        pytest.param("{multiPoint: {enabled: [{name: Mine, weight: 7}]}}", "A:3 B:2 C:1 Mine:7", id="one more"),
        pytest.param(
            "{multiPoint: {enabled: [{name: Other}, {name: A, weight: 6}]}}",
            "A:6 B:2 C:1 Other:1",
            id="multiPoint again: the old place, the new weight",
        ),
        pytest.param("{multiPoint: {disabled: [{name: A}]}}", "B:2 C:1", id="disabled at multiPoint"),
        pytest.param(
            "{multiPoint: {disabled: [{name: '*'}], enabled: [{name: Sort}, {name: Bind}, {name: B, weight: 2}]}}",
            "B:2",
            id="all of multiPoint disabled: only what is enabled beside it",
        ),
        pytest.param(
            "{multiPoint: {disabled: [{name: A}], enabled: [{name: A, weight: 4}]}}",
            "B:2 C:1 A:4",
            id="disabled and enabled at multiPoint: last",
        ),
        pytest.param(
            "{multiPoint: {disabled: [{name: A}]}, score: {enabled: [{name: A, weight: 2}]}}",
            "B:2 C:1 A:2",
            id="away from multiPoint, back at one point",
        ),
        pytest.param(
            "{multiPoint: {enabled: [{name: Mine, weight: 7}]}, score: {enabled: [{name: Mine, weight: 2}]}}",
            "Mine:2 A:3 B:2 C:1",
            id="in both: the point's",
        ),
        pytest.param(
            "{multiPoint: {enabled: [{name: Mine}]}, score: {disabled: [{name: Mine}]}}",
            "A:3 B:2 C:1",
            id="at every point but this",
        ),
    ],
)
def test_what_scores(plugins, score):
    assert listed(plugins) == score


@pytest.mark.parametrize(
    ("plugins", "filters"),
    [
        pytest.param("{score: {disabled: [{name: '*'}]}}", "A:3 B:2", id="another point's disabled do not count"),
        pytest.param("{multiPoint: {enabled: [{name: Mine}]}}", "A:3 B:2 Mine:1", id="a new one at all its points"),
        pytest.param("{filter: {enabled: [{name: Mine}]}}", "A:3 B:2 Mine:1", id="a new one at one point, last"),
    ],
)
def test_what_filters(plugins, filters):
    assert listed(plugins, Point.FILTER) == filters


@pytest.mark.parametrize(
    ("plugins", "score"),
    [
        pytest.param("{score: {enabled: [{name: B, weight: 9}]}}", "A:3 B:9", id="enabled again in its old place"),
        pytest.param("{score: {enabled: [{name: Mine}]}}", "A:3 B:2 Mine:1", id="one more"),
        pytest.param(
            "{multiPoint: {enabled: [{name: Mine, weight: 5}, {name: B, weight: 7}]}}",
            "B:2 Mine:5 A:3",
            id="the preset's own set of the point counts as the point's",
        ),
    ],
)
def test_what_scores_beside_a_preset_that_names_its_points(plugins, score):
    assert listed(plugins, preset=PRESET_BY_POINT) == score


def test_what_a_preset_disables_at_a_point_stays_so():
    preset = msgspec.structs.replace(PRESET, score=PluginSet(disabled=refs("A")))
    assert listed("{}", preset=preset) == "B:2 C:1"
    assert listed("{score: {enabled: [{name: A, weight: 4}]}}", preset=preset) == "B:2 C:1 A:4"


def test_a_plugin_named_twice_in_one_set_is_rejected():
    with pytest.raises(ConfigurationError) as caught:
        listed(
            "{score: {enabled: [{name: Mine}, {name: Mine, weight: 2}]}, multiPoint: {enabled: [{name: A}, {name: A}]}}"
        )
    assert caught.value.problems == (
        "profiles[0].plugins.score.enabled: 'Mine' is listed more than once",
        "profiles[0].plugins.multiPoint.enabled: 'A' is listed more than once",
    )


def test_a_plugin_at_a_point_that_it_does_not_have_is_rejected():
    with pytest.raises(ConfigurationError, match="plugin 'C' has no filter; it has score"):
        listed("{filter: {enabled: [{name: C}]}}")
