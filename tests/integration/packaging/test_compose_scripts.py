"""deploy/compose/up and deploy/compose/berth with a `docker` that writes down what it is told."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.servers.child_processes import free_ports

ROOT = Path(__file__).parents[3]
PORTS = ("GRAFANA_PORT", "NATS_PORT", "CLUSTER_PORT", "CONSOLE_PORT", "PROMETHEUS_PORT")
ENGINE = """#!/bin/sh
case "$*" in
  "compose ps --quiet") printf "$RUNNING" ;;
  "compose config") printf 'published: "%s"\\n' "$NATS_PORT" "$GRAFANA_PORT" "$CLUSTER_PORT" "$CONSOLE_PORT" ;;
  *) echo "docker $*" ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on the PATH")


def run(folder: Path, *words: str, **told: str) -> subprocess.CompletedProcess[str]:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "docker").write_text(ENGINE)
    (programs / "docker").chmod(0o755)
    plain = {name: text for name, text in os.environ.items() if name not in PORTS and name != "COMPOSE_PROJECT_NAME"}
    told = plain | told | {"PATH": f"{programs}:{plain['PATH']}"}
    command = [str(ROOT / "deploy/compose" / words[0]), *words[1:]]
    return subprocess.run(
        command, cwd=folder, env=told, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@contextmanager
def listening(count: int) -> Iterator[list[int]]:
    """Ports of this machine that are taken for as long as the block runs."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield [one.getsockname()[1] for one in sockets]


def free() -> dict[str, str]:
    return dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))


def test_every_port_that_is_taken_is_named_before_the_build(tmp_path: Path):
    with listening(2) as (nats, grafana):
        done = run(tmp_path, "up", **free() | {"NATS_PORT": str(nats), "GRAFANA_PORT": str(grafana)})
    assert (done.returncode, done.stdout) == (2, "")
    said = done.stderr.splitlines()
    assert len(said) == 2
    for port, name in ((nats, "NATS_PORT"), (grafana, "GRAFANA_PORT")):
        (line,) = (line for line in said if f"port {port} of this machine is taken: export {name}=" in line)
        assert line.split(f"{name}=")[1].split()[0] != str(port)


def test_with_free_ports_it_builds_and_waits(tmp_path: Path):
    done = run(tmp_path, "up", "--scale", "scorer=4", **free())
    assert (done.returncode, done.stdout) == (0, "docker compose up --build --wait --scale scorer=4\n"), done.stderr


def test_a_port_that_no_chosen_service_publishes_may_be_taken(tmp_path: Path):
    with listening(1) as (prometheus,):
        done = run(tmp_path, "up", **free() | {"PROMETHEUS_PORT": str(prometheus)})
    assert done.returncode == 0, done.stderr


def test_ports_of_running_containers_are_theirs(tmp_path: Path):
    with listening(1) as (nats,):
        done = run(tmp_path, "up", **free() | {"NATS_PORT": str(nats), "RUNNING": "0a1b"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("told", "container"), [({}, "berth-console-1"), ({"COMPOSE_PROJECT_NAME": "b"}, "b-console-1")]
)
def test_the_command_runs_in_the_consoles_container(tmp_path: Path, told: dict[str, str], container: str):
    done = run(tmp_path, "berth", "why", "default/web 1", **told)
    assert done.stdout == f"docker exec -i {container} berth why default/web 1\n"
