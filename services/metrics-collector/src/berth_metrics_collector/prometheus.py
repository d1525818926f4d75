"""What a Prometheus server answers, and every way in which it does not: one error of ours, with its cause.

prometheus-api-client lets through whatever ``requests`` and Python raise on a bad answer; here, and nowhere else, that
becomes a :class:`PrometheusError`.


The Prometheus client in a thread of its own: it blocks, and the service never waits for it longer than it wants to.

A thread that does not come back (a name server that hangs, a server that sends a byte a second) is left alone and
replaced together with its session; being a daemon it does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.exceptions import DecodeError, ProtocolError, ReadTimeoutError
from urllib3.util.retry import Retry

from berth.api.errors import TemporaryError
from berth.process.logging import get_logger

Cause = Literal["unreachable", "slow", "refused", "unavailable", "nonsense"]

_SHOWN: Final = 200
"""Characters of an answer that an error quotes."""


class PrometheusError(TemporaryError):
    """No usable answer. ``cause`` is its kind, for counting; the last samples stay as they are."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class SampleRow(msgspec.Struct, frozen=True):
    """One element of an instant vector: labels, and (time of the evaluation, value as text)."""

    metric: dict[str, str]
    value: tuple[float, str]


class AnswerTooSlowError(requests.Timeout):
    """The answer as a whole took longer than it may, though every piece of it came in time."""


class AnswerTooLargeError(requests.RequestException):
    """More bytes than any answer to our questions has."""


def ask(query: Callable[[], Any]) -> Sequence[SampleRow]:
    """Call the client; the rows of the instant vector that it answers with.

    Raises:
        PrometheusError: anything else came, or nothing.
    """
    try:
        return _rows(query())
    except PrometheusError:
        raise
    except requests.exceptions.JSONDecodeError as exc:
        raise PrometheusError(f"want JSON, got something else ({exc})", cause="nonsense") from exc
    except requests.exceptions.ContentDecodingError as exc:
        raise PrometheusError(f"the answer cannot be unpacked: {_shown(exc)}", cause="nonsense") from exc
    except requests.exceptions.ChunkedEncodingError as exc:
        raise PrometheusError("the answer was cut off", cause="unavailable") from exc
    except requests.Timeout as exc:
        raise PrometheusError(f"no answer in time: {_shown(exc)}", cause="slow") from exc
    except requests.ConnectionError as exc:
        raise PrometheusError(f"not reachable: {_root(exc)}", cause="unreachable") from exc
    except requests.RequestException as exc:
        raise PrometheusError(f"{type(exc).__name__}: {_shown(exc)}", cause="nonsense") from exc
    except PrometheusApiClientException as exc:
        raise _refusal(str(exc)) from exc
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise PrometheusError(
            f"want data.result of an instant vector, got another shape ({type(exc).__name__}: {_shown(exc)})",
            cause="nonsense",
        ) from exc


def _rows(result: Any) -> Sequence[SampleRow]:
    if result is None:
        raise PrometheusError("want an instant vector, got null", cause="nonsense")
    try:
        return msgspec.convert(result, list[SampleRow])
    except msgspec.ValidationError as exc:
        raise PrometheusError(f"want an instant vector: {exc}", cause="nonsense") from exc


def _refusal(text: str) -> PrometheusError:
    """The client's only own exception: an HTTP status that is not 200, in words."""
    status = next((int(word) for word in text.split() if word.isdigit()), 0)
    cause: Cause = "refused" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "unavailable"
    return PrometheusError(_shown(text), cause=cause)


def _root(error: BaseException) -> str:
    """The innermost reason: the layers of the client quote each other at length."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return _shown(error)


def _shown(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


log = get_logger()


PATIENCE: Final = timedelta(seconds=10)
"""For one answer as a whole: twenty times what the dearest query takes at 5,000 nodes, shorter than an interval."""

GRACE: Final = timedelta(seconds=2)
"""Beyond it for the thread to come back by itself; after that it is replaced."""

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of an answer: 5,000 nodes with ten devices each are 7 MB."""

MAX_STUCK: Final = 4
"""Threads that did not come back; with so many nothing is asked until one does."""

_CHUNK: Final = 65_536


