"""Live data of nodes beside a Snapshot: the last sample of each query as columns, and facts as JSON.

Samples may arrive before their node and outlive it, so they are kept by node name and written to its row on request.
Nothing here raises: undecodable values are rejected earlier.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.config.nodeload.queries import MeasuredResource, Statistic
from berth.cluster.columns import NO_NODE, NodeColumns, Rows, grown, hash_of
from berth.messages.livedata import NodeSample

T = TypeVar("T")

# Samples of one query for nodes that are not in the Snapshot, more than a cluster has nodes: samples may come before
# them. A full bucket drops its oldest keys and says nothing, so a reader of junk keys would keep them for ever.
MAX_UNKNOWN: Final = 32_768
# Seconds for which a fact counts after NATS stored it, so that a wrong one ends although nobody writes it again.
FACT_AGE_SECONDS: Final = 300.0
# Bytes of facts, twice as many as the bucket has by default. The facts that were written longest ago are dropped.
MAX_FACT_BYTES: Final = 64 * 1024 * 1024

Amount = npt.NDArray[np.float64]


class LiveData:
    """Live data of all nodes.

    ``now`` is the newest time (Unix seconds) that NATS has put on a received message. Ages are computed from it,
    because NATS is the only clock that all services share. ``facts_version`` increases with every fact that is written,
    removed or ended.
    """

    def __init__(self, rows: Rows, columns: NodeColumns) -> None:
        self._rows = rows
        self._columns = columns
        self._samples: dict[str, SampleColumns] = {}
        self._facts: dict[str, dict[str, msgspec.Raw]] = {}
        # By source and node, the fact written longest ago first. The first of a dict is slow to find after removals.
        self._written: OrderedDict[tuple[str, str], _Written] = OrderedDict()
        self._fact_bytes = 0
        self.facts_version = 0
        self.now = 0.0

    def copied(self, rows: Rows, columns: NodeColumns) -> LiveData:
        """A copy for a copy of the Snapshot, which has these rows and columns."""
        copy = LiveData(rows, columns)
        copy.now = self.now
        copy._samples = {query: samples.copied(rows, columns) for query, samples in self._samples.items()}
        copy._facts = {source: facts.copy() for source, facts in self._facts.items()}
        copy._written, copy._fact_bytes = self._written.copy(), self._fact_bytes
        copy.facts_version = self.facts_version
        return copy

    def observe_time(self, now: float) -> None:
        """Advance the time; ``now``: of a received message, in Unix seconds."""
        self.now = max(self.now, now)
        self._end_facts()

    def samples(self, query: str) -> SampleColumns:
        """The samples of a query, by its token; empty without any."""
        known = self._samples.get(query)
        if known is None:
            known = self._samples[query] = SampleColumns(self._rows, self._columns)
        known.refresh()
        return known

    def set_sample(self, query: str, node: str, sample: NodeSample | None) -> None:
        """``None`` removes the node's sample.

        Columns are made when a plugin reads them, because a collector may write samples of any query.
        """
        known = self._samples.get(query)
        if known is None:
            known = self._samples[query] = SampleColumns(self._rows, self._columns)
        known.set(node, sample)
        if known.is_unused:
            del self._samples[query]

    def fact(self, source: str, node: str) -> msgspec.Raw | None:
        return self._facts.get(source, {}).get(node)

    def facts(self, source: str) -> Mapping[str, msgspec.Raw]:
        """All facts of a source by node, including nodes missing from the Snapshot."""
        return self._facts.get(source, {})

    def set_fact(self, source: str, node: str, fact: msgspec.Raw | None, *, stored_at: float) -> None:
        """``None`` removes the node's fact. ``stored_at``: by NATS's clock, in Unix seconds."""
        self._remove_fact(source, node)
        if fact is not None:
            self.facts_version += 1
            self._facts.setdefault(source, {})[node] = fact
            size = memoryview(fact).nbytes + len(node)
            # A new leader of the stream may have a clock that is behind. Facts before this one must not outlive it.
            for key in reversed(self._written):
                if self._written[key].stored_at <= stored_at:
                    break
                self._written[key] = self._written[key]._replace(stored_at=stored_at)
            self._written[source, node] = _Written(stored_at=stored_at, size=size)
            self._fact_bytes += size
        self._end_facts()

    def _end_facts(self) -> None:
        while self._written:
            (source, node), oldest = next(iter(self._written.items()))
            if self._fact_bytes <= MAX_FACT_BYTES and self.now - oldest.stored_at <= FACT_AGE_SECONDS:
                return
            self._remove_fact(source, node)

    def _remove_fact(self, source: str, node: str) -> None:
        if (written := self._written.pop((source, node), None)) is None:
            return
        self.facts_version += 1
        self._fact_bytes -= written.size
        of_source = self._facts[source]
        del of_source[node]
        if not of_source:
            del self._facts[source]


class _Written(NamedTuple):
    """When a fact was stored, in Unix seconds, and its bytes."""

    stored_at: float
    size: int


class SampleColumns:
    """The samples of one query.

    Attributes:
        receive, transmit, capacity: float64[capacity], bytes per second; NaN if unknown. :meth:`usage` has the others.
        sampled_at: float64[capacity], Unix seconds of the sample; NaN without one.
        version: increases with every row written.
    """

    def __init__(self, rows: Rows, columns: NodeColumns) -> None:
        self._rows = rows
        self._columns = columns
        self._samples: dict[str, NodeSample] = {}
        self._unknown: dict[str, None] = {}  # nodes with a sample that were not in the Snapshot when it came
        self._names: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self.receive, self.transmit, self.capacity, self.sampled_at = (_unknown(0) for _ in range(4))
        self._usage: dict[tuple[MeasuredResource, Statistic], Amount] = {}  # what plugins have read
        self._names_seen = 0
        self.version = 0
        self._changed: dict[int, int] = {}  # row to the version that wrote it last, in that order

    def copied(self, rows: Rows, columns: NodeColumns) -> SampleColumns:
        copy = SampleColumns(rows, columns)
        copy._samples, copy._unknown = self._samples.copy(), self._unknown.copy()
        return copy

    def set(self, node: str, sample: NodeSample | None) -> None:
        """``None`` removes the node's sample."""
        if sample is None:
            self._samples.pop(node, None)
        else:
            self._samples[node] = sample
        row = self._rows.of(node)
        if row is None:
            self._forget_row_of(node)
            if sample is not None:
                self._note_unknown(node)
        elif row < len(self._names):
            self._write(row, sample)

    def _forget_row_of(self, node: str) -> None:
        """The node may come back to its row before the columns are read."""
        for row in np.flatnonzero(self._names == hash_of(node)).tolist():
            self._names[row] = NO_NODE
            self._write(row, None)

    def _note_unknown(self, node: str) -> None:
        self._unknown[node] = None
        if len(self._unknown) > MAX_UNKNOWN:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            if self._rows.of(oldest) is None:
                self._samples.pop(oldest, None)

    @property
    def is_unused(self) -> bool:
        """Whether there is no sample, and no plugin has read the columns."""
        return not self._samples and not len(self._names)

    def sample(self, node: str) -> NodeSample | None:
        return self._samples.get(node)

    def samples(self) -> Mapping[str, NodeSample]:
        """All samples by node, including nodes missing from the Snapshot."""
        return self._samples

    def refresh(self) -> None:
        """Bring the columns in line with rows that were added, freed or reassigned."""
        if len(self._names) != self._columns.capacity:
            self._grow()
        if self._names_seen == self._columns.names_written:
            return
        self._names_seen = self._columns.names_written
        other = np.flatnonzero(self._names != self._columns.name_hash)
        for row in other.tolist():
            name = self._rows.names[row] if row < self._rows.size else ""
            self._names[row] = self._columns.name_hash[row]
            self._write(row, self._samples.get(name))

    def usage(self, resource: MeasuredResource, statistic: Statistic) -> Amount:
        """float64[capacity], millicores or bytes; NaN if unknown."""
        column = self._usage.get((resource, statistic))
        if column is None:
            column = self._usage[resource, statistic] = _unknown(len(self._names))
            for node, sample in self._samples.items():
                if (row := self._rows.of(node)) is not None and row < len(column):
                    column[row] = _used(sample, resource, statistic)
        return column

    def changed_since(self, version: int) -> list[int]:
        """The rows written after a version."""
        recent = takewhile(lambda item: item[1] > version, reversed(self._changed.items()))
        return [row for row, _ in recent]

    def _write(self, row: int, sample: NodeSample | None) -> None:
        self.receive[row] = _or_nan(sample.receive if sample else None)
        self.transmit[row] = _or_nan(sample.transmit if sample else None)
        self.capacity[row] = _or_nan(sample.capacity if sample else None)
        self.sampled_at[row] = sample.sampled_at.timestamp() if sample else np.nan
        for (resource, statistic), column in self._usage.items():
            column[row] = _used(sample, resource, statistic)
        self.version += 1
        self._changed.pop(row, None)
        self._changed[row] = self.version

    def _grow(self) -> None:
        capacity = self._columns.capacity
        self._names = grown(self._names, capacity, NO_NODE)
        self.receive, self.transmit = grown(self.receive, capacity, np.nan), grown(self.transmit, capacity, np.nan)
        self.capacity = grown(self.capacity, capacity, np.nan)
        self.sampled_at = grown(self.sampled_at, capacity, np.nan)
        self._usage = {key: grown(column, capacity, np.nan) for key, column in self._usage.items()}


def _unknown(capacity: int) -> Amount:
    return np.full(capacity, np.nan, dtype=np.float64)


def _used(sample: NodeSample | None, resource: MeasuredResource, statistic: Statistic) -> float:
    usage = None if sample is None else sample.cpu if resource == "cpu" else sample.memory
    return _or_nan(None if usage is None else getattr(usage, statistic))


def _or_nan(amount: float | None) -> float:
    return np.nan if amount is None else amount
