"""``berth simulate``: places pods on a cluster described in files, with any configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.exits import Exit
from berth.profiles.configuration import profiles_of
from berth_cli.commands.config import configured, extenders_not_asked
from berth_cli.options import (
    EveryRow,
    Gates,
    KubeconfigToRead,
    KubeContext,
    Output,
    OutputFormat,
    Provider,
    print_document,
    reporting_errors,
    run_command,
)
from berth_cli.recording.cluster import objects_of_recording
from berth_cli.rendering import MOST_ROWS, and_more, new_table, note, plain, print_rich
from berth_cli.simulate.documents import documents
from berth_cli.simulate.engine import PodReport, Report, ReportCounts, Simulation
from berth_cli.simulate.groups import PodGroupReport
from berth_cli.simulate.inputs import InputError, OtherForm, counted, read_inputs
from berth_cli.simulate.loads import abstentions

app = typer.Typer()

RUNNING: Final = "the running cluster"  # in messages, where files have their name
_PLUGINS: Final = 3  # scoring plugins in a row
_FILE_FLAGS: Final = ("--cluster", "--pods", "--load")


class SeveralFilesCommand(TyperCommand):
    """A command with file flags that take several values, for a shell's ``*``: ``--cluster nodes.yaml pods.yaml``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer passes its Context
        return super().parse_args(ctx, list(_repeat_flags(args)))


def _repeat_flags(args: Iterable[str]) -> Iterator[str]:
    flag, files = "", 0
    for arg in args:
        if arg.startswith("-") and arg != "-":
            flag, files = (arg, 0) if arg in _FILE_FLAGS else ("", 0)
        elif flag:
            files += 1
            yield from (flag,) if files > 1 else ()
        yield arg


def _files(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="FILE...", help=text, show_default=False)


