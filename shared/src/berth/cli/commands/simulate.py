"""What a simulation decided, told to people: a line a pod, and the sum of it. Pure.

``berth simulate``: what would be decided about pods on a cluster that files describe, under any configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.cli.commands.config import Gates, Provider, configured
from berth.cli.exits import finish
from berth.cli.lookup import Output, OutputFormat
from berth.cli.rendering import columns, note, plain, say_json, show
from berth.framework.profile import Profile
from berth.process.configuration import profiles_of
from berth.process.exits import Exit
from berth.simulate.engine import Simulated, Simulation
from berth.simulate.inputs import InputError, Question, read_question

_PLUGINS: Final = 3
"""How many plugins are named of those that scored."""


@dataclass(slots=True)
class Sums:
    """How many pods there were, and what became of them."""

    pods: int = 0
    placed: int = 0
    nominated: int = 0
    nodes: set[str] = field(default_factory=set)

    def add(self, one: Simulated) -> None:
        """One more."""
        self.pods += 1
        self.nominated += one.nominated is not None
        if one.bound is not None:
            self.placed += 1
            self.nodes.add(one.bound)

    def told(self) -> Text:
        """In a sentence."""
        nowhere = self.pods - self.placed - self.nominated
        parts = [f"{self.placed} of {self.pods} pods have a node, on {len(self.nodes)} nodes"]
        parts += [f"{self.nominated} would wait for room to be made"] if self.nominated else []
        parts += [f"{nowhere} fit nowhere"] if nowhere else []
        return plain("; ".join(parts), "bold")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """What is told of a pod: far less than what was decided, which says something of every node."""

    pod: str
    profile: str
    node: Text
    possible: str
    because: Text


def row_of(one: Simulated) -> ReportRow:
    """A pod's node and what made it the best one, or why it has none."""
    looked_at = len(one.feasible) + len(one.rejections)
    possible = f"{len(one.feasible)} of {looked_at}" if looked_at else ""
    return ReportRow(one.pod, one.profile, _node(one), possible, _because(one))


def table_of(rows: list[ReportRow]) -> Table:
    """A line a pod; the profile is named where there are several."""
    several = len({row.profile for row in rows}) > 1
    headings = ("POD", *(("PROFILE",) if several else ()), "NODE", "POSSIBLE", "BECAUSE")
    table = columns(*headings, numbers=("POSSIBLE",))
    for row in rows:
        profile = (plain(row.profile),) if several else ()
        table.add_row(plain(row.pod), *profile, row.node, plain(row.possible), row.because)
    return table


def _node(one: Simulated) -> Text:
    if one.bound is not None:
        return plain(one.bound, "green")
    return plain(f"({one.nominated})", "yellow") if one.nominated is not None else plain("-", "red")


def _because(one: Simulated) -> Text:
    if one.nominated is not None:
        return plain(f"evicting {', '.join(one.victims) or 'nobody'}: {one.message}", "yellow")
    if one.bound is None:
        return plain(one.message or "", "red")
    if len(one.feasible) == 1:
        return plain("the only one possible")
    return plain(f"{one.totals[one.bound]}{_runner_up(one)}: {_points(one, one.bound)}")


def _runner_up(one: Simulated) -> str:
    others = ((total, node) for node, total in one.totals.items() if node != one.bound)
    total, node = max(others, key=lambda other: other[0])
    return f" ({node} {total})"


def _points(one: Simulated, node: str) -> str:
    points = sorted(((by_node[node], plugin) for plugin, by_node in one.scores.items()), key=lambda x: (-x[0], x[1]))
    more = ", ..." if len(points) > _PLUGINS else ""
    return ", ".join(f"{plugin} {score}" for score, plugin in points[:_PLUGINS]) + more


_OF_FILES: Final = ("--cluster", "--pods")


