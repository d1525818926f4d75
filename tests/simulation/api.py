"""The simulated API server without HTTP: berth's client with another way of sending, on the objects of ``berth_sim``.

A request travels, is carried out by the server at one instant, and its answer travels back; the link decides whether
each of them arrives. Nothing that a client does (giving up, pausing, dying) takes back what it has sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

import msgspec

from berth.kube.client import DEFAULT_TIMEOUT, JSON, KubeClient, ResponseStream
from berth.kube.errors import ApiUnreachableError
from berth.kube.http1 import ANSWER_BYTES, Response
from berth_sim.apiserver import listing, patch, status
from berth_sim.apiserver import resources as bindings
from berth_sim.apiserver.kinds import PODS, Route, parse_path
from berth_sim.apiserver.resources import DeleteOptions, Resources
from berth_sim.apiserver.status import StatusError
from berth_sim.apiserver.store import Store, Table
from berth_sim.apiserver.watch import Watch, watch_options
from simulation.loop import Callback, SimulatedProcess, VirtualLoop
from simulation.network import Fate, Link, Network

RESET_SECONDS: Final = 0.05
"""After which a client sees a connection that was reset."""
REFUSALS: Final = ((429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request as the server gets it."""

    process: SimulatedProcess
    method: str
    path: str
    route: Route
    body: Any
    content_type: str
    sent_at: float
    seen: Mapping[str, int]
    """By kind, the newest revision that the client's watch had shown when it sent the request."""
    is_dry: bool = False
    """Whether nothing of it is kept."""


class SimulatedApiServer:
    """One API server. ``observer`` is called before each write that is carried out."""

    def __init__(self, loop: VirtualLoop, network: Network, clock: Callable[[], Any]) -> None:
        self.loop = loop
        self.network = network
        self.resources = Resources(Store(), clock)
        self.refusing = 0.0
        """Share of the writes that get a 429, 500 or 503."""
        self.is_down = False
        self.forbidden: set[tuple[str, str]] = set()
        """Pods whose Binding a policy refuses, by namespace and name."""
        self.denied: set[str] = set()
        """Uids of pods of which it has refused one."""
        self.observers: list[Callable[[ApiRequest], None]] = []
        self.answered: list[Callable[[ApiRequest, Response], None]] = []
        self.on_sending: list[Callable[[SimulatedProcess, str, Route], None]] = []
        """Called when a client sends a write: who, the method and what it is about."""
        self.watches: dict[SimulatedStream, None] = {}

    @property
    def store(self) -> Store:
        return self.resources.store

    def serve(self, request: ApiRequest) -> Response:
        """Carry out one request."""
        try:
            self._refuse_some(request)
            for observer in self.observers:
                observer(request)
            response = self._carry_out(request)
        except StatusError as exc:
            response = Response(status=exc.code, body=exc.encoded(), retry_after=None)
        for listener in self.answered:
            listener(request, response)
        return response

    def _refuse_some(self, request: ApiRequest) -> None:
        if request.method != "GET" and self.refusing > 0 and self.network.chance.random() < self.refusing:
            code, reason = self.network.chance.choice(REFUSALS)
            self.network.count(f"api: {code}")
            raise StatusError(code, reason, "the server is simulating a failure")

    def _carry_out(self, request: ApiRequest) -> Response:
        route, resources = request.route, self.resources.dry() if request.is_dry else self.resources
        kind = route.kind
        match request.method:
            case "GET" if route.name:
                return _ok(resources.find(kind, route.key).encoded(kind))
            case "POST" if route.subresource == "binding":
                name = route.name or (request.body.get("metadata") or {}).get("name", "")
                if (route.namespace, name) in self.forbidden:
                    self.denied.add((request.body.get("metadata") or {}).get("uid", ""))
                    raise StatusError(422, "Invalid", f'a policy denies the Binding of "{name}"')
                bindings.bind(resources, route.namespace, name, request.body)
                return _ok(status.success(HTTPStatus.CREATED), HTTPStatus.CREATED)
            case "POST":
                return _ok(resources.create(kind, route.namespace, request.body).encoded(kind), HTTPStatus.CREATED)
            case "PUT":
                part = "status" if route.subresource == "status" else ""
                stored, is_new = resources.replace(kind, route.key, request.body, part)
                return _ok(stored.encoded(kind), HTTPStatus.CREATED if is_new else HTTPStatus.OK)
            case "PATCH":
                part = "status" if route.subresource == "status" else ""
                change = request.body
                stored = resources.change(
                    kind, route.key, lambda value: patch.apply(request.content_type, value, change), part
                )
                return _ok(stored.encoded(kind))
            case "DELETE":
                return self._delete(request)
        raise AssertionError(f"{request.method} {request.path} is not simulated")

    def _delete(self, request: ApiRequest) -> Response:
        options = request.body or {}
        preconditions = options.get("preconditions") or {}
        given = DeleteOptions(
            grace_seconds=options.get("gracePeriodSeconds"),
            uid=preconditions.get("uid"),
            resource_version=preconditions.get("resourceVersion"),
        )
        kind = request.route.kind
        stored, is_gone = self.resources.delete(kind, request.route.key, given)
        if kind is PODS or not is_gone:
            return _ok(stored.encoded(kind))
        return _ok(status.success(details=status.details_of(kind, request.route.name)))

    def list(self, route: Route, params: Mapping[str, str]) -> Response:
        """Carry out a LIST."""
        try:
            page = listing.list_page(self.store, route.kind, route.namespace, listing.list_options(route.kind, params))
            return _ok(page.encoded(route.kind))
        except StatusError as exc:
            return Response(status=exc.code, body=exc.encoded(), retry_after=None)

    def cut_watches(self, process: SimulatedProcess | None = None) -> None:
        """End open watches, as a restart of the server does."""
        for stream in list(self.watches):
            if process is None or stream.process is process:
                stream.cut()


