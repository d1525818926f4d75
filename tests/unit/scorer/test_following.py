"""A view misses no ranking that is published while it is built."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import msgspec

from berth.bus.stages import publish_ranked
from berth.cluster.buckets import LiveDataReader
from berth.cluster.snapshot import Snapshot
from berth.lifecycle.sessions import UndecodableReporter
from berth.messages.attempts import Ranked
from berth_scorer.events import PeerRankingRead
from berth_scorer.following import follow
from harness.builders.objects import a_pod
from harness.fakes.recording_meter import RecordingMeter


class Seen:
    """Which rankings were read at the start, and which were published since."""

    def __init__(self) -> None:
        self.found_at_the_start: list[str] = []
        self.published_since: list[str] = []

    def put(self, event):
        if isinstance(event, PeerRankingRead):
            self.found_at_the_start.append(pod_of(event.stored))

    def on_ranked(self, stored):
        self.published_since.append(pod_of(stored))


def pod_of(stored) -> str:
    return msgspec.json.decode(stored.data)["pod"]["metadata"]["name"]


async def publish(session, name: str) -> None:
    pod = a_pod(name)
    await publish_ranked(session, Ranked(attempt=f"{pod.uid}.1.1", profile="berth", pod=pod, message="none"))


async def follow_and_publish(session, seen: Seen) -> None:
    """Until it is cancelled; something is published once the view is there."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        await follow(
            session,
            seen.put,
            seen.on_ranked,
            LiveDataReader(Snapshot().live, frozenset()),
            lifetime=timedelta(seconds=30),
            undecodable=UndecodableReporter(RecordingMeter()),
            stack=stack,
            tasks=tasks,
        )
        await publish(session, "afterwards")


async def test_a_ranking_that_is_published_after_the_scan_is_not_missed(session, monkeypatch):
    scan, seen = session.scan, Seen()

    async def scan_and_publish(*args):
        async for stored in scan(*args):
            yield stored
        await publish(session, "meanwhile")

    await publish(session, "before")
    monkeypatch.setattr(session, "scan", scan_and_publish)
    following = asyncio.create_task(follow_and_publish(session, seen))
    async with asyncio.timeout(5):
        while "afterwards" not in seen.published_since:  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert seen.found_at_the_start == ["before"]
    assert seen.published_since == ["meanwhile", "afterwards"]
