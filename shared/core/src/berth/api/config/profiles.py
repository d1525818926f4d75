"""Completes profiles: checks names against the known plugins, expands lists, reads and validates arguments.

Plugin lists are merged as in kube-scheduler: first the profile's multiPoint set with the preset's, then the result is
expanded into each extension point of a plugin. The order at one point: plugins of multiPoint that the point enables
itself (with its weight and place), other plugins of multiPoint, the point's own. A plugin may have aliases:
configuration under an alias applies to the plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import msgspec

from berth.api.config.configuration import EVERY_NODE, PluginLists, ProfileConfiguration
from berth.api.config.decode import Problems, did_you_mean, read_struct
from berth.api.config.groupplugins import GROUP_PLUGINS
from berth.api.config.types import API_VERSION, EVERYTHING, FileProfile, PluginRef, Plugins, PluginSet, Point
from berth.api.config.versions import GONE_PLUGINS, NOT_HERE, REFUSED_PLUGINS

MULTI_POINT: Final = "multiPoint"


DEFAULT_SCHEDULER_NAME: Final = "berth"


SAME_QUEUE: Final = "the same as in profiles[0], they share one queue"


_MAX_WEIGHT: Final = (1 << 31) - 1


class KnownPlugin(Protocol):
    """A plugin as profiles need it; the registry's factories have this form."""

    @property
    def points(self) -> Collection[Point]: ...

    @property
    def args_type(self) -> type[msgspec.Struct] | None:
        """The type of its arguments, with a default for every field; ``None`` without arguments."""
        ...

    @property
    def only_in_presets(self) -> bool:
        """Whether the plugin is gone from v1: files may name it only in whole lists, as its preset has them."""
        ...

    @property
    def validate(self) -> Callable[[object, str], list[str]]:
        """Problems of arguments, each beginning with the given path. Without arguments it gets None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSetting:
    """The known plugins, the preset, and the file's settings for all profiles."""

    known: Mapping[str, KnownPlugin]
    preset: Plugins
    percentage_of_nodes_to_score: int = EVERY_NODE
    is_partial: bool = False  # ``known`` lacks plugins, which are skipped unchecked


def complete_profiles(
    given: list[FileProfile] | None, plugged: PluginSetting, problems: Problems
) -> tuple[ProfileConfiguration, ...]:
    """All profiles of a file; by default one of the default name."""
    profiles = given or [FileProfile()]
    if len(profiles) > 1:
        problems.extend(
            f"profiles[{index}].schedulerName: required when there are several profiles"
            for index, profile in enumerate(profiles)
            if profile.scheduler_name is None
        )
    if plugged.is_partial:
        profiles = [_only_known(profile, plugged.known) for profile in profiles]
        plugged = replace(plugged, preset=_each_set(plugged.preset, partial(_only_refs, plugged.known)))
    else:
        plugged = replace(plugged, known={**GROUP_PLUGINS, **plugged.known})
    names = PluginNames(known=plugged.known, preset=plugged.preset)
    made = tuple(
        _profile(profile, f"profiles[{index}]", plugged, names, problems) for index, profile in enumerate(profiles)
    )
    _check_together(made, problems, is_partial=plugged.is_partial)
    return made


def _profile(
    given: FileProfile, path: str, plugged: PluginSetting, names: PluginNames, problems: Problems
) -> ProfileConfiguration:
    known = plugged.known
    given = with_own_names(given, known)
    if given.scheduler_name == "":
        problems.add(f"{path}.schedulerName", "a name", "")
    problems.check_range(f"{path}.percentageOfNodesToScore", given.percentage_of_nodes_to_score, 0, 100)
    _check_names(given.plugins, f"{path}.plugins", known, names, problems)
    percentage = given.percentage_of_nodes_to_score
    lists = _without_group_plugins(given.plugins, plugged)
    if not plugged.is_partial:
        _check_lists(lists, f"{path}.plugins", problems)
    return ProfileConfiguration(
        scheduler_name=given.scheduler_name or DEFAULT_SCHEDULER_NAME,
        plugins=lists,
        args=_args(given, f"{path}.pluginConfig", lists, plugged.known, names, problems),
        percentage_of_nodes_to_score=plugged.percentage_of_nodes_to_score if percentage is None else percentage,
    )


