"""Fixtures that give a test a bus: a real nats-server (as a program or in a container), the one in memory, or all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

import pytest

from berth.bus.interface import Bus, MissingError, Session
from berth.bus.jetstream import ApiResponse, api_request
from berth.bus.session import NatsBus
from berth.bus.settings import MEBIBYTE, BusSettings, TopologySettings
from berth.bus.topology import declared_streams
from harness.fakes.bus_clock import ManualClock
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.left_out import require
from harness.servers.docker_engine import compose_image
from harness.servers.nats_container import nats_container
from harness.servers.nats_server import NatsServer, nats_server

SHORT_ACK_WAIT = timedelta(seconds=0.6)
SHORT_DUPLICATE_WINDOW = timedelta(seconds=1)
SHORT_MARKER = timedelta(seconds=1)
TEST_TOPOLOGY = TopologySettings(
    scorer_ack_wait=SHORT_ACK_WAIT,
    binder_ack_wait=SHORT_ACK_WAIT,
    duplicate_window=SHORT_DUPLICATE_WINDOW,
    marker_ttl=SHORT_MARKER,
    pending_bytes=64 * MEBIBYTE,
    ranked_bytes=16 * MEBIBYTE,
)
"""The declared topology with waits that are short enough for a test on a real server."""


class Passing(Protocol):
    """Lets time pass on a bus."""

    async def __call__(self, duration: timedelta) -> None: ...


@dataclass
class BusUnderTest:
    """A bus with its topology applied, the sessions that a test opened on it, and how time passes there."""

    bus: Bus
    pass_time: Passing
    sessions: list[Session] = field(default_factory=list)

    async def session(self, name: str = "test") -> Session:
        """Open a session that is closed when the test is over."""
        self.sessions.append(session := await self.bus.connect(name=name))
        return session

    async def close(self) -> None:
        for session in self.sessions:
            await session.close()


@pytest.fixture(scope="session")
def shared_nats_server() -> Iterator[NatsServer]:
    """One server for the whole run; a test that uses it finds it without streams."""
    require("nats-server")
    with nats_server() as server:
        yield server


@pytest.fixture
def own_nats_server() -> Iterator[NatsServer]:
    """A server for one test, to be killed and restarted at will."""
    require("nats-server")
    with nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_nats_container() -> Iterator[str]:
    """Address of a server in a container of the public image, for the whole run."""
    require("docker")
    image = compose_image("nats")
    require(f"image:{image}")
    with nats_container(image) as address:
        yield address


@asynccontextmanager
async def real_bus_under_test(address: str, topology: TopologySettings = TEST_TOPOLOGY) -> AsyncIterator[BusUnderTest]:
    """A real bus, empty but for the topology. Time passes by waiting."""
    settings = BusSettings(servers=(address,), topology=topology)
    under_test = BusUnderTest(bus=NatsBus(settings), pass_time=lambda duration: asyncio.sleep(duration.total_seconds()))
    await remove_all_streams(settings)
    await (await under_test.session("apply")).apply()
    yield under_test
    await under_test.close()


@pytest.fixture
async def nats_bus_under_test(shared_nats_server: NatsServer) -> AsyncIterator[BusUnderTest]:
    """A bus on a server that was started as a program."""
    async with real_bus_under_test(shared_nats_server.address) as under_test:
        yield under_test


@pytest.fixture
async def prefixed_bus_under_test(shared_nats_server: NatsServer) -> AsyncIterator[BusUnderTest]:
    """The same with a prefix, beside the streams of a berth without one."""
    async with (
        real_bus_under_test(shared_nats_server.address),
        real_bus_under_test(shared_nats_server.address, replace(TEST_TOPOLOGY, prefix="east")) as under_test,
    ):
        yield under_test
        await remove_all_streams(
            BusSettings(servers=(shared_nats_server.address,), topology=under_test.bus.settings.topology)
        )


@pytest.fixture
async def container_bus_under_test(shared_nats_container: str) -> AsyncIterator[BusUnderTest]:
    """A bus on a server in a container."""
    async with real_bus_under_test(shared_nats_container) as under_test:
        yield under_test


@pytest.fixture
async def memory_bus_under_test() -> AsyncIterator[BusUnderTest]:
    """A bus in memory with a clock that only the test moves."""
    clock = ManualClock()
    bus = MemoryBus(TEST_TOPOLOGY, clock=clock)

    async def pass_time(duration: timedelta) -> None:
        clock.advance(duration)
        await asyncio.sleep(0)

    under_test = BusUnderTest(bus=bus, pass_time=pass_time)
    await (await under_test.session("apply")).apply()
    yield under_test
    await under_test.close()


ONLY_LONG = [pytest.mark.slow, pytest.mark.long(only=True)]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("prefixed", marks=pytest.mark.slow),
        *(pytest.param(name, marks=ONLY_LONG) for name in ("nats", "container")),
    ]
)
def on(request: pytest.FixtureRequest) -> BusUnderTest:
    """The bus in memory, then real ones: tests that use this are the contract suite of the bus.

    The suites of the services use a real bus without a prefix. The image's server is the same program.
    """
    return request.getfixturevalue(f"{request.param}_bus_under_test")


async def remove_all_streams(settings: BusSettings) -> None:
    """Remove all streams, so that the server is as new."""
    session = await NatsBus(settings).connect(name="clean")
    for stream in declared_streams(settings.topology):
        with suppress(MissingError):
            await api_request(session._connection, f"STREAM.DELETE.{stream.name}", None, ApiResponse)
    await session.close()
