"""A bus in memory, and a session on it, for the scorers under test; their time jumps."""

import pytest

from harness.fakes.jumping_loop import LOOP_FACTORIES
from harness.fakes.memory_bus import MemoryBus


def pytest_asyncio_loop_factories():
    return LOOP_FACTORIES


@pytest.fixture
async def bus():
    return MemoryBus()


@pytest.fixture
async def session(bus):
    made = await bus.connect(name="test")
    await made.apply()
    yield made
    await made.close()
