"""The watcher: reads the cluster all the time; while it leads, mirrors it and releases pending pods."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.errors import BerthError
from berth.bus.port import Bus, Session
from berth.kube.client import KubeClient
from berth.service.configuration import profiles_of
from berth.service.connections import kube_client, nats_bus
from berth.service.leadership import NotLeadingError, lead
from berth.service.logging import get_logger
from berth.service.process import Process
from berth.service.sessions import sessions
from watcher.leading import TAKEOVER, Leading, Parts
from watcher.reading import Reading
from watcher.settings import WatcherSettings, watcher_settings

log = get_logger()

AGAIN_SECONDS: Final = 1.0
"""Between a leadership that ended in an error and the next try."""


async def serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Run the watcher on the clients that the settings name, until the process stops."""
    settings = watcher_settings(process.settings, configuration)
    async with kube_client(process.settings, name="watcher", meter=process.metrics) as client:
        await serve_on(nats_bus(process.settings), client, process, configuration, settings)


async def serve_on(
    bus: Bus, client: KubeClient, process: Process, configuration: KubeSchedulerConfiguration, settings: WatcherSettings
) -> None:
    """The same on given clients."""
    process.health.condition("leadership", "waiting to lead as watcher")
    process.health.condition(TAKEOVER).standby("not leading")
    parts = Parts(
        process=process,
        client=client,
        reading=Reading(client, process),
        profiles=profiles_of(configuration, process.settings.numbers.plugin_deadline),
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(parts.reading.run(), name="reading")
        await _lead_again_and_again(bus, parts)
        reading.cancel()


async def _lead_again_and_again(bus: Bus, parts: Parts) -> None:
    process = parts.process
    async for session in sessions(bus, name="watcher", process=process, apply_when_missing=True):
        try:
            await _lead_once(session, parts)
        except* NotLeadingError as errors:
            log.info("not leading", cause=_causes(errors))
        except* BerthError as errors:
            log.warning("starting anew", cause=_causes(errors))
            await process.sleep(AGAIN_SECONDS)


async def _lead_once(session: Session, parts: Parts) -> None:
    process = parts.process
    await session.register("berth-watcher", identity=process.identity, version=version("berth-watcher"), stats=dict)
    async with lead(
        role="watcher", session=session, client=parts.client, settings=process.settings, process=process
    ) as leadership:
        await Leading(parts, session, leadership).run()


def _causes(errors: BaseExceptionGroup[BerthError]) -> str:
    """The texts of all errors, however deep they lie in the group."""
    parts = (_causes(each) if isinstance(each, BaseExceptionGroup) else str(each) for each in errors.exceptions)
    return "; ".join(dict.fromkeys(parts))
