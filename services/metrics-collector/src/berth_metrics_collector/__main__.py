"""Composition root of the collector: flags to settings, settings to clients, clients to the service."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack

import berth.bootstrap  # noqa: F401 - before the others
from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.nodeload.plugins import LoadDemand, load_queries
from berth.api.config.nodeload.queries import LoadQuery
from berth.lifecycle.clients import nats_bus
from berth.lifecycle.process import Process
from berth.lifecycle.start import service_command
from berth.observability.logging import get_logger
from berth_metrics_collector.poller import Measurement, Query, TrafficMeasurement, UsageMeasurement
from berth_metrics_collector.prometheus import Prometheus
from berth_metrics_collector.service import MeasuredQuery, serve
from berth_metrics_collector.settings import (
    INTERVAL_VARIABLE,
    CollectorSettings,
    collector_settings,
    maximum_ages,
    outlived,
    read_configuration,
    traffic_queries_of,
)

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
            remedy=f"a longer maximumAge in the plugin's arguments, or a shorter {INTERVAL_VARIABLE}",
        )
    for token, age in ages.items():
        process.metrics.set("berth_sample_maximum_age_seconds", age.total_seconds(), query=token)
    async with AsyncExitStack() as stack:
        queries = await _measurements(stack, process, configuration, settings)
        sources = [MeasuredQuery.of(query, measurement, ages[query.token]) for query, measurement in queries]
        await serve(process, nats_bus(process.settings), sources, settings)


async def _measurements(
    stack: AsyncExitStack, process: Process, configuration: KubeSchedulerConfiguration, settings: CollectorSettings
) -> list[tuple[Query, Measurement]]:
    traffic, loads = traffic_queries_of(configuration), load_queries(configuration)
    urls = {query.url for query in traffic} | {query.url for query in loads}
    servers = {url: Prometheus(url, access=settings.access) for url in urls if url}
    for server in servers.values():
        stack.callback(server.close)
    rounds = settings.inventory_rounds
    found: list[tuple[Query, Measurement]] = [
        (query, TrafficMeasurement(query, servers[query.url], inventory_rounds=rounds)) for query in traffic
    ]
    by_api = await _by_api(stack, process) if "" in urls else None
    for query, demand in loads.items():
        if by_api is not None and not query.url:
            found.append((query, by_api(query, demand)))
        else:
            usage = UsageMeasurement(query, demand.statistics, servers[query.url], inventory_rounds=rounds)
            found.append((query, usage))
    return found


async def _by_api(stack: AsyncExitStack, process: Process) -> Callable[[LoadQuery, LoadDemand], Measurement]:
    # Kubernetes' client, without which a collector does that asks Prometheus only.
    from berth.lifecycle.apiserver import kube_client  # noqa: PLC0415 - see above
    from berth_metrics_collector.metricsapi import MetricsApiMeasurement  # noqa: PLC0415 - see above

    name = "metrics-collector"
    client = await stack.enter_async_context(kube_client(process.settings, name=name, meter=process.metrics))
    return lambda query, demand: MetricsApiMeasurement(query, demand.statistics, client)


main = service_command(
    "metrics-collector",
    about="Keeps live samples of every node: its traffic, its use of CPU and memory. Needs NATS, and a Prometheus or "
    "the API server's metrics.k8s.io.",
    read=read_configuration,
    serve=_serve,
)

if __name__ == "__main__":
    main()
