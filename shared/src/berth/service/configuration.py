"""The configuration file, read with every plugin that this installation has."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import ConfigurationError, default_configuration, load
from berth.framework.profile import Profile, build_profiles
from berth.plugins.factory import PluginFactory
from berth.plugins.presets import DEFAULT
from berth.plugins.registry import BUILT_IN

ENTRY_POINTS: Final = "berth.plugins"
"""The entry-point group in which plugins from elsewhere are found: name = factory."""


def known_plugins() -> Mapping[str, PluginFactory]:
    """The built-in plugins and those of other distributions; a built-in name cannot be taken by others."""
    found = {point.name: point.load() for point in entry_points(group=ENTRY_POINTS)}
    return {**found, **BUILT_IN}


def read_configuration(path: Path | None) -> KubeSchedulerConfiguration:
    """The configuration of a file; without one, the defaults.

    Raises:
        ConfigurationError: the file cannot be read, or every reason why it cannot be used.
    """
    if path is None:
        return default_configuration(known_plugins(), DEFAULT)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError([f"reading: {exc}"], source=str(path)) from exc
    return load(text, known=known_plugins(), preset=DEFAULT, source=str(path))


def profiles_of(configuration: KubeSchedulerConfiguration) -> Mapping[str, Profile]:
    """The profiles with their plugins made, by scheduler name."""
    return build_profiles(configuration, known_plugins())
