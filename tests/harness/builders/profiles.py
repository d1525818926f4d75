"""Profiles for tests: the default one, or one of plugins made for a test.

What one score plugin gives to the nodes of a Snapshot, from PreScore to NormalizeScore.
"""

from __future__ import annotations

from collections.abc import Mapping

from berth.api.config.load import default_configuration, load
from berth.api.config.presets import DEFAULT
from berth.api.config.types import API_VERSION, KIND
from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.equivalencecache import EquivalenceCache
from berth.framework.filtering import FeasibleNodes, pre_filter
from berth.framework.interface import (
    BindPlugin,
    FilterPlugin,
    NormalizePlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    ReservePlugin,
    ScorePlugin,
    VectorScorePlugin,
)
from berth.framework.profile import Profile, WeightedScore, build_profiles
from berth.framework.status import CycleState
from berth.plugins.prioritysort import PrioritySort
from berth.plugins.registry import BUILT_IN, IN_EVERY_PROFILE
from berth.profiles.configuration import profiles_of
from berth.profiles.installed import known_plugins


def default_profile() -> Profile:
    """The default plugins, with empty caches."""
    return build_profiles(default_configuration(BUILT_IN, DEFAULT), BUILT_IN, IN_EVERY_PROFILE)["berth"]


def packing_profiles() -> Mapping[str, Profile]:
    """The default plugins, but pods go where the least is left."""
    text = f"apiVersion: {API_VERSION}\nkind: {KIND}\nprofiles:\n- schedulerName: berth\n{_PACKING}"
    return profiles_of(load(text, known=known_plugins(), preset=DEFAULT))


_PACKING = """\
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}}
"""


def profile_of(*plugins: Plugin, weight: int = 1) -> Profile:
    """Only these plugins, at every extension point that they implement."""
    return Profile(
        scheduler_name="berth",
        queue_sort=PrioritySort(),
        pre_enqueues=tuple(p for p in plugins if isinstance(p, PreEnqueuePlugin)),
        pre_filters=tuple(p for p in plugins if isinstance(p, PreFilterPlugin)),
        filters=tuple(p for p in plugins if isinstance(p, FilterPlugin)),
        post_filters=tuple(p for p in plugins if isinstance(p, PostFilterPlugin)),
        pre_scores=tuple(p for p in plugins if isinstance(p, PreScorePlugin)),
        scores=tuple(WeightedScore(p, weight) for p in plugins if isinstance(p, ScorePlugin)),
        reserves=tuple(p for p in plugins if isinstance(p, ReservePlugin)),
        permits=tuple(p for p in plugins if isinstance(p, PermitPlugin)),
        pre_binds=tuple(p for p in plugins if isinstance(p, PreBindPlugin)),
        binds=tuple(p for p in plugins if isinstance(p, BindPlugin)),
        post_binds=tuple(p for p in plugins if isinstance(p, PostBindPlugin)),
    )


def feasible_nodes(pod: Pod, snapshot: Snapshot, profile: Profile) -> FeasibleNodes | None:
    """The feasible nodes of one cycle; None when PreFilter rejects the pod."""
    results = EquivalenceCache.of(snapshot, profile).results_of(pod)
    found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
    if found.rejection is not None:
        return None
    feasible = FeasibleNodes(pod, snapshot, profile, found, results.refresh_filters())
    feasible.find()
    return feasible


def points(plugin: VectorScorePlugin, pod: Pod, snapshot: Snapshot) -> dict[str, int] | None:
    """Node to points before the weight; None when the plugin leaves the pod out."""
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    if isinstance(plugin, PreScorePlugin) and plugin.pre_score(state, pod, nodes).is_skip:
        return None
    scores = plugin.score_all(state, pod, nodes)
    if isinstance(plugin, NormalizePlugin):
        scores = plugin.normalize(state, pod, scores, nodes)
    return dict(zip(nodes.names, scores.tolist(), strict=True))
