"""In-place resize: what a placed pod requests while its kubelet changes its resources."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.kinds import POD
from berth.api.pod import Pod, PodStatus
from berth.api.resources import pod_requests
from berth.framework.events import Action, pod_update_actions
from berth.kube.listwatch import ObjectDecoder

MIB = 1024 * 1024
INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = {**INFEASIBLE, "reason": "Deferred"}


def container(name: str = "main", restart: str | None = None, **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests}, **({"restartPolicy": restart} if restart else {})}


def reported(allocated: dict | None = None, actual: dict | None = None, name: str = "main") -> dict[str, Any]:
    """The status of a container; without ``actual`` the kubelet has not reported any."""
    resources = {} if actual is None else {"resources": {"requests": actual}}
    return {"name": name, "allocatedResources": allocated, **resources}


def read(*statuses: dict[str, Any], node: str = "n1", conditions=(), spec=None, init=(), **status: Any) -> Pod:
    """The pod, read as from the API server, with one container that requests 1 cpu."""
    wanted = {"nodeName": node, "containers": [container(cpu="1")], **(spec or {})}
    told = {"conditions": list(conditions), "containerStatuses": list(statuses), "initContainerStatuses": list(init)}
    raw = {"metadata": {"name": "web", "uid": "u"}, "spec": wanted, "status": {**told, **status}}
    pod = ObjectDecoder(POD).one(json.dumps(raw).encode())
    assert type(pod) is Pod
    return pod


def amounts(pod: Pod) -> dict[str, int]:
    return dict(pod_requests(pod.spec).amounts)


@pytest.mark.parametrize(
    ("status", "conditions", "cpu"),
    [
        pytest.param(reported({"cpu": "1"}, {"cpu": "1"}), [], 1000, id="no resize"),
        pytest.param(reported({"cpu": "3"}, {"cpu": "3"}), [], 3000, id="smaller, not admitted yet"),
        pytest.param(reported({"cpu": "1"}, {"cpu": "3"}), [], 3000, id="smaller, not carried out yet"),
        pytest.param(reported({"cpu": "2"}, {"cpu": "500m"}), [], 2000, id="larger, admitted"),
        pytest.param(reported({"cpu": "500m"}, {"cpu": "500m"}), [DEFERRED], 1000, id="larger, deferred"),
        pytest.param(reported({"cpu": "500m"}, {"cpu": "400m"}), [INFEASIBLE], 500, id="larger, infeasible"),
        pytest.param(reported({}, {}), [INFEASIBLE], 0, id="infeasible from nothing"),
        pytest.param(reported({"cpu": "3"}), [], 1000, id="no actual resources: allocated ones do not count"),
        pytest.param(reported({"cpu": "500m"}), [INFEASIBLE], 1000, id="the same, infeasible"),
        pytest.param(reported(None, {"cpu": "3"}), [], 3000, id="no allocated resources"),
        pytest.param(reported({"cpu": "3"}, {"cpu": "3"}, "other"), [], 1000, id="another container's"),
        pytest.param(reported({"cpu": "much"}, {"cpu": "1500m"}), [], 1500, id="an unreadable quantity"),
        pytest.param(
            reported({"cpu": "3"}, {"cpu": "3"}), [DEFERRED, INFEASIBLE], 3000, id="of two conditions the first"
        ),
    ],
)
def test_a_container_requests_the_most_of_spec_allocated_and_actual_resources(status, conditions, cpu):
    assert amounts(read(status, conditions=conditions)).get("cpu", 0) == cpu


def test_each_resource_is_compared_by_its_amount():
    spec = {"containers": [container(cpu="1", memory="1Gi")]}
    pod = read(reported({"cpu": "900m", "memory": "1024Mi"}, {"memory": "2Gi", "ephemeral-storage": "5"}), spec=spec)
    assert amounts(pod) == {"cpu": 1000, "memory": 2048 * MIB, "ephemeral-storage": 5}


def test_of_init_containers_only_sidecars_count_with_their_status():
    first, proxy = container("first", cpu="100m"), container("proxy", "Always", cpu="100m")
    told = [reported({"cpu": "8"}, {"cpu": "8"}, name) for name in ("first", "proxy")]
    assert amounts(read(spec={"initContainers": [first]}, init=told)) == {"cpu": 1000}
    assert amounts(read(spec={"initContainers": [first, proxy]}, init=told)) == {"cpu": 9000}


@pytest.mark.parametrize(
    ("status", "conditions", "expected"),
    [
        pytest.param({"allocatedResources": {"cpu": "3"}}, [], {"cpu": 2250, "memory": MIB}, id="no actual ones"),
        pytest.param(
            {"resources": {}, "allocatedResources": {"cpu": "3"}}, [], {"cpu": 3250, "memory": MIB}, id="more"
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": "4", "memory": "9Gi"}}},
            [],
            {"cpu": 4250, "memory": MIB},
            id="resources that the spec has",
        ),
        pytest.param(
            {"resources": {"requests": {"memory": "9Gi"}}},
            [INFEASIBLE],
            {"cpu": 250, "memory": MIB},
            id="infeasible: not the spec, not the containers",
        ),
    ],
)
def test_a_pod_as_a_whole_is_resized_too(status, conditions, expected):
    whole = {"resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "250m"}}
    spec = {**whole, "containers": [container(cpu="1", memory="1Mi")]}
    assert amounts(read(spec=spec, conditions=conditions, **status)) == expected


def test_a_waiting_pod_requests_its_spec():
    assert amounts(read(reported({"cpu": "3"}, {"cpu": "3"}), node="", conditions=[INFEASIBLE])) == {"cpu": 1000}


def test_a_pod_that_is_not_resized_is_kept_as_if_nothing_were_reported():
    told, summed = reported({"cpu": "1"}, {"cpu": "1"}), {"allocatedResources": {"cpu": "9"}, "resources": {}}
    assert read(told) == read(told, **summed) == read()
    whole = {"resources": {"requests": {"cpu": "2"}}, "containers": [container(cpu="1")]}
    both = {"allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}}
    assert read(told, spec=whole, **both) == read(spec=whole)


def test_the_rest_of_the_status_is_kept():
    status = {"phase": "Running", "nominatedNodeName": "n2", "startTime": "2026-11-26T10:00:00Z"}
    status["conditions"] = [{"type": "Ready"}]
    status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "web-gpu"}]
    status["extendedResourceClaimStatus"] = {"resourceClaimName": "web-extended-resources"}
    assert {*status, "failure"} == {field.encode_name for field in msgspec.structs.fields(PodStatus)}
    assert msgspec.to_builtins(read(reported({"cpu": "3"}, {"cpu": "3"}), **status).status) == status


def test_a_resize_that_frees_or_takes_room_is_an_event():
    proxy = container("proxy", "Always", cpu="100m")

    def resized(cpu: str, conditions=()) -> Pod:
        told = reported({"cpu": cpu}, {"cpu": cpu}, "proxy")
        return read(spec={"initContainers": [proxy]}, init=[told], conditions=conditions)

    assert pod_update_actions(resized("3"), resized("2")) == Action.UPDATE_POD_SCALE_DOWN
    assert pod_update_actions(resized("2"), resized("3")) == Action.UPDATE_POD_SCALE_UP
    assert pod_update_actions(resized("50m"), resized("50m", [INFEASIBLE])) == Action.UPDATE_POD_SCALE_DOWN


QUANTITIES = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["0", "1", "1500m", "2", "1Ki"]))


@given(spec=QUANTITIES, allocated=QUANTITIES, actual=QUANTITIES, infeasible=st.booleans())
def test_nothing_that_counts_is_missed(spec, allocated, actual, infeasible):
    """Per resource the requests are no less than any quantity that counts, and equal to one of them."""
    pod = read(
        reported(allocated, actual),
        spec={"containers": [container(**spec)]},
        conditions=[INFEASIBLE] if infeasible else [],
    )
    counted = [amounts(read(spec={"containers": [container(**each)]})) for each in (allocated, actual, spec)]
    counted = counted[: 2 if infeasible else 3]
    expected = {name: max(each.get(name, 0) for each in counted) for each in counted for name in each}
    assert amounts(pod) == expected
