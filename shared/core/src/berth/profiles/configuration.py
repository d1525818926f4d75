"""The configuration file and the installed plugins, those of other distributions included.

A plugin package that cannot be loaded is an error only for a configuration that uses it. Each call of a plugin of
another distribution has a deadline: a timer signal raises an exception in the main thread. This ends calls that hang in
Python or in a system call (``while True``, ``time.sleep``, a socket). A call that hangs in C without returning to the
interpreter ends only with the process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, TypeVar

from berth.api.config.configuration import (
    ClientConnection,
    KubeSchedulerConfiguration,
    LeaderElection,
    ProfileConfiguration,
)
from berth.api.config.decode import MOST_CHARACTERS
from berth.api.config.encode import as_document
from berth.api.config.load import ConfigurationError, default_configuration, load
from berth.errors import PermanentError
from berth.framework.interface import CallLimit, Plugin
from berth.framework.plugincalls import OutOfTime
from berth.framework.profile import POINT_TYPES, Profile, build_profiles
from berth.plugins.factory import PluginFactory
from berth.plugins.presets import CURRENT_RELEASE, DEFAULT_NAME, gates_for, preset
from berth.plugins.registry import BUILT_IN, RegistryError, plugins_of_release, with_third_party
from berth.settings.settings import PLUGIN_DEADLINE, Settings
from berth.settings.sources import SettingsError, read_settings

R = TypeVar("R")


AGAIN_SECONDS: Final = 0.1
"""Pause until the timer fires again, for code that catches the first exception."""

_SOONEST: Final = 1e-6
"""Shortest timer, since a timer of 0 is none."""


class CallDeadline:
    """Runs work in the main thread and raises ``OutOfTime`` in it after ``deadline``. In other threads: no deadline.

    A nested call shares the deadline of the outer one. The former handler of SIGALRM is restored.
    """

    def __init__(self, deadline: timedelta) -> None:
        self._seconds = deadline.total_seconds()
        self._running = False

    def __call__(self, work: Callable[[], R]) -> R:
        """Run the work and return its result.

        Raises:
            OutOfTime: it took too long.
        """
        if self._running or threading.current_thread() is not threading.main_thread():
            return work()
        handler, began = signal.signal(signal.SIGALRM, self._ring), time.monotonic()
        left, interval = signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN_SECONDS)
        try:
            return self._run(work)
        finally:  # the timer cannot fire here: it has just fired, or is off
            self._running = False
            remaining = max(left - (time.monotonic() - began), _SOONEST) if left else 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, remaining, interval)

    def _run(self, work: Callable[[], R]) -> R:
        try:
            self._running = True
            return work()
        finally:
            self._running = False

    def _ring(self, _number: int, _frame: object) -> None:
        if self._running:
            raise OutOfTime(self._seconds)


GROUP: Final = "berth.plugins"
"""The entry-point group: ``NAME = "module:FACTORY"``, FACTORY being a ``berth.plugins.factory.PluginFactory``."""


class PluginBuildError(PermanentError):
    """A plugin of another distribution could not be created from arguments that it had accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirdPartyPlugins:
    """The ``factories`` of plugins that can be loaded, and an error text for each one that cannot."""

    factories: tuple[PluginFactory, ...]
    broken: tuple[str, ...]


def third_party_plugins(deadline: timedelta, points: Iterable[EntryPoint] | None = None) -> ThirdPartyPlugins:
    """Plugins of other installed distributions. A call that takes longer than ``deadline`` fails its pod.

    Raises:
        RegistryError: a name is taken, by a built-in plugin or another package's.
    """
    limit = CallDeadline(deadline)
    factories: list[PluginFactory] = []
    broken: list[str] = []
    taken = set(BUILT_IN)
    for point in entry_points(group=GROUP) if points is None else points:
        loaded = _load(point)
        if isinstance(loaded, PluginFactory):
            if loaded.name in taken:
                whose = f"registering plugin {loaded.name!r}{_of(point)}"
                raise RegistryError(f"{whose}: the name is taken: uninstall the package, or give it another name")
            taken.add(loaded.name)
            factories.append(replace(loaded, build=_with_care(loaded, limit)))
        else:
            broken.append(loaded)
    return ThirdPartyPlugins(factories=tuple(factories), broken=tuple(broken))


def _load(point: EntryPoint) -> PluginFactory | str:
    where = f"loading plugin {point.name!r} from {point.value!r}{_of(point)}"
    try:
        loaded = point.load()
    except Exception as exc:  # noqa: BLE001 - a package may raise anything on import
        return f"{where}: {type(exc).__name__}: {exc}"
    if not isinstance(loaded, PluginFactory):
        return f"{where}: want a berth.plugins.factory.PluginFactory, got {loaded!r:.80}"
    if loaded.name != point.name:
        return f"{where}: want a plugin of that name, got one named {loaded.name!r}"
    return loaded


