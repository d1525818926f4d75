"""The file of a recording: what is written is read again, however the file ended, and nothing else is taken for one."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from berth.exits import UsageError
from berth.messages.queue import WaitingPod
from berth_cli.recording import file as recording_file
from berth_cli.recording.file import (
    MOST_FRAME_BYTES,
    Begun,
    Ended,
    Header,
    Recording,
    RecordingError,
    RecordingWriteError,
    RecordingWriter,
    Waiting,
    header,
    is_recording,
    read_recording,
    recorded,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POSITIONS = {"cluster": 2, "PENDING": 1}


def a_header() -> Header:
    return header(at=NOW, bus_id="bus", config="0123456789ab", release="1.36", configuration={"kind": "K"})


def written(path: Path, *, ended: bool = True) -> bytes:
    """A recording in four frames; its bytes."""
    writer = RecordingWriter.create(path, a_header())
    writer.add(recorded("cluster", 1, NOW, "node.n1", b'{"a": 1}'))
    writer.add(recorded("cluster", 2, NOW, "node.n2", None))
    writer.add(recorded("PENDING", 1, NOW, "berth.pending.berth.default.web", b"\xff not JSON"))
    writer.flush()
    writer.add(Begun(positions=POSITIONS))
    writer.flush()
    writer.add(recorded("cluster", 5, NOW + timedelta(seconds=1), "node.n1", b'{"a":\n2}'))
    writer.flush()
    if ended:
        writer.add(Ended(messages=4, reason="it was stopped"))
    writer.close()
    return path.read_bytes()


def a_waiting_pod() -> WaitingPod:
    return WaitingPod(
        namespace="default", name="big", uid="u", profile="berth", queue="gated", stage="gated", since=NOW
    )


def tried(path: Path) -> tuple[Recording | None, str]:
    """The recording, or the error."""
    try:
        return read_recording(path), ""
    except RecordingError as error:
        return None, str(error)


def test_what_was_written_is_read(tmp_path: Path):
    path = tmp_path / "r"
    written(path)
    found = read_recording(path)
    assert (found.header, found.is_cut, found.position("cluster")) == (a_header(), False, 2)
    assert [(one.sequence, one.subject, one.payload) for one in found.of("cluster")] == [
        (1, "node.n1", b'{"a": 1}'),
        (2, "node.n2", None),
        (5, "node.n1", b'{"a":\n2}'),
    ]
    assert found.of("PENDING")[0].payload == b"\xff not JSON"
    assert found.last_time == NOW + timedelta(seconds=1)
    assert is_recording(str(path))


def test_who_waited_is_read_and_a_list_says_nothing_about_the_order_of_messages(tmp_path: Path):
    writer = RecordingWriter.create(tmp_path / "r", a_header())
    writer.add(recorded("DECISIONS", 9, NOW, "s", b"{}"))
    lists = [
        Waiting(at=NOW, pods=[a_waiting_pod()], decisions=[recorded("DECISIONS", 3, NOW, "s", b"{}")]),
        Waiting(at=NOW, pods=[], more=3, draining=True),
    ]
    for each in lists:
        writer.add(each)
    writer.end("it was stopped", {})
    found = read_recording(tmp_path / "r")
    assert found.waiting == lists
    assert [one.sequence for one in found.of("DECISIONS")] == [9]
    assert writer.messages == 1


def test_people_can_read_it_with_zcat(tmp_path: Path):
    lines = gzip.decompress(written(tmp_path / "r")).splitlines()
    assert [json.loads(line).get("record", "header") for line in lines] == [
        *("header", "message", "message", "message", "begun", "message", "ended")
    ]


def test_only_its_owner_may_read_it(tmp_path: Path):
    written(tmp_path / "r")
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o600


def test_wherever_it_was_cut_off_its_whole_frames_are_read_and_no_record_in_part(tmp_path: Path):
    whole = written(tmp_path / "r")
    complete = read_recording(tmp_path / "r")
    seen = set()
    for length in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        found, error = tried(tmp_path / "cut")
        if found is None:
            assert (
                "got an empty file" in error or "got another file" in error or "ended within its first second" in error
            )
            continue
        assert found.is_cut
        for source, there in found.messages.items():
            assert there == complete.of(source)[: len(there)]
        seen.add(sum(map(len, found.messages.values())))
    assert seen == {3, 4}


def test_whichever_bit_is_wrong_it_is_refused_or_read_as_it_was(tmp_path: Path):
    whole = written(tmp_path / "r")
    complete = read_recording(tmp_path / "r")
    refused = 0
    for at in range(len(whole)):
        (tmp_path / "bad").write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        found, error = tried(tmp_path / "bad")
        if found is None:
            assert error.startswith(str(tmp_path / "bad"))
            assert "\n" not in error
            refused += 1
        else:  # in a part of a frame's header that says nothing, or a frame's end was lost
            assert found.is_cut or found == complete
            assert all(there == complete.of(source)[: len(there)] for source, there in found.messages.items())
    assert refused > len(whole) * 0.8


def lines_of(*lines: bytes) -> bytes:
    return gzip.compress(b"".join(line + b"\n" for line in lines))


def line(thing: object) -> bytes:
    return msgspec.json.encode(thing)


HEAD = line(a_header())
NEWER = line({**msgspec.to_builtins(a_header()), "schema": 2, "berth": "9.1"})
MESSAGE = {"record": "message", "source": "cluster", "sequence": 3, "time": "2026-01-01T00:00:00Z", "subject": "node.n"}
WAITS = msgspec.to_builtins(a_waiting_pod())
WAITING = {"record": "waiting", "at": "2026-01-01T00:00:00Z", "pods": [WAITS]}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"", "got an empty file", id="empty"),
        pytest.param(b"kind: Pod\n", "got another file", id="a manifest"),
        pytest.param(b"\x1f\x8b", "one that was ended within its first second", id="the first two bytes"),
        pytest.param(gzip.compress(b"{}\n"), "got another gzip file", id="another gzip file"),
        pytest.param(
            gzip.compress(b"text\n"), "want a recording of `berth record`: decoding its first line", id="text"
        ),
        pytest.param(gzip.compress(b"{}"), "want frames of whole lines", id="half a line"),
        pytest.param(lines_of(NEWER), "want a recording of schema 1, got 2, written by berth 9.1: read", id="newer"),
        pytest.param(
            lines_of(line({"kind": "berth-recording", "schema": 1})), "missing required field", id="no header"
        ),
        pytest.param(
            lines_of(HEAD.replace(b"T00:00:00Z", b"T00:00:00")), "with a timezone", id="a header without a zone"
        ),
        pytest.param(lines_of(HEAD, b"[" * 100_000), "decoding line 2", id="endless nesting"),
        pytest.param(lines_of(HEAD, line({**MESSAGE, "source": "x"})), "Invalid enum value 'x'", id="unknown source"),
        pytest.param(lines_of(HEAD, line({**MESSAGE, "sequence": -1})), "`int` >= 0", id="negative sequence"),
        pytest.param(lines_of(HEAD, line({**MESSAGE, "base64": "?"})), "base64", id="no base64"),
        pytest.param(
            lines_of(HEAD, line({**MESSAGE, "time": "2026-01-01T00:00:00"})), "want times with a zone", id="no zone"
        ),
        pytest.param(
            lines_of(HEAD, line({**WAITING, "at": "2026-01-01T00:00:00"})),
            "want times with a zone",
            id="a list",
        ),
        pytest.param(
            lines_of(HEAD, line({**WAITING, "pods": [{**WAITS, "since": "2026-01-01T00:00:00"}]})),
            "want times with a zone",
            id="a pod of a list",
        ),
        pytest.param(
            lines_of(HEAD, line({**WAITING, "decisions": [MESSAGE]})), "got one of cluster", id="no Decision of a list"
        ),
        pytest.param(
            lines_of(HEAD, line({**WAITING, "pods": [WAITS] * 10_001})), "length <= 10000", id="an endless list"
        ),
        pytest.param(
            lines_of(HEAD, line(MESSAGE), line(MESSAGE)),
            "want sequences of cluster that rise, got 3 after 3",
            id="twice",
        ),
        pytest.param(
            lines_of(HEAD, line(Ended(messages=0, reason="")), line(MESSAGE)), "want nothing after its end", id="more"
        ),
        pytest.param(lines_of(HEAD) + b"garbage", "damaged in the frame at byte", id="garbage at its end"),
    ],
)
def test_what_is_no_recording_is_refused_in_a_line(tmp_path: Path, data: bytes, error: str):
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(RecordingError) as caught:
        read_recording(tmp_path / "r")
    assert error in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/r: ")
    assert "\n" not in str(caught.value)


def test_a_frame_that_expands_without_end_is_refused_before_it_is_held(tmp_path: Path):
    bomb = gzip.compress(b" " * (MOST_FRAME_BYTES + 1), 1)
    assert len(bomb) < 1 << 20
    (tmp_path / "r").write_bytes(lines_of(HEAD) + bomb)
    with pytest.raises(RecordingError, match="want frames of 100663296 bytes at most, got more"):
        read_recording(tmp_path / "r")


def test_a_header_of_many_values_is_refused_before_they_are_built(tmp_path: Path):
    head = msgspec.json.encode(a_header())
    many = head[:-1] + b',"more":[' + b"[]," * 400_000 + b"[]]}"
    (tmp_path / "r").write_bytes(gzip.compress(many + b"\n"))
    with pytest.raises(RecordingError, match="want a header of at most 1048576 bytes, got 1200"):
        read_recording(tmp_path / "r")


def test_a_well_compressed_frame_is_read_to_its_end(tmp_path: Path):
    """What a frame expands to can be more than the buffer when its last byte has been read."""
    (tmp_path / "r").write_bytes(lines_of(HEAD, line({**MESSAGE, "data": "x" * (5 << 20)})))
    (record,) = read_recording(tmp_path / "r").of("cluster")
    assert len(record.payload or b"") == (5 << 20) + 2


def test_too_many_records_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording_file, "MOST_RECORDS", 2)
    (tmp_path / "r").write_bytes(lines_of(HEAD, line(MESSAGE), line({**MESSAGE, "sequence": 4})))
    with pytest.raises(RecordingError, match="want at most 2 records, got more: record for a shorter time"):
        read_recording(tmp_path / "r")


def test_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording_file, "MOST_BYTES", 100)
    (tmp_path / "r").write_bytes(lines_of(HEAD))
    with pytest.raises(RecordingError, match="want at most 100 bytes, got more: record for a shorter time"):
        read_recording(tmp_path / "r")


def test_the_writer_is_full_before_a_reader_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording_file, "MOST_BYTES", MOST_FRAME_BYTES + 1000)
    writer = RecordingWriter.create(tmp_path / "r", a_header())
    assert not writer.is_full
    writer.add(recorded("cluster", 1, NOW, "node.n1", b'"%s"' % (b"x" * 1000)))
    assert writer.is_full
    writer.close()
    assert len(read_recording(tmp_path / "r").of("cluster")) == 1


def test_a_file_that_exists_is_not_written_over(tmp_path: Path):
    (tmp_path / "r").write_text("mine")
    with pytest.raises(UsageError, match="it exists already: remove it, or name another file"):
        RecordingWriter.create(tmp_path / "r", a_header())
    assert (tmp_path / "r").read_text() == "mine"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no/r': No such file or directory"):
        RecordingWriter.create(tmp_path / "no" / "r", a_header())


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(RecordingError, match="r: reading: No such file or directory"):
        read_recording(tmp_path / "r")
    assert not is_recording(str(tmp_path / "r"))


def test_what_is_much_at_once_is_written_in_frames_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As the mirror of a large cluster is, when a recorder begins."""
    monkeypatch.setattr(recording_file, "MOST_FRAME_BYTES", 3 << 20)
    writer = RecordingWriter.create(tmp_path / "r", a_header())
    for number in range(1, 11):
        writer.add(recorded("cluster", number, NOW, f"node.n{number}", b'"%s"' % (b"x" * (1 << 20))))
    writer.close()
    assert len(read_recording(tmp_path / "r").of("cluster")) == 10


