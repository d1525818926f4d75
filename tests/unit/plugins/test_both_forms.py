"""The vector form of every built-in plugin gives each node the same result as its scalar form."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from berth.api.node import first_untolerated
from berth.cluster.nodes import AnotherPod, NodeInfo, Nodes, NodesWithAnother
from berth.cluster.pods import EquivalenceClass
from berth.framework.interface import Plugin, PreFilterPlugin, PreScorePlugin, VectorFilterPlugin, VectorScorePlugin
from berth.framework.plugincalls import run_score_with_another
from berth.framework.status import CycleState
from berth.plugins.factory import PluginFactory
from berth.plugins.nodeaffinity import NodeAffinityArgs, NodeAffinityPlugin
from berth.plugins.registry import BUILT_IN
from berth.profiles.installed import known_plugins
from berth_plugins_1_18.disklimits import MOST_DISKS_VARIABLE
from harness.builders.plugin_arguments import arguments_of
from harness.builders.random_clusters import live_data, node_affinities, pods, snapshots
from harness.builders.random_objects import NODE_NAMES
from harness.plugins.long_runs import often

pytestmark = pytest.mark.timeout(600)  # hypothesis shrinks a failure before it reports it


def factories() -> Iterator[tuple[str, PluginFactory]]:
    """Every plugin of today by its own name, then those of 1.18 that differ or were removed."""
    yield from ((name, factory) for name, factory in BUILT_IN.items() if name == factory.name)
    old = known_plugins(release="1.18")
    yield from ((f"1.18 {name}", factory) for name, factory in old.items() if BUILT_IN.get(name) is not factory)


def plugins() -> Iterator[tuple[str, Plugin]]:
    """Every plugin that has a vector form, with each of its arguments."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(MOST_DISKS_VARIABLE, "1")
        for name, factory in factories():
            for how, args in arguments_of(name, factory).items():
                plugin = None if factory.validate(args, "") else factory.build(args)
                if isinstance(plugin, VectorFilterPlugin | VectorScorePlugin):
                    yield f"{name}, {how}", plugin


some_pods = st.lists(pods, min_size=5, max_size=5)
some_rows = st.none() | st.lists(st.sampled_from(NODE_NAMES), unique=True)


# No shrinking: a failure names plugin, point and node, and shrinking whole clusters takes five minutes.
@settings(max_examples=often(10), phases=[Phase.generate])
@given(snapshot=snapshots(), waiting=some_pods, names=some_rows)
def test_vector_form_equals_scalar_form(snapshot, waiting, names):
    for what, plugin in plugins():
        for pod in waiting:
            for point, name, vector, scalar in answers(plugin, snapshot, pod, names):
                assert vector == scalar, f"{what}: {point} of {name}"


@given(snapshot=snapshots(), pod=pods, names=some_rows, added=node_affinities)
def test_vector_form_equals_scalar_form_with_added_affinity(snapshot, pod, names, added):
    plugin = NodeAffinityPlugin(NodeAffinityArgs(added_affinity=added))
    for point, name, vector, scalar in answers(plugin, snapshot, pod, names):
        assert vector == scalar, f"{point} of {name}"


@settings(max_examples=often(10), phases=[Phase.generate])
@given(snapshot=snapshots(), pod=pods)
def test_score_with_another_pod_is_the_score_once_that_pod_is_placed(snapshot, pod):
    assume(pod.metadata.deletion_timestamp is None)  # such a pod is never ranked
    for what, plugin in plugins():
        if isinstance(plugin, VectorScorePlugin):
            for name, expected, placed in scores_with_another(plugin, snapshot, pod):
                assert expected == placed, f"{what}: {name}"


def scores_with_another(plugin: VectorScorePlugin, snapshot, pod) -> Iterator[tuple[str, int, int]]:
    """(node, raw score as if one more pod like it were there, raw score once it is), of nodes where the pod may be."""
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    if not scores(plugin, state, pod, nodes):
        return
    another = AnotherPod(pod, snapshot)
    expected = run_score_with_another(plugin, state, pod, NodesWithAnother(snapshot, None, another))
    for position, info in enumerate(list(nodes.infos())):
        if info is None or not may_be_on(info, state.pod_class):
            continue
        with snapshot.supposing(placed=[(another.pod, info.name)]):
            after = CycleState(state.pod_class)
            assert scores(plugin, after, pod, nodes)
            yield info.name, int(expected[position]), int(plugin.score_all(after, pod, nodes)[position])


