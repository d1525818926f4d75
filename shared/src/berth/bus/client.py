"""nats-py's client with four holes closed: secrets in the open, PINGs that overtake, headers and ends that kill."""

from __future__ import annotations

import asyncio

import nats.errors
from nats.aio.client import PING_PROTO, Client


class GuardedClient(Client):
    """Overrides what nats-py has no setting for."""

    def __init__(self, *, only_tls: bool) -> None:
        """``only_tls``: never introduce oneself on a connection without TLS.

        nats-py turns to TLS only when the server asks for it: somebody in between who leaves that out would be told
        the password.
        """
        super().__init__()
        self._only_tls = only_tls

    @property
    def is_reading(self) -> bool:
        """Whether the task that reads from the server still runs; without it even a flush seems to succeed."""
        return self._reading_task is not None and not self._reading_task.done()

    def abort(self) -> None:
        """Close the socket at once; the library only closes it after all that is buffered was taken."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002 - as the library has it
        """On a socket that is gone the library would still write what is pending, which uvloop answers with an error.

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
        """The library writes its PING past what is still queued: the answer then says nothing of what went before."""
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    def _connect_command(self) -> bytes:
        info = self._server_info
        if self._only_tls and not (info.get("tls_required") or info.get("tls_available")):
            raise nats.errors.SecureConnRequiredError
        return super()._connect_command()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """A header block without its first line, or with a status that is no text, would end the reading task.

        Anybody who may publish could do that to every reader, again at each redelivery. What can be read of it is read.
        """
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):
            return self._parse_header_lines(headers) or None
