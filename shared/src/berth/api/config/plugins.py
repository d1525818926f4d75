"""From the sets of a profile to the plugins of each extension point, as kube-scheduler merges and expands them.

First the multiPoint set of the profile is merged with that of the preset; then what is enabled at many points is
expanded into each point that the plugin implements. The order at one point: plugins that the point enables itself
though they are enabled at many points (their weight and place are the point's), those of multiPoint, then the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from berth.api.config.types import PluginRef, Plugins, PluginSet, Point

EVERYTHING = "*"

PluginLists = Mapping[Point, tuple[PluginRef, ...]]
"""The plugins of each extension point, in the order in which they run."""


def merge_set(preset: PluginSet, custom: PluginSet) -> tuple[PluginRef, ...]:
    """The preset's without the disabled, a re-enabled one in its old place with its new weight, then the new ones."""
    disabled = _disabled(preset, custom)
    replaced = {ref.name: ref for ref in custom.enabled or ()}
    kept = [
        replaced.pop(ref.name, ref)
        for ref in (preset.enabled or ())
        if EVERYTHING not in disabled and ref.name not in disabled
    ]
    return (*kept, *(ref for ref in custom.enabled or () if ref.name in replaced))


def expand(preset: Plugins, custom: Plugins, points_of: Mapping[str, Collection[Point]]) -> PluginLists:
    """The list of each extension point. ``points_of`` says which points a plugin implements."""
    everywhere = merge_set(preset.multi_point, custom.multi_point)
    return {point: _at(point, preset.at(point), custom.at(point), everywhere, points_of) for point in Point}


def _at(
    point: Point,
    preset: PluginSet,
    custom: PluginSet,
    everywhere: tuple[PluginRef, ...],
    points_of: Mapping[str, Collection[Point]],
) -> tuple[PluginRef, ...]:
    named = merge_set(preset, custom)
    own = {ref.name: ref for ref in named}
    disabled = _disabled(preset, custom)
    expanded = [
        ref
        for ref in everywhere
        if point in points_of.get(ref.name, ()) and EVERYTHING not in disabled and ref.name not in disabled
    ]
    shared = {ref.name for ref in expanded}
    overriding = [ref for ref in named if ref.name in shared]
    return (
        *overriding,
        *(ref for ref in expanded if ref.name not in own),
        *(ref for ref in named if ref.name not in shared),
    )


def _disabled(preset: PluginSet, custom: PluginSet) -> frozenset[str]:
    """What is disabled stays so for the plugins of multiPoint, whoever said it."""
    return frozenset(ref.name for ref in (*(custom.disabled or ()), *(preset.disabled or ())))
