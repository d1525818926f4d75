"""``berth plugin``: lists the plugins with their services and requeue events; creates the package of a new plugin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.table import Table

from berth.api.config.presets import CURRENT_RELEASE
from berth.api.config.types import EVERYTHING, Point
from berth.exits import Exit
from berth.framework.events import Action
from berth.framework.interface import EnqueueExtensions, Plugin
from berth.framework.profile import POINT_TYPES, REFUSING, RUNS_IN, services_of
from berth.plugins.factory import PluginFactory
from berth.plugins.registry import BUILT_IN
from berth.profiles.installed import PluginBuildError, known_plugins
from berth.settings.presets import presets
from berth_cli.options import Output, OutputFormat, print_document, reporting_errors
from berth_cli.pluginpackage import files_of, name_problem
from berth_cli.rendering import new_table, note, plain, print_line, print_rich

app = typer.Typer(name="plugin", help="List plugins, or write the package of a new one.", no_args_is_help=True)
_EVENTS: Final = "events"  # EnqueueExtensions, which is no extension point of a configuration
_PREFIXES: Final = ("UPDATE_NODE_", "UPDATE_POD_")


class PluginListing(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin as JSON.

    Attributes:
        release: the release of Kubernetes; older ones are available with --algorithm-provider only.
        points: the services that call the plugin, by extension point.
        wakes_on: by resource, the events that requeue pods rejected by the plugin; ``*`` is every event. ``None`` if
        they depend on arguments without a default.
    """

    name: str
    release: str
    points: Mapping[str, tuple[str, ...]]
    wakes_on: Mapping[str, tuple[str, ...]] | None
    takes_arguments: bool


@app.command("list")
def plugins(output: Output = OutputFormat.TABLE) -> None:
    """Print every plugin and its extension points.

    With the services that call it, and the events that requeue its pods.
    """
    with reporting_errors():
        listed = list(_every())
    if output.is_document:
        print_document(listed, output)
        return
    today = [one for one in listed if one.release == CURRENT_RELEASE]
    print_rich(_listing(today), "")
    for release in _older_releases():
        about = f"Plugins of {release} run with the presets of that release: `berth config providers`."
        print_rich(about, "", _listing(one for one in listed if one.release == release), "")
    print_rich(_callers())


def _listing(plugins: Iterable[PluginListing]) -> Table:
    table = new_table("PLUGIN", "POINTS", "REQUEUES ON")
    for one in plugins:
        table.add_row(*map(plain, (one.name, ", ".join(one.points), _wakes_on(one))))
    return table


def _callers() -> Table:
    """The services that call plugins, by extension point."""
    points: dict[tuple[str, ...], list[str]] = {tuple(map(str, RUNS_IN[EnqueueExtensions])): [_EVENTS]}
    for point in Point:
        if point in POINT_TYPES:
            points.setdefault(tuple(map(str, services_of(point))), []).append(str(point))
    table = new_table("CALLED IN", "AT")
    for services, names in points.items():
        table.add_row(plain(", ".join(services)), plain(", ".join(names)))
    return table


@app.command("new")
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name in a configuration, such as FirstNode.", show_default=False)
    ],
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder to write; by default a new folder here.")
    ] = None,
) -> None:
    """Write the package of a new plugin, with a test.

    The plugin scores nodes, has its entry point, and its test passes.
    """
    problem = name_problem(name)
    if not problem and name in BUILT_IN:
        problem = f"naming the plugin {name!r}: berth has a plugin of that name; give it another"
    if problem:
        note(problem)
        raise typer.Exit(Exit.USAGE)
    files = files_of(name)
    root = folder or Path(files.folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        note(f"writing plugin {name!r}: want a new or empty folder, got {str(root)!r}")
        raise typer.Exit(Exit.USAGE)
    for path, text in files.texts.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print_line(str(target))


def _every() -> Iterator[PluginListing]:
    """The current plugins, then the plugins of older releases that were changed or removed since."""
    today = known_plugins()
    yield from (listed_as(factory) for name, factory in today.items() if factory.name == name)
    for release in _older_releases():
        before = known_plugins(release=release)
        changed = (factory for name, factory in before.items() if name not in today or today[name] is not factory)
        yield from (listed_as(factory, release) for factory in changed)


def _older_releases() -> list[str]:
    return list(dict.fromkeys(each.release for each in presets().values() if each.release != CURRENT_RELEASE))


def listed_as(factory: PluginFactory, release: str = CURRENT_RELEASE) -> PluginListing:
    plugin = _built(factory)
    points = {str(point): tuple(map(str, services_of(point))) for point in factory.points}
    if isinstance(plugin, EnqueueExtensions):
        points[_EVENTS] = tuple(map(str, RUNS_IN[EnqueueExtensions]))
    return PluginListing(
        name=factory.name,
        release=release,
        points=points,
        wakes_on=None if plugin is None else _by_resource(plugin),
        takes_arguments=factory.args_type is not None,
    )


def _built(factory: PluginFactory) -> Plugin | None:
    """The plugin with default arguments; ``None`` if an argument has no default."""
    args = factory.args_type() if factory.args_type is not None else None
    if args is not None and factory.validate(args, ""):
        return None
    try:
        return factory.build(args)
    except PluginBuildError:
        return None


def _by_resource(plugin: Plugin) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(plugin, EnqueueExtensions):
        return {EVERYTHING: (EVERYTHING,)} if any(isinstance(plugin, POINT_TYPES[point]) for point in REFUSING) else {}
    actions: dict[str, Action] = {}
    for hint in plugin.events():
        resource = str(hint.event.resource)
        actions[resource] = actions.get(resource, Action(0)) | hint.event.action
    return {resource: tuple(_word(action) for action in Action if action & of) for resource, of in actions.items()}


def _word(action: Action) -> str:
    name = action.name or ""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.lower().replace("_", " ")


def _wakes_on(one: PluginListing) -> str:
    if one.wakes_on is None:
        return "depends on its arguments"
    if EVERYTHING in one.wakes_on:
        return "every event"
    return "; ".join(f"{resource}: {', '.join(actions)}" for resource, actions in one.wakes_on.items())
