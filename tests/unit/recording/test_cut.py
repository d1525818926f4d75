"""A recording of several segments: which are taken, what is missing, and segments that are damaged or hostile."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from berth.exits import UsageError
from berth.messages.queue import WaitingPod
from berth_cli.recording import cut, segments
from berth_cli.recording.file import (
    Begun,
    Header,
    Recorded,
    Recording,
    RecordingError,
    RecordingWriter,
    Waiting,
    header,
    read_recording,
    recorded,
    unchanged,
)
from berth_cli.recording.segments import Segment, SegmentFolder, locked_folder

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
LENGTH = 60
"""Seconds of a segment."""


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def a_header(minute: float, follows: str = "", bus_id: str = "bus") -> Header:
    return header(at=at(minute), bus_id=bus_id, config="c", release="1.36", configuration={}, follows=follows)


def node(sequence: int, minute: float) -> Recorded:
    return recorded("cluster", sequence, at(minute), f"node.n{sequence % 3}", b'{"n": %d}' % sequence)


def waiting_pod(name: str) -> WaitingPod:
    return WaitingPod(
        namespace="default", name=name, uid=name, profile="berth", queue="gated", stage="gated", since=START
    )


class Folder:
    """Segments of a minute: in the one that begins at minute n, change 10 n + 1 to 10 n + 9."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self.folder = SegmentFolder(path, keep=timedelta(hours=1), most_bytes=1 << 30)
        self.last = ""

    def add(
        self, minute: int, *, follows: str | None = None, ends: bool = True, bus_id: str = "bus", waits: bool = False
    ) -> Path:
        path = self.folder.next_path(at(minute))
        head = a_header(minute, self.last if follows is None else follows, bus_id)
        begin = 10 * minute
        checkpoint = [node(sequence, minute) for sequence in range(max(1, begin - 2), begin + 1)]
        segment = Segment(path, head, checkpoint, Begun(positions={"cluster": begin}))
        if waits:
            segment.write([Waiting(at=at(minute + 0.05), pods=[waiting_pod(f"gated-{minute}")])])
        segment.write([node(begin + number, minute + number / 10) for number in range(1, 10)])
        if ends:
            segment.end("the next segment follows")
        else:
            segment.abandon()
        self.last = path.name
        return path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "kept")


def taken(folder: Folder, since: float, until: datetime | None = None) -> tuple[Recording, cut.Cut]:
    """A recording of so many minutes."""
    chosen = cut.choose(folder.path, timedelta(minutes=since), until)
    file = folder.path.with_name("taken")
    file.unlink(missing_ok=True)
    writer = RecordingWriter.create(file, msgspec.structs.replace(chosen.head, follows=""))
    try:
        cut.write(chosen, writer, unchanged)
    finally:
        writer.drop()
    return read_recording(file), chosen


def sequences(recording: Recording) -> list[int]:
    return [record.sequence for record in recording.of("cluster")]


def changes(*minutes: int) -> list[int]:
    return [10 * minute + number for minute in minutes for number in range(1, 10)]


@pytest.mark.parametrize(
    ("since", "minutes"),
    [
        pytest.param(0.5, [4], id="within the last one"),
        pytest.param(0.91, [3, 4], id="a little more than the last one"),
        pytest.param(2.9, [2, 3, 4], id="from the begin of one"),  # the newest message is of minute 4.9
        pytest.param(4.9, [0, 1, 2, 3, 4], id="all"),
    ],
)
def test_it_begins_with_the_segment_in_which_the_time_is(folder: Folder, since: float, minutes: Sequence[int]):
    for minute in range(5):
        folder.add(minute)
    found, chosen = taken(folder, since)
    begin = 10 * minutes[0]
    assert sequences(found) == [*range(max(1, begin - 2), begin + 1), *changes(*minutes)]
    assert (found.position("cluster"), found.is_cut, found.header.follows) == (begin, False, "")
    assert (found.header.at, chosen.less) == (at(minutes[0]), "")


def test_who_waited_is_known_of_the_begin_and_of_the_end(folder: Folder):
    """Every list in between would be as large."""
    for minute in range(5):
        folder.add(minute, waits=True)
    found, _ = taken(folder, 4.9)
    assert [pod.name for each in found.waiting for pod in each.pods] == ["gated-0", "gated-3", "gated-4"]
    found, _ = taken(folder, 1, at(2.04))
    assert [pod.name for each in found.waiting for pod in each.pods] == ["gated-1"]