def _without_group_plugins(given: Plugins, plugged: PluginSetting) -> PluginLists:
    points_of = {name: plugin.points for name, plugin in plugged.known.items()}
    written = expand(plugged.preset, given, points_of)
    lists = {
        point: tuple(ref for ref in refs if not _is_left_out(ref.name, plugged.known))
        for point, refs in written.items()
    }
    if written[Point.QUEUE_SORT] and not lists[Point.QUEUE_SORT]:  # Coscheduling takes the place of PrioritySort
        lists[Point.QUEUE_SORT] = expand(plugged.preset, Plugins(), points_of)[Point.QUEUE_SORT]
    return lists


def _is_left_out(name: str, known: Mapping[str, object]) -> bool:
    return name in GROUP_PLUGINS and known.get(name) is GROUP_PLUGINS[name]


def _check_names(
    plugins: Plugins, path: str, known: Mapping[str, KnownPlugin], names: PluginNames, problems: Problems
) -> None:
    sets = {**{str(point): plugins.at(point) for point in Point}, MULTI_POINT: plugins.multi_point}
    for place, of_groups in (
        ("placementGenerate", plugins.placement_generate),
        ("placementScore", plugins.placement_score),
    ):
        if any(not _is_left_out(ref.name, known) for ref in of_groups.enabled or ()):
            problems.append(f"{path}.{place}: not supported; groups are placed without plugins")
    for place, chosen in sets.items():
        for index, ref in enumerate(chosen.enabled or ()):
            where = f"{path}.{place}.enabled[{index}]"
            if not names.allows_at(ref, place, chosen):
                problems.append(names.problem_of(f"{where}.name", ref.name))
            elif place != MULTI_POINT and Point(place) not in known[ref.name].points:
                offered = ", ".join(known[ref.name].points)
                problems.append(f"{where}.name: plugin {ref.name!r} has no {place}; it has {offered}")
            problems.check_range(f"{where}.weight", ref.weight, 0, _MAX_WEIGHT)
        _check_disabled_and_repeated(chosen, f"{path}.{place}", known, names, problems)


def _check_disabled_and_repeated(
    chosen: PluginSet, path: str, known: Mapping[str, KnownPlugin], names: PluginNames, problems: Problems
) -> None:
    enabled = [ref.name for ref in chosen.enabled or ()]
    for name in sorted({name for name in enabled if enabled.count(name) > 1}):
        problems.append(f"{path}.enabled: {name!r} is listed more than once")
    for index, ref in enumerate(chosen.disabled or ()):
        if ref.name not in (EVERYTHING, *NOT_HERE) and ref.name not in known:
            problems.append(names.problem_of(f"{path}.disabled[{index}].name", ref.name))


def _check_lists(lists: PluginLists, path: str, problems: Problems) -> None:
    sorting = [ref.name for ref in lists[Point.QUEUE_SORT]]
    if len(sorting) != 1:
        problems.append(f"{path}.queueSort: want exactly one plugin, got {sorting}")
    if not lists[Point.BIND]:
        problems.append(f"{path}.bind: want at least one plugin, got none")


def _check_together(profiles: tuple[ProfileConfiguration, ...], problems: Problems, *, is_partial: bool) -> None:
    names = [profile.scheduler_name for profile in profiles]
    for index, name in enumerate(names):
        if name in names[:index]:
            problems.append(f"profiles[{index}].schedulerName: {name!r} is the name of another profile")
    if is_partial:
        return
    first = profiles[0].plugins[Point.QUEUE_SORT]
    for index, profile in enumerate(profiles[1:], start=1):
        if profile.plugins[Point.QUEUE_SORT] != first:
            problems.append(f"profiles[{index}].plugins.queueSort: want {SAME_QUEUE}")
        elif any(profile.args.get(ref.name) != profiles[0].args.get(ref.name) for ref in first):
            problems.append(f"profiles[{index}].pluginConfig: want arguments of {first[0].name!r} {SAME_QUEUE}")


