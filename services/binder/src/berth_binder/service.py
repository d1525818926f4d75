"""The binder: reads the cluster all the time, and commits while it leads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.metadata import version

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.errors import BerthError
from berth.bus.interface import Bus, Session
from berth.kube.client import KubeClient
from berth.leader.session import NotLeadingError, lead
from berth.process.configuration import profiles_of
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth.process.sessions import kube_client, nats_bus, sessions
from berth_binder.cache import Cache
from berth_binder.eventrecorder import EventBudget, EventRecorder
from berth_binder.informers import BinderInformers
from berth_binder.runner import BinderParts, BinderRunner
from berth_binder.settings import BinderSettings, binder_settings

log = get_logger()

AGAIN_SECONDS = 1.0
"""Between a leadership that ended in an error and the next try."""
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
        reading=BinderInformers(client, cache, process),
        recorder=EventRecorder(clients.voice, process, EventBudget(settings.events)),
        profiles=dict(profiles_of(configuration, process.settings.numbers.plugin_deadline)),
        config=configuration.digest,
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(parts.reading.run()), tasks.create_task(parts.recorder.run())]
        await _lead_again_and_again(clients.bus, parts)
        await parts.recorder.finish(LAST_WORDS_SECONDS)
        for task in background:
            task.cancel()


async def _lead_again_and_again(bus: Bus, parts: BinderParts) -> None:
    process = parts.process
    async for session in sessions(bus, name="binder", process=process):
        try:
            await _lead_once(session, parts)
        except* NotLeadingError as errors:
            log.info("not leading", cause=_causes(errors))
        except* BerthError as errors:
            log.warning("starting anew", cause=_causes(errors))
            await process.sleep(AGAIN_SECONDS)


def _causes(errors: BaseExceptionGroup[BerthError]) -> str:
    """The texts of all errors, however deep they lie in the group."""
    parts = (_causes(each) if isinstance(each, BaseExceptionGroup) else str(each) for each in errors.exceptions)
    return "; ".join(dict.fromkeys(parts))


async def _lead_once(session: Session, parts: BinderParts) -> None:
    process = parts.process
    cache = parts.cache
    await session.register(
        "berth-binder",
        identity=process.identity,
        version=version("berth-binder"),
        stats=lambda: {"pods": cache.pod_count, "reservations": len(cache.assumed_pods)},
    )
    async with lead(
        role="binder", session=session, client=parts.client, settings=process.settings, process=process
    ) as leadership:
        await BinderRunner(parts, session, leadership).run()
