"""Second names of plugins: what a profile says under one is said of the plugin, whichever name the rest uses.

The article that NetworkTraffic comes from enables ``network_traffic`` and configures ``NetworkTraffic``; there the
arguments never arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from berth.api.config.types import FileProfile, PluginRef, Plugins, PluginSet

Rename = Callable[[str], str]


def with_own_names(profile: FileProfile, known: Mapping[str, object]) -> FileProfile:
    """The profile with every alias replaced by the plugin's own name; unknown names stay for others to complain of."""
    aliases = {alias: own for alias, plugin in known.items() if (own := getattr(plugin, "name", alias)) != alias}
    if not aliases:
        return profile

    def own_name(name: str) -> str:
        return aliases.get(name, name)

    config = profile.plugin_config
    return msgspec.structs.replace(
        profile,
        plugins=_plugins(profile.plugins, own_name),
        plugin_config=config and [msgspec.structs.replace(one, name=own_name(one.name)) for one in config],
    )


def _plugins(plugins: Plugins, own_name: Rename) -> Plugins:
    names = [field.name for field in msgspec.structs.fields(Plugins)]
    return Plugins(**{name: _set(getattr(plugins, name), own_name) for name in names})


def _set(given: PluginSet, own_name: Rename) -> PluginSet:
    return PluginSet(enabled=_refs(given.enabled, own_name), disabled=_refs(given.disabled, own_name))


def _refs(refs: list[PluginRef] | None, own_name: Rename) -> list[PluginRef] | None:
    return refs and [msgspec.structs.replace(ref, name=own_name(ref.name)) for ref in refs]
