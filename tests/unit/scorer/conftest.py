"""A bus in memory, and a session on it, for the scorers under test; time jumps, but where servers are real."""

import asyncio

import pytest

from harness.fakes.jumping_loop import LOOP_FACTORIES
from harness.fakes.memory_bus import MemoryBus


def pytest_asyncio_loop_factories(item):
    return {"ordinary": asyncio.new_event_loop} if item.path.name == "test_extenders.py" else LOOP_FACTORIES


@pytest.fixture
async def bus():
    return MemoryBus()


@pytest.fixture
async def session(bus):
    made = await bus.connect(name="test")
    await made.apply()
    yield made
    await made.close()
