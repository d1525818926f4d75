"""Doing something until it is done or something ends it first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