def merge_set(preset: PluginSet, custom: PluginSet) -> tuple[PluginRef, ...]:
    """The preset's plugins without disabled ones, re-enabled ones in place with their new weight, then new ones."""
    disabled = _disabled(preset, custom)
    replaced = {ref.name: ref for ref in custom.enabled or ()}
    kept = [
        replaced.pop(ref.name, ref)
        for ref in (preset.enabled or ())
        if EVERYTHING not in disabled and ref.name not in disabled
    ]
    return (*kept, *(ref for ref in custom.enabled or () if ref.name in replaced))


def expand(preset: Plugins, custom: Plugins, points_of: Mapping[str, Collection[Point]]) -> PluginLists:
    """The list of each extension point. ``points_of``: the points of each plugin."""
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
    """Disabled by the preset or the profile: disabled for plugins of multiPoint too."""
    return frozenset(ref.name for ref in (*(custom.disabled or ()), *(preset.disabled or ())))


def _args(  # noqa: PLR0913, PLR0917 - what is given, where, what it is checked against
    given: FileProfile,
    path: str,
    lists: PluginLists,
    known: Mapping[str, KnownPlugin],
    names: PluginNames,
    problems: Problems,
) -> Mapping[str, object]:
    made: dict[str, object] = {}
    for index, config in enumerate(given.plugin_config or ()):
        place = f"{path}[{index}]"
        if config.name in made:
            problems.append(f"{place}.name: {config.name!r} is listed more than once")
        elif not names.allows(config.name):
            problems.append(names.problem_of(f"{place}.name", config.name))
        else:
            made[config.name] = _read_args(
                config.args or {}, config.name, f"{place}.args", known[config.name], problems
            )
    made = {name: args for name, args in made.items() if not _is_left_out(name, known)}
    used = dict.fromkeys(ref.name for refs in lists.values() for ref in refs)
    for name in (name for name in used if name not in made and name in known):
        args_type = known[name].args_type
        default = args_type() if args_type is not None else None
        if default is not None:
            made[name] = default
        problems.extend(known[name].validate(default, f"{path}.{name}"))
    return made


def _read_args(
    given: dict[str, object], name: str, path: str, plugin: KnownPlugin, problems: Problems
) -> object | None:
    """Read arguments, which may contain apiVersion and kind, as in kube-scheduler's files."""
    fields = {key: value for key, value in given.items() if key not in ("apiVersion", "kind")}
    if plugin.args_type is None:
        problems.extend(f"{path}.{key}: unknown field, {name!r} takes no arguments" for key in fields)
        return None
    _check_args_identity(given, name, path, problems)
    found = Problems()
    made = read_struct(fields, plugin.args_type, path, found)
    problems.extend(found)
    if made is not None and len(found) == found.unknown_fields:  # else defaults stand in for invalid values
        problems.extend(plugin.validate(made, path))
    return made


def _check_args_identity(given: dict[str, object], name: str, path: str, problems: Problems) -> None:
    version, kind = given.get("apiVersion"), given.get("kind")
    if version is not None and version != API_VERSION:
        problems.append(f"{path}.apiVersion: want {API_VERSION!r}, got {version!r}")
    if kind is not None and kind != f"{name}Args":
        problems.append(f"{path}.kind: want {name + 'Args'!r}, got {kind!r}")


class NamedPlugin(Protocol):
    """A plugin as the check of its name needs it."""

    @property
    def only_in_presets(self) -> bool:
        """Whether the plugin is gone from v1: files may name it only in whole lists, as its preset has them."""
        ...


