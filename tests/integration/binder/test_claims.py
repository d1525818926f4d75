"""What the binder writes to ResourceClaims, on a real API server: once, over no other's word, and taken back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from berth.api.devices import (
    FINALIZER,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from berth.api.pod import ContainerExtendedResourceRequest, Pod
from berth.framework.interface import ClaimName, CreateClaim, FreeClaim, ReleaseClaim, ReserveClaim
from berth.kube.claims import PROTOBUF, allocate, decode_claim, fence_claim, get_claim, reserve
from berth.kube.writes import get_pod
from berth_binder.claims import ClaimWriter
from harness.plugins.fixtures_kube import Cluster

# As a client in Python sends them, which is not as Go prints them.
OPAQUE = b'{"driver": "d.example.com", "parameters": %b}'
ODD = b'{"driver": "d.example.com", "parameters": {"note": "a < b",  "numbers": [1, 2]}}'

RESULTS = [DeviceRequestAllocationResult(request="r", driver="d.example.com", pool="p", device="gpu-0")]


def allocation(device: str, *, parameters: object = None) -> AllocationResult:
    result = {"request": "r", "driver": "d.example.com", "pool": "p", "device": device}
    config = [{"source": "FromClaim", "opaque": {"driver": "d.example.com", "parameters": parameters}}]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    whole = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}
    if parameters is not None:
        whole["devices"]["config"] = config
    return msgspec.json.decode(msgspec.json.encode(whole), type=AllocationResult)


class Devices:
    """A namespace with claims, on the API server."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.namespace = cluster.api.namespace
        self.requests = 0
        self.writer = ClaimWriter(cluster.client)

    async def claim(self, name: str, *, opaque: bytes = b"") -> ClaimName:
        request = b'{"name": "r", "exactly": {"deviceClassName": "gpu"}}'
        config = b', "config": [{"opaque": %b}]' % opaque if opaque else b""
        body = b'{"metadata": {"name": "%b"}, "spec": {"devices": {"requests": [%b]%b}}}' % (
            name.encode(),
            request,
            config,
        )
        path = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims"
        answer = await self.cluster.client.request("POST", path, body=body)
        assert answer.status == 201, answer.body
        return ClaimName(namespace=self.namespace, name=name, uid=decode_claim(answer.body).metadata.uid)

    def count(self, *_request: object) -> None:
        self.requests += 1

    async def pod(self, name: str, **resources: str) -> Pod:
        main = {"name": "main", "image": "pause", "resources": {"requests": resources, "limits": resources}}
        answer = await self.cluster.api.add_pod(name, containers=[main])
        assert answer.code == 201
        pod = await get_pod(self.cluster.client, self.namespace, name)
        assert pod is not None
        return pod

    async def shown(self, name: str) -> ResourceClaim:
        return decode_claim((await get_claim(self.cluster.client, self.namespace, name)).body)

    async def raw(self, name: str) -> dict[str, Any]:
        return msgspec.json.decode((await get_claim(self.cluster.client, self.namespace, name)).body)

    async def stored(self, name: str) -> bytes:
        path = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims/{name}"
        return (await self.cluster.client.request("GET", path, accept=PROTOBUF)).body

    async def copying(self, claim: ClaimName) -> ReserveClaim:
        """A write of an allocation with the parameters that the API server shows in the claim's spec."""
        (config,) = (await self.shown(claim.name)).spec.devices.config or ()
        copied = DeviceAllocationConfiguration(source="FromClaim", opaque=config.opaque)
        return ReserveClaim(
            claim=claim,
            allocation=AllocationResult(devices=DeviceAllocationResult(results=RESULTS, config=[copied])),
        )

    async def state(self, name: str) -> tuple[list[str], list[str]]:
        """The claim's devices, and the pods that have reserved it."""
        status = (await self.shown(name)).status
        results = status.allocation.devices.results if status.allocation is not None else None
        return [each.device for each in results or ()], [each.name for each in status.reserved_for or ()]


