"""compose.yaml as users run it, with a project name and ports of the test's own.

    project = ComposeProject()
    project.compose("up", "--wait"), project.containers("scorer"), project.down(), project.left()

Its image is built once a run, by `docker compose build`; BUILD_PYTHON and BUILD_NETWORK go through to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from harness.plugins.left_out import require
from harness.servers.child_processes import free_ports
from harness.servers.docker_engine import DockerError, docker

ROOT: Final = Path(__file__).parents[3]
IMAGE: Final = "berth:test"
UP_SECONDS: Final = 180.0
BUILD_SECONDS: Final = 900.0
PORTS: Final = ("NATS_PORT", "CLUSTER_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "JAEGER_PORT", "CONSOLE_PORT")
PROFILES: Final = ("simulated", "cluster", "k3s")
TRACES: Final = "traces"
"""The profile that is given beside one of PROFILES."""


@dataclass
class ComposeProject:
    """One project; nothing is started yet."""

    name: str = field(default_factory=lambda: f"berth-test-{uuid.uuid4().hex[:8]}")
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(PORTS, free_ports(len(PORTS)), strict=True)))
    told: dict[str, str] = field(default_factory=dict)
    """Further variables that compose.yaml reads."""

    def compose(self, *arguments: str, seconds: float = UP_SECONDS) -> str:
        """Run `docker compose` in the project and return its output.

        Raises:
            DockerError: it failed.
        """
        command = ["docker", "compose", "--project-name", self.name, "--progress", "plain", *arguments]
        answer = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if answer.returncode:
            raise DockerError(f"docker compose {' '.join(arguments)}: {answer.stderr.strip()[-3000:]}")
        return answer.stdout

    @property
    def environment(self) -> dict[str, str]:
        """What tells `docker compose` that it is this project, with its ports."""
        ports = {name: str(port) for name, port in self.ports.items()}
        return {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.name,
            "BERTH_IMAGE": IMAGE,
            **ports,
            **self.told,
        }

    def shell(self, script: str, *, cwd: Path = ROOT, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run lines of a page in a shell of a person who has this project."""
        plain = {name: text for name, text in self.environment.items() if not name.startswith("BERTH_NATS_")}
        return subprocess.run(
            ["sh", "-ec", script],
            cwd=cwd,
            env=plain,
            input=given,
            capture_output=True,
            timeout=UP_SECONDS,
            check=False,
        )

    def containers(self, service: str) -> list[str]:
        """The ids of a service's running containers."""
        return self.compose("ps", "--quiet", service).split()

    def down(self) -> None:
        """Take it down and remove its volumes, as in docs/compose.md."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "10")

    def volumes(self) -> set[str]:
        """The volumes that the project's containers have, those without a name included."""
        ids = self._labelled("ps", "--all", "--quiet")
        mounts = [mount for found in inspected(*ids) for mount in found["Mounts"]]
        return {mount["Name"] for mount in mounts if mount["Type"] == "volume"}

    def left(self, *volumes: str) -> list[str]:
        """What exists of the project, and which of these volumes exist."""
        present = set(docker("volume", "ls", "--quiet").split())
        return [
            *self._labelled("ps", "--all", "--quiet"),
            *self._labelled("network", "ls", "--quiet"),
            *self._labelled("volume", "ls", "--quiet"),
            *sorted(present & set(volumes)),
        ]

    def _labelled(self, *command: str) -> list[str]:
        return docker(*command, "--filter", f"label=com.docker.compose.project={self.name}").split()


def inspected(*ids: str) -> list[dict[str, Any]]:
    """The engine's description of these containers or images."""
    return json.loads(docker("inspect", *ids)) if ids else []


def configuration(*profiles: str) -> dict[str, Any]:
    """compose.yaml as `docker compose config` reads it, with these profiles."""
    chosen = [flag for profile in profiles for flag in ("--profile", profile)]
    command = ["docker", "compose", *chosen, "config", "--format", "json"]
    # a file that exists: the user may have no kubeconfig
    told = {**os.environ, "KUBECONFIG_FILE": str(ROOT / "deploy/compose/cluster/simulated.yaml")}
    answer = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stderr == "", answer.stderr
    return json.loads(answer.stdout)


def require_project(*profiles: str) -> None:
    """Leave the test out unless this machine can build and run the simulated profile, and these beside it."""
    require("docker-compose")
    for name in sorted({each["image"] for each in configuration("simulated", *profiles)["services"].values()}):
        if not name.startswith("berth:"):
            require(f"image:{name}")
    require(f"image:{os.environ.get('BUILD_PYTHON', 'python:3.11-slim-bookworm')}")
    if problem := _build():
        pytest.fail(f"building {IMAGE}: {problem}", pytrace=False)


@cache
def _build() -> str:
    """Build the image; returns the error, empty for none."""
    try:
        ComposeProject().compose("build", "bus-apply", seconds=BUILD_SECONDS)
    except DockerError as exc:
        return str(exc)
    return ""
