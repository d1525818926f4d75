"""The watcher's service: keeps the informers running as long as the process, and leads as often as it can."""

from __future__ import annotations

import asyncio

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.kinds import WATCHED_KINDS
from berth.bus.interface import Bus
from berth.kube.client import KubeClient
from berth.leader.loop import lead_until_stopped
from berth.process.clients import cluster_informers, kube_client, nats_bus
from berth.process.configuration import profiles_of
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth_watcher.runner import TAKEOVER, WatcherParts, WatcherRunner
from berth_watcher.settings import WatcherSettings, watcher_settings
from berth_watcher.store import ObjectStore

log = get_logger()


async def serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Run the watcher until the process stops, on clients made from the settings."""
    settings = watcher_settings(process.settings, configuration)
    async with kube_client(process.settings, name="watcher", meter=process.metrics) as client:
        await serve_on(nats_bus(process.settings), client, process, configuration, settings)


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
        informers=cluster_informers(client, store.apply, process),
        store=store,
        profiles=profiles_of(configuration, process.settings.numbers.plugin_deadline),
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        informers = tasks.create_task(parts.informers.run(), name="informers")
        await lead_until_stopped(
            bus,
            client,
            process,
            role="watcher",
            serve=lambda session, leadership: WatcherRunner(parts, session, leadership).run(),
            stats=lambda: dict(parts.stats),
            apply_when_missing=True,
        )
        informers.cancel()
