"""Composition root of the collector: flags to settings, settings to clients, clients to the service."""

from __future__ import annotations

import os

import berth.bootstrap  # noqa: F401 - before the others
from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.lifecycle.clients import nats_bus
from berth.lifecycle.process import Process
from berth.lifecycle.start import service_command
from berth.observability.logging import get_logger
from berth_metrics_collector.configuration import read_configuration
from berth_metrics_collector.queries import configured_queries, maximum_ages
from berth_metrics_collector.service import serve
from berth_metrics_collector.settings import INTERVAL_VARIABLE, collector_settings, outlived

log = get_logger()


async def _serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    settings = collector_settings(os.environ)
    ages = maximum_ages(configuration)
    for token in outlived(ages, settings.interval):
        log.warning(
            "samples become too old before the next round",
            query=token,
            maximum_age_seconds=ages[token].total_seconds(),
            interval_seconds=settings.interval.total_seconds(),
            remedy=f"a longer maximumAge in NetworkTraffic's arguments, or a shorter {INTERVAL_VARIABLE}",
        )
    for token, age in ages.items():
        process.metrics.set("berth_bandwidth_maximum_age_seconds", age.total_seconds(), query=token)
    await serve(process, nats_bus(process.settings), configured_queries(configuration), settings)


main = service_command(
    "metrics-collector",
    about="Keeps the live bandwidth of every node from Prometheus. Needs NATS and no Kubernetes credentials.",
    read=read_configuration,
    serve=_serve,
)

if __name__ == "__main__":
    main()
