"""The loop of the controllers: a change has its workloads looked at once more.

It also removes what a removed object owned, and namespaces with all that is in them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from berth_sim.apiserver.kinds import (
    DEPLOYMENTS,
    JOBS,
    KINDS,
    NAMESPACES,
    NEW_EVENTS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    SimulatedKind,
)
from berth_sim.apiserver.resources import DeleteOptions, Resources
from berth_sim.apiserver.status import StatusError
from berth_sim.apiserver.store import Key, Listener, StoredObject, StoreEvent
from berth_sim.controllers.deployments import keep_deployment
from berth_sim.controllers.jobs import keep_job
from berth_sim.controllers.owned import Owned
from berth_sim.controllers.replicas import keep_replicas
from berth_sim.controllers.statefulsets import keep_stateful_set

Keeper = Callable[[Resources, StoredObject, Owned], None]

_KEEPERS: Final[Mapping[SimulatedKind, Keeper]] = {
    DEPLOYMENTS: keep_deployment,
    REPLICA_SETS: partial(keep_replicas, REPLICA_SETS),
    REPLICATION_CONTROLLERS: partial(keep_replicas, REPLICATION_CONTROLLERS),
    STATEFUL_SETS: keep_stateful_set,
    JOBS: keep_job,
}
_RETRY_SECONDS: Final = 1.0  # until a workload whose pod was refused is looked at again
_KEPT: Final = tuple(kind for kind in KINDS if kind is not NEW_EVENTS)


class Controllers:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._listeners: dict[SimulatedKind, Listener] = {}
        self._owned: dict[str, dict[tuple[SimulatedKind, Key], None]] = defaultdict(dict)  # by the owner's uid
        self._owners: dict[str, tuple[SimulatedKind, Key]] = {}  # workloads by uid
        self._due: dict[tuple[SimulatedKind, Key], None] = {}
        self._call: asyncio.Handle | None = None
        self._retries: dict[tuple[SimulatedKind, Key], asyncio.TimerHandle] = {}

    def start(self) -> None:
        for kind in _KEPT:
            table = self._resources.store.table(kind)
            for stored in table.in_order():
                self._take(kind, StoreEvent(stored.key, stored.revision, None, stored))
            self._listeners[kind] = table.listen(partial(self._take, kind))

    def stop(self) -> None:
        for kind, listener in self._listeners.items():
            del self._resources.store.table(kind).listeners[listener]
        self._listeners.clear()
        for handle in (self._call, *self._retries.values()):
            if handle is not None:
                handle.cancel()

    def _take(self, kind: SimulatedKind, change: StoreEvent) -> None:
        """Note the objects that a change concerns; the work is done after the write that is being reported."""
        for stored in (change.before, change.after):
            for reference in (stored.value["metadata"].get("ownerReferences") or ()) if stored else ():
                self._note(kind, change, reference.get("uid", ""))
        if kind in _KEEPERS and change.after is not None:
            self._owners[change.after.value["metadata"]["uid"]] = kind, change.key
            self._later(kind, change.key)
        if change.after is None and change.before is not None:
            uid = change.before.value["metadata"]["uid"]
            self._owners.pop(uid, None)
            for dependent in self._owned.pop(uid, ()):
                self._later(*dependent)
        if kind is NAMESPACES or (change.after is None and change.key[0] and self._is_ending(change.key[0])):
            self._later(NAMESPACES, ("", change.key[0] or change.key[1]))

    def _note(self, kind: SimulatedKind, change: StoreEvent, owner: str) -> None:
        if change.after is None:
            self._owned[owner].pop((kind, change.key), None)
        else:
            self._owned[owner][kind, change.key] = None
        if owner in self._owners:
            self._later(*self._owners[owner])

    def _is_ending(self, namespace: str) -> bool:
        found = self._resources.store.table(NAMESPACES).items.get(("", namespace))
        return found is not None and "deletionTimestamp" in found.value["metadata"]

    def _later(self, kind: SimulatedKind, key: Key) -> None:
        self._due[kind, key] = None
        if self._call is None:
            self._call = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._call = None
        due, self._due = self._due, {}
        for kind, key in due:
            stored = self._resources.store.table(kind).items.get(key)
            if stored is not None:
                self._look_at(kind, stored)

    def _look_at(self, kind: SimulatedKind, stored: StoredObject) -> None:
        if kind is NAMESPACES:
            self._end_namespace(stored)
        elif self._is_left_over(stored):
            self._delete(kind, stored.key)
        elif kind in _KEEPERS and "deletionTimestamp" not in stored.value["metadata"]:
            owned = Owned(self._resources, tuple(self._owned.get(stored.value["metadata"]["uid"], ())))
            _KEEPERS[kind](self._resources, stored, owned)
            if owned.has_more_to_do:
                self._later(kind, stored.key)
            if owned.failure:
                self._try_again(kind, stored.key)

    def _try_again(self, kind: SimulatedKind, key: Key) -> None:
        if (kind, key) not in self._retries:
            timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._retry, kind, key)
            self._retries[kind, key] = timer

    def _retry(self, kind: SimulatedKind, key: Key) -> None:
        del self._retries[kind, key]
        self._later(kind, key)

    def _is_left_over(self, stored: StoredObject) -> bool:
        references = stored.value["metadata"].get("ownerReferences") or ()
        return bool(references) and all(self._is_gone(reference, stored.key[0]) for reference in references)

    def _is_gone(self, reference: Mapping[str, str], namespace: str) -> bool:
        for kind in _KEPT:
            if (kind.name, kind.api_version) == (reference.get("kind"), reference.get("apiVersion")):
                key = (namespace if kind.namespaced else "", reference.get("name", ""))
                found = self._resources.store.table(kind).items.get(key)
                return found is None or found.value["metadata"]["uid"] != reference.get("uid")
        return False

    def _end_namespace(self, namespace: StoredObject) -> None:
        if "deletionTimestamp" not in namespace.value["metadata"]:
            return
        inside = [
            (kind, key)
            for kind in _KEPT
            if kind.namespaced
            for key in self._resources.store.table(kind).items
            if key[0] == namespace.key[1]
        ]
        for kind, key in inside:
            stored = self._resources.store.table(kind).items.get(key)
            if stored is not None and (kind is not PODS or "deletionTimestamp" not in stored.value["metadata"]):
                self._delete(kind, key)
        if not inside:
            self._resources.store.remove(NAMESPACES, namespace.key)

    def _delete(self, kind: SimulatedKind, key: Key) -> None:
        try:
            self._resources.delete(kind, key, DeleteOptions())
        except StatusError:
            return  # it has gone since
