"""The controllers of the simulated cluster: workloads and their pods, without a server and without waiting."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from berth_sim.apiserver.kinds import (
    BY_ADDRESS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    SimulatedKind,
)
from berth_sim.apiserver.resources import DeleteOptions, Resources, bind
from berth_sim.apiserver.store import Store, StoredObject, StoreEvent
from berth_sim.controllers import replicas
from berth_sim.controllers.loop import Controllers
from berth_sim.nodes import Kubelet, KubeletSettings, node_manifest

AT_ONCE = KubeletSettings(start_delay=timedelta(0), longest_grace=timedelta(0), job_duration=timedelta(0))
TURNS = 20_000


class Cluster:
    """Objects with controllers and kubelets; each new pod is bound to the only node at once."""

    def __init__(self) -> None:
        self.resources = Resources(Store())
        self.binds = True
        for name in ("default", "team"):
            self.resources.create(NAMESPACES, "", {"metadata": {"name": name}})
        self.resources.create(NODES, "", node_manifest("node-1"))
        self.most = 0

    def add(self, kind: SimulatedKind, name: str, namespace: str = "default", **spec: Any) -> StoredObject:
        return self.resources.create(kind, namespace, {"metadata": {"name": name}, "spec": spec})

    def change(self, kind: SimulatedKind, name: str, **spec: Any) -> None:
        self.resources.change(kind, ("default", name), lambda value: {**value, "spec": {**value["spec"], **spec}})

    def delete(self, kind: SimulatedKind, name: str, **options: Any) -> None:
        namespace = "default" if kind.namespaced else ""
        self.resources.delete(kind, (namespace, name), DeleteOptions(**options))

    def all(self, kind: SimulatedKind) -> list[dict[str, Any]]:
        return [stored.value for stored in self.resources.store.table(kind).in_order()]

    def pods(self, phase: str = "") -> list[str]:
        self.most = max(self.most, len(self.all(PODS)))
        return [pod["metadata"]["name"] for pod in self.all(PODS) if not phase or pod["status"]["phase"] == phase]

    def status(self, kind: SimulatedKind, name: str) -> dict[str, Any]:
        return self.resources.find(kind, ("default", name)).value["status"]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the loops run until the condition holds; they have nothing to wait for."""
        for _ in range(TURNS):
            if holds():
                return
            await asyncio.sleep(0)
        assert holds()

    async def rest(self) -> None:
        """Let the loops run until they write no more."""
        quiet, revision = 0, -1
        while quiet < 50:
            quiet = quiet + 1 if self.resources.store.revision == revision else 0
            revision = self.resources.store.revision
            await asyncio.sleep(0)

    def bind(self, change: StoreEvent) -> None:
        if self.binds and change.before is None and change.after is not None:
            namespace, name = change.key
            target = {"metadata": {"name": name}, "target": {"name": "node-1"}}
            asyncio.get_running_loop().call_soon(bind, self.resources, namespace, name, target)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    made.resources.store.table(PODS).listen(made.bind)
    loops = (Kubelet(made.resources, AT_ONCE), Controllers(made.resources))
    for one in loops:
        one.start()
    yield made
    for one in loops:
        one.stop()


def template(image: str = "nginx:1", **labels: str) -> dict[str, Any]:
    labels = labels or {"app": "web"}
    return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}


def selecting(replicas: int = 1, **spec: Any) -> dict[str, Any]:
    return {"selector": {"matchLabels": {"app": "web"}}, "template": template(), "replicas": replicas, **spec}


async def test_a_deployment_has_a_replica_set_whose_pods_have_owners_and_labels(cluster: Cluster):
    cluster.add(DEPLOYMENTS, "web", **selecting(replicas=3))
    await cluster.until(lambda: cluster.status(DEPLOYMENTS, "web").get("availableReplicas") == 3)
    (owner,) = cluster.all(REPLICA_SETS)
    assert owner["metadata"]["name"].startswith("web-")
    assert owner["metadata"]["ownerReferences"][0]["name"] == "web"
    for pod in cluster.all(PODS):
        assert pod["metadata"]["name"].startswith(owner["metadata"]["name"] + "-")
        assert pod["metadata"]["labels"] == owner["spec"]["selector"]["matchLabels"]
        assert pod["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    conditions = {one["type"]: one["reason"] for one in cluster.status(DEPLOYMENTS, "web")["conditions"]}
    assert conditions == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}


