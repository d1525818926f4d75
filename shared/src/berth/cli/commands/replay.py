"""``berth replay``: makes the rankings of a recording again, explains a pod, or runs another configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.table import Table

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.messages import Decision, Outcome
from berth.api.subjects import Attempt
from berth.bus.topology import DECISIONS
from berth.cli import explain
from berth.cli.commands.config import configured, extenders_not_asked
from berth.cli.lookup import EvictionRecord, ExplainedDecision
from berth.cli.options import (
    NotFoundError,
    Output,
    OutputFormat,
    PodName,
    PodNamespace,
    parse_pod,
    print_document,
    reporting_errors,
)
from berth.cli.rendering import clock, duration, new_table, note, per_second, plain, print_rich
from berth.framework.profile import Profile
from berth.process.configuration import profiles_of
from berth.process.exits import Exit, UsageError
from berth.process.settings import short_identity
from berth.process.sources import read_settings
from berth.recording.configuration import configuration_of
from berth.recording.file import Recording, read_recording
from berth.recording.history import Fate, PodFate, decoded
from berth.recording.measures import Measures, Spread
from berth.recording.replay import NOT_COMPARED, Replay, ReplayCounts, Replayed
from berth.recording.whatif import ComparedPod, RunResult, WhatIf, what_if
from berth.simulate.inputs import counted

app = typer.Typer()

_ROWS: Final = 50
"""Pods that a table shows. With ``-o json`` there are all."""

File = Annotated[Path, typer.Argument(metavar="FILE", help="A recording of berth record.", show_default=False)]
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


# Those of services have variables too, which are no question here.
Provider = Annotated[
    str | None,
    typer.Option(
        "--algorithm-provider",
        metavar="NAME",
        help="The preset that the other configuration starts from.",
        show_default=False,
    ),
]
Gates = Annotated[
    str | None,
    typer.Option(
        "--feature-gates", metavar="A=true,B=false", help="Feature gates of that preset, on or off.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A recording, and the configuration that its services had."""

    recording: Recording
    configuration: KubeSchedulerConfiguration
    profiles: Mapping[str, Profile]

    def replay(self) -> Replay:
        numbers = read_settings().numbers
        return Replay(self.recording, self.profiles, best=numbers.best, lifetime=numbers.proposal)


