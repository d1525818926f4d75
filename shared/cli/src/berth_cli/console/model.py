"""The state of the page, and its frames: the whole state once, then changes.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from berth.bus.interface import ServiceInstance, StoredMessage, StreamState
from berth.settings.settings import process_label, short_identity
from berth_cli.console.decisionlog import (
    NAME_CHARACTERS,
    DeadKept,
    DeadLetters,
    DeadLine,
    DecisionFigures,
    DecisionLine,
    DecisionLog,
)
from berth_cli.console.nodetable import NodeChanges, NodeFacts, NodeRequests, NodeTable, TrafficSample, UsageSample
from berth_cli.console.shadowlog import DifferenceLine, ShadowLine, ShadowLog
from berth_cli.mirror import MirrorReader
from berth_cli.rendering import duration, is_current
from berth_cli.services import (
    READY,
    Gone,
    Seen,
    activity,
    attention,
    figures,
    gone,
    is_draining,
    is_slow,
    leader,
    oldest_age,
    seen,
)

MOST_SENTENCES: Final = 50  # per frame
MOST_PROCESSES: Final = 200  # per frame, and consumers of a stream
SENTENCE_CHARACTERS: Final = 600
LONGER_REFRESH_SECONDS: Final = 5.0  # between two refreshes of the counts of 15 minutes and an hour


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True):
    """A process on the page. ``silent``: it ended without an announcement. ``figures``: what else it says, as text."""

    name: str
    service: str
    state: str
    leads: bool = False
    ready: bool = True
    silent: bool = False
    version: str = ""
    configuration: str = ""
    figures: str = ""


class ConsumerLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    undelivered: int
    unacknowledged: int
    redelivered: int


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """A stream on the page; ``oldest`` is the age of its oldest message in seconds."""

    name: str
    messages: int
    bytes: int
    oldest: float | None
    is_slow: bool
    consumers: list[ConsumerLine]


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The leading watcher's queues and windows, the processes, the streams, and problems for a person."""

    queues: dict[str, int]
    in_flight: dict[str, int]
    window: dict[str, int]
    draining: bool
    attention: list[str]
    processes: list[ProcessLine]
    streams: list[StreamLine]


