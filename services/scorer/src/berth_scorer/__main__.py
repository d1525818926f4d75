"""Composition root of the scorer: flags to settings, settings to clients, clients to the service."""

from __future__ import annotations

from dataclasses import replace

import berth.bootstrap  # noqa: F401 - before the others
from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.lifecycle.clients import nats_bus
from berth.lifecycle.process import Process
from berth.lifecycle.start import service_command
from berth.messages.shadow import SHADOW_SERVICE
from berth.profiles.configuration import profiles_of, read_configuration
from berth.ranking.ranker import Ranker, explain
from berth.settings.settings import V_SCORE
from berth_scorer.service import serve
from berth_scorer.shadow import serve_shadow


async def _serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    ranker = Ranker(
        profiles=profiles_of(configuration, process.settings.numbers.plugin_deadline),
        config=configuration.digest,
        identity=process.identity,
        best=process.settings.numbers.best,
        explained=process.settings.numbers.explained,
        explain=explain if process.settings.log.verbosity >= V_SCORE else None,
    )
    bus, shadow = nats_bus(process.settings), process.settings.shadow
    if shadow is not None:
        await serve_shadow(replace(process, name=SHADOW_SERVICE), bus, ranker, shadow)
    else:
        await serve(process, bus, ranker, [extender for extender in configuration.extenders if extender.is_asked])


main = service_command(
    "scorer",
    about="Ranks nodes for pending pods; any number run side by side. Needs NATS and no Kubernetes credentials.",
    read=read_configuration,
    serve=_serve,
)

if __name__ == "__main__":
    main()
