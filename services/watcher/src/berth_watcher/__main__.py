"""Composition root of the watcher: flags to settings, settings to clients, clients to the service."""

from __future__ import annotations

import berth.bootstrap  # noqa: F401 - before the others
from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.lifecycle.apiserver import kube_client
from berth.lifecycle.clients import nats_bus
from berth.lifecycle.process import Process
from berth.lifecycle.start import service_command
from berth.profiles.configuration import read_configuration
from berth_watcher.service import serve
from berth_watcher.settings import watcher_settings


async def _serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    settings = watcher_settings(process.settings, configuration)
    async with kube_client(process.settings, name="watcher", meter=process.metrics) as client:
        await serve(nats_bus(process.settings), client, process, configuration, settings)


main = service_command(
    "watcher",
    about="Mirrors the cluster onto NATS and releases pending pods by priority, then age. Two run, one leads.",
    read=read_configuration,
    serve=_serve,
)

if __name__ == "__main__":
    main()
