"""How Bindings are counted, and which task sends the requests of a leadership."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from berth.api.pod import Pod
from berth.clock import SteadyClock
from berth.kube.errors import Response
from berth.kube.writes import pod_path
from berth.observability.tracing import Tracing
from berth_binder.apicalls import ApiRequests, count_binding
from berth_binder.events import BindingAnswer, PostBinding
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


def test_binding_without_an_answer_is_counted_as_none():
    meter = RecordingMeter()
    count_binding(meter, BindingAnswer(uid="u", status=0), 0.5, profile="berth")
    count_binding(meter, BindingAnswer(uid="u", status=201), 0.1, profile="berth")
    assert meter.value("berth_bindings_total", code="none") == 1
    assert meter.value("berth_bindings_total", code="201") == 1
    assert meter.observed["berth_binding_duration_seconds",] == [0.5, 0.1]
    point = "scheduler_framework_extension_point_duration_seconds"
    assert meter.observed[point, "Bind", "Success", "berth"] == [0.1]
    assert meter.observed[point, "Bind", "Error", "berth"] == [0.5]


class Server:
    """Stands for the client: it answers each Binding with 201, and notes in which task it was asked."""

    def __init__(self) -> None:
        self.asked_in: dict[str, asyncio.Task[None] | None] = {}

    async def request(self, _method: str, path: str, **_parts: object) -> Response:
        await asyncio.sleep(0)
        self.asked_in[path.split("/")[-2]] = asyncio.current_task()
        return Response(status=201, body=b"")


async def nobody_else_leads(_pod: Pod) -> None:
    """No fence is on the pod."""


def requests_to(server: Server, on_answer: Callable[[BindingAnswer], None]) -> ApiRequests:
    return ApiRequests(
        server,
        epoch=1,
        clock=SteadyClock(),
        metrics=RecordingMeter(),
        binding_timeout=timedelta(seconds=10),
        extenders=None,
        check=lambda: None,
        confirm=nobody_else_leads,
        needs_node=lambda _pod: True,
        on_answer=on_answer,
        on_end=lambda: None,
        log_once=lambda _text: None,
        tracing=Tracing(service="binder"),
        parent_of=lambda _uid: None,
    )


def binding(name: str) -> PostBinding:
    return PostBinding(pod=make_pod(name), node="n1")


async def test_a_task_goes_on_with_the_request_that_its_answer_leads_to_and_others_have_their_own():
    server, answered = Server(), []

    def on_answer(answer: BindingAnswer) -> None:
        answered.append(answer.uid)
        if answer.uid == "uid-first":
            for name in ("second", "third"):
                requests.start(binding(name))
            assert requests.under_way == 2

    requests = requests_to(server, on_answer)
    requests.start(binding("first"))
    assert await requests.settle()
    assert sorted(answered) == ["uid-first", "uid-second", "uid-third"]
    assert server.asked_in["second"] is server.asked_in["first"]
    assert server.asked_in["third"] is not server.asked_in["first"]


async def test_after_the_leadership_no_answer_leads_to_a_request():
    server, answered = Server(), []
    requests = requests_to(server, answered.append)
    requests.start(binding("first"))
    requests.end_leadership()
    assert await requests.settle()
    assert (list(server.asked_in), answered) == (["first"], [])


async def test_an_answer_that_the_core_cannot_take_ends_the_leadership_and_sends_nothing_more():
    server = Server()

    def on_answer(_answer: BindingAnswer) -> None:
        requests.start(binding("second"))
        raise RuntimeError("a bug")

    requests = requests_to(server, on_answer)
    requests.start(binding("first"))
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(requests.failed(), 10)
    assert list(server.asked_in) == ["first"]
