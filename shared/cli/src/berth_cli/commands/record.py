"""``berth record``: writes the messages on the bus into a file until Ctrl-C; ``berth replay`` evaluates it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.resources import QuantityError, value
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS
from berth.errors import DecodeError
from berth.exits import Exit, UsageError
from berth.messages.attempts import Decision
from berth.messages.encoding import decode
from berth.settings import readers
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.commands.config import configured
from berth_cli.options import (
    ANSWERED_BY,
    Gates,
    Provider,
    reporting_errors,
    run_command,
    stoppable,
    until_stopped,
)
from berth_cli.pods.waiting import queue_pages
from berth_cli.recording.anonymised import Anonymiser
from berth_cli.recording.configuration import configuration_of, recorded_header
from berth_cli.recording.file import Begun, Change, Header, Recorded, RecordingWriter, Waiting, unchanged
from berth_cli.recording.recorder import Recorder
from berth_cli.recording.segments.joined import joined
from berth_cli.rendering import amount_of_bytes, duration, note, print_line
from berth_cli.simulate.inputs import counted

app = typer.Typer()

LONGEST: Final = timedelta(days=7)
_read_duration: Final = readers.duration(1, LONGEST.total_seconds())
SHORTEST_KEPT: Final = timedelta(seconds=10)
_read_kept: Final = readers.duration(SHORTEST_KEPT.total_seconds(), LONGEST.total_seconds())
KEEP_SIZE: Final = "1Gi"
LEAST_SIZE: Final = "1Mi"
MOST_SIZE: Final = "1Ti"
_STANDARD_OUTPUT: Final = Path("-")

File = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="The file to write, a new one; - is standard output. With --keep a folder.",
        show_default=False,
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="DURATION", help="End after this time: 30s, 10m, 1h; by default at Ctrl-C.", show_default=False
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(
        "--keep",
        metavar="DURATION",
        help="Record until stopped, and keep the last 30m, 1h, 24h in the folder of -o.",
        show_default=False,
    ),
]
KeepSize = Annotated[
    str | None,
    typer.Option(
        "--keep-size", metavar="BYTES", help=f"With --keep: at most this, by default {KEEP_SIZE}.", show_default=False
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="DURATION",
        help="With --from: whole segments back to 30m before the newest message; by default all.",
        show_default=False,
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Write the segments that a `berth record --keep` has in this folder as one recording.",
        show_default=False,
    ),
]
Anonymise = Annotated[
    bool,
    typer.Option(
        "--anonymise", help="Mask every name: of pods, nodes, namespaces, labels, images, and those in texts."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration of the services, which goes into the recording.",
        envvar="BERTH_CONFIG",
        show_default=False,
    ),
]


@app.command()
def record(  # noqa: PLR0913 - one parameter a flag, given by name
    context: typer.Context,
    *,
    output: File,
    lasts: For = None,
    keep: Keep = None,
    keep_size: KeepSize = None,
    folder: From = None,
    since: Since = None,
    anonymise: Anonymise = False,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Write the messages on the bus into a file, for berth replay.

    The cluster as scorers see it, then every change, and every pod's messages. With --keep it records until it is
    stopped, and keeps the last hour in a folder; --from makes a file of the folder.
    """
    with reporting_errors():
        _refuse_together(context, output)
    if folder is not None:
        with reporting_errors():
            back = None if since is None else _read(_read_duration, "--since", since)
            _join(folder, back, output, anonymise=anonymise)
        return
    configuration = configured(config, algorithm_provider, feature_gates)
    server = NatsServer(nats, nats_context)
    if keep is not None:
        from berth_cli.keeping import Keeping  # noqa: PLC0415 - 0.2 s, needed with --keep only

        with reporting_errors():
            keeping = Keeping(
                folder=output,
                keep=_read(_read_kept, "--keep", keep),
                most_bytes=_read(_size, "--keep-size", keep_size or KEEP_SIZE),
                configuration=configuration,
                server=server,
                on_connected=lambda session: _compare(session, configuration),
            )
        run_command(keeping.run(), interrupted=Exit.DONE)
        return
    with reporting_errors():
        given = None if lasts is None else _read(_read_duration, "--for", lasts)
        if output == _STANDARD_OUTPUT:
            _refuse_a_terminal()
        elif output.exists():  # before connecting to NATS; the writer checks again
            raise UsageError(f"writing {str(output)!r}: it exists already: remove it, or name another file")
    run_command(_record(output, given, configuration, server, anonymise=anonymise))


_FLAGS: Final = {
    "lasts": "--for",
    "keep": "--keep",
    "keep_size": "--keep-size",
    "since": "--since",
    "folder": "--from",
    "anonymise": "--anonymise",
    "config": "--config",
    "algorithm_provider": "--algorithm-provider",
    "feature_gates": "--feature-gates",
    "nats": "--nats",
    "nats_context": "--context",
}
_OF_A_FOLDER: Final = {"--from", "--since", "--anonymise"}


