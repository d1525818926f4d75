"""The stored samples of one query, and the writes and removals they need. Pure.

Each collector writes only newer samples and expects the sequence it has read, so one of two concurrent writes is
rejected or omitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from berth.bus.interface import Entry
from berth.errors import DecodeError
from berth.messages.livedata import Bandwidth, decode_bandwidth
from berth.messages.subjects import key, parse_key

# A stored sample that is newer by more than this was sampled by a clock that has been set back, and is overwritten.
MAX_CLOCK_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWrite:
    """A sample to write; ``expected``: the key's last sequence."""

    node: str
    key: str
    sample: Bandwidth
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRemoval:
    """The key of a deleted node to remove; ``expected``: its last sequence."""

    node: str
    key: str
    expected: int


@dataclass(slots=True, kw_only=True)
class _StoredSample:
    sequence: int
    sampled_at: datetime | None  # ``None`` for a removal or an undecodable sample, which is overwritten
    # The time at which NATS stored it. A sample from the future counts as one of then, as readers count it: written
    # with a stolen credential, it must end at the next round.
    stored_at: datetime | None = None
    is_removed: bool = False

    @property
    def newest(self) -> datetime | None:
        if self.sampled_at is None or self.stored_at is None:
            return self.sampled_at
        return min(self.sampled_at, self.stored_at)


class SampleStore:
    """The keys of one query as last read or written."""

    def __init__(self, query: str) -> None:
        self.query = query
        self._by_node: dict[str, _StoredSample] = {}

    def apply(self, entry: Entry) -> None:
        """Apply an entry of the bucket; other queries' entries are ignored."""
        try:
            query, node = parse_key(entry.key)
        except DecodeError:
            return
        if query == self.query and entry.sequence >= self._sequence(node):
            self._by_node[node] = _StoredSample(
                sequence=entry.sequence,
                sampled_at=_sampled_at(entry.data),
                stored_at=entry.time,
                is_removed=entry.data is None,
            )

    def written(self, write: SampleWrite, sequence: int) -> None:
        self._by_node[write.node] = _StoredSample(sequence=sequence, sampled_at=write.sample.sampled_at)

    def forget(self, node: str) -> None:
        """Forget a key that has neither a value nor a marker."""
        self._by_node.pop(node, None)

    def writes(self, samples: Mapping[str, Bandwidth]) -> Iterator[SampleWrite]:
        """The samples newer than the stored ones."""
        for node, sample in samples.items():
            stored = self._by_node.get(node)
            if stored is None or _is_newer(sample.sampled_at, stored):
                yield SampleWrite(node=node, key=key(self.query, node), sample=sample, expected=self._sequence(node))

    def removals(self, nodes: Collection[str]) -> list[SampleRemoval]:
        """Removals of stored samples, undecodable ones included, of all nodes but these."""
        return [
            SampleRemoval(node=node, key=key(self.query, node), expected=stored.sequence)
            for node, stored in self._by_node.items()
            if not stored.is_removed and node not in nodes
        ]

    def newest(self) -> datetime | None:
        times = (stored.newest for stored in self._by_node.values())
        return max((time for time in times if time is not None), default=None)

    def count(self) -> int:
        """The number of nodes with a sample of any age."""
        return sum(stored.sampled_at is not None for stored in self._by_node.values())

    def _sequence(self, node: str) -> int:
        stored = self._by_node.get(node)
        return stored.sequence if stored is not None else 0


def _is_newer(sampled_at: datetime, stored: _StoredSample) -> bool:
    newest = stored.newest
    if newest is None or newest - sampled_at > MAX_CLOCK_SKEW:
        return True
    return sampled_at > newest and sampled_at != stored.sampled_at


def _sampled_at(data: bytes | None) -> datetime | None:
    if data is None:
        return None
    try:
        return decode_bandwidth(data).sampled_at
    except DecodeError:
        return None
