"""How often ranking a pod was begun and not finished: only a process that ended counts (docs/protocol.md, 6)."""

import pytest

from berth.bus.interface import UnansweredError
from berth.bus.topology import TRIES
from berth.bus.tries import BegunTries, TryCounter
from harness.fakes.memory_bus import MemoryBus

ATTEMPT = "attempt.u.1.1"


class Silent:
    """A session whose writes are lost, or carried out without an answer, while NATS is silent."""

    def __init__(self, session):
        self._session = session
        self.is_silent = self.carries_out = False

    def __getattr__(self, name):
        return getattr(self._session, name)

    async def put(self, *arguments, **options):
        return await self._do(self._session.put, *arguments, **options)

    async def purge(self, *arguments, **options):
        return await self._do(self._session.purge, *arguments, **options)

    async def _do(self, write, *arguments, **options):
        if not self.is_silent:
            return await write(*arguments, **options)
        if self.carries_out:
            await write(*arguments, **options)
        raise UnansweredError("no answer within 5 s")


@pytest.fixture
async def session():
    made = await MemoryBus().connect(name="test")
    await made.apply()
    yield Silent(made)
    await made.close()


async def count_of(session) -> bytes | None:
    entry = await session.get("tries", "attempt.u.1.1")
    return None if entry is None else entry.data


async def test_fourth_process_that_begins_gives_the_pod_up(session):
    assert [await TryCounter(session, BegunTries(), TRIES).count(ATTEMPT) for _ in range(4)] == [
        1,
        2,
        3,
        TryCounter.LIMIT,
    ]


async def test_finished_ranking_leaves_no_key(session):
    counter = TryCounter(session, BegunTries(), TRIES)
    await counter.count(ATTEMPT)
    await counter.clear(ATTEMPT)
    assert await count_of(session) is None


async def test_ranking_that_ended_but_was_not_stored_is_not_counted(session):
    counter = TryCounter(session, BegunTries(), TRIES)
    for _ in range(6):
        assert await counter.count(ATTEMPT) == 1
        await counter.take_back(ATTEMPT)
    assert await count_of(session) is None


async def test_taking_back_leaves_what_others_have_counted(session):
    await TryCounter(session, BegunTries(), TRIES).count(ATTEMPT)
    mine = TryCounter(session, BegunTries(), TRIES)
    await mine.count(ATTEMPT)
    await mine.take_back(ATTEMPT)
    assert await count_of(session) == b"1"


@pytest.mark.parametrize("carried_out", [True, False])
async def test_count_that_nats_did_not_answer_is_taken_back_when_it_does(session, carried_out):
    begun = BegunTries()
    session.is_silent, session.carries_out = True, carried_out
    for _ in range(5):
        with pytest.raises(UnansweredError):
            await TryCounter(session, begun, TRIES).count(ATTEMPT)
    session.is_silent = False
    await TryCounter(session, begun, TRIES).settle()
    assert await count_of(session) is None
    assert await TryCounter(session, begun, TRIES).count(ATTEMPT) == 1


async def test_key_that_could_not_be_cleared_is_cleared_by_the_next_session(session):
    begun = BegunTries()
    counter = TryCounter(session, begun, TRIES)
    await counter.count(ATTEMPT)
    session.is_silent = True
    with pytest.raises(UnansweredError):
        await counter.clear(ATTEMPT)
    session.is_silent = False
    await TryCounter(session, begun, TRIES).settle()
    assert await count_of(session) is None


@pytest.mark.parametrize("data", [b"9" * 5000, b"many", b"-1"])
async def test_count_that_is_no_number_counts_as_none(session, data):
    await session.put("tries", "attempt.u.1.1", data)
    assert await TryCounter(session, BegunTries(), TRIES).count(ATTEMPT) == 1
    assert await count_of(session) == b"1"
