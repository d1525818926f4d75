"""The client against API servers, real, simulated and scripted."""

import asyncio
import json
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec import structs

from berth.api.pod import CONDITION_FENCE, Pod
from berth.kube import connections
from berth.kube.client import KubeClient
from berth.kube.credentials import Access, KubeCredentials
from berth.kube.errors import ApiRefusedError, ApiUnreachableError, missing_right
from berth.kube.http1 import Response
from berth.kube.writes import (
    bind,
    create_event,
    decode_pod,
    fence,
    get_pod,
    patch_event,
)
from berth.kube.writes import cut as cut_note
from berth_sim.faults import Fail, LoseAnswer
from harness.fakes.scripted_server import cut, scripted_server, stream
from harness.plugins.fixtures_kube import Cluster
from harness.servers.child_processes import free_ports
from harness.servers.control_plane import NOBODY, ControlPlane

SOON = timedelta(seconds=0.3)


@pytest.fixture(params=["request", "call"])
def way(request: pytest.FixtureRequest) -> str:
    """The two ways of a request with one answer: berth's own connections, and kubernetes_asyncio."""
    return request.param


def _send(client: KubeClient, way: str, method: str, path: str, **parts: Any) -> Awaitable[Response]:
    return getattr(client, way)(method, path, **parts)


class Tokens:
    """A source of credentials that hands out one token after the other."""

    def __init__(self, server: str, *tokens: str) -> None:
        self._server = server
        self._tokens = list(tokens)

    async def read(self) -> Access:
        return Access(server=self._server, authorization=f"Bearer {self._tokens.pop(0)}")


async def _pod(cluster: Cluster, name: str = "web") -> Pod:
    pod = await get_pod(cluster.client, cluster.api.namespace, name)
    assert pod is not None
    return pod


async def _bind(cluster: Cluster, pod: Pod, node: str = "node-1", **other: str):
    named = {
        "namespace": pod.metadata.namespace,
        "name": pod.metadata.name,
        "uid": pod.uid,
        "resource_version": pod.metadata.resource_version,
    }
    return await bind(cluster.client, node=node, **{**named, **other})


async def test_pod_is_bound_once_and_only_as_it_was_seen(cluster: Cluster):
    await cluster.api.add_pod("web")
    pod = await _pod(cluster)
    assert (await _bind(cluster, pod, uid="another")).status == 409
    assert (await _bind(cluster, pod, resource_version="1")).status == 409
    assert (await _bind(cluster, pod)).status == 201
    assert (await _pod(cluster)).spec.node_name == "node-1"
    again = await _bind(cluster, await _pod(cluster), node="node-2")
    assert (again.status, again.reason) == (409, "Conflict")
    assert "web" in again.message


async def test_pod_that_does_not_exist_is_none(cluster: Cluster):
    assert await get_pod(cluster.client, cluster.api.namespace, "nobody") is None


async def test_fence_moves_the_pods_version_so_that_an_older_binding_cannot_land(cluster: Cluster):
    await cluster.api.add_pod("web")
    before = await _pod(cluster)
    first = decode_pod((await fence(cluster.client, before, 7)).body)
    fenced = decode_pod((await fence(cluster.client, before, 7)).body)
    assert [(c.type, c.message) for c in fenced.status.conditions or ()] == [(CONDITION_FENCE, "7")]
    assert (await _bind(cluster, before)).status == 409
    assert (await _bind(cluster, first)).status == 409, "each fence moves it, though the epoch is the same"
    assert (await _bind(cluster, fenced)).status == 201


async def test_fence_of_a_pod_that_is_another_one_by_now_is_invalid(cluster: Cluster):
    await cluster.api.add_pod("web")
    pod = await _pod(cluster)
    former = structs.replace(pod, metadata=structs.replace(pod.metadata, uid="another"))
    assert (await fence(cluster.client, former, 7)).status == 422


