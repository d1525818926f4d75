"""nats-py's client with five corrections, and its options for TLS and credentials.

The faults: credentials sent without TLS, PINGs that overtake queued messages, and malformed headers, malformed subjects
or a killed server that end the reading task.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import PING_PROTO, Client
from nats.aio.msg import Msg

from berth.bus.settings import BusSettings, NatsCredentials, TlsSettings


class GuardedClient(Client):
    """Overrides behaviour that nats-py has no setting for."""

    def __init__(self, *, only_tls: bool) -> None:
        """``only_tls``: send no credentials on a connection without TLS.

        nats-py uses TLS only when the server's INFO requires it. An attacker in between could remove that and receive
        the password.
        """
        super().__init__()
        self._only_tls = only_tls

    @property
    def is_reading(self) -> bool:
        """Whether the reading task still runs; without it a flush seems to succeed."""
        return self._reading_task is not None and not self._reading_task.done()

    def abort(self) -> None:
        """Close the socket at once; nats-py closes it only after all that is buffered was sent."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002 - nats-py's signature
        """Drop what is pending when the socket is closed: nats-py would write it, and uvloop raises an error then.

        That error would end the reading task, and with it the process, when NATS is killed while much is being sent.
        """
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.is_closing():
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)

    async def ping(self, pong: asyncio.Future[bool]) -> None:
        """Send a PING; the future is done when the server has read all that was sent before it. Never cancel it."""
        await self._send_ping(pong)

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        """nats-py writes its PING before what is queued: the PONG would not show that the server has read that."""
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    def _connect_command(self) -> bytes:
        info = self._server_info
        if self._only_tls and not (info.get("tls_required") or info.get("tls_available")):
            raise nats.errors.SecureConnRequiredError
        return super()._connect_command()

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """Read a subject that is not UTF-8, which NATS allows: in nats-py it would end the reading task."""
        return Msg(
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Read the valid part of a malformed header block: in nats-py it would end the reading task.

        Any client that may publish could stop every reader that way, again at each redelivery.
        """
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):
            return self._parse_header_lines(headers) or None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """The same result as nats-py's, in a third of the time: it looks at each character of each name.

        Parsing headers is a fifth of what a watcher needs to write and read back a large mirror.
        """
        headers: dict[str, str] = {}
        for line in raw.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            if not colon:
                continue
            try:
                key = name.strip().decode("ascii")
            except UnicodeDecodeError:
                continue
            if key.split() == [key] or not key:  # a name has no white space
                headers[key] = value.strip().decode("utf-8", "replace")
        return headers


def wants_tls(settings: BusSettings) -> bool:
    """Whether a connection without TLS is refused."""
    return settings.tls is not None or any(server.startswith(("tls://", "wss://")) for server in settings.servers)


def secret_options(settings: BusSettings) -> dict[str, Any]:
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
    context = ssl.create_default_context(cafile=tls.authority_file)
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
