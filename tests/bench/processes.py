"""What processes have cost so far, from /proc: seconds of CPU and the most memory that each ever held."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one process since it began: seconds of CPU, user and system, and mebibytes at its peak."""

    cpu_seconds: float
    peak_mebibytes: float


def costs(pids: Mapping[str, int]) -> dict[str, Cost]:
    """Read what each of the processes has cost; one that is gone is left out."""
    return {name: cost for name, pid in pids.items() if (cost := _cost(PROC / str(pid))) is not None}


def _cost(folder: Path) -> Cost | None:
    try:
        times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        peak = _PEAK.search((folder / "status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    cpu_seconds = sum(int(ticks) for ticks in times) / TICKS_PER_SECOND
    return Cost(cpu_seconds=cpu_seconds, peak_mebibytes=int(peak[1]) / 1024 if peak else 0.0)


def machine_busy_seconds() -> float:
    """Seconds of CPU that the whole machine has spent since it booted, waiting for disks not counted."""
    fields = (PROC / "stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = (int(each) for each in fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def children(*names: str) -> dict[str, int]:
    """Process ids of this process's own children that run one of these programs."""
    found = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (name := _child(entry)) in names:
            found[name] = int(entry.name)
    return found


def _child(folder: Path) -> str:
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        program = (folder / "cmdline").read_text(errors="replace").partition("\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return Path(program).name if parent == os.getpid() else ""
