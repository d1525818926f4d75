"""Frames to pages that are slow, many, or gone."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from berth_cli.console.hub import MOST_PAGES, MOST_WAITING, Hub, TooManyPagesError


class Counted:
    """Makes whole frames, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> bytes:
        self.made += 1
        return b"whole"


async def test_a_page_is_sent_everything_and_then_what_changes():
    hub = Hub(Counted())
    with hub.page() as page:
        assert await page.next() == b"whole"
        hub.publish(b"one")
        hub.publish(b"two")
        assert [await page.next(), await page.next()] == [b"one", b"two"]


async def test_what_changed_before_a_page_takes_everything_is_in_that():
    hub = Hub(Counted())
    with hub.page() as page:
        hub.publish(b"one")
        assert await page.next() == b"whole"
        hub.publish(b"two")
        assert await page.next() == b"two"


async def test_a_page_waits_for_the_next_frame():
    hub = Hub(Counted())
    with hub.page() as page:
        await page.next()
        waiting = asyncio.create_task(page.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        hub.publish(None)
        hub.publish(b"one")
        assert await waiting == b"one"


async def test_a_page_that_is_too_slow_is_sent_everything_again_and_holds_up_nobody():
    hub = Hub(Counted())
    with hub.page() as slow, hub.page() as fast:
        assert (await slow.next(), await fast.next()) == (b"whole", b"whole")
        for number in range(10 * MOST_WAITING):
            hub.publish(b"%d" % number)
            assert await fast.next() == b"%d" % number
            assert slow.waiting <= MOST_WAITING
        assert await slow.next() == b"whole"
        hub.publish(b"after")
        assert await slow.next() == b"after"


async def test_everything_is_made_once_a_tick_for_all_pages():
    whole = Counted()
    hub = Hub(whole)
    with hub.page() as one, hub.page() as other:
        await one.next()
        await other.next()
        assert whole.made == 1
        hub.publish(None)
        one.renew()
        assert await one.next() == b"whole"
        assert whole.made == 2


async def test_another_bus_is_sent_to_all_pages():
    hub = Hub(Counted())
    with hub.page() as page:
        await page.next()
        hub.publish(b"of the bus before")
        hub.renew()
        assert await page.next() == b"whole"
        assert page.waiting == 0


def test_pages_are_bounded_in_number_and_leave():
    hub = Hub(Counted())
    with ExitStack() as pages:
        for _ in range(MOST_PAGES):
            pages.enter_context(hub.page())
        with pytest.raises(TooManyPagesError, match="close one"), hub.page():
            pass
    assert len(hub) == 0
