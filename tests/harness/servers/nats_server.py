"""A real nats-server for tests: killed, restarted on its port with its store, or made to lose the store.

    with nats_server() as server:
        server.address, server.kill(), server.start(), server.lose_store()

It dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path

from berth_cli.pipeline.natsserver import ServerSettings, config_text, find_nats_server, server_address
from harness.servers.child_processes import die_with_parent, free_ports
from harness.servers.control_plane import StartError

_IN_USE = re.compile(r"^# HeapAlloc = (\d+)$", re.MULTILINE)
"""In a heap profile that a person can read."""

START_TRIES = 5
READY_SECONDS = 20.0
STOP_SECONDS = 5.0
LISTENING = b"Listening for client connections on"


class NatsServer:
    """One server with a port and a folder of its own; `extra` is more configuration, such as users."""

    def __init__(
        self, folder: Path, port: int, extra: str = "", profiling_port: int | None = None, **settings: object
    ) -> None:
        self.folder = folder
        self._profiling_port = profiling_port
        self.settings = ServerSettings(**{"store": folder / "store", "port": port, **settings})
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return server_address(self.settings)

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start on the same port with the same store, and wait until it accepts clients."""
        config = self.folder / "nats.conf"
        profiling = f"prof_port: {self._profiling_port}\n" if self._profiling_port else ""
        config.write_text(config_text(self.settings) + profiling + self._extra)
        with self._log.open("ab") as log:
            start = log.tell()
            self._process = subprocess.Popen(
                [str(find_nats_server()), "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one call into libc
            )
        self._wait_until_ready(start)

    @property
    def _log(self) -> Path:
        return self.folder / "nats-server.log"

    def is_healthy(self) -> bool:
        """Whether JetStream works, as its health endpoint says."""
        url = f"http://127.0.0.1:{self.settings.monitoring_port}/healthz"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def collect_garbage(self) -> int | None:
        """Let its runtime free what it uses no more; it needs a profiling port.

        Without it a Go program keeps up to twice what it uses, and how much of that it has at a moment is chance.
        Returns the bytes that are in use then, ``None`` while the server is down.
        """
        url = f"http://127.0.0.1:{self._profiling_port}/debug/pprof/heap?gc=1&debug=1"
        with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=5) as answer:
            if found := _IN_USE.search(answer.read().decode()):
                return int(found[1])
        return None

    def stop(self) -> None:
        """Stop it as an operator does."""
        if self._process is None:
            return
        self.go_on()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Pause it (SIGSTOP), so that it does not answer; returns once it is stopped."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """End the pause."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def lose_store(self) -> None:
        """Kill it and remove all that it had stored."""
        self.kill()
        shutil.rmtree(self.settings.store, ignore_errors=True)

    def _wait_until_ready(self, start: int) -> None:
        """Until it says so in its log after this offset: a server of another test may answer on the port."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if LISTENING in self._log.read_bytes()[start:] and self._says_hello():
                return
            time.sleep(0.02)
        words = self._log.read_text(errors="replace")[-600:]
        raise StartError(f"starting nats-server on port {self.settings.port}: not ready; {words!r}")

    def _says_hello(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.settings.port), timeout=1) as client:
                client.settimeout(1)
                return client.recv(5) == b"INFO "
        except OSError:
            return False


def nats_cluster(folders: Sequence[Path], extra: str = "", **settings: object) -> list[NatsServer]:
    """Servers that form one cluster, not started yet; a single one is no cluster. `extra` is more configuration.

    Each serves its health by HTTP, and can be told to collect its garbage.
    """
    count = len(folders)
    ports = free_ports(4 * count)
    clients, routes, health, profiles = (ports[start::4] for start in range(4))
    servers = []
    for number, folder in enumerate(folders):
        peers = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        cluster = (
            f"cluster {{ name: berth, listen: 127.0.0.1:{routes[number]}, no_advertise: true, routes: [{peers}] }}\n"
        )
        servers.append(
            NatsServer(
                folder,
                clients[number],
                (cluster if count > 1 else "") + extra,
                name=f"nats-{number}",
                monitoring_port=health[number],
                profiling_port=profiles[number],
                **settings,
            )
        )
    return servers


def wait_for_jetstream(servers: Sequence[NatsServer]) -> None:
    """Wait until JetStream works on each of these servers; a cluster elects leaders first.

    Raises:
        StartError: it does not work on one of them.
    """
    deadline = time.monotonic() + READY_SECONDS
    for server in servers:
        while not server.is_healthy():
            if time.monotonic() > deadline:
                raise StartError(f"JetStream on port {server.settings.port} is not healthy")
            time.sleep(0.05)


@contextlib.contextmanager
def nats_server(extra: str = "", **settings: object) -> Iterator[NatsServer]:
    """Start a server on a free port, stop it and remove its folder at the end; ``settings`` are ServerSettings.

    Raises:
        StartError: it did not become ready.
    """
    folder = Path(tempfile.mkdtemp(prefix="berth-nats-"))
    server = _started(lambda port: NatsServer(folder, port, extra, **settings), folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _started(make: Callable[[int], NatsServer], folder: Path) -> NatsServer:
    """Start a server; when another process has taken the port meanwhile, try another port."""
    problem = StartError("no try was made")
    for _ in range(START_TRIES):
        server = make(free_ports(1)[0])
        try:
            server.start()
        except StartError as exc:
            server.kill()
            problem = exc
        else:
            return server
    shutil.rmtree(folder, ignore_errors=True)
    raise problem
