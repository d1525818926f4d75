"""The configuration file, read with every plugin that this installation has."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import ConfigurationError, default_configuration, load
from berth.framework.profile import Profile, build_profiles
from berth.plugins.factory import PluginFactory
from berth.plugins.presets import DEFAULT_NAME, preset
from berth.plugins.registry import RegistryError, with_third_party
from berth.service.settings import PLUGIN_DEADLINE
from berth.service.third_party import third_party_plugins


def known_plugins(deadline: timedelta = PLUGIN_DEADLINE) -> Mapping[str, PluginFactory]:
    """The built-in plugins and those of other distributions, whose calls may take so long.

    Raises:
        RegistryError: one of them has the name of another plugin.
    """
    return with_third_party(third_party_plugins(deadline).factories)


def read_configuration(path: Path | None, *, provider: str = DEFAULT_NAME) -> KubeSchedulerConfiguration:
    """The configuration of a file; without one, the defaults. Profiles start from the preset named ``provider``.

    Raises:
        ConfigurationError: the file cannot be read, or every reason why it cannot be used.
        UnknownPresetError: no preset has that name.
    """
    plugins = preset(provider)
    found = third_party_plugins(PLUGIN_DEADLINE)
    try:
        known = with_third_party(found.factories)
    except RegistryError as error:
        raise ConfigurationError([str(error)]) from error
    if path is None:
        return default_configuration(known, plugins)
    try:
        return load(_text_of(path), known=known, preset=plugins, source=str(path))
    except ConfigurationError as error:
        raise ConfigurationError([*error.problems, *found.broken], source=str(path)) from error


def profiles_of(
    configuration: KubeSchedulerConfiguration, deadline: timedelta = PLUGIN_DEADLINE
) -> Mapping[str, Profile]:
    """The profiles with their plugins made, by scheduler name; plugins from elsewhere get a deadline for each call.

    Raises:
        PluginBuildError: one of these cannot be made.
    """
    return build_profiles(configuration, known_plugins(deadline))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError([f"reading: {exc}"], source=str(path)) from exc
