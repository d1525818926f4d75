"""The installed plugins: built-in ones and other distributions' ones.

A plugin package that cannot be loaded is an error only for a configuration that uses it. Each call of another
distribution's plugin has a deadline: a timer signal raises an exception in the main thread, which ends calls that hang
in Python or in a system call. A call that hangs in C ends only with the process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from berth.api.config.presets import CURRENT_RELEASE
from berth.errors import PermanentError
from berth.framework.interface import CallLimit, Plugin
from berth.framework.plugincalls import OutOfTime
from berth.framework.profile import POINT_TYPES
from berth.plugins.factory import PluginFactory
from berth.plugins.registry import BUILT_IN
from berth.settings.settings import PLUGIN_DEADLINE

R = TypeVar("R")


AGAIN_SECONDS: Final = 0.1  # until the timer fires again, for code that catches the first exception

_SOONEST: Final = 1e-6  # shortest timer, because 0 switches it off


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
        finally:  # The timer cannot fire here: it has just fired, or is off.
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


# The entry-point group: NAME = "module:FACTORY", FACTORY being a berth.plugins.factory.PluginFactory. A name
# NAME@RELEASE is the plugin NAME in the form that presets of that release of Kubernetes use.
GROUP: Final = "berth.plugins"


class PluginBuildError(PermanentError):
    """A plugin of another distribution could not be created from arguments that it had accepted."""


class RegistryError(PermanentError):
    """Two plugins have the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPlugins:
    """All plugins, also built-in ones, and an error text for each plugin that cannot be loaded."""

    known: Mapping[str, PluginFactory]
    broken: tuple[str, ...] = ()


def installed_plugins(
    deadline: timedelta = PLUGIN_DEADLINE,
    release: str = CURRENT_RELEASE,
    points: Iterable[EntryPoint] | None = None,
) -> InstalledPlugins:
    """The built-in plugins and other distributions' plugins, whose calls fail the pod after ``deadline``.

    An entry point named NAME@RELEASE replaces the plugin NAME for that release and is loaded for no other.

    Raises:
        RegistryError: a name is taken, by a built-in plugin or another package's.
    """
    limit = CallDeadline(deadline)
    added: dict[str, PluginFactory] = {}
    replaced: dict[str, PluginFactory] = {}
    broken: list[str] = []
    for point in entry_points(group=GROUP) if points is None else points:
        name, at, of_release = point.name.partition("@")
        if at and of_release != release:
            continue
        loaded = _load(point, name)
        if isinstance(loaded, str):
            broken.append(loaded)
            continue
        others = replaced if at else added
        if name in others or (not at and name in BUILT_IN):
            whose = f"registering plugin {name!r}{_of(point)}"
            raise RegistryError(f"{whose}: the name is taken: uninstall the package, or give it another name")
        others[name] = replace(loaded, build=_with_care(loaded, limit))
    return InstalledPlugins(known={**BUILT_IN, **added, **replaced}, broken=tuple(broken))


def known_plugins(deadline: timedelta = PLUGIN_DEADLINE, release: str = CURRENT_RELEASE) -> Mapping[str, PluginFactory]:
    """Plugins by name. Other distributions' plugins get a deadline for each call.

    Raises:
        RegistryError: one of them has the name of another plugin.
    """
    return installed_plugins(deadline, release).known


def _load(point: EntryPoint, name: str) -> PluginFactory | str:
    where = f"loading plugin {point.name!r} from {point.value!r}{_of(point)}"
    try:
        loaded = point.load()
    except Exception as exc:  # noqa: BLE001 - a package may raise anything on import
        return f"{where}: {type(exc).__name__}: {exc}"
    if not isinstance(loaded, PluginFactory):
        return f"{where}: want a berth.plugins.factory.PluginFactory, got {loaded!r:.80}"
    if loaded.name != name:
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
    """The difference between a factory's points and the classes of its plugin; empty if equal."""
    kind = type(plugin).__name__
    for point, needed in POINT_TYPES.items():
        if point in factory.points and not isinstance(plugin, needed):
            return f"its factory has the point {str(point)!r}, and {kind} does not inherit from {needed.__name__}"
        if point not in factory.points and isinstance(plugin, needed):
            return f"{kind} inherits from {needed.__name__}, and its factory has no point {str(point)!r}"
    return ""
