"""The users of the cluster: they make nodes and pods of every kind, change and delete them, and provision volumes."""

from __future__ import annotations

import random
from typing import Any, Final

from berth.api.kinds import POD_DISRUPTION_BUDGET
from berth_sim.apiserver.kinds import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    SimulatedKind,
)
from berth_sim.apiserver.resources import DeleteOptions, Part
from berth_sim.apiserver.status import StatusError
from berth_sim.nodes import node_manifest, pod_manifest
from simulation.configurations import SECOND, SMALL_NOTES, TRAP
from simulation.devices import CLAIMS, EXTENDED, DeviceUsers
from simulation.groups import GroupUsers
from simulation.truth import is_present, requests_of, simulated
from simulation.world import World

ZONE: Final = "topology.kubernetes.io/zone"
ZONES: Final = ("zone-a", "zone-b")
OTHER_SCHEDULER: Final = "other"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
PROVISIONED: Final = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
BUDGETS: Final = simulated(POD_DISRUPTION_BUDGET)
PROVISIONER: Final = "disks.example.com"
CLASS: Final = "slow"
LOCAL: Final = "local"
"""The classes: one whose volumes are made for a claim, and one whose volumes are there, or come later, or never."""
SIZES_OF_NOTES: Final = (SMALL_NOTES, 60_000, 64_500, 65_000, 65_400, 70_000)
"""Bytes of labels that nothing selects: of a bus that takes 64 KiB every message has room for the first, some for the
next, none for the last."""
CONTROLLER_SECONDS: Final = (0.1, 3.0)
"""After which the controller binds a claim to the volume that is kept for it."""


