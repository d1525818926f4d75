"""Contract of the API server, real and simulated: what it holds of ResourceClaims and ResourceSlices, and what not."""

from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest

from berth.api.devices import FINALIZER
from harness.worlds.kubernetes_api import Answer, KubernetesApi

GROUP = "/apis/resource.k8s.io/v1"
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
CHOICE = {"name": "any", "firstAvailable": [{"name": "best", "deviceClassName": "gpu"}]}
SPEC = {"devices": {"requests": [REQUEST, CHOICE]}}
RESERVED = {"resource": "pods", "name": "web", "uid": "u1"}


def allocated(device: str = "gpu-0", request: str = "gpu", **result: Any) -> dict[str, Any]:
    named = {"request": request, "driver": "d.example.com", "pool": "n", "device": device}
    return {"devices": {"results": [{**named, **result}]}}


class Claims:
    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.path = f"{GROUP}/namespaces/{api.namespace}/resourceclaims"

    async def create(self, name: str = "c", **body: Any) -> Answer:
        return await self.api.post(self.path, {"metadata": {"name": name}, "spec": SPEC, **body})

    async def patch(self, name: str = "c", **body: Any) -> Answer:
        return await self.api.patch(f"{self.path}/{name}", body)

    async def status(self, name: str = "c", **status: Any) -> Answer:
        return await self.api.patch(f"{self.path}/{name}/status", {"status": status})


@pytest.fixture
def claims(kubernetes_api: KubernetesApi) -> Claims:
    return Claims(kubernetes_api)


async def test_a_new_claim_has_defaults_and_no_status(claims: Claims):
    made = await claims.create(status={"allocation": allocated()})
    assert made.code == 201, made.body
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    requests = [{"name": "gpu", "exactly": exactly}, {"name": "any", "firstAvailable": [{"name": "best", **exactly}]}]
    assert made.body["spec"] == {"devices": {"requests": requests}}
    assert made.body["status"] == {}


async def test_a_status_that_is_put_without_the_rest_keeps_owners_and_labels(claims: Claims):
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1"}
    kept = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": [FINALIZER], "ownerReferences": [owner]}
    made = await claims.create(metadata={"name": "c", **kept})
    assert made.code == 201, made.body
    version = made.body["metadata"]["resourceVersion"]
    body = {"metadata": {"name": "c", "resourceVersion": version}, "status": {"allocation": allocated()}}
    answer = await claims.api.put(f"{claims.path}/c/status", body)
    assert answer.code == 200, answer.body
    assert {name: answer.body["metadata"].get(name) for name in kept} == kept


async def test_a_spec_never_changes(claims: Claims):
    await claims.create()
    answer = await claims.patch(spec={"devices": {"requests": [{**REQUEST, "name": "other"}]}})
    assert (answer.code, "field is immutable" in answer.body["message"]) == (422, True)


async def test_a_status_write_keeps_spec_and_a_spec_write_keeps_status(claims: Claims):
    await claims.create()
    answer = await claims.status(allocation=allocated(), reservedFor=[RESERVED])
    assert answer.code == 200, answer.body
    assert answer.body["status"]["reservedFor"] == [RESERVED]
    answer = await claims.patch(metadata={"finalizers": [FINALIZER]}, status={"allocation": None})
    assert answer.body["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        pytest.param(
            {"allocation": allocated()}, {"allocation": allocated("gpu-1")}, "field is immutable", id="another device"
        ),
        pytest.param({}, {"reservedFor": [RESERVED]}, "may not be specified when", id="reserved without allocation"),
        pytest.param(
            {"allocation": allocated(), "reservedFor": [RESERVED]},
            {"allocation": None},
            "may not be specified when",
            id="deallocated while reserved",
        ),
        pytest.param(
            {"allocation": allocated()},
            {"reservedFor": [{**RESERVED, "uid": f"u{number}"} for number in range(257)]},
            "must have at most 256 items",
            id="too many",
        ),
        pytest.param(
            {"allocation": allocated()},
            {"reservedFor": [RESERVED, {**RESERVED, "name": "other"}]},
            "Duplicate value",
            id="a uid twice",
        ),
        pytest.param({}, {"allocation": allocated(request="none")}, "must be the name of a request", id="no request"),
        pytest.param(
            {}, {"allocation": allocated(shareID="u1-0")}, "shareID: Invalid value", id="a share without UUID"
        ),
    ],
)
async def test_a_status_that_contradicts_itself_is_refused(claims: Claims, first: dict, then: dict, why: str):
    await claims.create()
    if first:
        assert (await claims.status(**first)).code == 200
    answer = await claims.status(**then)
    assert (answer.code, why in answer.body["message"]) == (422, True), answer.body["message"]