@pytest.fixture
def devices(cluster: Cluster) -> Devices:
    return Devices(cluster)


# What is stored, the simulated API server shows only as any other client reads it.
on_a_real_api_server = pytest.mark.parametrize("cluster", [pytest.param("real", marks=pytest.mark.slow)], indirect=True)

FORMS = [pytest.param(b"", id="without parameters"), pytest.param(ODD, id="with odd parameters")]


@pytest.mark.parametrize("opaque", FORMS)
async def test_a_claim_is_allocated_shared_and_given_back(devices, opaque):
    name, one, two = await devices.claim("c", opaque=opaque), await devices.pod("one"), await devices.pod("two")
    write = ReserveClaim(claim=name, allocation=allocation("gpu-0", parameters={"note": "a < b"} if opaque else None))
    assert (await devices.writer.reserve(one, write)).succeeded
    assert await devices.state("c") == (["gpu-0"], ["one"])
    raw = await devices.raw("c")
    assert raw["metadata"]["finalizers"] == [FINALIZER]
    assert raw["status"]["allocation"]["allocationTimestamp"]
    assert (await devices.writer.reserve(two, ReserveClaim(claim=name, allocation=None))).succeeded
    assert await devices.state("c") == (["gpu-0"], ["one", "two"])
    for pod, left in ((one, (["gpu-0"], ["two"])), (two, ([], []))):
        assert (await devices.writer.release(pod, ReleaseClaim(claim=name), voids=False)).succeeded
        assert await devices.state("c") == left


@on_a_real_api_server
async def test_what_the_binder_has_allocated_can_be_patched_by_others(devices):
    """Its parameters are stored in the form in which they are printed."""
    opaque = OPAQUE % b'{"note": "a < b & c > d", "numbers": [1, 2.5]}'
    name, pod = await devices.claim("c", opaque=opaque), await devices.pod("one")
    assert (await devices.writer.reserve(pod, await devices.copying(name))).succeeded
    path = f"/apis/resource.k8s.io/v1/namespaces/{devices.namespace}/resourceclaims/c/status"
    reported = [{"driver": "d.example.com", "pool": "p", "device": "gpu-0", "data": {"some": "data"}}]
    answer = await devices.cluster.api.patch(path, {"status": {"devices": reported}})
    assert answer.code == 200, answer.body
    assert (await devices.stored("c")).count(b"a \\u003c b \\u0026 c \\u003e d") == 1


@on_a_real_api_server
@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param(b'{"digits":[12345678901234567890,0.1234567890123456789]}', id="more digits than a double has"),
        pytest.param(b'{"none":null,"nones":[1,null,{"none":null}]}', id="null"),
        pytest.param(b'{"k":"%b"}' % (b"<>&" * 3_000), id="as long as allowed, and longer as it is printed"),
    ],
)
async def test_parameters_are_stored_as_they_came(devices, parameters):
    name, one, two = (
        await devices.claim("c", opaque=OPAQUE % parameters),
        await devices.pod("one"),
        await devices.pod("two"),
    )
    answer = await devices.writer.reserve(one, await devices.copying(name))
    assert answer.succeeded, answer.body
    assert (await devices.stored("c")).count(parameters) == 2
    assert (await devices.writer.reserve(two, ReserveClaim(claim=name, allocation=None))).succeeded
    for pod, left in ((one, (["gpu-0"], ["two"])), (two, ([], []))):
        assert (await devices.writer.release(pod, ReleaseClaim(claim=name), voids=False)).succeeded
        assert await devices.state("c") == left


