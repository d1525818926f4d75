"""The recorder that keeps segments, on a bus in memory: a disk that is slow or full, and what comes at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from berth.bus.interface import Session
from berth.errors import TemporaryError
from berth.messages.queue import QueueAnswer, WaitingPod
from berth.profiles.configuration import read_configuration
from berth_cli.recording import cut, keeper
from berth_cli.recording.file import Recorded, Recording, RecordingWriteError, read_recording
from berth_cli.recording.keeper import Keeper
from berth_cli.recording.segments import Segment, SegmentFolder, segments_in
from harness.fakes.memory_bus import MemoryBus, MemorySession

pytestmark = pytest.mark.slow  # waits in real time

SECONDS = 20.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATED = WaitingPod(namespace="default", name="gated", uid="u", profile="berth", queue="gated", stage="gated", since=NOW)


class Kept:
    """A keeper that runs, and what it said about its disk."""

    def __init__(self, path: Path, session: MemorySession, keep: timedelta) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.session = session
        self.disk: list[str] = []
        folder = SegmentFolder(path, keep=keep, most_bytes=1 << 30)
        self.missing: list[str] = []
        self.is_leading = True
        self.keeper = Keeper(
            folder,
            read_configuration(None),
            self.ask,
            keep=keep,
            on_disk=self.disk.append,
            on_missing=self.missing.append,
        )

    async def ask(self, _session: Session) -> AsyncGenerator[QueueAnswer, None]:
        """The watcher, while it leads: one pod waits."""
        if not self.is_leading:
            raise TemporaryError("no watcher leads")
        yield QueueAnswer(now=NOW, pods=[GATED])

    async def put(self, *numbers: int, size: int = 10) -> None:
        for number in numbers:
            await self.session.put("cluster", f"node.n{number}", b'"%s"' % (b"x" * size))

    def recordings(self) -> list[Recording]:
        return [read_recording(each.path) for each in segments_in(self.path)]

    def recorded(self) -> list[str]:
        return [one.subject for each in self.recordings() for one in each.of("cluster")]


async def until(holds: Callable[[], bool]) -> None:
    """A keeper writes once a second; nothing tells when."""
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


@asynccontextmanager
async def keeping(path: Path, keep: timedelta = timedelta(hours=1), *, is_leading: bool = True) -> AsyncIterator[Kept]:
    bus = MemoryBus()
    session = await bus.connect(name="record")
    await session.apply()
    kept, begun = Kept(path, session, keep), asyncio.Event()
    kept.is_leading = is_leading
    task = asyncio.create_task(kept.keeper.follow(session, on_begun=begun.set))
    try:
        await asyncio.wait_for(begun.wait(), SECONDS)
        yield kept
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        kept.keeper.close()
        await session.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FLUSH", timedelta(milliseconds=20))
    monkeypatch.setattr(keeper, "TRY_AGAIN", timedelta(milliseconds=50))


async def test_segments_follow_each_other_and_each_begins_with_what_counts(tmp_path: Path):
    async with keeping(tmp_path / "kept", timedelta(seconds=2)) as kept:
        number = 0

        async def three_segments() -> None:
            nonlocal number
            while len(segments_in(kept.path)) < 3:
                number += 1
                await kept.put(number)
                await asyncio.sleep(0.005)

        await asyncio.wait_for(three_segments(), SECONDS)
    found = kept.recordings()
    names = [each.path.name for each in segments_in(kept.path)]
    assert [each.header.follows for each in found] == ["", *names[:-1]]
    for each in found:
        subjects = [one.subject for one in each.of("cluster")]
        assert subjects == [f"node.n{one}" for one in range(1, len(subjects) + 1)]
    assert len(found[-1].of("cluster")) == number
    assert kept.disk == [""]


async def test_each_segment_has_who_waits(tmp_path: Path):
    async with keeping(tmp_path / "kept", timedelta(seconds=2)) as kept:
        await until(lambda: len([each for each in kept.recordings() if each.waiting]) == 3)
    assert [[pod.name for pod in each.waiting[0].pods] for each in kept.recordings()[:3]] == [["gated"]] * 3
    assert set(kept.missing) == {""}


async def test_a_watcher_that_does_not_lead_yet_is_asked_again(tmp_path: Path):
    async with keeping(tmp_path / "kept", is_leading=False) as kept:
        await until(lambda: kept.missing != [])
        kept.is_leading = True
        await until(lambda: kept.recordings()[0].waiting != [])
    assert "no watcher leads" in kept.missing[0]
    assert kept.missing[-1] == ""


async def test_what_a_slow_disk_cannot_take_is_dropped_and_the_next_segment_follows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keeper, "MOST_WAITING", 1000)
    may_write, is_writing, write = threading.Event(), threading.Event(), Segment.write

    def slow(segment: Segment, records: list[Recorded]) -> None:
        is_writing.set()
        assert may_write.wait(SECONDS)
        write(segment, records)

    async with keeping(tmp_path / "kept") as kept:
        monkeypatch.setattr(Segment, "write", slow)
        await kept.put(1)
        assert await asyncio.to_thread(is_writing.wait, SECONDS)
        await kept.put(2, 3, size=600)
        await asyncio.sleep(0.05)  # until they were read, which is seen by nothing else
        may_write.set()
        await until(lambda: sum(each.path.stat().st_size > 0 for each in segments_in(kept.path)) == 2)
        await kept.put(4)
        await until(lambda: "node.n4" in kept.recorded())
    first, second = kept.recordings()
    assert [one.subject for one in first.of("cluster")] == ["node.n1"]
    assert [one.subject for one in second.of("cluster")] == ["node.n1", "node.n2", "node.n3", "node.n4"]
    assert (first.is_cut, second.header.follows) == (False, "")
    chosen = cut.choose(kept.path, timedelta(hours=1), None)
    assert [each.path.name for each in chosen.segments] == [segments_in(kept.path)[1].path.name]
    assert "the recorder was away before that" in chosen.less


@pytest.mark.parametrize("when", ["within a segment", "at the next one"])
async def test_on_a_full_disk_nothing_is_kept_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
):
    create = Segment.__init__
    is_full = False

    def full(*_given: object) -> None:
        raise RecordingWriteError("writing 'x': No space left on device")

    keep = timedelta(hours=1) if when == "within a segment" else timedelta(seconds=3)
    async with keeping(tmp_path / "kept", keep) as kept:
        with monkeypatch.context() as patched:
            patched.setattr(Segment, "__init__", lambda *given: full() if is_full else create(*given))
            await kept.put(1)
            await until(lambda: "node.n1" in kept.recorded())
            is_full = True
            if when == "within a segment":
                patched.setattr(Segment, "write", full)
            await kept.put(2)
            await until(lambda: kept.disk[-1] != "")
            await kept.put(3)
            await until(lambda: len(kept.disk) > 3)
        await until(lambda: kept.disk[-1] == "")
        await kept.put(4)
        await until(lambda: "node.n4" in kept.recorded())
    assert set(kept.disk) == {"", "writing 'x': No space left on device"}
    after = next(each for each in kept.recordings() if "node.n3" in [one.subject for one in each.of("cluster")])
    assert after.header.follows == ""
    assert [one.subject for one in after.of("cluster")][:3] == ["node.n1", "node.n2", "node.n3"]


async def test_a_segment_whose_end_was_not_written_is_followed_by_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    end, failed = Segment.end, threading.Event()

    def fails_once(segment: Segment, reason: str) -> None:
        if not failed.is_set():
            failed.set()
            raise RecordingWriteError("writing 'x': No space left on device")
        end(segment, reason)

    monkeypatch.setattr(Segment, "end", fails_once)
    async with keeping(tmp_path / "kept", timedelta(seconds=3)) as kept:
        await kept.put(1)
        await until(lambda: len(kept.recordings()) > 1)
    first, second, *_ = kept.recordings()
    assert (first.is_cut, second.header.follows) == (True, "")
    assert "node.n1" in [one.subject for one in second.of("cluster")]


async def test_what_arrived_in_the_last_second_is_written_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper, "FLUSH", timedelta(hours=1))
    async with keeping(tmp_path / "kept") as kept:
        await kept.put(1)
        await asyncio.sleep(0.05)
    (found,) = kept.recordings()
    assert ([one.subject for one in found.of("cluster")], found.is_cut) == (["node.n1"], False)