async def test_an_allocation_may_be_cleared_and_set_again(claims: Claims):
    await claims.create()
    for allocation in (allocated(), None, allocated("gpu-1", "any/best")):
        assert (await claims.status(allocation=allocation)).code == 200


async def test_what_drivers_report_about_a_device_goes_with_its_allocation(claims: Claims):
    await claims.create()
    reported = {"driver": "d.example.com", "pool": "n", "device": "gpu-0"}
    await claims.status(allocation=allocated(), devices=[reported])
    answer = await claims.status(allocation=None)
    assert answer.body["status"] == {}


async def test_a_share_has_its_id(claims: Claims):
    await claims.create()
    allocation = allocated(shareID=str(uuid5(NAMESPACE_DNS, "u1-0")))
    answer = await claims.status(allocation=allocation)
    assert answer.body["status"]["allocation"] == allocation


async def test_a_claim_that_is_being_deleted_takes_no_new_reservation(claims: Claims):
    await claims.create(metadata={"name": "c", "finalizers": [FINALIZER]})
    assert (await claims.status(allocation=allocated(), reservedFor=[RESERVED])).code == 200
    await claims.api.delete(f"{claims.path}/c")
    answer = await claims.status(reservedFor=[RESERVED, {**RESERVED, "uid": "u2"}])
    assert (answer.code, "deletionTimestamp" in answer.body["message"]) == (422, True), answer.body["message"]
    assert (await claims.status(allocation=None, reservedFor=None)).code == 200
    assert (await claims.patch(metadata={"finalizers": None})).code == 200
    assert (await claims.api.get(f"{claims.path}/c")).code == 404


async def test_a_device_may_be_in_two_claims_and_in_no_slice(claims: Claims):
    for name in ("a", "b"):
        await claims.create(name)
        assert (await claims.status(name, allocation=allocated("nowhere"))).code == 200


async def test_driver_pool_and_node_of_a_slice_never_change(kubernetes_api: KubernetesApi):
    name = f"slice-{kubernetes_api.namespace}"
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "pool": pool, "nodeName": "n", "devices": [{"name": "gpu-0"}]}
    path = f"{GROUP}/resourceslices"
    assert (await kubernetes_api.post(path, {"metadata": {"name": name}, "spec": spec})).code == 201
    for change in ({"driver": "e.example.com"}, {"pool": {"name": "m"}}, {"nodeName": "m"}):
        answer = await kubernetes_api.patch(f"{path}/{name}", {"spec": change})
        assert (answer.code, "field is immutable" in answer.body["message"]) == (422, True), answer.body["message"]
    changed = {"pool": {"generation": 2}, "devices": [{"name": "gpu-1"}]}
    assert (await kubernetes_api.patch(f"{path}/{name}", {"spec": changed})).body["metadata"]["generation"] == 2
    await kubernetes_api.delete(f"{path}/{name}")


UNKNOWN = "compilation failed: ERROR: <input>:1:7: undefined field 'nosuch'\n | device.nosuch == \"\u00fc\"\n | ......^"
LONG = f'device.driver == "{"x" * 10_300}"'


