"""The watcher's service: keeps the informers running as long as the process, and leads as often as it can."""

from __future__ import annotations

import asyncio

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.kinds import POD, WATCHED_KINDS
from berth.api.pod import Pod
from berth.bus.interface import Bus
from berth.kube.client import KubeClient
from berth.leader.clients import cluster_informers, kube_client
from berth.leader.loop import lead_until_stopped
from berth.leader.otherschedulers import OtherSchedulers
from berth.leader.samepods import leases_of_others, warning_about
from berth.lifecycle.clients import nats_bus
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import STORE
from berth.observability.health import Progress
from berth.observability.logging import get_logger
from berth.profiles.configuration import profiles_of
from berth_watcher.queue import waits
from berth_watcher.runner import TAKEOVER, WatcherParts, WatcherRunner, endpoints
from berth_watcher.settings import WatcherSettings, watcher_settings
from berth_watcher.store import ObjectStore

log = get_logger()


async def serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Run the watcher until the process stops, on clients made from the settings."""
    settings = watcher_settings(process.settings, configuration)
    if process.settings.parent_pid is None:  # otherwise the parent has said it already
        warn_about_others(process, configuration)
    async with kube_client(process.settings, name="watcher", meter=process.metrics) as client:
        await serve_on(nats_bus(process.settings), client, process, configuration, settings)


def warn_about_others(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Say at the start what a file that was kube-scheduler's leads to."""
    warning = warning_about(process.settings.leader_election, configuration.scheduler_names)
    if warning is not None:
        log.warning(warning)


async def serve_on(
    bus: Bus, client: KubeClient, process: Process, configuration: KubeSchedulerConfiguration, settings: WatcherSettings
) -> None:
    """The same on given clients."""
    process.health.condition("leadership", "waiting to lead as watcher")
    process.health.condition(TAKEOVER).standby("not leading")
    store = ObjectStore(kind.name for kind in WATCHED_KINDS)
    parts = WatcherParts(
        process=process,
        client=client,
        informers=cluster_informers(client, store.apply, process, configuration.extenders),
        store=store,
        progress=Progress(process.health, process.clock, limit=settings.stalled),
        profiles=profiles_of(configuration, process.settings.numbers.plugin_deadline),
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        informers = tasks.create_task(parts.informers.run(), name="informers")
        counting = tasks.create_task(count_waiting(parts), name="counting")
        await lead_until_stopped(
            bus,
            client,
            process,
            role="watcher",
            serve=lambda session, leadership: WatcherRunner(parts, session, leadership).run(),
            stats=lambda: dict(parts.stats),
            endpoints=endpoints(parts),
            apply_when_missing=True,
            others=OtherSchedulers(
                client,
                leases_of_others(process.settings.leader_election, configuration.scheduler_names),
                is_allowed=process.settings.allow_other_scheduler,
                clock=process.clock,
            ),
        )
        informers.cancel()
        counting.cancel()


async def count_waiting(parts: WatcherParts) -> None:
    """Count the pods that wait while NATS stores nothing and nobody can take a term, so that no queue exists."""
    process, counted = parts.process, False
    seconds = parts.settings.gauge_interval.total_seconds()
    while True:
        leads = not process.health.condition(TAKEOVER).is_standby
        if not leads and not process.health.condition(STORE, "waiting for NATS").is_ready:
            pods = sum(waits(pod, parts.profiles) for pod in parts.store.of(POD.name).values() if isinstance(pod, Pod))
            process.metrics.set("scheduler_pending_pods", pods, queue="active")
            counted = True
        elif counted:
            counted = False
            if not leads:
                process.metrics.clear("scheduler_pending_pods")
        await process.clock.sleep(seconds)
