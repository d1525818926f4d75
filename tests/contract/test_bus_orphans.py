"""What a bus must do so that messages which a consumer does not deliver are found, in memory and on a real server."""

import asyncio
from datetime import timedelta

from berth.leader.checks import CHECKS, OrphanCheck

SUBJECTS = [f"berth.pending.berth.default.web-{number}" for number in range(4)]


async def checked(session, times: int = CHECKS) -> list[str]:
    check = OrphanCheck(session, "PENDING", "scorer")
    return [await check.find() for _ in range(times)]


async def test_messages_that_wait_are_held_or_were_given_back_are_no_orphans(on):
    session = await on.session()
    assert not any(await checked(session))
    for subject in SUBJECTS:
        await session.publish(subject, b"")
    assert not any(await checked(session))
    async with session.consume("PENDING", "scorer", max_unacked=3) as deliveries:
        first, second, third = [await anext(deliveries) for _ in range(3)]
        second.ack()
        third.nak()
        assert not any(await checked(session))
        await session.publish(SUBJECTS[0], b"a newer attempt than the one that is held")
        assert not any(await checked(session))
        first.ack()
        assert not any(await checked(session))
    assert not any(await checked(session))


async def test_settled_messages_move_what_counts_as_acknowledged(on):
    session = await on.session()
    for subject in SUBJECTS:
        await session.publish(subject, b"")
    state = await session.state("PENDING")
    assert (state.first_sequence, state.consumers[0].acknowledged_to) == (1, 0)
    async with session.consume("PENDING", "scorer", max_unacked=3) as deliveries:
        first, second, _ = [await anext(deliveries) for _ in range(3)]
        second.ack()
        first.ack()
        async with asyncio.timeout(30):  # an ack is fire and forget
            while (state := await session.state("PENDING")).messages > 2:
                await on.pass_time(timedelta(milliseconds=10))
        assert (state.first_sequence, state.consumers[0].acknowledged_to) == (3, 2)


async def test_a_consumer_that_is_missing_is_found(on):
    session = await on.session()
    await session.delete_consumer("PENDING", "scorer")
    assert await checked(session) == ["", "", "PENDING has no consumer 'scorer'"]
