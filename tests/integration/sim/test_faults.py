"""Faults of the simulated API server, as a client meets them."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from berth_sim.cluster import SimulatedCluster
from berth_sim.faults import Clear, CutWatches, Delay, Fail, LoseAnswer, Reject
from harness.worlds.kubernetes_api import KubernetesApi
from harness.worlds.kubernetes_api import kubernetes_api as connected


@pytest.fixture
async def cluster() -> AsyncIterator[SimulatedCluster]:
    async with SimulatedCluster(kubelet=None, history=4) as cluster:
        yield cluster


@pytest.fixture
async def api(cluster: SimulatedCluster) -> AsyncIterator[KubernetesApi]:
    async def compact() -> None:
        cluster.resources.store.compact()

    async with connected(cluster.url, compact) as api:
        yield api


async def test_next_requests_fail_and_do_nothing(cluster: SimulatedCluster, api: KubernetesApi):
    await api.add_pod("web")
    cluster.faults.inject(Fail(verb="create", resource="pods/binding", count=2, status=429))
    answers = [await api.bind("web", "node") for _ in range(3)]
    assert [answer.code for answer in answers] == [429, 429, 201]
    assert answers[0].body["reason"] == "TooManyRequests"
    assert cluster.faults.armed() == []


async def test_fault_without_a_count_lasts_until_it_is_cleared(cluster: SimulatedCluster, api: KubernetesApi):
    cluster.faults.inject(Fail(verb="list", resource="nodes", count=None, status=500))
    assert [(await api.get("/api/v1/nodes")).code for _ in range(3)] == [500, 500, 500]
    assert (await api.get(api.pods)).code == 200
    cluster.faults.inject(Clear())
    assert (await api.get("/api/v1/nodes")).code == 200


async def test_lost_answer_leaves_the_work_done(cluster: SimulatedCluster, api: KubernetesApi):
    await api.add_pod("web")
    cluster.faults.inject(LoseAnswer(verb="create", resource="pods/binding"))
    with pytest.raises(aiohttp.ClientError):
        await api.bind("web", "node")
    assert (await api.get(f"{api.pods}/web")).body["spec"]["nodeName"] == "node"


async def test_delayed_write_is_carried_out_after_its_client_disconnected(
    cluster: SimulatedCluster, api: KubernetesApi
):
    listed = await api.get(api.pods)
    cluster.faults.inject(Delay(verb="create", resource="pods", seconds=0.2))
    async with aiohttp.ClientSession(cluster.url, timeout=aiohttp.ClientTimeout(total=0.05)) as impatient:
        body = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}}
        with pytest.raises(TimeoutError):
            await impatient.post(api.pods, json=body)
    async with api.watch(api.pods, resourceVersion=listed.version) as events:
        assert await events.names(1) == [("ADDED", "web")]


async def test_rejected_verb_is_forbidden_with_the_message_of_rbac(cluster: SimulatedCluster, api: KubernetesApi):
    cluster.faults.inject(Reject(verb="list", resource="nodes", user="system:serviceaccount:berth:watcher"))
    refused = await api.get("/api/v1/nodes")
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert 'User "system:serviceaccount:berth:watcher" cannot list resource "nodes"' in refused.body["message"]


async def test_rejected_watch_is_an_http_status(cluster: SimulatedCluster, api: KubernetesApi):
    cluster.faults.inject(Fail(verb="watch", resource="pods", status=410))
    refused = await api.get(api.pods, watch="true")
    assert (refused.code, refused.body["reason"]) == (410, "Expired")


async def test_cut_watch_ends_and_can_be_resumed(cluster: SimulatedCluster, api: KubernetesApi):
    async with api.watch(api.pods) as events:
        created = await api.add_pod("a")
        assert await events.names(1) == [("ADDED", "a")]
        cluster.faults.inject(CutWatches(resource="pods"))
        assert await events.to_end() == []
    await api.add_pod("b")
    async with api.watch(api.pods, resourceVersion=created.version) as events:
        assert await events.names(1) == [("ADDED", "b")]


async def test_watch_over_more_changes_than_the_history_holds_is_expired(api: KubernetesApi):
    listed = await api.get(api.pods)
    for name in "abcde":
        await api.add_pod(name)
    async with api.watch(api.pods, resourceVersion=listed.version) as events:
        error = await events.next()
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_faults_are_armed_and_shown_over_http(api: KubernetesApi):
    faults = [{"action": "fail", "verb": "get", "resource": "pods", "status": 503}, {"action": "compact"}]
    (armed,) = (await api.post("/sim/faults", faults)).body["armed"]
    assert (armed["action"], armed["verb"], armed["count"]) == ("fail", "get", 1)
    assert (await api.get(f"{api.pods}/none")).code == 503
    assert (await api.get("/sim/faults")).body == {"armed": []}


NO_FAULTS = [{"action": "explode"}, {"action": "fail", "colour": "red"}, {"action": "fail", "verb": "eat"}]


@pytest.mark.parametrize("body", NO_FAULTS)
async def test_unknown_fault_is_a_bad_request(api: KubernetesApi, body: dict):
    refused = await api.post("/sim/faults", body)
    assert (refused.code, refused.body["reason"]) == (400, "BadRequest")
    assert (await api.get("/sim/faults")).body == {"armed": []}
