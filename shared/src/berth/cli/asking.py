"""What the commands that only look have in common: where NATS is, and in which form they answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Annotated

import typer

from berth.api.errors import BerthError
from berth.bus.port import BusLostError, MissingError, Session
from berth.service.connections import nats_bus
from berth.service.exits import UsageError
from berth.service.settings import NatsSettings
from berth.service.sources import SettingsError, read_settings


class Form(StrEnum):
    """In which form a command answers."""

    TABLE = "table"
    JSON = "json"


class NoSuchThingError(BerthError):
    """The answer is no: there is nothing of what was asked for."""


Output = Annotated[Form, typer.Option("-o", "--output", help="For people or for programs.")]
NatsUrl = Annotated[
    str | None,
    typer.Option(
        "--nats",
        metavar="URL",
        help=f"Where NATS is: BERTH_NATS_URL, else {NatsSettings().url}.",
        show_default=False,
    ),
]


@asynccontextmanager
async def asking(nats: str | None, *, name: str) -> AsyncIterator[Session]:
    """A session for a command that only looks; user, password and the like come from ``BERTH_NATS_*``.

    Raises:
        UsageError: the address or what belongs to it cannot be used.
        BusLostError: nobody is there.
    """
    try:
        settings = read_settings(flags={"nats.url": nats} if nats else {})
    except SettingsError as exc:
        raise UsageError("; ".join(exc.problems)) from exc
    try:
        session = await nats_bus(settings).connect(name=f"berth-{name}")
    except BusLostError as exc:
        raise BusLostError(f"{exc}: start `berth up`, or name the server with --nats") from exc
    try:
        _see_that_it_is_ours(session)
        yield session
    finally:
        await session.close()


def _see_that_it_is_ours(session: Session) -> None:
    if not session.bus_id:
        raise MissingError("looking at NATS: it has nothing of berth: start `berth up`, or run `berth bus apply`")
