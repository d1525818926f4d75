"""Doing something until it is done or something ends it first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

CANCEL_AGAIN_SECONDS: Final = 3.0
"""After which work that has not ended is cancelled once more: longer than giving a Lease back takes. Before Python 3.12
``asyncio.wait_for``, which libraries use, loses a cancellation that comes together with its result."""


async def run_until(work: Coroutine[Any, Any, T], *ends: asyncio.Event) -> T | None:
    """Run ``work``; as soon as one of ``ends`` is set it is cancelled, waited for, and the answer is ``None``.

    An exception of ``work`` is raised here, also one that it raised on being cancelled.
    """
    task = asyncio.ensure_future(work)
    waiting = [asyncio.ensure_future(end.wait()) for end in ends]
    try:
        await asyncio.wait([task, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _ended(*waiting)
        if not task.done():
            await _ended(task)
    return None if task.cancelled() else task.result()


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
