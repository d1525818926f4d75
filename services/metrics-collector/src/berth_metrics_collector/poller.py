"""Polls for one query: has it measured, and reports what has changed.

Prometheus measures a query by several PromQL queries. Names, capacities and scrape intervals, which seldom change, are
read in some rounds only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from berth.api.config.networktraffic import BandwidthQuery
from berth.api.config.nodeload.queries import LoadQuery, Statistic
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter
from berth_metrics_collector.nodenames import MirroredNodes, NodeNames, nodes_of
from berth_metrics_collector.prometheus import SampleRow, SourceError
from berth_metrics_collector.queries import (
    ScrapeSeconds,
    exporter_queries,
    inventory_queries,
    traffic_queries,
    usage_queries,
)
from berth_metrics_collector.samples import (
    MIN_SCRAPES,
    DeviceRows,
    Inventory,
    NodeSamples,
    Target,
    TrafficValues,
    Values,
    device_facts,
    host_names,
    node_samples,
    scrape_intervals,
    values_by_device,
    values_by_target,
)
from berth_metrics_collector.usage import UsageValues, usage_samples

log = get_logger()

SHOWN: Final = 10  # names in a log line, beside their number

Query = BandwidthQuery | LoadQuery


def server_of(query: Query) -> str:
    """What answers a query, for people."""
    return query.url or "the API server"


class QueryServer(Protocol):
    async def query(self, promql: str) -> Sequence[SampleRow]:
        """The rows of an instant query; raises SourceError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSamples:
    found: NodeSamples = field(default_factory=NodeSamples)
    unmatched: tuple[str, ...] = ()  # what has been measured and matches no node: instances of exporters
    missing: tuple[str, ...] = ()  # nodes without a current sample


class Measurement(Protocol):
    """Measures one query."""

    async def measure(self, nodes: NodeNames, reporter: Reporter) -> MatchedSamples:
        """The current samples; raises SourceError."""
        ...


class Poller:
    """Polls for one query."""

    def __init__(self, measurement: Measurement, reporter: Reporter) -> None:
        self._measurement = measurement
        self._reporter = reporter

    async def poll(self, mirrored: MirroredNodes) -> MatchedSamples:
        """The current samples by node; empty after a reported error."""
        nodes, arrivals = mirrored.names, mirrored.arrivals
        try:
            matched = await self._measurement.measure(nodes, self._reporter)
        except SourceError as exc:
            self._reporter.failed(exc)
            return MatchedSamples()
        self._reporter.answered()
        self._reporter.matched(matched, complete=mirrored.arrivals == arrivals)
        return matched


class TrafficMeasurement:
    """Traffic, by Prometheus."""

    def __init__(self, query: BandwidthQuery, server: QueryServer, *, inventory_rounds: int) -> None:
        self._query = query
        self._server = server
        self._inventory_queries = inventory_queries(query)
        self._rounds = _InventoryRounds(inventory_rounds)
        self._inventory = Inventory()

    async def measure(self, nodes: NodeNames, reporter: Reporter) -> MatchedSamples:
        if self._rounds.is_due:
            self._inventory = await self._read_inventory()
            self._rounds.read()
            reporter.scrape_intervals(self._inventory.interval)
        values = await self._read()
        targets = values.targets
        self._rounds.measured(targets, self._inventory.hosts, self._inventory.interval)
        node_of = nodes_of(targets, self._inventory.hosts, nodes)
        found = node_samples(values, self._inventory, node_of, nodes.capacities, self._query)
        return _matched(found, targets, node_of, nodes)

    async def _read(self) -> TrafficValues:
        queries = traffic_queries(self._query, ScrapeSeconds.of(self._inventory.interval))
        # Before the others: a sample must not claim a scrape that its values lack, and the rate of a young series is
        # too low if more scrapes are counted than it has.
        scraped_at, young = await self._values(queries.scraped_at), await self._values(queries.young)
        gapped = await self._values(queries.gapped)
        return TrafficValues(
            receive=await self._values(queries.receive),
            transmit=await self._values(queries.transmit),
            young=young,
            young_since=await self._values(queries.young_since) if young else {},
            scraped_at=scraped_at,
            gapped=gapped,
            receive_over_gaps=await self._values(queries.receive_over_gaps) if gapped else {},
            transmit_over_gaps=await self._values(queries.transmit_over_gaps) if gapped else {},
        )

    async def _read_inventory(self) -> Inventory:
        queries, ask, label = self._inventory_queries, self._server.query, self._query.node_label
        rows = DeviceRows(
            flags=await ask(queries.flags),
            info=await ask(queries.info),
            stacked=await ask(queries.stacked),
            named_by=await ask(queries.named_by),
            bonds=await ask(queries.bonds),
        )
        return Inventory(
            hosts=host_names(await ask(queries.names), label),
            facts=device_facts(rows, label),
            speed=await self._values(queries.speed),
            interval=scrape_intervals(await ask(queries.interval)),
        )

    async def _values(self, promql: str) -> Values:
        return values_by_device(await self._server.query(promql), self._query.node_label)


