"""The flags of `berth record`: which belong together, and what is taken from a folder."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.profiles.configuration import read_configuration
from berth_cli.commands.record import app
from berth_cli.recording.configuration import recorded_header
from berth_cli.recording.file import Begun, RecordingWriter, read_recording, recorded
from berth_cli.recording.segments.folder import SegmentFolder


def record(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a recorder: two segments, which end now."""
    path = tmp_path / "kept"
    path.mkdir()
    there = SegmentFolder(path, keep=timedelta(hours=1), most_bytes=1 << 30)
    configuration = read_configuration(None)
    sequence = 0
    for minutes in (2, 1):
        begin = datetime.now(UTC) - timedelta(minutes=minutes)
        head = recorded_header(configuration, "bus", begin)
        writer = RecordingWriter.create(there.next_path(begin), head)
        writer.add(Begun(positions={"cluster": sequence}))
        writer.flush()
        for second in range(1, 60):
            sequence += 1
            key = f"node.shop-{sequence}"
            writer.add(recorded("cluster", sequence, begin + timedelta(seconds=second), key, b'{"object": {}}'))
        writer.end("the next segment follows", {"cluster": sequence})
    return path


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param("--since 5m -o f", "name its folder with --from", id="since without from"),
        pytest.param("--from d --keep 1h -o f", "leave --keep away", id="from and keep"),
        pytest.param("--from d --for 1m -o f", "leave --for away", id="from and for"),
        pytest.param("--from d --nats nats://n:4222 -o f", "leave --nats away", id="from and NATS"),
        pytest.param("--from d --config c -o f", "leave --config away", id="from and a configuration"),
        pytest.param("--since soon --from d -o f", "--since: want a duration such as", id="no duration"),
        pytest.param("--keep 1h --for 1m -o f", "leave --for away", id="keep and for"),
        pytest.param("--keep 1h --anonymise -o f", "give --anonymise with --from, which masks", id="keep, anonymised"),
        pytest.param("--keep 5s -o f", "--keep: want 10s..604800s, got 5s", id="too short"),
        pytest.param("--keep 1h --keep-size much -o f", "--keep-size: want bytes such as 500M or 1Gi", id="no size"),
        pytest.param("--keep 1h --keep-size 1k -o f", "--keep-size: want 1Mi..1Ti, got 1k", id="too small"),
        pytest.param("--keep-size 1Gi -o f", "--keep-size belongs to --keep, which is missing", id="size without keep"),
        pytest.param("--keep 1h -o -", "--keep writes into a folder: name one", id="a folder on standard output"),
        pytest.param("--from nowhere -o f", "nowhere: reading: No such file or directory", id="no folder"),
    ],
)
def test_what_does_not_belong_together_is_a_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, error: str
):
    monkeypatch.chdir(tmp_path)
    done = record(*words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert error in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_variables_of_the_services_are_no_question_to_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BERTH_CONFIG", "no/such/file")
    monkeypatch.setenv("NATS_CONTEXT", "prod")
    assert record("--since", "5m", "--from", folder, "-o", tmp_path / "f").exit_code == 0


def test_what_was_taken_is_said_and_only_its_owner_may_read_it(folder: Path, tmp_path: Path):
    done = record("--since", "90s", "--from", folder, "-o", tmp_path / "f")
    assert (done.exit_code, done.stderr) == (0, "")
    assert re.fullmatch(rf"took 1 min 5\d s, 118 messages, .* kB to {tmp_path}/f\n", done.stdout)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    found = read_recording(tmp_path / "f")
    assert (len(found.of("cluster")), found.is_cut) == (118, False)


def test_less_than_was_asked_for_is_a_note(folder: Path, tmp_path: Path):
    done = record("--since", "30m", "--from", folder, "-o", tmp_path / "f")
    assert done.exit_code == 0
    assert re.fullmatch(r"berth: it begins at \S+: nothing before that is kept\n", done.stderr)


def test_a_recorder_that_has_ended_is_a_note(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("berth_cli.commands.record.SILENT", timedelta(milliseconds=1))
    done = record("--since", "59s", "--from", folder, "-o", tmp_path / "f")
    assert done.exit_code == 0
    assert re.fullmatch(
        r"berth: its newest message is \S+ m?s old: the recorder has ended, or cannot reach NATS\n", done.stderr
    )


def test_a_file_that_exists_is_left_alone(folder: Path, tmp_path: Path):
    (tmp_path / "f").write_text("mine")
    done = record("--since", "5m", "--from", folder, "-o", tmp_path / "f")
    assert done.exit_code == 2
    assert "it exists already" in done.stderr
    assert (tmp_path / "f").read_text() == "mine"


PAUSED = """
import signal, time
from berth_cli.recording.file import RecordingWriter

def pause(writer, reason, positions):
    writer.flush()
    print("has written", flush=True)
    time.sleep(600)

RecordingWriter.end = pause
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started with
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from berth_cli.__main__ import main
main()
"""
"""The command, which pauses when it has written all but the end."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_stopped_leaves_nothing_behind_and_the_next_one_writes_it(
    folder: Path, tmp_path: Path, number: signal.Signals
):
    output = tmp_path / "out" / "f"
    output.parent.mkdir()
    command = [sys.executable, "-c", PAUSED, "record", "--since", "5m", "--from", str(folder), "-o", str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "has written\n"
            (part,) = output.parent.iterdir()
            assert part == output
            assert part.stat().st_mode & 0o777 == 0o600
            process.send_signal(number)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert (process.returncode, said) == (1, "berth: stopped\n")
    assert list(output.parent.iterdir()) == []
    assert record("--since", "5m", "--from", folder, "-o", output).exit_code == 0
    assert list(output.parent.iterdir()) == [output]


def test_a_full_disk_leaves_no_file_and_promises_none(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    output = tmp_path / "out" / "f"
    output.parent.mkdir()
    done = record("--since", "5m", "--from", folder, "-o", output)
    assert (done.exit_code, done.stderr) == (1, f"berth: writing '{output}': No space left on device\n")
    assert list(output.parent.iterdir()) == []


def test_a_damaged_segment_leaves_no_file(folder: Path, tmp_path: Path):
    damaged = max(folder.iterdir())
    whole = damaged.read_bytes()
    middle = len(whole) * 3 // 4  # of the second frame
    damaged.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
    done = record("--since", "5m", "--from", folder, "-o", tmp_path / "f")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"berth: {damaged}: damaged in the frame at byte ")
    assert not (tmp_path / "f").exists()


def test_names_are_masked_in_what_is_taken(folder: Path, tmp_path: Path):
    assert record("--since", "5m", "--from", folder, "--anonymise", "-o", tmp_path / "f").exit_code == 0
    found = read_recording(tmp_path / "f")
    assert (found.header.anonymised, len(found.of("cluster"))) == (True, 118)
    assert not [one.subject for one in found.of("cluster") if "shop" in one.subject]


def to_standard_output(folder: Path, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "berth_cli", "record", "--since", "5m", "--from", str(folder), "-o", "-"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)


@pytest.mark.slow
def test_standard_output_has_the_recording_and_nothing_else(folder: Path, tmp_path: Path):
    with (tmp_path / "f").open("wb") as out, to_standard_output(folder, stdout=out) as process:
        said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0
    assert "nothing before that is kept" in said
    assert re.search(r"^berth: took 1 min 5\d s, 118 messages, .* kB to standard output$", said, re.MULTILINE)
    assert len(read_recording(tmp_path / "f").of("cluster")) == 118


@pytest.mark.slow
def test_a_terminal_gets_no_recording(folder: Path):
    ours, theirs = os.openpty()
    try:
        with to_standard_output(folder, stdout=theirs) as process:
            said = process.communicate(timeout=60)[1].decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 2
    assert "writing a recording to a terminal: redirect standard output" in said


@pytest.mark.slow
def test_a_pipe_whose_reader_has_gone_is_a_line(folder: Path):
    with to_standard_output(folder, stdout=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(timeout=60) == 1
    assert "berth: writing 'standard output': Broken pipe" in said.splitlines()[-1]
    assert "Traceback" not in said
