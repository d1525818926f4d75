"""Pods and devices near the 1.5 MB that a real API server takes: what they cost is theirs, and who they are is said."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Iterator

import pytest

from berth.bus.settings import MEBIBYTE
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import BerthUp

pytestmark = [
    pytest.mark.requires("kubebuilder_assets", "nats-server"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Sending a large body"),  # aiohttp's, about what the test sends
]

RESOURCES = "/apis/resource.k8s.io/v1"
TOLERATIONS = 7_000
"""Of a pod that the API server takes, and that would be 1.2 MB in the mirror."""
LABELS = 9_000
"""Of one that would be as large there, and larger than NATS takes, without what only a waiting pod needs."""
TOO_MANY_VALUES = 18_500
"""Of node affinity, in a pod of the same size, of which a cycle could take the number (docs/configuration.md)."""
MANY_VALUES = 800
"""In one that is below the limit for all of it."""


@pytest.fixture(scope="module")
def bus() -> Iterator[NatsServer]:
    """A server as NATS configures it."""
    with nats_server(max_payload_bytes=MEBIBYTE) as server:
        yield server


def avoiding(count: int) -> dict:
    """A pod that fits on every node whose label has none of so many values."""
    wanted = {"key": "k", "operator": "NotIn", "values": [f"v{i:06}{'y' * 56}" for i in range(count)]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def tolerating(count: int) -> dict:
    one = {"operator": "Equal", "effect": "NoSchedule"}
    return {"tolerations": [one | {"key": f"k{i:06}{'x' * 50}", "value": f"v{i:06}{'y' * 50}"} for i in range(count)]}


async def test_a_bound_pod_above_max_payload_is_counted_and_stops_nobody(berth: BerthUp, cluster_outside: ClusterUser):
    [node] = await cluster_outside.add_nodes(1, cpu="8")
    tolerant = cluster_outside.pod("tolerant", cpu="3", spec={**tolerating(TOLERATIONS), "nodeName": node})
    huge = cluster_outside.pod("huge", cpu="4", spec={"nodeName": node})
    huge["metadata"]["labels"] = {f"label-{i:06}{'x' * 45}": "y" * 60 for i in range(LABELS)}
    await cluster_outside.create([tolerant, huge])
    small = await cluster_outside.add_pods(10, cpu="100m")
    await cluster_outside.all_bound(small)

    def named() -> list[str]:
        return [line for line in berth.said.splitlines() if "too large for the mirror" in line]

    await eventually(_holds(named), "the log to name it")
    assert len(named()) == 1
    assert f"{cluster_outside.namespace}/huge" in named()[0]  # of the other nothing is missing that counts there
    assert "leading ended" not in berth.said
    assert "no candidate" not in berth.said


async def test_a_waiting_pod_of_too_many_bytes_gets_an_event_with_size_and_limit(
    berth: BerthUp, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(1, cpu="8")
    await cluster_outside.create(
        [
            cluster_outside.pod("huge", cpu="1", spec=avoiding(TOO_MANY_VALUES)),
            cluster_outside.pod("large", cpu="1", spec=avoiding(MANY_VALUES)),
        ]
    )
    await cluster_outside.all_bound(["large", *await cluster_outside.add_pods(10, cpu="100m")])

    async def told() -> str:
        pod = (await cluster_outside.api.get(f"{cluster_outside.api.pods}/huge")).body
        conditions = pod["status"].get("conditions", [])
        return next((each["message"] for each in conditions if each["type"] == "PodScheduled"), "")

    message = await eventually(told, "the pod to get its condition")
    assert re.fullmatch(r"the pod has more than a scheduling cycle can take: 12\d{5} bytes \(at most 65536\)", message)
    events = (await cluster_outside.api.get(f"/api/v1/namespaces/{cluster_outside.namespace}/events")).body["items"]
    assert message in [each["message"] for each in events if each["reason"] == "FailedScheduling"]
    assert "leading ended" not in berth.said


async def test_devices_of_the_largest_slice_are_given_to_the_largest_claim(
    berth: BerthUp, cluster_outside: ClusterUser
):
    """128 devices with 32 attributes of the longest names and values, which do not compress, and 32 requests."""
    seen, chance = cluster_outside, random.Random(1)
    node, device_class = await with_large_slice(seen, chance)
    requests = [
        {"name": f"r{i}", "exactly": {"deviceClassName": device_class, "selectors": [selector(i, device_class, 1_024)]}}
        for i in range(32)
    ]
    config = [
        {"opaque": {"driver": "d.example.com", "parameters": {"text": "<" * 1_500, "number": i}}} for i in range(32)
    ]
    await made(seen, claims(seen), "large", {"devices": {"requests": requests, "config": config}})
    await seen.create([claiming(seen, "large", "large")])
    assert (await seen.all_bound(["large"]))["large"] == node
    given = (await seen.api.get(f"{claims(seen)}/large")).body["status"]["allocation"]["devices"]
    assert len({each["device"] for each in given["results"]}) == 32
    assert len(given["config"]) == 32
    assert given["config"][0]["opaque"] == config[0]["opaque"]


async def test_a_claim_of_too_many_bytes_is_refused_with_a_reason_and_others_go_on(
    berth: BerthUp, cluster_outside: ClusterUser
):
    seen = cluster_outside
    _, device_class = await with_large_slice(seen, random.Random(2))
    selectors = [selector(number, device_class) for number in range(4)]
    exactly = {"deviceClassName": device_class, "selectors": selectors}
    requests = [{"name": f"r{i}", "exactly": exactly} for i in range(32)]
    await made(seen, claims(seen), "huge", {"devices": {"requests": requests}})
    await made(
        seen,
        claims(seen),
        "small",
        {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}},
    )
    await seen.create([claiming(seen, "huge", "huge"), claiming(seen, "small", "small")])
    await seen.all_bound(["small"])

    async def told() -> bool:
        message = (await seen.condition("huge")).get("message", "")
        return f"resource claim {seen.namespace}/huge is too large: more than 65536 bytes of requests" in message

    await eventually(told, "the pod to be told")
    assert "leading ended" not in berth.said


async def test_objects_of_any_depth_keep_no_other_pod_waiting(berth: BerthUp, cluster_outside: ClusterUser):
    """The API server prints both as they came; 1,000 calls are all that Python has."""
    seen = cluster_outside
    deep = '{"f:":' * 1_400 + "{}" + "}" * 1_400
    _, device_class = await with_large_slice(seen, random.Random(4))
    odd = seen.pod("odd", cpu="1m")
    odd["metadata"]["namespace"] = "default"  # the test reads its own namespace
    odd["metadata"]["managedFields"] = [
        {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "@"}
    ]
    request = {"name": "r", "exactly": {"deviceClassName": device_class}}
    config = {"opaque": {"driver": "d.example.com", "parameters": "@"}}
    claim = {"metadata": {"name": "deep"}, "spec": {"devices": {"requests": [request], "config": [config]}}}
    for path, body in ((seen.api.pods.replace(seen.namespace, "default"), odd), (claims(seen), claim)):
        assert await seen.api.post_text(path, json.dumps(body).replace('"@"', deep)) == 201
    await made(seen, claims(seen), "plain", {"devices": {"requests": [request]}})
    await seen.create([claiming(seen, "waiting", "deep"), claiming(seen, "fine", "plain")])
    await seen.all_bound(["fine"])

    async def told() -> bool:
        message = (await seen.condition("waiting")).get("message", "")
        return f"resource claim {seen.namespace}/deep cannot be read: its parameters are nested" in message

    await eventually(told, "the pod to be told")
    assert "leading ended" not in berth.said


async def test_256_pods_share_a_claim(berth: BerthUp, cluster_outside: ClusterUser):
    """As many as the API server lets reserve it; one more waits."""
    seen = cluster_outside
    node, device_class = await with_large_slice(seen, random.Random(3))
    request = {"name": "r", "exactly": {"deviceClassName": device_class}}
    await made(seen, claims(seen), "shared", {"devices": {"requests": [request]}})
    names = [f"web-{number:03}" for number in range(256)]
    await seen.create(claiming(seen, name, "shared") for name in names)
    placed = await seen.all_bound(names, 120)
    assert set(placed.values()) == {node}
    users = (await seen.api.get(f"{claims(seen)}/shared")).body["status"]["reservedFor"]
    assert sorted(each["name"] for each in users) == names


async def with_large_slice(seen: ClusterUser, chance: random.Random) -> tuple[str, str]:
    """A node with the largest slice, and a class."""
    (node,) = await seen.add_nodes(1, cpu="8", memory="400Gi", pods=400)

    def text(length: int) -> str:
        return "a" + "".join(chance.choices(string.ascii_lowercase + string.digits, k=length - 1))

    attributes = [f"{text(63)}/{text(32)}" for _ in range(32)]
    devices = [
        {"name": f"gpu-{number}", "attributes": {name: {"string": text(64)} for name in attributes}}
        for number in range(128)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "nodeName": node, "pool": pool, "devices": devices}
    await made(seen, f"{RESOURCES}/deviceclasses", seen.namespace, {})
    await made(seen, f"{RESOURCES}/resourceslices", node, spec)
    return node, seen.namespace


def selector(number: int, salt: str, size: int = 10_240) -> dict:
    """One of this size; by default one of the longest."""
    return {"cel": {"expression": f'device.driver != "{salt}-{number}-'.ljust(size - 1, "x") + '"'}}


def claiming(seen: ClusterUser, name: str, claim: str) -> dict:
    return seen.pod(name, cpu="1m", spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]})


def claims(seen: ClusterUser) -> str:
    return f"{RESOURCES}/namespaces/{seen.namespace}/resourceclaims"


async def made(seen: ClusterUser, path: str, name: str, spec: dict) -> None:
    answer = await seen.api.post(path, {"metadata": {"name": name}, "spec": spec})
    assert answer.code == 201, answer.body


async def test_a_pod_with_all_the_annotations_that_may_be_is_bound(berth: BerthUp, cluster_outside: ClusterUser):
    """Watcher and binder leave out the same: else the binder would say that it has changed since it was ranked."""
    await cluster_outside.add_nodes(1, cpu="8")
    noted = cluster_outside.pod("noted", cpu="1")
    noted["metadata"]["annotations"] = {f"example.com/note-{i}": "x" * 50_000 for i in range(5)}
    await cluster_outside.create([noted])
    await cluster_outside.all_bound(["noted"])


def _holds(found):
    async def holds() -> bool:
        return bool(found())

    return holds
