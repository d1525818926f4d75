"""StatefulSets: pods with numbers, one after the other, each with claims of its own."""

from berth_sim.apiserver.kinds import PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS
from berth_sim.apiserver.resources import Resources
from berth_sim.apiserver.status import JsonObject
from berth_sim.apiserver.store import StoredObject
from berth_sim.controllers.deployments import template_hash
from berth_sim.controllers.owned import FINISHED, MOST_PODS, Owned, is_ready, pod_of, write_status

_REVISION = "controller-revision-hash"


def keep_stateful_set(resources: Resources, stored: StoredObject, owned: Owned) -> None:
    """Create the first pod that is missing, delete the last that is too many, or replace one of an older template."""
    spec = stored.value["spec"]
    first = (spec.get("ordinals") or {}).get("start", 0)
    numbers = range(first, first + min(spec.get("replicas", 1), MOST_PODS))
    revision = f"{stored.key[1]}-{template_hash(spec['template'])}"
    pods = {pod.key[1]: pod for pod in owned.of(PODS)}
    wanted = {f"{stored.key[1]}-{number}": number for number in numbers}
    in_turn = spec.get("podManagementPolicy") != "Parallel"
    _create(resources, stored, owned, [number for name, number in wanted.items() if name not in pods], revision)
    extra = sorted((pod for name, pod in pods.items() if name not in wanted), key=_number, reverse=True)
    ended = [pod for pod in pods.values() if pod.value["status"].get("phase") in FINISHED]
    if extra or ended:
        owned.delete_pods((extra[:1] if in_turn and not owned.terminating() else [] if in_turn else extra) + ended)
    elif len(pods) == len(wanted) and all(is_ready(pod) for pod in pods.values()) and not owned.terminating():
        _replace_one(spec, owned, pods, revision, first)
    _write_status(resources, stored, owned, revision)


def _number(pod: StoredObject) -> int:
    return int(pod.key[1].rpartition("-")[2])


def _create(resources: Resources, stored: StoredObject, owned: Owned, missing: list[int], revision: str) -> None:
    if not missing:
        return
    if stored.value["spec"].get("podManagementPolicy") != "Parallel":
        earlier = [pod for pod in owned.of(PODS) if _number(pod) < missing[0]]
        missing = missing[:1] if all(is_ready(pod) for pod in earlier) and not owned.terminating() else []
    for number in missing:
        _create_claims(resources, stored, number)
    owned.create_pods(len(missing), lambda place: _pod(stored, missing[place], revision))


def _create_claims(resources: Resources, stored: StoredObject, number: int) -> None:
    for claim in stored.value["spec"].get("volumeClaimTemplates") or ():
        key = stored.key[0], f"{claim['metadata']['name']}-{stored.key[1]}-{number}"
        if key not in resources.store.table(PERSISTENT_VOLUME_CLAIMS).items:
            labels = (stored.value["spec"]["selector"].get("matchLabels")) or {}
            body = {"metadata": {"name": key[1], "labels": labels}, "spec": claim.get("spec") or {}}
            resources.create(PERSISTENT_VOLUME_CLAIMS, key[0], body)


def _pod(stored: StoredObject, number: int, revision: str) -> tuple[str, JsonObject]:
    spec = stored.value["spec"]
    name = f"{stored.key[1]}-{number}"
    labels = {
        "apps.kubernetes.io/pod-index": str(number),
        _REVISION: revision,
        "statefulset.kubernetes.io/pod-name": name,
    }
    claimed = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or ()]
    volumes = [one for one in spec["template"]["spec"].get("volumes") or () if one.get("name") not in claimed]
    volumes += [{"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}} for claim in claimed]
    of_pod = {**spec["template"]["spec"], "hostname": name, "subdomain": spec.get("serviceName", "")}
    template = {**spec["template"], "spec": {**of_pod, **({"volumes": volumes} if volumes else {})}}
    return pod_of(STATEFUL_SETS, stored, template, name=name, labels=labels)


def _replace_one(spec: JsonObject, owned: Owned, pods: dict[str, StoredObject], revision: str, first: int) -> None:
    """Delete the last pod of an older template; the next turn creates it anew."""
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return
    kept = (strategy.get("rollingUpdate") or {}).get("partition", 0)
    stale = [pod for pod in pods.values() if pod.value["metadata"].get("labels", {}).get(_REVISION) != revision]
    owned.delete_pods(sorted((pod for pod in stale if _number(pod) - first >= kept), key=_number)[-1:])


def _write_status(resources: Resources, stored: StoredObject, owned: Owned, revision: str) -> None:
    pods = owned.of(PODS)
    ready = sum(is_ready(pod) for pod in pods)
    updated = sum(pod.value["metadata"].get("labels", {}).get(_REVISION) == revision for pod in pods)
    known = (stored.value.get("status") or {}).get("currentRevision", revision)
    status = {
        "replicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": updated if known == revision else len(pods) - updated,
        "updatedReplicas": updated,
        "currentRevision": revision if updated == len(pods) else known,
        "updateRevision": revision,
    }
    write_status(resources, STATEFUL_SETS, stored, status)
