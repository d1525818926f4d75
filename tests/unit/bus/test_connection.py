"""Requests whose connection is lost, and requests that nobody answers."""

import asyncio
import gc
from datetime import timedelta
from functools import partial

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from berth.bus.interface import BusLostError, MissingError, UnansweredError
from berth.bus.outgoing import PendingRequests, settle


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
