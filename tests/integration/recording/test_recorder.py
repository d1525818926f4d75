"""The recorder on a real nats-server: what passes through its queues is recorded, a lost server leaves a recording."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from berth.bus.interface import BusLostError, Endpoint, Session
from berth.errors import BerthError, first_error
from berth.messages.attempts import Decision, Outcome
from berth.messages.encoding import encode
from berth.messages.queue import QUEUE, QueueAnswer, WaitingPod
from berth_cli.pods.waiting import queue_pages
from berth_cli.recording import recorder
from berth_cli.recording.file import Recording, RecordingWriter, header, is_recording, read_recording
from berth_cli.recording.recorder import Recorder
from harness.plugins.fixtures_bus import BusUnderTest, real_bus_under_test
from harness.servers.keeping_recorder import environment
from harness.servers.nats_server import NatsServer
from harness.servers.small_disk import SmallDisk

pytestmark = pytest.mark.requires("nats-server")

SECONDS = 20.0
WEB = "berth.{}.berth.default.web-{}"


def recorder_of(session: Session, path: Path) -> Recorder:
    head = header(at=datetime.now(UTC), bus_id=session.bus_id, config="c", release="1.36", configuration={})
    return Recorder(session, RecordingWriter.create(path, head), queue_pages)


@asynccontextmanager
async def recording(session: Session, path: Path) -> AsyncIterator[asyncio.Task[str]]:
    """Record while the block runs, from the moment on in which changes are recorded."""
    recorder, begun = recorder_of(session, path), asyncio.Event()
    task = asyncio.create_task(recorder.run(on_begun=lambda _missing: begun.set()))
    try:
        await asyncio.wait_for(begun.wait(), SECONDS)
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        recorder.end("it was stopped")


def subjects(found: Recording, source: str) -> list[str]:
    return [record.subject for record in found.of(source)]


async def until_recorded(path: Path, source: str, count: int) -> None:
    """A recorder writes once a second; nothing tells when."""
    async with asyncio.timeout(SECONDS):
        while len(read_recording(path).of(source)) < count:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def take(session: Session, count: int) -> None:
    """As a scorer does: pull from PENDING, and acknowledge."""
    async with session.consume("PENDING", "scorer", max_unacked=8) as deliveries:
        async for delivery in deliveries:
            delivery.ack()
            count -= 1
            if not count:
                break


async def test_what_is_stored_and_what_passes_through_the_queues_is_recorded(
    nats_bus_under_test: BusUnderTest, tmp_path: Path
):
    session, reader = await nats_bus_under_test.session("one"), await nats_bus_under_test.session("reader")
    await session.put("cluster", "node.n1", b'{"first": 1}')
    await session.put("cluster", "node.n1", b'{"second": 2}')
    await session.publish(WEB.format("pending", 0), b'{"waits": 1}', message_id="0")
    async with recording(reader, tmp_path / "r"):
        taking = asyncio.create_task(take(session, 21))
        for number in range(1, 21):
            await session.publish(WEB.format("pending", number), b'{"n": 1}', message_id=str(number))
            await session.publish(WEB.format("ranked", number), b'{"n": 1}', message_id=str(number))
            await session.publish(WEB.format("decision", number), b'{"n": 1}', message_id=str(number))
        await asyncio.wait_for(taking, SECONDS)
        await session.put("bandwidth", "q.n1", b'{"n": 1}')
        await session.put("facts", "f.n1", b"no JSON")
        last = await session.purge("cluster", "node.n1")
        await until_recorded(tmp_path / "r", "cluster", 2)
    found = read_recording(tmp_path / "r")
    assert not found.is_cut
    assert subjects(found, "PENDING") == [WEB.format("pending", number) for number in range(21)]
    assert subjects(found, "RANKED") == [WEB.format("ranked", number) for number in range(1, 21)]
    assert subjects(found, "DECISIONS") == [WEB.format("decision", number) for number in range(1, 21)]
    assert [(one.sequence, one.payload) for one in found.of("cluster")] == [(last - 1, b'{"second": 2}'), (last, None)]
    assert (found.position("cluster"), found.position("PENDING"), found.position("RANKED")) == (last - 1, 1, 0)
    assert (found.of("bandwidth")[0].payload, found.of("facts")[0].payload) == (b'{"n": 1}', b"no JSON")
    times = [record.time for record in found.of("PENDING")]
    assert times == sorted(times)


async def test_the_begin_is_where_streams_are_that_hold_nothing_any_more(
    nats_bus_under_test: BusUnderTest, tmp_path: Path
):
    """A scorer's positions name them too."""
    session, reader = await nats_bus_under_test.session("one"), await nats_bus_under_test.session("reader")
    await session.publish(WEB.format("pending", 0), b"{}", message_id="0")
    await take(session, 1)
    while await session.last("PENDING", WEB.format("pending", 0)) is not None:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    async with recording(reader, tmp_path / "r"):
        pass
    found = read_recording(tmp_path / "r")
    assert (found.position("PENDING"), found.of("PENDING")) == (1, [])


