"""The simulated cluster's claim controller and its played driver, without a server and without waiting."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from berth.api.devices import FINALIZER
from berth_sim.apiserver.kinds import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SimulatedKind,
)
from berth_sim.apiserver.resources import DeleteOptions, Resources, bind
from berth_sim.apiserver.store import Store
from berth_sim.controllers.claims import ClaimController
from berth_sim.controllers.loop import Controllers
from berth_sim.devices import CLASS, DRIVER, DeviceDriver
from berth_sim.nodes import Kubelet, KubeletSettings, node_manifest, pod_manifest

AT_ONCE = KubeletSettings(start_delay=timedelta(0), longest_grace=timedelta(0), job_duration=timedelta(0))
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}}
TEMPLATE = {"metadata": {"name": "t"}, "spec": {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}}
RESULT = {"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"}


class Cluster:
    def __init__(self) -> None:
        self.resources = Resources(Store())
        self.resources.create(NAMESPACES, "", {"metadata": {"name": "default"}})
        self.resources.create(NODES, "", node_manifest("node-1"))

    def all(self, kind: SimulatedKind) -> dict[str, dict[str, Any]]:
        return {stored.key[1]: stored.value for stored in self.resources.store.table(kind).in_order()}

    def template(self) -> None:
        self.resources.create(RESOURCE_CLAIM_TEMPLATES, "default", TEMPLATE)

    def pod(self, name: str, **source: str) -> None:
        claims = [{"name": "gpu", **(source or {"resourceClaimTemplateName": "t"})}]
        self.resources.create(PODS, "default", pod_manifest(name, spec={"resourceClaims": claims}))

    def claim(self, name: str) -> None:
        self.resources.create(RESOURCE_CLAIMS, "default", {"metadata": {"name": name}, "spec": SPEC})

    def reserve(self, claim: str, *pods: str) -> None:
        """What a scheduler writes."""
        uids = {name: pod["metadata"]["uid"] for name, pod in self.all(PODS).items()}
        reserved = [{"resource": "pods", "name": name, "uid": uids[name]} for name in pods]
        key = ("default", claim)

        def with_finalizer(value: Any) -> Any:
            return {**value, "metadata": {**value["metadata"], "finalizers": [FINALIZER]}}

        status = {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": reserved}
        self.resources.change(RESOURCE_CLAIMS, key, with_finalizer)
        self.resources.change(RESOURCE_CLAIMS, key, lambda value: {**value, "status": status}, "status")

    def bind(self, pod: str) -> None:
        bind(self.resources, "default", pod, {"metadata": {"name": pod}, "target": {"name": "node-1"}})

    def delete(self, kind: SimulatedKind, name: str) -> None:
        self.resources.delete(kind, ("default" if kind.namespaced else "", name), DeleteOptions())

    async def rest(self) -> None:
        """Let the loops run until they write no more."""
        quiet, revision = 0, -1
        while quiet < 50:
            quiet = quiet + 1 if self.resources.store.revision == revision else 0
            revision = self.resources.store.revision
            await asyncio.sleep(0)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    loops = (Kubelet(made.resources, AT_ONCE), Controllers(made.resources), ClaimController(made.resources))
    for one in loops:
        one.start()
    yield made
    for one in loops:
        one.stop()


@pytest.mark.parametrize("template_first", [True, False])
async def test_a_pod_of_a_template_gets_a_claim_of_its_own_and_its_status_names_it(
    cluster: Cluster,
    template_first: bool,  # noqa: FBT001 - a parameter of the test
):
    for step in (cluster.template, lambda: cluster.pod("web"))[:: 1 if template_first else -1]:
        step()
        await cluster.rest()
    ((name, claim),) = cluster.all(RESOURCE_CLAIMS).items()
    pod = cluster.all(PODS)["web"]
    assert pod["status"]["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": name}]
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (name.startswith("web-gpu-"), owner["uid"], owner["controller"]) == (True, pod["metadata"]["uid"], True)
    assert claim["metadata"]["labels"] == {"app": "web"}
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


async def test_a_claim_of_a_template_goes_with_its_pod_though_it_is_allocated(cluster: Cluster):
    cluster.template()
    cluster.pod("web")
    await cluster.rest()
    (name,) = cluster.all(RESOURCE_CLAIMS)
    cluster.reserve(name, "web")
    cluster.bind("web")
    await cluster.rest()
    assert cluster.all(RESOURCE_CLAIMS)[name]["status"]["allocation"]
    cluster.delete(PODS, "web")
    await cluster.rest()
    assert (cluster.all(PODS), cluster.all(RESOURCE_CLAIMS)) == ({}, {})


async def test_a_shared_claim_loses_reservations_and_after_the_last_its_devices_and_finalizer(cluster: Cluster):
    cluster.claim("shared")
    for name in ("a", "b"):
        cluster.pod(name, resourceClaimName="shared")
    cluster.reserve("shared", "a", "b")
    for name in ("a", "b"):
        cluster.bind(name)
    await cluster.rest()
    cluster.delete(PODS, "a")
    await cluster.rest()
    claim = cluster.all(RESOURCE_CLAIMS)["shared"]
    assert [each["name"] for each in claim["status"]["reservedFor"]] == ["b"]
    assert claim["status"]["allocation"]
    cluster.delete(PODS, "b")
    await cluster.rest()
    claim = cluster.all(RESOURCE_CLAIMS)["shared"]
    assert (claim["status"], claim["metadata"].get("finalizers")) == ({}, None)


async def test_an_allocated_claim_that_is_deleted_stays_until_its_pod_has_ended(cluster: Cluster):
    cluster.claim("c")
    cluster.pod("web", resourceClaimName="c")
    cluster.reserve("c", "web")
    cluster.bind("web")
    cluster.delete(RESOURCE_CLAIMS, "c")
    await cluster.rest()
    assert "deletionTimestamp" in cluster.all(RESOURCE_CLAIMS)["c"]["metadata"]
    cluster.delete(PODS, "web")
    await cluster.rest()
    assert cluster.all(RESOURCE_CLAIMS) == {}


async def test_an_idle_claim_that_is_deleted_goes_at_once(cluster: Cluster):
    cluster.claim("c")
    cluster.reserve("c")
    await cluster.rest()
    assert cluster.all(RESOURCE_CLAIMS)["c"]["status"]["allocation"]
    cluster.delete(RESOURCE_CLAIMS, "c")
    await cluster.rest()
    assert cluster.all(RESOURCE_CLAIMS) == {}


async def test_a_reservation_of_a_pod_that_waits_stays(cluster: Cluster):
    cluster.claim("c")
    cluster.pod("web", resourceClaimName="c")
    cluster.reserve("c", "web")
    await cluster.rest()
    assert cluster.all(RESOURCE_CLAIMS)["c"]["status"]["reservedFor"]
    cluster.delete(PODS, "web")
    await cluster.rest()
    assert cluster.all(RESOURCE_CLAIMS)["c"]["status"] == {}


async def test_the_driver_publishes_the_devices_of_each_node_as_long_as_it_is_there(cluster: Cluster):
    driver = DeviceDriver(cluster.resources, 4)
    driver.start()
    cluster.resources.create(NODES, "", node_manifest("node-2"))
    await cluster.rest()
    slices = cluster.all(RESOURCE_SLICES)
    assert {each["spec"]["nodeName"]: len(each["spec"]["devices"]) for each in slices.values()} == {
        "node-1": 4,
        "node-2": 4,
    }
    assert list(cluster.all(DEVICE_CLASSES)) == [CLASS]
    cluster.delete(NODES, "node-1")
    await cluster.rest()
    assert [each["spec"]["nodeName"] for each in cluster.all(RESOURCE_SLICES).values()] == ["node-2"]
    driver.stop()


async def test_the_driver_publishes_a_deleted_slice_again_with_the_same_devices(cluster: Cluster):
    driver = DeviceDriver(cluster.resources, 4)
    driver.start()
    cluster.resources.create(NODES, "", node_manifest("node-2"))
    await cluster.rest()
    before = {name: each["spec"] for name, each in cluster.all(RESOURCE_SLICES).items()}
    cluster.delete(RESOURCE_SLICES, f"node-1-{DRIVER}")
    await cluster.rest()
    assert {name: each["spec"] for name, each in cluster.all(RESOURCE_SLICES).items()} == before
    driver.stop()
    cluster.delete(RESOURCE_SLICES, f"node-1-{DRIVER}")
    await cluster.rest()
    assert list(cluster.all(RESOURCE_SLICES)) == [f"node-2-{DRIVER}"]


async def test_without_devices_there_is_no_driver(cluster: Cluster):
    driver = DeviceDriver(cluster.resources, 0)
    driver.start()
    assert (cluster.all(RESOURCE_SLICES), cluster.all(DEVICE_CLASSES)) == ({}, {})
    driver.stop()
