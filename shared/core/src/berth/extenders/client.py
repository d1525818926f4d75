"""Calls HTTP extenders: filter one after another, prioritize all at once, preempt, bind, as kube-scheduler does.

An extender is I/O and may be slow or broken. During a call the service handles other pods; each call has the extender's
time limit and a limit on its answer's size, and the number of concurrent calls is bounded.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import aiohttp

from berth.api.config.configuration import ExtenderConfiguration, ExtenderTls
from berth.api.node import Node
from berth.api.pod import Pod
from berth.errors import PermanentError
from berth.extenders.wire import (
    ExtenderError,
    FilterAnswer,
    binding_answer,
    binding_args,
    extender_args,
    filter_answer,
    preemption_answer,
    preemption_args,
    priorities,
    shown,
)
from berth.framework.cycle import ToExtend
from berth.framework.extending import Extension, binds, is_interested
from berth.framework.interface import Nomination
from berth.framework.preemption import Evictions
from berth.framework.status import Status
from berth.log import get_logger
from berth.observability.metrics import Meter
from berth.tls import client_context

log = get_logger()

# Bytes of an answer, in addition to twice the request, whose nodes the answer repeats.
ANSWER_BYTES: Final = 1 << 20
# Concurrent calls of an extender that gets node names: as many as a scorer holds pods.
CALLS: Final = 64
# Concurrent calls of an extender that gets whole nodes, because that many bodies are in memory at once.
CALLS_WITH_NODES: Final = 8
IDLE_SECONDS: Final = 15.0  # before an idle connection is closed
FILTER: Final = "filter"
PRIORITIZE: Final = "prioritize"
PREEMPT: Final = "preempt"
BIND: Final = "bind"


class HttpExtender:
    """One extender. Every failure of a call is an ``ExtenderError``."""

    def __init__(
        self,
        configuration: ExtenderConfiguration,
        tls: ssl.SSLContext,
        session: aiohttp.ClientSession,
        metrics: Meter,
    ) -> None:
        self.configuration = configuration
        self._session = session
        self._metrics = metrics
        self._tls = tls
        self._slots = asyncio.Semaphore(CALLS_WITH_NODES if configuration.reads_nodes else CALLS)
        self._binding_slots = asyncio.Semaphore(CALLS)  # questions of a slow extender delay no Binding
        self._is_failing = False

    async def filter(self, pod: Pod, nodes: Mapping[str, Node]) -> FilterAnswer:
        """The nodes that it keeps.

        Raises:
            ExtenderError: it gave no usable answer.
        """
        configuration = self.configuration
        if not configuration.filter_verb:
            return FilterAnswer(left=tuple(nodes), rejected={})
        async with self._call(FILTER):
            body = await self._ask(configuration.filter_verb, lambda: extender_args(configuration, pod, nodes))
            return filter_answer(configuration, body, nodes)

    async def prioritize(self, pod: Pod, nodes: Mapping[str, Node]) -> dict[str, int]:
        """Its points for the nodes, weighted and scaled; empty if it fails, as in kube-scheduler."""
        configuration = self.configuration
        try:
            async with self._call(PRIORITIZE):
                body = await self._ask(configuration.prioritize_verb, lambda: extender_args(configuration, pod, nodes))
                return priorities(configuration, body, nodes)
        except ExtenderError:
            return {}

    async def preempt(self, pod: Pod, candidates: Sequence[Nomination], victims: Mapping[str, Pod]) -> list[Nomination]:
        """The candidates that it keeps. Candidates with changed victims are dropped: berth selects victims itself.

        Raises:
            ExtenderError: it gave no usable answer.
        """
        configuration = self.configuration
        async with self._call(PREEMPT):
            make = lambda: preemption_args(configuration, pod, candidates, victims)  # noqa: E731 - made in its turn
            body = await self._ask(configuration.preempt_verb, make)
            answer = preemption_answer(configuration, body, [each.node for each in candidates])
        return [each for each in candidates if answer.get(each.node) == frozenset(each.victims)]

    async def bind(self, pod: Pod, node: str, check: Callable[[], None]) -> None:
        """Have it bind the pod. ``check`` is called right before the bytes go out.

        Raises:
            ExtenderError: it refused or gave no usable answer; it may still bind the pod later.
        """
        configuration = self.configuration
        async with self._call(BIND):
            async with self._binding_slots:
                check()
                body = await self._send(configuration.bind_verb, binding_args(pod, node))
            binding_answer(configuration, body)

    @asynccontextmanager
    async def _call(self, what: str) -> AsyncIterator[None]:
        """Count the call, and log when the extender begins to fail and when it answers again."""
        began, name = time.monotonic(), self.configuration.name
        try:
            yield
        except ExtenderError as error:
            self._count(what, "error", time.monotonic() - began)
            if not self._is_failing:
                log.warning("an extender fails", extender=name, verb=what, reason=str(error))
            self._is_failing = True
            raise
        self._count(what, "success", time.monotonic() - began)
        if self._is_failing:
            log.info("an extender answers again", extender=name, verb=what)
        self._is_failing = False

    def _count(self, verb: str, result: str, seconds: float) -> None:
        self._metrics.observe(
            "berth_extender_duration_seconds", seconds, extender=self.configuration.name, verb=verb, result=result
        )

    async def _ask(self, verb: str, make: Callable[[], bytes]) -> bytes:
        # Repeated if an idle connection was closed while the request was under way. Built in its turn, because it may
        # be large.
        async with self._slots:
            return await self._send(verb, make(), is_repeatable=True)

    async def _send(self, verb: str, body: bytes, *, is_repeatable: bool = False) -> bytes:
        configuration = self.configuration
        seconds = configuration.timeout.total_seconds()
        url = f"{configuration.url_prefix.rstrip('/')}/{verb}"
        called = f"{configuration.name.rstrip('/')}/{verb}"
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._post(url, called, verb, body)
                except aiohttp.ServerDisconnectedError:
                    if not is_repeatable:
                        raise
                    return await self._post(url, called, verb, body)
        except TimeoutError as exc:
            raise ExtenderError(f"calling extender at URL {called}: no answer within {seconds:g} s") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            reason = shown(str(exc)) or type(exc).__name__
            raise ExtenderError(f"calling extender at URL {called}: {reason}") from exc

    async def _post(self, url: str, called: str, verb: str, body: bytes) -> bytes:
        largest = ANSWER_BYTES + 2 * len(body)
        async with self._session.post(
            url,
            data=body,
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
            allow_redirects=False,
            ssl=self._tls,
            server_hostname=self.configuration.tls.server_name or None,
        ) as response:
            if response.status != HTTPStatus.OK:
                raise ExtenderError(f"failed {verb} with extender at URL {called}, code {response.status}")
            pieces, size = [], 0
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > largest:
                    raise ExtenderError(f"calling extender at URL {called}: its answer has more than {largest} bytes")
                pieces.append(piece)
            return b"".join(pieces)


class Extenders:
    """All extenders of a configuration, in the order in which they are called."""

    def __init__(
        self, configurations: Sequence[ExtenderConfiguration], metrics: Meter, *, keeps_connections: bool = True
    ) -> None:
        """``keeps_connections``: not for bind, which must not be lost to a connection closed meanwhile."""
        self._configurations = configurations
        self._metrics = metrics
        self._keeps_connections = keeps_connections
        self._closing = AsyncExitStack()
        self._all: tuple[HttpExtender, ...] = ()

    async def __aenter__(self) -> Self:
        """Read the certificates.

        Raises:
            PermanentError: a certificate or key cannot be read.
        """
        if self._configurations:
            contexts = [tls_context(each) for each in self._configurations]
            session = await self._closing.enter_async_context(
                aiohttp.ClientSession(
                    connector=self._connector(),
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            )
            self._all = tuple(
                HttpExtender(each, context, session, self._metrics)
                for each, context in zip(self._configurations, contexts, strict=True)
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    def _connector(self) -> aiohttp.TCPConnector:
        if self._keeps_connections:
            return aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
        return aiohttp.TCPConnector(limit=0, force_close=True)

    def binder_of(self, pod: Pod) -> HttpExtender | None:
        return next((each for each in self._all if binds(each.configuration, pod)), None)

    async def ask(self, pod: Pod, to_extend: ToExtend, nodes: Mapping[str, Node]) -> Extension:
        """Their answers about the pod: first about its nominated node alone, then about all. ``nodes``: by name.

        Raises:
            ExtenderError: an extender that is not ignorable failed to filter.
        """
        interested = [each for each in self._all if is_interested(each.configuration, pod)]
        if to_extend.nominated:
            try:
                alone = await self._ask(interested, pod, {to_extend.nominated: nodes[to_extend.nominated]})
            except ExtenderError as error:
                log.warning("asking about the nominated node failed", pod=pod.key, uid=pod.uid, reason=str(error))
            else:
                if alone.left:
                    return alone
        return await self._ask(interested, pod, {name: nodes[name] for name in to_extend.nodes})

    async def filter(self, pod: Pod, nodes: Mapping[str, Node]) -> Extension:
        """The nodes that they keep, without points. ``nodes``: by name.

        Raises:
            ExtenderError: an extender that is not ignorable failed.
        """
        interested = [each for each in self._all if is_interested(each.configuration, pod)]
        return await self._ask(interested, pod, nodes, scores=False)

    async def ask_about_evictions(
        self, pod: Pod, candidates: Sequence[Nomination], victims: Mapping[str, Pod]
    ) -> Evictions:
        """The evictions that all extenders keep, asked one after another. ``victims``: by uid.

        A failure of an extender that is not ignorable keeps no eviction and reports its message, as in kube-scheduler.
        """
        left = list(candidates)
        for extender in self._all:
            if not left:
                break
            if not extender.configuration.preempt_verb or not is_interested(extender.configuration, pod):
                continue
            try:
                left = await extender.preempt(pod, left, victims)
            except ExtenderError as error:
                if not extender.configuration.ignorable:
                    return Evictions(failure=str(error))
        return Evictions(left=tuple(left))

    async def _ask(
        self, interested: Sequence[HttpExtender], pod: Pod, nodes: Mapping[str, Node], *, scores: bool = True
    ) -> Extension:
        left, rejected = dict(nodes), dict[str, Status]()
        for extender in interested:
            if not left:
                break
            try:
                answer = await extender.filter(pod, left)
            except ExtenderError:
                if extender.configuration.ignorable:
                    continue
                raise
            rejected.update(answer.rejected)
            left = {name: left[name] for name in answer.left}
        points = await self._points(interested, pod, left) if scores and len(left) > 1 else {}
        return Extension(asked=frozenset(nodes), left=frozenset(left), rejected=rejected, points=points)

    async def _points(
        self, interested: Sequence[HttpExtender], pod: Pod, nodes: Mapping[str, Node]
    ) -> dict[str, dict[str, int]]:
        # By extender; points of several extenders with one URL are added up.
        asked = [extender for extender in interested if extender.configuration.prioritize_verb]
        answers = await asyncio.gather(*(extender.prioritize(pod, nodes) for extender in asked))
        points: dict[str, dict[str, int]] = {}
        for extender, answer in zip(asked, answers, strict=True):
            so_far = points.setdefault(extender.configuration.name, {})
            for node, given in answer.items():
                so_far[node] = so_far.get(node, 0) + given
        return points


def tls_context(configuration: ExtenderConfiguration) -> ssl.SSLContext:
    """TLS for the extender: its verification and the client certificate.

    Raises:
        PermanentError: a file cannot be read.
    """
    try:
        return _context(configuration.tls)
    except (OSError, ssl.SSLError, UnicodeDecodeError) as exc:
        raise PermanentError(f'reading the tlsConfig of extender "{configuration.name}": {exc}') from exc


def _context(tls: ExtenderTls) -> ssl.SSLContext:
    context = client_context(pem=tls.ca_pem.decode()) if tls.ca_pem else client_context(tls.ca_file or None)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_pem or tls.cert_file:
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads certificates from files only
            cert = _file(tls.cert_pem, tls.cert_file, Path(folder, "cert.pem"))
            key = _file(tls.key_pem, tls.key_file, Path(folder, "key.pem"))
            context.load_cert_chain(cert, key)
    return context


def _file(pem: bytes, path: str, place: Path) -> str:
    """The path of the file, or of a temporary file with the PEM that only this user can read."""
    if not pem:
        return path
    place.touch(mode=0o600)
    place.write_bytes(pem)
    return str(place)