async def test_event_is_created_with_a_note_that_fits_and_counted_in_its_series(cluster: Cluster):
    event = {
        "metadata": {"name": "web.1", "namespace": cluster.api.namespace},
        "eventTime": "2026-11-21T00:00:00.000000Z",
        "type": "Warning",
        "reason": "FailedScheduling",
        "action": "Scheduling",
        "note": cut_note("0/3 nodes are available: ü" + "x" * 2000),
        "regarding": {"kind": "Pod", "namespace": cluster.api.namespace, "name": "web"},
        "reportingController": "berth",
        "reportingInstance": "berth-binder-0",
    }
    answer = await create_event(cluster.client, cluster.api.namespace, json.dumps(event).encode())
    assert answer.status == 201, answer.message
    note = json.loads(answer.body)["note"]
    assert note.endswith("x...")
    assert len(note.encode()) == 1024
    series = {"series": {"count": 2, "lastObservedTime": "2026-11-21T00:00:01.000000Z"}}
    answer = await patch_event(cluster.client, cluster.api.namespace, "web.1", json.dumps(series).encode())
    assert json.loads(answer.body)["series"]["count"] == 2


async def test_account_without_the_right_is_told_the_rule_to_add(real_control_plane: ControlPlane):
    path = real_control_plane.folder / f"{NOBODY.name}.kubeconfig"
    async with await KubeClient.connect(path) as client:
        refused = await bind(client, namespace="default", name="web", uid="u", resource_version="1", node="n")
        assert missing_right(refused.failure()) == (
            "'nobody' may not create pods/binding: add to the ClusterRole:"
            ' apiGroups: [""], resources: ["pods/binding"], verbs: ["create"] (docs/security.md#rights-in-the-cluster)'
        )
        with pytest.raises(ApiRefusedError, match="'nobody' may not get pods: add to the ClusterRole"):
            await get_pod(client, "default", "web")


async def test_server_that_is_not_there_is_named_and_nothing_was_sent(way: str):
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    async with KubeClient(await KubeCredentials.from_source(Tokens(url, "t"))) as client:
        with pytest.raises(ApiUnreachableError) as lost:
            await _send(client, way, "GET", "/api/v1/pods")
    assert str(lost.value) == f"GET {url}/api/v1/pods: no connection to 127.0.0.1:{port}: Connection refused"


async def test_server_that_is_not_there_behind_tls_is_named_in_words(tmp_path: Path, way: str):
    (port,) = free_ports(1)
    path = tmp_path / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nusers: [{name: u, user: {token: t}}]\n"
        f"clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}', insecure-skip-tls-verify: true}}}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    async with await KubeClient.connect(path) as client:
        with pytest.raises(ApiUnreachableError, match=f": no connection to 127.0.0.1:{port}: Connection refused$"):
            await _send(client, way, "GET", "/api/v1/pods")


async def test_answer_that_is_lost_may_have_been_carried_out(simulated_cluster: Cluster):
    await simulated_cluster.api.add_pod("web")
    pod = await _pod(simulated_cluster)
    simulated_cluster.simulated.faults.inject(LoseAnswer(verb="create", resource="pods/binding"))
    with pytest.raises(ApiUnreachableError):
        await _bind(simulated_cluster, pod)
    assert (await _pod(simulated_cluster)).spec.node_name == "node-1"


async def test_server_that_does_not_answer_is_given_up_after_the_time_allowed(way: str):
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with (
        scripted_server(silent) as url,
        KubeClient(await KubeCredentials.from_source(Tokens(url, "t"))) as client,
    ):
        with pytest.raises(ApiUnreachableError, match=r"no answer within 0\.3 s"):
            await _send(client, way, "POST", "/x", timeout=SOON)


async def test_answer_that_breaks_off_is_no_answer(way: str):
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        cut(request)
        return response

    async with scripted_server(half) as url, KubeClient(await KubeCredentials.from_source(Tokens(url, "t"))) as client:
        with pytest.raises(ApiUnreachableError):
            await _send(client, way, "GET", "/x")


async def test_refused_token_is_read_again_once_and_tried_again(way: str):
    async def only_new(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.headers["Authorization"] == "Bearer new" else 401)

    async with scripted_server(only_new) as url:
        async with KubeClient(await KubeCredentials.from_source(Tokens(url, "old", "new"))) as client:
            answers = await asyncio.gather(*(_send(client, way, "GET", "/x") for _ in range(8)))
        assert {answer.status for answer in answers} == {200}
        async with KubeClient(await KubeCredentials.from_source(Tokens(url, "old", "older"))) as client:
            assert (await _send(client, way, "GET", "/x")).status == 401


