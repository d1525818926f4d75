"""Profiles for tests: the default one, or one of plugins made for a test."""

from __future__ import annotations

from berth.api.config.load import default_configuration
from berth.framework.equivalencecache import WeightedScore
from berth.framework.interface import (
    FilterPlugin,
    Plugin,
    PostFilterPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
)
from berth.framework.profile import Profile, build_profiles
from berth.plugins.presets import DEFAULT
from berth.plugins.prioritysort import PrioritySort
from berth.plugins.registry import BUILT_IN


def default_profile() -> Profile:
    """The default plugins, remembering nothing yet."""
    return build_profiles(default_configuration(BUILT_IN, DEFAULT), BUILT_IN)["berth"]


def profile_of(*plugins: Plugin, weight: int = 1) -> Profile:
    """Just these plugins, at every point of the scheduling cycle that they have."""
    return Profile(
        scheduler_name="berth",
        queue_sort=PrioritySort(),
        pre_filters=tuple(p for p in plugins if isinstance(p, PreFilterPlugin)),
        filters=tuple(p for p in plugins if isinstance(p, FilterPlugin)),
        post_filters=tuple(p for p in plugins if isinstance(p, PostFilterPlugin)),
        pre_scores=tuple(p for p in plugins if isinstance(p, PreScorePlugin)),
        scores=tuple(WeightedScore(p, weight) for p in plugins if isinstance(p, ScorePlugin)),
    )
