"""Free disk space of a pipeline: the sizes of its streams, and warnings before NATS refuses writes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.bus.settings import MEBIBYTE
from berth.errors import BerthError
from berth.settings.settings import NatsSettings
from berth_cli.pipeline.supervisor import Report

# Bytes below which no NATS server is started: twice the need of `berth run` with 1,000 pods.
LEAST: Final = 16 * MEBIBYTE
# Bytes below which a start is warned: four times the need of `berth run` with 1,000 pods; each further Decision takes
# more.
SCARCE: Final = 32 * MEBIBYTE
# Bytes below which the folder counts as full: NATS writes blocks and fails before the last byte is taken.
FULL: Final = MEBIBYTE
INTERVAL: Final = timedelta(seconds=1)
# Divisor of the free bytes for each large store: a half, a quarter, an eighth. Decisions then drop the oldest before
# the disk is full; the other two do not grow with time.
_SHARES: Final[Mapping[str, int]] = {"cluster_mebibytes": 2, "decisions_mebibytes": 4, "ranked_mebibytes": 8}
_REMEDY: Final = "remove files there, or start again with TMPDIR set to another folder"


def want_room(folder: Path) -> None:
    """Check that a NATS server can be started on the folder.

    Raises:
        BerthError: it has less than ``LEAST`` free.
    """
    if (free := free_bytes(folder)) < LEAST:
        what = f"{folder.parent} has {_mebibytes(free)} free, and NATS needs {_mebibytes(LEAST)} there"
        raise BerthError(f"starting NATS: {what}: {_REMEDY}")


def stream_limits(free: int, nats: NatsSettings, environment: Container[str]) -> dict[str, str]:
    """Variables with the sizes of large stores: the user's, else as much as fits into the free bytes."""
    limits = {}
    for name, share in _SHARES.items():
        variable, size = f"BERTH_NATS_{name.upper()}", getattr(nats, name)
        fitting = max(1, free // share // MEBIBYTE)
        limits[variable] = str(size if variable in environment else min(size, fitting))
    return limits


@asynccontextmanager
async def watched_room(folder: Path, report: Report, *, interval: timedelta = INTERVAL) -> AsyncIterator[None]:
    """Inside the block, report when the folder's disk becomes full and when it has room again."""
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
    return shutil.disk_usage(folder).free


def _mebibytes(count: int) -> str:
    return f"{count / MEBIBYTE:.1f} MiB"