async def test_retry_after_and_user_agent_are_carried(way: str):
    async def busy(request: web.Request) -> web.StreamResponse:
        assert request.headers["User-Agent"] == "berth-binder"
        return web.Response(status=429, headers={"Retry-After": "7"}, text="slow down")

    async with scripted_server(busy) as url:
        credentials = await KubeCredentials.from_source(Tokens(url, "t"))
        async with KubeClient(credentials, user_agent="berth-binder") as client:
            answer = await _send(client, way, "GET", "/x")
    assert (answer.status, answer.retry_after, answer.message) == (429, timedelta(seconds=7), "slow down")


async def test_stream_that_falls_silent_is_given_up():
    async def begins_only(request: web.Request) -> web.StreamResponse:
        return await stream(request, b"one", then=asyncio.Event())

    async with (
        scripted_server(begins_only) as url,
        KubeClient(await KubeCredentials.from_source(Tokens(url, "t"))) as client,
        client.stream("/x", params={}, read_timeout=SOON) as answer,
    ):
        assert await anext(answer.chunks) == b"one"
        with pytest.raises(ApiUnreachableError, match=r"no answer within 0\.3 s"):
            await anext(answer.chunks)


async def test_stream_with_pauses_below_its_limit_goes_on():
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(4):
            await response.write(b"x")
            await asyncio.sleep(SOON.total_seconds() / 2)
        return response

    async with (
        scripted_server(slow) as url,
        KubeClient(await KubeCredentials.from_source(Tokens(url, "t"))) as client,
        client.stream("/x", params={}, read_timeout=SOON) as answer,
    ):
        assert b"".join([chunk async for chunk in answer.chunks]) == b"xxxx"


async def test_failures_of_the_server_are_values(simulated_cluster: Cluster, way: str):
    simulated_cluster.simulated.faults.inject(Fail(status=503))
    answer = await _send(simulated_cluster.client, way, "GET", "/api/v1/pods")
    assert (answer.status, answer.succeeded) == (503, False)


async def test_limit_on_requests_is_kept(simulated_cluster: Cluster, tmp_path: Path, way: str):
    path = simulated_cluster.kubeconfig_path
    began = asyncio.get_running_loop().time()
    async with await KubeClient.connect(path, qps=50, burst=1) as client:
        await asyncio.gather(*(_send(client, way, "GET", "/api/v1/namespaces") for _ in range(11)))
    assert asyncio.get_running_loop().time() - began >= 0.2  # ten pauses of 20 ms


# The check right before the bytes go out.


class OverError(Exception):
    """Leading is over."""


async def _add_pod(client: KubeClient, cluster: Cluster, way: str) -> int:
    pod = {"metadata": {"name": "late"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    body = pod if way == "call" else json.dumps(pod).encode()
    return (await _send(client, way, "POST", cluster.api.pods, body=body)).status


@pytest.mark.parametrize("waits_for", ["the rate limit", "a connection", "credentials"])
async def test_write_is_checked_after_every_wait(simulated_cluster: Cluster, monkeypatch, waits_for: str, way: str):
    is_over, goes_on = False, asyncio.Event()

    def check() -> None:
        if is_over:
            raise OverError

    async with await KubeClient.connect(simulated_cluster.kubeconfig_path) as client:
        leading = client.checking(check)
        if waits_for == "the rate limit":
            leading._rate_limit = type("Limit", (), {"wait": staticmethod(goes_on.wait)})()
        elif waits_for == "credentials":
            original = client._credentials.headers

            async def headers():
                await goes_on.wait()
                return await original()

            monkeypatch.setattr(client._credentials, "headers", headers)
        else:
            place, name = (connections, "connect") if way == "request" else (aiohttp.TCPConnector, "connect")
            connect = getattr(place, name)

            async def late(*arguments, **named):
                await goes_on.wait()
                return await connect(*arguments, **named)

            monkeypatch.setattr(place, name, late)
        writing = asyncio.create_task(_add_pod(leading, simulated_cluster, way))
        await asyncio.sleep(0.05)
        is_over = True
        goes_on.set()
        with pytest.raises(OverError):
            await writing
        monkeypatch.undo()
        pods = await leading.request("GET", simulated_cluster.api.pods)
        assert (pods.status, json.loads(pods.body)["items"]) == (200, [])
        assert await _add_pod(client, simulated_cluster, way) == 201, "only the leader's own requests are checked"
