"""What a bus must do for readers and buckets, on the bus in memory and on a real nats-server."""

import asyncio
from datetime import timedelta

import pytest

from berth.bus.interface import (
    BusLostError,
    BusRefusedError,
    Entry,
    MissingError,
    TooLargeError,
    WrongLastSequenceError,
)
from berth.errors import BerthError
from harness.plugins.fixtures_bus import SHORT_MARKER, TEST_TOPOLOGY, BusUnderTest

LONG = 10.0


def decision(pod: str) -> str:
    return f"berth.decision.berth.default.{pod}"


async def read(following, count: int) -> list:
    """The next `count` messages, in any batches."""
    found: list = []
    async with asyncio.timeout(LONG):
        async for batch in following.batches():
            found += batch
            if len(found) >= count:
                return found
    raise AssertionError


async def read_to_the_end(following) -> list:
    """All messages that existed at the start."""
    found: list = []
    async with asyncio.timeout(LONG):
        if following.caught_up.is_set():
            return found
        async for batch in following.batches():
            found += batch
            if following.caught_up.is_set():
                return found
    raise AssertionError


def content(entry: Entry) -> tuple[str, bytes | None, int]:
    """An entry without its time."""
    return entry.key, entry.data, entry.sequence


async def publish_decisions(on: BusUnderTest, first: int, end: int) -> None:
    session = on.sessions[0]
    for number in range(first, end):
        await session.publish(decision("web"), b"%d" % number)


async def test_a_reader_starts_at_the_beginning_and_continues(on):
    session = await on.session()
    await publish_decisions(on, 1, 6)
    async with session.read_stream("DECISIONS") as following:
        assert [stored.data for stored in await read_to_the_end(following)] == [b"1", b"2", b"3", b"4", b"5"]
        assert following.position == 5
        await publish_decisions(on, 6, 8)
        assert [stored.sequence for stored in await read(following, 2)] == [6, 7]
        assert following.position == 7


async def test_a_reader_of_an_empty_stream_is_caught_up_at_once(on):
    session = await on.session()
    async with session.read_stream("DECISIONS") as following:
        assert following.caught_up.is_set()
        assert following.position == 0


async def test_a_reader_starts_after_a_sequence(on):
    session = await on.session()
    await publish_decisions(on, 1, 6)
    async with session.read_stream("DECISIONS", after=3) as following:
        assert [stored.sequence for stored in await read_to_the_end(following)] == [4, 5]
    async with session.read_stream("DECISIONS", after=5) as following:
        assert following.caught_up.is_set()
        assert following.position == 5


async def test_a_sequence_beyond_the_stream_is_refused(on):
    session = await on.session()
    await publish_decisions(on, 1, 3)
    with pytest.raises(BusRefusedError, match="500"):
        async with session.read_stream("DECISIONS", after=500):
            pass


async def test_a_reader_starts_from_a_time_ago(on):
    session = await on.session()
    await publish_decisions(on, 1, 3)
    await on.pass_time(timedelta(seconds=2))
    await publish_decisions(on, 3, 5)
    async with session.read_stream("DECISIONS", since=timedelta(seconds=1.9)) as following:
        assert [stored.sequence for stored in await read_to_the_end(following)] == [3, 4]
        assert following.position == 4


async def test_a_reader_reads_only_what_its_filters_match(on):
    session = await on.session()
    for subject in ("a.x", "b.x", "c.x", "a.y"):
        await session.publish(f"berth.decision.berth.{subject}", b"")
    filters = ("berth.decision.*.a.>", "berth.decision.*.b.>")
    async with session.read_stream("DECISIONS", filters=filters) as following:
        assert [stored.sequence for stored in await read_to_the_end(following)] == [1, 2, 4]


async def test_a_missing_stream_cannot_be_read(on):
    session = await on.session()
    with pytest.raises(MissingError, match="NOWHERE"):
        async with session.read_stream("NOWHERE"):
            pass


async def test_a_lost_session_ends_its_readers(on):
    session = await on.session()
    async with session.read_stream("DECISIONS") as following:
        waiting = asyncio.ensure_future(read(following, 1))
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(BusLostError):
            await waiting


async def test_two_thousand_messages_are_read_in_order_while_published(on):
    session = await on.session()
    async with session.read_stream("DECISIONS") as following:

        async def write() -> None:
            for start in range(0, 2000, 100):
                await asyncio.gather(*(session.publish(decision(f"web-{start + n}"), b"") for n in range(100)))

        writing = asyncio.ensure_future(write())
        found = await read(following, 2000)
        await writing
    assert [stored.sequence for stored in found] == list(range(1, 2001))


