"""A pipeline in memory whose messages are recorded: scorers that read each stream at a pace of their own, a binder.

Time is a number. Everything that happens is chosen by a random generator, so that a seed is one history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from random import Random
from uuid import NAMESPACE_DNS, uuid5

import msgspec

from berth.api.pod import Pod
from berth.bus.interface import Entry, StoredMessage
from berth.cluster.buckets import LiveDataReader
from berth.framework.profile import Profile
from berth.messages.attempts import Decision, Outcome, Pending, Positions, Preemption, Ranked
from berth.messages.encoding import encode
from berth.messages.livedata import MeasuredUsage, NodeSample, encode_sample
from berth.messages.mirror import MirrorEntry, Watermark, encode_entry, encode_watermark, watermark_key
from berth.messages.subjects import Attempt, PodSubject, Term
from berth.profiles.configuration import read_configuration
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_cli.recording.configuration import recorded_configuration
from berth_cli.recording.file import Begun, Ended, Recorded, Recording, RecordingWriter, Source, header, recorded
from harness.builders.objects import a_container, a_node, a_pod
from harness.builders.profiles import default_profile

_READ: tuple[Source, ...] = ("cluster", "DECISIONS", "RANKED", "bandwidth")
START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = "0123456789ab"
PRIORITIES = (0, 0, 0, 100)


def a_recording(**members: object) -> Recording:
    """An empty recording with the default configuration."""
    head = header(at=START, bus_id="bus", config=CONFIG, release="1.36", configuration={})
    return Recording(header=head, begun=Begun(positions={}), is_cut=False, **members)


@dataclass(slots=True)
class Cursor:
    """How many messages of each source a scorer has read."""

    read: dict[Source, int] = field(default_factory=dict)

    def take(self, records: list[Recorded], source: Source, count: int) -> list[Recorded]:
        begin = self.read.get(source, 0)
        self.read[source] = begin + count
        return records[begin : begin + count]


class RecordedScorer:
    """A scorer that reads the recorded streams, and ranks."""

    def __init__(self, name: str, profiles: Mapping[str, Profile]) -> None:
        self.name = name
        self.view = View()
        self.cursor = Cursor()
        self.ranker = Ranker(profiles=profiles, config=CONFIG, identity=name, best=32, explained=8)
        self._live = LiveDataReader(self.view.snapshot.live, self.ranker.live_sources)

    def read(self, source: Source, records: list[Recorded], now: float) -> None:
        for record in records:
            if source == "cluster":
                entry = Entry(key=record.subject, sequence=record.sequence, data=record.payload, time=record.time)
                assert self.view.apply_mirror([entry], record.sequence) == []
            elif source == "bandwidth":
                self._live.apply(source, record.subject, record.payload, record.time)
                self.view.reached(source, record.sequence)
            elif source == "DECISIONS":
                assert self.view.apply_decisions([_stored(record)], record.sequence, now) == []
            elif msgspec.json.decode(record.payload or b"")["scorer"] == self.name:
                self.view.counted_ranked(record.sequence)
            else:
                assert not self.view.apply_ranked(record.payload or b"", record.sequence, now)


def _stored(record: Recorded) -> StoredMessage:
    return StoredMessage(subject=record.subject, sequence=record.sequence, data=record.payload or b"", time=record.time)


class RecordedWorld:
    """One history."""

    def __init__(
        self,
        seed: int,
        *,
        scorers: int = 2,
        nodes: int = 6,
        lag: float = 0.1,
        chosen_of: int = 2,
        profiles: Mapping[str, Profile] | None = None,
        ever_away: bool = True,
    ) -> None:
        """``chosen_of``: among how many candidates the binder chooses; ``ever_away``: whether it is away at times."""
        self.random = Random(seed)
        self.recording = a_recording()
        self.profiles = profiles or {"berth": default_profile()}
        self._nodes = nodes
        self.scorers = [RecordedScorer(f"scorer-{number}", self.profiles) for number in range(scorers)]
        self.seconds = 0.0
        self._lag = lag
        self._chosen_of = chosen_of
        self._away = 0.1 if ever_away else 0.0
        self._pods = 0
        self._pending: list[Recorded] = []
        self._ranked = 0
        self._to_mirror: list[tuple[Pod, str]] = []
        self._placed: dict[str, Pod] = {}
        for number in range(nodes):
            self.seconds = round(self.seconds + 0.001, 3)
            self.mirror(f"node.n{number}", a_node(f"n{number}", cpu=str(self.random.randint(2, 4))))

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def publish(self, source: Source, subject: str, data: bytes | None) -> Recorded:
        there = self.recording.messages.setdefault(source, [])
        record = recorded(source, len(there) + 1, self.now, subject, data)
        there.append(record)
        return record

    def mirror(self, key: str, thing: object | None) -> None:
        entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
        self.publish("cluster", key, None if thing is None else encode_entry(entry))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.seconds = round(self.seconds + self.random.choice((0.001, 0.004, 0.02, 1.0)), 3)
            self.read()
            self.sample()
            self.random.choice(
                (self.ask, self.ask, self.rank, self.rank, self.rank, self.decide, self.decide, self.show, self.end)
            )()

    def one_by_one(self, pod: Pod) -> None:
        """A pod is asked for, ranked on the newest state, decided and shown."""
        self.ask_for(pod, f"{pod.uid}.1.1")
        for happens in (self.rank, self.decide, self.show):
            self.seconds = round(self.seconds + 0.01, 3)
            self.read()
            happens()

    def write(self, path: Path) -> Path:
        """The recording as a file, of services with the default configuration."""
        document = recorded_configuration(read_configuration(None))
        writer = RecordingWriter.create(path, msgspec.structs.replace(self.recording.header, configuration=document))
        writer.add(Begun(positions={}))
        for record in (*self.recording.waiting, *chain.from_iterable(self.recording.messages.values())):
            writer.add(record)
        writer.add(Ended(messages=writer.messages, reason="its time was over"))
        writer.close()
        return path

    # --- what happens

    def ask(self) -> None:
        self._pods += 1
        name = f"web-{self._pods}"
        cpu = self.random.choice(("100m", "500m", "1", "2"))
        pod = a_pod(
            name,
            uid=str(uuid5(NAMESPACE_DNS, name)),
            priority=self.random.choice(PRIORITIES),
            containers=[a_container(cpu=cpu)],
        )
        self.ask_for(pod, f"{pod.uid}.1.1")

    def ask_for(self, pod: Pod, attempt: str) -> None:
        pending = Pending(config=CONFIG, attempt=attempt, profile="berth", pod=pod, after=Positions())
        self._pending.append(self.publish("PENDING", _subject("pending", pod), encode(pending)))

    def read(self) -> None:
        """Each scorer reads each stream, but for what is newer than its present lag."""
        for scorer in self.scorers:
            for source in self.random.sample(_READ, len(_READ)):
                there, since = self.recording.of(source), self.now - timedelta(seconds=self.random.random() * self._lag)
                begin = scorer.cursor.read.get(source, 0)
                count = sum(record.time <= since for record in there[begin:])
                scorer.read(source, scorer.cursor.take(there, source, count), self.seconds)
            scorer.view.expire(self.seconds)

    def rank(self) -> None:
        scorer = self.random.choice(self.scorers)
        if self._pending:
            asked = self._pending.pop(0)
            scorer.view.received(asked.sequence, asked.time)
            pending = msgspec.json.decode(asked.payload or b"", type=Pending)
            message = scorer.ranker.answer(pending, scorer.view, self.seconds)
            self.publish("RANKED", _subject("ranked", pending.pod), encode(message))

    def sample(self) -> None:
        """Now and then a node's traffic is measured, if a plugin reads it."""
        for source in self.scorers[0].ranker.live_sources if self.random.random() < 0.3 else ():
            node = f"n{self.random.randrange(self._nodes)}"
            measured_at = self.now - timedelta(seconds=self.random.random() * 100)
            used = MeasuredUsage(average=self.random.random() * 4000, deviation=self.random.random() * 100)
            traffic = {"receive": self.random.random() * 1e8, "transmit": 0.0, "capacity": 1e9}
            sample = NodeSample(**traffic, cpu=used, sampled_at=measured_at)
            self.publish("bandwidth", f"{source.name}.{node}", encode_sample(sample))

    def decide(self) -> None:
        ranked = self.recording.of("RANKED")
        if self._ranked == len(ranked):
            return
        message = msgspec.json.decode(ranked[self._ranked].payload or b"", type=Ranked)
        self._ranked += 1
        if self.random.random() < self._away:  # the binder is away: proposals expire
            return
        if message.candidates:
            self.bound_to(message, self.random.choice(message.candidates[: self._chosen_of]).node)
        elif message.preemption is not None:
            self._decided(message, Outcome.PREEMPTING, node=message.preemption.node, preemption=message.preemption)
            for victim in message.preemption.victims:
                if victim.uid in self._placed:
                    self._remove(victim.uid)
            self._again(message)
        else:
            self._decided(message, Outcome.CONFLICT if message.proposals_counted else Outcome.UNSCHEDULABLE)
            self._again(message)

    def bound_to(self, message: Ranked, node: str) -> None:
        self._decided(message, Outcome.BOUND, node=node)
        self._to_mirror.append((message.pod, node))

    def bind(self, pod: Pod, node: str) -> None:
        """A pod that was asked for is decided to be on this node, as if a scorer had named it."""
        self._decided(
            Ranked(config=CONFIG, attempt=f"{pod.uid}.1.1", profile="berth", pod=pod), Outcome.BOUND, node=node
        )

    def show(self) -> None:
        """The mirror shows the next bound pod, or that it is complete."""
        if not self._to_mirror:
            watermark = encode_watermark(Watermark(term=Term(1), resource_version="1"))
            self.publish("cluster", watermark_key("pod"), watermark)
            return
        pod, node = self._to_mirror.pop(0)
        placed = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
        self._placed[pod.uid] = placed
        self.mirror(f"pod.{pod.uid}", placed)

    def end(self) -> None:
        """A pod ends."""
        if self._placed:
            self._remove(self.random.choice(list(self._placed)))

    def _remove(self, uid: str) -> None:
        del self._placed[uid]
        self.mirror(f"pod.{uid}", None)

    def _again(self, message: Ranked) -> None:
        attempt = Attempt.parse(message.attempt)
        if attempt.n < 3:
            self.ask_for(message.pod, f"{attempt.uid}.1.{attempt.n + 1}")

    def _decided(
        self, message: Ranked, outcome: Outcome, *, node: str = "", preemption: Preemption | None = None
    ) -> None:
        metadata = message.pod.metadata
        decision = Decision(
            config=CONFIG,
            attempt=message.attempt,
            profile="berth",
            epoch=1,
            outcome=outcome,
            namespace=metadata.namespace,
            pod=metadata.name,
            uid=metadata.uid,
            node=node,
            preemption=preemption,
            message=message.message,
            devices=message.devices if outcome is Outcome.BOUND else {},
        )
        self.publish("DECISIONS", _subject("decision", message.pod), encode(decision))


def _subject(stage: str, pod: Pod) -> str:
    metadata = pod.metadata
    return str(PodSubject(stage=stage, profile="berth", namespace=metadata.namespace, pod=metadata.name))
