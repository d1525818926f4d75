"""The services' configuration in a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from berth.api.config.configuration import ClientConnection, KubeSchedulerConfiguration
from berth.api.config.encode import as_document
from berth.api.config.load import ConfigurationError, load
from berth.plugins.factory import PluginFactory
from berth.profiles.installed import known_plugins
from berth.settings.presets import presets
from berth_cli.recording.file import Header, RecordingError, header


def recorded_configuration(configuration: KubeSchedulerConfiguration) -> dict[str, Any]:
    """The configuration as a document, without secrets and settings of one machine."""
    return as_document(
        replace(
            configuration,
            client_connection=ClientConnection(),
            extenders=tuple(
                replace(each, url_prefix=each.name, tls=replace(each.tls, key_pem=b"", key_file=""))
                for each in configuration.extenders
            ),
        )
    )


def recorded_header(configuration: KubeSchedulerConfiguration, bus_id: str, at: datetime) -> Header:
    return header(
        at=at,
        bus_id=bus_id,
        config=configuration.digest,
        release=configuration.release,
        configuration=recorded_configuration(configuration),
    )


def configuration_of(recorded: Header, name: str) -> KubeSchedulerConfiguration:
    """The configuration, with the digest of the recording's messages.

    Raises:
        RecordingError: it cannot be used here; the text has every problem.
    """
    # Any preset of the release lists the plugins; the document names those that run.
    releases = {preset.release: preset for preset in presets().values()}
    release = releases.get(recorded.release)
    if release is None:
        known = ", ".join(releases)
        raise RecordingError(f"{name}: its plugins are of release {recorded.release!r:.40}, and here are {known}")
    try:
        read = load(
            _text(recorded.configuration),
            known=_named_freely(known_plugins(release=release.release)),
            preset=release.plugins,
            source=f"the configuration in {name}",
        )
    except ConfigurationError as error:
        raise RecordingError("; ".join(str(error).splitlines())) from error
    return replace(read, release=release.release, digest=recorded.config)


def _named_freely(known: Mapping[str, PluginFactory]) -> Mapping[str, PluginFactory]:
    # Includes plugins that v1 no longer has, because a document names all plugins of its preset.
    return {name: replace(each, only_in_presets=False) for name, each in known.items()}


def _text(document: Mapping[str, Any]) -> str:
    # JSON is YAML too.
    return msgspec.json.encode(document).decode()
