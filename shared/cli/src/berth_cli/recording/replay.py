"""Repeats every ranking of a recording from the data that its scorer had read, and compares.

Each scorer has a view again (:class:`berth.ranking.view.View`). Before a ranking, it reads the mirror, Decisions and
live data up to the message's ``positions``, and its peers' rankings up to ``received``. Then the scorer's own code runs
(:class:`berth.ranking.ranker.Ranker`). Afterwards the recorded ranking counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import merge
from typing import Final

import msgspec
import numpy as np

from berth.bus.interface import Entry, StoredMessage
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, FACTS, PENDING, RANKED
from berth.cluster.buckets import LiveDataReader
from berth.cluster.columns import hash_of
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.framework.extending import is_interested
from berth.framework.profile import Profile
from berth.framework.scoring import unseeded_hashes
from berth.groups.planner import at_once
from berth.messages.attempts import DecisionSummary, Outcome, Positions, Ranked, attempt_of
from berth.messages.encoding import UnknownSchemaError, decode
from berth.messages.groupattempts import GROUP_SCHEMA, GroupRanked, decode_group
from berth.messages.livedata import LiveSource
from berth.messages.subjects import Attempt, parse_key
from berth.ranking.groupranker import GroupRanker
from berth.ranking.proposals import LIFETIME
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_cli.recording.differences import differences, plan_differences
from berth_cli.recording.file import Recorded, Recording, Source

_NOT_READ: Final = Positions(cluster=2**53)  # positions that no view reaches
# How far a scorer's expiry of a proposal may be off, by NATS's times: it looks once a second.
_TOLERANCE: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRanking:
    """A RANKED message, its sequence in the stream, and the time at which NATS stored it."""

    message: Ranked | GroupRanked
    sequence: int
    at: datetime

    @property
    def name(self) -> str:
        """The namespace and name of the pod, or of the group."""
        return str(self.message.group.key) if isinstance(self.message, GroupRanked) else self.message.pod.key

    @property
    def was_ranked(self) -> bool:
        """Whether a cycle ranked the pod; without one the answer is an error without nodes."""
        if isinstance(self.message, GroupRanked):
            return not self.message.plan.error or self.message.plan.steps > 0
        return not self.message.error or self.message.nodes is not None or self.message.evaluated > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """``differences`` are sentences; empty if it is equal.

    ``left_out`` is why it was not repeated; then ``again`` is ``None``.
    """

    ranking: RecordedRanking
    again: Ranked | GroupRanked | None = None
    differences: tuple[str, ...] = ()
    left_out: str = ""


@dataclass(slots=True, kw_only=True)
class ReplayCounts:
    """Equal rankings by scorer, left out ones by reason."""

    equal: Counter[str] = field(default_factory=Counter)
    different: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, one: Replayed) -> None:
        if one.left_out:
            self.left_out[one.left_out] += 1
        elif one.differences:
            self.different += 1
        else:
            self.equal[one.ranking.message.scorer] += 1


class Replay:
    """A recording and the profiles of its configuration; the scorers' ``numbers.best`` and ``numbers.proposal``."""

    def __init__(
        self, recording: Recording, profiles: Mapping[str, Profile], *, best: int, lifetime: timedelta = LIFETIME
    ) -> None:
        self.rankings: list[RecordedRanking] = []  # every decodable RANKED, in stream order
        self.unreadable = 0  # number of the others
        self._header = recording.header
        self._profiles = profiles
        self._lifetime = lifetime
        self._ranker = Ranker(profiles=profiles, config=recording.header.config, identity="", best=best, explained=256)
        self._group_ranker = GroupRanker(
            profiles=profiles, config=recording.header.config, identity="", clock=lambda: 0.0
        )
        self._views: dict[str, ScorersView] = {}
        # Plans of groups by the ranking of the same scorer after which they began, and those that were made then.
        self._begun: dict[tuple[str, str], list[RecordedRanking]] = {}
        self._made: dict[int, Replayed] = {}
        # By scorer, the numbers of nodes that it named when more were feasible.
        self._named: dict[str, set[int]] = {}
        self._gaps = RecordingGaps(recording, 2 * lifetime)
        self._read(recording.of(RANKED))
        self._sources = RecordedSources(recording, self.rankings)

    def run(self) -> Iterator[Replayed]:
        for ranking in self.rankings:
            yield self.make_again(ranking)

    def make_again(self, ranking: RecordedRanking) -> Replayed:
        """Repeat the next ranking of its scorer; afterwards it counts in that scorer's view."""
        message = ranking.message
        scorer = self.view_of(message.scorer)
        self._make_begun_after(message.scorer, "", scorer)
        made = self._made.pop(ranking.sequence, None) or self._make(ranking, scorer)
        scorer.count(ranking)
        self._make_begun_after(message.scorer, message.attempt, scorer)
        return made

    def _make_begun_after(self, scorer: str, attempt: str, view: ScorersView) -> None:
        """While a plan was made, its scorer went on: it saw the cluster as it was at its begin."""
        for planned in self._begun.pop((scorer, attempt), ()):
            self._made[planned.sequence] = self._make(planned, view)

    def _make(self, ranking: RecordedRanking, scorer: ScorersView) -> Replayed:
        scorer.advance(ranking)
        if left_out := self._why_left_out(ranking):
            return Replayed(ranking=ranking, left_out=left_out)
        message, masked = ranking.message, self._header.anonymised
        if isinstance(message, GroupRanked):
            planned = self._plan(message, scorer.view)
            for member in message.bundle.members:  # the plan counts from its end on
                scorer.view.proposals.withdraw(member.uid)
            found = tuple(plan_differences(message, planned, masked=masked))
            return Replayed(ranking=ranking, again=planned, differences=found)
        again = self._rank(message, scorer.view)
        return Replayed(ranking=ranking, again=again, differences=tuple(differences(message, again, masked=masked)))

    def view_of(self, scorer: str) -> ScorersView:
        """The view of a scorer at its last repeated ranking."""
        if scorer not in self._views:
            self._views[scorer] = ScorersView(self._sources, scorer, self._ranker.live_sources, self._lifetime)
        return self._views[scorer]

    def _read(self, records: Sequence[Recorded]) -> None:
        for record in records:
            try:
                message = _ranking_in(record)
            except DecodeError:
                self.unreadable += 1
                continue
            ranking = RecordedRanking(message=message, sequence=record.sequence, at=record.time)
            self.rankings.append(ranking)
            if isinstance(message, GroupRanked):
                self._begun.setdefault((message.scorer, message.begun_after), []).append(ranking)
            elif message.feasible > len(message.candidates) > 0:
                self._named.setdefault(message.scorer, set()).add(len(message.candidates))

    def _rank(self, message: Ranked, view: View) -> Ranked:
        # A rejection on a view that was behind stays marked as such.
        pending = message.pending(after=_NOT_READ if message.behind else Positions())
        profile = self._profiles[message.profile]
        ranker = replace(self._ranker, identity=message.scorer)
        ranker = replace(ranker, named=self._most_named(message, ranker.nodes_named(view, profile)))
        with recorded_ties(message, view.snapshot) if self._header.anonymised else nullcontext():
            return ranker.answer(pending, view, 0.0)

    def _plan(self, message: GroupRanked, view: View) -> GroupRanked:
        pending = message.pending(after=_NOT_READ if message.behind else Positions())
        return at_once(self._group_ranker.answer(pending, view))

    def _most_named(self, message: Ranked, own: int) -> int:
        """How many nodes the scorer named at that time, as far as the recording shows; ``own``: by this version."""
        named = len(message.candidates)
        if message.feasible > named > 0:
            return named
        return min((most for most in self._named.get(message.scorer, ()) if most >= named), default=max(named, own))

    def _why_left_out(self, ranking: RecordedRanking) -> str:
        message = ranking.message
        if not message.received.pending:
            return "ranked by a version that does not report the positions of its view"
        if not ranking.was_ranked:
            return "not ranked: it failed before"
        profile = self._profiles.get(message.profile)
        if message.config != self._header.config or profile is None:
            return f"ranked under another configuration ({message.config:.12})"
        return self._why_not_recorded(message, profile) or self._gaps.why_unknown(ranking)

    def _why_not_recorded(self, message: Ranked | GroupRanked, profile: Profile) -> str:
        """A dependency of the ranking that recordings never contain, or ""."""
        pods = message.bundle.pods() if isinstance(message, GroupRanked) else [message.pod]
        if any(extender.is_asked and is_interested(extender, pod) for extender in profile.extenders for pod in pods):
            return "extenders were asked, whose answers are not on the bus"
        if self._header.anonymised and any(source.bucket == FACTS for source in profile.live_sources):
            return "facts, of any shape, are not in an anonymised recording"
        if isinstance(message, GroupRanked):
            return ""
        if message.evaluated < (message.nodes or 0) and not message.nominated_first:
            return "percentageOfNodesToScore: which nodes were searched depends on the scorer's earlier pods"
        return ""


