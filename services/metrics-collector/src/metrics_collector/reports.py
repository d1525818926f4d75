"""What a person has to know about one question: each thing said when it changes, and counted all the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from berth.api.bandwidth import BandwidthQuery
from berth.service.logging import get_logger
from berth.service.meter import Meter
from metrics_collector.answers import PrometheusError
from metrics_collector.names import Named
from metrics_collector.samples import MIN_SCRAPES

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

    def named(self, named: Named) -> None:
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
