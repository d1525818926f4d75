"""Recordings that overlap, read as one: which are taken, what is missing, damaged ones; and the recorder's folder."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from berth.exits import UsageError
from berth.messages.queue import WaitingPod
from berth_cli.recording import file as recording_file
from berth_cli.recording.file import (
    Begun,
    Header,
    Recorded,
    Recording,
    RecordingError,
    RecordingWriter,
    Waiting,
    header,
    recorded,
)
from berth_cli.recording.segments import joined as joining
from berth_cli.recording.segments.folder import SegmentFolder, locked_folder, segments_in
from berth_cli.recording.segments.joined import joined

START = datetime(2026, 1, 1, 10, tzinfo=UTC)


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def a_header(minute: float, bus_id: str = "bus", config: str = "c", *, anonymised: bool = False) -> Header:
    return header(at=at(minute), bus_id=bus_id, config=config, release="1.36", configuration={}, anonymised=anonymised)


def node(sequence: int, minute: float) -> Recorded:
    return recorded("cluster", sequence, at(minute), f"node.n{sequence % 3}", b'{"n": %d}' % sequence)


def waiting(minute: float) -> Waiting:
    pod = WaitingPod(
        namespace="default", name=f"gated-{minute}", uid="u", profile="p", queue="gated", stage="gated", since=START
    )
    return Waiting(at=at(minute), pods=[pod])


class Folder:
    """Segments of a minute. The one of minute n has changes 10 n + 1 to 10 n + 12: two of the next one too."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self.folder = SegmentFolder(path, keep=timedelta(hours=1), most_bytes=1 << 30)

    def add(self, minute: int, *, head: Header | None = None, last: int = 12, ends: bool = True) -> Path:
        path = self.folder.next_path(at(minute))
        writer = RecordingWriter.create(path, head or a_header(minute))
        begin = 10 * minute
        for sequence in range(max(1, begin - 2), begin + 1):
            writer.add(node(sequence, sequence / 10))
        writer.add(Begun(positions={"cluster": begin}))
        writer.add(waiting(minute))
        writer.flush()
        for sequence in range(begin + 1, begin + last + 1):
            writer.add(node(sequence, sequence / 10))
        if ends:
            writer.end("the next segment follows", {"cluster": begin + last})
        else:
            writer.close()
        return path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "kept")


def taken(*paths: Path, since: float | None = None) -> tuple[Recording, str]:
    """What is read of so many minutes, and why it is less."""
    with joined(paths, None if since is None else timedelta(minutes=since)) as found:
        return found.recording(), found.less


def sequences(recording: Recording) -> list[int]:
    return [record.sequence for record in recording.of("cluster")]


@pytest.mark.parametrize(
    ("since", "minutes"),
    [
        pytest.param(1.2, [4], id="the last one"),  # from 4 to 5.2
        pytest.param(1.3, [3, 4], id="a little more than the last one"),
        pytest.param(3.2, [2, 3, 4], id="from the begin of one"),
        pytest.param(None, [0, 1, 2, 3, 4], id="all"),
    ],
)
def test_whole_segments_are_read_as_one_recording(folder: Folder, since: float | None, minutes: Sequence[int]):
    for minute in range(5):
        folder.add(minute)
    found, less = taken(folder.path, since=since)
    begin = 10 * minutes[0]
    assert sequences(found) == list(range(max(1, begin - 2), 53))
    assert (found.position("cluster"), found.is_cut, found.header.at, less) == (begin, False, at(minutes[0]), "")
    assert [each.at for each in found.waiting] == [at(minute) for minute in minutes]


def test_files_are_read_in_their_order(folder: Folder):
    paths = [folder.add(minute) for minute in range(3)]
    assert sequences(taken(*paths[:2])[0]) == list(range(1, 23))
    found, less = taken(paths[1], paths[0])
    assert sequences(found) == list(range(1, 13))
    assert less == f"what is before {paths[0]} is left out: it begins earlier: name the files in their order"


def test_less_than_was_asked_for_is_a_sentence(folder: Folder):
    folder.add(3)
    found, less = taken(folder.path, since=30)
    assert (sequences(found)[-1], less) == (42, "nothing before that is kept")


def test_where_something_is_missing_the_newest_part_is_taken(folder: Folder):
    folder.add(0)
    before = folder.add(1, last=9)
    after = folder.add(2)
    found, less = taken(folder.path)
    assert sequences(found)[0] == 18
    why = "the recorder was away since 2026-01-01T10:01:54+00:00, while cluster went on"
    assert less == f"what is before {after} is left out: {why}"
    assert sequences(taken(*[each.path for each in segments_in(folder.path)][:2])[0])[-1] == 19
    assert before.exists()


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (a_header(2, bus_id="other"), "it is of another bus, or of one that lost its store"),
        (a_header(2, config="other"), "it was recorded under another configuration"),
        (a_header(2, anonymised=True), "names are masked, in each recording by other words"),
    ],
    ids=["bus", "configuration", "masked names"],
)
def test_recordings_that_have_nothing_in_common_are_not_joined(folder: Folder, head: Header, why: str):
    folder.add(1)
    path = folder.add(2, head=head)
    found, less = taken(folder.path)
    assert (found.header, less) == (head, f"what is before {path} is left out: {why}")


