"""Requests whose connection is lost."""

import asyncio
import gc
from datetime import timedelta

from berth.bus.connection import PendingRequests
from berth.bus.interface import BusLostError


async def test_a_request_that_nobody_waits_for_any_more_leaves_no_warning():
    warnings = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: warnings.append(context["message"]))
    requests = PendingRequests(timedelta(seconds=5))
    request = requests.add("$KV.cluster.node.n1")

    requests.fail_all(lambda: BusLostError("gone"))
    requests.remove(request)
    del request
    gc.collect()
    await asyncio.sleep(0)

    assert warnings == []
