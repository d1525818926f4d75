"""Devices in a run: who makes slices and claims, Kubernetes' claim controller, another scheduler, and what must hold.

The API server accepts the same device in two claims. So each change of a claim is judged as it happens.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from berth.api.devices import FINALIZER
from berth.api.kinds import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from berth_sim.apiserver.kinds import NODES, PODS
from berth_sim.apiserver.resources import DeleteOptions
from berth_sim.apiserver.status import StatusError
from simulation.truth import is_present, simulated
from simulation.world import World

CLAIMS: Final = simulated(RESOURCE_CLAIM)
SLICES: Final = simulated(RESOURCE_SLICE)
CLASSES: Final = simulated(DEVICE_CLASS)
DRIVER: Final = "gpu.example.com"
EXTENDED: Final = "example.com/gpu"
"""The resource by which pods without claims of their own get a device."""
CAPACITY: Final = 10
SHARE: Final = 4
"""Of a device that claims share, and of one claim."""
READY: Final = "ready"
BROKEN: Final = "broken"
"""What a driver reports about a device before a Binding."""
KINDS_OF_DEVICES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {},
    {"bindingConditions": [READY], "bindingFailureConditions": [BROKEN]},
    {"allowMultipleAllocations": True, "capacity": {"memory": {"value": str(CAPACITY)}}},
)
CONTROLLER_SECONDS: Final = (0.05, 2.0)
"""After which the claim controller sees a change."""
FOREIGN: Final = "foreign"
"""The uid of all pods of another scheduler."""
SHARED: Final = ("shared-1", "shared-2")
"""Claims of several pods each."""
Key = tuple[str, str]
Device = tuple[str, str, str]


class DeviceUsers:
    """Acts on the API server directly, as ``ClusterUsers`` does."""

    def __init__(self, world: World, chance: random.Random, meddling: float) -> None:
        """``meddling``: the share of the pods about which somebody changes his mind while they are being bound."""
        self._world = world
        self._meddling = meddling
        self._chance = chance
        self._resources = world.api.resources
        self._counts = chance.choice(((1, 1, 2), (2, 3)))
        """Of devices on a node."""
        self._tidiness = chance.choice((0.0, 0.0, 0.5))
        """Share of the claims without devices whose finalizer the controller removes."""
        self.broken_at = 0.0
        """When a device last turned out to be broken, in the world's seconds: its pod is tried again, later."""
        self._foreign = 0
        self._halves = 1
        self._rivals = 0
        self.foreign: set[str] = set()
        """By uid, claims that another scheduler allocates, and such whose devices it has taken too."""
        self._resources.create(CLASSES, "", {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": EXTENDED}})
        world.api.store.table(NODES).listeners[self._on_node] = None
        world.api.store.table(PODS).listeners[self._on_pod] = None
        world.api.store.table(CLAIMS).listeners[self._on_claim] = None

    # --- drivers

    def _on_node(self, change: Any) -> None:
        if change.before is None:
            self._world.in_world(self._publish, change.key[1], after=self._chance.choice((0.0, 0.5, 3.0)))
        elif change.after is None:
            self._world.in_world(self._unpublish, change.key[1], after=self._chance.choice((0.0, 0.5, 3.0)))

    def _publish(self, node: str, generation: int = 1) -> None:
        """The driver of a node announces its devices."""
        if ("", node) not in self._world.api.store.table(NODES).items:
            return
        devices: list[dict[str, Any]] = [
            {"name": f"gpu-{number}", **self._chance.choice(KINDS_OF_DEVICES)}
            for number in range(self._chance.choice(self._counts))
        ]
        pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        body = {"metadata": {"name": f"{node}-{generation}"}, "spec": spec}
        if ("", body["metadata"]["name"]) not in self._world.api.store.table(SLICES).items:
            self._resources.create(SLICES, "", body)

    def _unpublish(self, node: str) -> None:
        for stored in list(self._world.api.store.table(SLICES).in_order()):
            if stored.value["spec"]["nodeName"] == node:
                self._resources.store.remove(SLICES, stored.key)

    def restart_driver(self) -> None:
        """A driver announces its devices anew: a higher generation, the old slice goes."""
        slices = self._world.api.store.table(SLICES).in_order()
        if slices:
            stored = self._chance.choice(list(slices))
            node, generation = stored.value["spec"]["nodeName"], stored.value["spec"]["pool"]["generation"]
            self._resources.store.remove(SLICES, stored.key)
            self._world.in_world(self._publish, node, generation + 1, after=self._chance.choice((0.0, 0.3)))

    def _prepare(self, change: Any) -> None:
        """The driver prepares devices that must be ready before the pod is bound; some break."""
        status = change.after.value.get("status") or {}
        if not status.get("devices") and any(each.get("bindingConditions") for each in results_of(change.after.value)):
            self._world.in_world(self._report, change.key, after=self._chance.choice((0.0, 0.5, 4.0)))

    def _report(self, key: Key) -> None:
        stored = self._world.api.store.table(CLAIMS).items.get(key)
        results = [each for each in results_of(stored.value) if each.get("bindingConditions")] if stored else []
        if not results or stored.value["status"].get("devices"):
            return
        kind = self._chance.choice((READY, READY, READY, BROKEN))
        if kind == BROKEN:
            self.broken_at = self._world.now
        reported = [
            {
                **{name: each[name] for name in ("driver", "pool", "device")},
                "conditions": [{"type": kind, "status": "True", "reason": "R", "message": ""}],
            }
            for each in results
        ]
        status = {**stored.value["status"], "devices": reported}
        self._resources.update(CLAIMS, stored, {**stored.value, "status": status}, "status")

    # --- claims of pods

    def add_claim(self, name: str, owner: Mapping[str, Any] | None = None) -> bool:
        """A claim for one device, or for a share of one. Returns whether it was made."""
        exactly: dict[str, Any] = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
        if self._chance.random() < 0.5:
            exactly["capacity"] = {"requests": {"memory": str(SHARE)}}
        request = {"name": "r", "exactly": exactly}
        metadata: dict[str, Any] = {"name": name}
        if owner is not None:
            reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["metadata"]["name"], "controller": True}
            metadata["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"]}]
        try:
            self._resources.create(
                CLAIMS, "default", {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}
            )
        except StatusError:
            return False
        return True

    def for_pod(self, kind: str, name: str) -> list[dict[str, Any]]:
        """The claims that a pod of this kind names."""
        if kind == "template":
            return [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        claims = [self._shared() if kind == "shared" else f"claim-{name}"]
        if kind == "two claims":
            claims.append(self._chance.choice((f"second-{name}", self._shared())))
        for claim in claims:
            self.add_claim(claim)
        return [{"name": f"gpu-{number}", "resourceClaimName": claim} for number, claim in enumerate(claims)]

    def _shared(self) -> str:
        """A claim of many pods, or one of two that come one after the other."""
        if self._chance.random() < 0.4:
            return self._chance.choice(SHARED)
        self._halves += 1
        return f"pair-{self._halves // 2}"

    def replace_claim(self) -> None:
        """Somebody deletes a claim that no pod uses yet, and makes another one of its name."""
        claims = [stored for stored in self._table(CLAIMS) if not (stored.value.get("status") or {}).get("reservedFor")]
        if claims:
            stored = self._chance.choice(claims)
            self._resources.delete(CLAIMS, stored.key, DeleteOptions())
            self._world.in_world(self.add_claim, stored.key[1], after=self._chance.choice((0.0, 0.1, 2.5)))

    def _table(self, kind: Any) -> list[Any]:
        return list(self._world.api.store.table(kind).in_order())

    # --- the claim controller

    def _on_pod(self, change: Any) -> None:
        after = self._chance.uniform(*CONTROLLER_SECONDS)
        if change.after is None or not is_present(change.after.value):
            gone = (change.after or change.before).value
            self._world.in_world(self._forget_pod, gone["metadata"]["uid"], after=after)
        elif change.before is None and any(
            "resourceClaimTemplateName" in each for each in change.after.value["spec"].get("resourceClaims") or ()
        ):
            self._world.in_world(
                self._make_from_template, change.key, change.after.value["metadata"]["uid"], after=after
            )

    def _make_from_template(self, key: Key, uid: str) -> None:
        stored = self._world.api.store.table(PODS).items.get(key)
        if stored is None or stored.value["metadata"]["uid"] != uid:
            return
        name = f"{key[1]}-gpu-{uid[:5]}"
        if self.add_claim(name, stored.value):
            statuses = [{"name": "gpu", "resourceClaimName": name}]
            status = {**stored.value["status"], "resourceClaimStatuses": statuses}
            self._resources.update(PODS, stored, {**stored.value, "status": status}, "status")

    def _forget_pod(self, uid: str) -> None:
        """Take a pod that is gone out of its claims, and delete the claims that it owns."""
        for stored in self._table(CLAIMS):
            owners = stored.value["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owners):
                self._resources.delete(CLAIMS, stored.key, DeleteOptions())
            self._sync(stored.key)

    def _on_claim(self, change: Any) -> None:
        if change.after is not None:
            if self._rivals and FINALIZER in (change.after.value["metadata"].get("finalizers") or ()):
                self._world.in_world(self._race)  # not at once: watches show this change before what follows it
            self._meddle(change)
            self._prepare(change)
            self._world.in_world(self._sync, change.key, after=self._chance.uniform(*CONTROLLER_SECONDS))

    def _sync(self, key: Key) -> None:
        """What the controller does with a claim: users that are gone are taken out, then it is free."""
        stored = self._world.api.store.table(CLAIMS).items.get(key)
        if stored is None:
            return
        metadata, status = stored.value["metadata"], stored.value.get("status") or {}
        users = status.get("reservedFor") or []
        left = [user for user in users if user["uid"] in self._present()]
        is_going = "deletionTimestamp" in metadata
        finalizers = metadata.get("finalizers") or []
        if len(left) < len(users) or (is_going and not left and status.get("allocation")):
            status = {**status, "reservedFor": left}
            if not left and FINALIZER in finalizers:
                status = {name: value for name, value in status.items() if name not in ("allocation", "reservedFor")}
            self._resources.update(CLAIMS, stored, {**stored.value, "status": status}, "status")
        elif not status.get("allocation") and FINALIZER in finalizers:
            kept = [each for each in finalizers if each != FINALIZER]
            if is_going or self._chance.random() < self._tidiness:
                self._resources.update(CLAIMS, stored, {**stored.value, "metadata": {**metadata, "finalizers": kept}})

    def _present(self) -> set[str]:
        return {FOREIGN, *(pod["metadata"]["uid"] for pod in self._world.pods() if is_present(pod))}

    # --- people

    def _meddle(self, change: Any) -> None:
        """A pod is deleted or labelled, or its node is cordoned for a while, right when it has got its devices."""
        before = users_of(change.before.value) if change.before is not None else []
        for uid in users_of(change.after.value):
            if uid in before or self._chance.random() >= self._meddling:
                continue
            pod = next((pod for pod in self._world.pods() if pod["metadata"]["uid"] == uid), None)
            if pod is None or pod["spec"].get("nodeName"):
                continue
            after, key = self._chance.choice((0.0, 0.002, 0.01)), ("default", pod["metadata"]["name"])
            match self._chance.choice(("delete", "label", "cordon", "cordon")):
                case "delete":
                    self._world.in_world(self._delete, key, after=after)
                case "label":
                    self._world.in_world(self._label, key, after=after)
                case "cordon":
                    node = next((device[1] for device in devices_of(change.after.value)), "")
                    self._world.in_world(self._cordon, node, True, after=after)
                    self._world.in_world(self._cordon, node, False, after=self._chance.choice((0.05, 0.2, 2.0, 20.0)))

    def _delete(self, key: Key) -> None:
        if key in self._world.api.store.table(PODS).items:
            self._resources.delete(PODS, key, DeleteOptions(grace_seconds=0))

    def _label(self, key: Key) -> None:
        stored = self._world.api.store.table(PODS).items.get(key)
        if stored is not None:
            labels = {**(stored.value["metadata"].get("labels") or {}), "changed": "yes"}
            self._resources.update(
                PODS, stored, {**stored.value, "metadata": {**stored.value["metadata"], "labels": labels}}
            )

    def _cordon(self, node: str, is_cordoned: bool) -> None:  # noqa: FBT001 - a callback has no keywords
        stored = self._world.api.store.table(NODES).items.get(("", node))
        if stored is not None:
            spec = {**stored.value["spec"], "unschedulable": is_cordoned}
            self._resources.update(NODES, stored, {**stored.value, "spec": spec})

    # --- another scheduler

    def take_device(self) -> None:
        """Another scheduler allocates a device that it believes to be free, when berth is about to allocate one."""
        self._rivals += 1

    def _race(self) -> None:
        devices = [
            (stored.value["spec"]["nodeName"], device["name"])
            for stored in self._table(SLICES)
            for device in stored.value["spec"]["devices"]
            if "allowMultipleAllocations" not in device
        ]
        used = {(device[1], device[2]) for stored in self._table(CLAIMS) for device in devices_of(stored.value)}
        free = [device for device in devices if device not in used]
        if not free or not self._rivals:
            return
        self._rivals -= 1
        self._foreign += 1
        name, (node, device) = f"foreign-{self._foreign}", self._chance.choice(free)
        self.add_claim(name)
        self._world.in_world(self._allocate, name, node, device, after=self._chance.uniform(0.0, 0.004))

    def _allocate(self, name: str, node: str, device: str) -> None:
        stored = self._world.api.store.table(CLAIMS).items.get(("default", name))
        if stored is None:
            return
        self.foreign.add(stored.value["metadata"]["uid"])
        result = {"request": "r", "driver": DRIVER, "pool": node, "device": device}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "f", "uid": FOREIGN}],
        }
        metadata = {**stored.value["metadata"], "finalizers": [FINALIZER]}
        self._resources.store.put(CLAIMS, stored.key, {**stored.value, "metadata": metadata, "status": status})


