"""An update: services are replaced one role after the other while pods come, and messages of a newer schema wait.

The newer version is the same code with the next number of `berth.messages.encoding.SCHEMA`. The older one cannot read
its messages and returns them, until a newer service takes them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth.messages.encoding import SCHEMA
from berth.messages.groupattempts import GROUP_SCHEMA
from harness.servers.child_processes import free_ports, spawn, stop
from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(300)]

NEWER = GROUP_SCHEMA + 1  # groups have the schema after that of pods
AS_VERSION = (
    "import sys, berth.messages.encoding as encoding; encoding.SCHEMA = {schema}; "
    "from {module}.__main__ import main; main()"
)
LED = ("watcher", "binder")
WATCHER_FIRST = ("watcher", "scorer", "binder")
"""As docs/operating.md has it."""
SCORER_FIRST = ("scorer", "binder", "watcher")
BINDER_FIRST = ("binder", "watcher", "scorer")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/berth/leases"
WAIT_SECONDS = 60.0
PODS = 10


class Services:
    """Processes on one API server and one NATS, by role and version."""

    def __init__(self, plane: ControlPlane, nats: NatsServer, user: ClusterUser, folder: Path) -> None:
        self._plane = plane
        self._nats = nats
        self._user = user
        self._folder = folder
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._created = 0

    def start(self, role: str, version: str, schema: int = SCHEMA) -> None:
        program = AS_VERSION.format(schema=schema, module=f"berth_{role}")
        flags = [
            "--nats",
            self._nats.address,
            "--identity",
            _identity(role, version),
            "--health-port",
            str(free_ports(1)[0]),
        ]
        flags += [] if role == "scorer" else ["--kubeconfig", str(self._plane.kubeconfig_path)]
        log = self._folder / f"{role}-{version}.log"
        self._running[role, version] = spawn([sys.executable, "-c", program, *flags], log)

    async def leads(self, role: str, version: str) -> None:
        async def holds() -> bool:
            spec = (await self._user.api.get(f"{LEASES}/berth-{role}")).body.get("spec", {})
            return spec.get("holderIdentity") == _identity(role, version)

        await eventually(holds, f"the {version} {role} to lead", WAIT_SECONDS)

    def end(self, role: str, version: str) -> None:
        stop([self._running.pop((role, version))])

    def end_all(self) -> None:
        stop(list(self._running.values()))

    async def create(self) -> list[str]:
        """Some more pods."""
        names = [f"web-{self._created + number}" for number in range(PODS)]
        self._created += PODS
        await self._user.create(self._user.pod(name) for name in names)
        return names

    async def all_bound(self) -> None:
        await self._user.all_bound([f"web-{number}" for number in range(self._created)], WAIT_SECONDS)


def _identity(role: str, version: str) -> str:
    return f"{role}_{version}"


@pytest.fixture
async def nats() -> AsyncIterator[NatsServer]:
    with nats_server() as server:
        yield server


@pytest.fixture
async def services(own_control_plane: ControlPlane, nats: NatsServer, tmp_path: Path) -> AsyncIterator[Services]:
    async with cluster_user(own_control_plane.kubeconfig_path) as user:
        await user.add_nodes(10)
        services = Services(own_control_plane, nats, user, tmp_path)
        try:
            yield services
        finally:
            await asyncio.to_thread(services.end_all)


async def stored(nats: NatsServer, stream: str, subject: str) -> list[dict[str, Any]]:
    session = await NatsBus(BusSettings(servers=(nats.address,))).connect(name="test")
    try:
        return [json.loads(message.data) async for message in session.scan(stream, subject)]
    finally:
        await session.close()


async def replace(services: Services, before: str, after: str, order: tuple[str, ...]) -> None:
    """One role after the other: both processes run for a while, in which pods come, and then the new one alone."""
    for role in order:
        services.start(role, after)
        await services.create()
        services.end(role, before)
        if role in LED:
            await services.leads(role, after)
        await services.create()
    await services.all_bound()


@pytest.mark.parametrize(
    "order",
    [WATCHER_FIRST, BINDER_FIRST, pytest.param(SCORER_FIRST, marks=pytest.mark.long(only=True))],
    ids=lambda order: f"{order[0]} first",
)
async def test_an_update_loses_no_pod(services, nats, order):
    for role in WATCHER_FIRST:
        services.start(role, "before")
    for role in LED:
        await services.leads(role, "before")
    await services.create()
    await services.all_bound()
    await replace(services, "before", "after", order)
    bound = [each for each in await stored(nats, "DECISIONS", "berth.decision.>") if each["outcome"] == "bound"]
    assert len({each["uid"] for each in bound}) == len(bound), "a pod was decided twice"
    assert await stored(nats, "dead", "berth.dead.>") == []


async def test_messages_of_a_newer_schema_wait_for_a_newer_scorer_and_binder(services, nats):
    services.start("watcher", "newer", NEWER)
    services.start("scorer", "older")
    services.start("binder", "older")
    await services.leads("watcher", "newer")
    await services.leads("binder", "older")
    names = await services.create()

    async def all_pending() -> list[dict[str, Any]]:
        pending = await stored(nats, "PENDING", "berth.pending.>")
        return pending if len(pending) == len(names) else []

    pending = await eventually(all_pending, "pods to wait", WAIT_SECONDS)
    assert {each["schema"] for each in pending} == {NEWER}
    services.start("scorer", "newer", NEWER)
    ranked = await eventually(lambda: stored(nats, "RANKED", "berth.ranked.>"), "pods to be ranked", WAIT_SECONDS)
    assert {each["schema"] for each in ranked} == {NEWER}
    assert await stored(nats, "DECISIONS", "berth.decision.>") == []
    services.end("binder", "older")
    services.start("binder", "newer", NEWER)
    await services.all_bound()
    assert await stored(nats, "dead", "berth.dead.>") == []
