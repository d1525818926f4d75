"""What floods by each user of NATS cost: the next pod's time, leaders and sessions that end, logs, memory.

    make bench-floods ARGS="--seconds 5"
    make bench-floods ARGS="people scorer:CONSUMER --takeover"

Each right of docs/rights/bus.yaml of the users outside of berth's account is a flood: what the user may publish or
ask, on every subject of that kind in turn, as fast as one connection sends; beside these, subscriptions, logins,
payloads that are too large or do not end, and what somebody without a password can send. The services run as their
users, with leader election, on a real API server. Arguments choose floods by the beginning of their names. With
--takeover the leading watcher and binder are killed in the middle of each flood, and a standby of each takes over. A
flood lasts until its pods are bound.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from msgspec import structs
from rich.console import Console

from bench.observer import Bound
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec
from berth.bus.session import NatsBus
from berth.messages.attempts import Candidate, Ranked
from berth.messages.encoding import decode, encode
from berth.messages.subjects import Attempt
from berth_cli.pipeline.accounts import DOMAIN, User, publishes, users
from berth_cli.pipeline.natsserver import MOST_PAYLOAD_BYTES
from harness.servers.bus_users import Services, bus_of_users, inbox_of, password_of, services, settings_of
from harness.servers.control_plane import HOW_TO_GET_IT, assets_folder, control_plane
from harness.servers.nats_server import NatsServer
from harness.worlds.bus_rights import verb_of
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually

UNREACHABLE: Final = 3
API: Final = f"$JS.{DOMAIN}.API."
BLOCK: Final = 500  # lines that are sent at once
DIGITS: Final = 9  # of a running number
HEARD: Final = 20  # rankings that are copied
EVERY_SECONDS: Final = 0.25  # between two measured pods
AFTER_SECONDS: Final = 10.0  # after a flood, all is as before
LONGEST_SECONDS: Final = 60.0
LEADING: Final = ("watcher", "binder")
STANDBY: Final = "-standby"
LARGE: Final = 100_000  # bytes of a large message; people's are at most 128 KiB
SILENT: Final = 15_000  # connections without a login that are open at once; the server ends each after 2 s
Login = Literal["right", "wrong", "without a name", "never"]
CONFIGURATION: Final = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
ENDINGS: Final = ("leading ended", "leading again after an error", "starting again on another connection")
BODIES: Final[Mapping[str, str]] = {
    "STREAM.INFO": '{"subjects_filter":">"}',
    "STREAM.MSG.GET": '{"last_by_subj":">"}',
    "DIRECT.GET": '{"batch":1000,"seq":1,"next_by_subj":">"}',
    "CONSUMER.MSG.NEXT": '{"batch":1,"expires":5000000000}',
}
"""Of the requests that are worth most to an attacker; the others have none."""

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """What one connection sends without end; ``{n}`` in a line is a running number."""

    user: str
    name: str
    lines: tuple[bytes, ...]
    login: Login = "right"
    is_connecting: bool = False  # a new connection for each block
    keeps: int = 0  # of these connections, how many stay open
    answers: bool = False  # instead of the lines, sends changed copies of each ranking that the scorers publish

    @property
    def title(self) -> str:
        return f"{self.user}:{self.name}"


def floods() -> Iterator[Flood]:
    """Every flood, from the rights."""
    for user in users():
        if user.is_own:
            continue
        kinds: dict[str, list[str]] = {}
        for subject in publishes(user):
            kinds.setdefault(_kind(subject), []).append(subject)
        for kind, subjects in kinds.items():
            body = BODIES.get(kind, "" if subjects[0].startswith((API, "$SRV")) else "x" * 64).encode()
            yield _publishing(user, kind, subjects, body)
            if not subjects[0].startswith((API, "$SRV", "$JS", "_R_", "berth.service")):
                yield _publishing(user, f"{kind}, large", subjects, b"x" * LARGE)
        inbox = inbox_of(user.name)
        subscribe = f"SUB {inbox}.{{n}}.> {{n}}\r\nUNSUB {{n}}\r\n".encode()
        yield Flood(user=user.name, name="subscriptions", lines=(subscribe,))
        yield Flood(user=user.name, name="subscriptions that stay", lines=(f"SUB {inbox}.{{n}}.> {{n}}\r\n".encode(),))
        yield Flood(user=user.name, name="connections", lines=(b"PING\r\n",), is_connecting=True)
        yield Flood(
            user=user.name,
            name="connections that stay",
            lines=(b"PING\r\n",),
            is_connecting=True,
            keeps=user.connections,
        )
        yield from _payloads(user)
        yield Flood(user=user.name, name="refused subjects", lines=(b"PUB berth.decision.x.{n} 1\r\nx\r\n",))
    for name, version in (("of the future", "9" * 15), ("of the past", "1")):
        subject, ranking = "berth.ranked.berth.default.x{n}", encode(_ranking_of_no_pod(version))
        size = len(ranking.replace(b"{n}", b"0" * DIGITS))
        line = f"PUB {subject} {size}\r\n".encode() + ranking + b"\r\n"
        yield Flood(user="scorer", name=f"rankings of no pod, {name}", lines=(line,))
    yield Flood(user="scorer", name="rankings of pods that wait", lines=(), answers=True)
    for one in (*users(), None):
        name = "nobody" if one is None else one.name
        yield Flood(user=name, name="failed logins", lines=(b"PING\r\n",), login="wrong", is_connecting=True)
    yield from _of_nobody()


def _payloads(user: User) -> Iterator[Flood]:
    """Messages above the user's limit and the server's, and unfinished ones of the largest size on all connections."""
    subject = next(_filled(one) for one in publishes(user) if one.startswith(("$KV.", "berth.")))
    own = user.payload_bytes or MOST_PAYLOAD_BYTES
    for limit, size in {"its own": user.payload_bytes, "the server's": MOST_PAYLOAD_BYTES}.items():
        if not size:
            continue
        line = f"PUB {subject} {size + 1}\r\n".encode() + b"x" * LARGE
        name = f"payloads above {limit} limit"
        yield Flood(user=user.name, name=name, lines=(line,), is_connecting=True)
    unfinished = f"PUB {subject} {own}\r\n".encode() + b"x" * (own - 1)
    name = "payloads that do not end"
    yield Flood(user=user.name, name=name, lines=(unfinished,), is_connecting=True, keeps=user.connections)


def _of_nobody() -> Iterator[Flood]:
    """What somebody who has no password may send."""
    said: Mapping[str, tuple[Login, bytes]] = {
        "logins without a name": ("without a name", b"PING\r\n"),
        "connections that say nothing": ("never", b""),
        "connections that only ping": ("never", b"PING\r\n"),
        "connections with half a line": ("never", b"CONNECT " + b"x" * 4000),
        "lines without an end": ("never", b"CONNECT " + b"x" * LARGE),
        "messages before a login": ("never", b"PUB $KV.facts.x 1\r\nx\r\n"),
        "junk": ("never", b"GET / HTTP/1.1\r\n\r\n"),
    }
    for name, (login, line) in said.items():
        keeps = SILENT if name.startswith("connections") else 0
        yield Flood(user="nobody", name=name, lines=(line,), login=login, is_connecting=True, keeps=keeps)


def _ranking_of_no_pod(version: str) -> Ranked:
    """A ranking of a pod that does not exist, of the first attempt of the first watcher."""
    metadata = ObjectMeta(name="x", namespace="default", uid="x{n}", resource_version=version)
    spec = PodSpec(scheduler_name="berth")
    best = Candidate(node="node-1", total=100)
    pod = Pod(metadata=metadata, spec=spec)
    return Ranked(attempt="x{n}.1.1", profile="berth", pod=pod, scorer="hostile", candidates=[best])


def _kind(subject: str) -> str:
    """Subjects whose floods cost the same: a verb of JetStream, a bucket, a stage."""
    subject = subject.replace(f"{API}$KV.", "$KV.")  # the same bucket under another name
    if subject.startswith(API):
        return verb_of(subject.removeprefix(API))[0]
    return ".".join(subject.split(".")[: 3 if subject.startswith("$JS.ACK") else 2])


def _publishing(user: User, kind: str, subjects: list[str], body: bytes) -> Flood:
    reply = "" if kind.startswith(("_R_", "$JS.ACK")) else f" {inbox_of(user.name)}.{{n}}"
    lines = [f"PUB {_filled(one)}{reply} {len(body)}\r\n".encode() + body + b"\r\n" for one in subjects]
    return Flood(user=user.name, name=kind, lines=tuple(lines))


def _filled(subject: str) -> str:
    if subject == "$SRV.>":
        return "$SRV.PING"
    if subject.startswith("$JS.ACK"):
        return subject.replace(">", "1.1.{n}.1.0")
    return subject.replace("*", "x").replace(">", "x.{n}")


def pour(flood: Flood, port: int, stopping: Any, sent: Any) -> None:
    """Send until told to stop; runs in a process of its own."""
    number, client, heard, kept = 0, None, deque[bytes](maxlen=HEARD), deque[socket.socket]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    while not stopping.is_set():
        try:
            if client is None or flood.is_connecting:
                if client is not None:
                    kept.append(client)
                while len(kept) > flood.keeps:
                    kept.popleft().close()
                client = _connected(flood, port, heard)
            lines = [line for message in tuple(heard) for line in _copies(message)] if flood.answers else flood.lines
            if not lines:
                sent.value += 1  # it has begun, and waits for the first ranking
                time.sleep(0.05)
                continue
            count = 1 if flood.is_connecting else max(1, BLOCK // len(lines))
            block = b"".join(
                line.replace(b"{n}", b"%0*d" % (DIGITS, number + one)) for one in range(1, count + 1) for line in lines
            )
            client.sendall(block)
            if flood.login != "never" and block == b"PING\r\n":
                client.recv(4096)  # the login is over
            number += count
            sent.value += count * len(lines)
        except OSError:
            client = None
            time.sleep(0.001)


def _copies(message: bytes) -> Iterator[bytes]:
    """What a scorer may make of a stored ranking: the same once more, another attempt, other nodes, other subjects."""
    ranked = decode(message, Ranked)
    attempt, name = Attempt.parse(ranked.attempt), ranked.pod.metadata.name
    following = str(Attempt(uid=attempt.uid, term=attempt.term, n=attempt.n + 1))
    nowhere = [Candidate(node=f"nowhere-{one}", total=2**62) for one in range(8)]
    for changes, pod in (
        ({}, name),
        ({}, "x{n}"),
        ({"attempt": following, "candidates": nowhere}, name),
        ({"attempt": following, "candidates": nowhere}, "x{n}"),
    ):
        payload = encode(structs.replace(ranked, **changes))  # type: ignore[arg-type] - fields by name
        subject = f"berth.ranked.{ranked.profile}.{ranked.pod.metadata.namespace}.{pod}"
        yield f"PUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\n"


def _connected(flood: Flood, port: int, heard: deque[bytes]) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    if flood.login == "never":
        return client
    password = password_of(flood.user) if flood.login == "right" else "wrong"
    named = {"user": flood.user, "pass": password} if flood.login != "without a name" else {}
    hello = {**named, "verbose": False, "headers": True, "no_responders": True}
    client.sendall(f"CONNECT {json.dumps(hello)}\r\n".encode())
    if not flood.is_connecting:
        subject = "stored.berth.ranked.>" if flood.answers else f"{inbox_of(flood.user)}.>"
        client.sendall(f"SUB {subject} 1\r\n".encode())
        threading.Thread(target=_hear if flood.answers else _drop_answers, args=(client, heard), daemon=True).start()
    else:
        client.recv(4096)
    return client


def _hear(client: socket.socket, heard: deque[bytes]) -> None:
    """Keep the latest rankings of honest scorers."""
    room = client.makefile("rb")
    try:
        while line := room.readline():
            if line.startswith(b"HMSG"):
                *_, headers, total = line.split()
                payload = room.read(int(total) + 2)[int(headers) : -2]
                if b'"nowhere-' not in payload and payload not in heard:
                    heard.append(payload)
    except OSError:
        pass


def _drop_answers(client: socket.socket, _heard: deque[bytes]) -> None:
    room = bytearray(2**20)
    try:
        while client.recv_into(room):
            pass
    except OSError:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds that pods waited."""

    pods: int
    median: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a flood did. Bytes are MiB; logs are what they grew by, in MiB and lines."""

    sent: int
    during: Waits
    after: Waits
    endings: dict[str, int]
    nats_before: float
    nats_peak: float
    nats_after: float
    services_grew: dict[str, float]
    logs: dict[str, tuple[float, int]]
    takeover: float | None = None


@dataclass(kw_only=True)
class World:
    """The pipeline under its users, with a cluster that has room."""

    server: NatsServer
    cluster: ClusterUser
    running: Services
    folder: Path
    bound: Bound = field(default_factory=Bound)
    leads: str = ""
    """What the names of the leading processes end with."""
    _number: int = 0

    async def waits(self, seconds: float) -> Waits:
        """Create a pod every now and then; how long until each is bound."""
        created: dict[str, float] = {}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._number += 1
            (name,) = await self.cluster.add_pods(1, f"p{self._number}", cpu="1m", memory="1Mi")
            created[name] = time.monotonic()
            await asyncio.sleep(EVERY_SECONDS)
        deadline = time.monotonic() + LONGEST_SECONDS
        while time.monotonic() < deadline and not self.bound.at.keys() >= created.keys():  # noqa: ASYNC110 - of a watch
            await asyncio.sleep(0.02)
        waits = [self.bound.at.get(name, deadline) - at for name, at in created.items()]
        for name in created:
            await self.cluster.delete_pod(name)
        return Waits(pods=len(waits), median=round(statistics.median(waits), 3), longest=round(max(waits), 3))

    async def measure(self, flood: Flood, seconds: float, *, takes_over: bool) -> Figures:
        pids = {**self.running.pids, "nats-server": self.server.pid or 0}
        memory, logs, endings = self._memory(pids), self._logs(), self._endings()
        context = multiprocessing.get_context("spawn")
        stopping, sent = context.Event(), context.Value("q", 0)
        port = self.server.settings.port
        pouring = context.Process(target=pour, args=(flood, port, stopping, sent), daemon=True)
        pouring.start()
        await eventually(lambda: _is_pouring(sent), "the flood to begin", LONGEST_SECONDS)
        watching = asyncio.create_task(self._peak(pids["nats-server"]))
        takeover = asyncio.create_task(self._take_over(seconds / 3)) if takes_over else None
        try:
            during = await self.waits(seconds)
            lasted = await takeover if takeover else None
        finally:
            stopping.set()
            pouring.join(5)
            pouring.terminate()
        peak = await _ended(watching)
        await asyncio.sleep(AFTER_SECONDS)
        after = await self.waits(3.0)
        now = self._memory({**self.running.pids, "nats-server": pids["nats-server"]})
        return Figures(
            sent=sent.value,
            during=during,
            after=after,
            endings={word: count - endings[word] for word, count in self._endings().items() if count > endings[word]},
            nats_before=memory["nats-server"],
            nats_peak=peak,
            nats_after=now["nats-server"],
            services_grew={name: round(size - memory.get(name, 0), 1) for name, size in now.items()},
            logs={name: _grown(now, logs.get(name, (0, 0))) for name, now in self._logs().items()},
            takeover=lasted,
        )

    async def _take_over(self, seconds: float) -> float:
        """Kill both leaders, whose standbys take over; the seconds from then until the next pod is bound."""
        await asyncio.sleep(seconds)
        for user in LEADING:
            self.running.kill(user + self.leads)
        began, known = time.monotonic(), len(self.bound.at)
        await eventually(lambda: self._has_bound(known + 2), "a pod to be bound by the next leaders", LONGEST_SECONDS)
        lasted = list(self.bound.at.values())[known + 1] - began  # the first may have been bound before
        for user in LEADING:
            self.running.start(user, name=user + self.leads)
        self.leads = STANDBY if not self.leads else ""
        return round(lasted, 1)

    async def _has_bound(self, count: int) -> bool:
        return len(self.bound.at) >= count

    async def _peak(self, pid: int) -> float:
        peak = 0.0
        try:
            while True:
                peak = max(peak, _rss(pid))
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            return peak

    def _memory(self, pids: Mapping[str, int]) -> dict[str, float]:
        return {name: _rss(pid) for name, pid in pids.items()}

    def _logs(self) -> dict[str, tuple[float, int]]:
        """MiB and lines of each log."""
        files = [*self.folder.glob("*.log"), self.server.folder / "nats-server.log"]
        texts = {file.stem: file.read_bytes() for file in files if file.exists()}
        return {name: (len(text) / 2**20, text.count(b"\n")) for name, text in texts.items()}

    def _endings(self) -> dict[str, int]:
        found = {}
        for user in self.running.pids:
            log = self.running.log(user)
            found |= {f"{user}: {word}": log.count(word) for word in ENDINGS}
        return found


def _grown(now: tuple[float, int], before: tuple[float, int]) -> tuple[float, int]:
    return round(now[0] - before[0], 2), now[1] - before[1]


async def _is_pouring(sent: Any) -> bool:
    return sent.value > 0


async def _ended(task: asyncio.Task[float]) -> float:
    task.cancel()
    return await task


def _rss(pid: int) -> float:
    """MiB in use."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmRSS")), 0.0)


