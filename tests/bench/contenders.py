"""The schedulers that are compared. Each is started when the pods wait, and stopped before the next one starts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane, assets_folder
from harness.worlds.pipeline import BerthUp, berth_up

KUBE_SCHEDULER = "kube-scheduler"
UNLIMITED = 10_000
"""Requests per second. kube-scheduler's default of 50 would limit it to 56 pods/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """`berth up` with its embedded NATS server."""

    scorers: int = 1
    flags: tuple[str, ...] = ()
    """Further flags of `berth up`."""
    name: str = "berth"
    scheduler_name: str = "berth"

    @contextmanager
    def run(self, plane: ControlPlane, folder: Path) -> Iterator[BerthUp]:
        arguments = ("--kubeconfig", plane.kubeconfig_path, "--scorers", self.scorers, *self.flags)
        with berth_up(*arguments, folder=folder) as berth:
            yield berth


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProcess:
    """A running scheduler that is a single process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pids(self) -> Mapping[str, int]:
        return {self.name: self.process.pid}

    def must_run(self) -> None:
        """Fail with the end of its log when it has exited."""
        code = self.process.poll()
        assert code is None, f"{self.name} ended with {code}: {self.log.read_text(errors='replace')[-3000:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeScheduler:
    """kube-scheduler of the same release as the API server, its default profile, alone and without a Lease."""

    program: Path
    flags: tuple[str, ...] = ()
    """Further flags."""
    name: str = KUBE_SCHEDULER
    scheduler_name: str = "default-scheduler"

    @contextmanager
    def run(self, plane: ControlPlane, folder: Path) -> Iterator[OneProcess]:
        config = folder / "kube-scheduler.json"
        config.write_text(json.dumps(_configuration(plane.kubeconfig_path)))
        log = folder / "kube-scheduler.log"
        process = spawn([str(self.program), f"--config={config}", "--secure-port=0", *self.flags], log)
        try:
            yield OneProcess(name=self.name, process=process, log=log)
        finally:
            stop([process])


Contender = Berth | KubeScheduler
Running = BerthUp | OneProcess


def kube_scheduler(flags: tuple[str, ...] = ()) -> KubeScheduler | None:
    """kube-scheduler, if its program is in the control plane's folder."""
    folder = assets_folder()
    program = None if folder is None else folder / KUBE_SCHEDULER
    return KubeScheduler(program=program, flags=flags) if program is not None and program.is_file() else None


def _configuration(kubeconfig: Path) -> dict:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": UNLIMITED, "burst": UNLIMITED},
    }