class RecordingGaps:
    """Parts of a scorer's input from before the recording or after it."""

    def __init__(self, recording: Recording, uncertain: timedelta) -> None:
        self._begun = recording.begun
        self._uncertain = uncertain  # time after which a proposal of an unknown ranking counts nowhere any more
        self._ends = {
            source: max(recording.position(source), recording.of(source)[-1].sequence if recording.of(source) else 0)
            for source in POSITIONED
        }
        self._begins = {source: recording.position(source) for source in (CLUSTER, BANDWIDTH, FACTS)}
        self._unknown = dict(_proposed_before(recording))
        self._missed = list(_missed(recording))
        self._ranked_at = {record.sequence: record.time for record in recording.of(RANKED)}

    def why_unknown(self, ranking: RecordedRanking) -> str:
        positions = ranking.message.positions
        if self._begun is None:
            return "the recorder was ended before it had read the cluster"
        if any(0 < getattr(positions, source) < self._begins[source] for source in self._begins):
            return _BEFORE
        if any(getattr(positions, name) > self._ends[source] for source, name in POSITIONED.items()):
            return "ranked on what was not recorded any more"
        if who := self._who_missed(ranking):
            return f"ranked soon after rankings that the {who} missed"
        for uid, (mirrored, since) in list(self._unknown.items()):
            if ranking.at - since > self._uncertain:
                del self._unknown[uid]
            elif positions.cluster < mirrored:
                return _BEFORE
        return ""

    def _who_missed(self, ranking: RecordedRanking) -> str:
        if any(timedelta(0) <= ranking.at - at <= self._uncertain for at in self._missed):
            return "recorder"
        missed = ranking.message.received.missed
        stored_at = self._ranked_at.get(missed, ranking.at)
        return "scorer" if missed and ranking.at - stored_at <= self._uncertain else ""


