"""`berth up` as a user starts it: a real process with children, each of which a test may kill.

    with berth_up("--kubeconfig", path, folder=tmp_path) as berth:
        berth.wait_until_ready()
        berth.pids["binder"], berth.kill("binder"), berth.said, berth.interrupt()

All processes have ended when the block has.
"""

from __future__ import annotations

import compileall
import contextlib
import functools
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from berth.bus.interface import Session
from berth_cli.bus import connect_bus
from berth_cli.pipeline import access
from harness.servers.child_processes import die_with_parent, free_ports, overload

PROC = Path("/proc")
READY_SECONDS = 60.0
END_SECONDS = 20.0
"""`berth up` promises to have ended its children after 12 s."""
MARK = "BERTH_TEST_PIPELINE"
"""Inherited by every descendant, so that a process is found after its parent has ended."""
FORK_SERVER = "berth_cli.pipeline.forkserver"
SHOWN = 3_000
"""Characters of the output that the error of a failed wait shows."""
_NATS = re.compile(r"NATS at (\S+), cluster of (\S+)$", re.MULTILINE)


class BerthUp:
    """One run of `berth up`; its output and files stay in `folder`."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.ready_file = folder / "ready"
        self.temporary = folder / "tmp"
        self._mark = uuid.uuid4().hex
        self._arguments = arguments
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it with empty standard input; its output goes into two files."""
        compile_packages()
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)  # that of an earlier run stays until this run removes it
        environment = {**os.environ, **self._environment, MARK: self._mark, "TMPDIR": str(self.temporary)}
        command = [sys.executable, "-m", "berth_cli", "up", "--ready-file", str(self.ready_file), *self._arguments]
        with (self.folder / "stdout").open("ab") as out, (self.folder / "stderr").open("ab") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one call into libc
            )

    @property
    def pid(self) -> int:
        """The process that was started, parent of the others."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def printed(self) -> str:
        """Its standard output."""
        return _text(self.folder / "stdout")

    @property
    def said(self) -> str:
        """The standard error of it and its children."""
        return _text(self.folder / "stderr")

    @property
    def sentences(self) -> list[str]:
        """The lines of `said`, without those that a wait has on a busy machine only."""
        return [line for line in self.said.splitlines() if not line.endswith("no answer yet")]

    @property
    def nats(self) -> str:
        """Address of its NATS server."""
        return self._addresses()[0]

    async def session(self, user: str = "people") -> Session:
        """A session on its embedded NATS server, as one of its users."""
        return await connect_bus(self.nats, user=user, place=self.temporary)

    def password(self, user: str) -> str:
        """Of a user of its embedded NATS server."""
        folder = access.find_folder(self.nats, self.temporary)
        assert folder is not None
        return access.password_file(folder, user).read_text(encoding="utf-8")

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of its cluster."""
        return Path(self._addresses()[1])

    def _addresses(self) -> tuple[str, str]:
        found = _NATS.search(self.said)
        assert found is not None, f"it has not logged the address of its NATS: {self._last_words()}"
        return found[1], found[2]

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids of the living children by name: watcher, binder, scorer-1, ..., nats-server, cluster."""
        return {name: pid for pid in self.living() if pid != self.pid and (name := _name(pid))}

    def pid_of(self, identity: str) -> int | None:
        """The process that has this identity, such as the holder of a Lease. It ends with the name of the child."""
        return self.pids.get(identity.rpartition("_")[2]) if identity in self.said else None

    @property
    def fork_server(self) -> int:
        """The process that has imported the services and forks them."""
        return next(pid for pid in self.living() if _command(pid)[2:3] == [FORK_SERVER] and not _service(pid))

    def living(self) -> list[int]:
        """Every living process of this run, itself included, also those whose parent has ended."""
        return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit() and self._owns(int(entry.name))]

    def _owns(self, pid: int) -> bool:
        return _is_alive(pid) and f"{MARK}={self._mark}" in _environment(pid)

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until pods are being scheduled."""
        self.wait_for(self.ready_file.exists, "`berth up` to be ready", seconds * overload())

    def wait_for(self, met: Callable[[], object], what: str, seconds: float = READY_SECONDS) -> None:
        """Poll until the condition holds; fails with the run's last output at the deadline or when the run ends."""
        deadline = time.monotonic() + seconds
        while not met():
            self.must_run()
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {self._last_words()}"
            time.sleep(0.02)

    def must_run(self) -> None:
        """Fail with its last output when it has ended by itself."""
        assert self.returncode is None, f"`berth up` ended with {self.returncode}: {self._last_words()}"

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self._last_words()}") from None

    def interrupt(self) -> int:
        """End it as Ctrl-C does."""
        os.kill(self.pid, signal.SIGINT)
        return self.wait()

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send kill -9, or another signal, to a child; returns the process id that it had."""
        pid = self.pids[name]
        os.kill(pid, number)
        return pid

    def kill_itself(self) -> None:
        """Kill -9 the parent, which then cannot stop its children."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait_until_nothing_lives(self, seconds: float) -> None:
        """Fail when a process of this run still lives after this time."""
        deadline = time.monotonic() + seconds
        while living := self.living():
            assert time.monotonic() < deadline, f"{[_command(pid) for pid in living]} outlive it by {seconds} s"
            time.sleep(0.02)

    def files_left(self) -> list[str]:
        """The files left in its folder for temporary files."""
        return sorted(str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*"))

    def end(self) -> None:
        """End it in any state."""
        if self.returncode is None and self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _last_words(self) -> str:
        return f"{self.printed[-SHOWN:]}\n{self.said[-SHOWN:]}"


@contextmanager
def berth_up(*arguments: object, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[BerthUp]:
    """Start `berth up` with these arguments and additions to its environment; it has ended when the block has."""
    berth = BerthUp((*_port(arguments), *map(str, arguments)), folder, environment or {})
    berth.start()
    try:
        yield berth
    finally:
        berth.end()


PACKAGES = ("berth", "berth_cli", "berth_watcher", "berth_scorer", "berth_binder", "berth_metrics_collector")


@functools.cache
def compile_packages() -> None:
    """Compile what has changed, as an installation does.

    Each process would spend half a second of CPU time on it where `PYTHONDONTWRITEBYTECODE` is set, as in containers.
    """
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        assert found is not None, package
        for folder in found.submodule_search_locations or ():
            compileall.compile_dir(folder, quiet=1)


def _port(arguments: tuple[object, ...]) -> tuple[str, ...]:
    """A free port for the embedded NATS: when two runs start at once, only one gets the default port."""
    told = {"--nats", "--nats-port"} & {str(argument).partition("=")[0] for argument in arguments}
    return () if told else ("--nats-port", str(free_ports(1)[0]))


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _is_alive(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _environment(pid: int) -> str:
    try:
        return (PROC / str(pid) / "environ").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _command(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _name(pid: int) -> str:
    """The name that `berth up` gives a child."""
    command = _command(pid)
    if Path(command[0] if command else "").name == "nats-server":
        return "nats-server"
    return "cluster" if command[1:3] == ["-m", "berth_sim"] else _service(pid)


def _service(pid: int) -> str:
    """The name of a service, which is the name of its process; that has room for 15 bytes."""
    try:
        name = (PROC / str(pid) / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "metrics-collector" if name == "berth-metrics-c" else name.removeprefix("berth-") * name.startswith("berth-")
