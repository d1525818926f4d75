"""`berth record --keep` as a process, and files taken from its folder.

with keeping_recorder(tmp_path / "kept", "--nats", address) as recorder:
recorder.wait_until_says("keeping the last")
take(recorder.folder, tmp_path / "taken", "--since", "30m")
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from berth_cli.recording.file import Recording, RecordingError, read_recording
from berth_cli.recording.segments.folder import segments_in

SECONDS = 120.0


def record(*arguments: object) -> list[str]:
    """The command, with these arguments."""
    return [sys.executable, "-m", "berth_cli", "record", *map(str, arguments)]


def environment(**given: str) -> dict[str, str]:
    """That of the tests, without settings of berth but these."""
    return {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")} | given


class KeepingRecorder:
    """A recorder that keeps segments in a folder."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], said: Path) -> None:
        self.folder = folder
        self.process = process
        self._said = said

    @property
    def said(self) -> str:
        """What it wrote to standard error so far."""
        return self._said.read_text()

    def wait_until_says(self, words: str) -> None:
        self.wait_until(lambda: words in self.said, f"it to say {words!r}")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Nothing tells when a file has been written."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, f"waited for {what}: {self.said}"
            time.sleep(0.02)

    def segments(self) -> list[Path]:
        return [each.path for each in segments_in(self.folder)]

    def end(self, number: int) -> tuple[int, str]:
        """Send it a signal; its exit code and what it printed."""
        self.process.send_signal(number)
        printed, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, printed


@contextmanager
def keeping_recorder(
    folder: Path, *arguments: object, keep: str = "1h", settings: Mapping[str, str] | None = None
) -> Iterator[KeepingRecorder]:
    """A recorder with these arguments; its process has ended when the block has."""
    said = folder.with_name(f"{folder.name}.{time.monotonic_ns()}.said")
    with (
        said.open("wb") as err,
        subprocess.Popen(
            record("--keep", keep, "-o", folder, *arguments),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=environment(**(settings or {})),
        ) as process,
    ):
        try:
            yield KeepingRecorder(folder, process, said)
        finally:
            process.kill()


def take(folder: Path, file: Path, *arguments: object) -> tuple[Recording, str]:
    """A recording of what is in the folder, and what the command said on the way."""
    done = subprocess.run(
        record("--from", folder, "-o", file, *arguments),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return read_recording(file), done.stderr


def readable(segments: list[Path]) -> list[Recording]:
    """Those that are no longer or not yet whole are left out."""
    found = []
    for path in segments:
        try:
            recording = read_recording(path)
        except RecordingError:
            continue
        if recording.begun is not None:
            found.append(recording)
    return found
