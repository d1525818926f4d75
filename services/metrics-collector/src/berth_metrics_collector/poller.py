"""What a person has to know about one question: each thing said when it changes, and counted all the time.

One round of one question: asked, brought together with the nodes, reported. What is to be written is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

from berth.api.livedata import BandwidthQuery
from berth.process.logging import get_logger
from berth.process.metrics import Meter
from berth_metrics_collector.nodenames import ExporterDirectory, NamedSamples, name, nodenames
from berth_metrics_collector.prometheus import PrometheusError, SampleRow
from berth_metrics_collector.queries import inventory_of, traffic_of
from berth_metrics_collector.samples import MIN_SCRAPES, Known, Readings, Values, intervals, samples, values

log = get_logger()


SHOWN: Final = 10
"""Names that a line shows; how many there are stands beside them."""


class Reports:
    """Says what has changed since it was last said."""

    def __init__(self, query: BandwidthQuery, meter: Meter) -> None:
        self._query = query
        self._meter = meter
        self._said: dict[str, object] = {}

    def answered(self) -> None:
        """Prometheus has answered everything that was asked."""
        self._meter.count("berth_prometheus_rounds_total", query=self._query.token, result="ok")
        if self._changed("failure", None) and "failed" in self._said:
            log.info("Prometheus answers again", url=self._query.url, query=self._query.token)

    def failed(self, error: PrometheusError) -> None:
        """It has not; what was known stays, and grows older."""
        self._meter.count("berth_prometheus_rounds_total", query=self._query.token, result=error.cause)
        self._said["failed"] = True
        if self._changed("failure", error.cause):
            log.warning(
                "keeping the last samples, which grow older",
                query=self._query.token,
                cause=error.cause,
                reason=str(error),
            )

    def named(self, named: NamedSamples) -> None:
        """Who was recognised, and who was not."""
        counts = {
            "known": named.samples,
            "missing": named.missing,
            "stranger": named.strangers,
            "double": named.doubles,
        }
        for state, found in counts.items():
            self._meter.set("berth_bandwidth_nodes", len(found), query=self._query.token, state=state)
        self._list("no sample now of nodes", "missing", named.missing)
        self._list("exporters that are no node's", "strangers", named.strangers)
        self._list("nodes that several exporters speak for: the one scraped last counts", "doubles", named.doubles)

    def intervals(self, intervals: Mapping[str, float]) -> None:
        """How often is scraped, by job: an average needs some scrapes to be one."""
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
        """How old the newest sample is."""
        if age is not None:
            seconds = max(age.total_seconds(), 0.0)
            self._meter.set("berth_bandwidth_age_seconds", seconds, query=self._query.token)

    def _list(self, sentence: str, what: str, found: Sequence[str]) -> None:
        if self._changed(what, tuple(found)) and found:
            shown: dict[str, Any] = {"number": len(found), what: list(found[:SHOWN])}
            log.warning(sentence, query=self._query.token, **shown)

    def _changed(self, what: str, now: object) -> bool:
        changed = what not in self._said or self._said[what] != now
        self._said[what] = now
        return changed


class Server(Protocol):
    """Whoever answers PromQL."""

    async def query(self, promql: str) -> Sequence[SampleRow]:
        """The rows of an instant query; raises PrometheusError."""
        ...


class Poller:
    """Asks one question again and again, and remembers what seldom changes."""

    def __init__(self, query: BandwidthQuery, server: Server, reports: Reports, *, inventory_rounds: int) -> None:
        self._query = query
        self._server = server
        self._reports = reports
        self._traffic = traffic_of(query)
        self._inventory = inventory_of(query)
        self._inventory_rounds = inventory_rounds
        self._until_inventory = 0
        self._known = Known()

    async def ask(self, directory: ExporterDirectory) -> NamedSamples:
        """The samples of now by node; empty when Prometheus gave no usable answer, which has been reported then."""
        try:
            if self._until_inventory <= 0:
                await self._look_around()
            readings = await self._read()
        except PrometheusError as exc:
            self._reports.failed(exc)
            return NamedSamples()
        self._reports.answered()
        self._until_inventory -= 1
        self._look_again_for_newcomers(readings)
        made = samples(readings, self._known, self._query.time_range)
        named = name(made, self._known.names, directory)
        self._reports.named(named)
        return named

    async def _read(self) -> Readings:
        asked = self._traffic
        return Readings(
            receive=await self._values(asked.receive),
            transmit=await self._values(asked.transmit),
            count=await self._values(asked.count),
            scraped_at=await self._values(asked.scraped_at),
            scraped_before=await self._values(asked.scraped_before),
        )

    async def _look_around(self) -> None:
        asked = self._inventory
        self._known = Known(
            names=await self._server.query(asked.names),
            flags=await self._values(asked.flags),
            speed=await self._values(asked.speed),
            interval=intervals(await self._server.query(asked.interval)),
        )
        self._until_inventory = self._inventory_rounds
        self._reports.intervals(self._known.interval)

    def _look_again_for_newcomers(self, readings: Readings) -> None:
        """Whoever is not among the names may be new; whoever never is costs one look a round and is reported."""
        named = nodenames(self._known.names).keys()
        seen = {(target.instance, target.job) for target, _ in readings.scraped_at}
        jobs = {job for _, job in seen}
        if (named and not seen <= named) or not jobs <= self._known.interval.keys():
            self._until_inventory = 0

    async def _values(self, promql: str) -> Values:
        return values(await self._server.query(promql), self._query.node_label)