@app.command()
def replay(  # noqa: PLR0913 - one parameter a flag, given by name
    file: File,
    *,
    pod: Pod = None,
    namespace: PodNamespace = None,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make the rankings of a recording again, and compare.

    Or explain one of its pods, or say what another configuration would have done.
    """
    asks_what_if = config is not None or algorithm_provider is not None or feature_gates is not None
    other = configured(config, algorithm_provider, feature_gates) if asks_what_if else None
    with reporting_errors():
        if pod is not None and other is not None:
            raise UsageError("--pod explains what was, --config asks what would have been: name one of them")
        name = None if pod is None else parse_pod(pod, namespace)
        opened = _open(file)
        if other is not None:
            _print_what_if(opened, other, output)
            return
        is_equal = _print_replay(opened, output) if name is None else _print_pod(opened, name, output)
    if not is_equal:
        raise typer.Exit(Exit.NO)


def _open(file: Path) -> _Opened:
    recording = read_recording(file)
    if recording.is_cut:
        note(f"{file}: it has no end: the recorder was killed, or the file was copied in part; what is there is used")
    configuration = configuration_of(recording.header, str(file))
    return _Opened(recording, configuration, profiles_of(configuration))


# --- every ranking


def _print_replay(opened: _Opened, output: OutputFormat) -> bool:
    """Whether rankings were made again, and all are equal."""
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
    return f"recorded from {clock(recording.header.at)} for {duration(lasts)}: {sizes or 'nothing'}"


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
    return f"{message.pod.key} attempt {attempt} at {clock(one.ranking.at)} by {short_identity(message.scorer)}"


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
        "pod": message.pod.key,
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
    explained = _last_decision(opened.recording, name)
    made = [one for one in opened.replay().run() if one.ranking.message.pod.key == str(name)]
    decision = explained.decision
    profile = opened.profiles.get(decision.profile) if decision.config == opened.configuration.digest else None
    weights = profile.weights if profile is not None else {}
    if output.is_document:
        rankings = [_replayed_json(one) for one in made]
        print_document({**explain.decision_json(explained, weights), "rankings": rankings}, output)
    else:
        print_rich(*explain.decision_lines(explained, weights), "", *map(plain, map(_again, made)))
    return not any(one.differences for one in made)


def _again(one: Replayed) -> str:
    said = one.left_out or "; ".join(one.differences)
    if one.left_out:
        said = f"not made again: {one.left_out}"
    return f"{_whose(one)}: {said or 'made again, and equal'}"


def _last_decision(recording: Recording, name: PodName) -> ExplainedDecision:
    """The pod's last Decision, seen from the end of the recording.

    Raises:
        NotFoundError: there is none.
    """
    last: tuple[Decision, EvictionRecord | None] | None = None
    at, evicted_for = recording.header.at, None
    evictions: dict[str, EvictionRecord] = {}
    for record, decision in decoded(recording, DECISIONS, Decision):
        preemption = decision.preemption
        of = PodName(namespace=decision.namespace, name=decision.pod)
        made = None
        if decision.outcome is Outcome.PREEMPTING and preemption is not None and preemption.victims:
            made = EvictionRecord(pod=of, uid=decision.uid, preemption=preemption, at=record.time)
            evictions[decision.uid] = made
        if of == name:
            last, at, evicted_for = (decision, evictions.get(decision.uid)), record.time, None
        elif made is not None and last is not None and any(v.uid == last[0].uid for v in made.preemption.victims):
            evicted_for = made
    if last is None:
        raise NotFoundError(f"looking for pod {str(name)!r}: the recording has no Decision on it")
    return ExplainedDecision(
        decision=last[0], at=at, now=recording.last_time, preemption=last[1], evicted_for=evicted_for
    )


# --- another configuration


def _print_what_if(opened: _Opened, other: KubeSchedulerConfiguration, output: OutputFormat) -> None:
    profiles = profiles_of(other)
    for sentence in (*extenders_not_asked(other), *_without_live_data(opened.recording, profiles)):
        note(sentence)
    found = what_if(opened.recording, opened.profiles, profiles)
    for pod, problem in found.other.failures.items():
        note(f"{pod}: {problem}")
    if found.other.left_out:
        names = ", ".join(profiles)
        note(f"left out {counted(found.other.left_out, 'pod')}, whose schedulerName is none of {names}")
    if output.is_document:
        print_document(_what_if_json(found), output)
    else:
        print_rich(*_what_if_lines(found))


def _without_live_data(recording: Recording, profiles: Mapping[str, Profile]) -> Iterator[str]:
    """Sources of live data of which the recording has nothing: their plugins score without."""
    for source in sorted(
        {each for profile in profiles.values() for each in profile.live_sources}, key=lambda each: each.name
    ):
        if not any(record.subject.startswith(f"{source.name}.") for record in recording.of(source.bucket)):
            yield f"the recording has no {source.bucket} of {source.name}: its plugin scores without"


def _what_if_lines(found: WhatIf) -> Iterator[RenderableType]:
    different = [each for each in found.other.pods if not each.is_equal]
    if different:
        yield _pods_table(different[:_ROWS])
        if len(different) > _ROWS:
            yield plain(f"and {len(different) - _ROWS} more, which -o json has")
        yield ""
    yield plain(f"{counted(len(found.other.pods), 'pod')}: {_summary(found.other.pods)}", "bold")
    yield plain(f"with the recorded configuration, placed one after the other: {_summary(found.again.pods)}")
    yield ""
    yield _measures_table(found)


def _pods_table(pods: Sequence[ComparedPod]) -> Table:
    table = new_table("POD", "RECORDED", "OTHER", "WHY IT WAITS")
    for each in pods:
        because = each.other.reason if each.other.fate is Fate.WAITS else ""
        table.add_row(*map(plain, (each.pod, _fate(each.recorded), _fate(each.other), because)))
    return table


def _fate(fate: PodFate) -> str:
    if fate.fate is Fate.PLACED:
        return fate.node
    return f"evicted from {fate.node}" if fate.fate is Fate.EVICTED and fate.node else str(fate.fate)


def _kind_of(each: ComparedPod) -> str:
    if each.is_equal:
        return "as recorded"
    if each.recorded.fate == each.other.fate:
        return "elsewhere" if each.other.fate is Fate.PLACED else f"{each.other.fate} elsewhere"
    return f"{_BECAME[each.other.fate]} instead of {_BECAME[each.recorded.fate]}"


_BECAME: Final = {Fate.PLACED: "placed", Fate.WAITS: "waiting", Fate.EVICTED: "evicted"}


def _counts(pods: Sequence[ComparedPod]) -> Counter[str]:
    return Counter(map(_kind_of, pods))


def _summary(pods: Sequence[ComparedPod]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in _counts(pods).most_common()) or "none was asked for"


def _measures_table(found: WhatIf) -> Table:
    headings = ("RECORDED", "AGAIN", "OTHER")
    table = new_table("AT THE END", *headings, numbers=headings)
    measured = (found.recorded, found.again.measures, found.other.measures)
    for row in zip(_NAMES, *map(_cells, measured), strict=True):
        table.add_row(*map(plain, row))
    return table


_NAMES: Final = (
    "pods on nodes",
    "nodes with pods",
    "pods a node: least, mean, most",
    "deviation of pods",
    "CPU requested: least, mean, most",
    "memory requested: least, mean, most",
    "room for more pods like the largest",
    "free CPU where it does not fit",
    "busiest node receives",
    "busiest node transmits",
)


def _cells(measures: Measures) -> tuple[str, ...]:
    return (
        f"{measures.pods}",
        f"{measures.nodes_used} of {measures.nodes}",
        _three(measures.pods_per_node),
        f"{measures.pods_per_node.deviation:g}",
        _three(measures.cpu_percent, " %"),
        _three(measures.memory_percent, " %"),
        f"{measures.room_for}",
        f"{measures.stranded_cpu_percent:g} %",
        per_second(measures.receive) or "unknown",
        per_second(measures.transmit) or "unknown",
    )


def _three(spread: Spread, unit: str = "") -> str:
    return f"{spread.least:g}, {spread.mean:g}, {spread.most:g}{unit}"


def _what_if_json(found: WhatIf) -> dict[str, object]:
    return {"recorded": found.recorded, "again": _run_json(found.again), "other": _run_json(found.other)}


def _run_json(run: RunResult) -> dict[str, object]:
    return {
        "counts": dict(_counts(run.pods)),
        "left_out": run.left_out,
        "failures": run.failures,
        "measures": run.measures,
        "pods": [{"is_equal": each.is_equal, **_compared_json(each)} for each in run.pods],
    }


def _compared_json(each: ComparedPod) -> dict[str, object]:
    return {"pod": each.pod, "uid": each.uid, "recorded": each.recorded, "other": each.other}