def test_what_was_recorded_until_a_time_has_nothing_after_it(folder: Folder):
    for minute in range(5):
        folder.add(minute)
    found, _ = taken(folder, 1, at(2.5))
    assert sequences(found) == [8, 9, 10, *changes(1), 21, 22, 23, 24, 25]
    assert found.last_time == at(2.5)


def test_less_than_was_asked_for_is_said(folder: Folder):
    folder.add(3, follows="000002-that-was-removed.berth")
    found, chosen = taken(folder, 30)
    assert (sequences(found)[-1], chosen.less) == (39, "nothing before that is kept")


def test_a_file_ends_where_something_is_missing_and_the_rest_can_be_had(folder: Folder):
    folder.add(0)
    folder.add(1, ends=False)
    folder.add(5, follows="", bus_id="another store")
    folder.add(6)
    found, chosen = taken(folder, 30)
    assert (found.header.at, found.header.bus_id) == (at(5), "another store")
    until = "2026-01-01T10:05:00+00:00"
    assert chosen.less == (
        f"the recorder was away before that, since 2026-01-01T10:01:54+00:00: --until {until} takes what was before"
    )
    before, _ = taken(folder, 30, datetime.fromisoformat(until))
    assert (before.header.at, sequences(before)[-1]) == (at(0), 19)


def test_the_segment_that_is_written_is_read_as_far_as_it_is_whole(folder: Folder):
    folder.add(0)
    path = folder.add(1, ends=False)
    with path.open("ab") as file:
        file.write(gzip.compress(b"a frame that is not whole")[:-4])
    assert sequences(taken(folder, 30)[0])[-1] == 19


@pytest.mark.parametrize("length", [0, 1, 2, 30])
def test_a_segment_whose_recorder_was_killed_while_it_began_is_no_segment(folder: Folder, length: int):
    folder.add(0)
    path = folder.add(1)
    path.write_bytes(path.read_bytes()[:length])
    assert sequences(taken(folder, 30)[0])[-1] == 9


