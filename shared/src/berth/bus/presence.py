"""Registration with NATS's service protocol, so that ``nats micro ls`` and ``nats micro stats`` show who is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import EndpointStats

from berth.api.subjects import PREFIX, escape_token
from berth.bus.connection import Connection

ENDPOINT: Final = "status"

Stats = Callable[[], Mapping[str, object]]


async def register(connection: Connection, service: str, *, identity: str, version: str, stats: Stats) -> None:
    """Register, with one endpoint that answers with the stats: ``nats req berth.service.<service>.<identity> ''``."""

    def for_listing(_: EndpointStats) -> Mapping[str, object]:
        return stats()

    async def answer(request: Request) -> None:
        await request.respond(msgspec.json.encode(stats()))

    registered = await add_service(
        connection.client,
        name=service,
        version=version,
        description=f"berth {service}",
        metadata={"identity": identity},
        stats_handler=for_listing,
    )
    subject = f"{PREFIX}.service.{escape_token(service)}.{escape_token(identity)}"
    await registered.add_endpoint(name=ENDPOINT, subject=subject, handler=answer)