_NOT_SERVED: Final = Response(status=404, body=b"404 page not found", retry_after=None)


def _ok(body: bytes, code: int = HTTPStatus.OK) -> Response:
    return Response(status=int(code), body=body, retry_after=None)


class SimulatedClient(KubeClient):
    """berth's client of the API server, for one process."""

    def __init__(self, api: SimulatedApiServer, process: SimulatedProcess) -> None:
        self._api = api
        self._process = process
        self._link: Link = api.network.link(process, "api")
        self.seen: dict[str, int] = {}
        """By kind, the newest revision that a LIST or watch has shown to this client."""

    @property
    def server(self) -> str:
        return "http://simulated"

    async def close(self) -> None:
        """Nothing is open."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - as the client's
        largest: int = ANSWER_BYTES,
    ) -> Response:
        route = parse_path(path)
        if route is None:  # a version that this API server does not serve
            return await self._exchange(method, path, timeout, lambda: _NOT_SERVED)
        if method != "GET" and self._check is not None:
            self._check()
        if method != "GET":
            for observer in self._api.on_sending:
                observer(self._process, method, route)
        if method == "GET" and not route.name:
            return await self._list(route, path, params or {}, timeout)
        request = ApiRequest(
            process=self._process,
            method=method,
            path=path,
            route=route,
            body=msgspec.json.decode(body) if body else None,
            content_type=content_type,
            sent_at=self._api.loop.time(),
            seen=dict(self.seen),
            is_dry="dryRun" in (params or {}),
        )
        return await self._exchange(method, path, timeout, lambda: self._api.serve(request))

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - as the client's
    ) -> Response:
        encoded = None if body is None else msgspec.json.encode(body)
        return await self.request(method, path, body=encoded, content_type=content_type, timeout=timeout)

    async def _list(
        self,
        route: Route,
        path: str,
        params: Mapping[str, str],
        timeout: timedelta,  # noqa: ASYNC109 - as the client's
    ) -> Response:
        revision = 0

        def serve() -> Response:
            nonlocal revision
            revision = self._api.store.revision
            return self._api.list(route, params)

        response = await self._exchange("GET", path, timeout, serve)
        if response.succeeded and params.get("limit") != "1":
            self.seen[route.kind.plural] = max(self.seen.get(route.kind.plural, 0), revision)
        return response

    async def _exchange(  # noqa: C901 - the ways that a request may take, side by side
        self,
        method: str,
        path: str,
        timeout: timedelta,  # noqa: ASYNC109 - as the client's
        serve: Callable[[], Response],
    ) -> Response:
        loop, network, link = self._api.loop, self._api.network, self._link
        answer: asyncio.Future[Response] = loop.create_future()

        def fail(words: str) -> None:
            if not answer.done():
                answer.set_exception(ApiUnreachableError(f"{method} {path}: {words}"))

        def resolve(response: Response) -> None:
            if not answer.done():
                answer.set_result(response)

        def arrive() -> None:
            if self._api.is_down:
                loop.in_world(RESET_SECONDS, fail, "connection refused")
                return
            response = serve()
            if fate is Fate.ANSWERED and not link.is_cut:
                loop.in_world(network.latency(link), resolve, response)
            elif network.chance.random() < 0.5:
                loop.in_world(RESET_SECONDS, fail, "connection reset")

        fate = network.fate(link, "api")
        is_last = path.endswith("/binding") or ("/resourceclaims/" in path and path.endswith("/status"))
        if link.late_bindings and is_last:
            fate = Fate.LATE
        if link.held_bindings and is_last:
            fate = Fate.LATE
            network.hold(arrive)
        elif fate is Fate.LATE:
            loop.in_world(network.late(timeout.total_seconds() + network.chance.uniform(0, 20)), arrive)
        elif fate is not Fate.LOST:
            loop.in_world(network.latency(link), arrive)
        elif network.chance.random() < 0.5:
            loop.in_world(RESET_SECONDS, fail, "connection reset")
        timer = loop.call_later(timeout.total_seconds(), fail, f"no answer within {timeout.total_seconds():g} s")
        try:
            return await answer
        finally:
            timer.cancel()

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], read_timeout: timedelta
    ) -> AsyncIterator[ResponseStream]:
        route = parse_path(path)
        assert route is not None, path
        await self._exchange("GET", path, DEFAULT_TIMEOUT, lambda: _ok(b""))
        stream = SimulatedStream(self._api, self._process, self._link, route, params, self.seen)
        try:
            chunks = stream.chunks(read_timeout.total_seconds())
            yield ResponseStream(status=200, retry_after=None, chunks=chunks)
        finally:
            stream.close()


class SimulatedStream:
    """One open watch: the server's side queues lines, the link carries them, the client's side yields them."""

    def __init__(
        self,
        api: SimulatedApiServer,
        process: SimulatedProcess,
        link: Link,
        route: Route,
        params: Mapping[str, str],
        seen: dict[str, int],
    ) -> None:
        self.process = process
        self._api = api
        self._link = link
        self._seen = seen
        self._path = route.kind.plural
        self._watch = Watch(api.store, route.kind, route.namespace, watch_options(route.kind, params))
        self._table: Table = api.store.table(route.kind)
        self._lines: list[tuple[int, bytes]] = []
        self._changed = asyncio.Event()
        self._is_over = False
        self._is_broken = False
        self._last_arrival = 0.0
        self._timers: list[Callback] = []
        self._open(float(params["timeoutSeconds"]))

    def _open(self, seconds: float) -> None:
        """The server takes the watch: what has changed since its version, then every change."""
        try:
            self._watch._begin()
        except StatusError as exc:
            self._send(b'{"type":"ERROR","object":%b}\n' % exc.encoded())
            self._end()
            return
        self._table.listeners[self._on_change] = None
        self._api.watches[self] = None
        self._drain()
        loop = self._api.loop
        self._timers = [
            loop.in_world(max(0.0, seconds - 2.0), self._bookmark),
            loop.in_world(seconds, self._end),
        ]

    def _on_change(self, change: Any) -> None:
        self._watch._take(change)
        self._drain()

    def _bookmark(self) -> None:
        self._watch._mark()
        self._drain()

    def _drain(self) -> None:
        lines, self._watch._lines = self._watch._lines, []
        if lines:
            self._send(b"".join(lines))

    def _send(self, chunk: bytes) -> None:
        """Lines arrive in order, each a little later than it was sent."""
        loop, network = self._api.loop, self._api.network
        slow = max(self._link.slow_messages, self._link.slow_kinds.get(self._path, 0.0))
        late = network.chance.random() * slow if slow else 0.0
        arrival = max(self._last_arrival, loop.time() + network.latency(self._link) + late)
        self._last_arrival = arrival
        loop.in_world(arrival - loop.time(), self._arrive, self._api.store.revision, chunk)

    def _arrive(self, revision: int, chunk: bytes) -> None:
        if self._link.is_cut:
            self._is_broken = True  # TCP loses nothing in between: what follows does not arrive either
        if self._is_broken or self._is_over:
            return
        self._lines.append((revision, chunk))
        self._changed.set()

    def _end(self) -> None:
        """The server ends the watch."""
        self._stop()
        if not self._is_broken and not self._link.is_cut:
            loop = self._api.loop
            loop.in_world(max(0.0, self._last_arrival - loop.time()) + 0.001, self._finish)

    def _finish(self) -> None:
        self._is_over = True
        self._changed.set()

    def cut(self) -> None:
        """The server closes the connection."""
        self._stop()
        self._finish()

    def break_silently(self) -> None:
        """Half open: the client believes that it is connected."""
        self._is_broken = True
        self._stop()

    def close(self) -> None:
        """The client closes it."""
        self._stop()
        self._is_broken = True

    def _stop(self) -> None:
        self._api.watches.pop(self, None)
        self._table.listeners.pop(self._on_change, None)
        for timer in self._timers:
            timer.cancel()

    async def chunks(self, silence: float) -> AsyncIterator[bytes]:
        """The lines as they arrive. After ``silence`` seconds without any the connection counts as broken."""
        while True:
            if self._lines:
                lines, self._lines = self._lines, []
                yield b"".join(chunk for _, chunk in lines)
                self._seen[self._path] = max(self._seen.get(self._path, 0), lines[-1][0])
            elif self._is_over:
                return
            else:
                self._changed.clear()
                timer = self._api.loop.call_later(silence, self._changed.set)
                try:
                    await self._changed.wait()
                finally:
                    timer.cancel()
                if not self._lines and not self._is_over:
                    raise ApiUnreachableError(f"watching {self._path}: no answer")
