"""What a leader checks about itself: that it makes progress, and that its work queue delivers what it holds."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from berth.bus.interface import Session
from berth.bus.orphans import CHECK_SECONDS, OrphanCheck
from berth.leader.session import LeaderSession
from berth.leader.term import Role
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import Refusals
from berth.observability.health import Progress

PROGRESS_SECONDS: Final = 1.0
"""Between two checks for progress."""
VERIFY_EVERY: Final = 3
"""Checks for orphans between two verifications of everything that berth declares on the bus: a request for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChecks:
    """The checks of one leadership. Each runs until it is cancelled."""

    process: Process
    leadership: LeaderSession
    role: Role

    async def check_progress(
        self, progress: Progress, describe: Callable[[], str], *, waiting: Callable[[], int], begun: Callable[[], int]
    ) -> None:
        """Give up the Lease when work waits and none is begun: another process may go on. As ``Progress.check``."""
        progress.begin()
        while True:
            await self.process.clock.sleep(PROGRESS_SECONDS)
            reason = progress.check(describe, waiting=waiting(), begun=begun())
            if reason is not None:
                self.process.metrics.count("berth_stalls_total", role=self.role)
                self.leadership.end(reason)

    async def check_orphans(
        self,
        session: Session,
        orphans: OrphanCheck,
        on_found: Callable[[str], Awaitable[None]],
        *,
        verifies: bool = False,
    ) -> None:
        """Call ``on_found`` with the reason when the consumer does not deliver what its stream holds, or is missing.

        ``verifies``: in turn with this, since ``on_found`` may take the consumer away, verify streams and buckets. What
        is missing ends the leadership, and the next session makes it anew.
        """
        refusals = Refusals("cannot look after the streams")
        for number in itertools.count(1):
            await self.process.clock.sleep(CHECK_SECONDS)
            with refusals.logged_once():
                if problem := await orphans.find():
                    self.process.metrics.count("berth_orphans_found_total", stream=orphans.stream)
                    await on_found(problem)
            if verifies and number % VERIFY_EVERY == 0:
                with refusals.logged_once():
                    await session.verify()