class UsageMeasurement:
    """The use of CPU and memory, by Prometheus."""

    def __init__(
        self, query: LoadQuery, statistics: Collection[Statistic], server: QueryServer, *, inventory_rounds: int
    ) -> None:
        self._query = query
        self._statistics = statistics
        self._server = server
        self._rounds = _InventoryRounds(inventory_rounds)
        self._hosts: Mapping[Target, str] = {}
        self._had_cpu: AbstractSet[Target] = frozenset()
        self._intervals: Mapping[str, float] = {}

    async def measure(self, nodes: NodeNames, reporter: Reporter) -> MatchedSamples:
        if self._rounds.is_due:
            queries = exporter_queries(self._query)
            self._hosts = host_names(await self._server.query(queries.names), self._query.node_label)
            self._intervals = scrape_intervals(await self._server.query(queries.interval))
            self._rounds.read()
            reporter.scrape_intervals(self._intervals)
        values = await self._read()
        targets = values.targets
        self._rounds.measured(targets, self._hosts, self._intervals)
        node_of = nodes_of(targets, self._hosts, nodes)
        found = usage_samples(values, self._intervals, node_of, self._query.time_range, nodes.allocatable)
        reporter.unusable(found.unusable)
        self._had_cpu = (self._had_cpu | values.with_cpu) & targets
        return _matched(found, targets, node_of, nodes)

    async def _read(self) -> UsageValues:
        queries = usage_queries(self._query, self._statistics, ScrapeSeconds.of(self._intervals))
        # Before the others: a sample must not claim a scrape that its values lack, and the rate of a young series is
        # too low if more scrapes are counted than it has.
        scraped_at, young = await self._values(queries.scraped_at), await self._values(queries.young)
        gapped = await self._values(queries.gapped)
        return UsageValues(
            cpu={statistic: await self._values(promql) for statistic, promql in queries.cpu.items()},
            memory={statistic: await self._values(promql) for statistic, promql in queries.memory.items()},
            young=young,
            young_since=await self._values(queries.young_since) if young else {},
            scraped_at=scraped_at,
            gapped=gapped,
            cpu_over_gaps=await self._values(queries.cpu_over_gaps) if gapped else {},
            had_cpu=self._had_cpu,
        )

    async def _values(self, promql: str) -> Mapping[Target, float]:
        return values_by_target(await self._server.query(promql), self._query.node_label)