async def test_scaling_down_deletes_pods_without_a_node_first(cluster: Cluster):
    cluster.add(REPLICA_SETS, "web", **selecting(replicas=2))
    await cluster.until(lambda: len(cluster.pods("Running")) == 2)
    running = cluster.pods("Running")
    cluster.binds = False
    cluster.change(REPLICA_SETS, "web", replicas=4)
    await cluster.until(lambda: len(cluster.pods()) == 4)
    cluster.change(REPLICA_SETS, "web", replicas=2)
    await cluster.until(lambda: len(cluster.pods()) == 2)
    assert cluster.pods() == running


async def test_a_deleted_pod_is_replaced(cluster: Cluster):
    cluster.add(DEPLOYMENTS, "web", **selecting(replicas=2))
    await cluster.until(lambda: len(cluster.pods("Running")) == 2)
    (first, second) = cluster.pods()
    cluster.delete(PODS, first)
    await cluster.until(lambda: first not in cluster.pods() and len(cluster.pods("Running")) == 2)
    assert second in cluster.pods()


async def test_a_new_template_moves_the_pods_within_the_bounds_of_the_strategy(cluster: Cluster):
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    cluster.add(DEPLOYMENTS, "web", **selecting(replicas=4, strategy=rolling))
    await cluster.until(lambda: cluster.status(DEPLOYMENTS, "web").get("availableReplicas") == 4)
    seen: list[tuple[int, int]] = []

    def look(_change: StoreEvent) -> None:
        pods = [pod for pod in cluster.all(PODS) if "deletionTimestamp" not in pod["metadata"]]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        seen.append((len(pods), len(running)))

    cluster.resources.store.table(PODS).listen(look)
    cluster.change(DEPLOYMENTS, "web", template=template("nginx:2"))
    await cluster.until(lambda: cluster.status(DEPLOYMENTS, "web").get("updatedReplicas") == 4)
    await cluster.rest()
    assert {pod["spec"]["containers"][0]["image"] for pod in cluster.all(PODS)} == {"nginx:2"}
    assert max(pods for pods, _ in seen) <= 5
    assert min(running for _, running in seen) >= 4
    old, new = sorted(cluster.all(REPLICA_SETS), key=lambda one: one["spec"]["replicas"])
    assert (old["spec"]["replicas"], new["spec"]["replicas"]) == (0, 4)
    cluster.change(DEPLOYMENTS, "web", template=template("nginx:1"))
    await cluster.until(lambda: cluster.status(DEPLOYMENTS, "web").get("updatedReplicas") == 4)
    await cluster.rest()
    assert len(cluster.all(REPLICA_SETS)) == 2, "the old ReplicaSet is used again"
    revisions = {
        one["metadata"]["annotations"]["deployment.kubernetes.io/revision"] for one in cluster.all(REPLICA_SETS)
    }
    assert revisions == {"2", "3"}


async def test_recreate_has_no_old_pod_beside_a_new_one(cluster: Cluster):
    cluster.add(DEPLOYMENTS, "web", **selecting(replicas=3, strategy={"type": "Recreate"}))
    await cluster.until(lambda: len(cluster.pods("Running")) == 3)
    mixed: list[set[str]] = []
    cluster.resources.store.table(PODS).listen(
        lambda _: mixed.append({pod["spec"]["containers"][0]["image"] for pod in cluster.all(PODS)})
    )
    cluster.change(DEPLOYMENTS, "web", template=template("nginx:2"))
    await cluster.until(lambda: cluster.status(DEPLOYMENTS, "web").get("updatedReplicas") == 3)
    assert {"nginx:1", "nginx:2"} not in mixed


