"""Which pods have failed on their node, and since when, by what the kubelet reports."""

import json
from typing import Any

import pytest

from berth.api.kinds import POD
from berth.api.pod import Pod, PodFailure, workload_of
from berth.kube.listwatch import ObjectDecoder
from harness.builders.objects import a_pod
from harness.builders.owners import owned_by

STARTED, SOON, LATER = "2026-11-26T10:00:00Z", "2026-11-26T10:00:40Z", "2026-11-26T11:30:00Z"


def read(deleted: str | None = None, **status: Any) -> Pod:
    metadata = {"name": "web", "uid": "u", "deletionTimestamp": deleted}
    raw = {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"startTime": STARTED, **status}}
    pod = ObjectDecoder(POD).one(json.dumps(raw).encode())
    assert type(pod) is Pod
    return pod


def container(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "state": state, "lastState": last or {}}]}


def ended(at: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": 1, "finishedAt": at}}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


EVICTED = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": LATER}


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        pytest.param({"phase": "Failed", "reason": "OutOfcpu"}, ("OutOfcpu", STARTED), id="refused at admission"),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "conditions": [EVICTED]}, ("Evicted", LATER), id="evicted"
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", **container(ended(SOON))}, ("Evicted", SOON), id="evicted, 1.25"
        ),
        pytest.param({"phase": "Failed", **container(ended(SOON))}, ("failed at once", SOON), id="failed at once"),
        pytest.param({"phase": "Failed", **container(ended(LATER))}, None, id="failed after it had worked"),
        pytest.param({"phase": "Failed", "reason": "DeadlineExceeded"}, None, id="its own deadline"),
        pytest.param(
            {"phase": "Running", **container(waiting("CrashLoopBackOff"), ended(LATER))},
            ("CrashLoopBackOff", LATER),
            id="crashes again and again",
        ),
        pytest.param(
            {"phase": "Pending", **container(waiting("ImagePullBackOff"))}, ("ImagePullBackOff", STARTED), id="no image"
        ),
        pytest.param(
            {"phase": "Pending", **container(waiting("CreateContainerConfigError"))}, None, id="no ConfigMap anywhere"
        ),
        pytest.param({"phase": "Pending", **container(waiting("ContainerCreating"))}, None, id="starts"),
        pytest.param({"phase": "Running", **container({"running": {}}, ended(LATER))}, None, id="restarted once"),
        pytest.param({"phase": "Succeeded", **container(ended(SOON))}, None, id="succeeded"),
        pytest.param({"phase": "Failed", "reason": "OutOfcpu", "startTime": None}, None, id="of unknown time"),
    ],
)
def test_a_pod_failed_on_its_node(status, failure):
    wanted = None if failure is None else PodFailure(reason=failure[0], at=failure[1])
    assert read(**status).status.failure == wanted


def test_a_terminating_pod_has_not_failed_on_its_node():
    assert read(deleted=LATER, phase="Failed", **container(ended(SOON))).status.failure is None


@pytest.mark.parametrize(("kind", "workload"), [("ReplicaSet", "uid-of-web"), ("DaemonSet", ""), ("Node", "")])
def test_workload_is_the_controller_unless_its_pods_have_one_node(kind, workload):
    assert workload_of(owned_by("web", a_pod(), kind=kind)) == workload
    assert workload_of(a_pod()) == ""