def test_what_a_replay_does_not_read_is_left_out_and_said(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    for minute in range(5):
        folder.add(minute)
    monkeypatch.setattr(cut, "MOST_BYTES", cut.MOST_FRAME_BYTES + 4_000)
    found, chosen = taken(folder, 30)
    begins = found.header.at.isoformat()
    assert at(0) < found.header.at < at(4)
    assert chosen.less.endswith(f"bytes at most: --until {begins} takes what is before")
    before, _ = taken(folder, 30, found.header.at)
    assert sequences(before)[-1] < sequences(found)[-1]


def flipped(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 255]) + data[len(data) // 2 + 1 :]


def lines_of(path: Path, *more: bytes) -> bytes:
    return gzip.compress(
        gzip.decompress(path.read_bytes()).removesuffix(b"\n").rpartition(b"\n")[0] + b"\n" + b"".join(more)
    )


def test_a_file_that_is_full_ends_there_and_has_no_hole(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    for minute in range(3):
        folder.add(minute)
    monkeypatch.setattr(RecordingWriter, "is_full", property(lambda writer: writer.messages >= 12))
    assert sequences(taken(folder, 30)[0]) == [*changes(0), 11, 12, 13]


HOSTILE = {
    "a flipped bit": (flipped, "damaged in the frame at byte"),
    "another file": (lambda path: b"kind: Pod\n", "got another file"),
    "another gzip file": (
        lambda path: gzip.compress(b'{}\n{"record":"begun","positions":{}}\n'),
        "got another gzip file",
    ),
    "endless nesting": (lambda path: lines_of(path, b"[" * 100_000 + b"\n"), "decoding line 15"),
    "a sequence that was there": (
        lambda path: lines_of(path, msgspec.json.encode(node(21, 2)) + b"\n"),
        "want sequences of cluster that rise, got 21 after 29",
    ),
    "a bomb": (
        lambda path: path.read_bytes() + gzip.compress(b" " * (cut.MOST_FRAME_BYTES + 1), 1),
        "want frames of 100663296 bytes at most",
    ),
}


@pytest.mark.parametrize("which", HOSTILE)
def test_a_segment_that_is_damaged_or_hostile_is_refused_by_name(folder: Folder, which: str):
    make, error = HOSTILE[which]
    folder.add(1)
    path = folder.add(2)
    path.write_bytes(make(path))
    folder.add(3)
    with pytest.raises(RecordingError) as caught:
        taken(folder, 30)
    assert str(caught.value).startswith(f"{path}: ")
    assert error in str(caught.value)
    assert "move that file away" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_once_it_is_moved_away_what_is_before_and_after_it_can_be_had(folder: Folder):
    folder.add(1)
    path = folder.add(2)
    folder.add(3)
    path.rename(path.with_suffix(".damaged"))
    found, chosen = taken(folder, 30)
    assert sequences(found)[-9:] == changes(3)
    until = chosen.less.partition("--until ")[2].split()[0]
    assert sequences(taken(folder, 30, datetime.fromisoformat(until))[0])[-9:] == changes(1)


def test_a_segment_that_says_it_follows_and_does_not_is_refused(folder: Folder):
    folder.add(5)
    path = folder.add(2)
    with pytest.raises(
        RecordingError, match="want cluster after 59, where the segment ends that it follows, got 21"
    ) as caught:
        taken(folder, 60)
    assert str(caught.value).startswith(f"{path}: ")


def test_one_that_says_it_follows_itself_or_a_later_one_follows_none(folder: Folder):
    path = folder.add(1, follows="000001-20260101T100100Z.berth")
    assert path.name == "000001-20260101T100100Z.berth"
    assert sequences(taken(folder, 60)[0])[-9:] == changes(1)


@pytest.mark.parametrize("when", ["before its header is read", "after its header is read"])
def test_what_its_recorder_removes_meanwhile_is_not_kept(folder: Folder, monkeypatch: pytest.MonkeyPatch, when: str):
    """As where the folder has as many bytes as it may."""
    oldest, older, *_ = [folder.add(minute) for minute in range(5)]
    read, opened = cut.lines_of, cut.opened_recording

    def remove() -> None:
        oldest.unlink(missing_ok=True)
        older.unlink(missing_ok=True)

    def reading(path: Path) -> Iterator[bytes]:
        if path.name.startswith("000003") and when == "before its header is read":
            remove()
        return read(path)

    @contextmanager
    def opening(path: Path) -> Iterator[object]:
        with opened(path) as found:
            yield found
        if path == older:
            remove()

    monkeypatch.setattr(cut, "lines_of", reading)
    monkeypatch.setattr(cut, "opened_recording", opening)
    found, chosen = taken(folder, 30)
    assert (found.header.at, chosen.less) == (at(2), "nothing before that is kept")
    assert sequences(found)[-27:] == changes(2, 3, 4)


def test_a_segment_that_is_removed_before_it_is_written_is_named(folder: Folder):
    path = folder.add(1)
    folder.add(2)
    chosen = cut.choose(folder.path, timedelta(minutes=30), None)
    path.unlink()
    writer = RecordingWriter.create(folder.path.with_name("taken"), chosen.head)
    with pytest.raises(RecordingError) as caught:
        cut.write(chosen, writer, unchanged)
    writer.drop()
    assert str(caught.value) == f"{path}: its recorder has removed it meanwhile: take the recording again"


@pytest.mark.parametrize("lines", [3, 6], ids=["in its checkpoint", "in its changes"])
def test_a_segment_in_the_middle_that_was_copied_in_part_is_no_bridge(folder: Folder, lines: int):
    folder.add(1)
    path = folder.add(2)
    after = folder.add(3)
    whole = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(whole[:lines])))
    with pytest.raises(RecordingError) as caught:
        taken(folder, 30)
    wanted = f"it lacks its end, which {after.name} follows: copy the folder again"
    assert str(caught.value).startswith(f"{path}: {wanted}; or move that file away")
    path.unlink()
    assert sequences(taken(folder, 30)[0])[-9:] == changes(3)


def test_where_the_clock_of_nats_was_set_back_a_recording_until_a_time_has_no_hole(folder: Folder):
    """The node of 30 is there as the segment begins, and of the changes nothing follows one that is not taken."""
    path = folder.folder.next_path(at(1))
    segment = Segment(path, a_header(1), [node(1, 30)], Begun(positions={"cluster": 1}))
    segment.write([node(2, 1.1), node(3, 1.6), node(4, 1.2), recorded("facts", 1, at(1.3), "f.n1", b"1")])
    segment.end("it was stopped")
    found, _ = taken(folder, 30, at(1.5))
    assert (sequences(found), len(found.of("facts"))) == ([1, 2], 1)


def test_a_folder_without_segments_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"it has no segment of a `berth record --keep`$"):
        cut.choose(tmp_path, timedelta(hours=1), None)
    with pytest.raises(UsageError, match="No such file or directory: want the folder of a `berth record --keep`"):
        cut.choose(tmp_path / "no", timedelta(hours=1), None)


