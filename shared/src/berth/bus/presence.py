"""Registration with NATS's service protocol, so that ``nats micro ls`` and ``nats micro stats`` show who is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import EndpointStats

from berth.api.messages import MALFORMED
from berth.api.subjects import PREFIX, escape_token
from berth.bus.connection import Connection
from berth.bus.port import Present

ENDPOINT: Final = "status"
PATIENCE_SECONDS: Final = 0.5
"""How long all answers together may take."""
QUIET_SECONDS: Final = 0.2
"""After which nobody else is expected to answer; nobody says how many there are."""
_ASK: Final = "$SRV.STATS"

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
        description=f"berth: {service.removeprefix('berth-')}",
        metadata={"identity": identity},
        stats_handler=for_listing,
    )
    subject = f"{PREFIX}.service.{escape_token(service)}.{escape_token(identity)}"
    await registered.add_endpoint(name=ENDPOINT, subject=subject, handler=answer)


class _Endpoint(msgspec.Struct, frozen=True):
    data: dict[str, object] | None = None


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    version: str = ""
    metadata: dict[str, str] | None = None
    endpoints: list[_Endpoint] | None = None


_answers: Final = msgspec.json.Decoder(_Answer)


async def present(connection: Connection) -> list[Present]:
    """Everybody who answers to the service protocol's question for stats; what cannot be read is left out."""
    heard: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, heard.put)
    found = []
    try:
        await connection.publish(_ASK, b"", reply=inbox)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    found.append(await asyncio.wait_for(heard.get(), QUIET_SECONDS))
    finally:
        await connection.unsubscribe(subscription)
    return sorted((one for msg in found if (one := _read(msg.data))), key=lambda one: (one.service, one.identity))


def _read(data: bytes) -> Present | None:
    try:
        answer = _answers.decode(data)
    except MALFORMED:
        return None
    identity = (answer.metadata or {}).get("identity", answer.id)
    stats = next((endpoint.data for endpoint in answer.endpoints or () if endpoint.data), {})
    return Present(service=answer.name, identity=identity, version=answer.version, stats=stats)