async def test_another_clients_odd_allocation_is_shared_and_left(devices):
    """A JSON patch that adds a reservation is refused there, also kube-scheduler's own."""
    name, pod = await devices.claim("c"), await devices.pod("one")
    raw = await devices.raw("c")
    result = {"request": "r", "driver": "d.example.com", "pool": "p", "device": "gpu-1"}
    config = {"source": "FromClass", "opaque": msgspec.Raw(ODD)}
    allocated = {"devices": {"results": [result], "config": [config]}}
    users = [{"resource": "pods", "name": "x", "uid": "u"}]
    body = {**raw, "status": {"allocation": allocated, "reservedFor": users}}
    path = f"/apis/resource.k8s.io/v1/namespaces/{devices.namespace}/resourceclaims/c/status"
    written = await devices.cluster.client.request("PUT", path, body=msgspec.json.encode(body))
    assert written.succeeded, written.body
    assert (await devices.writer.reserve(pod, ReserveClaim(claim=name, allocation=None))).succeeded
    assert await devices.state("c") == (["gpu-1"], ["x", "one"])
    assert (await devices.writer.release(pod, ReleaseClaim(claim=name), voids=False)).succeeded
    assert await devices.state("c") == (["gpu-1"], ["x"])


async def test_a_repeated_request_finds_what_it_has_written(devices):
    name, pod = await devices.claim("c"), await devices.pod("one")
    write = ReserveClaim(claim=name, allocation=allocation("gpu-0"))
    first = await devices.writer.reserve(pod, write)
    second = await devices.writer.reserve(pod, write)
    versions = [decode_claim(each.body).metadata.resource_version for each in (first, second)]
    assert versions[0] == versions[1]


async def test_a_claim_that_was_allocated_otherwise_is_a_conflict(devices):
    name, one, two = await devices.claim("c"), await devices.pod("one"), await devices.pod("two")
    await devices.writer.reserve(one, ReserveClaim(claim=name, allocation=allocation("gpu-0")))
    answer = await devices.writer.reserve(two, ReserveClaim(claim=name, allocation=allocation("gpu-1")))
    assert (answer.status, b"got allocated elsewhere" in answer.body) == (409, True)
    assert await devices.state("c") == (["gpu-0"], ["one"])


async def test_a_claim_made_anew_is_a_conflict_and_needs_no_release(devices):
    name, pod = await devices.claim("c"), await devices.pod("one")
    await devices.cluster.api.delete(f"/apis/resource.k8s.io/v1/namespaces/{devices.namespace}/resourceclaims/c")
    gone = await devices.writer.reserve(pod, ReserveClaim(claim=name, allocation=allocation("gpu-0")))
    assert gone.status == HTTPStatus.NOT_FOUND
    other = await devices.claim("c")
    answer = await devices.writer.reserve(pod, ReserveClaim(claim=name, allocation=allocation("gpu-0")))
    assert answer.status == HTTPStatus.CONFLICT
    await devices.writer.reserve(pod, ReserveClaim(claim=other, allocation=allocation("gpu-0")))
    await devices.writer.release(pod, ReleaseClaim(claim=name), voids=True)
    assert await devices.state("c") == (["gpu-0"], ["one"])


@pytest.mark.parametrize("opaque", FORMS)
async def test_a_fenced_claim_takes_no_earlier_write(devices, opaque):
    await devices.claim("c", opaque=opaque)
    pod, before = await devices.pod("one"), await devices.shown("c")
    assert (await fence_claim(devices.cluster.client, devices.namespace, "c")).succeeded
    late = await allocate(devices.cluster.client, before, allocation("gpu-0"), pod, datetime.now(UTC))
    assert late.status == HTTPStatus.CONFLICT
    assert await devices.state("c") == ([], [])


async def test_a_release_voids_a_write_without_an_answer(devices):
    name, pod = await devices.claim("c"), await devices.pod("one")
    before = await devices.shown("c")
    assert (await devices.writer.release(pod, ReleaseClaim(claim=name), voids=True)).succeeded
    late = await allocate(devices.cluster.client, before, allocation("gpu-0"), pod, datetime.now(UTC))
    assert late.status == HTTPStatus.CONFLICT