def test_what_a_full_disk_took_in_part_is_removed_and_nothing_follows_what_is_missing(tmp_path: Path):
    """Though there is room again, and for the end there was: the file would count as whole."""
    writer = RecordingWriter.create(tmp_path / "r", a_header())
    writer.add(recorded("cluster", 1, NOW, "node.n1", b"{}"))
    writer.flush()
    whole = (tmp_path / "r").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 10, limits[1]))
    try:
        writer.add(recorded("cluster", 2, NOW, "node.n2", b"{}"))
        with pytest.raises(RecordingWriteError, match="File too large"):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert (tmp_path / "r").stat().st_size == whole
    writer.add(recorded("cluster", 3, NOW, "node.n3", b"{}"))
    with pytest.raises(RecordingWriteError, match="File too large"):
        writer.end("it was stopped", {})
    found = read_recording(tmp_path / "r")
    assert ([one.sequence for one in found.of("cluster")], found.is_cut) == ([1], True)


def test_what_may_not_be_on_the_disk_is_not_ended_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After an error of fsync the system may have dropped what was written, and says so once."""
    writer = RecordingWriter.create(tmp_path / "r", a_header())
    writer.add(recorded("cluster", 1, NOW, "node.n1", b"{}"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(RecordingWriteError, match="Input/output error"):
            writer.flush()
    with pytest.raises(RecordingWriteError, match="Input/output error"):
        writer.end("it was stopped", {})
    assert read_recording(tmp_path / "r").is_cut


def fails(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer = RecordingWriter("/dev/full", full)
        writer.add(Begun(positions={}))
        with pytest.raises(RecordingWriteError, match=r"writing '/dev/full': No space left on device$"):
            writer.flush()
