"""The stored samples of one query, and the writes and removals they need. Pure.

Several collectors may measure the same nodes, or different ones, and a thief of their credential may write anything. So
a stored sample stays only while it has a living author (ADR 71): the collector named in it, if that has written within
``PEER_SECONDS``. Each collector corrects what names itself, and replaces or removes what has no living author. Among
living collectors the newer sample stays; each expects the sequence that it has read, so one of two concurrent writes is
rejected or omitted.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from berth.bus.interface import Entry
from berth.errors import DecodeError
from berth.messages.livedata import NodeSample, decode_sample
from berth.messages.subjects import key, parse_key

# An own sample that is newer by more than this was sampled by a clock that has been set back.
MAX_CLOCK_SKEW: Final = timedelta(minutes=5)
# Between two comparisons of the bucket with the own samples. A collector that has nothing to write writes one again, so
# that at most one and a half times as long passes between two writes.
CHECK_SECONDS: Final = 1.5
# A collector that has written nothing for so long has gone. With a check, and a second for the writes of 5,000 nodes,
# this stays below 10 s; two writes may be late.
PEER_SECONDS: Final = 6.0
MAX_PEERS: Final = 64  # remembered; an account has 8 connections of collectors
# Names of no node that are remembered from check to check, as many as the bucket's 32 MiB hold samples.
MAX_UNKNOWN: Final = 100_000


class SampleWrite(NamedTuple):
    """A sample to write; ``expected``: the key's last sequence."""

    node: str
    key: str
    sample: NodeSample
    expected: int


class SampleRemoval(NamedTuple):
    """A key to remove; ``expected``: its last sequence."""

    node: str
    key: str
    expected: int


@dataclass(slots=True, kw_only=True)
class _StoredSample:
    sequence: int
    sample: NodeSample | None  # ``None`` for a removal or an undecodable sample, which is overwritten
    # The time at which NATS stored it. A sample from the future counts as one of then, as readers count it.
    stored_at: datetime | None = None
    is_removed: bool = False

    @property
    def newest(self) -> datetime | None:
        if self.sample is None:
            return None
        return min(self.sample.sampled_at, self.stored_at or self.sample.sampled_at)


