"""What the commands that only look have in common: where NATS is, and in which form they answer.

A pod as people name it: ``namespace/name``, or the name alone in the namespace ``default``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from berth.api.errors import BerthError
from berth.api.subjects import PREFIX, escape_dotted, escape_token
from berth.bus.interface import BusLostError, MissingError, Session
from berth.process.exits import UsageError
from berth.process.sessions import nats_bus
from berth.process.settings import NatsSettings
from berth.process.sources import SettingsError, read_settings


class OutputFormat(StrEnum):
    """In which form a command answers."""

    TABLE = "table"
    JSON = "json"


class NoSuchThingError(BerthError):
    """The answer is no: there is nothing of what was asked for."""


Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="For people or for programs.")]

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


DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """Which pod a command is about."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def filter(self, stage: str) -> str:
        """The subjects of the pod's messages of a stage (``*``: of all), whichever profile serves it."""
        return f"{PREFIX}.{stage}.*.{escape_token(self.namespace)}.{escape_dotted(self.name)}"


def parse_pod(text: str) -> PodName:
    """Read what was typed.

    Raises:
        UsageError: it is no pod's name.
    """
    namespace, slash, name = text.rpartition("/")
    if not name or (slash and not namespace) or "/" in namespace:
        raise UsageError(f"reading the pod {text!r}: want NAMESPACE/POD, or POD in the namespace {DEFAULT_NAMESPACE}")
    return PodName(namespace=namespace or DEFAULT_NAMESPACE, name=name)