def _refuse_together(context: typer.Context, output: Path) -> None:
    """Only flags of the command line count: a variable may be set for another use.

    Raises:
        UsageError: flags exclude each other.
    """
    sources = {flag: context.get_parameter_source(name) for name, flag in _FLAGS.items()}
    given = {flag for flag, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if "--from" in given:
        others = sorted(given - _OF_A_FOLDER)
        if others:
            raise UsageError(f"--from reads a folder, and asks neither NATS nor services: leave {others[0]} away")
        return
    if "--since" in given:
        raise UsageError("--since chooses segments of a `berth record --keep`: name its folder with --from")
    if "--keep" not in given:
        if "--keep-size" in given:
            raise UsageError("--keep-size belongs to --keep, which is missing")
    elif output == _STANDARD_OUTPUT:
        raise UsageError("--keep writes into a folder: name one in place of -o -")
    elif "--for" in given:
        raise UsageError("--keep records until it is stopped: leave --for away")
    elif "--anonymise" in given:
        why = "masking for that long would remember a word for every name"
        raise UsageError(
            f"--keep keeps names, since {why}: give --anonymise with --from, which masks what it takes out"
        )


T = TypeVar("T")


def _read(reader: readers.Reader[T], flag: str, given: str) -> T:
    """Read a flag.

    Raises:
        UsageError: the flag's text is invalid.
    """
    try:
        return reader(given)
    except ValueError as exc:
        raise UsageError(f"{flag}: {exc}") from exc


def _size(given: str) -> int:
    try:
        size = value(given)
    except QuantityError:
        raise ValueError(f"want bytes such as 500M or {KEEP_SIZE}, got {given!r:.80}") from None
    if not value(LEAST_SIZE) <= size <= value(MOST_SIZE):
        raise ValueError(f"want {LEAST_SIZE}..{MOST_SIZE}, got {given:.80}")
    return size


# A running recorder gets a watermark of each kind every half minute.
SILENT: Final = timedelta(minutes=1)


def _join(folder: Path, since: timedelta | None, output: Path, *, anonymise: bool) -> None:
    with stoppable(), joined([folder], since) as found:
        head = found.header
        change: Change = unchanged
        if anonymise:
            anonymiser = Anonymiser(configuration_of(head, found.parts[0].name))
            head, change = anonymiser.header(head), anonymiser.of
        with _writer(output, head) as writer:
            for record in found.records():
                if isinstance(record, Recorded | Waiting):
                    writer.add(change(record))
                elif isinstance(record, Begun):
                    writer.add(record)
                if writer.has_frame:
                    writer.write_frames()
            writer.end(f"it is of {counted(len(found.parts), 'segment')}", found.parts[-1].reached)
    begin, newest = head.at, found.newest
    if found.less:
        note(f"it begins at {begin.isoformat(timespec='seconds')}: {found.less}")
    silent = (datetime.now(UTC) - newest).total_seconds()
    if silent > SILENT.total_seconds():
        note(f"its newest message is {duration(silent)} old: the recorder has ended, or cannot reach NATS")
    size = amount_of_bytes(writer.written)
    taken = f"took {duration((newest - begin).total_seconds())}, {writer.messages} messages, {size} to"
    if output == _STANDARD_OUTPUT:
        note(f"{taken} standard output")
    else:
        print_line(f"{taken} {output}")


@contextmanager
def _writer(output: Path, head: Header) -> Iterator[RecordingWriter]:
    """A new recording, which is removed if the block fails.

    Raises:
        UsageError: it cannot be created, or standard output is a terminal.
    """
    if output == _STANDARD_OUTPUT:
        _refuse_a_terminal()
        yield _to_standard_output(head)
        return
    writer = RecordingWriter.create(output, head)
    try:
        yield writer
    except BaseException:
        writer.drop()
        output.unlink(missing_ok=True)
        raise


def _refuse_a_terminal() -> None:
    if sys.stdout.isatty():
        raise UsageError("writing a recording to a terminal: redirect standard output into a file, or name one")


def _to_standard_output(head: Header) -> RecordingWriter:
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    return RecordingWriter.into("standard output", out, head, is_pipe=True)


async def _record(
    file: Path,
    lasts: timedelta | None,
    configuration: KubeSchedulerConfiguration,
    server: NatsServer,
    *,
    anonymise: bool,
) -> None:
    anonymiser = Anonymiser(configuration) if anonymise else None
    async with open_session(server, name="record", is_named=False) as session:
        note(str(ANSWERED_BY.get()))
        head = recorded_header(configuration, session.bus_id, (await session.state(DECISIONS)).now)
        head = head if anonymiser is None else anonymiser.header(head)
        is_out = file == _STANDARD_OUTPUT
        writer = _to_standard_output(head) if is_out else RecordingWriter.create(file, head)
        recorder = Recorder(session, writer, queue_pages, unchanged if anonymiser is None else anonymiser.of)
        began = time.monotonic()
        reason = "it failed"
        try:
            reason = await until_stopped(_run(recorder, file, lasts)) or "it was stopped"
            await recorder.ask_again()
            await _compare(session, configuration)
        finally:
            try:
                recorder.end(reason)
            finally:
                if not (writer.written or is_out):
                    await asyncio.to_thread(file.unlink, missing_ok=True)
    size = amount_of_bytes(writer.written)
    lasted, to = duration(time.monotonic() - began), "standard output" if is_out else file
    (note if is_out else print_line)(f"recorded {writer.messages} messages in {lasted} to {to}, {size}: {reason}")


async def _run(recorder: Recorder, file: Path, lasts: timedelta | None) -> str:
    until = "for " + duration(lasts.total_seconds()) if lasts else "until Ctrl-C"
    to = "standard output" if file == _STANDARD_OUTPUT else file

    def on_begun(missing: str) -> None:
        if missing:
            note(missing)
        note(f"recording to {to} {until}")

    try:
        async with asyncio.timeout(lasts.total_seconds() if lasts else None):
            return await recorder.run(on_begun=on_begun)
    except TimeoutError:
        return "its time was over"


async def _compare(session: Session, configuration: KubeSchedulerConfiguration) -> None:
    """Print a note if the services' configuration differs from the recorded one."""
    stored = await session.last(DECISIONS, "berth.decision.>")
    try:
        used = decode(stored.data, Decision).config if stored is not None else ""
    except DecodeError:
        return
    if used not in {"", configuration.digest}:
        note(
            f"the recording has configuration {configuration.digest}, the services decide under {used}: "
            "no ranking can be made again: name theirs with --config, --algorithm-provider and --feature-gates"
        )
