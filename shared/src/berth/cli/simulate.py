"""``berth simulate``: what would be decided about pods on a cluster that files describe, under any configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from typer.core import TyperCommand

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.cli.asking import Form, Output
from berth.cli.config import Gates, Provider, configured
from berth.cli.console import note, say_json, show
from berth.cli.ending import finish
from berth.cli.simulated import Sums, row_of, table_of
from berth.cli.simulateinput import InputError, Question, read_question
from berth.cli.simulation import Simulated, Simulation
from berth.framework.profile import Profile
from berth.service.configuration import profiles_of
from berth.service.exits import Exit

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
    output: Output = Form.TABLE,
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
    configuration: KubeSchedulerConfiguration, files: _Files, form: Form, *, independent: bool, must_fit: bool
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


def _shown(decisions: Iterator[Simulated], form: Form) -> Sums:
    """Print each decision: for programs when it is made, for people all in one table."""
    sums, rows = Sums(), []
    for one in decisions:
        sums.add(one)
        if form is Form.JSON:
            say_json(one, indent=0)
        else:
            rows.append(row_of(one))
    if rows:
        show(table_of(rows), "", sums.told())
    return sums