class Prometheus:
    """One server. Queries are answered one after the other."""

    def __init__(self, url: str, *, patience: timedelta = PATIENCE, grace: timedelta = GRACE) -> None:
        self.url = url
        self._patience = patience.total_seconds()
        self._grace = grace.total_seconds()
        self._worker: _Worker | None = None
        self._stuck: list[_Worker] = []

    async def query(self, promql: str) -> Sequence[SampleRow]:
        """The rows of an instant query.

        Raises:
            PrometheusError: there was no usable answer, for whatever reason.
        """
        worker = self._working()
        answer = worker.ask(promql)
        try:
            return await asyncio.wait_for(answer, self._patience + self._grace)
        except TimeoutError:
            self._replace(worker)
            raise PrometheusError(f"asking {self.url}: no answer in time", cause="slow") from None
        except PrometheusError as exc:
            raise PrometheusError(f"asking {self.url}: {exc}", cause=exc.cause) from exc

    def close(self) -> None:
        """Let the thread end; nobody waits for it."""
        if self._worker is not None:
            self._worker.end()

    def _working(self) -> _Worker:
        self._stuck = [worker for worker in self._stuck if worker.is_alive]
        if self._worker is None:
            if len(self._stuck) >= MAX_STUCK:
                raise PrometheusError(f"asking {self.url}: {MAX_STUCK} requests have not come back", cause="slow")
            self._worker = _Worker(self.url, self._patience)
        return self._worker

    def _replace(self, worker: _Worker) -> None:
        if self._worker is worker:
            log.warning("giving up a request that does not come back", url=self.url, seconds=self._patience)
            worker.end()
            self._stuck.append(worker)
            self._worker = None


@dataclass(slots=True, kw_only=True)
class _Question:
    promql: str
    answer: asyncio.Future[Sequence[SampleRow]]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def settle(self, set_it: Callable[[], None]) -> None:
        """In the loop, unless nobody waits any more or the loop itself has ended."""
        try:
            self.loop.call_soon_threadsafe(lambda: None if self.answer.done() else set_it())
        except RuntimeError:
            return


class _Worker:
    """A thread with one session."""

    def __init__(self, url: str, patience: float) -> None:
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._session = BoundedSession(patience)
        self._client = _client(url, patience, self._session)
        self._thread = threading.Thread(target=self._work, name="prometheus", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, promql: str) -> asyncio.Future[Sequence[SampleRow]]:
        question = _Question(promql=promql, answer=asyncio.get_running_loop().create_future())
        self._questions.put(question)
        return question.answer

    def end(self) -> None:
        self._questions.put(None)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            self._answer(question)
        self._session.close()

    def _answer(self, question: _Question) -> None:
        set_it: Callable[[], None]
        try:
            rows = ask(lambda: self._client.custom_query(question.promql))
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is the question's; the thread lives on
            failure = exc

            def set_it() -> None:
                question.answer.set_exception(failure)

        else:

            def set_it() -> None:
                question.answer.set_result(rows)

        question.settle(set_it)


def _client(url: str, patience: float, session: requests.Session) -> PrometheusConnect:
    """Without retries and with a time-out: the library's defaults are three with back-off, and none."""
    no_retries = Retry(total=0, read=False)  # read=False: a time-out stays one, in the place of "retries exceeded"
    return PrometheusConnect(url, retry=no_retries, session=session, timeout=patience)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedResponse:
    """An HTTP answer as far as the client looks at it."""

    status_code: int
    content: bytes

    def json(self) -> Any:
        """Decoded by msgspec: a third of the time that the interpreter's own decoder keeps every other thread waiting.

        Raises:
            JSONDecodeError: of requests, as its own answers do.
        """
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise requests.exceptions.JSONDecodeError(str(exc), repr(self.content[:80]), 0) from exc


class BoundedSession(requests.Session):
    """A session whose requests end in time and in size as a whole: requests' own time-out is for each piece."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience

    def request(self, *args: Any, **kwargs: Any) -> Any:
        """As requests does it, read to the end here. Redirects are not followed: answers come from where we ask."""
        ends = time.monotonic() + self._patience
        kwargs.update(stream=True, allow_redirects=False)
        with super().request(*args, **kwargs) as response:
            return BoundedResponse(status_code=response.status_code, content=_read(response, ends))


def _read(response: requests.Response, ends: float) -> bytes:
    """The body, in whatever pieces it comes."""
    body = bytearray()
    for piece in _pieces(response):
        body += piece
        if len(body) > LARGEST:
            raise AnswerTooLargeError(f"more than {LARGEST} bytes")
        if time.monotonic() > ends:
            raise AnswerTooSlowError("it trickles")
    return bytes(body)


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """What has arrived, without waiting for a piece to be full; errors as requests' own reading names them."""
    try:
        while piece := response.raw.read1(_CHUNK, decode_content=True):
            yield piece
    except ReadTimeoutError as exc:
        raise requests.ReadTimeout("it stopped in the middle") from exc
    except ProtocolError as exc:
        raise requests.exceptions.ChunkedEncodingError(exc) from exc
    except DecodeError as exc:
        raise requests.exceptions.ContentDecodingError(exc) from exc
