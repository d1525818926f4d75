"""Devices: pods with claims on the simulated cluster, whose claim controller and driver are played."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually, node_of
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

GROUP = "/apis/resource.k8s.io/v1"
CLASS = "gpu.example.com"
LARGE = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("80Gi")) >= 0'


async def test_devices_are_given_to_pods_freed_when_they_end_and_given_again(tmp_path: Path):
    with berth_up("--nodes", 4, "--devices", 2, folder=tmp_path) as berth:
        berth.wait_until_ready()
        async with cluster_user(berth.kubeconfig) as seen:
            await with_template(seen)
            names = [f"train-{number}" for number in range(5)]
            await seen.create(claiming(seen, name) for name in names)  # for four large devices
            await eventually(lambda: number_bound(seen, 4), "four pods to be bound")
            (late,) = set(names) - (await seen.placed()).keys()
            given = await devices_of_claims(seen)
            assert len(given) == 4
            assert set(Counter(given.values()).values()) == {1}

            async def refused() -> bool:
                message = (await seen.condition(late)).get("message", "")
                return message.startswith("0/4 nodes are available: 4 cannot allocate all claims.")

            await eventually(refused, f"{late} to be told")
            why = told("why", f"{seen.namespace}/{late}", of=berth)
            assert re.search("none of 4 matches on 2 nodes .* where 4 do not meet", why), why
            assert re.search("4 of 4 match on 2 nodes .* where .*/gpu-0 is taken by ", why), why
            assert sum(bool(each["used_by"]) for each in listed(berth)) == 4
            first = next(name for name in names if name != late)
            freed = given[first]
            assert f"its devices: {freed}" in told("why", f"{seen.namespace}/{first}", of=berth)
            await seen.delete_pod(first)
            await seen.all_bound([late])
            assert (await devices_of_claims(seen))[late] == freed

            asking = seen.pod("extended", spec={"nodeSelector": {}})
            amounts = {"example.com/gpu": "1"}
            asking["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
            await seen.create([asking])
            placed = await seen.all_bound(["extended"])
            assert placed["extended"] in (await devices_of_claims(seen))["extended"]
            for name in await seen.pods():
                await seen.delete_pod(name)
            await eventually(lambda: without_claims(seen), "the claims of ended pods to be deleted")
            assert not any(each["used_by"] for each in listed(berth))


async def test_a_pod_waits_for_the_claim_that_it_names(tmp_path: Path):
    with berth_up("--nodes", 1, "--devices", 1, folder=tmp_path) as berth:
        berth.wait_until_ready()
        async with cluster_user(berth.kubeconfig) as seen:
            await seen.create([claiming(seen, name, resourceClaimName="shared") for name in ("one", "other")])

            async def refused() -> bool:
                return f'could not find ResourceClaim "{seen.namespace}/shared"' in (await seen.condition("one")).get(
                    "message", ""
                )

            await eventually(refused, "the pod to be told")
            answer = await seen.api.post(
                f"{GROUP}/namespaces/{seen.namespace}/resourceclaims",
                {"metadata": {"name": "shared"}, "spec": wanted("true")},
            )
            assert answer.code == 201, answer.body
            await seen.all_bound(["one", "other"])
            (claim,) = await claims(seen)
            assert sorted(each["name"] for each in claim["status"]["reservedFor"]) == ["one", "other"]


def wanted(expression: str) -> dict:
    selectors = [{"cel": {"expression": expression}}]
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS, "selectors": selectors}}]}}


async def with_template(seen: ClusterUser) -> None:
    path = f"{GROUP}/namespaces/{seen.namespace}/resourceclaimtemplates"
    answer = await seen.api.post(path, {"metadata": {"name": "large"}, "spec": {"spec": wanted(LARGE)}})
    assert answer.code == 201, answer.body


def claiming(seen: ClusterUser, name: str, **source: str) -> dict:
    claim = {"name": "gpu", **(source or {"resourceClaimTemplateName": "large"})}
    pod = seen.pod(name, spec={"nodeSelector": {}, "resourceClaims": [claim]})
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


async def number_bound(seen: ClusterUser, number: int) -> bool:
    return len([pod for pod in (await seen.pods()).values() if node_of(pod)]) == number


async def claims(seen: ClusterUser) -> list[dict]:
    return (await seen.api.get(f"{GROUP}/namespaces/{seen.namespace}/resourceclaims")).body["items"]


async def without_claims(seen: ClusterUser) -> bool:
    return not await claims(seen)


async def devices_of_claims(seen: ClusterUser) -> dict[str, str]:
    """The device of each pod that has one."""
    given = {}
    for claim in await claims(seen):
        for pod in claim.get("status", {}).get("reservedFor", ()):
            (result,) = claim["status"]["allocation"]["devices"]["results"]
            given[pod["name"]] = f"{result['driver']}/{result['pool']}/{result['device']}"
    return given


def listed(berth: BerthUp) -> list[dict]:
    return json.loads(told("devices", "-o", "json", of=berth))["devices"]


def told(*arguments: str, of: BerthUp) -> str:
    command = [sys.executable, "-m", "berth_cli", *arguments, "--nats", of.nats]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "KUBE"))}
    environment |= {"TMPDIR": str(of.temporary), "HOME": str(of.temporary)}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
