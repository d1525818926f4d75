"""A simulated kubelet for every node: bound pods start to run after a while, terminating ones end."""

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from berth.sim.kinds import NODES, PODS
from berth.sim.preconditions import DeleteOptions
from berth.sim.resources import Resources, timestamp
from berth.sim.status import ApiError, JsonObject
from berth.sim.store import Change, Key, Stored

_RUNNING_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """How pods come and go on the simulated nodes."""

    start_delay: timedelta = timedelta(seconds=0.5)
    """From Binding to Running."""
    longest_grace: timedelta = timedelta(seconds=1)
    """A terminating pod ends after its own grace period or this, whichever is shorter."""


class Kubelet:
    """Watches the pods of the store and moves them on; does nothing for pods on nodes that do not exist."""

    def __init__(self, resources: Resources, settings: KubeletSettings) -> None:
        self._resources = resources
        self._settings = settings
        self._timers: set[asyncio.TimerHandle] = set()

    def start(self) -> None:
        """Take over the pods that exist and follow those to come."""
        table = self._resources.store.table(PODS)
        for stored in table.in_order():
            self._look_at(None, stored)
        table.listeners[self._take] = None

    def stop(self) -> None:
        """Let go of everything."""
        del self._resources.store.table(PODS).listeners[self._take]
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _take(self, change: Change) -> None:
        if change.after is not None:
            self._look_at(change.before, change.after)

    def _look_at(self, before: Stored | None, pod: Stored) -> None:
        if not pod.value["spec"].get("nodeName") or not self._has_node(pod):
            return
        metadata = pod.value["metadata"]
        if "deletionTimestamp" in metadata:
            if before is None or "deletionTimestamp" not in before.value["metadata"]:
                grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds", 0))
                self._later(min(grace, self._settings.longest_grace), partial(self._end, pod.key, metadata["uid"]))
        elif before is None or not before.value["spec"].get("nodeName"):
            self._later(self._settings.start_delay, partial(self._run, pod.key, metadata["uid"]))

    def _has_node(self, pod: Stored) -> bool:
        return ("", pod.value["spec"]["nodeName"]) in self._resources.store.table(NODES).items

    def _later(self, delay: timedelta, act: Callable[[], None]) -> None:
        timers = self._timers

        def fire() -> None:
            timers.discard(timer)
            act()

        timer = asyncio.get_running_loop().call_later(delay.total_seconds(), fire)
        timers.add(timer)

    def _current(self, key: Key, uid: str) -> Stored | None:
        pod = self._resources.store.table(PODS).items.get(key)
        return pod if pod is not None and pod.value["metadata"]["uid"] == uid else None

    def _run(self, key: Key, uid: str) -> None:
        pod = self._current(key, uid)
        if pod is None or "deletionTimestamp" in pod.value["metadata"] or pod.value["status"]["phase"] != "Pending":
            return
        status = running_status(pod.value, timestamp(self._resources.clock()))
        self._resources.store.put(PODS, key, {**pod.value, "status": status})

    def _end(self, key: Key, uid: str) -> None:
        try:
            self._resources.delete(PODS, key, DeleteOptions(grace_seconds=0, uid=uid))
        except ApiError:
            return  # somebody else ended it first


def running_status(pod: JsonObject, now: str) -> JsonObject:
    """Return the status that a kubelet writes once every container of a pod runs."""
    conditions = {condition["type"]: condition for condition in pod["status"].get("conditions") or []}
    for name in _RUNNING_CONDITIONS:
        conditions[name] = {"type": name, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    containers = [_container_status(container, now) for container in pod["spec"]["containers"]]
    return {
        **pod["status"],
        "phase": "Running",
        "startTime": now,
        "conditions": list(conditions.values()),
        "containerStatuses": containers,
    }


def _container_status(container: JsonObject, now: str) -> JsonObject:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
