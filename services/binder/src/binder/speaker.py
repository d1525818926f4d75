"""Tells people: sends Events and conditions as their budget allows, in tasks of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from berth.api.errors import BerthError
from berth.api.messages import Decision
from berth.api.pod import Pod
from berth.kube.client import KubeClient
from berth.service.process import Process
from binder.announcements import EventNote
from binder.budget import Budget, Note
from binder.requests import tell


class Speaker:
    """Lives as long as the process: what a leader decided is still told when it no longer leads."""

    def __init__(self, client: KubeClient, process: Process, budget: Budget | None = None) -> None:
        self._client = client
        self._process = process
        self._budget = budget or Budget()
        self._woken = asyncio.Event()
        self._answered = asyncio.Event()
        self._dropped = 0
        self.bindings_wait = False
        """Whether pods wait for a place on the wire: then less is said at once."""

    def offer(self, said: Decision, pod: Pod) -> None:
        """Tell people of this Decision when there is room."""
        self._budget.offer(said, pod)
        if self._budget.dropped > self._dropped:
            dropped = self._budget.dropped - self._dropped
            self._process.metrics.count("berth_api_events_total", dropped, result="dropped")
            self._dropped = self._budget.dropped
        self._woken.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                note = self._budget.next(self._process.clock.now(), bindings_wait=self.bindings_wait)
                if note is None:
                    await self._rest()
                else:
                    tasks.create_task(self._send(note))

    async def finish(self, seconds: float) -> None:
        """Give what waits so much time to go out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._budget.is_busy:
                    self._answered.clear()
                    await self._answered.wait()

    async def _rest(self) -> None:
        now = self._process.clock.now()
        due = self._budget.due(now)
        self._woken.clear()
        try:
            async with asyncio.timeout(None if due is None else due - now):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _send(self, note: Note) -> None:
        try:
            status = (await tell(self._client, note, instance=self._process.identity)).status
        except BerthError:
            status = 0
        finally:
            self._budget.done()
            self._woken.set()
            self._answered.set()
        if status == HTTPStatus.NOT_FOUND and isinstance(note, EventNote):
            self._budget.forget(note)
        sent = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.CONFLICT
        self._process.metrics.count("berth_api_events_total", result="sent" if sent else "failed")
