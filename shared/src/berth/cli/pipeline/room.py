"""The room for a pipeline's files: says which folder has too little, before NATS refuses messages."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.bus.settings import MEBIBYTE
from berth.cli.pipeline.supervisor import Report

SCARCE: Final = 32 * MEBIBYTE
"""Bytes below which a start is warned. Four times what `berth run` takes with 1,000 pods; each Decision takes more."""
FULL: Final = MEBIBYTE
"""Bytes below which the folder counts as full: NATS writes blocks, and needs some before the last byte is taken."""
INTERVAL: Final = timedelta(seconds=1)
_REMEDY: Final = "remove files there, or start again with TMPDIR set to another folder"


@asynccontextmanager
async def watched_room(folder: Path, report: Report, *, interval: timedelta = INTERVAL) -> AsyncIterator[None]:
    """Report in the block when the disk of the folder becomes full, and when there is room again."""
    place = folder.parent
    free = free_bytes(folder)
    if FULL <= free < SCARCE:
        report(f"warning: {place} has {_mebibytes(free)} free, and the pipeline's files grow with every pod: {_REMEDY}")
    watching = asyncio.create_task(_watch(folder, report, interval))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(folder: Path, report: Report, interval: timedelta) -> None:
    was_full = False
    while True:
        free = free_bytes(folder)
        is_full = free < FULL
        if is_full and not was_full:
            report(
                f"{folder.parent} is full ({_mebibytes(free)} free): NATS stores no messages there, and pods wait "
                f"until there is room: {_REMEDY}"
            )
        elif was_full and not is_full:
            report(f"{folder.parent} has room again ({_mebibytes(free)} free)")
        was_full = is_full
        await asyncio.sleep(interval.total_seconds())


def free_bytes(folder: Path) -> int:
    """What a process of this user can still write there."""
    return shutil.disk_usage(folder).free


def _mebibytes(count: int) -> str:
    return f"{count / MEBIBYTE:.1f} MiB"
