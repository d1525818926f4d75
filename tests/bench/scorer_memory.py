"""The memory of a scorer process on a real NATS server whose bucket ``cluster`` has the objects of a busy cluster.

The scorer ranks one pod of each application, so that its cache of equivalence classes is full.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.population import APPLICATIONS, applications, namespaces, nodes, pods
from berth.bus.interface import Session
from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth.bus.stages import publish_pending
from berth.messages.attempts import Pending
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Attempt, Term, Uid, key
from harness.servers.child_processes import spawn, stop
from harness.servers.nats_server import nats_server

_AT_ONCE = 256
_READY_SECONDS = 120.0
_FIELD = re.compile(r"^(VmRSS|VmHWM):\s+(\d+) kB$", re.MULTILINE)
MEBI = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerMemory:
    """Mebibytes of the process: resident when ready and after ranking, each with the peak until then."""

    nodes: int
    pods: int
    classes: int
    ready_mebibytes: int
    ready_peak_mebibytes: int
    ranked_mebibytes: int
    ranked_peak_mebibytes: int
    start_seconds: float


async def scorer_memory(node_count: int, per_node: int) -> ScorerMemory:
    """Fill the bucket, start a scorer, have it rank pods, and read its memory."""
    with nats_server() as server, tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        async with _session(server.address) as session:
            await _fill(session, _entries(node_count, per_node))
            ready = Path(folder) / "ready"
            flags = ["--nats", server.address, "--ready-file", str(ready), "--health-port=0"]
            began = time.monotonic()
            log = Path(folder) / "scorer.log"
            process = spawn([sys.executable, "-m", "berth_scorer", *flags], log)
            try:
                await _until(ready.exists, process, log)
                start_seconds = time.monotonic() - began
                at_ready = _memory(process.pid)
                await _rank_all(session)
                ranked = _memory(process.pid)
            finally:
                stop([process])
    return ScorerMemory(
        nodes=node_count,
        pods=node_count * per_node,
        classes=APPLICATIONS,
        ready_mebibytes=at_ready["VmRSS"],
        ready_peak_mebibytes=at_ready["VmHWM"],
        ranked_mebibytes=ranked["VmRSS"],
        ranked_peak_mebibytes=ranked["VmHWM"],
        start_seconds=round(start_seconds, 1),
    )


@asynccontextmanager
async def _session(address: str) -> AsyncIterator[Session]:
    session = await NatsBus(BusSettings(servers=(address,))).connect(name="bench")
    await session.apply()
    try:
        yield session
    finally:
        await session.close()


def _entries(node_count: int, per_node: int) -> Iterator[tuple[str, bytes]]:
    """Every key and value of the bucket, as a watcher writes them."""
    yield from (_entry("namespace", each.metadata.name, each) for each in namespaces())
    for application in applications():
        replica_set, service = application.owners()
        yield _entry("replicaset", f"rs-{application.number}", replica_set)
        yield _entry("service", f"svc-{application.number}", service)
    yield from (_entry("node", node.metadata.name, node) for node in nodes(node_count))
    for pod in pods(node_count, per_node):
        yield _entry("pod", pod.uid, pod, pod.status.start_time)


def _entry(kind: str, name: str, thing: object, bound_at: str | None = None) -> tuple[str, bytes]:
    raw = msgspec.Raw(msgspec.json.encode(thing))
    return key(kind, name), encode_entry(MirrorEntry(term=Term(1), object=raw, bound_at=bound_at))


async def _fill(session: Session, entries: Iterable[tuple[str, bytes]]) -> None:
    waiting: set[asyncio.Task[int]] = set()
    for name, data in entries:
        waiting.add(asyncio.create_task(session.put("cluster", name, data)))
        if len(waiting) >= _AT_ONCE:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)


async def _rank_all(session: Session) -> None:
    """Request a ranking for one pod of each application, and wait for all answers."""
    for application in applications():
        pod = application.pod(10**6 + application.number)
        attempt = str(Attempt(uid=Uid(pod.uid), term=Term(1), n=1))
        await publish_pending(session, Pending(config="bench", attempt=attempt, profile="berth", pod=pod))
    deadline = time.monotonic() + _READY_SECONDS
    while (await session.state("RANKED")).messages < APPLICATIONS:
        assert time.monotonic() < deadline, "the scorer has not ranked every pod in time"
        await asyncio.sleep(0.1)


async def _until(met: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait; fail with the end of the log."""
    deadline = time.monotonic() + _READY_SECONDS
    while not met():
        assert process.poll() is None, f"the scorer has ended: {_end_of(log)}"
        assert time.monotonic() < deadline, f"the scorer is not ready: {_end_of(log)}"
        await asyncio.sleep(0.05)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _memory(pid: int) -> dict[str, int]:
    found = _FIELD.findall(Path(f"/proc/{pid}/status").read_text())
    return {field: int(kibibytes) // MEBI for field, kibibytes in found}


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(scorer_memory(int(sys.argv[1]), 10))}\n")