async def test_a_lost_server_ends_it_and_what_was_recorded_is_whole(own_nats_server: NatsServer, tmp_path: Path):
    async with real_bus_under_test(own_nats_server.address) as bus:
        session, reader = await bus.session("one"), await bus.session("reader")
        await session.put("cluster", "node.n1", b'{"n": 1}')
        recorder, begun = recorder_of(reader, tmp_path / "r"), asyncio.Event()
        task = asyncio.create_task(recorder.run(on_begun=lambda _missing: begun.set()))
        await asyncio.wait_for(begun.wait(), SECONDS)
        own_nats_server.kill()
        with pytest.raises(BaseExceptionGroup) as caught:
            await asyncio.wait_for(task, SECONDS)
        recorder.end("it failed")
    assert isinstance(first_error(caught.value), BusLostError | BerthError)
    found = read_recording(tmp_path / "r")
    assert (subjects(found, "cluster"), found.is_cut) == (["node.n1"], False)


async def test_on_a_full_disk_it_ends_with_a_line_and_what_was_written_is_not_taken_for_the_whole(
    disk: SmallDisk, own_nats_server: NatsServer
):
    """The end is small: the file's last page has room for it, though for what was dropped before it had none."""
    path = disk.folder / "r"
    async with real_bus_under_test(own_nats_server.address) as bus:
        session = await bus.session("one")
        await session.put("cluster", "node.n1", b'{"n": 1}')
        arguments = ("record", "-o", str(path), "--nats", own_nats_server.address)
        running = asyncio.create_task(asyncio.to_thread(berth, *arguments))
        async with asyncio.timeout(SECONDS):
            while not is_recording(str(path)) or read_recording(path).begun is None:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        disk.fill()
        while not running.done():
            await session.put("facts", "f.n1", b'"%s"' % random.randbytes(8_000).hex().encode())
            await asyncio.sleep(0.05)
        done = await running
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == (
        f"berth: writing '{path}': No space left on device: what was written before can be replayed"
    )
    found = read_recording(path)
    assert (subjects(found, "cluster"), found.is_cut) == (["node.n1"], True)


async def test_on_a_disk_that_is_full_from_the_start_no_empty_file_is_left(
    disk: SmallDisk, own_nats_server: NatsServer
):
    async with real_bus_under_test(own_nats_server.address):
        disk.fill()
        path = disk.folder / "r"
        done = await asyncio.to_thread(berth, "record", "-o", str(path), "--nats", own_nats_server.address)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == f"berth: writing '{path}': No space left on device"
    assert not path.exists()