class TakingFiles(TyperCommand):
    """A command whose flags for files take several: ``--cluster nodes.yaml pods.yaml``, as the shell expands them."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer hands its own Context
        """Parse what was typed."""
        return super().parse_args(ctx, list(each_with_flag(args)))


def each_with_flag(args: Iterable[str]) -> Iterator[str]:
    """Write the flag before each of its files."""
    flag, files = "", 0
    for arg in args:
        if arg.startswith("-") and arg != "-":
            flag, files = (arg, 0) if arg in _OF_FILES else ("", 0)
        elif flag:
            files += 1
            yield from (flag,) if files > 1 else ()
        yield arg


Cluster = Annotated[
    list[str],
    typer.Option(
        "--cluster", metavar="FILE...", help="The cluster's objects, as kubectl get prints them.", show_default=False
    ),
]

Pods = Annotated[
    list[str] | None,
    typer.Option(
        "--pods",
        metavar="FILE...",
        help="The pods to place, and workloads whose pods are to be placed; - is standard input.",
        show_default=False,
    ),
]

Pending = Annotated[bool, typer.Option("--pending", help="Place the pods of the cluster that wait.")]

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="BERTH_CONFIG",
        help="A KubeSchedulerConfiguration (v1).",
        show_default=False,
    ),
]

Independent = Annotated[
    bool, typer.Option("--independent", help="Ask each pod alone; without it each sees the earlier.")
]

MustFit = Annotated[bool, typer.Option("--must-fit", help="End with 1 when a pod gets no node, or there is none.")]


def simulate(  # noqa: PLR0913 - one parameter a flag, given by name
    *,
    cluster: Cluster,
    pods: Pods = None,
    pending: Pending = False,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    independent: Independent = False,
    must_fit: MustFit = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say where pods would go, with every plugin's score and every node's refusal: no bus and no cluster is needed."""
    if not pods and not pending:
        note("nothing to place: name files with --pods, or take those of the cluster that wait with --pending")
        raise typer.Exit(Exit.USAGE)
    configuration = configured(config, algorithm_provider, feature_gates)
    files = _Files(cluster=cluster, pods=pods or (), also_pending=pending)
    if not finish(_simulate(configuration, files, output, independent=independent, must_fit=must_fit)):
        raise typer.Exit(Exit.NO)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What is asked about, by the names of files."""

    cluster: Sequence[str]
    pods: Sequence[str]
    also_pending: bool


async def _simulate(
    configuration: KubeSchedulerConfiguration, files: _Files, form: OutputFormat, *, independent: bool, must_fit: bool
) -> bool:
    """Whether every pod was answered, and got a node where that was asked for."""
    profiles = profiles_of(configuration)
    question = _question(files, profiles)
    for sentence in question.notes:
        note(sentence)
    simulation = Simulation(snapshot=question.snapshot, profiles=profiles)
    sums = _shown(_decisions(simulation, question, independent=independent), form)
    for pod, problem in simulation.failed.items():
        note(f"{pod}: {problem}")
    if not sums.pods:
        note("no pods to place")
    return not simulation.failed and not (must_fit and (sums.placed < sums.pods or not sums.pods))


def _question(files: _Files, profiles: Mapping[str, Profile]) -> Question:
    try:
        return read_question(files.cluster, files.pods, profiles, also_pending=files.also_pending)
    except InputError as error:
        for problem in error.problems:
            note(problem)
        raise typer.Exit(Exit.USAGE) from error


def _decisions(simulation: Simulation, question: Question, *, independent: bool) -> Iterator[Simulated]:
    return simulation.each_alone(question.pods) if independent else simulation.one_after_another(question.pods)


def _shown(decisions: Iterator[Simulated], form: OutputFormat) -> Sums:
    """Print each decision: for programs when it is made, for people all in one table."""
    sums, rows = Sums(), []
    for one in decisions:
        sums.add(one)
        if form is OutputFormat.JSON:
            say_json(one, indent=0)
        else:
            rows.append(row_of(one))
    if rows:
        show(table_of(rows), "", sums.told())
    return sums
