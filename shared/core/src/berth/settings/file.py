"""Reads the configuration file and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from berth.api.config.configuration import (
    ClientConnection,
    KubeSchedulerConfiguration,
    LeaderElection,
    ProfileConfiguration,
)
from berth.api.config.decode import MOST_CHARACTERS
from berth.api.config.encode import as_document
from berth.api.config.load import ConfigurationError, default_configuration, load
from berth.api.config.profiles import KnownPlugin
from berth.settings.presets import gates_for, preset
from berth.settings.settings import Settings


def read_file(
    path: Path | None, *, known: Mapping[str, KnownPlugin], provider: str, gates: str, partial: bool = False
) -> KubeSchedulerConfiguration:
    """Read the configuration, the defaults without a file. Profiles start from the preset named ``provider``.

    ``gates`` sets the preset's feature gates: ``A=true,B=false``. ``partial``: see :func:`load`.

    Raises:
        ConfigurationError: the file cannot be read, or has errors; lists all of them.
        UnknownPresetError: no preset has that name.
        GateError: the preset has no such gate.
    """
    chosen = preset(provider)
    plugins = chosen.all_plugins(gates_for(provider, gates))
    if path is None:
        read = default_configuration(known, plugins, partial=partial)
    else:
        read = load(_text_of(path), known=known, preset=plugins, source=str(path), partial=partial)
    return replace(read, release=chosen.release)


def file_values(configuration: KubeSchedulerConfiguration | None) -> dict[str, object]:
    """The settings that a configuration file can contain, by path."""
    if configuration is None:
        return {}
    election, connection = configuration.leader_election, configuration.client_connection
    return {
        "leader_election.leader_elect": election.leader_elect,
        "leader_election.lease_duration": election.lease_duration,
        "leader_election.renew_deadline": election.renew_deadline,
        "leader_election.retry_period": election.retry_period,
        "leader_election.resource_name": election.resource_name,
        "leader_election.resource_namespace": election.resource_namespace,
        "kube.kubeconfig": connection.kubeconfig or None,
        "kube.qps": connection.qps,
        "kube.burst": connection.burst,
    }


def public_configuration(configuration: KubeSchedulerConfiguration, settings: Settings) -> Mapping[str, Any]:
    """The configuration in force, flags and variables included, as /configz shows it to anybody.

    Passwords in URLs, keys, and the arguments of other distributions' plugins are left out, because they may be secret.
    """
    election, kube = settings.leader_election, settings.kube
    in_force = replace(
        configuration,
        leader_election=LeaderElection(
            leader_elect=election.leader_elect,
            lease_duration=election.lease_duration,
            renew_deadline=election.renew_deadline,
            retry_period=election.retry_period,
            resource_name=election.resource_name,
            resource_namespace=election.resource_namespace,
        ),
        client_connection=ClientConnection(kubeconfig=str(kube.kubeconfig or ""), qps=kube.qps, burst=kube.burst),
        profiles=tuple(_with_args_of(configuration.built_in, profile) for profile in configuration.profiles),
        extenders=tuple(
            replace(each, url_prefix=each.name, tls=replace(each.tls, key_pem=b"")) for each in configuration.extenders
        ),
    )
    return as_document(in_force)


def _with_args_of(built_in: frozenset[str], profile: ProfileConfiguration) -> ProfileConfiguration:
    return replace(profile, args={name: args for name, args in profile.args.items() if name in built_in})


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)  # more is refused
    except (OSError, UnicodeDecodeError) as exc:
        cause = getattr(exc, "strerror", None) or exc
        raise ConfigurationError([f"reading: {cause}"], source=str(path)) from exc
