"""Contract of metrics.k8s.io: a played metrics-server behind the real API server, and the simulated one's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from berth.api.config.nodeload.queries import AVERAGE, LoadQuery
from berth.kube.client import KubeClient
from berth_metrics_collector.metricsapi import PATH, MetricsApiMeasurement
from berth_metrics_collector.nodenames import NodeNames
from berth_metrics_collector.poller import MatchedSamples, Reporter
from berth_metrics_collector.prometheus import SourceError
from berth_sim.cluster import SimulatedCluster
from berth_sim.faults import Reject
from berth_sim.nodes import node_manifests
from harness.fakes.recording_meter import RecordingMeter
from harness.plugins.fixtures_cluster import BOTH
from harness.servers.authorities import old_authority
from harness.servers.child_processes import free_ports
from harness.servers.control_plane import NOBODY, ControlPlane
from harness.worlds.accounts import grant, kubeconfig_of
from harness.worlds.collector_world import node_at
from harness.worlds.kubernetes_api import KubernetesApi, kubernetes_api

GROUP = "metrics.k8s.io"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
SERVICES = "/api/v1/namespaces/default/services"
RIGHTS = Path(__file__).parents[2] / "deploy/kubernetes/components/metrics-api/rights.yaml"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
NAMES = ("node-0", "node-1")
QUERY = LoadQuery(time_range=timedelta(minutes=5))


async def measured(client: KubeClient, *nodes: str) -> MatchedSamples:
    measurement = MetricsApiMeasurement(QUERY, {AVERAGE}, client)
    names = NodeNames([node_at(name) for name in nodes])
    return await measurement.measure(names, Reporter(QUERY, RecordingMeter()))


class PlayedMetricsServer:
    """Answers as metrics-server 0.8 does, with TLS."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        self._tls = old_authority(folder).server_side()
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, "localhost", self.port, ssl_context=self._tls).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.path == PATH.rpartition("/")[0]:
            kind = {"name": "nodes", "singularName": "", "namespaced": False, "kind": "NodeMetrics"}
            return web.json_response(
                {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": f"{GROUP}/v1beta1",
                    "resources": [{**kind, "verbs": ["get", "list"]}],
                }
            )
        if request.path != PATH:
            return web.Response(status=404)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = [
            {
                "metadata": {"name": name, "creationTimestamp": now, "labels": {"kubernetes.io/hostname": name}},
                "timestamp": now,
                "window": "20.059s",
                "usage": {"cpu": "156340285n", "memory": "1048576Ki"},
            }
            for name in NAMES
        ]
        listed = {"kind": "NodeMetricsList", "apiVersion": f"{GROUP}/v1beta1", "metadata": {}, "items": items}
        return web.json_response(listed)


@asynccontextmanager
async def aggregated(api: KubernetesApi, port: int) -> AsyncIterator[None]:
    """Have the API server ask a server on this port about metrics.k8s.io."""
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port, "protocol": "TCP"}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics-server"}, "spec": spec}
    named = f"v1beta1.{GROUP}"
    registered = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": named},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "service": {"namespace": "default", "name": "metrics-server", "port": port},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
    for path, made in ((SERVICES, service), (API_SERVICES, registered)):
        assert (await api.post(path, made)).code == 201
    try:
        async with asyncio.timeout(60):
            while not await is_available(api, f"{API_SERVICES}/{named}"):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)
        yield
    finally:
        await api.delete(f"{API_SERVICES}/{named}")
        await api.delete(f"{SERVICES}/metrics-server")


async def is_available(api: KubernetesApi, path: str) -> bool:
    conditions = (await api.get(path)).body.get("status", {}).get("conditions", ())
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsCluster:
    """Nodes with metrics, asked by somebody with all rights and by ``nobody``."""

    client: KubeClient
    rightless: KubeClient