async def test_a_bucket_is_read_by_last_values_then_changes(on):
    session = await on.session()
    await session.put("cluster", "node.a", b"1")
    await session.put("cluster", "node.b", b"1")
    await session.put("cluster", "node.a", b"2")
    async with session.read_bucket("cluster") as following:
        start = await read_to_the_end(following)
        assert [(entry.key, entry.data, entry.sequence) for entry in start] == [
            ("node.b", b"1", 2),
            ("node.a", b"2", 3),
        ]
        await session.put("cluster", "node.c", b"3")
        await session.purge("cluster", "node.b")
        changes = await read(following, 2)
        assert [(entry.key, entry.data, entry.sequence) for entry in changes] == [
            ("node.c", b"3", 4),
            ("node.b", None, 5),
        ]
        assert following.position == 5


@pytest.mark.parametrize("every", [None, timedelta(seconds=0.1)])
async def test_a_reader_leaves_out_what_it_is_told_to_and_nothing_else(on, every):
    session = await on.session()
    async with session.read_bucket("cluster", every=every) as following:
        written = [await session.put("cluster", f"node.{name}", b"1") for name in "abcd"]
        following.leave_out(written[1])
        following.leave_out(written[3])
        last = await session.put("cluster", "node.b", b"2")
        changes = await read(following, 3)
        assert [(entry.key, entry.data) for entry in changes] == [
            ("node.a", b"1"),
            ("node.c", b"1"),
            ("node.b", b"2"),
        ]
        assert following.position == last
        following.leave_out(written[0])  # it is late: nothing of what comes is left out
        await session.put("cluster", "node.a", b"2")
        assert [entry.key for entry in await read(following, 1)] == ["node.a"]


async def test_a_write_that_nobody_awaits_tells_its_sequence_or_its_error_once(on):
    session = await on.session()
    answers: asyncio.Queue[int | BerthError] = asyncio.Queue()

    async def put(data: bytes, expected: int | None) -> int | type[BerthError]:
        session.put_soon("cluster", "node.a", data, expected=expected, on_answer=answers.put_nowait)
        answer = await asyncio.wait_for(answers.get(), LONG)
        return answer if isinstance(answer, int) else type(answer)

    assert await put(b"1", 0) == 1
    assert await put(b"2", 0) is WrongLastSequenceError
    assert await put(b"3", 1) == 2
    assert await put(bytes(session.max_message_bytes + 1), None) is TooLargeError
    await session.close()
    assert await put(b"5", None) is BusLostError
    assert answers.empty()


async def test_a_bucket_is_read_by_a_filter_on_keys(on):
    session = await on.session()
    for key in ("node.a", "pod.u1", "node.b", "watermark.pod"):
        await session.put("cluster", key, b"")
    async with session.read_bucket("cluster", filters=("node.>",)) as following:
        assert [entry.key for entry in await read_to_the_end(following)] == ["node.a", "node.b"]
        assert following.position == 4  # complete up to there: no earlier entry of the kind follows


async def test_a_marker_is_read_as_a_removal(on):
    session = await on.session()
    await session.put("cluster", "node.a", b"1")
    await session.purge("cluster", "node.a")
    async with session.read_bucket("cluster") as following:
        assert [(entry.key, entry.data) for entry in await read_to_the_end(following)] == [("node.a", None)]


async def test_the_removal_of_a_key_that_was_never_written_is_read(on):
    session = await on.session()
    async with session.read_bucket("cluster") as following:
        marker = await session.purge("cluster", "pod.u", expected=0)
        (entry,) = await read(following, 1)
        assert (entry.key, entry.data, entry.sequence) == ("pod.u", None, marker)


async def test_a_key_whose_marker_has_expired_is_not_read(on):
    session = await on.session()
    await session.put("cluster", "node.a", b"1")
    await session.put("cluster", "node.b", b"1")
    await session.purge("cluster", "node.a")
    await on.pass_time(SHORT_MARKER * 2.5)
    async with session.read_bucket("cluster") as following:
        assert [entry.key for entry in await read_to_the_end(following)] == ["node.b"]
        assert following.position == 3
        await session.put("cluster", "node.c", b"1")
        assert [entry.key for entry in await read(following, 1)] == ["node.c"]


async def test_an_expiring_marker_is_not_reported_to_a_reader(on):
    session = await on.session()
    async with session.read_bucket("cluster") as following:
        await session.put("cluster", "node.a", b"1")
        assert [entry.data for entry in await read(following, 1)] == [b"1"]
        await session.purge("cluster", "node.a")
        assert [entry.data for entry in await read(following, 1)] == [None]
        await on.pass_time(SHORT_MARKER * 2.5)
        await session.put("cluster", "node.b", b"1")
        assert [(entry.key, entry.sequence) for entry in await read(following, 1)] == [("node.b", 3)]


