"""How often the console asks the leading watcher for its queue, whatever pages show."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from berth.bus.interface import Endpoint
from berth.errors import TemporaryError
from berth.messages.queue import QueueAnswer, decode_page_request
from berth_cli.console.answers import MOST_REQUESTS, waiting_json
from berth_cli.console.queuerefreshes import MOST_LISTS, REFRESH_SECONDS, QueueRefreshes, WantedList
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.ticking_clock import TickingClock

ALL, GATED = WantedList(), WantedList(queue="gated")


class Watched:
    """Refreshes of a watcher that answers when the test lets it."""

    def __init__(self) -> None:
        self.clock = TickingClock()
        self.began: list[tuple[float, WantedList]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None
        self.refreshes = QueueRefreshes(self._read, self.clock)

    async def _read(self, wanted: WantedList) -> dict[str, object]:
        self.began.append((self.clock.now(), wanted))
        number = len(self.began)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return {"queue": wanted.queue, "number": number}

    def ask(self, wanted: WantedList) -> asyncio.Task[dict[str, object]]:
        return asyncio.create_task(self.refreshes.answer(wanted))


async def test_an_answer_in_flight_is_for_all_who_ask_for_the_same():
    watched = Watched()
    watched.may_answer.clear()
    asking = [watched.ask(ALL) for _ in range(5)]
    await watched.clock.run(1.0)
    watched.may_answer.set()
    assert await asyncio.gather(*asking) == [{"queue": "", "number": 1}] * 5
    assert len(watched.began) == 1


async def test_an_answer_is_kept_for_a_second():
    watched = Watched()
    assert (await watched.refreshes.answer(ALL))["number"] == 1
    watched.clock.jump(REFRESH_SECONDS / 2)
    assert (await watched.refreshes.answer(ALL))["number"] == 1
    watched.clock.jump(REFRESH_SECONDS)
    asking = watched.ask(ALL)
    await watched.clock.run(0.25)
    assert (await asking)["number"] == 2


async def test_different_lists_take_turns_of_a_second():
    watched = Watched()
    lists = [ALL, GATED, *(WantedList(namespace=f"ns-{number}") for number in range(5))]
    asking = [watched.ask(wanted) for wanted in lists]
    await watched.clock.run(10.0)
    await asyncio.gather(*asking)
    assert [wanted for _, wanted in watched.began] == lists
    times = [at for at, _ in watched.began]
    assert min(later - at for at, later in pairwise(times)) >= REFRESH_SECONDS


@pytest.mark.slow
async def test_too_many_different_lists_are_refused():
    watched = Watched()
    watched.may_answer.clear()
    asking = [watched.ask(WantedList(namespace=f"ns-{number}")) for number in range(MOST_LISTS)]
    await watched.clock.run(0.25)
    with pytest.raises(TemporaryError, match="too many different lists"):
        await watched.refreshes.answer(ALL)
    watched.may_answer.set()
    await watched.clock.run(2 * MOST_LISTS)
    assert len(await asyncio.gather(*asking)) == MOST_LISTS


async def test_an_error_is_told_to_all_who_wait_and_kept_for_nobody():
    watched = Watched()
    watched.error = TemporaryError("no watcher leads")
    asking = [watched.ask(ALL) for _ in range(2)]
    for error in await asyncio.gather(*asking, return_exceptions=True):
        assert str(error) == "no watcher leads"
    watched.error = None
    again = watched.ask(ALL)
    await watched.clock.run(2.0)
    assert (await again)["number"] == 2


async def test_a_list_takes_the_watcher_few_requests_however_many_pods_wait():
    starts: list[int] = []

    def page(data: bytes) -> QueueAnswer:
        starts.append(decode_page_request(data).start)
        return QueueAnswer(queues={"unschedulable": 200_000, "gated": 3}, next=starts[-1] + 2000)

    bus = MemoryBus()
    bus.apply()
    watcher = await bus.connect(name="watcher")
    endpoint = Endpoint(name="queue", answer=page)
    stats = {"leading": {"number": 7, "seconds": 1.0}}
    await watcher.register("berth-watcher", identity="one", version="1", stats=lambda: stats, endpoints=[endpoint])
    found = await waiting_json(await bus.connect(name="person"), queue="gated", namespace="")
    assert len(starts) == MOST_REQUESTS
    assert (found["pods"], found["complete"], found["looked_at"]) == ([], False, 10_000)
