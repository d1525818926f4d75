"""Serves the page: its files, the stream of frames, and answers about pods, nodes and the queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final

import msgspec
from aiohttp import web

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.errors import BerthError, TemporaryError
from berth.cli.console.answers import Document, node_json, pod_queue_json, pod_trace_json, waiting_json, why_json
from berth.cli.console.askagain import AskAgain
from berth.cli.console.feed import Feed
from berth.cli.console.guard import COOKIE, HEADERS, LONGEST_TOKEN, SESSION, Guard
from berth.cli.options import NotFoundError, PodName, parse_pod
from berth.cli.waiting import NobodyLeadsError
from berth.process.exits import UsageError
from berth.process.health import BoundedConnection
from berth.process.safetext import in_json, one_line, without_passwords

MOST_AT_ONCE: Final = 4
"""Questions that are answered at the same time: one may read 20,000 Decisions."""
MOST_WAITING: Final = 32
"""Questions that wait for that."""
ANSWER_SECONDS: Final = 20.0
KEPT_SECONDS: Final = 1.0
"""For which an answer about the queue serves all pages, so that many pages ask the watcher no more than one does."""
PING_SECONDS: Final = 10.0
"""After this long without a frame a page is told that the console lives."""
STALLED_SECONDS: Final = 60.0
"""A page that takes nothing for so long has gone."""
IDLE_SECONDS: Final = 30.0
"""For which a connection that asks nothing is kept."""
WRONG_TOKEN_SECONDS: Final = 0.5
"""Before a wrong token is refused; one at a time, so that guessing is slow whoever guesses."""
SHUTDOWN_SECONDS: Final = 1.0
CONTENT_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
OPEN_PATHS: Final = frozenset({"/", "/login", "/livez", "/readyz"})
"""What may be asked for without being let in; so may the page's files, which are the same for everybody."""
PROBES: Final = frozenset({"/livez", "/readyz"})
"""Asked by the kubelet at the pod's address, which is no name of the page. They tell nothing."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class AnswerTurns:
    """A few questions at a time; of more a bounded number waits."""

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
    """The answers to all requests."""

    def __init__(
        self, feed: Feed, guard: Guard, ask_again: AskAgain, configuration: KubeSchedulerConfiguration
    ) -> None:
        self._feed = feed
        self._guard = guard
        self._ask_again = ask_again
        self._configuration = configuration
        self._files = page_files()
        self._turns = AnswerTurns()
        self._wrong_token = asyncio.Lock()
        self._queue_answers: dict[tuple[str, str], tuple[float, Document]] = {}

    def application(self) -> web.Application:
        """The routes. There is nothing but GET, except for what a person asks for by a button."""
        app = web.Application(middlewares=[self._checked], client_max_size=4 * LONGEST_TOKEN)
        app.router.add_get("/", self._index)
        app.router.add_get("/page/{name}", self._file)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_get("/livez", self._ok)
        app.router.add_get("/readyz", self._ok)
        app.router.add_get("/api/session", self._session)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/queue", self._queue)
        app.router.add_get("/api/nodes/{name}", self._node)
        app.router.add_get("/api/shadows/{shadow}/{namespace}/{name}", self._difference)
        app.router.add_get("/api/pods/{namespace}/{name}/why", self._why)
        app.router.add_get("/api/pods/{namespace}/{name}/trace", self._trace)
        app.router.add_get("/api/pods/{namespace}/{name}/queue", self._pod_queue)
        app.router.add_post("/api/pods/{namespace}/{name}/now", self._now)
        return app

    # --- before every answer

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what may not be asked; errors that berth raises on purpose become an answer."""
        refused = self._why_refused(request)
        try:
            response = refused or await handler(request)
        except web.HTTPException as error:
            response = _error(error.status, error.reason)
        except BerthError as error:
            response = _error(_status_of(error), without_passwords(one_line(str(error))))
        if not response.prepared:  # a stream has its headers already
            response.headers.update(HEADERS)
        return response

    def _why_refused(self, request: web.Request) -> web.Response | None:
        path, host = request.path, request.headers.get("Host")
        if path in PROBES:
            return None
        if not self._guard.knows(host):
            return _error(421, f"no console under the name {host or ''!r:.300}: name it with --allowed-host")
        if request.method not in {"GET", "HEAD"} and not self._guard.same_origin(request.headers.get("Origin"), host):
            return _error(403, "a POST has to come from the console's own page (Origin)")
        if self._may_look(request):
            _admit(request)
            return None
        if path in OPEN_PATHS or path.startswith("/page/"):
            return None
        return _error(401, "who are you? Type the token at the console's first page")

    def _may_look(self, request: web.Request) -> bool:
        cookie = request.cookies.get(COOKIE)
        return self._guard.may_look(request.headers, cookie, request.remote or "", now=time.time())

    # --- the page

    async def _index(self, request: web.Request) -> web.Response:
        return self._static("index.html" if self._may_look(request) else "login.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._static(request.match_info["name"])

    def _static(self, name: str) -> web.Response:
        found = self._files.get(name)
        if found is None:
            raise web.HTTPNotFound
        body, content_type = found
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    async def _ok(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _login(self, request: web.Request) -> web.Response:
        if request.content_type != "application/x-www-form-urlencoded":
            raise web.HTTPUnsupportedMediaType
        given = (await request.post()).get("token")
        if not isinstance(given, str) or not self._guard.is_token(given.strip()):
            async with self._wrong_token:
                await asyncio.sleep(WRONG_TOKEN_SECONDS)
            return _error(403, "that is not the token")
        response = _answer({"login": True})
        response.set_cookie(
            COOKIE,
            self._guard.new_session(now=time.time()),
            max_age=int(SESSION.total_seconds()),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=request.headers.get("Origin", "").startswith("https://"),
        )
        return response

    async def _logout(self, _request: web.Request) -> web.Response:
        response = _answer({"login": True})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _session(self, _request: web.Request) -> web.Response:
        """Whether there is something to log out of; who may not look is told so before."""
        return _answer({"login": self._guard.token is not None})

    # --- what happens

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Frames as Server-Sent Events: the first has everything."""
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
                try:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await response.write(event)
                except (TimeoutError, ConnectionError):  # it has gone
                    return response

    async def _queue(self, request: web.Request) -> web.Response:
        asked = request.query.get("queue", ""), request.query.get("namespace", "")
        now = time.monotonic()
        self._queue_answers = {key: kept for key, kept in self._queue_answers.items() if now - kept[0] < KEPT_SECONDS}
        if asked not in self._queue_answers:
            async with self._turns.turn():
                answer = await waiting_json(self._feed.session, queue=asked[0], namespace=asked[1])
            self._queue_answers[asked] = now, answer
        return _answer(self._queue_answers[asked][1])

    async def _node(self, request: web.Request) -> web.Response:
        return _answer(node_json(self._feed.model.mirror, request.match_info["name"]))

    async def _difference(self, request: web.Request) -> web.Response:
        return _answer(self._feed.model.shadows.document(request.match_info["shadow"], _pod_of(request)))

    async def _why(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return _answer(await why_json(self._feed.session, _pod_of(request), self._configuration))

    async def _trace(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return _answer(await pod_trace_json(self._feed.session, _pod_of(request)))

    async def _pod_queue(self, request: web.Request) -> web.Response:
        async with self._turns.turn():
            return _answer(await pod_queue_json(self._feed.session, _pod_of(request)))

    async def _now(self, request: web.Request) -> web.Response:
        _ = self._feed.session  # so that a NATS that is away is said at once
        name = _pod_of(request)
        return _answer(await self._ask_again.ask(name, self._feed.waiting_pods.get(name)))


@asynccontextmanager
async def serving(server: ConsoleServer, host: str, port: int) -> AsyncIterator[int]:
    """Serve inside the block; yields the port.

    Raises:
        UsageError: it is not possible to listen there.
    """
    runner = web.AppRunner(
        server.application(), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, keepalive_timeout=IDLE_SECONDS
    )
    await runner.setup()
    try:
        answers, strangers = runner.server, dict[BoundedConnection, None]()
        assert answers is not None  # noqa: S101 - the runner is set up
        try:
            listening = await asyncio.get_running_loop().create_server(
                lambda: BoundedConnection(answers(), strangers), host, port
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"listening on {host!r} port {port}: {reason}: choose others with --host, --port") from (
                error
            )
        try:
            yield int(listening.sockets[0].getsockname()[1])
        finally:
            listening.close()
    finally:
        await runner.cleanup()


def _admit(request: web.Request) -> None:
    """Its connection is one of somebody who may look."""
    connection = request.transport.get_protocol() if request.transport is not None else None
    if isinstance(connection, BoundedConnection):
        connection.admit()


def page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page by name, with their types: read once, so that no request names a path."""
    folder = files("berth.cli.console") / "page"
    return {
        each.name: (each.read_bytes(), CONTENT_TYPES[suffix])
        for each in folder.iterdir()
        if (suffix := f".{each.name.rpartition('.')[2]}") in CONTENT_TYPES
    }


def _pod_of(request: web.Request) -> PodName:
    return parse_pod(request.match_info["name"], request.match_info["namespace"])


def _status_of(error: BerthError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, UsageError):
        return 400
    return 503 if isinstance(error, TemporaryError | NobodyLeadsError) else 500


def _error(status: int, text: str) -> web.Response:
    return _answer({"error": text}, status=status)


def _answer(document: object, *, status: int = 200) -> web.Response:
    """A document as JSON, in which nothing is invisible or turns the direction of text."""
    body = in_json(msgspec.json.encode(document).decode()).encode()
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8")