def results_of(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The allocation of a claim as the API server shows it."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def devices_of(claim: Mapping[str, Any]) -> Iterator[Device]:
    """Its devices."""
    for result in results_of(claim):
        yield result["driver"], result["pool"], result["device"]


def are_ready(claim: Mapping[str, Any]) -> bool:
    """Whether the driver has reported what must be so before a Binding."""
    reported = (claim.get("status") or {}).get("devices") or ()
    ready = {
        (each["driver"], each["pool"], each["device"], one["type"]) for each in reported for one in each["conditions"]
    }
    return all(
        (result["driver"], result["pool"], result["device"], condition) in ready
        for result in results_of(claim)
        for condition in result.get("bindingConditions") or ()
    )


def is_broken(claim: Mapping[str, Any]) -> bool:
    """Whether the driver has reported that a device cannot be used."""
    reported = (claim.get("status") or {}).get("devices") or ()
    return any(one["type"] == BROKEN for each in reported for one in each["conditions"])


def users_of(claim: Mapping[str, Any]) -> list[str]:
    """The uids of the pods that have reserved it."""
    return [user["uid"] for user in (claim.get("status") or {}).get("reservedFor") or ()]


def whole_of(claim: Mapping[str, Any]) -> Iterator[Device]:
    """The devices that no other claim may have."""
    for result in results_of(claim):
        if not result.get("shareID"):
            yield result["driver"], result["pool"], result["device"]


class DeviceInvariants:
    """No device is given twice, no pod is bound without its claims, and no claim is kept by a pod that is gone."""

    def __init__(self, world: World, users: DeviceUsers) -> None:
        self._world = world
        self._users = users
        self._table = world.api.store.table(CLAIMS)
        self._given_at: dict[tuple[str, Device], int] = {}
        """By the claim's uid, the revision at which it got a device."""
        self.unlucky: set[str] = set()
        """By uid, pods for which a device was reserved that its driver calls broken."""
        self._reserved: dict[str, list[str]] = {}
        """By uid of a pod whose claims a binder has begun to release, those that it had then."""
        self._table.listeners[self._on_claim] = None
        world.api.store.table(PODS).listeners[self._on_pod] = None

    def _on_claim(self, change: Any) -> None:
        self._check_kept(change)
        before = set(devices_of(change.before.value)) if change.before is not None else set()
        if change.after is None or not any(True for _ in devices_of(change.after.value)):
            return
        uid = change.after.value["metadata"]["uid"]
        if is_broken(change.after.value):
            self.unlucky |= {*users_of(change.after.value)}
        self._given_at |= {
            (uid, each): change.revision for each in devices_of(change.after.value) if each not in before
        }
        given = Counter(device for stored in self._table.in_order() for device in set(whole_of(stored.value)))
        for device in devices_of(change.after.value):
            if given[device] > 1:
                self._judge(device)
            elif self._consumed(device) > CAPACITY or (given[device] and self._consumed(device)):
                self._world.problem(f"more of {'/'.join(device)} is given than it has")

    def _check_kept(self, change: Any) -> None:
        """A pod that is bound keeps its claims, and they their devices, as long as it is there."""
        lost = {*users_of(change.before.value)} if change.before is not None else set()
        if change.after is not None and any(True for _ in devices_of(change.after.value)):
            lost -= {*users_of(change.after.value)}
        for pod in self._world.pods() if lost else ():
            if pod["metadata"]["uid"] in lost and pod["spec"].get("nodeName") and is_present(pod):
                self._world.problem(f"claim {change.key[1]} is taken from {pod['metadata']['name']}, which is bound")

    def _consumed(self, device: Device) -> int:
        return sum(
            int(result.get("consumedCapacity", {}).get("memory", 0))
            for stored in self._table.in_order()
            for result in results_of(stored.value)
            if result.get("shareID") and (result["driver"], result["pool"], result["device"]) == device
        )

    def _judge(self, device: Device) -> None:
        owners = [stored.value["metadata"] for stored in self._table.in_order() if device in devices_of(stored.value)]
        if not any(owner["uid"] in self._users.foreign for owner in owners):
            names = ", ".join(owner["name"] for owner in owners)
            self._world.problem(f"device {'/'.join(device)} is given to {names}")

    def _on_pod(self, change: Any) -> None:
        """A pod that is bound has its claims, and its node has their devices."""
        if change.after is None or change.before is None:
            return
        before, pod = change.before.value, change.after.value
        node = pod["spec"].get("nodeName", "")
        if not node or before["spec"].get("nodeName"):
            return
        for name in claims_of(pod):
            claim = self._table.items.get((pod["metadata"]["namespace"], name))
            value = claim.value if claim is not None else {}
            if pod["metadata"]["uid"] not in users_of(value):
                self._world.problem(f"{pod['metadata']['name']} is bound, and claim {name!r} is not reserved for it")
            elif any(device[1] != node for device in devices_of(value)) or not [*devices_of(value)]:
                self._world.problem(f"{pod['metadata']['name']} is bound to {node} without the devices of {name}")
            elif not are_ready(value):
                self._world.problem(f"{pod['metadata']['name']} is bound before the devices of {name} are ready")
            elif len(users_of(value)) == 1:
                self._check_first(value)

    def _check_first(self, claim: Mapping[str, Any]) -> None:
        """Whoever gives a device second takes it back."""
        for device in whole_of(claim):
            owners = [stored for stored in self._table.in_order() if device in devices_of(stored.value)]
            first = min(owners, key=lambda stored: self._given_at[stored.value["metadata"]["uid"], device])
            if first.value["metadata"]["uid"] != claim["metadata"]["uid"]:
                name = claim["metadata"]["name"]
                self._world.problem(
                    f"a pod is bound with {'/'.join(device)} of {name}, which {first.key[1]} had before"
                )

    def releasing(self, uid: str) -> None:
        """A binder begins to take back what it has written to a pod's claims."""
        claims = (stored.value for stored in self._table.in_order())
        self._reserved[uid] = [
            f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
            for claim in claims
            if uid in users_of(claim)
        ]

    def judge_refusal(self, subject: str, uid: str, message: str) -> None:
        """Who is told that somebody has taken his claim did not have it any more."""
        for claim in self._reserved.get(uid, ()):
            if f"claim {claim} got deallocated elsewhere" in message:
                self._world.problem(f"{subject} is told that {claim} was taken from it, which nobody has done")

    def leaks(self, held: Mapping[str, str]) -> list[str]:
        """Claims that keep devices for no pod that is bound or, by ``held``, waits with its place taken."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._world.pods() if is_present(pod)}
        found = []
        for stored in self._table.in_order():
            uid = stored.value["metadata"]["uid"]
            if not any(True for _ in devices_of(stored.value)) or uid in self._users.foreign:
                continue
            users = [pods[user] for user in users_of(stored.value) if user in pods]
            if not users:
                found.append(f"claim {stored.key[1]} keeps its devices for no pod")
            elif not any(user["spec"].get("nodeName") or user["metadata"]["uid"] in held for user in users):
                names = ", ".join(user["metadata"]["name"] for user in users)
                found.append(f"claim {stored.key[1]} keeps its devices for {names}, which no node has")
        return found


def claims_of(pod: Mapping[str, Any]) -> Iterator[str]:
    """The names of a pod's claims, as its status has them; empty for one that is missing."""
    made = {
        each["name"]: each.get("resourceClaimName", "") for each in pod["status"].get("resourceClaimStatuses") or ()
    }
    for entry in pod["spec"].get("resourceClaims") or ():
        yield entry.get("resourceClaimName") or made.get(entry["name"], "")
    if EXTENDED in ((pod["spec"]["containers"][0].get("resources") or {}).get("requests") or {}):
        yield (pod["status"].get("extendedResourceClaimStatus") or {}).get("resourceClaimName", "")