async def test_a_release_voids_a_reservation_without_an_answer_of_a_claim_that_others_use(devices):
    name, one, two = await devices.claim("c"), await devices.pod("one"), await devices.pod("two")
    await devices.writer.reserve(two, ReserveClaim(claim=name, allocation=allocation("gpu-0")))
    before = await devices.shown("c")
    assert (await devices.writer.release(one, ReleaseClaim(claim=name), voids=True)).succeeded
    assert (await reserve(devices.cluster.client, before, one)).status == HTTPStatus.CONFLICT
    assert await devices.state("c") == (["gpu-0"], ["two"])


async def test_many_pods_reserve_one_claim_at_once(devices, monkeypatch):
    name = await devices.claim("c")
    pods = [await devices.pod(f"p{i}") for i in range(20)]
    write = ReserveClaim(claim=name, allocation=allocation("gpu-0"))
    monkeypatch.setattr(devices.cluster.client, "_listener", devices.count)
    answers = await asyncio.gather(*(devices.writer.reserve(pod, write) for pod in pods))
    monkeypatch.undo()
    assert {each.status for each in answers} == {200}
    assert (await devices.state("c"))[0] == ["gpu-0"]
    assert len((await devices.state("c"))[1]) == 20
    assert devices.writer._turns == {}
    assert devices.requests == 21  # the finalizer, and one for each pod


async def test_the_last_of_its_pods_takes_the_allocation_of_a_claim_back_whoever_made_it(devices):
    """Kubernetes' controller frees a claim only when it takes the last reservation out itself."""
    name, one, two = await devices.claim("c"), await devices.pod("one"), await devices.pod("two")
    await devices.writer.reserve(one, ReserveClaim(claim=name, allocation=allocation("gpu-0")))
    await devices.writer.reserve(two, ReserveClaim(claim=name, allocation=None))
    await devices.writer.release(one, ReleaseClaim(claim=name), voids=False)
    assert await devices.state("c") == (["gpu-0"], ["two"])
    await devices.writer.release(one, FreeClaim(claim=name), voids=False)
    assert await devices.state("c") == (["gpu-0"], ["two"])
    await devices.writer.release(two, ReleaseClaim(claim=name), voids=False)
    assert await devices.state("c") == ([], [])


async def test_the_claim_for_extended_resources_is_made_once_and_deleted(devices):
    pod = await devices.pod("one", **{"example.com/gpu": "1"})
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}}]}}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": pod.uid, "controller": True}
    mark = {"resource.kubernetes.io/extended-resource-claim": "true"}
    metadata = {"name": "one-extended", "namespace": devices.namespace, "annotations": mark, "ownerReferences": [owner]}
    claim = msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)
    mapping = ContainerExtendedResourceRequest(container_name="main", resource_name="example.com/gpu", request_name="r")
    write = CreateClaim(claim=claim, allocation=allocation("gpu-0"), mappings=(mapping,))
    for _ in range(2):
        answer = await devices.writer.create(pod, write)
        assert answer.succeeded, answer.body
    assert await devices.state("one-extended") == (["gpu-0"], ["one"])
    for _ in range(2):
        reported = await devices.writer.report(pod, write)
        assert reported.succeeded, reported.body
    status = msgspec.json.decode(reported.body)["status"]["extendedResourceClaimStatus"]
    assert (status["resourceClaimName"], status["requestMappings"][0]["requestName"]) == ("one-extended", "r")
    name = ClaimName(namespace=devices.namespace, name="one-extended", uid="")
    answer = await devices.writer.release(pod, ReleaseClaim(claim=name, is_deleted=True), voids=False)
    assert answer.succeeded, answer.body
    gone = await devices.writer.release(pod, ReleaseClaim(claim=name, is_deleted=True), voids=False)
    assert gone.status == HTTPStatus.NOT_FOUND
