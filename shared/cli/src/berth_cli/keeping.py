"""Runs `berth record --keep` until it is stopped: reconnects to NATS, waits for disk space, serves the health port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.bus.interface import BusRefusedError, Session
from berth.errors import BerthError, TemporaryError, first_error
from berth.exits import UsageError
from berth.observability.health import Condition, Health, HealthPortError, health_server
from berth.observability.metrics import PrometheusMeter
from berth.safetext import one_line, without_passwords
from berth.settings.sources import SettingsError, read_settings
from berth_cli.bus import NatsServer, open_session
from berth_cli.options import ANSWERED_BY, until_stopped
from berth_cli.pods.waiting import queue_pages
from berth_cli.recording.segments.folder import locked_folder
from berth_cli.recording.segments.keeper import Keeper
from berth_cli.rendering import amount_of_bytes, duration, note, print_line

RETRY_SECONDS: Final = 1.0

OnConnected = Callable[[Session], Awaitable[None]]  # called when the first session is open


@dataclass(slots=True, kw_only=True)
class Keeping:
    folder: Path
    keep: timedelta
    most_bytes: int
    configuration: KubeSchedulerConfiguration
    server: NatsServer
    on_connected: OnConnected
    _health: Health = field(init=False, default_factory=Health)
    _nats: Condition = field(init=False)
    _disk: Condition = field(init=False)
    _has_read: bool = field(init=False, default=False)
    _disk_failed: bool = field(init=False, default=False)
    _missing: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self._nats = self._health.condition("nats", "reading NATS: not yet at the end of what it has")
        self._disk = self._health.condition("disk", "writing: no segment yet")

    async def run(self) -> None:
        """Record until stopped.

        Raises:
            UsageError: the folder or the health port cannot be used, or the first session is refused.
        """
        with locked_folder(self.folder, keep=self.keep, most_bytes=self.most_bytes) as folder:
            keeper = Keeper(
                folder,
                self.configuration,
                queue_pages,
                on_disk=self._on_disk,
                on_missing=self._on_missing,
            )
            async with _serving(self._health):
                await until_stopped(self._read(keeper))
            size = folder.size
        print_line(f"stopped: {self.folder} has {amount_of_bytes(size)}")

    async def _read(self, keeper: Keeper) -> None:
        while True:
            try:
                async with open_session(self.server, name="record", is_named=False) as session:
                    if not self._has_read:
                        note(str(ANSWERED_BY.get()))
                        await self.on_connected(session)
                    await keeper.follow(session, on_begun=self._begun)
            except (BerthError, BaseExceptionGroup) as error:
                cause = first_error(error)
                if not self._may_come_back(cause):
                    raise
                self._lost(without_passwords(one_line(str(cause))))
            await asyncio.sleep(RETRY_SECONDS)

    def _may_come_back(self, error: BaseException) -> bool:
        # Errors before the first session end the command, unless NATS is just unreachable.
        is_away = isinstance(error, TemporaryError | BusRefusedError)
        return is_away or (isinstance(error, BerthError) and self._has_read)

    def _begun(self) -> None:
        """Report that a segment has all stored messages."""
        if self._nats.is_ready:
            return
        if self._has_read:
            note("NATS is back")
        else:
            most = amount_of_bytes(self.most_bytes)
            note(f"keeping the last {duration(self.keep.total_seconds())} in {self.folder}, {most} at most")
        self._has_read = True
        self._nats.ready()

    def _lost(self, reason: str) -> None:
        if self._nats.is_ready or self._nats.sentence != reason:
            note(f"{reason}; trying again")
        self._nats.waiting(reason)

    def _on_missing(self, missing: str) -> None:
        """Report that a segment has no list of waiting pods."""
        if missing and missing != self._missing:
            note(f"{without_passwords(one_line(missing))}; the next segment asks again")
        self._missing = missing

    def _on_disk(self, reason: str) -> None:
        if reason and not self._disk_failed:
            note(f"{reason}; recording pauses until there is room")
        elif not reason and self._disk_failed:
            note(f"there is room again in {self.folder}: recording")
        self._disk_failed = bool(reason)
        if reason:
            self._disk.waiting(reason)
        else:
            self._disk.ready()


@asynccontextmanager
async def _serving(health: Health) -> AsyncIterator[None]:
    """Serve /livez and /readyz in the block if BERTH_HEALTH_PORT is set, as in berth's image.

    Raises:
        UsageError: the setting is invalid, or the port is taken.
    """
    try:
        settings = read_settings().health
    except SettingsError as exc:
        raise UsageError("; ".join(exc.problems)) from exc
    if not settings.port:
        yield
        return
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(health_server(settings, health, PrometheusMeter()))
        except HealthPortError as exc:
            what = str(exc).partition(": choose another")[0]
            raise UsageError(f"{what}: choose another with BERTH_HEALTH_PORT") from exc
        yield