Cluster = Annotated[
    list[str] | None, _files("--cluster", "The cluster's objects, as berth export writes them, or a recording.")
]
Pods = Annotated[
    list[str] | None,
    _files("--pods", "The pods to place, and workloads whose pods are to be placed; - is standard input."),
]
Load = Annotated[
    list[str] | None,
    _files("--load", "What the nodes use, as `kubectl get nodes.metrics.k8s.io -o json` prints it."),
]
Pending = Annotated[bool, typer.Option("--pending", help="Place the pending pods of the cluster.")]
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
    bool, typer.Option("--independent", help="Place each pod alone; by default each pod sees the earlier ones.")
]
MustFit = Annotated[bool, typer.Option("--must-fit", help="End with 1 when a pod gets no node, or there is no pod.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    cluster: Sequence[str]
    live: bytes | None  # a running cluster's objects, in the place of files
    pods: Sequence[str]
    loads: Sequence[str]
    pending: bool
    independent: bool
    must_fit: bool
    every_row: bool
    output: OutputFormat


@app.command(cls=SeveralFilesCommand)
def simulate(  # noqa: PLR0913 - one parameter a flag, given by name
    *,
    cluster: Cluster = None,
    kubeconfig: KubeconfigToRead = None,
    context: KubeContext = None,
    pods: Pods = None,
    load: Load = None,
    pending: Pending = False,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    independent: Independent = False,
    must_fit: MustFit = False,
    every_row: EveryRow = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print where pods would go. The cluster, in files or a running one, stays as it is.

    With each plugin's scores and each node's rejection.
    """
    is_running = kubeconfig is not None or context is not None
    if is_running == bool(cluster):
        note("name one cluster: files with --cluster, or a running one with --kubeconfig or --context")
        raise typer.Exit(Exit.USAGE)
    if not pods and not pending:
        note("nothing to place: name files with --pods, or take the pending pods of the cluster with --pending")
        raise typer.Exit(Exit.USAGE)
    configuration = configured(config, algorithm_provider, feature_gates)
    live = _read_running(kubeconfig, context) if is_running else None
    options = _Options(
        cluster=cluster or [RUNNING],
        live=live,
        pods=pods or (),
        loads=load or (),
        pending=pending,
        independent=independent,
        must_fit=must_fit,
        every_row=every_row,
        output=output,
    )
    with reporting_errors():
        answer = _simulate(configuration, options)
    if not answer:
        raise typer.Exit(Exit.NO)


def _read_running(kubeconfig: Path | None, context: str | None) -> bytes:
    from berth_cli.simulate.live import read_cluster  # noqa: PLC0415 - HTTP, and most simulations read files

    read = run_command(read_cluster(kubeconfig, context))
    note(f"read {read.summary}")
    return read.objects


def _simulate(configuration: KubeSchedulerConfiguration, options: _Options) -> bool:
    """Whether no plugin failed, and with --must-fit every pod got a node."""
    profiles = profiles_of(configuration)
    other_form: OtherForm = objects_of_recording
    if options.live is not None:
        other_form = partial(documents, data=options.live, problems=[])
    try:
        inputs = read_inputs(
            options.cluster,
            options.pods,
            profiles,
            loads=options.loads,
            live_sources={source for profile in profiles.values() for source in profile.live_sources},
            with_pending=options.pending,
            other_form=other_form,
        )
    except InputError as error:
        for problem in error.problems:
            note(problem)
        raise typer.Exit(Exit.USAGE) from error
    abstaining = abstentions(inputs.snapshot, inputs.pods, profiles) if options.loads else ()
    for sentence in (*inputs.notes, *abstaining, *extenders_not_asked(configuration)):
        note(sentence)
    simulation = Simulation(snapshot=inputs.snapshot, profiles=profiles)
    place = simulation.independently if options.independent else simulation.in_queue_order
    counts = _print(place(inputs.pods), options, simulation)
    for pod, problem in simulation.failures.items():
        note(f"{pod}: {problem}")
    if not counts.pods:
        note("no pods to place")
    return not simulation.failures and not (options.must_fit and (counts.placed < counts.pods or not counts.pods))


def _print(reports: Iterator[Report], options: _Options, simulation: Simulation) -> ReportCounts:
    counts, rows, groups = ReportCounts(), list[ReportRow](), list[PodGroupReport]()
    for report in reports:
        counts.add(report)
        if options.output.is_document:
            print_document(report, options.output, one_of_many=True)
        elif isinstance(report, PodGroupReport):
            groups.append(report)
        else:
            rows.append(row_of(report, nominated_first=report.pod in simulation.nominated_first))
    if groups:
        print_rich(groups_table(groups), "")
    if rows:
        shown = rows if options.every_row else first_rows(rows)
        print_rich(table_of(shown), *and_more(len(rows) - len(shown)), "", summary_of(counts))
    return counts


def groups_table(groups: Iterable[PodGroupReport]) -> Table:
    table = new_table("GROUP", "MINIMUM", "PLACED", "DOMAIN", "BECAUSE", numbers=("MINIMUM", "PLACED"))
    for each in groups:
        placed = f"{each.placed} of {each.members}"
        domain = "" if each.message is not None else each.domain
        table.add_row(*map(plain, (each.group, str(each.minimum or ""), placed, domain)), _because_of_group(each))
    return table


def _because_of_group(report: PodGroupReport) -> Text:
    if report.victims:
        return plain(f"evicting {', '.join(report.victims)}: {report.message}", "yellow")
    if report.message is not None:
        return plain(report.message, "red")
    before = f"{report.bound} of its pods are on nodes already" if report.bound else ""
    return plain("; ".join(filter(None, (before, report.note))) or "placed together")


def first_rows(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """As many rows as a table has without --all, in their order: pods without a node are preferred."""
    preferred = sorted(range(len(rows)), key=lambda at: rows[at].is_placed)[:MOST_ROWS]
    return [rows[at] for at in sorted(preferred)]


@dataclass(frozen=True, slots=True)
class ReportRow:
    """The cells of a pod. Reports are not kept because they have every node, and so are far larger."""

    pod: str
    profile: str
    node: Text
    possible: str
    because: Text
    is_placed: bool


def row_of(report: PodReport, *, nominated_first: bool = False) -> ReportRow:
    """The pod's node and its highest scores, or the reason why it has no node.

    ``nominated_first``: only the nominated node was tried.
    """
    if nominated_first and report.bound is not None:
        because = plain("nominated for it, tried alone")
        return ReportRow(report.pod, report.profile, _node(report), "1 of 1", because, is_placed=True)
    evaluated = len(report.feasible) + len(report.rejections)
    possible = f"{len(report.feasible)} of {evaluated}" if evaluated else ""
    is_placed = report.bound is not None
    return ReportRow(report.pod, report.profile, _node(report), possible, _because(report), is_placed)


def table_of(rows: list[ReportRow]) -> Table:
    several = len({row.profile for row in rows}) > 1
    headings = ("POD", *(("PROFILE",) if several else ()), "NODE", "POSSIBLE", "BECAUSE")
    table = new_table(*headings, numbers=("POSSIBLE",))
    for row in rows:
        profile = (plain(row.profile),) if several else ()
        table.add_row(plain(row.pod), *profile, row.node, plain(row.possible), row.because)
    return table


def summary_of(counts: ReportCounts) -> Text:
    nowhere = counts.pods - counts.placed - counts.nominated
    parts = [f"{counts.whole} of {counted(counts.groups, 'group')} whole"] if counts.groups else []
    parts += [f"placed {counts.placed} of {counted(counts.pods, 'pod')}, on {counted(len(counts.nodes), 'node')}"]
    parts += [f"{counts.nominated} would preempt pods"] if counts.nominated else []
    parts += [f"{nowhere} fit nowhere"] if nowhere else []
    return plain("; ".join(parts), "bold")


def _node(report: PodReport) -> Text:
    if report.bound is not None:
        return plain(report.bound, "green")
    return plain(f"({report.nominated})", "yellow") if report.nominated is not None else plain("-", "red")


def _because(report: PodReport) -> Text:
    if isinstance(report.group, str):
        return _because_of_member(report, report.group)
    if report.nominated is not None:
        return plain(f"evicting {', '.join(report.victims) or 'no pods'}: {report.message}", "yellow")
    if report.bound is None:
        return plain(report.message or "", "red")
    if len(report.feasible) == 1:
        return plain(f"the only one possible{_devices(report)}")
    points = _points(report, report.bound)
    return plain(f"{report.totals[report.bound]}{_runner_up(report)}: {points}{_devices(report)}")


def _because_of_member(report: PodReport, group: str) -> Text:
    """The group's row says why it waits."""
    if report.bound is not None:
        return plain(f"placed with {group}{_devices(report)}")
    return plain(f"evictions for {group}", "yellow") if report.nominated is not None else plain(f"waits with {group}")


def _devices(report: PodReport) -> str:
    given = report.devices if isinstance(report.devices, dict) else {}
    named = ", ".join(device for devices in given.values() for device in devices)
    return f"; devices {named}" if named else ""


def _runner_up(report: PodReport) -> str:
    others = ((total, node) for node, total in report.totals.items() if node != report.bound)
    total, node = max(others, key=lambda other: other[0])
    return f" ({node} {total})"


def _points(report: PodReport, node: str) -> str:
    points = sorted(((by_node[node], plugin) for plugin, by_node in report.scores.items()), key=lambda x: (-x[0], x[1]))
    more = ", ..." if len(points) > _PLUGINS else ""
    return ", ".join(f"{plugin} {score}" for score, plugin in points[:_PLUGINS]) + more
