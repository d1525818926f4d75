"""The configuration file with every plugin of its profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import ConfigurationError
from berth.api.config.presets import DEFAULT_NAME
from berth.framework.profile import Profile, build_profiles
from berth.plugins.registry import BUILT_IN, IN_EVERY_PROFILE
from berth.profiles.installed import PluginBuildError, RegistryError, installed_plugins, known_plugins
from berth.settings.file import file_values, read_file
from berth.settings.presets import preset
from berth.settings.settings import PLUGIN_DEADLINE
from berth.settings.sources import SettingsError, read_settings


def read_configuration(
    path: Path | None, *, provider: str = DEFAULT_NAME, gates: str = ""
) -> KubeSchedulerConfiguration:
    """The configuration of a file; without a file, the defaults. See :func:`read_file`.

    Raises:
        ConfigurationError, UnknownPresetError, GateError: as there.
    """
    try:
        installed = installed_plugins(release=preset(provider).release)
    except RegistryError as error:
        raise ConfigurationError([str(error)]) from error
    try:
        read = read_file(path, known=installed.known, provider=provider, gates=gates)
    except ConfigurationError as error:
        source = "" if path is None else str(path)
        raise ConfigurationError([*error.problems, *installed.broken], source=source) from error
    return replace(read, built_in=frozenset(BUILT_IN))


def problems_in_services(
    configuration: KubeSchedulerConfiguration,
    environment: Mapping[str, str],
    flags: Mapping[str, str] | None = None,
    *,
    source: str = "",
) -> Iterator[str]:
    """Problems that services with this environment and these flags find in a valid file, ``source``.

    Its times and theirs must fit (docs/protocol.md, 7), and each plugin must be creatable.
    """
    values = file_values(configuration)
    try:
        read_settings(flags=flags, environment=environment, file=values, file_name=source)
    except SettingsError as error:
        yield from error.problems
    try:
        profiles_of(configuration)
    except PluginBuildError as error:
        yield f"{source}: {error}" if source else str(error)


def profiles_of(
    configuration: KubeSchedulerConfiguration, deadline: timedelta = PLUGIN_DEADLINE
) -> Mapping[str, Profile]:
    """The profiles with their plugins, by scheduler name. Plugins of other distributions get a deadline for each call.

    Raises:
        PluginBuildError: a plugin cannot be created.
    """
    return build_profiles(configuration, known_plugins(deadline, configuration.release), IN_EVERY_PROFILE)