POSITIONED: Final[Mapping[Source, str]] = {
    CLUSTER: "cluster",
    DECISIONS: "decisions",
    BANDWIDTH: "bandwidth",
    FACTS: "facts",
}  # the sources that Positions names
_BEFORE: Final = "ranked before everything that counted then was recorded"


def _proposed_before(recording: Recording) -> Iterator[tuple[str, tuple[int, datetime]]]:
    """Pods that counted on a node at the begin of the recording without a RANKED in it.

    By uid: the position from which the mirror shows its end, and the time of its Decision.
    """
    ranked = {uid for record in recording.of(RANKED) for uid in _uids_in(record)}
    first_mirrored: dict[str, int] = {}
    for record in recording.of(CLUSTER):
        kind, name = _kind_and_name(record.subject)
        if kind == "pod":
            first_mirrored.setdefault(name, record.sequence)
    for record in recording.of(DECISIONS):
        if record.sequence > recording.position(DECISIONS):
            return
        decision = _decision_in(record)
        if decision is None or decision.outcome not in {Outcome.BOUND, Outcome.PREEMPTING}:
            continue
        uid = Attempt.parse(decision.attempt).uid
        mirrored = first_mirrored.get(uid, _NOT_READ.cluster)
        if uid not in ranked and mirrored > recording.position(CLUSTER):
            yield uid, (mirrored, record.time)


