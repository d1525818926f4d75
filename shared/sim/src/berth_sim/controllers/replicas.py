"""ReplicaSets and ReplicationControllers: as many pods of the template as they say."""

from berth_sim.apiserver.kinds import SimulatedKind
from berth_sim.apiserver.resources import Resources, timestamp
from berth_sim.apiserver.store import StoredObject
from berth_sim.controllers.owned import MOST_PODS, Owned, condition, is_ready, pod_of, write_status


def keep_replicas(kind: SimulatedKind, resources: Resources, stored: StoredObject, owned: Owned) -> None:
    spec, pods = stored.value["spec"], owned.active_pods()
    template = spec.get("template")
    if not template:
        return
    wanted = min(spec.get("replicas", 1), MOST_PODS)
    if len(pods) < wanted:
        owned.create_pods(
            wanted - len(pods), lambda _: pod_of(kind, stored, template, generateName=f"{stored.key[1]}-")
        )
    elif len(pods) > wanted:
        owned.delete_pods(sorted(pods, key=_comes_last)[: len(pods) - wanted])
    if spec.get("replicas", 1) > MOST_PODS:
        owned.failure = f"the simulated cluster makes at most {MOST_PODS} pods of a workload"
    pods = owned.active_pods() if len(pods) == wanted else pods
    ready = sum(is_ready(pod) for pod in pods)
    status = {
        "replicas": len(pods),
        "fullyLabeledReplicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "conditions": _conditions(resources, stored, owned.failure),
    }
    write_status(resources, kind, stored, status)


def _comes_last(pod: StoredObject) -> tuple[bool, bool, bool, int]:
    """The sort key: pods without a node are deleted first, then pending, unready and new ones, as in Kubernetes."""
    phase = pod.value["status"].get("phase")
    return bool(pod.value["spec"].get("nodeName")), phase == "Running", is_ready(pod), -pod.revision


def _conditions(resources: Resources, stored: StoredObject, failure: str) -> list[dict[str, object]]:
    if not failure:
        return []
    known = (stored.value.get("status") or {}).get("conditions") or []
    if known:  # the message has the name of a pod, so that each try would write another
        return list(known)
    now = timestamp(resources.clock())
    failed = condition(known, "ReplicaFailure", "True", ("FailedCreate", failure), now)
    return [{name: value for name, value in failed.items() if name != "lastUpdateTime"}]
