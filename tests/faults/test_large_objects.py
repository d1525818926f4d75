"""Pods near the 1.5 MB that a real API server takes: what they cost is theirs, and who they are is said."""

from __future__ import annotations

import re
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