class BusState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the bus is read, or the reason. ``since``: Unix seconds of this machine's clock.

    ``source``: cluster and NATS that were read last, as text.
    """

    connected: bool
    reason: str = ""
    since: float = 0.0
    source: str = ""


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole state (``whole``), or the changes since the previous frame.

    ``now`` is NATS's clock in Unix seconds. ``labels`` are texts numbered from ``labels_from``. ``left_out`` counts
    Decisions too many to send. ``longer``: the figures of longer times. ``None`` means unchanged.
    """

    whole: bool = False
    now: float = 0.0
    bus: BusState | None = None
    labels_from: int = 0
    labels: list[str] = []
    nodes: list[NodeFacts] = []
    loads: list[NodeRequests] = []
    traffic: list[TrafficSample] = []
    usage: list[UsageSample] = []
    gone: list[int] = []
    decisions: list[DecisionLine] = []
    left_out: int = 0
    dead: list[DeadLine] = []
    dead_kept: DeadKept | None = None
    figures: DecisionFigures | None = None
    longer: list[DecisionFigures] | None = None
    services: Services | None = None
    shadows: list[ShadowLine] | None = None
    differences: list[DifferenceLine] = []
    mirror_age: float | None = None
    mirror_is_current: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether only the time changed."""
        return msgspec.structs.replace(self, now=0.0) == _EMPTY


_EMPTY: Final = Frame()


class ConsoleModel:
    """The state of the page. While the bus is unreachable it stays, marked as such."""

    def __init__(self) -> None:
        self.bus = BusState(connected=False, reason="connecting to NATS")
        self._mirror = MirrorReader()
        self._nodes = NodeTable(self._mirror)
        self._decisions = DecisionLog()
        self._dead = DeadLetters()
        self.shadows = ShadowLog()
        self._services: Services | None = None
        self._figures: DecisionFigures | None = None
        self._longer: list[DecisionFigures] | None = None
        self._longer_at = 0.0
        self._sent_services: Services | None = None
        self._sent_bus: BusState | None = None

    @property
    def mirror(self) -> MirrorReader:
        return self._mirror

    @property
    def unreadable(self) -> int:
        return self._decisions.unreadable + self._mirror.unreadable + self.shadows.unreadable

    def connected(self, mirror: MirrorReader, *, source: str, at: float, lacks_older: bool = False) -> None:
        """The bus is read again: replace everything, because the store may be a new one.

        ``lacks_older``: NATS keeps older Decisions than those that will be read.
        """
        self.bus = BusState(connected=True, since=at, source=source)
        self._mirror = mirror
        self._nodes = NodeTable(mirror)
        self._nodes.changes(with_samples=True)
        self._decisions = DecisionLog(lacks_older=lacks_older)
        self._dead = DeadLetters()
        self._figures, self._longer, self._longer_at = None, None, 0.0

    def named(self, source: str) -> None:
        """Cluster and NATS have another text while the bus is read."""
        self.bus = msgspec.structs.replace(self.bus, source=source)

    def disconnected(self, reason: str, *, at: float) -> None:
        """The bus is unreachable. Repeated calls keep the time of the first."""
        since = self.bus.since if not self.bus.connected and self.bus.since else at
        reason = reason[:SENTENCE_CHARACTERS]
        self.bus = BusState(connected=False, reason=reason, since=since, source=self.bus.source)

    def decided(self, batch: Sequence[StoredMessage]) -> None:
        for stored in batch:
            self._decisions.add(stored)

    def dead_lettered(self, batch: Sequence[StoredMessage]) -> None:
        for stored in batch:
            self._dead.add(stored)

    def counted_dead(self, state: StreamState) -> None:
        self._dead.looked_at(state)

    def services_answered(self, instances: Sequence[ServiceInstance], streams: Sequence[StreamState] = ()) -> None:
        processes = seen(instances)
        self.shadows.seen(processes)
        watcher = leader(processes, "watcher")
        statistics = watcher.statistics if watcher is not None else None
        lines = [
            *(_process_line(one, instance) for one, instance in zip(processes, instances, strict=True)),
            *(_silent_line(one) for one in gone(processes)),
        ]
        self._services = Services(
            queues=dict(statistics.queues) if statistics else {},
            in_flight=dict(statistics.in_flight) if statistics else {},
            window=dict(statistics.window) if statistics else {},
            draining=is_draining(processes),
            attention=[text[:SENTENCE_CHARACTERS] for text in attention(processes)[:MOST_SENTENCES]],
            processes=lines[:MOST_PROCESSES],
            streams=[_stream_line(state) for state in streams],
        )

    def changes(self, *, now: float, every_second: bool) -> Frame:
        """Changes since the last call. ``every_second``: include samples and, while the bus is read, figures."""
        lines, left_out = self._decisions.new_lines(self._created)
        counts = every_second and self.bus.connected  # While the bus is unreachable no figures are known.
        longer = None
        if counts:
            self._figures = self._decisions.figures(now)
            if abs(now - self._longer_at) >= LONGER_REFRESH_SECONDS:
                self._longer_at = now
                longer = self._longer = self._decisions.longer(now)
        services = self._services if self._services != self._sent_services else None
        bus = self.bus if self.bus != self._sent_bus else None
        self._sent_services, self._sent_bus = self._services, self.bus
        return self._frame(
            self._nodes.changes(with_samples=every_second),
            now=now,
            bus=bus,
            decisions=lines,
            left_out=left_out,
            dead=self._dead.new_lines(),
            dead_kept=self._dead.changed_kept(),
            figures=self._figures if counts else None,
            longer=longer,
            services=services,
            shadows=self.shadows.changed_shadows(),
            differences=self.shadows.new_lines(),
        )

    def settle(self, *, now: float) -> None:
        """Include everything read so far in the next :meth:`whole`, not again in the frames after it."""
        for _ in range(2):  # Decisions are held for one call.
            self.changes(now=now, every_second=True)

    def whole(self, *, now: float) -> Frame:
        """The whole state as of the last :meth:`changes`; later frames continue from it."""
        frame = self._frame(
            self._nodes.whole(),
            now=now,
            bus=self.bus,
            decisions=self._decisions.lines(),
            left_out=0,
            dead=self._dead.lines(),
            dead_kept=self._dead.kept,
            figures=self._figures,
            longer=self._longer,
            services=self._services,
            shadows=self.shadows.shadows(),
            differences=self.shadows.lines(),
        )
        return msgspec.structs.replace(frame, whole=True)

    def _frame(  # noqa: PLR0913 - the fields of a frame
        self,
        nodes: NodeChanges,
        *,
        now: float,
        bus: BusState | None,
        decisions: list[DecisionLine],
        left_out: int,
        dead: list[DeadLine],
        dead_kept: DeadKept | None,
        figures: DecisionFigures | None,
        longer: list[DecisionFigures] | None,
        services: Services | None,
        shadows: list[ShadowLine] | None,
        differences: list[DifferenceLine],
    ) -> Frame:
        age = self._mirror_age(now) if figures is not None else None
        return Frame(
            now=now,
            bus=bus,
            labels_from=nodes.labels_from,
            labels=nodes.labels,
            nodes=nodes.facts,
            loads=nodes.loads,
            traffic=nodes.traffic,
            usage=nodes.usage,
            gone=nodes.gone,
            decisions=decisions,
            left_out=left_out,
            dead=dead,
            dead_kept=dead_kept,
            figures=figures,
            longer=longer,
            services=services,
            shadows=shadows,
            differences=differences,
            mirror_age=age,
            mirror_is_current=age is None or is_current(age),
        )

    def _created(self, uid: str) -> str | None:
        placed = self._mirror.snapshot.placed(uid)
        return None if placed is None else placed.pod.metadata.creation_timestamp

    def _mirror_age(self, now: float) -> float | None:
        complete = self._mirror.oldest_watermark()
        return None if complete is None else max(0.0, now - complete.timestamp())


def _process_line(one: Seen, instance: ServiceInstance) -> ProcessLine:
    return ProcessLine(
        name=process_label(one.service, one.name)[:NAME_CHARACTERS],
        service=one.service[:NAME_CHARACTERS],
        state=activity(one)[:SENTENCE_CHARACTERS],
        leads=one.statistics.leading is not None,
        ready=one.statistics.readiness == READY,
        version=instance.version[:NAME_CHARACTERS],
        configuration=one.statistics.configuration[:NAME_CHARACTERS],
        figures=figures(instance.stats)[:SENTENCE_CHARACTERS],
    )


def _silent_line(one: Gone) -> ProcessLine:
    name, state = process_label(one.service, short_identity(one.identity)), f"silent for {duration(one.seconds)}"
    who, service = name[:NAME_CHARACTERS], one.service[:NAME_CHARACTERS]
    return ProcessLine(name=who, service=service, state=state, ready=False, silent=True)


def _stream_line(state: StreamState) -> StreamLine:
    return StreamLine(
        name=state.stream,
        messages=state.messages,
        bytes=state.bytes,
        oldest=oldest_age(state),
        is_slow=is_slow(state),
        consumers=[
            ConsumerLine(
                name=each.name,
                undelivered=each.undelivered,
                unacknowledged=each.unacknowledged,
                redelivered=each.redelivered,
            )
            for each in state.consumers[:MOST_PROCESSES]
        ],
    )
