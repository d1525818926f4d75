"""``berth record``: writes what is on the bus into a file, until Ctrl-C; ``berth replay`` asks it again."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.errors import DecodeError
from berth.api.messages import Decision, decode
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS
from berth.cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth.cli.commands.config import Gates, Provider, configured
from berth.cli.options import reporting_errors, run_command, until_stopped
from berth.cli.rendering import amount_of_bytes, duration, note, print_line
from berth.process import readers
from berth.process.exits import UsageError
from berth.recording.anonymised import Anonymiser
from berth.recording.configuration import recorded_configuration
from berth.recording.file import RecordingWriter, header
from berth.recording.recorder import Recorder

app = typer.Typer()

LONGEST: Final = timedelta(days=7)
_read_duration: Final = readers.duration(1, LONGEST.total_seconds())

File = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write; a new one.", show_default=False)
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="DURATION", help="End after this: 30s, 10m, 1h. Without it Ctrl-C ends it.", show_default=False
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
    *,
    output: File,
    lasts: For = None,
    anonymise: Anonymise = False,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Write what is on the bus into a file, for berth replay.

    The cluster as scorers see it, then every change, and every pod's messages.
    """
    configuration = configured(config, algorithm_provider, feature_gates)
    with reporting_errors():
        given = _duration_of(lasts)
        if output.exists():  # before NATS is asked; the writer looks again
            raise UsageError(f"writing {str(output)!r}: it exists already: remove it, or name another file")
    run_command(_record(output, given, configuration, NatsServer(nats, nats_context), anonymise=anonymise))


def _duration_of(lasts: str | None) -> timedelta | None:
    """How long to record; ``None``: until Ctrl-C.

    Raises:
        UsageError: it is no duration.
    """
    try:
        return None if lasts is None else _read_duration(lasts)
    except ValueError as exc:
        raise UsageError(f"--for: {exc}") from exc


async def _record(
    file: Path,
    lasts: timedelta | None,
    configuration: KubeSchedulerConfiguration,
    server: NatsServer,
    *,
    anonymise: bool,
) -> None:
    anonymiser = Anonymiser(configuration) if anonymise else None
    async with open_session(server, name="record") as session:
        head = header(
            at=(await session.state(DECISIONS)).now,
            bus_id=session.bus_id,
            config=configuration.digest,
            release=configuration.release,
            configuration=recorded_configuration(configuration),
        )
        writer = RecordingWriter.create(file, head if anonymiser is None else anonymiser.header(head))
        recorder = Recorder(session, writer) if anonymiser is None else Recorder(session, writer, anonymiser.of)
        began = time.monotonic()
        reason = "it failed"
        try:
            reason = await until_stopped(_run(recorder, file, lasts)) or "it was stopped"
            await _compare(session, configuration)
        finally:
            recorder.end(reason)
    size = amount_of_bytes(writer.written)
    print_line(
        f"recorded {writer.messages} messages in {duration(time.monotonic() - began)} to {file}, {size}: {reason}"
    )


async def _run(recorder: Recorder, file: Path, lasts: timedelta | None) -> str:
    until = "for " + duration(lasts.total_seconds()) if lasts else "until Ctrl-C"
    try:
        async with asyncio.timeout(lasts.total_seconds() if lasts else None):
            return await recorder.run(on_begun=lambda: note(f"recording to {file} {until}"))
    except TimeoutError:
        return "its time was over"


async def _compare(session: Session, configuration: KubeSchedulerConfiguration) -> None:
    """Say when the services decide under another configuration than the one that was recorded."""
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