def test_a_restart_in_which_nothing_happened_is_no_gap(folder: Folder):
    folder.add(0, last=10)
    folder.add(1)
    assert sequences(taken(folder.path)[0]) == list(range(1, 23))


def test_a_recorder_that_was_killed_after_the_next_segment_had_begun_leaves_no_gap(folder: Folder):
    folder.add(0, ends=False)
    folder.add(1)
    found, less = taken(folder.path)
    assert (sequences(found), found.is_cut, less) == (list(range(1, 23)), False, "")


def test_the_segment_that_is_written_is_read_as_far_as_it_is_whole(folder: Folder):
    folder.add(0)
    path = folder.add(1, ends=False)
    with path.open("ab") as file:
        file.write(gzip.compress(b"a frame that is not whole")[:-4])
    found, _ = taken(folder.path)
    assert (sequences(found)[-1], found.is_cut) == (22, True)


@pytest.mark.parametrize("length", [0, 1, 2, 30])
def test_a_segment_that_is_about_to_begin_is_left_out(folder: Folder, length: int):
    folder.add(0)
    path = folder.add(1)
    path.write_bytes(path.read_bytes()[:length])
    if length == 1:
        with pytest.raises(RecordingError, match="got another file"):
            taken(folder.path)
    else:
        assert sequences(taken(folder.path)[0])[-1] == 12


def test_a_segment_whose_recorder_was_killed_while_it_read_what_was_stored_is_left_out(folder: Folder):
    folder.add(0)
    writer = RecordingWriter.create(folder.folder.next_path(at(1)), a_header(1))
    writer.add(node(9, 0.9))
    writer.close()
    folder.add(1)
    assert sequences(taken(folder.path)[0]) == list(range(1, 23))


def test_a_recorder_may_remove_segments_while_they_are_read(folder: Folder):
    paths = [folder.add(minute) for minute in range(3)]
    with joined([folder.path]) as found:
        for path in paths:
            path.unlink()
        assert sequences(found.recording()) == list(range(1, 33))


def test_more_than_a_replay_reads_is_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    for minute in range(3):
        folder.add(minute)
    monkeypatch.setattr(joining, "MOST_BYTES", 3_000)
    with pytest.raises(RecordingError, match="want at most 3000 bytes, got more: take fewer segments"):
        taken(folder.path)
    assert sequences(taken(folder.path, since=1)[0])[-1] == 32


def flipped(path: Path) -> bytes:
    data = path.read_bytes()
    middle = len(data) * 3 // 4  # of the second frame
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


def lines_of(path: Path, *more: bytes) -> bytes:
    lines = gzip.decompress(path.read_bytes()).removesuffix(b"\n").rpartition(b"\n")[0]
    return gzip.compress(lines + b"\n" + b"".join(more))


HOSTILE = {
    "a flipped bit": (flipped, "damaged in the frame at byte"),
    "another file": (lambda path: b"kind: Pod\n", "got another file"),
    "another gzip file": (
        lambda path: gzip.compress(b'{}\n{"record":"begun","positions":{}}\n'),
        "got another gzip file",
    ),
    "endless nesting": (lambda path: lines_of(path, b"[" * 100_000 + b"\n"), "decoding line 19"),
    "a sequence that was there": (
        lambda path: lines_of(path, msgspec.json.encode(node(21, 2)) + b"\n"),
        "want sequences of cluster that rise, got 21 after 32",
    ),
    "a bomb": (
        lambda path: path.read_bytes() + gzip.compress(b" " * (recording_file.MOST_FRAME_BYTES + 1), 1),
        "want frames of 100663296 bytes at most",
    ),
}


@pytest.mark.parametrize("which", HOSTILE)
def test_a_segment_that_is_damaged_or_hostile_is_named(folder: Folder, which: str):
    make, error = HOSTILE[which]
    folder.add(1)
    path = folder.add(2)
    path.write_bytes(make(path))
    with pytest.raises(RecordingError) as caught:
        taken(folder.path)
    assert str(caught.value).startswith(f"{path}: ")
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)
    after = folder.add(3)
    found, less = taken(folder.path)
    assert sequences(found)[0] == 28
    assert less.startswith(f"what is before {after} is left out: {path}: ")
    assert error in less


