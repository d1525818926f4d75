"""An HTTP extender in a thread: it answers as a test says, and records what it is sent.

with recording_extender() as extender:
    extender.answers["names/filter"] = lambda args: {"NodeNames": args["NodeNames"][:1]}
    ... f"{extender.url}/berth/names" ...
    extender.requests  # Request(caller="berth", path="names/filter", body={...})
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Say = Callable[[Any], Any]


class Request(NamedTuple):
    """One request: the first part of its path says who has sent it."""

    caller: str
    path: str
    body: Any
    headers: dict[str, str]


class Raw(NamedTuple):
    """An answer as it stands, in place of JSON with 200."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    wait: float = 0.0
    """Seconds before it is sent; the end of the server ends the wait."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Nothing: a caller that gives up is what some tests are about."""


class RecordingExtender:
    """Answers by the path after the caller's name."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.answers: dict[str, Say] = {}
        self.requests: list[Request] = []
        self.is_ending = threading.Event()

    def of(self, caller: str) -> list[Request]:
        """What one caller has sent so far."""
        return [request for request in self.requests if request.caller == caller]


@contextmanager
def recording_extender() -> Iterator[RecordingExtender]:
    """The extender on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            caller, _, path = self.path.lstrip("/").partition("/")
            extender.requests.append(Request(caller, path, body, dict(self.headers)))
            say = extender.answers.get(path)
            given = Raw(404) if say is None else say(body)
            answer = given if isinstance(given, Raw) else Raw(body=json.dumps(given).encode())
            extender.is_ending.wait(answer.wait)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
            except OSError:  # the caller has given up
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing: what was sent is in ``requests``."""

    server = _Server(("127.0.0.1", 0), Handler)
    extender = RecordingExtender(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield extender
    finally:
        extender.is_ending.set()
        server.shutdown()
        server.server_close()
        thread.join()