@pytest.fixture(params=BOTH)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetricsCluster]:
    if request.param == "simulated":
        nodes = node_manifests(2)
        async with SimulatedCluster(nodes=nodes) as whole, SimulatedCluster(nodes=nodes) as refusing:
            refusing.faults.inject(Reject(user=NOBODY.name, count=None))
            async with (
                await KubeClient.connect(whole.kubeconfig_path) as client,
                await KubeClient.connect(refusing.kubeconfig_path) as rightless,
            ):
                yield MetricsCluster(client=client, rightless=rightless)
        return
    plane: ControlPlane = request.getfixturevalue("real_control_plane")
    server = PlayedMetricsServer(tmp_path)
    await server.start()
    try:
        async with (
            admins(plane) as api,
            aggregated(api, server.port),
            await KubeClient.connect(plane.kubeconfig_path) as client,
            await KubeClient.connect(plane.write_kubeconfig(NOBODY.name, NOBODY.token)) as rightless,
        ):
            yield MetricsCluster(client=client, rightless=rightless)
    finally:
        await server.stop()


@asynccontextmanager
async def admins(plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    async def nothing() -> None: ...

    trust = ssl.create_default_context(cafile=str(plane.ca_path))
    async with kubernetes_api(plane.url, nothing, token=plane.token, trust=trust) as api:
        yield api


async def test_every_node_has_a_sample_of_the_last_minute(cluster):
    found = await measured(cluster.client, *NAMES)
    assert found.found.samples.keys() == set(NAMES)
    for sample in found.found.samples.values():
        assert sample.cpu.average > 0
        assert sample.memory.average >= 2**30
        assert abs(datetime.now(UTC) - sample.sampled_at) < timedelta(minutes=1)


async def test_other_nodes_are_missing_and_unmatched(cluster):
    found = await measured(cluster.client, "node-0", "elsewhere")
    assert (found.missing, found.unmatched) == (("elsewhere",), ("node-1",))


async def test_without_the_right_the_error_has_the_rule_to_add(cluster):
    rule = 'add to the ClusterRole: apiGroups: ["metrics.k8s.io"], resources: ["nodes"], verbs: ["list"]'
    with pytest.raises(SourceError) as caught:
        await measured(cluster.rightless, *NAMES)
    assert caught.value.cause == "refused"
    assert f"'nobody' may not list nodes: {rule}" in str(caught.value)


@pytest.mark.slow
async def test_the_collectors_account_may_list_metrics_of_nodes_and_nothing_else(real_control_plane, tmp_path):
    """Before there is a metrics-server, and after it has gone, it is unavailable."""
    plane, server = real_control_plane, PlayedMetricsServer(tmp_path)
    async with admins(plane) as api:
        await grant(api)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "berth-metrics-collector"}}
        await api.post("/api/v1/namespaces/berth/serviceaccounts", account)
        for made in yaml.safe_load_all(RIGHTS.read_text(encoding="utf-8")):
            await api.post(f"{ROLES}/{made['kind'].lower()}s", made)
        async with await KubeClient.connect(await kubeconfig_of(plane, api, "berth-metrics-collector")) as client:
            with pytest.raises(SourceError) as caught:
                await measured(client, *NAMES)
            assert caught.value.cause == "unavailable"
            await server.start()
            try:
                async with aggregated(api, server.port):
                    assert (await measured(client, *NAMES)).found.samples.keys() == set(NAMES)
                    refused = [
                        ("GET", f"{PATH}/node-0"),
                        ("GET", "/apis/metrics.k8s.io/v1beta1/pods"),
                        ("GET", "/api/v1/nodes"),
                        ("GET", "/api/v1/pods"),
                        ("GET", "/api/v1/namespaces/berth/secrets"),
                        ("DELETE", "/api/v1/nodes/node-0"),
                        ("GET", f"{PATH}?watch=true"),
                    ]
                    assert {(await client.request(*call)).status for call in refused} == {403}
                    await server.stop()
                    with pytest.raises(SourceError) as caught:
                        await measured(client, *NAMES)
                    assert caught.value.cause == "unavailable"
            finally:
                await server.stop()