class SampleStore:
    """The keys of one query as last read or written, and this collector's own samples, which outlast a session."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.author = uuid.uuid4().hex[:8]
        self._own: dict[str, NodeSample] = {}
        self._has_measured = False
        self._wrote_at = float("-inf")
        self.begin()

    def begin(self) -> None:
        """Forget what is stored: another session may have another store."""
        self._by_node: dict[str, _StoredSample] = {}  # the one stored longest ago first
        self._unsettled = dict.fromkeys(self._own)  # nodes whose own sample may differ from the stored one
        self._without_others: Collection[str] | None = None  # the last nodes without a removal, until a key is new
        self._received_at: dict[str, float] = {}  # by author, the one received longest ago first

    def apply(self, entry: Entry, now: float) -> None:
        """Apply an entry of the bucket, read at ``now``; other queries' entries are ignored."""
        try:
            query, node = parse_key(entry.key)
        except DecodeError:
            return
        if query != self.query or entry.sequence < self._sequence(node):
            return
        if entry.sequence == self._sequence(node):  # this collector's, whose answer came before
            self._by_node[node].stored_at = entry.time
            return
        sample = _decoded(entry.data)
        self._store(
            node,
            _StoredSample(sequence=entry.sequence, sample=sample, stored_at=entry.time, is_removed=entry.data is None),
        )
        if sample is not None and sample.by:
            self._received_at.pop(sample.by, None)
            self._received_at[sample.by] = now
            if len(self._received_at) > MAX_PEERS:
                del self._received_at[next(iter(self._received_at))]

    def measured(self, samples: Mapping[str, NodeSample], nodes: Collection[str]) -> None:
        """Take over what Prometheus has answered. A node without a new sample keeps its last while it exists."""
        self._has_measured = True
        for node in self._own.keys() - nodes:
            del self._own[node]
        for node, sample in samples.items():
            # The rate at one scrape differs a little from query to query: the first of them counts.
            if node not in self._own or self._is_newer(sample.sampled_at, node):
                self._own[node] = msgspec.structs.replace(sample, by=self.author)
                self._unsettled[node] = None

    def written(self, write: SampleWrite, sequence: int, now: float) -> None:
        self._wrote_at = now
        if sequence > self._sequence(write.node):  # the bucket's entry may come before the answer
            self._store(write.node, _StoredSample(sequence=sequence, sample=write.sample))
            if self._own.get(write.node) is write.sample:
                del self._unsettled[write.node]

    def forget(self, node: str) -> None:
        """Forget a key that has neither a value nor a marker.

        If it had an own sample, the full bucket has dropped it, and before it all samples stored earlier.
        """
        was_dropped, last = node in self._own and self._is_standing(node), self._sequence(node)
        earlier = [each for each in self._own if self._sequence(each) < last] if was_dropped else []
        for each in (node, *earlier):
            self._by_node.pop(each, None)
            self._unsettled[each] = None

    def writes(self, nodes: Collection[str], now: float) -> list[SampleWrite]:
        """The own samples of ``nodes`` that must replace what is stored.

        If there are none, the one written longest ago, as a sign of life.
        """
        due: list[str] = []
        unsettled: dict[str, None] = {}
        for node in self._unsettled:
            if node in self._own and (node not in nodes or not self._is_standing(node)):
                # It stays, due or not: a peer that has stored another may go, a deleted node may come back.
                unsettled[node] = None
                if node in nodes and self._is_due(node, now):
                    due.append(node)
        self._unsettled = unsettled
        if not due and now - self._wrote_at >= CHECK_SECONDS / 2:
            standing = (node for node in self._by_node if node in nodes and self._is_standing(node))
            due = [node for node in (next(standing, None),) if node is not None]
        return [SampleWrite(node, _key(self.query, node), self._own[node], self._sequence(node)) for node in due]

    def removals(self, nodes: frozenset[str], now: float) -> Iterator[SampleRemoval]:
        """Removals of stored samples, undecodable ones included: of ``nodes`` without an author, then of all others."""
        if nodes is self._without_others:
            return
        if self._by_node.keys() <= self._own.keys() and self._own.keys() <= nodes:
            self._without_others = nodes
            return
        present = [node for node, stored in self._by_node.items() if not stored.is_removed]
        unknown = [node for node in present if node not in nodes][-MAX_UNKNOWN:]
        kept = {*unknown, *nodes}
        self._by_node = {node: stored for node, stored in self._by_node.items() if node in kept}
        orphans = [node for node in present if node in nodes and self._is_orphan(node, self._by_node[node], now)]
        for node in (*orphans, *unknown):
            yield SampleRemoval(node, key(self.query, node), self._sequence(node))

    def times(self) -> list[datetime]:
        """The time of each node's sample."""
        return [time for stored in self._by_node.values() if (time := stored.newest) is not None]

    def _store(self, node: str, stored: _StoredSample) -> None:
        if self._by_node.pop(node, None) is None:
            self._without_others = None
        self._by_node[node] = stored
        self._unsettled[node] = None

    def _is_due(self, node: str, now: float) -> bool:
        sample, stored = self._own[node], self._by_node.get(node)
        if stored is None or stored.sample is None:
            return True
        if self._is_peers(stored, now):
            return sample.sampled_at > stored.sample.sampled_at  # an order, so that two collectors settle
        return sample != stored.sample

    def _is_orphan(self, node: str, stored: _StoredSample, now: float) -> bool:
        """Before Prometheus has answered, a former collector's samples stay and grow older."""
        return self._has_measured and node not in self._own and not self._is_peers(stored, now)

    def _is_peers(self, stored: _StoredSample, now: float) -> bool:
        """Whether another living collector is named as the author, which corrects it if it is not."""
        if stored.sample is None or stored.sample.by == self.author:
            return False
        return now - self._received_at.get(stored.sample.by, float("-inf")) <= PEER_SECONDS

    def _is_newer(self, sampled_at: datetime, node: str) -> bool:
        """Whether a scrape is newer than that of the own sample. One from the future counts as one of its storing."""
        own = newest = self._own[node].sampled_at
        if self._is_standing(node):
            newest = self._by_node[node].newest or own
        return newest - sampled_at > MAX_CLOCK_SKEW or newest < sampled_at != own

    def _is_standing(self, node: str) -> bool:
        stored = self._by_node.get(node)
        return stored is not None and node in self._own and stored.sample == self._own[node]

    def _sequence(self, node: str) -> int:
        stored = self._by_node.get(node)
        return stored.sequence if stored is not None else 0


_key: Final = lru_cache(maxsize=32_768)(key)  # each is written at every scrape


def _decoded(data: bytes | None) -> NodeSample | None:
    if data is None:
        return None
    try:
        return decode_sample(data)
    except DecodeError:
        return None