class ClusterUsers:
    """Acts on one world's API server directly: what users do is not subject to berth's network."""

    def __init__(self, world: World, chance: random.Random, kinds: tuple[str, ...], habits: float = 0.0) -> None:
        """``habits``: the share of the pods that somebody deletes as soon as they are nominated or bound."""
        self._world = world
        self._kinds = kinds
        self._habits = habits
        self.graces: tuple[int, ...] = (0, 1, 30)
        self.devices: DeviceUsers | None = None
        self.groups: GroupUsers | None = None
        self.last_act = 0.0
        """When something last happened, in the world's seconds."""
        self._chance = chance
        self._resources = world.api.resources
        self._pods = 0
        self._nodes = 0
        self.counts: dict[str, int] = {}
        world.api.store.table(PERSISTENT_VOLUME_CLAIMS).listeners[self._on_claim] = None
        if habits:
            world.api.store.table(PODS).listeners[self._on_pod] = None
        self._volumes = 0
        self._add_class(CLASS, PROVISIONER)
        if "static" in kinds:
            self._add_class(LOCAL, "kubernetes.io/no-provisioner")
            world.api.store.table(PERSISTENT_VOLUMES).listeners[self._on_volume] = None

    def _add_class(self, name: str, provisioner: str) -> None:
        mode = {"volumeBindingMode": "WaitForFirstConsumer"}
        self._resources.create(STORAGE_CLASSES, "", {"metadata": {"name": name}, "provisioner": provisioner, **mode})

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.last_act = self._world.now
        self._world.note("users", what, "")

    # --- nodes

    def add_node(self) -> None:
        self._nodes += 1
        taints = [{"key": "reserved", "effect": "NoSchedule"}] if self._chance.random() < 0.15 else []
        cpu = self._chance.choice(("2", "2", "4"))
        name = f"n{self._nodes}"
        manifest = node_manifest(
            name,
            cpu=cpu,
            memory="8Gi",
            pods=self._chance.choice((4, 6, 10)),
            zone=self._chance.choice(ZONES),
            taints=taints,
        )
        self._resources.create(NODES, "", manifest)

    def _some_node(self) -> Any:
        nodes = self._world.api.store.table(NODES).in_order()
        return self._chance.choice(nodes) if nodes else None

    def change_node(self) -> None:
        """Cordon, uncordon, relabel, shrink or grow a node."""
        stored = self._some_node()
        if stored is None:
            return
        kind = self._chance.choice(("cordon", "uncordon", "uncordon", "relabel", "shrink", "grow"))
        value = stored.value
        self.count(f"node {kind}")
        match kind:
            case "cordon" | "uncordon":
                self._write(NODES, stored.key, {**value, "spec": {**value["spec"], "unschedulable": kind == "cordon"}})
            case "relabel":
                labels = {**value["metadata"]["labels"], ZONE: self._chance.choice(ZONES)}
                self._write(NODES, stored.key, {**value, "metadata": {**value["metadata"], "labels": labels}})
            case _:
                cpu = "1" if kind == "shrink" else "6"
                allocatable = {**value["status"]["allocatable"], "cpu": cpu}
                self._write(
                    NODES, stored.key, {**value, "status": {**value["status"], "allocatable": allocatable}}, "status"
                )

    def remove_node(self) -> None:
        """Delete a node and, as the garbage collector does, its pods."""
        if len(self._world.api.store.table(NODES).items) <= 2:
            return
        stored = self._some_node()
        self.count("node deleted")
        self._resources.store.remove(NODES, stored.key)
        for pod in list(self._world.api.store.table(PODS).in_order()):
            if pod.value["spec"].get("nodeName") == stored.key[1]:
                self._resources.store.remove(PODS, pod.key)

    def add_budgets(self) -> None:
        """Disruption budgets, whose controller never gets round to counting."""
        for app in ("a", "b"):
            if self._chance.random() < 0.5:
                allowed = self._chance.choice((0, 1))
                body = {
                    "metadata": {"name": f"budget-{app}"},
                    "spec": {"selector": {"matchLabels": {"app": app}}, "minAvailable": 1},
                    "status": {"disruptionsAllowed": allowed},
                }
                self._resources.create(BUDGETS, "default", body)

    # --- pods

    def add_pods(self, count: int) -> None:
        for _ in range(count):
            self.add_pod()

    def add_three_pods(self) -> None:
        """They come together, and may share a claim."""
        self.add_pods(3)

    def add_pod(self, name: str = "") -> None:  # noqa: C901, PLR0912, PLR0915 - one case for each kind of pod
        """One pod of some kind."""
        chance = self._chance
        self._pods += 1
        name = name or f"p{self._pods}"
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": chance.choice(self.graces)}
        labels = {"app": chance.choice(("a", "b"))}
        priority = chance.choice(("", "", "low", "middle", "high"))
        cpu = chance.choice(("100m", "300m", "500m", "1", "1500m"))
        kind = chance.choice(self._kinds)
        self.counts[f"pod: {kind}"] = self.counts.get(f"pod: {kind}", 0) + 1
        scheduler = SECOND if kind == "packed" else "berth"
        match kind:
            case "selector":
                spec["nodeSelector"] = {ZONE: chance.choice(ZONES)}
            case "tolerant":
                spec["tolerations"] = [{"key": "reserved", "operator": "Exists"}]
            case "spread":
                spec["topologySpreadConstraints"] = [_spread(labels)]
            case "apart":
                spec["affinity"] = {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_term(labels)]}
                }
            case "gated":
                spec["schedulingGates"] = [{"name": "later"}]
                self._world.in_world(self._ungate, ("default", name), after=chance.uniform(1, 20))
            case "volume" | "static":
                self.add_claim(f"claim-{name}", CLASS if kind == "volume" else LOCAL)
                spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": f"claim-{name}"}}]
                if kind == "static" and chance.random() < 0.9:
                    self._world.in_world(self.add_volume, after=chance.choice((0.0, chance.uniform(0.5, 20))))
            case "device" | "two claims" | "shared" | "template" if self.devices is not None:
                spec["resourceClaims"] = self.devices.for_pod(kind, name)
            case "port":
                spec["hostNetwork"] = False
            case "other":
                scheduler = OTHER_SCHEDULER
            case "large":
                labels |= {f"note-{number:04}": "x" * 44 for number in range(chance.choice(SIZES_OF_NOTES) // 59)}
                scheduler = chance.choice((scheduler, OTHER_SCHEDULER))
            case "impossible":
                cpu = "100"
            case "trapped":
                labels[TRAP] = chance.choice(("raise", "none", "error", "hint", "sort"))
            case "never":
                spec["preemptionPolicy"] = "Never"
        manifest = pod_manifest(
            name, cpu=cpu, memory="64Mi", labels=labels, scheduler=scheduler, priority_class=priority, spec=spec
        )
        if kind == "extended":
            for amounts in ("requests", "limits"):
                manifest["spec"]["containers"][0]["resources"].setdefault(amounts, {})[EXTENDED] = "1"
        if kind == "never":
            manifest["spec"]["preemptionPolicy"] = "Never"
        if kind == "port":
            manifest["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}]
        try:
            self._resources.create(PODS, "default", manifest)
        except StatusError as error:
            self._world.note("users", "refused", error.message)
            return
        self._world.note("users", "pod", f"{name} {kind} cpu={cpu} priority={priority or '-'}")
        if scheduler == OTHER_SCHEDULER:
            self._world.in_world(self._bind_elsewhere, ("default", name), after=chance.uniform(0.1, 5))

    def _ungate(self, key: tuple[str, str]) -> None:
        stored = self._world.api.store.table(PODS).items.get(key)
        if stored is not None and stored.value["spec"].get("schedulingGates"):
            self.count("pod ungated")
            self._write(PODS, key, {**stored.value, "spec": {**stored.value["spec"], "schedulingGates": []}})

    def _bind_elsewhere(self, key: tuple[str, str]) -> None:
        """Another scheduler binds its pod to a node with room."""
        stored = self._world.api.store.table(PODS).items.get(key)
        if stored is None or stored.value["spec"].get("nodeName"):
            return
        wanted = requests_of(stored.value)
        free = [node for node, room in self.rooms().items() if all(a <= b for a, b in zip(wanted, room, strict=True))]
        if free:
            self.count("pod bound by another scheduler")
            bound = {**stored.value, "spec": {**stored.value["spec"], "nodeName": self._chance.choice(free)}}
            self._resources.store.put(PODS, key, bound)

    def rooms(self) -> dict[str, list[float]]:
        rooms = {}
        for stored in self._world.api.store.table(NODES).in_order():
            offer = stored.value["status"]["allocatable"]
            container = {"spec": {"containers": [{"resources": {"requests": offer}}]}}
            cpu, memory, _ = requests_of(container)
            rooms[stored.key[1]] = [cpu, memory, float(offer["pods"])]
        for pod in self._world.pods():
            room = rooms.get(pod["spec"].get("nodeName", ""))
            if room is not None and is_present(pod):
                room[:] = [have - used for have, used in zip(room, requests_of(pod), strict=True)]
        return rooms

    def _some_pod(self) -> Any:
        pods = self._world.api.store.table(PODS).in_order()
        return self._chance.choice(pods) if pods else None

    def delete_pod(self) -> None:
        stored = self._some_pod()
        if stored is not None:
            self.count("pod deleted")
            self._resources.delete(PODS, stored.key, DeleteOptions(grace_seconds=self._chance.choice((None, 0))))

    def replace_pod(self) -> None:
        """Delete a pod at once, and create another one of its name."""
        stored = self._some_pod()
        if stored is not None:
            self.count("pod replaced")
            self._resources.delete(PODS, stored.key, DeleteOptions(grace_seconds=0))
            self.add_pod(stored.key[1])

    def finish_pod(self) -> None:
        """A pod's containers end."""
        stored = self._some_pod()
        if stored is not None and stored.value["spec"].get("nodeName"):
            self.count("pod finished")
            status = {**stored.value["status"], "phase": "Succeeded"}
            self._resources.store.put(PODS, stored.key, {**stored.value, "status": status})

    def touch_pod(self) -> None:
        """Somebody writes an annotation, or a label that plugins may read."""
        stored = self._some_pod()
        if stored is None:
            return
        self.count("pod written")
        metadata = stored.value["metadata"]
        part = self._chance.choice(("annotations", "labels"))
        changed = {**metadata, part: {**(metadata.get(part) or {}), "touched": str(self._world.api.store.revision)}}
        self._write(PODS, stored.key, {**stored.value, "metadata": changed})

    def _on_pod(self, change: Any) -> None:
        """Somebody changes his mind: a pod is deleted soon after it is nominated, or at once when it is bound."""
        if change.after is None or change.before is None or self._chance.random() >= self._habits:
            return
        before, after = change.before.value, change.after.value
        if after["spec"].get("nodeName") and not before["spec"].get("nodeName"):
            self._world.in_world(self._delete_at_once, change.key, after=self._chance.choice((0.0, 0.002, 0.02)))
        elif after["status"].get("nominatedNodeName") and not before["status"].get("nominatedNodeName"):
            self._world.in_world(self._delete_at_once, change.key, after=self._chance.uniform(0.1, 8.0))

    def _delete_at_once(self, key: tuple[str, str]) -> None:
        if key in self._world.api.store.table(PODS).items:
            self.count("pod deleted soon")
            self._resources.delete(PODS, key, DeleteOptions(grace_seconds=0))

    def room_for_an_important_pod(self) -> None:
        """There is room again, and soon an important pod that needs some."""
        for stored in self._world.api.store.table(PODS).in_order():
            if stored.value["spec"].get("nodeName") and self._chance.random() < 0.3:
                self._resources.delete(PODS, stored.key, DeleteOptions(grace_seconds=0))
        if self._chance.random() < 0.5:
            self.add_node()
        self.count("room for an important pod")
        self._world.in_world(self.add_important_pod, after=self._chance.uniform(0.0, 3.0))

    def add_important_pod(self) -> None:
        self._pods += 1
        self.count("important pod")
        cpu = self._chance.choice(("500m", "1", "1500m"))
        self._resources.create(
            PODS, "default", pod_manifest(f"p{self._pods}", cpu=cpu, memory="64Mi", priority_class="high")
        )

    def delete_everything(self) -> None:
        """Delete all pods and claims at once."""
        if self.groups is not None:
            self.groups.delete_everything()
        claims = () if self.devices is None else (CLAIMS,)
        for kind in (PODS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, *claims):
            for stored in list(self._world.api.store.table(kind).in_order()):
                self._resources.store.remove(kind, stored.key)

    def act(self, name: str) -> None:
        """Something happens in the cluster."""
        actor = next(each for each in (self, self.devices, self.groups) if hasattr(each, name))
        getattr(actor, name)()

    # --- volumes

    def add_claim(self, name: str, storage_class: str = CLASS) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        claim = {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}}
        try:
            self._resources.create(PERSISTENT_VOLUME_CLAIMS, "default", claim)
        except StatusError:
            return  # the pod is another one of its name

    def _on_claim(self, change: Any) -> None:
        """The provisioner makes a volume for a claim with a selected node, after a while."""
        if change.after is None or change.after.value["spec"].get("volumeName"):
            return
        before = (change.before.value["metadata"].get("annotations") or {}) if change.before else {}
        node = (change.after.value["metadata"].get("annotations") or {}).get(SELECTED_NODE)
        if node and node != before.get(SELECTED_NODE):
            self._world.in_world(self._provision, change.key, after=self._chance.uniform(0.2, 15))

    def _provision(self, key: tuple[str, str]) -> None:
        stored = self._world.api.store.table(PERSISTENT_VOLUME_CLAIMS).items.get(key)
        if stored is None or stored.value["spec"].get("volumeName"):
            return
        metadata, name = stored.value["metadata"], f"pv-{key[1]}"
        node = (metadata.get("annotations") or {}).get(SELECTED_NODE)
        if not node:
            return
        self.count("volume provisioned")
        reference = {"namespace": key[0], "name": key[1], "uid": metadata["uid"]}
        spec = {**_volume_on(node, CLASS), "claimRef": reference}
        volume = {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Bound"}}
        self._resources.create(PERSISTENT_VOLUMES, "", volume)
        self._bind_claim(key, stored, name)

    def _bind_claim(self, key: tuple[str, str], stored: Any, name: str) -> None:
        """The controller's last word: the claim has its volume."""
        metadata = stored.value["metadata"]
        annotations = {**(metadata.get("annotations") or {}), **PROVISIONED}
        bound = {
            "metadata": {**metadata, "annotations": annotations},
            "spec": {**stored.value["spec"], "volumeName": name},
            "status": {"phase": "Bound"},
        }
        self._resources.store.put(PERSISTENT_VOLUME_CLAIMS, key, bound)

    # --- volumes that are there before their claims

    def add_volume(self) -> None:
        """Somebody makes a volume on some node: for whoever needs one there."""
        node = self._some_node()
        if node is None:
            return
        self.count("volume added")
        self._volumes += 1
        volume = {"metadata": {"name": f"local-{self._volumes}"}, "spec": _volume_on(node.key[1], LOCAL)}
        stored = self._resources.create(PERSISTENT_VOLUMES, "", volume)
        self._write(PERSISTENT_VOLUMES, stored.key, {**stored.value, "status": {"phase": "Available"}}, "status")

    def take_volume(self) -> None:
        """A claim of somebody else, whose pod another scheduler places, gets a free volume."""
        table = self._world.api.store.table(PERSISTENT_VOLUMES)
        free = [stored for stored in table.in_order() if "claimRef" not in stored.value["spec"]]
        if free:
            self.count("volume taken")
            stored, name = self._chance.choice(free), f"claim-of-another-{self._volumes}-{self.counts['volume taken']}"
            self.add_claim(name, LOCAL)
            claim = self._resources.find(PERSISTENT_VOLUME_CLAIMS, ("default", name))
            reference = {"namespace": "default", "name": name, "uid": claim.value["metadata"]["uid"]}
            spec = {**stored.value["spec"], "claimRef": reference}
            self._write(PERSISTENT_VOLUMES, stored.key, {**stored.value, "spec": spec})

    def _on_volume(self, change: Any) -> None:
        """The controller binds the claim for which a volume is kept."""
        if change.after is None or change.after.value["status"].get("phase") == "Bound":
            return
        if (change.after.value["spec"].get("claimRef") or {}).get("uid"):
            self._world.in_world(self._bind_kept, change.key, after=self._chance.uniform(*CONTROLLER_SECONDS))

    def _bind_kept(self, key: tuple[str, str]) -> None:
        volume = self._world.api.store.table(PERSISTENT_VOLUMES).items.get(key)
        if volume is None or volume.value["status"].get("phase") == "Bound":
            return
        reference = volume.value["spec"].get("claimRef") or {}
        name = (reference.get("namespace", ""), reference.get("name", ""))
        claim = self._world.api.store.table(PERSISTENT_VOLUME_CLAIMS).items.get(name)
        if claim is None or claim.value["metadata"]["uid"] != reference.get("uid") or _volume_of(claim):
            return
        self.count("volume bound")
        self._resources.store.put(PERSISTENT_VOLUMES, key, {**volume.value, "status": {"phase": "Bound"}})
        self._bind_claim(name, claim, key[1])

    def _write(self, kind: SimulatedKind, key: tuple[str, str], value: dict[str, Any], part: Part = "") -> None:
        before = self._resources.find(kind, key)
        self._resources.update(kind, before, value, part)


ACTS: Final = (
    "add_pod", "add_pod", "add_pod", "delete_pod", "replace_pod", "finish_pod", "touch_pod", "change_node", "add_node",
    "remove_node", "room_for_an_important_pod", "add_important_pod",
)  # fmt: skip
KINDS_OF_PODS: Final = (
    "plain", "plain", "plain", "plain", "plain", "plain", "selector", "tolerant", "spread", "apart", "gated", "volume",
    "port", "other", "impossible", "never", "trapped", "packed",
)  # fmt: skip


def _volume_on(node: str, storage_class: str) -> dict[str, Any]:
    """The spec of a volume that one node has access to."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    return {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
    }


def _volume_of(claim: Any) -> str:
    return claim.value["spec"].get("volumeName") or ""


def _spread(labels: dict[str, str]) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }


def _term(labels: dict[str, str]) -> dict[str, Any]:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
