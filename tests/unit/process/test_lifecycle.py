"""Work that ends with something else."""

import asyncio

from structlog.testing import capture_logs

from berth.lifecycle import process as lifecycle


async def test_a_cancellation_that_a_library_loses_is_made_again(monkeypatch):
    monkeypatch.setattr(lifecycle, "CANCEL_AGAIN_SECONDS", 0.01)
    lost = []

    async def work() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(True)

    end = asyncio.Event()
    end.set()
    assert await lifecycle.run_until(work(), end) is None
    assert lost == [True]


async def test_background_work_ends_with_its_block_and_a_failure_of_it_is_logged_at_once():
    async def forever() -> None:
        ended.append("began")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    async def fails() -> None:
        raise ValueError("no such stream")

    ended: list[str] = []
    async with lifecycle.in_background(forever(), name="forever"):
        await asyncio.sleep(0)
    assert ended == ["began", "ended"]
    with capture_logs() as logs:
        async with lifecycle.in_background(fails(), name="reading"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [(line["task"], line["reason"]) for line in logs] == [("reading", "ValueError('no such stream')")]
    assert len(logs) == 1


async def test_background_work_that_fails_when_it_is_cancelled_is_logged_when_the_block_has_ended():
    async def fails_at_its_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("not closed")

    with capture_logs() as logs:
        async with lifecycle.in_background(fails_at_its_end(), name="reading"):
            await asyncio.sleep(0)
        assert [line["reason"] for line in logs] == ["ValueError('not closed')"]
