"""What stands in the bucket for one question, and what of a new round has to be written there. Pure.

Several collectors may write side by side: whoever has the newer sample writes it, expecting the sequence that it has
read; the other one's write is refused, or not made at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from berth.api.errors import DecodeError
from berth.api.livedata import Bandwidth, decode_bandwidth
from berth.api.subjects import key, parse_key
from berth.bus.interface import Entry

CLOCK_WAS_SET_BACK: Final = timedelta(minutes=5)
"""A sample that stands there from so far ahead was made by a clock that was wrong: it is written over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWrite:
    """One write to make: at ``key``, which must stand at ``expected``."""

    node: str
    key: str
    sample: Bandwidth
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRemoval:
    """One key to remove: its node is not there any more."""

    node: str
    key: str
    expected: int


@dataclass(slots=True, kw_only=True)
class _Line:
    sequence: int
    sampled_at: datetime | None


class SampleStore:
    """One question's keys, as they were last read or written."""

    def __init__(self, query: str) -> None:
        self.query = query
        self._lines: dict[str, _Line] = {}

    def read(self, entry: Entry) -> None:
        """An entry of the bucket; those of other questions are somebody else's."""
        try:
            query, node = parse_key(entry.key)
        except DecodeError:
            return
        if query == self.query and entry.sequence >= self._sequence(node):
            self._lines[node] = _Line(sequence=entry.sequence, sampled_at=_sampled_at(entry.data))

    def written(self, write: SampleWrite, sequence: int) -> None:
        """A write is stored."""
        self._lines[write.node] = _Line(sequence=sequence, sampled_at=write.sample.sampled_at)

    def forget(self, node: str) -> None:
        """Nothing stands there, not even the marker of a removal."""
        self._lines.pop(node, None)

    def due(self, samples: Mapping[str, Bandwidth]) -> Iterator[SampleWrite]:
        """What is newer than what stands there."""
        for node, sample in samples.items():
            line = self._lines.get(node)
            if line is None or _is_newer(sample.sampled_at, line.sampled_at):
                yield SampleWrite(node=node, key=key(self.query, node), sample=sample, expected=self._sequence(node))

    def gone(self, nodes: Collection[str]) -> list[SampleRemoval]:
        """What stands there of nodes that are not there any more."""
        return [
            SampleRemoval(node=node, key=key(self.query, node), expected=line.sequence)
            for node, line in self._lines.items()
            if line.sampled_at is not None and node not in nodes
        ]

    def newest(self) -> datetime | None:
        """The time of the newest sample."""
        return max((line.sampled_at for line in self._lines.values() if line.sampled_at is not None), default=None)

    def known(self) -> int:
        """How many nodes have a sample, of whatever age."""
        return sum(line.sampled_at is not None for line in self._lines.values())

    def _sequence(self, node: str) -> int:
        line = self._lines.get(node)
        return line.sequence if line is not None else 0


def _is_newer(sampled_at: datetime, standing: datetime | None) -> bool:
    return standing is None or sampled_at > standing or standing - sampled_at > CLOCK_WAS_SET_BACK


def _sampled_at(data: bytes | None) -> datetime | None:
    """``None`` for a removal, and for what cannot be read: it is written over."""
    if data is None:
        return None
    try:
        return decode_bandwidth(data).sampled_at
    except DecodeError:
        return None