class _InventoryRounds:
    """Rounds until the inventory is read: the next if it lacks an exporter, which may be new."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._left = 0

    @property
    def is_due(self) -> bool:
        return self._left <= 0

    def read(self) -> None:
        self._left = self._rounds

    def measured(self, targets: frozenset[Target], hosts: Mapping[Target, str], intervals: Mapping[str, float]) -> None:
        self._left -= 1
        jobs = {target.job for target in targets}
        if (hosts and not targets <= hosts.keys()) or not jobs <= intervals.keys():
            self._left = 0


def _matched(
    found: NodeSamples, targets: frozenset[Target], node_of: Mapping[Target, str], nodes: NodeNames
) -> MatchedSamples:
    return MatchedSamples(
        found=found,
        unmatched=tuple(sorted({target.instance for target in targets - node_of.keys()})),
        missing=tuple(sorted(nodes.names - found.samples.keys())),
    )


class Reporter:
    """Updates metrics each round, and logs a line per change."""

    def __init__(self, query: Query, meter: Meter) -> None:
        self._query = query
        self._meter = meter
        self._server = server_of(query)
        self._reported: dict[str, object] = {}

    @property
    def is_failing(self) -> bool:
        return self._reported.get("failure") is not None

    def answered(self) -> None:
        """All queries of a round are answered."""
        self._meter.count("berth_sample_rounds_total", query=self._query.token, result="ok")
        if self._changed("failure", None) and "failed" in self._reported:
            log.info("samples are measured again", server=self._server, query=self._query.token)

    def failed(self, error: SourceError) -> None:
        """A round has failed; the last samples stay and age."""
        self._meter.count("berth_sample_rounds_total", query=self._query.token, result=error.cause)
        self._reported["failed"] = True
        if self._changed("failure", error.cause):
            log.warning(
                "keeping the last samples, which grow older",
                query=self._query.token,
                cause=error.cause,
                reason=str(error),
            )

    def matched(self, matched: MatchedSamples, *, complete: bool) -> None:
        """``complete``: no node came during the round; a new cluster's come within a second."""
        counts = {
            "known": matched.found.samples,
            "missing": matched.missing,
            "unmatched": matched.unmatched,
            "duplicate": matched.found.duplicates,
        }
        for state, found in counts.items():
            self._meter.set("berth_sampled_nodes", len(found), query=self._query.token, state=state)
        if not complete:
            return
        self._list("nodes without a current sample", "missing", matched.missing)
        self._list("exporters that match no node", "unmatched", matched.unmatched)
        labels, remedy = list(matched.found.differing), "select one by the plugin's argument labels"
        message = "nodes that are measured several times: what was scraped last counts"
        self._list(message, "duplicates", matched.found.duplicates, differing_labels=labels, remedy=remedy)

    def unusable(self, reasons: Mapping[str, str]) -> None:
        """Warn about nodes with values that were left out."""
        reason = next(iter(reasons.values()), "")
        self._list("nodes with values that cannot be used", "unusable", sorted(reasons), reason=reason)

    def scrape_intervals(self, intervals: Mapping[str, float]) -> None:
        """Warn about jobs with too few scrapes in the range."""
        seconds = self._query.time_range.total_seconds()
        for job, interval in sorted(intervals.items()):
            short = seconds < MIN_SCRAPES * interval
            if self._changed(f"interval {job}", (short, round(interval))) and short:
                log.warning(
                    "the range is too short for the scrape interval",
                    query=self._query.token,
                    job=job,
                    range_seconds=seconds,
                    scrape_seconds=interval,
                    want=f"a timeRange of {MIN_SCRAPES} scrapes at least ({MIN_SCRAPES * interval:g} s); "
                    + ("below two scrapes there is no value at all" if seconds < 2 * interval else "else values jump"),
                )

    def age(self, age: timedelta | None) -> None:
        if age is not None:
            seconds = max(age.total_seconds(), 0.0)
            self._meter.set("berth_sample_age_seconds", seconds, query=self._query.token)

    def fresh(self, nodes: int) -> None:
        """The number of nodes with a sample that some profile uses, of any collector."""
        self._meter.set("berth_sampled_nodes", nodes, query=self._query.token, state="fresh")

    def _list(self, message: str, what: str, found: Sequence[str], **more: object) -> None:
        if self._changed(what, tuple(found)) and found:
            shown: dict[str, Any] = {"number": len(found), what: list(found[:SHOWN]), **more}
            log.warning(message, query=self._query.token, **shown)

    def _changed(self, what: str, now: object) -> bool:
        changed = what not in self._reported or self._reported[what] != now
        self._reported[what] = now
        return changed
