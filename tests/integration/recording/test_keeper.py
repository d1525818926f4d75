"""`berth record --keep` on a real nats-server: it rotates, goes on over losses, and what it wrote can be taken home."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from berth.bus.interface import Session
from berth_cli.recording.file import read_recording
from harness.plugins.fixtures_bus import BusUnderTest, real_bus_under_test
from harness.servers.child_processes import free_ports
from harness.servers.keeping_recorder import KeepingRecorder, environment, keeping_recorder, readable, record, take
from harness.servers.nats_server import NatsServer
from harness.servers.small_disk import SmallDisk

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(120)]

BEGUN = "keeping the last"
SECONDS = 60.0


async def until(holds: Callable[[], bool], recorder: KeepingRecorder, what: str) -> None:
    await asyncio.to_thread(recorder.wait_until, holds, what)


async def begun(recorder: KeepingRecorder) -> None:
    await asyncio.to_thread(recorder.wait_until_says, BEGUN)


@asynccontextmanager
async def changes(session: Session) -> AsyncIterator[None]:
    """Nodes change all the time."""

    async def change() -> None:
        number = 0
        while True:
            await session.put("cluster", f"node.n{number % 50}", b"%d" % number)
            number += 1
            await asyncio.sleep(0.005)

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_rotates_and_a_file_of_several_segments_lacks_nothing(own_nats_server: NatsServer, tmp_path: Path):
    async with real_bus_under_test(own_nats_server.address) as bus:
        session = await bus.session("one")
        await session.put("cluster", "node.first", b"{}")
        with keeping_recorder(tmp_path / "kept", "--nats", own_nats_server.address, keep="10s") as recorder:
            await begun(recorder)
            async with changes(session):
                first = recorder.segments()[0]
                await until(lambda: not first.exists(), recorder, "the first segment to be removed")
                # In a thread: without a change for so long, nothing would be taken.
                found, said = await asyncio.to_thread(take, recorder.folder, tmp_path / "taken", "--since", "4s")
            code, printed = await asyncio.to_thread(recorder.end, signal.SIGTERM)
        files = recorder.segments()
    assert code == 0
    assert re.fullmatch(rf"stopped: {recorder.folder} has .* kB\n", printed)
    assert said == ""
    assert not found.is_cut
    changed = [one.sequence for one in found.of("cluster") if one.sequence > found.position("cluster")]
    assert changed == list(range(found.position("cluster") + 1, changed[-1] + 1))
    # A segment more at most; and one less when the newest has just begun, and has no message of its own.
    assert 4 - 2 <= (found.last_time - found.header.at).total_seconds() <= 4 + 3
    assert "node.first" in {one.subject for one in found.of("cluster")}
    segments = [read_recording(path) for path in files]
    assert [each.is_cut for each in segments] == [False] * len(files)
    assert 10 - 1 <= (segments[-1].header.at - segments[0].header.at).total_seconds() <= 10 + 3
    for before, after in pairwise(segments):
        assert after.position("cluster") <= before.of("cluster")[-1].sequence
    assert {stat.S_IMODE(path.stat().st_mode) for path in recorder.folder.iterdir()} == {0o600}
    assert stat.S_IMODE(recorder.folder.stat().st_mode) == 0o700


async def test_a_killed_recorder_leaves_what_it_had_written_and_the_next_one_goes_on(
    own_nats_server: NatsServer, tmp_path: Path
):
    async with real_bus_under_test(own_nats_server.address) as bus:
        session = await bus.session("one")
        async with random_changes(session, pause=0.0):  # several frames a second: it is killed while it writes
            for number in range(1, 4):
                with keeping_recorder(tmp_path / "kept", "--nats", own_nats_server.address, keep="10s") as recorder:
                    await begun(recorder)
                    least = kept_bytes(recorder) + 300_000
                    await until(lambda least=least: kept_bytes(recorder) > least, recorder, "much to be written")
                    assert (await asyncio.to_thread(recorder.end, signal.SIGKILL))[0] == -signal.SIGKILL
                found, said = take(recorder.folder, tmp_path / f"taken-{number}")
                changed = [one.sequence for one in found.of("facts") if one.sequence > found.position("facts")]
                assert changed == list(range(changed[0], changed[-1] + 1))
                assert len(changed) > 5
                assert ("the recorder was away since" in said) == (number > 1)
    before, _ = take(without_the_newest(recorder, number=1), tmp_path / "before")
    assert before.header.at < before.last_time <= found.header.at


def without_the_newest(recorder: KeepingRecorder, number: int) -> Path:
    """A copy of the folder that lacks so many of the newest segments."""
    folder = recorder.folder.with_name("copied")
    folder.mkdir()
    for path in recorder.segments()[:-number]:
        shutil.copy(path, folder)
    return folder


def kept_bytes(recorder: KeepingRecorder) -> int:
    return sum(path.stat().st_size for path in recorder.segments())


async def test_it_goes_on_when_nats_comes_back(own_nats_server: NatsServer, tmp_path: Path):
    port = free_ports(1)[0]
    settings = {"BERTH_HEALTH_PORT": str(port)}
    arguments = ("--nats", own_nats_server.address)
    async with real_bus_under_test(own_nats_server.address) as bus:
        await (await bus.session("one")).put("cluster", "node.before", b"{}")
    with keeping_recorder(tmp_path / "kept", *arguments, settings=settings) as recorder:
        await begun(recorder)
        assert await asyncio.to_thread(readiness, port) == (200, "ok")
        own_nats_server.kill()
        await asyncio.to_thread(recorder.wait_until_says, "trying again")
        status, text = await asyncio.to_thread(readiness, port)
        assert (status, text.startswith("not ready: ")) == (503, True)
        own_nats_server.start()
        await asyncio.to_thread(recorder.wait_until_says, "NATS is back")
        assert await asyncio.to_thread(readiness, port) == (200, "ok")
        found, said = take(recorder.folder, tmp_path / "taken")
        assert await asyncio.to_thread(recorder.end, signal.SIGINT) != (1, "")
    assert [one.subject for one in found.of("cluster")] == ["node.before"]
    assert said == ""  # nothing happened while NATS was away
    first, second = map(read_recording, recorder.segments())
    assert first.header.bus_id == second.header.bus_id


async def test_after_a_lost_store_sequences_begin_anew_in_a_segment_of_their_own(
    own_nats_server: NatsServer, tmp_path: Path
):
    async with real_bus_under_test(own_nats_server.address) as bus:
        for number in range(5):
            await (await bus.session("one")).put("cluster", f"node.old-{number}", b"{}")
    with keeping_recorder(tmp_path / "kept", "--nats", own_nats_server.address) as recorder:
        await begun(recorder)
        own_nats_server.lose_store()
        await asyncio.to_thread(recorder.wait_until_says, "trying again")
        own_nats_server.start()
        async with real_bus_under_test(own_nats_server.address) as bus:
            await asyncio.to_thread(recorder.wait_until_says, "NATS is back")
            await (await bus.session("one")).put("cluster", "node.new", b"{}")
            await until(
                lambda: "node.new" in recorded(recorder),
                recorder,
                "the new store to be recorded",
            )
            found, said = take(recorder.folder, tmp_path / "taken")
    assert [(one.sequence, one.subject) for one in found.of("cluster")] == [(1, "node.new")]
    old = readable(recorder.segments())[0]
    assert (old.header.bus_id == found.header.bus_id, len(old.of("cluster"))) == (False, 5)
    assert "it is of another bus, or of one that lost its store" in said
    before, _ = take(without_the_newest(recorder, number=1), tmp_path / "before")
    assert [one.subject for one in before.of("cluster")] == [f"node.old-{number}" for number in range(5)]


def recorded(recorder: KeepingRecorder) -> list[str]:
    """What the newest segment has of the mirror."""
    return [one.subject for one in readable(recorder.segments())[-1].of("cluster")]


def readiness(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_one_folder_has_one_recorder(nats_bus_under_test: BusUnderTest, own_nats_server: NatsServer, tmp_path):
    async with real_bus_under_test(own_nats_server.address):
        with keeping_recorder(tmp_path / "kept", "--nats", own_nats_server.address) as first:
            await begun(first)
            with keeping_recorder(tmp_path / "kept", "--nats", own_nats_server.address) as second:
                code = await asyncio.to_thread(second.process.wait, SECONDS)
    assert code == 2
    assert re.fullmatch(
        rf"berth: keeping segments in '{first.folder}': another recorder has it, process {first.process.pid} on \S+: "
        r"end that one, or name another folder\n",
        second.said,
    )


async def test_it_waits_for_a_nats_that_is_not_there_yet(own_nats_server: NatsServer, tmp_path: Path):
    own_nats_server.kill()
    with keeping_recorder(tmp_path / "kept", "--nats", own_nats_server.address) as recorder:
        await asyncio.to_thread(recorder.wait_until_says, "trying again")
        own_nats_server.start()
        async with real_bus_under_test(own_nats_server.address):
            await begun(recorder)


async def test_the_folder_has_no_more_bytes_than_are_given(own_nats_server: NatsServer, tmp_path: Path):
    async with real_bus_under_test(own_nats_server.address) as bus:
        session = await bus.session("one")
        with keeping_recorder(tmp_path / "kept", "--nats", own_nats_server.address, "--keep-size", "1Mi") as recorder:
            await begun(recorder)
            async with random_changes(session, pause=0.1):
                first = recorder.segments()[0]
                await until(lambda: not first.exists(), recorder, "the first segment to be removed")
                found, _ = take(recorder.folder, tmp_path / "taken")
            await asyncio.to_thread(recorder.end, signal.SIGTERM)
        sizes = [path.stat().st_size for path in recorder.segments()]
    assert len(sizes) > 3
    assert sum(sizes) <= 1 << 20
    assert found.begun is not None


@asynccontextmanager
async def random_changes(session: Session, pause: float) -> AsyncIterator[None]:
    """Changes that take as much on the disk as on the bus."""

    async def change() -> None:
        number = 0
        while True:
            number += 1
            await session.put("facts", f"f.n{number % 4}", b'"%s"' % random.randbytes(8_000).hex().encode())
            await asyncio.sleep(pause)

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_full_disk_is_said_once_and_recording_goes_on_when_there_is_room(
    disk: SmallDisk, own_nats_server: NatsServer, tmp_path: Path
):
    async with real_bus_under_test(own_nats_server.address) as bus:
        session = await bus.session("one")
        await session.put("cluster", "node.there", b"{}")
        with keeping_recorder(disk.folder / "kept", "--nats", own_nats_server.address) as recorder:
            await begun(recorder)
            disk.fill()
            async with random_changes(session, pause=0.01):
                await asyncio.to_thread(recorder.wait_until_says, "recording pauses until there is room")
                await session.put("cluster", "node.meanwhile", b"{}")
                disk.free()
                await asyncio.to_thread(recorder.wait_until_says, "there is room again")
            found, said = take(recorder.folder, tmp_path / "taken")
            assert (await asyncio.to_thread(recorder.end, signal.SIGTERM))[0] == 0
        lines = [line for line in recorder.said.splitlines() if "room" in line]
        kept = [read_recording(path) for path in recorder.segments()]
    assert re.fullmatch(
        r"berth: writing '\S+\.berth': No space left on device; recording pauses until there is room", lines[0]
    )
    assert len(lines) == 2
    assert [each.is_cut for each in kept] == [True, False]
    assert {one.subject for one in found.of("cluster")} == {"node.there", "node.meanwhile"}
    assert "the recorder was away since" in said


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    done = subprocess.run(
        record("--keep", "1h", "-o", tmp_path / "no" / "folder"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment(),
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"berth: keeping segments in '{tmp_path}/no/folder': No such file or directory: "
        "name a folder that can be written to\n"
    )


def test_a_health_port_that_is_taken_is_named(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with keeping_recorder(tmp_path / "kept", settings={"BERTH_HEALTH_PORT": str(port)}) as recorder:
            assert recorder.process.wait(SECONDS) == 2
    assert recorder.said.startswith(f"berth: listening on health.port {port} of '127.0.0.1': ")
    assert recorder.said.endswith("choose another with BERTH_HEALTH_PORT\n")
