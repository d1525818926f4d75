"""Polls Prometheus for one query: computes samples, matches them with nodes, and reports changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from berth.api.config.networktraffic import BandwidthQuery
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter
from berth_metrics_collector.nodenames import MirroredNodes, NodeNames, nodes_of
from berth_metrics_collector.prometheus import PrometheusError, SampleRow
from berth_metrics_collector.queries import inventory_queries, traffic_queries
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
)

log = get_logger()

SHOWN: Final = 10  # names in a log line, beside their number


class QueryServer(Protocol):
    async def query(self, promql: str) -> Sequence[SampleRow]:
        """The rows of an instant query; raises PrometheusError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSamples:
    found: NodeSamples = field(default_factory=NodeSamples)
    unmatched: tuple[str, ...] = ()  # instances of exporters that match no node
    missing: tuple[str, ...] = ()  # nodes without a current sample


class Poller:
    """Polls for one query. The inventory (names, capacities, scrape intervals) is read less often."""

    def __init__(
        self, query: BandwidthQuery, server: QueryServer, reporter: Reporter, *, inventory_rounds: int
    ) -> None:
        self._query = query
        self._server = server
        self._reporter = reporter
        self._traffic_queries = traffic_queries(query)
        self._inventory_queries = inventory_queries(query)
        self._inventory_rounds = inventory_rounds
        self._until_inventory = 0
        self._inventory = Inventory()

    async def poll(self, mirrored: MirroredNodes) -> MatchedSamples:
        """The current samples by node; empty after a reported error."""
        nodes, arrivals = mirrored.names, mirrored.arrivals
        try:
            if self._until_inventory <= 0:
                await self._read_inventory()
            values = await self._read_traffic()
        except PrometheusError as exc:
            self._reporter.failed(exc)
            return MatchedSamples()
        self._reporter.answered()
        self._until_inventory -= 1
        self._expire_inventory(values.targets)
        matched = self._match(values, nodes)
        self._reporter.matched(matched, complete=mirrored.arrivals == arrivals)
        return matched

    def _match(self, values: TrafficValues, nodes: NodeNames) -> MatchedSamples:
        node_of = nodes_of(values.targets, self._inventory.hosts, nodes)
        found = node_samples(values, self._inventory, node_of, nodes.capacities, self._query)
        return MatchedSamples(
            found=found,
            unmatched=tuple(sorted({target.instance for target in values.targets - node_of.keys()})),
            missing=tuple(sorted(nodes.names - found.samples.keys())),
        )

    async def _read_traffic(self) -> TrafficValues:
        queries = self._traffic_queries
        return TrafficValues(
            receive=await self._values(queries.receive),
            transmit=await self._values(queries.transmit),
            count=await self._values(queries.count),
            scraped_at=await self._values(queries.scraped_at),
            scraped_before=await self._values(queries.scraped_before),
        )

    async def _read_inventory(self) -> None:
        queries, ask, label = self._inventory_queries, self._server.query, self._query.node_label
        rows = DeviceRows(
            flags=await ask(queries.flags),
            info=await ask(queries.info),
            stacked=await ask(queries.stacked),
            named_by=await ask(queries.named_by),
            bonds=await ask(queries.bonds),
        )
        self._inventory = Inventory(
            hosts=host_names(await ask(queries.names), label),
            facts=device_facts(rows, label),
            speed=await self._values(queries.speed),
            interval=scrape_intervals(await ask(queries.interval)),
        )
        self._until_inventory = self._inventory_rounds
        self._reporter.scrape_intervals(self._inventory.interval)

    def _expire_inventory(self, targets: frozenset[Target]) -> None:
        """Read the inventory in the next round if it lacks an exporter, which may be new."""
        hosts, jobs = self._inventory.hosts, {target.job for target in targets}
        if (hosts and not targets <= hosts.keys()) or not jobs <= self._inventory.interval.keys():
            self._until_inventory = 0

    async def _values(self, promql: str) -> Values:
        return values_by_device(await self._server.query(promql), self._query.node_label)


class Reporter:
    """Updates metrics each round, and logs a line per change."""

    def __init__(self, query: BandwidthQuery, meter: Meter) -> None:
        self._query = query
        self._meter = meter
        self._reported: dict[str, object] = {}

    @property
    def is_failing(self) -> bool:
        return self._reported.get("failure") is not None

    def answered(self) -> None:
        """Prometheus has answered all queries of a round."""
        self._meter.count("berth_prometheus_rounds_total", query=self._query.token, result="ok")
        if self._changed("failure", None) and "failed" in self._reported:
            log.info("Prometheus answers again", url=self._query.url, query=self._query.token)

    def failed(self, error: PrometheusError) -> None:
        """A round has failed; the last samples stay and age."""
        self._meter.count("berth_prometheus_rounds_total", query=self._query.token, result=error.cause)
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
            self._meter.set("berth_bandwidth_nodes", len(found), query=self._query.token, state=state)
        if not complete:
            return
        self._list("nodes without a current sample", "missing", matched.missing)
        self._list("exporters that match no node", "unmatched", matched.unmatched)
        labels, remedy = list(matched.found.differing), "select one by the argument labels of NetworkTraffic"
        message = "nodes with several series of one device: the one scraped last counts"
        self._list(message, "duplicates", matched.found.duplicates, differing_labels=labels, remedy=remedy)

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
            self._meter.set("berth_bandwidth_age_seconds", seconds, query=self._query.token)

    def _list(self, message: str, what: str, found: Sequence[str], **more: object) -> None:
        if self._changed(what, tuple(found)) and found:
            shown: dict[str, Any] = {"number": len(found), what: list(found[:SHOWN]), **more}
            log.warning(message, query=self._query.token, **shown)

    def _changed(self, what: str, now: object) -> bool:
        changed = what not in self._reported or self._reported[what] != now
        self._reported[what] = now
        return changed
