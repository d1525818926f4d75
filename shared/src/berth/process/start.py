"""From flags to a running service: the part of the composition root that all services share.

main = service_command("berth-watcher", about=..., start=partial(start, name="watcher", serve=serve))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.encode import digests
from berth.api.config.load import ConfigurationError
from berth.api.safetext import one_line, without_passwords
from berth.plugins.presets import DEFAULT_NAME, UnknownPresetError, deprecation_warning
from berth.plugins.v1_18.providers import GateError
from berth.process.configuration import read_configuration
from berth.process.exits import Exit
from berth.process.flags import Flags
from berth.process.lifecycle import Process, run
from berth.process.settings import Settings
from berth.process.sources import SettingsError, read_settings

Serve = Callable[[Process, KubeSchedulerConfiguration], Awaitable[None]]
"""The main function of a service. Returns when the service has stopped."""


def start(flags: Flags, *, name: str, serve: Serve, environment: Mapping[str, str] | None = None) -> int:
    """Read settings and configuration and run the service; returns the exit code.

    All errors of both are written to standard error, before anything is opened or connected to.
    """
    try:
        settings, configuration = read_all(flags, os.environ if environment is None else environment)
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"berth-{name}: {without_passwords(one_line(problem))}\n")
        return Exit.USAGE
    if settings.parent_pid is None:  # otherwise the parent has printed it already
        for sentence in old_ways(settings, configuration):
            sys.stderr.write(f"berth-{name}: {one_line(sentence)}\n")
    return run(lambda process: serve(process, configuration), settings, name=name, digests=digests(configuration))


def old_ways(settings: Settings, configuration: KubeSchedulerConfiguration) -> list[str]:
    """A sentence for each deprecated form in flags or file, with the form that it was converted to."""
    deprecation = deprecation_warning(settings.algorithm_provider)
    converted = [f"{settings.config}: {sentence}" for sentence in configuration.converted]
    return [*([deprecation] if deprecation else []), *converted]


def read_all(flags: Flags, environment: Mapping[str, str]) -> tuple[Settings, KubeSchedulerConfiguration]:
    """Read settings and configuration. Settings without flag or variable come from the configuration.

    Raises:
        SettingsError: with every problem of both.
    """
    named = flags.get("config") or environment.get("BERTH_CONFIG")
    provider = flags.get("algorithm_provider") or environment.get("BERTH_ALGORITHM_PROVIDER") or DEFAULT_NAME
    gates = flags.get("feature_gates") or environment.get("BERTH_FEATURE_GATES") or ""
    problems: list[str] = []
    configuration = None
    try:
        configuration = read_configuration(Path(named) if named else None, provider=provider, gates=gates)
    except ConfigurationError as error:
        problems += error.problems
    except (UnknownPresetError, GateError) as error:
        problems.append(str(error))
    try:
        settings = read_settings(flags=flags, environment=environment, file=file_values(configuration))
    except SettingsError as error:
        problems += error.problems
    if problems or configuration is None:
        raise SettingsError(list(dict.fromkeys(problems)))
    return settings, configuration


def problems_in_services(configuration: KubeSchedulerConfiguration) -> tuple[str, ...]:
    """What services would refuse in a valid file: its numbers must fit theirs.

    The rule: docs/protocol.md, 7.
    """
    try:
        read_settings(environment={}, file=file_values(configuration))
    except SettingsError as error:
        return error.problems
    return ()


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
