"""Records a bus: stored messages, then every change, until stopped.

It needs no rights but Direct Get and the copies that streams republish, also of PENDING and RANKED, so short-lived
messages are recorded too.

Waiting pods are on no stream: the recorder asks the watcher, one page at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import Final

from berth.bus.interface import BucketReader, BusLostError, Entry, OrderedReader, Session, StoredMessage, StreamReader
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, FACTS, PENDING, RANKED
from berth.errors import BerthError, DecodeError
from berth.messages.attempts import DecisionSummary
from berth.messages.encoding import decode
from berth.messages.queue import QueueAnswer, WaitingPod
from berth.messages.subjects import PodSubject
from berth_cli.recording.file import (
    Begun,
    Change,
    Recorded,
    RecordingWriteError,
    RecordingWriter,
    Source,
    Waiting,
    recorded,
    unchanged,
)

FLUSH: Final = timedelta(seconds=1)  # between two writes; a killed recorder loses that much
# Age of the oldest Decisions at the begin. A scorer that starts reads as many.
DECISIONS_BEFORE: Final = timedelta(minutes=2)
MOST_PODS: Final = 50_000  # of one list: 500 pages, less than a second of the watcher's CPU
MOST_DECISION_BYTES: Final = 32 << 20  # of the Decisions of one list; beyond it pods have their reasons only
LONGEST: Final = timedelta(seconds=20)  # for one list
LONGEST_AT_THE_END: Final = timedelta(seconds=5)  # the same at the end of the recorder, when somebody waits
ASK_AGAIN: Final = timedelta(milliseconds=500)  # until the watcher is asked again

_STREAMS: Final[tuple[Source, ...]] = (PENDING, RANKED, DECISIONS)
_BUCKETS: Final[tuple[Source, ...]] = (CLUSTER, BANDWIDTH, FACTS)

OnBegun = Callable[[str], None]  # called with the reason if waiting pods are unknown, or ""
OnRecords = Callable[[list[Recorded]], None]
# The pages of the leading watcher's queue. Raises a BerthError without an answer.
AskQueue = Callable[[Session], AsyncGenerator[QueueAnswer, None]]
OnWaiting = Callable[[Waiting], None]


class BusReading:
    """Reads a bus. ``received`` gets stored messages, then changes, in batches."""

    def __init__(self, session: Session, received: OnRecords) -> None:
        self._session = session
        self._received = received
        self._readers: dict[Source, OrderedReader] = {}

    @property
    def begun(self) -> Begun:
        return Begun(positions={name: each.position for name, each in self._readers.items()})

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow changes inside the block; before it, every stored message has arrived.

        The queues come first, so that a moving message is met in the next stream and not missed.

        Raises:
            BusLostError: the connection is lost.
        """
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for source in _STREAMS:
                since = DECISIONS_BEFORE if source == DECISIONS else None
                stream = await stack.enter_async_context(self._session.read_stream(source, since=since))
                self._readers[source] = stream
                stack.callback(tasks.create_task(self._follow_stream(source, stream), name=source).cancel)
                await stream.caught_up.wait()
            for source in _BUCKETS:
                bucket = await stack.enter_async_context(self._session.read_bucket(source))
                self._readers[source] = bucket
                stack.callback(tasks.create_task(self._follow_bucket(source, bucket), name=source).cancel)
                await bucket.caught_up.wait()
            yield

    async def _follow_stream(self, source: Source, reader: StreamReader) -> None:
        async for batch in reader.batches():
            self._received([_of_stream(source, message) for message in batch])

    async def _follow_bucket(self, source: Source, reader: BucketReader) -> None:
        async for batch in reader.batches():
            self._received([_of_bucket(source, entry) for entry in batch])


