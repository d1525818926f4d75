"""Calls of nats-py in their order, what a slow server makes wait, and requests without an answer."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from berth.bus.interface import BusLostError, MissingError, UnansweredError
from berth.bus.outgoing import (
    DENSE_SECONDS,
    MOST_HELD_BYTES,
    Outbox,
    PendingRequests,
    description_of,
    settle,
    status_of,
)


class SlowClient:
    """Stands for nats-py: its calls end when the server reads."""

    def __init__(self) -> None:
        self.called: list[object] = []
        self.reads = asyncio.Event()

    async def publish(self, subject: object) -> None:
        self.called.append(subject)
        await self.reads.wait()


@pytest.fixture
async def client() -> SlowClient:
    return SlowClient()


@pytest.fixture
def causes() -> list[str]:
    return []


@pytest.fixture
async def outbox(causes: list[str]) -> Outbox:
    outbox = Outbox(causes.append)
    outbox.start()
    return outbox


async def test_calls_are_made_in_their_order_once_the_server_reads(outbox, client):
    for number in range(3):
        outbox.put(client.publish, (number,))
    await asyncio.sleep(10 * DENSE_SECONDS)
    assert client.called == [0]
    client.reads.set()
    async with asyncio.timeout(5):
        await outbox.passed()
    assert client.called == [0, 1, 2]
    outbox.stop()


async def test_what_is_dense_waits_and_a_first_message_does_not(outbox, client, monkeypatch):
    loop, now, waits = asyncio.get_running_loop(), [100.0], []

    async def wait(seconds: float) -> None:
        waits.append((list(client.called), seconds))

    clock = SimpleNamespace(time=lambda: now[0], create_future=loop.create_future, call_soon=loop.call_soon)
    monkeypatch.setattr(outbox, "_loop", clock)
    client.reads.set()
    await outbox.passed()
    await asyncio.sleep(0)  # it begins to wait for calls
    now[0] += 2 * DENSE_SECONDS
    monkeypatch.setattr(asyncio, "sleep", wait)
    outbox.put(client.publish, ("first",))
    await outbox.passed()
    assert waits == []
    now[0] += DENSE_SECONDS / 2
    outbox.put(client.publish, ("second",))
    outbox.put(client.publish, ("third",))
    await outbox.passed()
    assert waits == [(["first"], DENSE_SECONDS)]
    assert client.called == ["first", "second", "third"]
    outbox.stop()


async def test_publishes_wait_for_a_slow_server_in_turn(outbox, client):
    turns: list[int] = []
    assert not outbox.is_crowded
    outbox.put(client.publish, ("a",), MOST_HELD_BYTES + 1)
    assert outbox.is_crowded

    async def take_turn(number: int) -> None:
        await outbox.room()
        turns.append(number)

    waiting = [asyncio.create_task(take_turn(number)) for number in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0.001)
    assert turns == []
    client.reads.set()
    await asyncio.wait(waiting)
    assert turns == [0, 2, 3]
    assert not outbox.is_crowded
    outbox.stop()


async def test_the_turn_of_a_publish_that_is_cancelled_goes_to_the_next(outbox, client):
    outbox.put(client.publish, ("a",), MOST_HELD_BYTES + 1)
    first, second = (asyncio.create_task(outbox.room()) for _ in range(2))
    await asyncio.sleep(0)
    client.reads.set()
    first.cancel()
    async with asyncio.timeout(5):
        await second
    outbox.stop()


async def test_whoever_waits_goes_on_and_nothing_is_sent_any_more_when_it_stops(outbox, client):
    outbox.put(client.publish, ("under way",))
    outbox.put(client.publish, ("held",), MOST_HELD_BYTES + 1)
    waiting = [asyncio.create_task(outbox.room()) for _ in range(3)]
    await asyncio.sleep(10 * DENSE_SECONDS)
    outbox.stop()
    client.reads.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    await asyncio.sleep(0.001)
    assert client.called == ["under way"]


@pytest.mark.parametrize(
    "error", [OSError("broken pipe"), RuntimeError("the handler is closed"), nats.errors.ConnectionClosedError()]
)
async def test_a_call_that_fails_is_reported_once(outbox, causes, error):
    async def fail() -> None:
        raise error

    outbox.put(fail, ())
    outbox.put(fail, ())
    await asyncio.sleep(0.01)
    assert len(causes) == 1
    assert causes[0].startswith("writing to it: ")


def asked(requests: PendingRequests, subject: str) -> tuple[int, asyncio.Future[Msg]]:
    """The number of a new request, and its reply."""
    reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    return requests.add(subject, partial(settle, reply)), reply


async def test_a_request_that_nobody_waits_for_any_more_leaves_no_warning():
    warnings = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: warnings.append(context["message"]))
    requests = PendingRequests(timedelta(seconds=5))
    number, reply = asked(requests, "$KV.cluster.node.n1")

    requests.fail_all(lambda: BusLostError("gone"))
    requests.remove(number)
    del reply
    gc.collect()
    await asyncio.sleep(0)

    assert warnings == []


async def test_requests_past_their_deadline_end_and_later_ones_stay():
    requests = PendingRequests(timedelta(seconds=5))
    _, first = asked(requests, "a")
    number, second = asked(requests, "b")
    now = asyncio.get_running_loop().time()
    requests._by_number[number].deadline = now + 100

    requests.expire(now + 50)
    assert isinstance(first.exception(), UnansweredError)
    assert not second.done()
    requests.resolve(number, Msg(Client(), "inbox.2", data=b"answer"))
    requests.resolve(number, Msg(Client(), "inbox.2", data=b"again"))
    assert (await second).data == b"answer"


async def test_a_request_that_nobody_listens_for_is_missing():
    requests = PendingRequests(timedelta(seconds=5))
    number, reply = asked(requests, "a")
    requests.resolve(number, Msg(Client(), "inbox.1", headers={"Status": "503"}))
    with pytest.raises(MissingError):
        await reply


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Status": "409", "Description": "Consumer Deleted"}, "409"),
        ({"Status": "nonsense"}, ""),
        ({"A": "503"}, ""),
        (None, ""),
    ],
)
def test_a_status_has_three_digits(headers, status):
    message = Msg(Client(), "a", headers=headers)
    assert status_of(message) == status
    assert description_of(message) == ("Consumer Deleted" if status else "")
