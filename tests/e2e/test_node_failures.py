"""NodeFailures end to end: a kubelet refuses a pod, and the pod that replaces it goes elsewhere or waits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from berth.messages.attempts import Decision, Outcome
from berth.messages.encoding import decode
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifests
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins:
    multiPoint: {enabled: [{name: NodeFailures, weight: 10}]}
  pluginConfig:
  - {name: NodeFailures, args: {remember: 10m}}
- schedulerName: strict
  plugins:
    multiPoint: {enabled: [{name: NodeFailures}]}
  pluginConfig:
  - {name: NodeFailures, args: {remember: 10m, backOff: 20s}}
"""
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-of-web", "controller": True}


async def test_a_pod_goes_elsewhere_after_a_kubelet_refused_one_of_its_workload(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(SimulatedCluster(nodes=node_manifests(2, cpu="8", memory="32Gi")))
        berth = stack.enter_context(
            berth_up("--kubeconfig", cluster.kubeconfig_path, "--config", config, "--scorers", 2, folder=tmp_path)
        )
        await asyncio.to_thread(berth.wait_until_ready)
        seen = await stack.enter_async_context(cluster_user(cluster.kubeconfig_path))
        first = await placed(seen, "web-1")
        await refuse(seen, "web-1")

        second = await placed(seen, "web-2")
        assert second != first
        [refused_there] = [each for each in (await decision_on(berth, "web-2")).candidates if each.node == first]
        assert refused_there.scores["NodeFailures"] == 0
        told = refused_there.details["NodeFailures"]
        assert told.startswith(f"failed {seen.namespace}/web-1 ")
        assert told.endswith("(OutOfcpu): score 0 of 100 for this workload")

        await create(seen, "web-3", scheduler="strict", nodeSelector={"kubernetes.io/hostname": first})
        condition = await eventually(lambda: waits(seen, "web-3"), "the pod to be refused")
        assert "1 node(s) failed a pod of this workload lately" in condition["message"]
        assert (await seen.all_bound(["web-3"], seconds=60))["web-3"] == first


async def create(seen: ClusterUser, name: str, scheduler: str = "berth", **spec: object) -> None:
    made = seen.pod(name, cpu="100m", scheduler=scheduler, spec={"nodeSelector": {}, **spec})
    made["metadata"]["ownerReferences"] = [OWNER]
    await seen.create([made])


async def placed(seen: ClusterUser, name: str) -> str:
    await create(seen, name)
    return (await seen.all_bound([name]))[name]


async def refuse(seen: ClusterUser, name: str) -> None:
    """Write what a kubelet writes that does not admit the pod."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected", "startTime": now}
    answer = await seen.api.patch(f"{seen.api.pods}/{name}/status", {"status": status})
    assert answer.code == 200, answer.body


async def waits(seen: ClusterUser, name: str) -> dict | None:
    return (await seen.condition(name)) or None


async def decision_on(berth: BerthUp, name: str) -> Decision:
    session = await berth.session()

    async def bound() -> Decision | None:
        stored = [one async for one in session.scan("DECISIONS", f"berth.decision.berth.*.{name}")]
        decisions = [decode(message.data, Decision) for message in stored]
        return next((each for each in decisions if each.outcome is Outcome.BOUND), None)

    try:
        return await eventually(bound, "the Decision that bound the pod")
    finally:
        await session.close()
