"""The binder process: keeps its cache of the cluster current all the time and, while it leads, binds pods."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.bus.interface import Bus
from berth.extenders.client import Extenders
from berth.kube.client import KubeClient
from berth.kube.listwatch import ReflectorEvent, Undecodable
from berth.leader.clients import cluster_informers, kube_client
from berth.leader.loop import lead_until_stopped
from berth.lifecycle.clients import nats_bus
from berth.lifecycle.process import Process
from berth.observability.health import Progress
from berth.observability.logging import get_logger
from berth.profiles.configuration import profiles_of
from berth_binder.cache import Cache
from berth_binder.eventrecorder import EventBudget, EventRecorder
from berth_binder.runner import BinderParts, BinderRunner
from berth_binder.settings import BinderSettings, binder_settings

log = get_logger()

LAST_EVENTS_SECONDS: Final = 1.0
"""How long queued Events are still sent while stopping; the rest is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The binder's connections."""

    bus: Bus
    api: KubeClient
    events: KubeClient
    """For Events and conditions: connections and a rate (qps) of their own, so that no Binding waits behind them."""


async def serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Run the binder until the process stops, on clients made from the settings."""
    settings = binder_settings(process.settings)
    async with (
        kube_client(process.settings, name="binder", meter=process.metrics) as client,
        kube_client(process.settings, name="binder-events", meter=process.metrics) as events,
    ):
        clients = Clients(bus=nats_bus(process.settings), api=client, events=events)
        await serve_on(clients, process, configuration, settings)


async def serve_on(
    clients: Clients, process: Process, configuration: KubeSchedulerConfiguration, settings: BinderSettings
) -> None:
    """The same on given clients."""
    process.health.condition("leadership", "waiting to lead as binder")  # before the bus alone makes it ready
    profiles = dict(profiles_of(configuration, process.settings.numbers.plugin_deadline))
    cache, client = Cache(schedulers=profiles.keys()), clients.api
    binders = [extender for extender in configuration.extenders if extender.bind_verb]
    extenders = Extenders(binders, process.metrics, keeps_connections=False)
    parts = BinderParts(
        process=process,
        client=client,
        cache=cache,
        informers=cluster_informers(client, partial(observe, cache), process),
        recorder=EventRecorder(clients.events, process, EventBudget(settings.events)),
        progress=Progress(process.health, process.clock, limit=settings.stalled),
        profiles=profiles,
        config=configuration.digest,
        settings=settings,
        extenders=extenders,
    )
    async with extenders, asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(parts.informers.run(), name="informers"),
            tasks.create_task(parts.recorder.run(), name="event recorder"),
        ]
        await lead_until_stopped(
            clients.bus,
            client,
            process,
            role="binder",
            serve=lambda session, leadership: BinderRunner(parts, session, leadership).run(),
            stats=lambda: {"pods": cache.pod_count, "reservations": len(cache.assumed_pods), **parts.stats},
        )
        await parts.recorder.finish(LAST_EVENTS_SECONDS)
        for task in background:
            task.cancel()


def observe(cache: Cache, event: ReflectorEvent[Any]) -> None:
    """Pass an informer's event to the cache, and log objects that cannot be read."""
    cache.observe(event)
    problems = cache.snapshot.problems
    while problems:
        log.warning("cannot use an object as it is", reason=problems.popleft())
    if isinstance(event, Undecodable):
        log.warning("cannot decode an object", kind=event.kind, object=event.name, reason=event.reason)
