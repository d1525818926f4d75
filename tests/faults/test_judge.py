"""The judge of the fault runs: what it calls wrong, and what it lets pass."""

from __future__ import annotations

import pytest

from faults.judge import LAG_SECONDS, Judge

NODE = "/registry/minions/n1"


def node(cpu: str = "1", *, zone: str = "x", unschedulable: bool = False) -> dict:
    spec = {"unschedulable": True} if unschedulable else {}
    return {"metadata": {"labels": {"zone": zone}}, "spec": spec, "status": {"allocatable": {"cpu": cpu}}}


def pod(uid: str, on: str = "", *, cpu: str = "600m", scheduler: str = "berth", zone: str = "", going: bool = False):
    container = {"resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], "schedulerName": scheduler, "nodeSelector": {"zone": zone} if zone else {}}
    metadata = {"uid": uid} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if going else {})
    return {"metadata": metadata, "spec": spec | ({"nodeName": on} if on else {})}


def claim(device: str = "", *users: str) -> dict:
    results = [{"driver": "d", "pool": "n1", "device": device}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"uid": each} for each in users]}
    return {"metadata": {"uid": "c"}, "status": status if device else {}}


def claiming(uid: str, on: str = "") -> dict:
    found = pod(uid, on)
    found["metadata"]["namespace"] = "ns"
    found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    return found


def seen(*changes: tuple[float, str, dict | None]) -> Judge:
    judge = Judge()
    for at, name, found in changes:
        kind = "resourceclaims" if name in {"c", "d"} else "pods"
        judge.take(NODE if name == "n1" else f"/registry/{kind}/ns/{name}", found, at)
    return judge


def test_two_pods_of_ours_on_a_node_for_one_are_wrong_however_soon_they_follow():
    judge = seen((0, "n1", node()), (1, "a", pod("a")), (2, "a", pod("a", "n1")), (2, "b", pod("b", "n1")))
    assert judge.problems == ["ns/b bound to 'n1': 1.2 of 1.0 cpu with it"]


@pytest.mark.parametrize(("after", "problems"), [(1.0, 0), (LAG_SECONDS + 1, 1)], ids=["at once", "later"])
def test_room_taken_by_another_scheduler_counts_once_it_could_be_seen(after: float, problems: int):
    judge = seen((0, "n1", node()), (1, "a", pod("a", "n1", scheduler="other")), (1 + after, "b", pod("b", "n1")))
    assert min(1, len(judge.problems)) == problems


@pytest.mark.parametrize("change", [node("500m"), node(unschedulable=True), None], ids=["shrunk", "cordoned", "gone"])
@pytest.mark.parametrize(("after", "problems"), [(1.0, 0), (LAG_SECONDS + 1, 1)], ids=["at once", "later"])
def test_change_of_a_node_counts_once_it_could_be_seen(change: dict | None, after: float, problems: int):
    judge = seen((0, "n1", node()), (1, "n1", change), (1 + after, "b", pod("b", "n1")))
    assert min(1, len(judge.problems)) == problems


def test_room_of_a_pod_that_left_is_free():
    judge = seen((0, "n1", node()), (1, "a", pod("a", "n1")), (2, "a", None), (3, "b", pod("b", "n1")))
    assert judge.problems == []


def test_namesake_bound_where_only_its_forerunner_fitted_is_wrong():
    judge = seen((0, "n1", node()), (1, "a", pod("a1")), (2, "a", None), (3, "a", pod("a2", "n1", zone="y")))
    assert judge.problems == ["ns/a (a2) bound to 'n1', which it does not select"]


def test_deletion_that_no_user_asked_for_is_an_eviction():
    judge = seen((0, "n1", node()), (1, "a", pod("a", "n1")), (1, "b", pod("b")))
    judge.deleted_by_user.add("b")
    for name in ("a", "b"):
        judge.take(f"/registry/pods/ns/{name}", pod(name, going=True), 2)
    assert list(judge.evicted) == ["a"]


def test_decision_that_names_another_node_than_the_pod_has_is_wrong():
    judge = seen((0, "n1", node()), (1, "a", pod("a", "n1")))
    judge.check_decision("a", "n1")
    judge.check_decision("a", "n2")
    judge.check_decision("b", "n1")
    assert [problem.partition(",")[2] for problem in judge.problems] == [" but it is on 'n1'", " but it is nowhere"]


def test_pod_that_waits_beside_a_node_with_room_is_named():
    judge = seen((0, "n1", node()), (1, "a", pod("a")), (1, "b", pod("b", cpu="2")), (1, "c", pod("c", zone="y")))
    assert [each.uid for each in judge.waiting_that_fit()] == ["a"]


def test_device_in_two_claims_is_wrong_and_one_that_was_given_back_is_not():
    judge = seen((0, "c", claim("gpu-0", "a")), (1, "c", claim()), (2, "d", claim("gpu-0", "b")))
    assert judge.problems == []
    judge.take("/registry/resourceclaims/ns/c", claim("gpu-0", "a"), 3)
    assert judge.problems == ["d/n1/gpu-0 is given to ns/c and to ns/d"]


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        pytest.param(claim("gpu-0", "a"), 0, id="reserved"),
        pytest.param(claim("gpu-0", "b"), 1, id="for another"),
        pytest.param(claim(), 1, id="without devices"),
        pytest.param(None, 1, id="not there"),
    ],
)
def test_pod_bound_without_its_claim_is_wrong(found: dict | None, problems: int):
    changes = [(1, "c", found)] if found else []
    judge = seen((0, "n1", node()), *changes, (2, "a", claiming("a")), (3, "a", claiming("a", "n1")))
    assert len(judge.problems) == problems


def test_claim_with_devices_and_no_living_pod_is_a_leak():
    judge = seen((0, "a", pod("a")), (1, "c", claim("gpu-0", "a")), (1, "d", claim("gpu-1")))
    assert judge.leaked_devices() == ["ns/d"]
    judge.take("/registry/pods/ns/a", None, 2)
    assert judge.leaked_devices() == ["ns/c", "ns/d"]