async def test_a_stateful_set_makes_its_pods_in_order_with_claims_of_their_own(cluster: Cluster):
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    made: list[str] = []
    cluster.resources.store.table(PODS).listen(lambda change: made.append(change.key[1]) if not change.before else None)
    cluster.add(STATEFUL_SETS, "db", **selecting(replicas=3, serviceName="db", volumeClaimTemplates=[claim]))
    await cluster.until(lambda: cluster.status(STATEFUL_SETS, "db").get("readyReplicas") == 3)
    assert made == ["db-0", "db-1", "db-2"]
    assert [one["metadata"]["name"] for one in cluster.all(PERSISTENT_VOLUME_CLAIMS)] == [
        "data-db-0",
        "data-db-1",
        "data-db-2",
    ]
    (volume,) = cluster.all(PODS)[0]["spec"]["volumes"]
    assert volume == {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}
    cluster.change(STATEFUL_SETS, "db", replicas=1)
    await cluster.until(lambda: cluster.pods() == ["db-0"])
    assert len(cluster.all(PERSISTENT_VOLUME_CLAIMS)) == 3
    cluster.change(STATEFUL_SETS, "db", template=template("nginx:2"))
    await cluster.until(lambda: cluster.status(STATEFUL_SETS, "db").get("updatedReplicas") == 1)


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
async def test_a_job_runs_so_many_pods_at_a_time_until_enough_have_succeeded(cluster: Cluster, mode: str):
    running: list[int] = []
    cluster.resources.store.table(PODS).listen(
        lambda _: running.append(sum(pod["status"]["phase"] in ("Pending", "Running") for pod in cluster.all(PODS)))
    )
    spec = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
    cluster.add(JOBS, "sum", parallelism=2, completions=5, completionMode=mode, template=spec)
    await cluster.until(lambda: "completionTime" in cluster.status(JOBS, "sum"))
    status = cluster.status(JOBS, "sum")
    assert (status["succeeded"], [one["type"] for one in status["conditions"]]) == (
        5,
        ["SuccessCriteriaMet", "Complete"],
    )
    assert max(running) == 2
    indexes = [
        pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-completion-index") for pod in cluster.all(PODS)
    ]
    assert sorted(index for index in indexes if index) == (["0", "1", "2", "3", "4"] if mode == "Indexed" else [])


async def test_what_a_deleted_object_owned_goes_with_it_unless_the_client_keeps_it(cluster: Cluster):
    for name in ("web", "kept"):
        cluster.add(DEPLOYMENTS, name, **selecting(replicas=2))
    await cluster.until(lambda: len(cluster.pods("Running")) == 4)
    cluster.delete(DEPLOYMENTS, "kept", orphans=True)
    cluster.delete(DEPLOYMENTS, "web")
    await cluster.until(lambda: len(cluster.pods()) == 2)
    await cluster.rest()
    (left,) = cluster.all(REPLICA_SETS)
    assert (left["metadata"]["name"][:5], left["metadata"].get("ownerReferences")) == ("kept-", None)


async def test_a_namespace_goes_with_all_that_is_in_it(cluster: Cluster):
    cluster.add(DEPLOYMENTS, "web", "team", **selecting(replicas=2))
    await cluster.until(lambda: len(cluster.pods("Running")) == 2)
    cluster.delete(NAMESPACES, "team")
    await cluster.until(lambda: len(cluster.all(NAMESPACES)) == 1)
    assert (cluster.pods(), cluster.all(REPLICA_SETS), cluster.all(DEPLOYMENTS)) == ([], [], [])


async def test_a_pod_that_cannot_be_created_is_a_condition_of_its_workload(cluster: Cluster):
    wrong = template()
    wrong["spec"]["priorityClassName"] = "absent"
    cluster.add(DEPLOYMENTS, "web", **selecting(template=wrong))
    await cluster.rest()
    (condition,) = (one for one in cluster.status(DEPLOYMENTS, "web")["conditions"] if one["type"] == "ReplicaFailure")
    assert condition["message"].endswith("is forbidden: no PriorityClass with name absent was found")


async def test_a_workload_of_two_billion_pods_gets_some_thousands_and_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replicas, "MOST_PODS", 150)
    cluster.binds = False
    cluster.add(REPLICA_SETS, "web", **selecting(replicas=2**31 - 1))
    await cluster.until(lambda: cluster.status(REPLICA_SETS, "web")["replicas"] == 150)
    await cluster.rest()
    assert len(cluster.all(PODS)) == 150
    assert "at most 150 pods" in cluster.status(REPLICA_SETS, "web")["conditions"][0]["message"]


async def test_a_replication_controller_has_pods_too(cluster: Cluster):
    spec = {"selector": {"app": "web"}, "template": template(), "replicas": 2}
    cluster.add(BY_ADDRESS["", "v1", "replicationcontrollers"], "web", **spec)
    await cluster.until(lambda: len(cluster.pods("Running")) == 2)
