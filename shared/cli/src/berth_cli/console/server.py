"""Serves the live console: the stream of frames, and answers about pods, nodes and the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.errors import TemporaryError
from berth.exits import UsageError
from berth.profiles.configuration import profiles_of
from berth.safetext import in_json
from berth_cli.console.answers import (
    Document,
    check_queue,
    decisions_json,
    group_json,
    node_json,
    pod_queue_json,
    pod_trace_json,
    waiting_json,
    why_json,
)
from berth_cli.console.askagain import AskAgain
from berth_cli.console.feed import Feed
from berth_cli.console.guard import HEADERS, Guard
from berth_cli.console.pages import GuardedPage, group_in, json_answer, pod_of
from berth_cli.console.queuerefreshes import QueueRefreshes, WantedList
from berth_cli.remedies.asking import Advisory

MOST_AT_ONCE: Final = 4  # questions answered at the same time: one may read 20,000 Decisions
MOST_WAITING: Final = 32  # questions that wait for a turn
ANSWER_SECONDS: Final = 20.0
PING_SECONDS: Final = 10.0  # without a frame before a ping
STALLED_SECONDS: Final = 60.0  # after which a page that reads nothing counts as gone


@dataclass(slots=True)
class AnswerTurns:
    """A few questions at a time; a bounded number waits."""

    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))
    _waiting: int = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, which ends with the block.

        Raises:
            TemporaryError: too many wait, or the block took too long.
        """
        if self._waiting >= MOST_WAITING:
            raise TemporaryError("answering: too many questions wait: try again in a moment")
        self._waiting += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._slots:
                yield
        except TimeoutError as error:
            raise TemporaryError(f"answering: it took more than {ANSWER_SECONDS:g} s") from error
        finally:
            self._waiting -= 1


class ConsoleServer:
    def __init__(
        self, feed: Feed, guard: Guard, ask_again: AskAgain, configuration: KubeSchedulerConfiguration
    ) -> None:
        self._page = GuardedPage(guard, "index.html")
        self._feed = feed
        self._ask_again = ask_again
        self._configuration = configuration
        self._profiles = profiles_of(configuration)
        self._turns = AnswerTurns()
        self._lists = QueueRefreshes(self._read_list)

    def application(self) -> web.Application:
        routes = (
            web.get("/api/stream", self._stream),
            web.get("/api/room", self._room),
            web.get("/api/queue", self._queue),
            web.get("/api/decisions", self._decisions),
            web.get("/api/nodes/{name}", self._node),
            web.get("/api/shadows/{shadow}/{namespace}/{name}", self._difference),
            web.get("/api/groups/{namespace}/{name}", self._group),
            web.get("/api/groups/{namespace}/{name}/trace", self._group_trace),
            web.get("/api/pods/{namespace}/{name}/why", self._why),
            web.get("/api/pods/{namespace}/{name}/trace", self._trace),
            web.get("/api/pods/{namespace}/{name}/queue", self._pod_queue),
            web.post("/api/pods/{namespace}/{name}/now", self._now),
        )
        return self._page.application(routes)

    # --- live frames

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Frames as Server-Sent Events: the first has the whole state. The stream ends with the caller's session."""
        with self._feed.hub.page() as page:
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            while True:
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        frame = await page.next()
                except TimeoutError:
                    event = b": ping\n\n"
                else:
                    event = b"data: " + in_json(frame.decode()).encode() + b"\n\n"
                if not self._page.may_look(request):
                    return response
                try:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await response.write(event)
                except (TimeoutError, ConnectionError):  # The page has gone.
                    return response

    async def _room(self, _request: web.Request) -> web.Response:
        """Why a page is refused: a browser hides the answer to its stream from the page."""
        self._feed.hub.check_room()
        return json_answer({})

    async def _queue(self, request: web.Request) -> web.Response:
        wanted = WantedList(request.query.get("queue", ""), request.query.get("namespace", ""))
        check_queue(wanted.queue)
        _ = self._feed.session  # So that a page learns of a missing NATS at once.
        return json_answer(await self._lists.answer(wanted))

    async def _read_list(self, wanted: WantedList) -> Document:
        async with self._turns.turn():
            return await waiting_json(self._feed.session, queue=wanted.queue, namespace=wanted.namespace)

    async def _decisions(self, request: web.Request) -> web.Response:
        try:
            begin, end = (float(request.query.get(name, "")) for name in ("from", "to"))
        except ValueError:
            raise UsageError("listing Decisions: want `from` and `to` in Unix seconds") from None
        async with self._turns.turn():
            return json_answer(await decisions_json(self._feed.session, begin, end, self._feed.model.mirror.snapshot))

    async def _node(self, request: web.Request) -> web.Response:
        return json_answer(node_json(self._feed.model.mirror, request.match_info["name"]))

    async def _difference(self, request: web.Request) -> web.Response:
        return json_answer(self._feed.model.shadows.document(request.match_info["shadow"], group_in(request)))

    async def _why(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return json_answer(await why_json(self._feed.session, pod_of(request), self._feed.model.mirror.snapshot))

    async def _group(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return json_answer(await group_json(self._advisory(), group_in(request)))

    async def _group_trace(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return json_answer(await pod_trace_json(self._feed.session, group_in(request)))

    async def _trace(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return json_answer(await pod_trace_json(self._feed.session, pod_of(request)))

    async def _pod_queue(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return json_answer(await pod_queue_json(self._advisory(), pod_of(request)))

    def _advisory(self) -> Advisory:
        """Advice from the mirror that the page shows and the pods that the watcher has."""
        return Advisory(
            session=self._feed.session,
            snapshot=self._feed.model.mirror.snapshot,
            digest=self._configuration.digest,
            profiles=self._profiles,
        )

    async def _now(self, request: web.Request) -> web.Response:
        _ = self._feed.session  # So that a page learns of a missing NATS at once.
        name = pod_of(request)
        return json_answer(await self._ask_again.ask(name))
