"""Files of a command are removed, also after a crash."""

import os
import subprocess
import sys
import tempfile

import pytest

from berth.cli.pipeline.pipeline import working_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_is_gone_at_the_end(tmp_path):
    with working_folder() as folder:
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_an_ended_process_is_removed(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = tmp_path / f"berth-of-{dead.stdout.decode().strip()}-abc"
    left.mkdir()
    with working_folder():
        assert not left.exists()


def test_folders_of_running_processes_and_others_stay(tmp_path):
    mine, theirs = tmp_path / f"berth-of-{os.getppid()}-abc", tmp_path / "berth-of-course"
    mine.mkdir()
    theirs.mkdir()
    with working_folder():
        assert mine.exists()
        assert theirs.exists()