async def test_a_recording_goes_through_a_pipe(own_nats_server: NatsServer):
    """As from a container, whose disk goes with it: `berth record -o -`, then `berth replay -`."""
    async with real_bus_under_test(own_nats_server.address) as bus:
        session = await bus.session("one")
        await session.put("cluster", "node.n1", b'{"n": 1}')
        written = await asyncio.to_thread(berth, "record", "-o", "-", "--for", "1s", "--nats", own_nats_server.address)
    said = written.stderr.decode().splitlines()
    assert written.returncode == 0, said
    assert said[0].startswith("berth: cluster unknown")
    assert "no watcher leads" in said[1]
    assert said[2] == "berth: recording to standard output for 1.0 s"
    assert re.fullmatch(r"berth: recorded 1 messages in .* to standard output, .*: its time was over", said[-1])
    read = await asyncio.to_thread(berth, "replay", "-", "-o", "json", given=written.stdout)
    assert read.returncode == 1  # it has no ranking
    assert json.loads(read.stdout)["messages"] == {"cluster": 1}
    read = await asyncio.to_thread(berth, "replay", "-", given=b"kind: Pod\n")
    assert (read.returncode, read.stdout) == (2, b"")
    assert read.stderr == b"berth: standard input: want a recording of `berth record`, got something else\n"


def berth(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "berth_cli", *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=60, check=False, env=environment())


async def test_the_last_decision_on_a_pod_that_waits_is_recorded_however_old_it_is(
    nats_bus_under_test: BusUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """DECISIONS has an hour, of which a recording begins with two minutes."""
    monkeypatch.setattr(recorder, "DECISIONS_BEFORE", timedelta(0))
    session, reader = await nats_bus_under_test.session("one"), await nats_bus_under_test.session("reader")
    decision = Decision(
        attempt="u.1.1",
        profile="berth",
        epoch=1,
        outcome=Outcome.UNSCHEDULABLE,
        namespace="default",
        pod="web-0",
        uid="u",
    )
    stored = await session.publish(WEB.format("decision", 0), encode(decision))
    async with watcher_with(session, "web-0"), recording(reader, tmp_path / "r"):
        pass
    found = read_recording(tmp_path / "r")
    assert found.of("DECISIONS") == []
    (waiting,) = found.waiting
    assert [pod.name for pod in waiting.pods] == ["web-0"]
    assert [(one.sequence, one.payload) for one in waiting.decisions] == [(stored.sequence, encode(decision))]


async def test_who_waits_is_asked_once_more_before_it_ends(nats_bus_under_test: BusUnderTest, tmp_path: Path):
    session, reader = await nats_bus_under_test.session("one"), await nats_bus_under_test.session("reader")
    recorder = recorder_of(reader, tmp_path / "r")
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(recorder.run(on_begun=begun.set_result))
    assert "which pods wait is not recorded" in await asyncio.wait_for(begun, SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with watcher_with(session, "late"):
        await recorder.ask_again()
    recorder.end("it was stopped")
    (waiting,) = read_recording(tmp_path / "r").waiting
    assert [pod.name for pod in waiting.pods] == ["late"]


@asynccontextmanager
async def watcher_with(session: Session, *names: str) -> AsyncIterator[None]:
    """A watcher that leads, in whose queue these pods are."""
    now = datetime.now(UTC)
    known = {"namespace": "default", "uid": "u", "profile": "berth", "since": now}
    pods = [WaitingPod(name=name, queue="unschedulable", stage="unschedulable", **known) for name in names]
    await session.register(
        "berth-watcher",
        identity="one",
        version="1.0.0",
        stats=lambda: {"leading": {"number": 1, "seconds": 1.0}},
        endpoints=[Endpoint(name=QUEUE, answer=lambda _asked: QueueAnswer(now=now, pods=pods))],
    )
    yield


async def test_it_ends_by_itself_when_a_replay_would_not_read_more(
    nats_bus_under_test: BusUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RecordingWriter, "is_full", property(lambda writer: writer.messages >= 3))
    session, reader = await nats_bus_under_test.session("one"), await nats_bus_under_test.session("reader")
    async with recording(reader, tmp_path / "r") as task:
        for number in range(3):
            await session.put("cluster", f"node.n{number}", b'{"n": 1}')
        assert await asyncio.wait_for(task, SECONDS) == "the recording is as large as a replay reads"
    assert len(read_recording(tmp_path / "r").of("cluster")) == 3