@dataclass(slots=True, kw_only=True)
class PluginNames:
    known: Mapping[str, NamedPlugin]
    preset: Plugins
    has_listed: bool = field(init=False, default=False)  # a problem has listed all names already

    def allows(self, name: str) -> bool:
        """Whether any file may name the plugin."""
        return name in self.known and not self.known[name].only_in_presets

    def allows_at(self, ref: PluginRef, place: str, written: PluginSet) -> bool:
        """Whether this set of an extension point, or of multiPoint, may name the plugin.

        A plugin that is gone from v1 may be in a whole list, as ``berth config show`` prints it, where the preset has
        it.
        """
        return self.allows(ref.name) or (
            ref.name in self.known and _is_whole(written) and _read(ref) in self._of_preset(place)
        )

    def problem_of(self, path: str, name: str) -> str:
        """The problem with the name at this path."""
        if name in GONE_PLUGINS:
            return f"{path}: {name!r} was invalid in version {API_VERSION!r}; {GONE_PLUGINS[name]}"
        if name in REFUSED_PLUGINS:
            return f"{path}: {name!r} is not supported; {REFUSED_PLUGINS[name]}"
        near, listed = did_you_mean(name, self._offered()), self._listed_once()
        known = (
            f"{' Known' if near else ', known'} are {listed}; your own is known where its package is installed"
            if listed
            else ""
        )
        return f"{path}: unknown plugin {name!r}{near}{known}"

    def _listed_once(self) -> str:
        """All valid names; empty after the first problem, so that a long list is not repeated."""
        if self.has_listed:
            return ""
        self.has_listed = True
        return ", ".join(self._offered())

    def _of_preset(self, place: str) -> set[tuple[str, int]]:
        if place not in set(Point):
            return set()
        return {_read(ref) for ref in self.preset.at(Point(place)).enabled or ()}

    def _offered(self) -> list[str]:
        return [name for name in sorted(self.known) if self.allows(name) and not _is_left_out(name, self.known)]


def _is_whole(written: PluginSet) -> bool:
    return any(ref.name == EVERYTHING for ref in written.disabled or ())


def _read(ref: PluginRef) -> tuple[str, int]:
    """A missing or zero weight is 1."""
    return ref.name, ref.weight or 1


RefsChange = Callable[[list[PluginRef] | None], list[PluginRef] | None]


def with_own_names(profile: FileProfile, known: Mapping[str, object]) -> FileProfile:
    """The profile with aliases replaced by the plugins' own names; unknown names stay."""
    aliases = {alias: own for alias, plugin in known.items() if (own := getattr(plugin, "name", alias)) != alias}
    if not aliases:
        return profile

    def own_name(name: str) -> str:
        return aliases.get(name, name)

    config = profile.plugin_config
    return msgspec.structs.replace(
        profile,
        plugins=_each_set(profile.plugins, partial(_renamed, own_name)),
        plugin_config=config and [msgspec.structs.replace(one, name=own_name(one.name)) for one in config],
    )


def _only_known(profile: FileProfile, known: Collection[str]) -> FileProfile:
    config = profile.plugin_config
    return msgspec.structs.replace(
        profile,
        plugins=_each_set(profile.plugins, partial(_only_refs, known)),
        plugin_config=config and [one for one in config if one.name in known],
    )


def _each_set(plugins: Plugins, change: RefsChange) -> Plugins:
    sets = {field.name: getattr(plugins, field.name) for field in msgspec.structs.fields(Plugins)}
    return Plugins(
        **{
            name: PluginSet(enabled=change(given.enabled), disabled=change(given.disabled))
            for name, given in sets.items()
        }
    )


def _renamed(own_name: Callable[[str], str], refs: list[PluginRef] | None) -> list[PluginRef] | None:
    return refs and [msgspec.structs.replace(ref, name=own_name(ref.name)) for ref in refs]


def _only_refs(known: Collection[str], refs: list[PluginRef] | None) -> list[PluginRef] | None:
    return refs and [ref for ref in refs if ref.name in known or ref.name == EVERYTHING]
