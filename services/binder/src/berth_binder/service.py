"""The binder: reads the cluster all the time, and commits while it leads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.bus.interface import Bus
from berth.kube.client import KubeClient
from berth.kube.watch import ReflectorEvent, Undecodable
from berth.leader.loop import lead_until_stopped
from berth.process.configuration import profiles_of
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth.process.sessions import cluster_informers, kube_client, nats_bus
from berth_binder.cache import Cache
from berth_binder.eventrecorder import EventBudget, EventRecorder
from berth_binder.runner import BinderParts, BinderRunner
from berth_binder.settings import BinderSettings, binder_settings

log = get_logger()

LAST_WORDS_SECONDS = 1.0
"""How long Events that still wait may take on stopping; they are the first thing to do without."""


async def serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Run the binder on the clients that the settings name, until the process stops."""
    settings = binder_settings(process.settings)
    async with (
        kube_client(process.settings, name="binder", meter=process.metrics) as client,
        kube_client(process.settings, name="binder-events", meter=process.metrics) as voice,
    ):
        clients = Clients(bus=nats_bus(process.settings), api=client, voice=voice)
        await serve_on(clients, process, configuration, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Whom the binder talks to."""

    bus: Bus
    api: KubeClient
    voice: KubeClient
    """For Events and conditions: connections and a rate (qps) of their own, so that no Binding waits behind them."""


async def serve_on(
    clients: Clients, process: Process, configuration: KubeSchedulerConfiguration, settings: BinderSettings
) -> None:
    """The same on given clients."""
    process.health.condition("leadership", "waiting to lead as binder")  # before the bus alone could make it ready
    cache, client = Cache(), clients.api
    parts = BinderParts(
        process=process,
        client=client,
        cache=cache,
        informers=cluster_informers(client, partial(observe, cache), process),
        recorder=EventRecorder(clients.voice, process, EventBudget(settings.events)),
        profiles=dict(profiles_of(configuration, process.settings.numbers.plugin_deadline)),
        config=configuration.digest,
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(parts.informers.run(), name="informers"),
            tasks.create_task(parts.recorder.run()),
        ]
        await lead_until_stopped(
            clients.bus,
            client,
            process,
            role="binder",
            serve=lambda session, leadership: BinderRunner(parts, session, leadership).run(),
            stats=lambda: {"pods": cache.pod_count, "reservations": len(cache.assumed_pods)},
        )
        await parts.recorder.finish(LAST_WORDS_SECONDS)
        for task in background:
            task.cancel()


def observe(cache: Cache, event: ReflectorEvent[Any]) -> None:
    """Hand an informer's event to the cache, and log what cannot be read or does not add up."""
    cache.observe(event)
    oddities = cache.snapshot.oddities
    while oddities:
        log.warning("counted otherwise than it is written", problem=oddities.popleft())
    if isinstance(event, Undecodable):
        log.warning("an object that cannot be read", kind=event.kind, object=event.name, reason=event.reason)
