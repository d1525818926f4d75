"""The requests of a leadership: each answer is an event, and the end of a leadership waits for all."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest

from berth.api.pod import Pod
from berth.kube.http1 import Response
from berth.kube.writes import pod_path
from berth.leader.session import NoLongerLeadingError
from berth.lifecycle.coreloop import Inbox
from berth.lifecycle.process import Process
from berth_binder.apicalls import ApiRequests, evict_members
from berth_binder.cache import Cache
from berth_binder.events import PostBinding, RequestFailed
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds.binder_bench import make_pod


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("web-0.x", "/api/v1/namespaces/web-0.x/pods/web-0.x/status"),
        ("a b", "/api/v1/namespaces/a%20b/pods/a%20b/status"),
        ("a/b?c=d&e#f%", "/api/v1/namespaces/a%2Fb%3Fc%3Dd%26e%23f%25/pods/a%2Fb%3Fc%3Dd%26e%23f%25/status"),
    ],
)
def test_a_name_stays_one_segment_of_a_path(name, path):
    assert pod_path(name, name, "status") == path


class Server:
    """Stands for the client: it answers each Binding with 201, or as a test says."""

    def __init__(self, answer: Callable[[], Response] = lambda: Response(status=201, body=b"")) -> None:
        self._answer = answer
        self.answers = asyncio.Event()
        self.answers.set()

    async def request(self, _method: str, _path: str, **_parts: object) -> Response:
        await self.answers.wait()
        return self._answer()


class EvictingServer(Server):
    """Records the requests. Deletions are refused with this status."""

    def __init__(self, refused: int = 0) -> None:
        super().__init__()
        self.sent: list[tuple[str, str]] = []
        self._refused = refused

    async def request(self, method: str, path: str, **_parts: object) -> Response:
        self.sent.append((method, path.rsplit("/pods/", maxsplit=1)[-1]))
        return Response(status=self._refused if self._refused and method == "DELETE" else 200, body=b"{}")

    call = request


async def test_members_of_a_partial_group_are_marked_and_deleted_one_after_another():
    server = EvictingServer()
    assert await evict_members(server, [make_pod("a"), make_pod("b")], lambda: True) == ""
    assert server.sent == [("PATCH", "a/status"), ("DELETE", "a"), ("PATCH", "b/status"), ("DELETE", "b")]


async def test_no_further_member_is_evicted_once_the_group_is_whole():
    server, needed = EvictingServer(), iter((True, False))
    problem = await evict_members(server, [make_pod("a"), make_pod("b")], lambda: next(needed))
    assert problem == "its minimum is bound by now"
    assert ("DELETE", "b") not in server.sent


async def test_a_refused_eviction_of_a_group_ends_it():
    server = EvictingServer(403)
    assert (await evict_members(server, [make_pod("a"), make_pod("b")], lambda: True)).startswith("default/a: 403")
    assert [path for method, path in server.sent if method == "DELETE"] == ["a"]


async def nobody_else_leads(_pod: Pod) -> None:
    """No fence is on the pod."""


def requests_to(server: Server) -> tuple[ApiRequests, Inbox]:
    inbox = Inbox()
    requests = ApiRequests(
        server,
        Process(name="binder", metrics=RecordingMeter()),
        SimpleNamespace(number=1, check=lambda: None),
        fences=SimpleNamespace(confirm=nobody_else_leads),
        cache=Cache(),
        extenders=None,
        binding_timeout=timedelta(seconds=10),
        inbox=inbox,
    )
    return requests, inbox


def binding(name: str) -> PostBinding:
    return PostBinding(pod=make_pod(name), node="n1")


async def test_every_answer_is_an_event():
    requests, inbox = requests_to(Server())
    for name in ("first", "second"):
        requests.start(binding(name))
    assert requests.under_way == 2
    assert await requests.settle()
    assert [(event.uid, event.status) for event in inbox.drain()] == [("uid-first", 201), ("uid-second", 201)]


async def test_answer_that_cannot_be_read_is_a_failure_of_its_pod():
    def answer() -> Response:
        raise ValueError("nonsense")

    requests, inbox = requests_to(Server(answer))
    requests.start(binding("web"))
    await requests.settle()
    assert inbox.drain() == [RequestFailed(uid="uid-web", error="ValueError: nonsense")]


async def test_request_after_the_leadership_ends_the_loop_and_needs_no_answer():
    def answer() -> Response:
        raise NoLongerLeadingError("the Lease is lost")

    requests, inbox = requests_to(Server(answer))
    requests.start(binding("web"))
    with pytest.raises(NoLongerLeadingError):
        await asyncio.wait_for(inbox.wait(None), 10)
    assert await requests.settle()


async def test_request_without_an_answer_is_given_up_at_the_end():
    server = Server()
    server.answers.clear()
    requests, inbox = requests_to(server)
    requests.start(binding("web"))
    assert not await requests.settle(0.01)
    assert not inbox
