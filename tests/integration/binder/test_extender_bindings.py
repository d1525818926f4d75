"""An extender that is to bind a pod: whatever it says, what the API server shows counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.clock import SteadyClock
from berth.extenders.client import Extenders
from berth.leader.session import NoLongerLeadingError
from berth_binder import apicalls
from berth_binder.apicalls import bind_by_extender
from berth_binder.events import BindingAnswer, PostBinding
from harness.fakes.recording_meter import RecordingMeter
from harness.plugins.fixtures_kube import Cluster
from harness.servers.extender import Raw, RecordingExtender, recording_extender

BOUND, ELSEWHERE, GONE, FAILED = 201, 409, 404, 424


@pytest.fixture
def extender():
    with recording_extender() as made:
        yield made


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(apicalls, "SLOW_BINDING_SECONDS", (0.05, 0.3))


def nothing() -> None:
    """Leading goes on."""


def bound_to(cluster: Cluster, extender: RecordingExtender, node: str, then: object, *, delay: float = 0.0):
    """The extender binds the pod, at once or a little later, and answers so."""
    loop = asyncio.get_running_loop()

    async def bind(name: str) -> int:
        await asyncio.sleep(delay)
        return (await cluster.api.bind(name, node)).code

    def answer(args: dict) -> object:
        binding = asyncio.run_coroutine_threadsafe(bind(args["PodName"]), loop)
        assert delay or binding.result(10) == BOUND
        return then

    extender.answers["x/bind"] = answer


async def answer_of(
    cluster: Cluster, extender: RecordingExtender, *, ignorable: bool = False, check: Callable[[], None] = nothing
) -> BindingAnswer | None:
    """Have the extender bind the pod ``web`` to the node ``here``."""
    shown = (await cluster.api.get(f"{cluster.api.pods}/web")).body
    uid = shown["metadata"].get("uid", "gone")
    pod = Pod(metadata=ObjectMeta(name="web", namespace=cluster.api.namespace, uid=uid))
    url = f"{extender.url}/binder/x"
    configuration = ExtenderConfiguration(
        url_prefix=url, name=url, bind_verb="bind", ignorable=ignorable, timeout=timedelta(seconds=0.5)
    )
    async with Extenders([configuration], RecordingMeter(), keeps_connections=False) as extenders:
        one = extenders.binder_of(pod)
        assert one is not None
        request = PostBinding(pod=pod, node="here", by_extender=True)
        return await bind_by_extender(cluster.client, request, one, check, SteadyClock())


async def test_it_is_sent_the_pod_and_the_node(cluster: Cluster, extender: RecordingExtender):
    await cluster.api.add_pod("web")
    bound_to(cluster, extender, "here", {})
    answer = await answer_of(cluster, extender)
    assert answer is not None
    assert (answer.status, answer.failure) == (BOUND, "")
    (request,) = extender.requests
    assert request.body == {
        "PodName": "web",
        "PodNamespace": cluster.api.namespace,
        "PodUID": answer.uid,
        "Node": "here",
    }


@pytest.mark.parametrize("said", [{"Error": "no"}, Raw(500), Raw(200, b"junk"), Raw(wait=30)])
async def test_a_pod_that_it_has_bound_is_bound_whatever_it_says(cluster: Cluster, extender, said):
    await cluster.api.add_pod("web")
    bound_to(cluster, extender, "here", said)
    answer = await answer_of(cluster, extender)
    assert answer is not None
    assert (answer.status, answer.failure) == (BOUND, "")


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        pytest.param({"Error": "the device is gone"}, "the device is gone", id="its words"),
        pytest.param(Raw(500), "failed bind with extender at URL {url}/bind, code 500", id="500"),
        pytest.param(Raw(wait=30), "calling extender at URL {url}/bind: no answer within 0.5 s", id="silence"),
        pytest.param({}, "extender \"{url}\" reported a Binding to 'here', but the pod is unbound", id="a claim"),
    ],
)
async def test_a_pod_that_it_has_not_bound_is_an_error(cluster: Cluster, extender, said, failure):
    await cluster.api.add_pod("web")
    extender.answers["x/bind"] = lambda _: said
    answer = await answer_of(cluster, extender)
    assert answer is not None
    assert (answer.status, answer.failure) == (FAILED, failure.format(url=f"{extender.url}/binder/x"))
    assert not answer.is_open
    assert len(extender.requests) == 1


async def test_it_may_bind_the_pod_a_little_after_it_has_said_so(cluster: Cluster, extender: RecordingExtender):
    await cluster.api.add_pod("web")
    bound_to(cluster, extender, "here", {}, delay=0.2)
    answer = await answer_of(cluster, extender)
    assert answer is not None
    assert answer.status == BOUND


async def test_a_pod_that_it_has_bound_elsewhere_or_that_is_gone_is_no_error(cluster: Cluster, extender):
    await cluster.api.add_pod("web")
    bound_to(cluster, extender, "elsewhere", {})
    answer = await answer_of(cluster, extender)
    assert answer is not None
    assert (answer.status, answer.failure) == (ELSEWHERE, "")
    await cluster.api.delete(f"{cluster.api.pods}/web", gracePeriodSeconds=0)
    extender.answers["x/bind"] = lambda _: {"Error": "there is no such pod"}
    answer = await answer_of(cluster, extender)
    assert answer is not None
    assert (answer.status, answer.failure) == (GONE, "")


async def test_one_that_may_be_ignored_leaves_the_pod_to_the_binder(cluster: Cluster, extender: RecordingExtender):
    await cluster.api.add_pod("web")
    extender.answers["x/bind"] = lambda _: Raw(500)
    assert await answer_of(cluster, extender, ignorable=True) is None


async def test_nothing_is_sent_when_leading_is_over(cluster: Cluster, extender: RecordingExtender):
    await cluster.api.add_pod("web")

    def over() -> None:
        raise NoLongerLeadingError("leading is over")

    with pytest.raises(NoLongerLeadingError):
        await answer_of(cluster, extender, check=over)
    assert extender.requests == []