def _of(point: EntryPoint) -> str:
    """The distribution of an entry point, with its version."""
    return f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""


def _with_care(factory: PluginFactory, limit: CallLimit) -> Callable[[Any], Plugin]:
    def build(args: Any) -> Plugin:
        try:
            plugin = factory.build(args)
        except Exception as exc:
            raise PluginBuildError(f"making plugin {factory.name!r}: {type(exc).__name__}: {exc}") from exc
        if problem := _difference(factory, plugin):
            raise PluginBuildError(f"making plugin {factory.name!r}: {problem}")
        plugin.limit = limit
        return plugin

    return build


def _difference(factory: PluginFactory, plugin: Plugin) -> str:
    """How the points of a factory and the classes of its plugin differ; empty if they do not."""
    kind = type(plugin).__name__
    for point, needed in POINT_TYPES.items():
        if point in factory.points and not isinstance(plugin, needed):
            return f"its factory has the point {str(point)!r}, and {kind} does not inherit from {needed.__name__}"
        if point not in factory.points and isinstance(plugin, needed):
            return f"{kind} inherits from {needed.__name__}, and its factory has no point {str(point)!r}"
    return ""


MOST_DISKS_VARIABLE: Final = "KUBE_MAX_PD_VOLS"
"""Maximum number of cloud disks on a node without a limit of its own, for the plugins of 1.18 that count disks. 1.18
has the same name. The value must be the same in all services."""


def known_plugins(deadline: timedelta = PLUGIN_DEADLINE, release: str = CURRENT_RELEASE) -> Mapping[str, PluginFactory]:
    """The plugins of a release, and those of other distributions with a deadline for each call.

    Raises:
        RegistryError: one of them has the name of another plugin.
    """
    return _of_release(release, with_third_party(third_party_plugins(deadline).factories))


def read_configuration(
    path: Path | None, *, provider: str = DEFAULT_NAME, gates: str = ""
) -> KubeSchedulerConfiguration:
    """The configuration of a file; without a file, the defaults. Profiles start from the preset named ``provider``.

    ``gates`` sets the preset's feature gates: ``A=true,B=false``.

    Raises:
        ConfigurationError: the file cannot be read, or has errors; lists all of them.
        UnknownPresetError: no preset has that name.
        GateError: no preset, or not this one, has such a gate.
    """
    chosen = preset(provider)
    plugins = chosen.all_plugins(gates_for(provider, gates))
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


def problems_in_services(configuration: KubeSchedulerConfiguration) -> tuple[str, ...]:
    """What services would refuse in a valid file: its numbers must fit theirs, and each plugin must let itself be made.

    The rule: docs/protocol.md, 7.
    """
    try:
        read_settings(environment={}, file=file_values(configuration))
        profiles_of(configuration)
    except SettingsError as error:
        return error.problems
    except PluginBuildError as error:
        return (str(error),)
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


def for_everybody(configuration: KubeSchedulerConfiguration, settings: Settings) -> Mapping[str, Any]:
    """The configuration in force, flags and variables included, as /configz shows it to whoever reaches the port.

    Left out is what may be secret: passwords in URLs, keys, and the arguments of other distributions' plugins.
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
        profiles=tuple(map(_with_known_args, configuration.profiles)),
        extenders=tuple(
            replace(each, url_prefix=each.name, tls=replace(each.tls, key_pem=b"")) for each in configuration.extenders
        ),
    )
    return as_document(in_force)


def _with_known_args(profile: ProfileConfiguration) -> ProfileConfiguration:
    return replace(profile, args={name: args for name, args in profile.args.items() if name in BUILT_IN})


def profiles_of(
    configuration: KubeSchedulerConfiguration, deadline: timedelta = PLUGIN_DEADLINE
) -> Mapping[str, Profile]:
    """The profiles with their plugins, by scheduler name. Plugins of other distributions get a deadline for each call.

    Raises:
        PluginBuildError: a plugin cannot be created.
    """
    return build_profiles(configuration, known_plugins(deadline, configuration.release))


def _of_release(release: str, known: Mapping[str, PluginFactory]) -> Mapping[str, PluginFactory]:
    return plugins_of_release(release, known, most_disks=_most_disks() if release != CURRENT_RELEASE else None)


def _most_disks() -> int | None:
    given = os.environ.get(MOST_DISKS_VARIABLE)
    if not given:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise ConfigurationError([f"{MOST_DISKS_VARIABLE}: want a whole number above 0, got {given!r}"])
    return int(given)


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)  # more is refused
    except (OSError, UnicodeDecodeError) as exc:
        cause = getattr(exc, "strerror", None) or exc
        raise ConfigurationError([f"reading: {cause}"], source=str(path)) from exc
