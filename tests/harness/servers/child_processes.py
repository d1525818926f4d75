"""Programs that a test starts: their ports, and their end together with the test."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

STOP_SECONDS = 5.0
# Below ip_local_port_range, so that no outgoing connection takes the port between the check and the listen.
PORTS = range(20_000, 32_700)
PR_SET_PDEATHSIG = 1
Text = TypeVar("Text", str, bytes)


def spawn(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program that dies with this process and writes into a log; the default environment is this process's."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one call into libc
        )


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, also when that is killed with -9 (Linux only)."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def overload() -> float:
    """How many processes want each core, by the last minute's average; at least 1. Others take so much longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_ports(count: int) -> list[int]:
    """Return ports below the range of outgoing connections that no process listens on at this moment."""
    ports = (port for port in random.sample(PORTS, len(PORTS)) if _is_free(port))
    return [next(ports) for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def ended_with_the_block(process: subprocess.Popen[Text]) -> Iterator[subprocess.Popen[Text]]:
    """A process that a test ends: if an error leaves it running, it is killed, or the block would wait for ever."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Stop programs, the last one started first: an API server stops slowly once its etcd has ended."""
    for process in reversed(processes):
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
