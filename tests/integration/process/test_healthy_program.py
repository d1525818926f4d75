"""deploy/healthy.py, which containers ask whether their service is ready, against a service's own health server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from berth.observability.health import Health, health_server
from berth.observability.metrics import PrometheusMeter
from berth.settings.settings import HealthSettings
from harness.servers.child_processes import free_ports

PROGRAM = Path(__file__).parents[3] / "deploy" / "healthy.py"


async def ask(*arguments: object) -> tuple[int, str]:
    """As compose.yaml does: isolated, without site-packages."""
    command = [sys.executable, "-I", "-S", str(PROGRAM), *map(str, arguments)]
    answer = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=20, check=False)
    assert answer.stderr == ""
    return answer.returncode, answer.stdout


async def test_a_ready_service_is_healthy_and_one_that_waits_says_for_what():
    health = Health()
    condition = health.condition("nats", "no NATS server answers")
    async with health_server(HealthSettings(host="127.0.0.1"), health, PrometheusMeter()) as port:
        assert await ask(port) == (1, f"/readyz on port {port} answered 503: not ready: no NATS server answers\n")
        condition.ready()
        assert await ask(port) == (0, "")
        condition.waiting("gone again")
        assert await ask(port, "/livez") == (0, "")


async def test_a_service_that_does_not_listen_is_not_healthy():
    (port,) = free_ports(1)
    code, said = await ask(port)
    assert code == 1
    assert said.startswith(f"requesting /readyz on port {port}: ")
