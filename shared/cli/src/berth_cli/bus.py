"""A command's session on NATS: server and user come from flags or from ``BERTH_NATS_*``.

Without an address, the server of this user's own ``berth up`` is asked; never another one on NATS's port, which may be
another person's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from berth.bus.interface import Bus, BusLostError, BusRefusedError, MissingError, Session, UnansweredError
from berth.bus.settings import IMPORTED_DOMAIN
from berth.bus.topology import CLUSTER_ID_KEY, CONTROL
from berth.errors import BerthError
from berth.exits import UsageError
from berth.settings.settings import NatsSettings, Settings
from berth.settings.sources import SettingsError, read_settings
from berth_cli.natscontext import context_settings
from berth_cli.options import ANSWERED_BY, Source
from berth_cli.pipeline import access
from berth_cli.rendering import print_line

NatsUrl = Annotated[
    str | None,
    typer.Option(
        "--nats",
        metavar="URL",
        help="The address of NATS; by default BERTH_NATS_URL, else your own `berth up`.",
        show_default=False,
    ),
]


URL_VARIABLE: Final = "BERTH_NATS_URL"
PREFIX_VARIABLE: Final = "BERTH_NATS_PREFIX"

NatsContext = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Server and credentials of a context of the NATS CLI (~/.config/nats/context/NAME.json).",
        envvar="NATS_CONTEXT",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class NatsServer:
    url: str | None = None
    context: str | None = None


@asynccontextmanager
async def open_session(
    server: NatsServer, *, name: str, user: str = access.PEOPLE, is_named: bool = True
) -> AsyncIterator[Session]:
    """Open a session; ``user``: the NATS user at the embedded server of a pipeline.

    Cluster and NATS are in each document that the command prints from then on, or the first line of its answer
    (``is_named``).

    Raises:
        UsageError: the address, or a setting in ``BERTH_NATS_*``, is invalid, or there are several to choose from.
        BusLostError: NATS does not answer, or no address is known.
        MissingError: this NATS has no streams of berth, or no JetStream.
    """
    settings = _settings(server.url, user, context=server.context)
    try:
        session = await _connect(settings, name=f"berth-{name}")
    except BusLostError as exc:
        raise BusLostError(f"{exc}: start `berth up`, or name the server with --nats") from exc
    try:
        if not session.bus_id:
            what = "reading NATS: it has no streams of berth, or no JetStream"
            remedy = "start `berth up`, run `berth bus apply`, or name its JetStream domain with BERTH_NATS_DOMAIN"
            raise MissingError(f"{what}: {remedy}")
        source = await name_source(session, settings.nats.url)
        if is_named:
            print_line(str(source))
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def open_admin_session(server: NatsServer, *, name: str, is_named: bool = True) -> AsyncIterator[Session]:
    """A session as NATS's user `apply`, for commands that change something. Raises as :func:`open_session`.

    Raises:
        UsageError: this user has no right to do that.
    """
    async with open_session(server, name=name, user=access.APPLY, is_named=is_named) as session:
        try:
            yield session
        except BusRefusedError as error:
            what = str(error).partition(": give this user")[0]
            raise UsageError(f"{what}: this is an admin's command: connect as NATS's user {access.APPLY!r}") from error


async def connect_bus(  # noqa: PLR0913 - which server, and which user
    url: str | None,
    *,
    name: str = "berth",
    user: str = access.PEOPLE,
    place: Path | None = None,
    context: str | None = None,
    is_own: bool = False,
) -> Session:
    """A session for a command. Credentials come from ``BERTH_NATS_*``, as for the services.

    With a context of the NATS CLI they come from the context; only the prefix still comes from ``BERTH_NATS_*``.

    Without credentials, a session at the embedded server of a pipeline of the same system user takes the password of
    ``user`` from the pipeline's folder. ``place`` is as in ``find_folder``. ``is_own``: the server is this process's
    own pipeline; credentials in ``BERTH_NATS_*`` are ignored.

    Raises:
        UsageError: the address or a setting is invalid, or the server refuses this user.
        BusLostError: no server answers.
    """
    return await _connect(_settings(url, user, place=place, context=context, is_own=is_own), name=name)


def _settings(
    url: str | None, user: str, *, place: Path | None = None, context: str | None = None, is_own: bool = False
) -> Settings:
    """Server and credentials, as :func:`connect_bus` says.

    Raises:
        UsageError, BusLostError: as there.
    """
    if url is None and context is None and URL_VARIABLE not in os.environ:
        url = _own_address(place)
    try:
        flags = {**(context_settings(context) if context else {}), **({"nats.url": url} if url else {})}
        environment = _without_nats() if context else None
        settings = read_settings(flags=flags, environment=environment, flag_names={"nats.url": "--nats"})
        folder = None if context else access.find_folder(settings.nats.url, place)
        if folder is not None and (is_own or is_anonymous(settings.nats)):
            own = {URL_VARIABLE: settings.nats.url, **access.environment(folder, user, settings.nats.prefix)}
            settings = read_settings(environment=_without_nats() | own)
    except SettingsError as exc:
        raise UsageError("; ".join(exc.problems)) from exc
    return settings


def _own_address(place: Path | None) -> str:
    """The address of this user's own `berth up`; of several, that on NATS's own port.

    Raises:
        BusLostError: no pipeline runs.
        UsageError: several run, all on other ports.
    """
    addresses = access.own_addresses(place)
    if NatsSettings().url in addresses:
        return NatsSettings().url
    if not addresses:
        raise BusLostError(_NO_ADDRESS)
    if len(addresses) > 1:
        raise UsageError(f"choosing NATS: {len(addresses)} of your pipelines run, at {', '.join(addresses)}: name one")
    return addresses[0]


_NO_ADDRESS: Final = (
    "choosing NATS: no address is given, and no `berth up` of yours runs with this TMPDIR: start it, name the server "
    f"with --nats or {URL_VARIABLE}, or with compose type `. deploy/compose/people.sh`"
)


async def name_source(session: Session, nats: str) -> Source:
    """The cluster and NATS of the session, for the documents that this command prints from now on."""
    source = Source(cluster=await served_cluster(session), nats=nats, kubeconfig=access.cluster_of(nats))
    ANSWERED_BY.set(source)
    return source


async def served_cluster(session: Session) -> str:
    """uid of the cluster that this bus serves; empty if no watcher has written it, or this user may not read it."""
    with suppress(BusRefusedError, UnansweredError):
        entry = await session.get(CONTROL, CLUSTER_ID_KEY)
        if entry is not None and entry.data is not None:
            return entry.data.decode(errors="replace")
    return ""


async def _connect(settings: Settings, *, name: str) -> Session:
    try:
        return await bus_of(settings).connect(name=name)
    except BusRefusedError as exc:
        if (domain := await _domain_of(settings, name)) is not None:
            raise UsageError(_wrong_domain(settings, domain)) from exc
        raise UsageError(str(exc)) from exc


def bus_of(settings: Settings) -> Bus:
    """The bus. The first call imports the NATS client, 0.25 s of CPU: until then `berth up` has servers to start."""
    # nats-py imports aiohttp, 0.12 s more, if it is there. It needs it for WebSocket addresses, which berth refuses.
    has_http = "aiohttp" in sys.modules
    if not has_http:
        sys.modules["aiohttp"] = None  # type: ignore[assignment]  # import then raises ImportError
    try:
        from berth.lifecycle.clients import nats_bus  # noqa: PLC0415 - see above
    finally:
        if not has_http:
            del sys.modules["aiohttp"]
    return nats_bus(settings)


async def _domain_of(settings: Settings, name: str) -> str | None:
    """Another JetStream domain than the configured one, in which this user finds berth's streams."""
    for domain in {"", IMPORTED_DOMAIN} - {settings.nats.domain}:
        nats = replace(settings.nats, domain=domain)
        try:
            session = await bus_of(replace(settings, nats=nats)).connect(name=name)
        except BerthError:
            continue
        await session.close()
        if session.bus_id:
            return domain
    return None


def _wrong_domain(settings: Settings, domain: str) -> str:
    who = f"user {settings.nats.user!r}" if settings.nats.user else "this user"
    if not domain:
        set_to = f"BERTH_NATS_DOMAIN={settings.nats.domain}"
        return f"reading NATS: the account of {who} has berth's streams itself: leave {set_to} away"
    what = f"has no streams; it imports those of berth, under the JetStream domain {domain!r}"
    return f"reading NATS: the account of {who} {what}: set BERTH_NATS_DOMAIN={domain}"


def _without_nats() -> dict[str, str]:
    """The environment without NATS's address and credentials; the prefix stays."""
    names = (name for name in os.environ if name == PREFIX_VARIABLE or not name.startswith("BERTH_NATS_"))
    return {name: os.environ[name] for name in names}


def is_anonymous(nats: NatsSettings) -> bool:
    """Whether these settings have no credentials."""
    return not (nats.user or nats.token or nats.credentials_file or nats.cert_file)


async def apply_bus(url: str, *, is_own: bool = False) -> None:
    """``is_own`` is as in `connect_bus`."""
    session = await connect_bus(url, user=access.APPLY, is_own=is_own)
    try:
        await session.apply()
    finally:
        await session.close()
