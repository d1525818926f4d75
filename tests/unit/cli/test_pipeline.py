"""Files of a command are removed, also after a crash."""

import asyncio
import os
import subprocess
import sys
import tempfile
from datetime import timedelta

import pytest

from berth.errors import BerthError, TemporaryError
from berth.settings.settings import NatsSettings
from berth_cli.pipeline import room, servers
from berth_cli.pipeline.pipeline import working_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_is_gone_at_the_end(tmp_path):
    with working_folder() as folder:
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
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


async def test_a_full_folder_is_reported_once_and_so_is_room_again(tmp_path, monkeypatch):
    free = 3 * room.SCARCE
    monkeypatch.setattr(room, "free_bytes", lambda _: free)
    lines: list[str] = []
    reported = asyncio.Event()

    def report(text: str) -> None:
        lines.append(text)
        reported.set()

    async with room.watched_room(tmp_path / "folder", report, interval=timedelta(milliseconds=1)):
        await asyncio.sleep(0.01)
        assert lines == []
        free = room.FULL - 1
        await asyncio.wait_for(reported.wait(), 5)
        await asyncio.sleep(0.01)
        assert [line.partition(" (")[0] for line in lines] == [f"{tmp_path} is full"]
        reported.clear()
        free = room.FULL
        await asyncio.wait_for(reported.wait(), 5)
    assert lines[1:] == [f"{tmp_path} has room again (1.0 MiB free)"]


@pytest.mark.parametrize(("free", "warnings"), [(room.SCARCE, 0), (room.SCARCE - 1, 1)], ids=["enough", "scarce"])
async def test_scarce_room_is_said_at_the_start(free, warnings, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda _: free)
    lines: list[str] = []
    async with room.watched_room(tmp_path / "folder", lines.append):
        await asyncio.sleep(0)
    assert [line.startswith(f"warning: {tmp_path} has 32.0 MiB free") for line in lines] == [True] * warnings


@pytest.mark.slow
async def test_a_server_that_is_waited_for_is_named_with_each_cause_and_when_it_has_come(monkeypatch):
    monkeypatch.setattr(servers, "_REPORTED_AFTER", timedelta(milliseconds=20))
    lines: list[str] = []

    async def check() -> str:
        if not lines:
            await asyncio.sleep(0.05)
        if len(lines) < 3:
            raise TemporaryError(f"cause {len(lines)}")
        return "found"

    waiting = servers.retry_aloud(check, within=timedelta(seconds=20), what="NATS at x", report=lines.append)
    assert await waiting == "found"
    assert lines == [
        "waiting for NATS at x: no answer yet",
        "waiting for NATS at x: cause 1",
        "waiting for NATS at x: cause 2",
        "NATS at x is there",
    ]


async def test_a_server_that_answers_at_once_is_not_waited_for(monkeypatch):
    lines: list[str] = []
    await servers.retry_aloud(lambda: asyncio.sleep(0), within=timedelta(), what="NATS at x", report=lines.append)
    assert lines == []


@pytest.mark.parametrize(
    ("mebibytes", "cluster", "decisions", "ranked"),
    [
        pytest.param(16, 8, 4, 2, id="the least"),
        pytest.param(400, 200, 100, 50, id="less than they would take"),
        pytest.param(2048, 512, 512, 128, id="enough"),
    ],
)
def test_large_streams_take_what_is_free_at_most(mebibytes, cluster, decisions, ranked):
    assert room.stream_limits(mebibytes * 2**20, NatsSettings(), {}) == {
        "BERTH_NATS_CLUSTER_MEBIBYTES": str(cluster),
        "BERTH_NATS_DECISIONS_MEBIBYTES": str(decisions),
        "BERTH_NATS_RANKED_MEBIBYTES": str(ranked),
    }


def test_a_size_that_the_user_has_set_stays():
    given = {"BERTH_NATS_CLUSTER_MEBIBYTES": "700"}
    limits = room.stream_limits(room.LEAST, NatsSettings(cluster_mebibytes=700), given)
    assert limits["BERTH_NATS_CLUSTER_MEBIBYTES"] == "700"
    assert limits["BERTH_NATS_DECISIONS_MEBIBYTES"] == "4"


@pytest.mark.parametrize("free", [room.LEAST, room.LEAST - 1])
def test_too_little_room_is_a_sentence_with_folder_and_sizes(free, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda _: free)
    if free == room.LEAST:
        room.want_room(tmp_path / "folder")
    else:
        with pytest.raises(BerthError, match=f"{tmp_path} has 16.0 MiB free, and NATS needs 16.0 MiB there: .*TMPDIR"):
            room.want_room(tmp_path / "folder")