def test_files_of_other_names_are_no_segments(folder: Folder):
    folder.add(1)
    for name in ("notes.berth", "000009-20269901T000000Z.berth", "x000009-20260101T000000Z.berth"):
        (folder.path / name).write_text("mine")
    assert [each.number for each in segments.segments_in(folder.path)] == [1]


# --- the folder of the recorder


def kept(path: Path, *, keep: timedelta = timedelta(minutes=12), most_bytes: int = 1 << 30) -> SegmentFolder:
    return SegmentFolder(path, keep=keep, most_bytes=most_bytes)


def minutes_in(path: Path) -> list[int]:
    return [round((each.at - START).total_seconds() / 60) for each in segments.segments_in(path)]


def test_segments_are_removed_when_later_ones_have_the_time_and_one_more_stays(folder: Folder):
    for minute in range(30):
        folder.add(minute)
    kept(folder.path).remove_old(at(29.5), None)
    # 12 minutes are kept, and a segment of a minute for whoever reads: from 16.5, which is in that of 16.
    assert minutes_in(folder.path) == list(range(16, 30))


def test_segments_of_an_earlier_recorder_are_removed_too_and_numbers_go_on(folder: Folder):
    folder.add(0)
    folder.add(1)
    later = kept(folder.path)
    assert later.next_path(at(60)).name == "000003-20260101T110000Z.berth"
    current = Segment(later.next_path(at(60)), a_header(60), [], Begun(positions={}))
    later.remove_old(at(61), current)
    assert minutes_in(folder.path) == [1, 60]  # at 60 the second one ended
    later.remove_old(at(90), current)
    assert minutes_in(folder.path) == [60]
    current.abandon()


def test_the_oldest_are_removed_when_there_are_too_many_bytes_but_never_the_one_that_is_written(folder: Folder):
    sizes = [folder.add(minute).stat().st_size for minute in range(10)]
    there = kept(folder.path, most_bytes=sum(sizes[-3:]))
    there.remove_old(at(10), None)
    assert minutes_in(folder.path) == [7, 8, 9]
    current = Segment(there.next_path(at(10)), a_header(10), [node(1, 1)] * 1, Begun(positions={}))
    there.most_bytes = 1
    there.remove_old(at(10), current)
    assert minutes_in(folder.path) == [10]
    current.abandon()


def test_segments_of_a_clock_that_was_set_back_are_removed_when_later_ones_have_the_time(folder: Folder):
    for minute in (100, 101, 0, 1, *range(2, 16)):
        folder.add(minute)
    kept(folder.path).remove_old(at(12.9), None)  # what was before may be a moment old when that of 0 begins
    assert minutes_in(folder.path)[:3] == [100, 101, 0]
    kept(folder.path).remove_old(at(14.5), None)
    assert minutes_in(folder.path) == list(range(1, 16))


def test_a_segment_that_begins_before_the_others_by_mistake_removes_none_of_them(folder: Folder):
    for minute in (10, 11, 12, -9000, 13):
        folder.add(minute)
    kept(folder.path).remove_old(at(13.5), None)
    assert minutes_in(folder.path) == [10, 11, 12, -9000, 13]


def test_a_link_to_nothing_is_no_segment(folder: Folder):
    folder.add(1)
    (folder.path / "000007-20260101T100000Z.berth").symlink_to("nowhere")
    there = kept(folder.path)
    assert (there.summary[0], there.next_path(at(2)).name) == (1, "000008-20260101T100200Z.berth")
    assert sequences(taken(folder, 30)[0])[-9:] == changes(1)


def test_a_lock_is_free_again_when_the_recorder_has_ended(tmp_path: Path):
    for _ in range(2):
        with (
            locked_folder(tmp_path / "kept", keep=timedelta(hours=1), most_bytes=1),
            pytest.raises(UsageError, match=f"another recorder has it, process {os.getpid()} on "),
            locked_folder(tmp_path / "kept", keep=timedelta(hours=1), most_bytes=1),
        ):
            pass


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UsageError, match="locking it: No locks available: name a folder on a disk that has locks"),
        locked_folder(tmp_path / "kept", keep=timedelta(hours=1), most_bytes=1),
    ):
        pass


def test_a_segment_that_cannot_be_begun_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="No space left on device"):
        Segment(tmp_path / "s", a_header(0), [node(1, 0)], Begun(positions={}))
    assert list(tmp_path.iterdir()) == []
