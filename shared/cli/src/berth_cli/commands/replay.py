"""``berth replay``: repeats the rankings of a recording, explains a pod, or runs another configuration."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, get_args

import typer
from rich.console import RenderableType
from rich.table import Table

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.nodeload.plugins import load_queries
from berth.api.config.nodeload.queries import Statistic
from berth.bus.topology import BANDWIDTH
from berth.errors import DecodeError
from berth.exits import Exit, UsageError
from berth.framework.profile import Profile
from berth.messages.livedata import MeasuredUsage, decode_sample
from berth.messages.subjects import Attempt
from berth.profiles.configuration import profiles_of
from berth.settings.file import file_values
from berth.settings.settings import short_identity
from berth.settings.sources import read_settings
from berth_cli.commands.config import configured, extenders_not_asked
from berth_cli.commands.console import AllowedHosts, ProxyAddresses, ProxyHeader, TokenFile
from berth_cli.console.guard import guard_of
from berth_cli.console.pages import serve
from berth_cli.options import (
    STANDARD_INPUT,
    Output,
    OutputFormat,
    PodName,
    PodNamespace,
    named_file,
    parse_pod,
    print_document,
    reporting_errors,
    run_command,
    shown,
    until_stopped,
)
from berth_cli.pods import explain
from berth_cli.recording.configuration import configuration_of
from berth_cli.recording.differences import NOT_COMPARED
from berth_cli.recording.file import Recording, read_opened, read_recording
from berth_cli.recording.groups import group_courses
from berth_cli.recording.history import Fate, RecordedQueue
from berth_cli.recording.replay import Replay, ReplayCounts, Replayed
from berth_cli.recording.segments.joined import joined
from berth_cli.recording.whatif import ComparedPod, RunResult, WhatIf, what_if
from berth_cli.rendering import clock, duration, indented, new_table, note, plain, print_rich
from berth_cli.replayed.comparison import RecordedSource, TwoClusters
from berth_cli.replayed.decisions import RecordedDecisions, waited_json, waited_sentence, waited_sentences
from berth_cli.replayed.server import ReplayServer
from berth_cli.replayed.wording import (
    MEASURES,
    counts_by_kind,
    fate_text,
    measure_cells,
    not_placed_again,
    summary_of,
)
from berth_cli.simulate.inputs import counted

app = typer.Typer()

LOOPBACK: Final = "127.0.0.1"
PORT: Final = 8091  # the port after the console's, so that both can run
_ROWS: Final = 50  # pods in a table; ``-o json`` has all

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="A recording of berth record; - is standard input. Or the folder of its --keep, or some of its segments.",
        parser=named_file,
        show_default=False,
    ),
]
Pod = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE/POD", help="Explain this pod, as berth why does.", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Run the recorded pods with this configuration, and compare.",
        show_default=False,
    ),
]


# The services' flags for this also read variables, which do not apply here.
Provider = Annotated[str | None, typer.Option("--algorithm-provider", hidden=True)]
Gates = Annotated[str | None, typer.Option("--feature-gates", hidden=True)]
Browse = Annotated[
    bool, typer.Option("--browse", help="Show both clusters side by side, on a page for a browser.", show_default=False)
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help=f"Where --browse listens [default: {LOOPBACK}]; others need a token or a proxy.",
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="PORT",
        help=f"The port of --browse [default: {PORT}]; 0 is any that is free.",
        min=0,
        max=65_535,
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class _Opened:
    recording: Recording
    configuration: KubeSchedulerConfiguration
    profiles: Mapping[str, Profile]

    def replay(self) -> Replay:
        numbers = read_settings(file=file_values(self.configuration)).numbers
        return Replay(self.recording, self.profiles, best=numbers.best, lifetime=numbers.proposal)


@app.command()
def replay(  # noqa: PLR0913 - one parameter a flag, given by name
    files: Files,
    *,
    pod: Pod = None,
    namespace: PodNamespace = None,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    output: Output = OutputFormat.TABLE,
    browse: Browse = False,
    host: Host = None,
    port: Port = None,
    token_file: TokenFile = None,
    proxy_header: ProxyHeader = None,
    proxy_address: ProxyAddresses = None,
    allowed_host: AllowedHosts = None,
) -> None:
    """Make the rankings of a recording again, and compare.

    Or explain one of its pods, or show what another configuration would have done.
    """
    of_the_page = (host, port, token_file, proxy_header, proxy_address, allowed_host)
    asks_what_if = config is not None or algorithm_provider is not None or feature_gates is not None
    other = configured(config, algorithm_provider, feature_gates) if asks_what_if else None
    with reporting_errors():
        if pod is not None and other is not None:
            raise UsageError("--pod explains what was, --config asks what would have been: name one of them")
        if browse and other is None:
            raise UsageError("--browse shows what another configuration would have done: name it with --config")
        if browse and output.is_document:
            raise UsageError(f"--browse serves a page, -o {output} prints a document: name one of them")
        if not browse and any(each is not None for each in of_the_page):
            raise UsageError("--host, --port and who may look are of the page: name --browse too")
        guard = guard_of(host or LOOPBACK, token_file, proxy_header, proxy_address, allowed_host)
        name = None if pod is None else parse_pod(pod, namespace)
        opened = _open(files)
        if other is None:
            is_equal = _print_replay(opened, output) if name is None else _print_pod(opened, name, output)
        elif not browse:
            _print_what_if(opened, other, output)
            return
        else:
            title = config.name if config is not None else algorithm_provider or "other feature gates"
            page = ReplayServer(_side_by_side(opened, other, files[0].name, title), guard).application()
            serving = serve(page, guard, PORT if port is None else port, "page", _for_ever)
            run_command(until_stopped(serving), interrupted=Exit.DONE)
            return
    if not is_equal:
        raise typer.Exit(Exit.NO)


def _open(files: Sequence[Path]) -> _Opened:
    name = shown(files[0])
    recording = _read(files)
    if recording.is_cut:
        why = "it has no end: the recorder was killed, or the file was copied in part"
        note(f"{name}: {why}; the existing part is used")
    configuration = configuration_of(recording.header, name)
    return _Opened(recording, configuration, profiles_of(configuration))


def _read(files: Sequence[Path]) -> Recording:
    if files == [STANDARD_INPUT]:  # reopened by name, a socket cannot be read
        return read_opened(shown(STANDARD_INPUT), sys.stdin.buffer)
    if len(files) == 1 and not files[0].is_dir():
        return read_recording(files[0])
    if STANDARD_INPUT in files:
        raise UsageError("- is standard input, which has one recording: name it alone")
    with joined(files) as found:
        if found.less:
            note(found.less)
        return found.recording()


# --- every ranking


def _print_replay(opened: _Opened, output: OutputFormat) -> bool:
    """Whether rankings were repeated, and all are equal."""
    again, counts, different = opened.replay(), ReplayCounts(), []
    for one in again.run():
        counts.add(one)
        if one.differences:
            different.append(one)
    if output.is_document:
        print_document(_replay_json(opened.recording, again, counts, different), output)
    else:
        print_rich(*_replay_lines(opened.recording, again, counts, different))
    return not different and bool(counts.equal)


def _replay_lines(
    recording: Recording, again: Replay, counts: ReplayCounts, different: Sequence[Replayed]
) -> Iterator[RenderableType]:
    yield plain(_span(recording))
    made = counts.equal.total() + counts.different
    yield plain(f"{counted(len(again.rankings), 'ranking')}, {made} made again: {_result(counts)}", "bold")
    if recording.header.anonymised:
        yield plain(f"names are masked, so not compared are {'; '.join(NOT_COMPARED)}")
    for one in different[:_ROWS]:
        yield plain(f"{_whose(one)}: {'; '.join(one.differences)}", "red")
    if len(different) > _ROWS:
        yield plain(f"and {len(different) - _ROWS} more, which -o json has")
    if counts.left_out:
        table = new_table("LEFT OUT", "BECAUSE", numbers=("LEFT OUT",))
        for reason, number in counts.left_out.most_common():
            table.add_row(plain(str(number)), plain(reason))
        yield table
    if again.unreadable:
        yield plain(f"{counted(again.unreadable, 'message')} of RANKED cannot be decoded", "yellow")


def _span(recording: Recording) -> str:
    lasts = max(0.0, (recording.last_time - recording.header.at).total_seconds())
    sizes = ", ".join(f"{source} {len(there)}" for source, there in sorted(recording.messages.items()))
    waited = len(RecordedQueue(recording))
    waits = f"; {counted(waited, 'pod')} waited when the watcher was asked" if waited else ""
    return f"recorded from {clock(recording.header.at)} for {duration(lasts)}: {sizes or 'nothing'}{waits}"


def _result(counts: ReplayCounts) -> str:
    if not counts.equal and not counts.different:
        return "nothing to compare"
    scorers = ", ".join(f"{short_identity(name)} {number}" for name, number in sorted(counts.equal.items()))
    if counts.different:
        return f"{counts.different} differ, {counts.equal.total()} are equal{f' ({scorers})' if scorers else ''}"
    return f"all are equal ({scorers})"


def _whose(one: Replayed) -> str:
    message = one.ranking.message
    attempt = Attempt.parse(message.attempt).n
    return f"{one.ranking.name} attempt {attempt} at {clock(one.ranking.at)} by {short_identity(message.scorer)}"


def _replay_json(
    recording: Recording, again: Replay, counts: ReplayCounts, different: Sequence[Replayed]
) -> dict[str, object]:
    return {
        "recorded_at": recording.header.at,
        "recorded_to": recording.last_time,
        "is_whole": not recording.is_cut,
        "config": recording.header.config,
        "anonymised": recording.header.anonymised,
        "not_compared": list(NOT_COMPARED) if recording.header.anonymised else [],
        "messages": {source: len(there) for source, there in sorted(recording.messages.items())},
        "waited": len(RecordedQueue(recording)),
        "rankings": len(again.rankings),
        "unreadable": again.unreadable,
        "equal": counts.equal.total(),
        "equal_by_scorer": dict(counts.equal),
        "different": [_replayed_json(one) for one in different],
        "left_out": dict(counts.left_out),
    }


def _replayed_json(one: Replayed) -> dict[str, object]:
    message = one.ranking.message
    return {
        "pod": one.ranking.name,
        "attempt": message.attempt,
        "ranked_at": one.ranking.at,
        "scorer": message.scorer,
        "is_equal": one.again is not None and not one.differences,
        "differences": one.differences,
        "left_out": one.left_out,
    }


# --- one pod


def _print_pod(opened: _Opened, name: PodName, output: OutputFormat) -> bool:
    """Whether no ranking of the pod differs."""
    decisions = RecordedDecisions(opened.recording)
    waited = decisions.waited(name)
    if waited is not None and name not in decisions:
        if output.is_document:
            print_document({**waited_json(waited), "rankings": []}, output)
        else:
            headline, *others = waited_sentences(waited)
            print_rich(plain(headline), *map(indented, others))
        return True
    explained = decisions.last(name)
    made = [one for one in opened.replay().run() if one.ranking.name == str(name)]
    if output.is_document:
        rankings = [_replayed_json(one) for one in made]
        waits = {} if waited is None else {"waited": waited.pod, "waited_at": waited.at}
        print_document({**explain.decision_json(explained), **waits, "rankings": rankings}, output)
    else:
        waits_since = [] if waited is None else [indented(waited_sentence(waited))]
        again = map(plain, map(_again, made))
        print_rich(*explain.decision_lines(explained), *waits_since, "", *again)
    return not any(one.differences for one in made)


def _again(one: Replayed) -> str:
    result = one.left_out or "; ".join(one.differences)
    if one.left_out:
        result = f"not made again: {one.left_out}"
    return f"{_whose(one)}: {result or 'made again, and equal'}"


# --- another configuration


def _print_what_if(opened: _Opened, other: KubeSchedulerConfiguration, output: OutputFormat) -> None:
    profiles = profiles_of(other)
    for sentence in _before(opened, other, profiles):
        note(sentence)
    found = what_if(opened.recording, opened.profiles, profiles)
    for sentence in _afterwards(found, opened, profiles):
        note(sentence)
    if output.is_document:
        print_document(_what_if_json(found), output)
    else:
        print_rich(*_what_if_lines(found))


def _before(opened: _Opened, other: KubeSchedulerConfiguration, profiles: Mapping[str, Profile]) -> tuple[str, ...]:
    """Notes about parts that the run leaves out."""
    return (
        *extenders_not_asked(other),
        *_without_live_data(opened.recording, profiles),
        *_without_statistics(opened.recording, other),
    )


def _afterwards(found: WhatIf, opened: _Opened, profiles: Mapping[str, Profile]) -> Iterator[str]:
    for pod, problem in found.other.failures.items():
        yield f"{pod}: {problem}"
    groups = sum(each.asked_at is not None for each in group_courses(opened.recording))
    yield from not_placed_again(found.other.left_out, opened.profiles, profiles, groups)


def _side_by_side(opened: _Opened, other: KubeSchedulerConfiguration, title: str, other_title: str) -> TwoClusters:
    profiles = profiles_of(other)
    notes = _before(opened, other, profiles)
    for sentence in notes:
        note(sentence)
    source = RecordedSource(recording=opened.recording, profiles=opened.profiles, config=opened.configuration.digest)
    clusters = TwoClusters.of(source, profiles, title=title, other_title=other_title)
    further = tuple(_afterwards(clusters.found, opened, profiles))
    for sentence in further:
        note(sentence)
    return replace(clusters, notes=(*notes, *further))


async def _for_ever() -> None:
    await asyncio.Event().wait()


def _without_live_data(recording: Recording, profiles: Mapping[str, Profile]) -> Iterator[str]:
    """Notes about live data that the recording lacks: plugins score without it."""
    for source in sorted(
        {each for profile in profiles.values() for each in profile.live_sources}, key=lambda each: each.name
    ):
        if not any(record.subject.startswith(f"{source.name}.") for record in recording.of(source.bucket)):
            read = {each.name for one in profiles.values() for each in one.explaining if source in each.live_sources}
            who = ", ".join(sorted(read)) or "its plugin"
            yield f"the recording has no {source.bucket} of {source.name}: {who} scores without it"


def _without_statistics(recording: Recording, other: KubeSchedulerConfiguration) -> Iterator[str]:
    """Notes about statistics of load that no recorded sample of their query has."""
    for query, demand in load_queries(other).items():
        recorded = {
            statistic
            for record in recording.of(BANDWIDTH)
            if record.subject.startswith(f"{query.token}.")
            for usage in _usages(record.payload or b"")
            for statistic in get_args(Statistic)
            if getattr(usage, statistic) is not None
        }
        if recorded and (lacking := sorted(demand.statistics - recorded)):
            has_not, has = ", ".join(lacking), ", ".join(sorted(recorded))
            yield f"the recording has no {has_not} of {query.token}, only {has}: plugins that read it abstain"


def _usages(data: bytes) -> Iterator[MeasuredUsage]:
    with suppress(DecodeError):
        sample = decode_sample(data)
        yield from (usage for usage in (sample.cpu, sample.memory) if usage is not None)


def _what_if_lines(found: WhatIf) -> Iterator[RenderableType]:
    different = [each for each in found.other.pods if not each.is_equal]
    if different:
        yield _pods_table(different[:_ROWS])
        if len(different) > _ROWS:
            yield plain(f"and {len(different) - _ROWS} more, which -o json has")
        yield ""
    yield plain(f"{counted(len(found.other.pods), 'pod')}: {summary_of(found.other.pods)}", "bold")
    yield plain(f"with the recorded configuration, placed one after the other: {summary_of(found.again.pods)}")
    yield ""
    yield _measures_table(found)


def _pods_table(pods: Sequence[ComparedPod]) -> Table:
    table = new_table("POD", "RECORDED", "OTHER", "WHY IT WAITS")
    for each in pods:
        because = each.other.reason if each.other.fate is Fate.WAITS else ""
        table.add_row(*map(plain, (each.pod, fate_text(each.recorded), fate_text(each.other), because)))
    return table


def _measures_table(found: WhatIf) -> Table:
    headings = ("RECORDED", "AGAIN", "OTHER")
    table = new_table("AT THE END", *headings, numbers=headings)
    measured = (found.recorded, found.again.measures, found.other.measures)
    for row in zip(MEASURES, *map(measure_cells, measured), strict=True):
        table.add_row(*map(plain, row))
    return table


def _what_if_json(found: WhatIf) -> dict[str, object]:
    return {"recorded": found.recorded, "again": _run_json(found.again), "other": _run_json(found.other)}


def _run_json(run: RunResult) -> dict[str, object]:
    return {
        "counts": dict(counts_by_kind(run.pods)),
        "left_out": run.left_out,
        "failures": run.failures,
        "measures": run.measures,
        "pods": [{"is_equal": each.is_equal, **_compared_json(each)} for each in run.pods],
    }


def _compared_json(each: ComparedPod) -> dict[str, object]:
    return {"pod": each.pod, "uid": each.uid, "recorded": each.recorded, "other": each.other}