def _missed(recording: Recording) -> Iterator[datetime]:
    # NATS drops copies for a slow reader.
    before = recording.position(RANKED)
    for record in recording.of(RANKED):
        if record.sequence <= before:
            continue
        if record.sequence > before + 1:
            yield record.time
        before = record.sequence


class _Attempted(msgspec.Struct):
    attempt: str
    schema: int = 0


_attempted: Final = msgspec.json.Decoder(_Attempted)


def _uids_in(record: Recorded) -> list[str]:
    """The pod of a ranking, or the members of a group."""
    data = record.payload or b""
    try:
        attempted = _attempted.decode(data)
        if attempted.schema == GROUP_SCHEMA:
            return [member.uid for member in decode_group(data, GroupRanked).bundle.members]
        return [Attempt.parse(attempted.attempt).uid]
    except (DecodeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []


def _ranking_in(record: Recorded) -> Ranked | GroupRanked:
    """The ranking of a pod or a group. Raises DecodeError."""
    data = record.payload or b""
    try:
        message = decode(data, Ranked)
    except UnknownSchemaError:
        return decode_group(data, GroupRanked)
    attempt_of(message)
    return message


def _decision_in(record: Recorded) -> DecisionSummary | None:
    try:
        decision = decode(record.payload or b"", DecisionSummary)
        Attempt.parse(decision.attempt)
    except DecodeError:
        return None
    return decision


def _kind_and_name(key: str) -> tuple[str, str]:
    try:
        return parse_key(key)
    except DecodeError:
        return "", ""


class RecordedSources:
    """The messages of a recording by position, as several views read them."""

    def __init__(self, recording: Recording, rankings: Sequence[RecordedRanking]) -> None:
        self._records = {source: recording.of(source) for source in (*POSITIONED, PENDING)}
        self._sequences = {source: [one.sequence for one in there] for source, there in self._records.items()}
        self._rankings = rankings
        self._ranked = [one.sequence for one in rankings]

    def up_to(self, source: Source, begin: int, position: int) -> tuple[Sequence[Recorded], int]:
        """The messages from an index up to the position, and the index of the next one."""
        end = max(begin, bisect_right(self._sequences[source], position))
        return self._records[source][begin:end], end

    def rankings_up_to(self, begin: int, position: int) -> tuple[Sequence[RecordedRanking], int]:
        """The same of RANKED."""
        end = max(begin, bisect_right(self._ranked, position))
        return self._rankings[begin:end], end

    def last_pending(self, position: int) -> Recorded | None:
        end = bisect_right(self._sequences[PENDING], position)
        return self._records[PENDING][end - 1] if end else None


class ScorersView:
    """The view of one scorer of a recording."""

    def __init__(
        self, sources: RecordedSources, scorer: str, live_sources: Collection[LiveSource], lifetime: timedelta
    ) -> None:
        self.view = View()
        self._lifetime = lifetime
        self._sources = sources
        self._scorer = scorer
        self._live = LiveDataReader(self.view.snapshot.live, live_sources)
        self._next: dict[Source, int] = {}
        self._proposed_at: dict[str, datetime] = {}  # by uid, the last proposal or waiting
        self._expiring: list[str] = []  # pods whose proposals expire before the next ranking

    def advance(self, ranking: RecordedRanking) -> None:
        """Read the ranking's input, in the order of NATS's times."""
        message, received = ranking.message, ranking.message.received
        read: list[Sequence[tuple[datetime, Source, Recorded | RecordedRanking]]] = []
        for source, name in POSITIONED.items():
            records, self._next[source] = self._sources.up_to(
                source, self._next.get(source, 0), getattr(message.positions, name)
            )
            read.append([(each.time, source, each) for each in records])
        rankings, self._next[RANKED] = self._sources.rankings_up_to(self._next.get(RANKED, 0), received.ranked)
        read.append([(each.at, RANKED, each) for each in rankings if each.message.scorer != self._scorer])
        self._expiring = list(received.expired)
        for _, source, each in merge(*read, key=lambda item: item[0]):
            self._apply(source, each)
        pending = self._sources.last_pending(received.pending)
        if pending is not None:
            self.view.received(pending.sequence, pending.time)
        for uid in self._expiring:
            self.view.proposals.withdraw(uid)

    def count(self, ranking: RecordedRanking) -> None:
        """Count the scorer's own ranking from now on; one that failed before its cycle does not count."""
        if ranking.was_ranked:
            self._count(ranking)

    def _count(self, ranking: RecordedRanking) -> None:
        message = ranking.message
        if isinstance(message, GroupRanked):
            for member in message.bundle.members:
                self._expire_before(member.uid, ranking.at, is_proposed=True)
            self.view.proposals.ranked_group(message, 0.0)
            return
        self._expire_before(Attempt.parse(message.attempt).uid, ranking.at, is_proposed=True)
        self.view.proposals.ranked(message, 0.0)

    def _expire_before(self, uid: str, at: datetime, *, is_proposed: bool) -> None:
        # An expired proposal that is old enough by now expired before this message about its pod.
        old = at - self._proposed_at.get(uid, at)
        if uid in self._expiring and old >= self._lifetime - _TOLERANCE:
            self._expiring.remove(uid)
            self.view.proposals.withdraw(uid)
        if is_proposed:
            self._proposed_at[uid] = at

    def _apply(self, source: Source, each: Recorded | RecordedRanking) -> None:
        if isinstance(each, RecordedRanking):
            self._count(each)
        elif source == CLUSTER:
            self.view.apply_mirror([_entry(each)], each.sequence)
        elif source == DECISIONS:
            self._apply_decision(each)
        elif source in (BANDWIDTH, FACTS):
            self._apply_live(source, each)

    def _apply_decision(self, record: Recorded) -> None:
        decision = _decision_in(record)
        if decision is not None:
            is_proposed = decision.outcome in {Outcome.WAITING, Outcome.PREEMPTING}
            self._expire_before(Attempt.parse(decision.attempt).uid, record.time, is_proposed=is_proposed)
        stored = StoredMessage(
            subject=record.subject, sequence=record.sequence, data=record.payload or b"", time=record.time
        )
        self.view.apply_decisions([stored], record.sequence, 0.0)

    def _apply_live(self, bucket: Source, record: Recorded) -> None:
        with suppress(DecodeError):  # The scorer kept the former value too.
            self._live.apply(bucket, record.subject, record.payload, record.time)
        self.view.reached(bucket, record.sequence)


def _entry(record: Recorded) -> Entry:
    return Entry(key=record.subject, sequence=record.sequence, data=record.payload, time=record.time)


@contextmanager
def recorded_ties(message: Ranked, snapshot: Snapshot) -> Iterator[None]:
    """Among equals, the nodes of a ranking come first, or the node of its preemption.

    Equal nodes are ordered by hashes of names and uid, and masked names have other hashes.
    """
    preemption = message.preemption
    names, seed = [each.node for each in message.candidates], message.attempt
    if not names and preemption is not None:
        names, seed = [preemption.node], message.pod.uid
    rows = np.array([row for row in map(snapshot.rows.of, names) if row is not None], dtype=np.intp)
    columns = snapshot.columns
    kept = columns.tie_hash[rows]
    columns.tie_hash[rows] = unseeded_hashes(np.arange(len(rows), dtype=np.uint64), np.uint64(hash_of(seed)))
    try:
        yield
    finally:
        columns.tie_hash[rows] = kept