class Recorder:
    """Writes the messages of a session, and waiting pods at the begin and end.

    ``ask``: asks the watcher. ``change``: replaces each record.
    """

    def __init__(self, session: Session, writer: RecordingWriter, ask: AskQueue, change: Change = unchanged) -> None:
        self._session = session
        self._ask = ask
        self._reading = BusReading(session, self._add)
        self._change = change
        self._writer = writer
        self.has_begun = asyncio.Event()  # set once every stored message is written

    @property
    def positions(self) -> dict[Source, int]:
        return self._reading.begun.positions

    async def run(self, *, on_begun: OnBegun) -> str:
        """Record until cancelled, or until a replay would read no more; returns why it ended.

        ``on_begun`` is called once every stored message has been read and written, and the waiting pods are known.

        Raises:
            BusLostError: the connection is lost. Earlier records are written.
            RecordingWriteError: it cannot be written.
        """
        async with self._reading.following(), asyncio.TaskGroup() as tasks:
            self._writer.add(self._reading.begun)
            self._writer.flush()
            self.has_begun.set()
            asking = tasks.create_task(self._who_waits(on_begun), name="who waits")
            while not self._writer.is_full:
                await asyncio.sleep(FLUSH.total_seconds())
                self._writer.flush()
            asking.cancel()
        return "the recording is as large as a replay reads"

    async def ask_again(self) -> None:
        # At the end too: a pod that came and was not tried has no message.
        with suppress(BusLostError):
            if not self._writer.is_full:
                await ask_who_waits(self._session, self._ask, self._waits, longest=LONGEST_AT_THE_END)

    def end(self, reason: str) -> None:
        """Write the end, which marks a whole recording.

        Raises:
            RecordingWriteError: this or an earlier write failed. Then it has no end.
        """
        try:
            self._writer.end(reason, self.positions)
        except RecordingWriteError as exc:
            if not self._writer.written:
                raise
            raise RecordingWriteError(f"{exc}: what was written before can be replayed") from exc

    async def _who_waits(self, on_begun: OnBegun) -> None:
        missing = await ask_who_waits(self._session, self._ask, self._waits)
        if missing:  # A busy watcher may be late once.
            await asyncio.sleep(ASK_AGAIN.total_seconds())
            missing = await ask_who_waits(self._session, self._ask, self._waits)
        self._writer.flush()
        on_begun(missing)

    def _waits(self, waiting: Waiting) -> None:
        self._writer.add(self._change(waiting))

    def _add(self, records: list[Recorded]) -> None:
        for record in records:
            self._writer.add(self._change(record))
            if self._writer.has_frame:
                self._writer.write_frames()


# --- waiting pods


async def ask_who_waits(
    session: Session, ask: AskQueue, received: OnWaiting, *, longest: timedelta | None = None
) -> str:
    """Pass on waiting pods, page by page; returns why they are unknown, or "".

    Raises:
        BusLostError: the connection is lost.
    """
    try:
        async with aclosing(_lists(session, ask, longest or LONGEST)) as lists:
            async for waiting in lists:
                waiting.check()
                received(waiting)
    except BusLostError:
        raise
    except BerthError as error:
        return f"which pods wait is not recorded: {error}"
    return ""


async def _lists(session: Session, ask: AskQueue, longest: timedelta) -> AsyncGenerator[Waiting, None]:
    """Each page with the last Decisions on its pods; the last page counts the missing pods."""
    until, count, queued, room = monotonic() + longest.total_seconds(), 0, 0, MOST_DECISION_BYTES
    async with aclosing(ask(session)) as pages:
        async for page in pages:
            if page.now is None:
                raise DecodeError("decoding an answer about the queue: want the time of it, got none")
            count += len(page.pods)
            queued += sum(pod.queue in page.queues and pod.members is None for pod in page.pods)
            decisions: list[Recorded] = []
            if room > 0:
                decisions = [each async for each in _last_decisions(session, page.pods)]
                room -= sum(len(each.data) + len(each.base64 or "") for each in decisions)
            ends = page.next is None or count >= MOST_PODS or monotonic() > until
            more = max(0, sum(page.queues.values()) - queued) if ends and page.next is not None else 0
            yield Waiting(at=page.now, pods=page.pods, decisions=decisions, draining=page.draining, more=more)
            if ends:
                return


async def _last_decisions(session: Session, pods: list[WaitingPod]) -> AsyncIterator[Recorded]:
    # A Decision on an earlier pod of the same name is left out.
    uids = {
        str(PodSubject(stage="decision", profile=pod.profile, namespace=pod.namespace, pod=pod.name)): pod.uid
        for pod in pods
    }
    async for stored in session.last_of_each(DECISIONS, list(uids)):
        try:
            uid = decode(stored.data, DecisionSummary).uid
        except DecodeError:
            continue
        if uid == uids.get(stored.subject):
            yield recorded(DECISIONS, stored.sequence, stored.time, stored.subject, stored.data)


# --- records


def _of_stream(source: Source, message: StoredMessage) -> Recorded:
    return recorded(source, message.sequence, message.time, message.subject, message.data)


def _of_bucket(source: Source, entry: Entry) -> Recorded:
    return recorded(source, entry.sequence, entry.time, entry.key, entry.data)