def may_be_on(info: NodeInfo, pod_class: EquivalenceClass) -> bool:
    """Spreading does not count pods on nodes that its constraints leave out."""
    return pod_class.allows(info.name, info.labels) and not first_untolerated(info.taints, pod_class.tolerations)


class Enough(Exception):  # noqa: N818 - no error: there is nothing left to look for
    """Every result was found; ends the search."""


@pytest.mark.slow
def test_random_clusters_give_every_plugin_different_results():
    """Equal results everywhere would compare nothing. The clusters are the same in every run.

    They have no devices: the scalar forms of DynamicResources are its vector forms on one node. A cluster costs more to
    draw than to ask about, so earlier pods wait in each too.
    """
    pods_so_far = deque(maxlen=60)
    every_plugin = list(plugins())
    waited_for = {
        (what, point): set()
        for what, plugin in every_plugin
        if plugin.name != "DynamicResources"
        for point in points_of(plugin)
    }

    @settings(max_examples=1000, derandomize=True, phases=[Phase.generate])
    @given(snapshot=snapshots(), waiting=some_pods, news=live_data)
    def look(snapshot, waiting, news):
        pods_so_far.extend(waiting)
        for event in news:
            event(snapshot)
        for what, plugin in every_plugin:
            if any(what == other for other, _ in waited_for):
                for point, vector in vector_results(plugin, snapshot, pods_so_far):
                    waited_for.get((what, point), set()).add(vector)
        for key in [key for key, results in waited_for.items() if len(results) > 1]:
            del waited_for[key]
        if not waited_for:
            raise Enough

    with contextlib.suppress(Enough):
        look()
    assert list(waited_for) == []


@pytest.mark.parametrize(("name", "factory"), list(factories()))
def test_every_plugin_has_arguments_to_be_compared_with(name, factory):
    """A plugin whose defaults are not valid has to be given others in ARGUMENTS."""
    for how, args in arguments_of(name, factory).items():
        assert factory.validate(args, f"ARGUMENTS[{name!r}][{how!r}]") == []


def points_of(plugin: Plugin) -> list[str]:
    kinds = {"Filter": VectorFilterPlugin, "Score": VectorScorePlugin}
    return [point for point, kind in kinds.items() if isinstance(plugin, kind)]


def answers(plugin: Plugin, snapshot, pod, names) -> Iterator[tuple[str, str, object, object]]:
    """(extension point, node, result of the vector form, result of the scalar form)."""
    state = CycleState(snapshot.class_of(pod))
    nodes = view(snapshot, names)
    if isinstance(plugin, VectorFilterPlugin) and filters(plugin, state, pod, snapshot):
        verdicts = plugin.filter_all(state, pod, nodes)
        for info, code in zip(nodes.infos(), verdicts.codes.tolist(), strict=True):
            if info is not None:
                yield "Filter", info.name, verdicts.statuses[code], plugin.filter(state, pod, info)
    if isinstance(plugin, VectorScorePlugin) and scores(plugin, state, pod, nodes):
        for info, points in zip(nodes.infos(), plugin.score_all(state, pod, nodes).tolist(), strict=True):
            if info is not None:
                yield "Score", info.name, points, plugin.score(state, pod, info)


def vector_results(plugin: Plugin, snapshot, waiting) -> Iterator[tuple[str, object]]:
    """(extension point, answer) of the vector form, for every pod and node."""
    for pod in waiting:
        yield from ((point, vector) for point, _, vector, _ in answers(plugin, snapshot, pod, None))


def filters(plugin: Plugin, state, pod, snapshot) -> bool:
    return not isinstance(plugin, PreFilterPlugin) or plugin.pre_filter(state, pod, snapshot).status.is_success


def scores(plugin: Plugin, state, pod, nodes) -> bool:
    return not isinstance(plugin, PreScorePlugin) or plugin.pre_score(state, pod, nodes).is_success


def view(snapshot, names) -> Nodes:
    if names is None:
        return Nodes(snapshot)
    rows = [row for name in names if (row := snapshot.rows.of(name)) is not None]
    return Nodes(snapshot, np.array(rows, dtype=np.intp))