def selecting(expression: str) -> dict[str, Any]:
    return {
        "deviceClassName": "gpu",
        "selectors": [{"cel": {"expression": "true"}}, {"cel": {"expression": expression}}],
    }


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        pytest.param(
            'device.nosuch == "\u00fc"',
            f'Invalid value: "device.nosuch == \\"\u00fc\\"": {UNKNOWN}',
            id="unknown field",
        ),
        pytest.param(
            "device.driver",
            'Invalid value: "device.driver": must evaluate to bool or the unknown type, not string',
            id="no bool",
        ),
        pytest.param(LONG, "Too long: may not be more than 10240 bytes", id="long"),
    ],
)
async def test_a_selector_that_does_not_compile_is_refused(claims: Claims, expression: str, why: str):
    exactly, choice = ({"name": "a", "exactly": selecting(expression)}, {"name": "a", **selecting(expression)})
    spec = {"devices": {"requests": [REQUEST, exactly]}}
    await is_refused(claims, spec, f"spec.devices.requests[1].exactly.selectors[1].cel.expression: {why}")
    spec = {"devices": {"requests": [{"name": "a", "firstAvailable": [choice]}]}}
    await is_refused(claims, spec, f"spec.devices.requests[0].firstAvailable[0].selectors[1].cel.expression: {why}")


async def is_refused(claims: Claims, spec: dict[str, Any], why: str) -> None:
    """A claim, and a template of such claims."""
    answer = await claims.create(spec=spec)
    assert (answer.code, answer.body["message"].partition(" is invalid: ")[2]) == (422, why)
    template = {"metadata": {"name": "t"}, "spec": {"spec": spec}}
    answer = await claims.api.post(claims.path.replace("claims", "claimtemplates"), template)
    field = why if "adminAccess" in why else f"spec.{why}"
    assert (answer.code, answer.body["message"].partition(" is invalid: ")[2]) == (422, field)


async def test_a_class_never_has_a_selector_that_does_not_compile(kubernetes_api: KubernetesApi):
    name, path = f"class-{kubernetes_api.namespace}", f"{GROUP}/deviceclasses"
    wrong, right = ({"selectors": [{"cel": {"expression": each}}]} for each in ("device.driver", "true"))
    refused = await kubernetes_api.post(path, {"metadata": {"name": name}, "spec": wrong})
    assert (await kubernetes_api.post(path, {"metadata": {"name": name}, "spec": right})).code == 201
    changed = await kubernetes_api.patch(f"{path}/{name}", {"spec": wrong})
    await kubernetes_api.delete(f"{path}/{name}")
    for answer in (refused, changed):
        assert answer.code == 422
        assert "spec.selectors[0].cel.expression: Invalid value" in answer.body["message"]


async def test_administrators_get_devices_in_namespaces_with_a_label_only(claims: Claims):
    admin = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "adminAccess": True}}
    spec = {"devices": {"requests": [CHOICE, admin]}}
    label = "resource.kubernetes.io/admin-access"
    why = f"Forbidden: admin access to devices requires the `{label}: true` label on the containing namespace"
    await is_refused(claims, spec, f"spec.devices.requests[1].adminAccess: {why}")
    for value, code in (("false", 422), ("true", 201)):
        await labelled(claims, {label: value})
        assert (await claims.create(spec=spec)).code == code
    await labelled(claims, {label: None})
    answer = await claims.status(allocation=allocated(adminAccess=True))
    assert answer.body["message"].endswith(f"status.allocation.devices.results[0].adminAccess: {why}")
    await labelled(claims, {label: "true"})
    assert (await claims.status(allocation=allocated(adminAccess=True))).code == 200
    await labelled(claims, {label: None})
    assert (await claims.status(reservedFor=[RESERVED])).code == 200


async def labelled(claims: Claims, labels: dict[str, str | None]) -> None:
    await claims.api.patch(f"/api/v1/namespaces/{claims.api.namespace}", {"metadata": {"labels": labels}})
