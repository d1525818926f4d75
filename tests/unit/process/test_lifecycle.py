"""Work that ends with something else."""

import asyncio

from berth.process import lifecycle


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
