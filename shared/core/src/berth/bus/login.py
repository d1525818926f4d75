"""Connects to NATS and logs in with nats-py: addresses, TLS, passwords, tokens, credentials files, nkeys.

After the login the library does nothing more: its socket goes to ``berth.bus.wire``
(docs/adr/0015-the-wire-of-our-own.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ssl
from pathlib import Path
from typing import Any, Final, cast

import nats.errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from berth.bus.interface import BusLostError, BusRefusedError
from berth.bus.settings import BusSettings, NatsCredentials, TlsSettings
from berth.errors import cause_of
from berth.tls import client_context

CLOSE_SECONDS: Final = 0.4
"""How long closing the socket of a failed login may take."""
_REFUSED: Final = "authorization violation"
_WHO: Final = (
    "it wants a user that it knows: BERTH_NATS_USER with BERTH_NATS_PASSWORD_FILE, or a token or credentials file"
)
_UNKNOWN_AUTHORITY: Final = "name the authority of its certificate in BERTH_NATS_CA_FILE"


class Socket(TcpTransport):
    """nats-py's connection over TCP or TLS, which can be taken from it."""

    def __bool__(self) -> bool:
        """Keep nats-py from making another one."""
        return True

    async def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """The transport, and what was read from it and not looked at.

        Raises:
            nats.errors.Error: the server has closed the connection meanwhile.
        """
        reader, writer = self._io_reader, self._io_writer
        if reader is None or writer is None or reader.at_eof() or writer.transport.is_closing():
            raise nats.errors.UnexpectedEOF
        reader.feed_eof()  # nothing more goes there, so that reading what it has does not wait
        return cast("asyncio.Transport", writer.transport), await reader.read()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class Login(Client):
    """nats-py's client until it is logged in. Then it neither reads nor writes."""

    def __init__(self, settings: BusSettings, name: str) -> None:
        """A client that connects once, under this name."""
        super().__init__()
        self._settings = settings
        self._name = name
        self._last_error: Exception | None = None
        self._socket = self._transport = Socket()  # type: ignore[no-untyped-call] # nats-py has no types here

    async def open(self) -> tuple[asyncio.Transport, bytes]:
        """Log in; returns the socket's transport, and what was read from it and not looked at.

        Raises:
            BusLostError: no server can be reached.
            BusRefusedError: the credentials cannot be read, the server refuses them, or it has no TLS.
        """
        options = self._options()
        try:
            async with asyncio.timeout(self._settings.connect_timeout.total_seconds()):
                await self.connect(**options)
            return await self._socket.hand_over()
        except nats.errors.SecureConnRequiredError as exc:
            await self._give_up()
            raise BusRefusedError(f"{self.unreachable(exc)}: TLS is asked for, the server has none") from exc
        except (TimeoutError, OSError, nats.errors.Error) as exc:
            await self._give_up()
            text = self.unreachable(exc)
            if _REFUSED in text.lower():
                raise BusRefusedError(f"connecting to NATS at {self._settings.addresses}: {self._refusal()}") from exc
            is_unknown = isinstance(self._cause(exc), ssl.SSLCertVerificationError)
            raise BusLostError(f"{text}: {_UNKNOWN_AUTHORITY}" if is_unknown else text) from exc

    def unreachable(self, exc: Exception) -> str:
        """The text of an error while connecting."""
        cause = cause_of(self._cause(exc))
        return f"connecting to NATS at {self._settings.addresses} as {self._name!r}: {cause}"

    def _refusal(self) -> str:
        """What the server has refused, and the remedy."""
        who = self._settings.credentials
        if file := who.credentials_file or who.nkey_seed_file:
            return f"it refuses the credentials of {str(file)!r}: they are another server's, or have expired"
        if who.user:
            return f"it refuses user {who.user!r}: the password is wrong, or it knows no such user"
        if who.token:
            return "it refuses the token: it is wrong, or the server takes users only"
        return f"it refuses a client without credentials: {_WHO}"

    def _cause(self, exc: Exception) -> Exception:
        return self._last_error if isinstance(exc, nats.errors.NoServersError) and self._last_error else exc

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        try:
            secrets = _secret_options(settings)
        except (OSError, ValueError) as exc:
            raise BusRefusedError(f"connecting to NATS as {self._name!r}: {exc}") from exc
        return {
            "servers": list(settings.servers),
            "name": self._name,
            "inbox_prefix": settings.inbox_prefix,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": settings.connect_timeout.total_seconds(),
            "error_cb": self._on_error,
            **secrets,
        }

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error

    async def _give_up(self) -> None:
        """Close the socket, even when the server does not take what is buffered."""
        with contextlib.suppress(TimeoutError, OSError, RuntimeError, nats.errors.Error):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close()
        self._socket.abort()
        await asyncio.sleep(0)  # the loop closes the socket in its next turn

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """nats-py's own for a server that asks for TLS has Python's strict checks."""
        context: ssl.SSLContext | None = self.options.get("tls")
        return context or client_context()

    def _connect_command(self) -> bytes:
        """nats-py uses TLS only when the server's INFO requires it.

        An attacker in between could remove that and receive the password.
        """
        info = self._server_info
        if wants_tls(self._settings) and not (info.get("tls_required") or info.get("tls_available")):
            raise nats.errors.SecureConnRequiredError
        return super()._connect_command()

    async def _read_loop(self) -> None:
        """Read nothing after the login."""

    async def _flusher(self) -> None:
        """Write nothing after the login."""

    async def _ping_interval(self) -> None:
        """Send no PING after the login."""


def wants_tls(settings: BusSettings) -> bool:
    """Whether a connection without TLS is refused."""
    return settings.tls is not None or any(server.startswith("tls://") for server in settings.servers)


def _secret_options(settings: BusSettings) -> dict[str, Any]:
    """nats-py's options for TLS and credentials.

    Raises:
        ValueError: a file is missing, or a package that it needs.
        OSError: a file has the wrong content (ssl.SSLError is one).
    """
    who, tls = settings.credentials, settings.tls
    _check_files(who, tls or TlsSettings())
    return {
        "tls": _context(tls) if tls else None,
        "tls_hostname": tls.host_name if tls else None,
        "user": who.user,
        "password": who.password,
        "token": who.token,
        "user_credentials": str(who.credentials_file) if who.credentials_file else None,
        "nkeys_seed": str(who.nkey_seed_file) if who.nkey_seed_file else None,
    }


def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = client_context(tls.authority_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def _check_files(who: NatsCredentials, tls: TlsSettings) -> None:
    """Check files before connecting, since connecting again cannot succeed without them."""
    for path in (who.credentials_file, who.nkey_seed_file, tls.authority_file, tls.certificate_file, tls.key_file):
        _check_readable(path)
    if _signs(who) and importlib.util.find_spec("nkeys") is None:
        raise ValueError("signing with an nkey: the package nkeys is not installed: `pip install nkeys` brings it")


def _check_readable(path: Path | None) -> None:
    if path is not None and not path.is_file():
        raise ValueError(f"reading {str(path)!r}: there is no such file")


def _signs(who: NatsCredentials) -> bool:
    return who.credentials_file is not None or who.nkey_seed_file is not None