def test_a_folder_without_segments_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="want segments of a `berth record --keep`, got none"):
        taken(tmp_path)
    with pytest.raises(RecordingError, match="no: reading: No such file or directory"):
        taken(tmp_path / "no")


def test_files_of_other_names_are_no_segments(folder: Folder):
    folder.add(1)
    for name in ("notes.berth", "000009-20269901T000000Z.berth", "x000009-20260101T000000Z.berth"):
        (folder.path / name).write_text("mine")
    assert [each.number for each in segments_in(folder.path)] == [1]


# --- the folder of the recorder


def kept(path: Path, *, keep: timedelta = timedelta(minutes=12), most_bytes: int = 1 << 30) -> SegmentFolder:
    return SegmentFolder(path, keep=keep, most_bytes=most_bytes)


def minutes_in(path: Path) -> list[int]:
    return [round((each.at - START).total_seconds() / 60) for each in segments_in(path)]


def test_segments_are_removed_when_later_ones_have_the_time(folder: Folder):
    for minute in range(30):
        folder.add(minute)
    kept(folder.path).remove_old()
    assert minutes_in(folder.path) == list(range(17, 30))  # 12 minutes before that of 29


def test_segments_of_an_earlier_recorder_are_removed_too_and_numbers_go_on(folder: Folder):
    folder.add(0)
    folder.add(1)
    later = kept(folder.path)
    path = later.next_path(at(60))
    assert path.name == "000003-20260101T110000Z.berth"
    path.touch()
    later.remove_old()
    assert minutes_in(folder.path) == [1, 60]  # at 60 the second one may have ended a moment ago
    later.next_path(at(90)).touch()
    later.remove_old()
    assert minutes_in(folder.path) == [60, 90]


def test_the_oldest_are_removed_when_there_are_too_many_bytes_but_never_the_newest(folder: Folder):
    sizes = [folder.add(minute).stat().st_size for minute in range(10)]
    there = kept(folder.path, most_bytes=sum(sizes[-3:]))
    there.remove_old()
    assert minutes_in(folder.path) == [7, 8, 9]
    there.most_bytes = 1
    there.remove_old()
    assert minutes_in(folder.path) == [9]


def test_a_clock_that_was_set_back_removes_nothing(folder: Folder):
    for minute in (100, 101, 0, 1, 2, -9000):
        folder.add(minute, head=a_header(minute))
    kept(folder.path).remove_old()
    assert minutes_in(folder.path) == [100, 101, 0, 1, 2, -9000]


def test_a_link_to_nothing_is_left_out(folder: Folder):
    folder.add(1)
    (folder.path / "000007-20260101T100000Z.berth").symlink_to("nowhere")
    there = kept(folder.path)
    assert there.next_path(at(2)).name == "000008-20260101T100200Z.berth"
    assert sequences(taken(folder.path)[0])[-1] == 22


def test_a_lock_is_free_again_when_the_recorder_has_ended(tmp_path: Path):
    for _ in range(2):
        with (
            locked_folder(tmp_path / "kept", keep=timedelta(hours=1), most_bytes=1),
            pytest.raises(UsageError, match=f"another recorder has it, process {os.getpid()} on "),
            locked_folder(tmp_path / "kept", keep=timedelta(hours=1), most_bytes=1),
        ):
            pass


def _link(victim: Path, lock: Path) -> None:
    lock.symlink_to(victim)


def _second_name(victim: Path, lock: Path) -> None:
    lock.hardlink_to(victim)


def _pipe(_victim: Path, lock: Path) -> None:
    os.mkfifo(lock)


def _others_file(_victim: Path, lock: Path) -> None:
    lock.touch()
    os.chown(lock, 1, -1)


@pytest.mark.parametrize(
    ("put", "problem"),
    [
        pytest.param(_link, "recorder.lock is a link: remove it, or name a folder of your own", id="link"),
        pytest.param(_second_name, "recorder.lock is not this user's own file: remove it", id="second name"),
        pytest.param(_pipe, "recorder.lock is not this user's own file: remove it", id="pipe"),
        pytest.param(
            _others_file,
            "recorder.lock is not this user's own file: remove it",
            id="other owner",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
        ),
    ],
)
def test_a_lock_that_somebody_else_put_there_is_left_alone(
    tmp_path: Path, put: Callable[[Path, Path], None], problem: str
):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    shared = tmp_path / "shared"
    shared.mkdir()
    put(victim, shared / "recorder.lock")
    with (
        pytest.raises(UsageError, match=problem),
        locked_folder(shared, keep=timedelta(hours=1), most_bytes=1),
    ):
        pass
    assert victim.read_text() == "kept"


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UsageError, match="locking it: No locks available: name a folder on a disk that has locks"),
        locked_folder(tmp_path / "kept", keep=timedelta(hours=1), most_bytes=1),
    ):
        pass
