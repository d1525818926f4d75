"""How far a reflector has come, and who waits for it."""

import asyncio

import pytest

from berth.errors import DecodeError
from berth.kube.informers import OlderStoreError, ReflectorPositions


def test_bookmark_without_a_number_moves_nothing():
    positions = ReflectorPositions()
    positions.reach("7")
    positions.reach("")
    assert positions.reached == 7


async def test_waiting_ends_when_the_version_is_reached_and_not_before():
    positions = ReflectorPositions()
    early, late = asyncio.create_task(positions.wait("10")), asyncio.create_task(positions.wait("20"))
    await asyncio.sleep(0)
    positions.reach("10")
    await early
    assert not late.done()
    positions.reach("25")
    await late


async def test_waiting_for_what_has_been_reached_ends_at_once():
    positions = ReflectorPositions()
    positions.listed("10")
    await asyncio.wait_for(positions.wait("10"), timeout=1)


async def test_waiting_for_a_version_of_a_store_that_is_gone_ends_with_an_error():
    positions = ReflectorPositions()
    positions.listed("100")
    waits = asyncio.create_task(positions.wait("110"))
    await asyncio.sleep(0)
    positions.listed("50")
    with pytest.raises(OlderStoreError, match="the API server has an older store: resourceVersion 50 after 100"):
        await waits
    await positions.wait("45")


async def test_who_gave_up_waiting_is_in_nobodys_way():
    positions = ReflectorPositions()
    gave_up, waits = asyncio.create_task(positions.wait("10")), asyncio.create_task(positions.wait("10"))
    await asyncio.sleep(0)
    gave_up.cancel()
    await asyncio.sleep(0)
    positions.reach("10")
    await waits


async def test_waiting_for_what_is_no_version_is_refused():
    with pytest.raises(DecodeError, match="decoding resourceVersion 'abc'"):
        await ReflectorPositions().wait("abc")