async def test_a_key_has_its_last_value(on):
    session = await on.session()
    assert await session.get("cluster", "node.a") is None
    sequence = await session.put("cluster", "node.a", b"1")
    entry = await session.get("cluster", "node.a")
    assert entry is not None
    assert (entry.key, entry.data, entry.sequence) == ("node.a", b"1", sequence)


async def test_an_empty_value_is_not_a_removal(on):
    session = await on.session()
    await session.put("cluster", "node.a", b"")
    entry = await session.get("cluster", "node.a")
    assert entry is not None
    assert entry.data == b""


async def test_a_write_that_expects_another_sequence_is_refused(on):
    session = await on.session()
    first = await session.put("cluster", "node.a", b"1", expected=0)
    second = await session.put("cluster", "node.a", b"2", expected=first)
    for wrong in (0, first, second + 1):
        with pytest.raises(WrongLastSequenceError):
            await session.put("cluster", "node.a", b"3", expected=wrong)
        with pytest.raises(WrongLastSequenceError):
            await session.purge("cluster", "node.a", expected=wrong)
    entry = await session.get("cluster", "node.a")
    assert entry is not None
    assert entry.data == b"2"


async def test_a_write_after_a_removal_expects_the_marker_until_it_expires(on):
    session = await on.session()
    first = await session.put("cluster", "node.a", b"1")
    marker = await session.purge("cluster", "node.a", expected=first)
    entry = await session.get("cluster", "node.a")
    assert entry is not None
    assert (entry.data, entry.sequence) == (None, marker)
    with pytest.raises(WrongLastSequenceError):
        await session.put("cluster", "node.a", b"2", expected=0)
    await on.pass_time(SHORT_MARKER * 2.5)
    assert await session.get("cluster", "node.a") is None
    with pytest.raises(WrongLastSequenceError):
        await session.put("cluster", "node.a", b"2", expected=marker)
    assert await session.put("cluster", "node.a", b"2", expected=0) == marker + 1


async def test_of_two_writers_that_expect_the_same_one_wins(on):
    one, two = await on.session("one"), await on.session("two")
    results = await asyncio.gather(
        one.put("control", "term.watcher", b"1", expected=0),
        two.put("control", "term.watcher", b"1", expected=0),
        return_exceptions=True,
    )
    assert sorted(isinstance(result, WrongLastSequenceError) for result in results) == [False, True]


async def test_keys_with_dots_and_escapes_come_back_as_written(on):
    session = await on.session()
    for key in ("node.a.example.org", "pod.0-1_2", "facts/x=2F.node", "node.=C3=A4"):
        await session.put("facts", key, b"1")
    async with session.read_bucket("facts") as following:
        found = [entry.key for entry in await read_to_the_end(following)]
    assert found == ["node.a.example.org", "pod.0-1_2", "facts/x=2F.node", "node.=C3=A4"]


async def test_the_last_message_of_each_subject_is_found_and_others_are_left_out(on):
    session = await on.session()
    for number in range(1200):
        await session.publish(decision(f"web-{number}"), b"first")
    await session.publish(decision("web-7"), b"second")
    wanted = [decision(f"web-{number}") for number in range(0, 1200, 2)] + [decision("web-7"), decision("never")]

    found = {stored.subject: stored.data async for stored in session.last_of_each("DECISIONS", wanted)}

    assert found.pop(decision("web-7")) == b"second"
    assert found == {decision(f"web-{number}"): b"first" for number in range(0, 1200, 2)}


async def test_the_last_messages_of_no_subjects_and_of_an_empty_stream_are_none(on):
    session = await on.session()

    assert [stored async for stored in session.last_of_each("DECISIONS", [])] == []
    assert [stored async for stored in session.last_of_each("DECISIONS", [decision("web")])] == []
    with pytest.raises(MissingError):
        await anext(session.last_of_each("nowhere", [decision("web")]))


@pytest.mark.parametrize("bucket", ["bandwidth", "facts", "tries"])
async def test_a_full_bucket_of_scorers_collectors_or_people_drops_its_oldest_keys(on, bucket):
    session = await on.session()
    data = bytes(60_000)
    fit = (TEST_TOPOLOGY.live_bytes if bucket != "tries" else TEST_TOPOLOGY.control_bytes) // len(data)
    await session.put(bucket, "honest.n1", data)
    for number in range(fit + 10):
        await session.put(bucket, f"junk.{number}", data)
    assert await session.get(bucket, "honest.n1") is None
    sequence = await session.put(bucket, "honest.n1", b"new", expected=0)
    found = await session.get(bucket, "honest.n1")
    assert (found.sequence, found.data) == (sequence, b"new")
    assert session.unstored() == {}
