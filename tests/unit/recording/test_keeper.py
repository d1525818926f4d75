"""The recorder that keeps segments, on a bus in memory: what they hold together, a full disk, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from berth.bus.interface import Session
from berth.errors import TemporaryError
from berth.messages.queue import QueueAnswer, WaitingPod
from berth.profiles.configuration import read_configuration
from berth_cli.recording import recorder
from berth_cli.recording.file import Recording, RecordingError, RecordingWriteError, RecordingWriter, read_recording
from berth_cli.recording.segments import keeper
from berth_cli.recording.segments.folder import SegmentFolder, segments_in
from berth_cli.recording.segments.joined import joined
from berth_cli.recording.segments.keeper import Keeper
from harness.fakes.memory_bus import MemoryBus, MemorySession

pytestmark = pytest.mark.slow  # waits in real time

SECONDS = 20.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATED = WaitingPod(namespace="default", name="gated", uid="u", profile="berth", queue="gated", stage="gated", since=NOW)
FULL = "writing 'x': No space left on device"


class Kept:
    """A keeper that runs, and what it reported."""

    def __init__(self, path: Path, session: MemorySession, keep: timedelta) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.session = session
        self.disk: list[str] = []
        self.missing: list[str] = []
        self.is_leading = True
        folder = SegmentFolder(path, keep=keep, most_bytes=1 << 30)
        configuration = read_configuration(None)
        self.keeper = Keeper(folder, configuration, self.ask, on_disk=self.disk.append, on_missing=self.missing.append)

    async def ask(self, _session: Session) -> AsyncGenerator[QueueAnswer, None]:
        """The watcher, while it leads: one pod waits."""
        if not self.is_leading:
            raise TemporaryError("no watcher leads")
        yield QueueAnswer(now=NOW, pods=[GATED])

    async def put(self, *numbers: int) -> None:
        for number in numbers:
            await self.session.put("cluster", f"node.n{number}", b"%d" % number)

    def recordings(self) -> list[Recording]:
        found = []
        for each in segments_in(self.path):
            try:
                found.append(read_recording(each.path))
            except RecordingError:  # it is about to begin
                continue
        return found

    def recorded(self) -> list[str]:
        return [one.subject for each in self.recordings() for one in each.of("cluster")]


async def until(holds: Callable[[], bool]) -> None:
    """A keeper writes at its own pace; nothing tells when."""
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
        await session.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FLUSH", timedelta(milliseconds=20))
    monkeypatch.setattr(recorder, "FLUSH", timedelta(milliseconds=20))
    monkeypatch.setattr(keeper, "TRY_AGAIN", timedelta(milliseconds=50))


async def test_segments_overlap_and_together_they_lack_nothing(tmp_path: Path):
    number = 0

    async def three_segments(kept: Kept) -> None:
        nonlocal number
        while len(kept.recordings()) < 3 or kept.recordings()[1].is_cut:
            number += 1
            await kept.put(number % 40)
            await asyncio.sleep(0.001)

    async with keeping(tmp_path / "kept", timedelta(seconds=2)) as kept:
        await asyncio.wait_for(three_segments(kept), SECONDS)
    with joined([kept.path]) as found:
        assert found.less == ""
        assert len(found.parts) == 3
        assert [one.sequence for one in found.recording().of("cluster")] == list(range(1, number + 1))
    for before, after in zip(kept.recordings(), kept.recordings()[1:], strict=False):
        assert (before.is_cut, before.of("cluster")[-1].sequence >= after.position("cluster")) == (False, True)
        assert len({one.subject for one in after.of("cluster")}) == 40
    assert kept.disk == [""] * 3


async def test_each_segment_has_who_waits(tmp_path: Path):
    async with keeping(tmp_path / "kept", timedelta(seconds=1)) as kept:
        await until(lambda: len([each for each in kept.recordings() if each.waiting]) == 3)
    assert [[pod.name for pod in each.waiting[0].pods] for each in kept.recordings()[:3]] == [["gated"]] * 3
    assert set(kept.missing) == {""}


async def test_a_watcher_that_does_not_lead_yet_is_asked_with_the_next_segment(tmp_path: Path):
    async with keeping(tmp_path / "kept", timedelta(seconds=12), is_leading=False) as kept:
        await until(lambda: kept.missing != [])
        kept.is_leading = True
        await until(lambda: kept.recordings()[-1].waiting != [])
    assert "no watcher leads" in kept.missing[0]
    assert kept.missing[-1] == ""


@pytest.mark.parametrize("where", ["flush", "create"], ids=["within a segment", "at the next one"])
async def test_on_a_full_disk_nothing_is_kept_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    def full(*_given: object) -> None:
        raise RecordingWriteError(FULL)

    keep = timedelta(hours=1) if where == "flush" else timedelta(seconds=2)
    async with keeping(tmp_path / "kept", keep) as kept:
        with monkeypatch.context() as patched:
            await kept.put(1)
            await until(lambda: "node.n1" in kept.recorded())
            patched.setattr(RecordingWriter, where, full)
            await until(lambda: kept.disk[-1] != "")
            await kept.put(2, 3)
            await until(lambda: kept.disk.count(FULL) > 3)
        await until(lambda: kept.disk[-1] == "")
        await kept.put(4)
        await until(lambda: "node.n4" in kept.recorded())
    assert set(kept.disk) == {"", FULL}
    with joined([kept.path]) as found:
        assert [one.subject for one in found.recording().of("cluster")] == [f"node.n{n}" for n in range(1, 5)]
        assert "the recorder was away since" in found.less


async def test_what_arrived_last_is_written_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "FLUSH", timedelta(hours=1))
    async with keeping(tmp_path / "kept") as kept:
        await kept.put(1)
        await asyncio.sleep(0.05)
    (found,) = kept.recordings()
    assert ([one.subject for one in found.of("cluster")], found.is_cut) == (["node.n1"], False)


async def test_a_segment_that_has_not_begun_when_the_recorder_is_stopped_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with keeping(tmp_path / "kept", timedelta(seconds=2)) as kept:
        monkeypatch.setattr(recorder.BusReading, "following", never)
        await until(lambda: len(segments_in(kept.path)) == 2)
    (found,) = kept.recordings()
    assert (len(segments_in(kept.path)), found.is_cut) == (1, False)


@asynccontextmanager
async def never(_reading: object) -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield
