"""``berth up``: the whole pipeline in the foreground until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from berth.cli.pipeline.pipeline import PipelineOptions, pipeline
from berth.cli.rendering import note, say
from berth.process.exits import UsageError
from berth.process.settings import NatsSettings


async def up(options: PipelineOptions, *, ready_file: Path | None) -> None:
    """Run the pipeline until SIGINT or SIGTERM; every process has ended when this returns."""
    stopping = asyncio.Event()
    if ready_file is not None:
        _forget(ready_file)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    work = asyncio.ensure_future(_up(options, ready_file))
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([work, told], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not work.done():
        note("stopping")
        work.cancel()
    await asyncio.gather(work, return_exceptions=stopping.is_set())


async def _up(options: PipelineOptions, ready_file: Path | None) -> None:
    async with pipeline(options, note) as running:
        note(f"NATS at {running.nats}, cluster of {running.kubeconfig}")
        if running.nats != NatsSettings().url:
            note(f"berth why, trace and top find it with --nats {running.nats} (or BERTH_NATS_URL)")
        await running.ready()
        say("ready")
        if ready_file is not None:
            _write_whole(ready_file, "ready\n")
        await asyncio.Event().wait()


def _forget(path: Path) -> None:
    """What an earlier run has written is not true any more.

    Raises:
        UsageError: nothing can be written there.
    """
    if not path.parent.is_dir():
        raise UsageError(f"--ready-file {str(path)!r}: there is no folder {str(path.parent)!r}")
    path.unlink(missing_ok=True)


def _write_whole(path: Path, text: str) -> None:
    """A reader sees all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
