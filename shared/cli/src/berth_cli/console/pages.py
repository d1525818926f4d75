"""Shared by the console's pages: files, access, headers, errors as answers, a port.

:mod:`berth_cli.console.server` serves the live console, :mod:`berth_cli.replayed.server` a recording.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Final

import msgspec
from aiohttp import web

from berth.errors import BerthError, TemporaryError
from berth.exits import UsageError
from berth.observability.health import BoundedConnection, ServerLogger
from berth.safetext import in_json, one_line, without_passwords
from berth_cli.console.guard import COOKIE, HEADERS, LONGEST_TOKEN, SESSION, Guard, is_loopback
from berth_cli.options import NotFoundError, PodName, parse_pod
from berth_cli.pods.waiting import NoLeaderError
from berth_cli.rendering import note, print_line

IDLE_SECONDS: Final = 30.0  # before an idle connection is closed
# Delay of a refusal; one at a time, so that guessing is slow for all callers together.
WRONG_TOKEN_SECONDS: Final = 0.5
SHUTDOWN_SECONDS: Final = 1.0
CONTENT_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
# Paths without access control; the page's files are open too, because they are the same for everybody.
OPEN_PATHS: Final = frozenset({"/", "/login", "/livez", "/readyz"})
# The kubelet requests them at the pod's address, which is no accepted Host. They reveal nothing.
PROBES: Final = frozenset({"/livez", "/readyz"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class GuardedPage:
    """A page that begins with the file ``index``, for callers that the guard admits."""

    def __init__(self, guard: Guard, index: str) -> None:
        self._guard = guard
        self._index_file = index
        self._files = page_files()
        self._wrong_token = asyncio.Lock()

    def application(self, routes: Iterable[web.RouteDef]) -> web.Application:
        """The page with further routes. Only GET, except for buttons."""
        app = web.Application(middlewares=[self._checked], client_max_size=4 * LONGEST_TOKEN)
        app.router.add_get("/", self._index)
        app.router.add_get("/page/{name}", self._file)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_get("/livez", self._ok)
        app.router.add_get("/readyz", self._ok)
        app.router.add_get("/api/session", self._session)
        app.router.add_routes(routes)
        return app

    # --- before every answer

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # Refuses requests without access; berth's errors become answers.
        try:
            response = await self._why_refused(request) or await handler(request)
        except web.HTTPException as error:
            response = _error_answer(error.status, error.reason)
        except BerthError as error:
            response = _error_answer(_status_of(error), without_passwords(one_line(str(error))))
        if not response.prepared:  # A stream has already sent its headers.
            response.headers.update(HEADERS)
        return response

    async def _why_refused(self, request: web.Request) -> web.Response | None:
        path, host = request.path, request.headers.get("Host")
        if path in PROBES:
            return None
        if not self._guard.knows(host):
            return _error_answer(421, f"no console under the name {host or ''!r:.300}: name it with --allowed-host")
        if request.method not in {"GET", "HEAD"} and not self._guard.same_origin(request.headers.get("Origin"), host):
            return _error_answer(403, "a POST has to come from the console's own page (Origin)")
        if self.may_look(request):
            _admit(request)
            return None
        if self._guard.is_guess(request.headers):
            await self._hold_up()
        if path in OPEN_PATHS or path.startswith("/page/"):
            return None
        return _error_answer(401, "who are you? Type the token at the console's first page")

    def may_look(self, request: web.Request) -> bool:
        cookie = request.cookies.get(COOKIE)
        return self._guard.may_look(request.headers, cookie, request.remote or "", now=time.time())

    async def _hold_up(self) -> None:
        # Delays the refusal of a wrong token.
        async with self._wrong_token:
            await asyncio.sleep(WRONG_TOKEN_SECONDS)

    # --- the page

    async def _index(self, request: web.Request) -> web.Response:
        return self._static(self._index_file if self.may_look(request) else "login.html")

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
            await self._hold_up()
            return _error_answer(403, "that is not the token")
        response = json_answer({"login": True})
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
        response = json_answer({"login": True})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _session(self, _request: web.Request) -> web.Response:
        # Whether there is a session to log out of; callers without access are refused before.
        return json_answer({"login": self._guard.token is not None})


@asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve inside the block; yields the port.

    Raises:
        UsageError: it is not possible to listen there.
    """
    runner = web.AppRunner(
        application,
        logger=ServerLogger(),
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=IDLE_SECONDS,
    )
    await runner.setup()
    try:
        answers, unadmitted = runner.server, dict[BoundedConnection, None]()
        assert answers is not None  # noqa: S101 - the runner is set up
        try:
            listening = await asyncio.get_running_loop().create_server(
                lambda: BoundedConnection(answers(), unadmitted), host, port
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
    # The connection belongs to an admitted caller.
    connection = request.transport.get_protocol() if request.transport is not None else None
    if isinstance(connection, BoundedConnection):
        connection.admit()


async def serve(
    application: web.Application, guard: Guard, port: int, what: str, work: Callable[[], Awaitable[object]]
) -> None:
    """Serve, print the address, and work until cancelled. Raises as :func:`serving` and the work."""
    async with serving(application, guard.host, port) as listening:
        shown = guard.host if ":" not in guard.host else f"[{guard.host}]"
        print_line(f"{what} at http://{shown}:{listening}/")
        if not is_loopback(guard.host):
            note("it speaks plain HTTP: put a proxy with TLS before it where others could listen")
        await work()


def page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page by name, with their types, read once, so that requests never name a path."""
    folder = files("berth_cli.console") / "page"
    return {
        each.name: (each.read_bytes(), CONTENT_TYPES[suffix])
        for each in folder.iterdir()
        if (suffix := f".{each.name.rpartition('.')[2]}") in CONTENT_TYPES
    }


def pod_of(request: web.Request) -> PodName:
    """The pod named by a path. Raises UsageError: not a pod name."""
    return parse_pod(request.match_info["name"], request.match_info["namespace"])


def group_in(request: web.Request) -> PodName:
    """The pod, or PodGroup as in subjects, named by a path. Raises UsageError: not such a name."""
    name = request.match_info["name"]
    named = parse_pod(name.lstrip("~"), request.match_info["namespace"])
    return PodName(namespace=named.namespace, name=name)


def _status_of(error: BerthError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, UsageError):
        return 400
    return 503 if isinstance(error, TemporaryError | NoLeaderError) else 500


def _error_answer(status: int, text: str) -> web.Response:
    return json_answer({"error": text}, status=status)


def json_answer(document: object, *, status: int = 200) -> web.Response:
    return encoded_answer(safe_json(document), status=status)


def safe_json(document: object) -> bytes:
    """JSON without invisible characters or changes of text direction."""
    return in_json(msgspec.json.encode(document).decode()).encode()


def encoded_answer(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8")
