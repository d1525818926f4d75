"""Jobs: pods until enough of them have succeeded. On the simulated nodes, the pods of a Job succeed after a while."""

from typing import Any

from berth_sim.apiserver.kinds import JOBS, PODS
from berth_sim.apiserver.resources import Resources, timestamp
from berth_sim.apiserver.status import JsonObject
from berth_sim.apiserver.store import StoredObject
from berth_sim.controllers.owned import MOST_PODS, Owned, condition, is_ready, pod_of, write_status

_INDEX = "batch.kubernetes.io/job-completion-index"


def keep_job(resources: Resources, job: StoredObject, owned: Owned) -> None:
    """Create the pods that may run at the same time, until the Job is complete."""
    spec, status = job.value["spec"], job.value.get("status") or {}
    active, succeeded = owned.active_pods(), _succeeded(owned)
    if "completionTime" in status:
        return
    completions = spec.get("completions")
    is_complete = len(succeeded) >= completions if completions is not None else bool(succeeded) and not active
    left = (completions - len(succeeded)) if completions is not None else 0 if succeeded else spec["parallelism"]
    wanted = 0 if is_complete or spec.get("suspend") else max(0, min(spec["parallelism"], left, MOST_PODS))
    if len(active) < wanted:
        indexes = _free_indexes(spec, active, succeeded)
        owned.create_pods(wanted - len(active), lambda place: _pod(job, indexes[place] if indexes else None))
    elif len(active) > wanted:
        owned.delete_pods(active[wanted:])
    _write_status(resources, job, owned, is_complete=is_complete)


def _succeeded(owned: Owned) -> list[StoredObject]:
    return [pod for pod in owned.of(PODS) if pod.value["status"].get("phase") == "Succeeded"]


def _free_indexes(spec: JsonObject, active: list[StoredObject], succeeded: list[StoredObject]) -> list[int]:
    if spec.get("completionMode") != "Indexed":
        return []
    taken = {(pod.value["metadata"].get("annotations") or {}).get(_INDEX) for pod in (*active, *succeeded)}
    return [index for index in range(min(spec.get("completions", 0), MOST_PODS)) if str(index) not in taken]


def _pod(job: StoredObject, index: int | None) -> tuple[str, JsonObject]:
    template = job.value["spec"]["template"]
    if index is None:
        return pod_of(JOBS, job, template, generateName=f"{job.key[1]}-")
    named = {_INDEX: str(index)}
    return pod_of(JOBS, job, template, generateName=f"{job.key[1]}-{index}-", annotations=named, labels=named)


def _write_status(resources: Resources, job: StoredObject, owned: Owned, *, is_complete: bool) -> None:
    before = job.value.get("status") or {}
    now = timestamp(resources.clock())
    active = owned.active_pods()
    status: dict[str, Any] = {
        "startTime": before.get("startTime", now),
        "active": 0 if is_complete else len(active),
        "ready": sum(is_ready(pod) for pod in active),
        "succeeded": len(_succeeded(owned)),
    }
    if is_complete:
        known = before.get("conditions") or ()
        said = "CompletionsReached", "Reached expected number of succeeded pods"
        complete = [condition(known, kind, "True", said, now) for kind in ("SuccessCriteriaMet", "Complete")]
        status |= {"completionTime": now, "conditions": complete}
    write_status(resources, JOBS, job, status)
