"""A bus in memory, and a session on it, for the scorers under test."""

import pytest

from harness.fakes.memory_bus import MemoryBus


@pytest.fixture
async def bus():
    return MemoryBus()


@pytest.fixture
async def session(bus):
    made = await bus.connect(name="test")
    await made.apply()
    yield made
    await made.close()
