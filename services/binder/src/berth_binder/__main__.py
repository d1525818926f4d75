"""Composition root of the binder: flags to settings, settings to clients, clients to the service."""

from __future__ import annotations

import berth.bootstrap  # noqa: F401 - before the others
from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.lifecycle.apiserver import kube_client
from berth.lifecycle.clients import nats_bus
from berth.lifecycle.process import Process
from berth.lifecycle.start import service_command
from berth.profiles.configuration import read_configuration
from berth_binder.service import Clients, serve
from berth_binder.settings import binder_settings


async def _serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    async with (
        kube_client(process.settings, name="binder", meter=process.metrics) as client,
        kube_client(process.settings, name="binder-events", meter=process.metrics) as events,
    ):
        clients = Clients(bus=nats_bus(process.settings), api=client, events=events)
        await serve(clients, process, configuration, binder_settings(process.settings))


main = service_command(
    "binder",
    about="Binds ranked pods to nodes: the only service that writes Bindings.",
    read=read_configuration,
    serve=_serve,
)

if __name__ == "__main__":
    main()