async def measure(chosen: list[Flood], seconds: float, *, takes_over: bool) -> dict[str, Figures]:
    """Each flood in turn, on one pipeline."""
    found: dict[str, Figures] = {}
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    with control_plane(assets) as plane, bus_of_users() as server, tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "berth.yaml").write_text(CONFIGURATION, encoding="utf-8")
        session = await NatsBus(settings_of(server, "apply")).connect(name="apply")
        await session.apply()
        await session.close()
        async with cluster_user(plane.kubeconfig_path, cleans_up=False) as cluster:
            await cluster.add_nodes(20, cpu="64", pods=1000)
            with services(server, plane.kubeconfig_path, folder / "berth.yaml", folder, elects=True) as running:
                for user in LEADING if takes_over else ():
                    running.start(user, name=user + STANDBY)
                world = World(server=server, cluster=cluster, running=running, folder=folder)
                version = (await cluster.api.get(cluster.api.pods, limit=1)).version
                watching = asyncio.create_task(world.bound.watch(cluster, version))
                await world.waits(1.0)
                console.print(f"without a flood: {await world.waits(seconds)}")
                for flood in chosen:
                    figures = found[flood.title] = await world.measure(flood, seconds, takes_over=takes_over)
                    show(flood.title, figures)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
    return found


def show(title: str, found: Figures) -> None:
    grew = {name: size for name, size in found.services_grew.items() if size > 5}
    logs = {name: f"{size} MiB, {lines} lines" for name, (size, lines) in found.logs.items() if size > 0.1}
    console.print(
        f"{title}: {found.sent} sent; pods {found.during.median:.2f} s, longest {found.during.longest:.2f} s, "
        f"after {found.after.median:.2f} and {found.after.longest:.2f} s; NATS {found.nats_before:.0f} MiB, "
        f"{found.nats_peak:.0f} at most, {found.nats_after:.0f} after; grew {grew}; logs {logs}; ended {found.endings}"
        + (f"; takeover {found.takeover} s" if found.takeover is not None else "")
    )


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Beginnings of floods' names, user:kind. All by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each flood lasts.")] = 5.0,
    takeover: Annotated[bool, typer.Option("--takeover", help="Kill the leaders in the midst.")] = False,  # noqa: FBT002 - a flag
    listing: Annotated[bool, typer.Option("--list", help="Only list the floods.")] = False,  # noqa: FBT002
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure and print."""
    chosen = [flood for flood in floods() if not names or flood.title.startswith(tuple(names))]
    if listing:
        for flood in chosen:
            console.print(flood.title)
        return
    found = asyncio.run(measure(chosen, seconds, takes_over=takeover))
    if out is not None:
        out.write_text(json.dumps({name: asdict(one) for name, one in found.items()}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
