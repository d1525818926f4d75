"""The configuration file, read with every plugin that this installation has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import ConfigurationError, default_configuration, load
from berth.framework.profile import Profile, build_profiles
from berth.plugins.factory import PluginFactory
from berth.plugins.presets import CURRENT, DEFAULT_NAME, gates_for, preset
from berth.plugins.registry import RegistryError, of_release, with_third_party
from berth.service.settings import PLUGIN_DEADLINE
from berth.service.third_party import third_party_plugins

MOST_DISKS_VARIABLE: Final = "KUBE_MAX_PD_VOLS"
"""How many disks of a cloud a node may have that does not say, for the plugins of 1.18 that count them; its own name
there. The same in all services."""


def known_plugins(deadline: timedelta = PLUGIN_DEADLINE, release: str = CURRENT) -> Mapping[str, PluginFactory]:
    """The plugins of a release, and those of other distributions, whose calls may take so long.

    Raises:
        RegistryError: one of them has the name of another plugin.
    """
    return _of_release(release, with_third_party(third_party_plugins(deadline).factories))


def read_configuration(
    path: Path | None, *, provider: str = DEFAULT_NAME, gates: str = ""
) -> KubeSchedulerConfiguration:
    """The configuration of a file; without one, the defaults. Profiles start from the preset named ``provider``.

    ``gates`` switches what the preset has gates for: ``A=true,B=false``.

    Raises:
        ConfigurationError: the file cannot be read, or every reason why it cannot be used.
        UnknownPresetError: no preset has that name.
        GateError: no preset, or not this one, has such a gate.
    """
    chosen = preset(provider)
    plugins = chosen.whole(gates_for(provider, gates))
    found = third_party_plugins(PLUGIN_DEADLINE)
    try:
        known = _of_release(chosen.release, with_third_party(found.factories))
    except RegistryError as error:
        raise ConfigurationError([str(error)]) from error
    if path is None:
        return replace(default_configuration(known, plugins), release=chosen.release)
    try:
        read = load(_text_of(path), known=known, preset=plugins, source=str(path))
        return replace(read, release=chosen.release)
    except ConfigurationError as error:
        raise ConfigurationError([*error.problems, *found.broken], source=str(path)) from error


def profiles_of(
    configuration: KubeSchedulerConfiguration, deadline: timedelta = PLUGIN_DEADLINE
) -> Mapping[str, Profile]:
    """The profiles with their plugins made, by scheduler name; plugins from elsewhere get a deadline for each call.

    Raises:
        PluginBuildError: one of these cannot be made.
    """
    return build_profiles(configuration, known_plugins(deadline, configuration.release))


def _of_release(release: str, known: Mapping[str, PluginFactory]) -> Mapping[str, PluginFactory]:
    return of_release(release, known, most_disks=_most_disks() if release != CURRENT else None)


def _most_disks() -> int | None:
    given = os.environ.get(MOST_DISKS_VARIABLE)
    if not given:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise ConfigurationError([f"{MOST_DISKS_VARIABLE}: want a whole number above 0, got {given!r}"])
    return int(given)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError([f"reading: {exc}"], source=str(path)) from exc
