"""The count of processes that began to work on a pod and ended before they were done (docs/protocol.md, 6.4, 6.5)."""

import asyncio

import pytest

from berth.bus.topology import TRIES
from berth.lifecycle.tries import MOST_TRIES, clear_tries, count_try
from harness.fakes.memory_bus import MemoryBus

ATTEMPT = "attempt.u.1.1"


@pytest.fixture
async def session():
    made = await MemoryBus().connect(name="test")
    await made.apply()
    yield made
    await made.close()


async def test_fourth_process_that_begins_reaches_the_limit(session):
    assert [await count_try(session, TRIES, ATTEMPT) for _ in range(4)] == [1, 2, 3, MOST_TRIES]


async def test_work_that_a_process_outlives_leaves_no_count(session):
    await count_try(session, TRIES, ATTEMPT)
    await clear_tries(session, TRIES, ATTEMPT)
    assert await count_try(session, TRIES, ATTEMPT) == 1


async def test_processes_that_begin_together_are_all_counted(session):
    counts = await asyncio.gather(*(count_try(session, TRIES, ATTEMPT) for _ in range(4)))
    assert sorted(counts) == [1, 2, 3, 4]


@pytest.mark.parametrize("data", [b"9" * 5000, b"many", b"-1"])
async def test_count_that_is_no_number_counts_as_zero(session, data):
    await session.put(TRIES, ATTEMPT, data)
    assert await count_try(session, TRIES, ATTEMPT) == 1
    assert await count_try(session, TRIES, ATTEMPT) == 2
