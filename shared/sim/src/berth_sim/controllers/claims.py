"""ResourceClaims as Kubernetes' controller keeps them: made of templates for pods, and freed after pods.

A claim is free when no reservation is left of a pod that still runs or may run. It loses its allocation then, and its
finalizer after that; one that was made for a pod is deleted with the pod's end.
"""

import asyncio
from collections.abc import Iterator

from berth.api.devices import CLAIM_OF_POD, FINALIZER
from berth_sim.apiserver.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, SimulatedKind
from berth_sim.apiserver.resources import DeleteOptions, Resources
from berth_sim.apiserver.status import JsonObject, StatusError
from berth_sim.apiserver.store import Key, Listener, StoredObject, StoreEvent
from berth_sim.controllers.owned import FINISHED, reference_to


class ClaimController:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._store = resources.store
        self._pods: dict[Key, None] = {}
        self._claims: dict[Key, None] = {}
        self._made: dict[tuple[str, str], str] = {}  # by a pod's uid and the name of its entry, the claim's name
        self._reserved_by: dict[str, dict[Key, None]] = {}  # by a pod's uid, the claims that were reserved for it
        self._call: asyncio.Handle | None = None
        self._listeners: dict[SimulatedKind, Listener] = {}

    def start(self) -> None:
        tables = {
            PODS: self._take_pod,
            RESOURCE_CLAIM_TEMPLATES: self._take_template,
            RESOURCE_CLAIMS: self._take_claim,
        }
        self._listeners = {kind: self._store.table(kind).listen(take) for kind, take in tables.items()}
        for kind, take in tables.items():
            for stored in self._store.table(kind).in_order():
                take(StoreEvent(stored.key, stored.revision, None, stored))

    def stop(self) -> None:
        for kind, listener in self._listeners.items():
            del self._store.table(kind).listeners[listener]
        if self._call is not None:
            self._call.cancel()

    # A change is noted; the work is done after the write that is being reported.

    def _take_pod(self, change: StoreEvent) -> None:
        pod = change.after or change.before
        if pod is None:
            return
        if pod.value["spec"].get("resourceClaims") and change.after is not None:
            self._pods[change.key] = None
            self._later()
        if change.after is None or _is_over(change.after.value):
            for key in self._reserved_by.pop(pod.value["metadata"]["uid"], ()):
                self._claims[key] = None
            self._later()

    def _take_template(self, change: StoreEvent) -> None:
        for key, pod in self._store.table(PODS).items.items():
            if key[0] == change.key[0] and pod.value["spec"].get("resourceClaims"):
                self._pods[key] = None
        self._later()

    def _take_claim(self, change: StoreEvent) -> None:
        claim = change.after or change.before
        if claim is not None and (entry_name := (claim.value["metadata"].get("annotations") or {}).get(CLAIM_OF_POD)):
            made = _owner_of(claim.value["metadata"]), entry_name
            if change.after is not None:
                self._made[made] = change.key[1]
            elif self._made.get(made) == change.key[1]:
                del self._made[made]
        if change.after is None:
            return
        for entry in (change.after.value.get("status") or {}).get("reservedFor") or ():
            self._reserved_by.setdefault(entry.get("uid", ""), {})[change.key] = None
        self._claims[change.key] = None
        self._later()

    def _later(self) -> None:
        if self._call is None:
            self._call = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._call = None
        pods, claims = self._pods, self._claims
        self._pods, self._claims = {}, {}
        for key in pods:
            pod = self._store.table(PODS).items.get(key)
            if pod is not None:
                self._make_claims(pod)
        for key in claims:
            claim = self._store.table(RESOURCE_CLAIMS).items.get(key)
            if claim is not None:
                self._keep(claim)

    # Claims of templates

    def _make_claims(self, pod: StoredObject) -> None:
        if _is_over(pod.value) or "deletionTimestamp" in pod.value["metadata"]:
            return
        named = {each["name"]: each for each in pod.value["status"].get("resourceClaimStatuses") or ()}
        made = {
            entry["name"]: name for entry in self._missing(pod, set(named)) if (name := self._claim_for(pod, entry))
        }
        if made:
            statuses = [*named.values(), *({"name": name, "resourceClaimName": made[name]} for name in made)]
            status = {**pod.value["status"], "resourceClaimStatuses": statuses}
            self._store.put(PODS, pod.key, {**pod.value, "status": status})

    @staticmethod
    def _missing(pod: StoredObject, named: set[str]) -> Iterator[JsonObject]:
        for entry in pod.value["spec"]["resourceClaims"]:
            if entry.get("resourceClaimTemplateName") and entry["name"] not in named:
                yield entry

    def _claim_for(self, pod: StoredObject, entry: JsonObject) -> str:
        """The name of the claim for the entry; empty while there is no template."""
        namespace = pod.key[0]
        if known := self._made.get((pod.value["metadata"]["uid"], entry["name"])):
            return known
        template = self._store.table(RESOURCE_CLAIM_TEMPLATES).items.get(
            (namespace, entry["resourceClaimTemplateName"])
        )
        if template is None:
            return ""
        spec = template.value["spec"]
        described = spec.get("metadata") or {}
        metadata = {
            "generateName": f"{pod.key[1]}-{entry['name']}-",
            "labels": described.get("labels") or {},
            "annotations": {**(described.get("annotations") or {}), CLAIM_OF_POD: entry["name"]},
            "ownerReferences": [reference_to(PODS, pod)],
        }
        try:
            body = {"metadata": metadata, "spec": spec["spec"]}
            return self._resources.create(RESOURCE_CLAIMS, namespace, body).key[1]
        except StatusError:
            return ""  # the namespace is ending

    # The end of reservations, allocations and claims

    def _keep(self, claim: StoredObject) -> None:
        status = claim.value.get("status") or {}
        reserved = status.get("reservedFor") or []
        left = [each for each in reserved if not self._has_ended(each, claim.key[0])]
        metadata = claim.value["metadata"]
        is_ending = "deletionTimestamp" in metadata
        if not left and status.get("allocation") and (reserved or is_ending) and FINALIZER in _finalizers(metadata):
            status = {}
        elif len(left) < len(reserved):
            status = {**status, "reservedFor": left}
        if status != (claim.value.get("status") or {}):
            claim = self._store.put(RESOURCE_CLAIMS, claim.key, {**claim.value, "status": status})
            metadata = claim.value["metadata"]
        if not status.get("allocation") and FINALIZER in _finalizers(metadata) and (reserved or is_ending):
            self._remove_finalizer(claim)
        if self._is_of_an_ended_pod(metadata, claim.key[0]) and not is_ending:
            self._delete(claim.key)

    def _has_ended(self, entry: JsonObject, namespace: str) -> bool:
        pod = self._store.table(PODS).items.get((namespace, entry.get("name", "")))
        return pod is None or pod.value["metadata"]["uid"] != entry.get("uid") or _is_over(pod.value)

    def _is_of_an_ended_pod(self, metadata: JsonObject, namespace: str) -> bool:
        for owner in metadata.get("ownerReferences") or ():
            if owner.get("controller") and owner.get("kind") == PODS.name:
                return self._has_ended(owner, namespace)
        return False

    def _remove_finalizer(self, claim: StoredObject) -> None:
        def without(value: JsonObject) -> JsonObject:
            left = [each for each in _finalizers(value["metadata"]) if each != FINALIZER]
            return {**value, "metadata": {**value["metadata"], "finalizers": left}}

        self._resources.change(RESOURCE_CLAIMS, claim.key, without)

    def _delete(self, key: Key) -> None:
        try:
            self._resources.delete(RESOURCE_CLAIMS, key, DeleteOptions())
        except StatusError:
            return  # it has gone since


def _is_over(pod: JsonObject) -> bool:
    """Whether the pod has ended, or is being deleted and never ran."""
    if pod["status"].get("phase") in FINISHED:
        return True
    return "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")


def _finalizers(metadata: JsonObject) -> list[str]:
    return metadata.get("finalizers") or []


def _owner_of(metadata: JsonObject) -> str:
    owners = metadata.get("ownerReferences") or ()
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")
