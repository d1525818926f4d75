"""One round of one question: asked, brought together with the nodes, reported. What is to be written is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from berth.api.bandwidth import BandwidthQuery
from metrics_collector.answers import PrometheusError, Row
from metrics_collector.names import Directory, Named, name, nodenames
from metrics_collector.queries import inventory_of, traffic_of
from metrics_collector.reports import Reports
from metrics_collector.samples import Known, Readings, Values, intervals, samples, values


class Server(Protocol):
    """Whoever answers PromQL."""

    async def query(self, promql: str) -> Sequence[Row]:
        """The rows of an instant query; raises PrometheusError."""
        ...


class Rounds:
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

    async def ask(self, directory: Directory) -> Named:
        """The samples of now by node; empty when Prometheus gave no usable answer, which has been reported then."""
        try:
            if self._until_inventory <= 0:
                await self._look_around()
            readings = await self._read()
        except PrometheusError as exc:
            self._reports.failed(exc)
            return Named()
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
