"""A story about devices, told to any scheduler: 40 pods with claims, drivers that restart, devices that change.

    async with story_told_to(seen, "berth", DeviceStory) as story:
        await story.tell()
        story.outcome, story.claims

The story plays drivers, kubelets and the claim controller. One pod at a time has a choice, and prefers one node, so
that two schedulers that decide alike leave the same objects.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from harness.worlds.cluster_user import ClusterUser
from harness.worlds.story import EVENTS_SECONDS, HOSTNAME, NEVER, SEEN_SECONDS, STEP_SECONDS, Story

Json = dict[str, Any]

GROUP = "/apis/resource.k8s.io/v1"
GPU, NIC = "gpu.example.com", "nic.example.com"
FINALIZER = "resource.kubernetes.io/delete-protection"
PRIORITIES = {"low": (10, {}), "ordinary": (600, NEVER), "boss": (3000, {})}
NODES = [f"n-{number}" for number in range(5)]
ATTACHED = "example.com/attached"
PENDING = "BindingConditionsPending"
SETTLED_ROUNDS = 2  # of the claim controller without a write, after which no claim changes any more


class DeviceStory(Story):
    """The script. ``claims``: by act, every claim that exists at its end, without uids, times and random names."""

    def __init__(self, seen: ClusterUser, scheduler: str) -> None:
        super().__init__(seen, scheduler)
        self.claims: dict[str, dict[str, Json]] = {}
        self._path = f"{GROUP}/namespaces/{seen.namespace}/resourceclaims"
        self._templates: dict[str, Json] = {}
        self._slices: dict[str, Json] = {}
        self._idle_rounds = 0  # of the claim controller, since it wrote last
        self._is_idle = asyncio.Event()

    async def tell(self) -> None:
        await self._prepare()
        await self._gives_devices()
        await self._frees_devices()
        await self._shares_a_claim()
        await self._waits_for_a_claim()
        await self._has_alternatives()
        await self._restarts_a_driver()
        await self._renews_a_pool()
        await self._taints_a_device()
        await self._shares_a_device()
        await self._has_partitions()
        await self._gives_matching_devices()
        await self._serves_extended_resources()
        await self._evicts_for_a_node_not_for_a_device()
        await self._binds_devices()
        await self._frees_an_idle_claim()
        await self._loses_a_node_with_devices()
        await asyncio.sleep(EVENTS_SECONDS)
        await self._read_events()

    # --- the acts

    async def _prepare(self) -> None:
        for name, (value, members) in PRIORITIES.items():
            body = {"metadata": {"name": name}, "value": value, **members}
            await self._made("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        for name, driver in (("gpu", GPU), ("nic", NIC)):
            spec = {
                "selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}],
                "config": [{"opaque": {"driver": driver, "parameters": {"class": name}}}],
                **({"extendedResourceName": "example.com/gpu"} if name == "gpu" else {}),
            }
            await self._made(f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
        for name in NODES:
            await self._add_node(name, zone="z", cpu="8")
        await self._publish("n-0", [_gpu(number, "a100") for number in range(2)])
        await self._publish("n-1", [_gpu(number, "h100") for number in range(3)])
        await self._publish("n-2", [_nic(number) for number in range(2)], NIC)
        await self._partition("n-3")
        self._template("a100", _exactly("gpu", _model("a100")))
        self._template("h100", _exactly("gpu", _model("h100")))
        self._template("any", _exactly("gpu", 'has(device.attributes["gpu.example.com"].model)'))

    async def _gives_devices(self) -> None:
        for number in range(2):
            await self._runs(f"train-{number}", "a100")
        for number in range(3):
            await self._runs(f"infer-{number}", "h100")
        await self._is_refused("late-0", "a100")
        await self._is_refused("late-1", "h100", priority="boss")

    async def _frees_devices(self) -> None:
        await self._end_pod("train-0")
        await self._ends_with("frees a device", bound=["late-0"], gone=["train-0"])
        await self._end_pod("infer-1")
        await self._ends_with("frees another device", bound=["late-1"], gone=["infer-1"])

    async def _shares_a_claim(self) -> None:
        await self._end_pod("infer-2")
        await self._ends_with("has a device to share", gone=["infer-2"])
        await self._claim("shared", _exactly("gpu", _model("h100")), config={"mode": "shared"})
        for number in range(3):
            await self._runs(f"share-{number}", claims=["shared"])
        await self._end_pod("share-1")
        await self._ends_with("shares on", bound=["share-0", "share-2"], gone=["share-1"])

    async def _waits_for_a_claim(self) -> None:
        """A pod without its claim is tried once the claim exists."""
        await self._end_pod("share-0")
        await self._end_pod("share-2")
        await self._ends_with("shares no more", gone=["share-0", "share-2"])
        await self._asks("early", claims=["later"])
        await self._claim("later", _exactly("gpu", _model("h100")))
        await self._ends_with("has the claim", bound=["early"])

    async def _has_alternatives(self) -> None:
        first = {"name": "first", **_exactly("gpu", _model("a100"))["exactly"]}
        second = {"name": "second", **_exactly("gpu", _model("h100"))["exactly"]}
        await self._end_pod("infer-0")
        await self._ends_with("has a device for an alternative", gone=["infer-0"])
        await self._claim("either", {"firstAvailable": [first, second]}, config={"mode": "x"}, of="r/second")
        await self._runs("either", claims=["either"])
        await self._end_pod("late-0")
        await self._ends_with("has the first alternative", gone=["late-0"])
        await self._end_pod("early")
        await self._ends_with("has both alternatives", gone=["early"])
        await self._claim("best", {"firstAvailable": [first, second]})
        await self._runs("best", claims=["best"], prefers="n-1")

    async def _restarts_a_driver(self) -> None:
        """Pods keep their devices while the slice is away; others wait for it."""
        slice_of_node = await self._withdraw(f"n-1-{GPU}")
        await self._is_refused("restart-0", "h100")
        await self._publish("n-1", slice_of_node["spec"]["devices"])
        await self._ends_with("has the driver again", bound=["restart-0"])

    async def _renews_a_pool(self) -> None:
        """The pool's next generation has two slices; without the second it is incomplete."""
        devices = [_gpu(number, "h100") for number in range(4)]
        await self._publish("n-1", devices[:3], generation=2, count=2)
        await self._is_refused("renew-0", "h100")
        await self._publish("n-1", devices[3:], generation=2, count=2, name="more")
        await self._ends_with("has the whole pool", bound=["renew-0"])

    async def _taints_a_device(self) -> None:
        await self._end_pod("train-1")
        await self._ends_with("has a sound device", gone=["train-1"])
        taint = {"key": "example.com/worn", "value": "yes", "effect": "NoSchedule"}
        await self._publish("n-0", [_gpu(0, "a100"), _gpu(1, "a100"), {**_gpu(2, "a100"), "taints": [taint]}])
        await self._runs("sound", "a100")
        await self._is_refused("taint-0", "a100")
        tolerated = [{"key": "example.com/worn", "operator": "Exists"}]
        await self._claim("worn", _exactly("gpu", _model("a100"), tolerations=tolerated))
        await self._runs("tolerant", claims=["worn"])
        await self._end_pod("tolerant")
        await self._ends_with("has a tainted device", refused=["taint-0"], gone=["tolerant"])
        await self._publish("n-0", [_gpu(number, "a100") for number in range(3)])
        await self._ends_with("has no taint", bound=["taint-0"])

    async def _shares_a_device(self) -> None:
        self._template("4Gi", _exactly("nic", capacity={"requests": {"bandwidth": "3500Mi"}}))
        for number in range(4):
            await self._runs(f"net-{number}", "4Gi")
        await self._is_refused("net-4", "4Gi")
        await self._end_pod("net-1")
        await self._ends_with("has bandwidth", bound=["net-4"], gone=["net-1"])

    async def _has_partitions(self) -> None:
        for profile in ("half", "quarter", "whole"):
            self._template(profile, _exactly("gpu", f'device.attributes["{GPU}"].?profile.orValue("") == "{profile}"'))
        await self._runs("half-0", "half")
        await self._is_refused("whole-0", "whole")
        await self._runs("quarter-0", "quarter")
        await self._runs("quarter-1", "quarter")
        await self._is_refused("half-1", "half")
        await self._end_pod("half-0")
        await self._ends_with("has half a device", bound=["half-1"], refused=["whole-0"], gone=["half-0"])

    async def _gives_matching_devices(self) -> None:
        await self._publish("n-2", [_gpu(number, "t4", numa=number // 2) for number in range(4)])
        self._template("pair", _exactly("gpu", _model("t4"), count=2), matches=f"{GPU}/numa")
        self._template("all", _exactly("gpu", _model("t4"), allocationMode="All"))
        for number in range(2):
            await self._runs(f"pair-{number}", "pair")
        await self._is_refused("all-0", "all")
        await self._is_refused("pair-2", "pair", priority="boss")
        await self._end_pod("pair-0")
        await self._ends_with("has a matching pair", bound=["pair-2"], refused=["all-0"], gone=["pair-0"])

    async def _serves_extended_resources(self) -> None:
        await self._end_pod("renew-0")
        await self._ends_with("has a device for a resource", gone=["renew-0"])
        amounts = {"example.com/gpu": "1"}
        await self._runs("extended-0", resources=amounts, node="n-1")
        await self._is_refused("extended-1", resources=amounts, node="n-1")
        await self._end_pod("extended-0")
        await self._ends_with("serves a resource again", bound=["extended-1"], gone=["extended-0"])

    async def _evicts_for_a_node_not_for_a_device(self) -> None:
        await self._runs("filler", node="n-4", cpu="7", priority="low")
        await self._publish("n-4", [_gpu(0, "l4")])
        self._template("l4", _exactly("gpu", _model("l4")))
        await self._asks("boss-0", "l4", cpu="4", priority="boss")
        await self._ends_with("evicts for a node", bound=["boss-0"], gone=["filler"])
        await self._is_refused("boss-1", "l4", priority="boss")

    async def _binds_devices(self) -> None:
        """The pod is bound once the driver has reported the condition."""
        device = {
            **_gpu(5, "b200"),
            "bindingConditions": [ATTACHED],
            "bindingFailureConditions": ["example.com/failed"],
        }
        await self._publish("n-4", [_gpu(0, "l4"), device])
        self._template("b200", _exactly("gpu", _model("b200")))
        await self._runs("attach-0", "b200")

    async def _frees_an_idle_claim(self) -> None:
        """Another scheduler has allocated the claim on a node that is gone."""
        await self._end_pod("sound")
        await self._ends_with("has a device for an idle claim", gone=["sound"])
        await self._claim("idle", _exactly("gpu", _model("a100")))
        result = {"request": "r", "driver": GPU, "pool": "gone", "device": "gpu-0"}
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}
        allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
        when = {"allocationTimestamp": "2026-01-01T00:00:00Z"}
        await self._patched(f"{self._path}/idle", {"metadata": {"finalizers": [FINALIZER]}})
        await self._patched(f"{self._path}/idle/status", {"status": {"allocation": {**allocation, **when}}})
        await asyncio.sleep(SEEN_SECONDS)
        await self._runs("idle-0", claims=["idle"])

    async def _loses_a_node_with_devices(self) -> None:
        await self._withdraw(f"n-0-{GPU}")
        lost = await self._lose_node("n-0")
        await self._ends_with("loses a node with devices", gone=lost)
        await self._is_refused("again-0", "a100")
        await self._add_node("n-9", zone="z", cpu="8")
        await self._publish("n-9", [_gpu(0, "a100")])
        await self._ends_with("has another node", bound=["again-0"])

    # --- what the acts are made of

    async def _runs(self, name: str, template: str = "", **form: Any) -> None:
        await self._asks(name, template, **form)
        await self._ends_with(f"runs {name}", bound=[name])

    async def _is_refused(self, name: str, template: str = "", **form: Any) -> None:
        await self._asks(name, template, **form)
        await self._ends_with(f"refuses {name}", refused=[name])

    async def _asks(
        self,
        name: str,
        template: str = "",
        *,
        claims: list[str] | None = None,
        resources: Json | None = None,
        node: str = "",
        prefers: str = "",
        cpu: str = "100m",
        priority: str = "ordinary",
    ) -> None:
        entries = [{"name": each, "resourceClaimName": each} for each in claims or ()]
        if template:
            entries.append({"name": template.lower(), "resourceClaimTemplateName": template.lower()})
        spec: Json = {"resourceClaims": entries} if entries else {}
        spec["affinity"] = {"nodeAffinity": {PREFERRED: [_preference(each, prefers) for each in NODES]}}
        if node:
            spec["nodeSelector"] = {HOSTNAME: node}
        amounts = {"requests": {"cpu": cpu, **resources}, "limits": resources} if resources else {}
        used = {**amounts, "claims": [{"name": each["name"]} for each in entries]}
        await self._add_pod(name, priority, cpu=cpu, resources=used, **spec)

    async def _ends_with(self, act: str, **states: list[str]) -> None:
        await self._settle(act, **states)
        self._note_round(written=1)
        await self._is_idle.wait()
        self.claims[act] = {_steady(name): _comparable(claim) for name, claim in (await self._all_claims()).items()}

    async def _end_pod(self, name: str) -> None:
        self._deleted.add(name)
        await self.seen.delete_pod(name)

    # --- claims

    def _template(self, name: str, request: Json, *, matches: str = "") -> None:
        devices: Json = {"requests": [{"name": "r", **request}]}
        if matches:
            devices["constraints"] = [{"matchAttribute": matches}]
        self._templates[name.lower()] = {"devices": devices}

    async def _claim(self, name: str, request: Json, *, config: Json | None = None, of: str = "") -> None:
        devices: Json = {"requests": [{"name": "r", **request}]}
        if config is not None:
            opaque = {"opaque": {"driver": GPU, "parameters": config}}
            devices["config"] = [{**opaque, **({"requests": [of]} if of else {})}]
        await self._made(self._path, {"metadata": {"name": name}, "spec": {"devices": devices}})
        self._node_changed_at = time.monotonic()

    async def _all_claims(self) -> dict[str, Json]:
        return {each["metadata"]["name"]: each for each in (await self.api.get(self._path)).body["items"]}

    async def _read_events(self) -> None:
        await super()._read_events()
        # kube-scheduler's alone (docs/comparison.md).
        self.outcome.events = {pod: reasons - {PENDING} for pod, reasons in self.outcome.events.items()}

    # --- drivers

    async def _publish(
        self,
        node: str,
        devices: list[Json],
        driver: str = GPU,
        *,
        generation: int = 1,
        count: int = 1,
        name: str = "",
    ) -> None:
        pool = {"name": node, "generation": generation, "resourceSliceCount": count}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
        await self._put_slice(f"{node}-{name or driver}", spec)

    async def _partition(self, node: str) -> None:
        """A device of 80 Gi whole, in halves or in quarters."""
        pool = {"name": f"{node}-parts", "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": GPU, "nodeName": node, "pool": pool}
        sizes = [("whole", 80), ("half", 40), ("half", 40), ("quarter", 20), ("quarter", 20), ("quarter", 20)]
        devices = [
            {
                "name": f"part-{number}",
                "attributes": {"profile": {"string": profile}},
                "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": f"{size}Gi"}}}],
            }
            for number, (profile, size) in enumerate(sizes)
        ]
        counters = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
        await self._put_slice(f"{node}-parts", {**spec, "devices": devices})
        await self._put_slice(f"{node}-counters", {**spec, "sharedCounters": counters})

    async def _put_slice(self, name: str, spec: Json) -> None:
        known = self._slices.get(name)
        if known is None:
            body = {"metadata": {"name": name}, "spec": spec}
            answer = await self.api.post(f"{GROUP}/resourceslices", body)
        else:
            answer = await self.api.put(f"{GROUP}/resourceslices/{name}", {**known, "spec": spec})
        assert answer.code in {200, 201}, answer.body
        self._slices[name] = answer.body
        self._node_changed_at = time.monotonic()

    async def _withdraw(self, name: str) -> Json:
        assert (await self.api.delete(f"{GROUP}/resourceslices/{name}")).code == 200
        self._node_changed_at = time.monotonic()
        return self._slices.pop(name)

    # --- the claim controller

    def background(self) -> Iterator[Callable[[], Coroutine[None, None, None]]]:
        yield self._run_pods
        yield self._update_nodes
        yield self._keep_claims

    async def _keep_claims(self) -> None:
        while True:
            claims = await self._all_claims()  # before the pods, so that no claim is of a pod that is too new
            pods = await self.seen.pods()
            uids = {pod["metadata"]["uid"] for pod in pods.values()}
            written = 0
            for name, pod in pods.items():
                written += await self._make_claims(name, pod, claims)
            for claim in claims.values():
                written += await self._keep_claim(claim, uids)
            self._note_round(written)
            await asyncio.sleep(STEP_SECONDS)

    def _note_round(self, written: int) -> None:
        self._idle_rounds = 0 if written else self._idle_rounds + 1
        (self._is_idle.set if self._idle_rounds >= SETTLED_ROUNDS else self._is_idle.clear)()

    async def _make_claims(self, name: str, pod: Json, claims: dict[str, Json]) -> int:
        """Make the claims of a pod's templates; return how many."""
        if "deletionTimestamp" in pod["metadata"]:
            return 0
        made = {each["name"] for each in pod["status"].get("resourceClaimStatuses", ())}
        missing = [
            entry
            for entry in pod["spec"].get("resourceClaims", ())
            if "resourceClaimTemplateName" in entry and entry["name"] not in made
        ]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"], "controller": True}
        for entry in missing:
            claim = f"{name}-{entry['name']}"
            if claim not in claims:
                metadata = {"name": claim, "ownerReferences": [owner]}
                spec = self._templates[entry["resourceClaimTemplateName"]]
                await self._made(self._path, {"metadata": metadata, "spec": spec})
            status = {"resourceClaimStatuses": [{"name": entry["name"], "resourceClaimName": claim}]}
            await self.api.patch(f"{self.api.pods}/{name}/status", {"status": status})
        return len(missing)

    async def _keep_claim(self, claim: Json, pods: set[str]) -> bool:
        """Free a claim, or delete that of a pod that is gone; return whether anything was to do."""
        metadata, status = claim["metadata"], claim.get("status", {})
        path = f"{self._path}/{metadata['name']}"
        version = {"resourceVersion": metadata["resourceVersion"]}
        reserved = status.get("reservedFor", [])
        left = [each for each in reserved if each["uid"] in pods]
        is_orphan = any(each["uid"] not in pods for each in metadata.get("ownerReferences", ()))
        if len(left) < len(reserved):
            freed = {"reservedFor": left or None, **({} if left else {"allocation": None, "devices": None})}
            await self.api.patch(f"{path}/status", {"metadata": version, "status": freed})
        elif is_orphan and FINALIZER in metadata.get("finalizers", ()):
            await self.api.patch(path, {"metadata": {**version, "finalizers": None}})
        elif is_orphan:
            await self.api.delete(path)
        elif left:
            return await self._attach(path, claim)
        else:
            return False
        return True

    async def _attach(self, path: str, claim: Json) -> bool:
        """The driver reports a reserved device's binding conditions, once."""
        results = claim["status"].get("allocation", {}).get("devices", {}).get("results", [])
        waiting = [each for each in results if each.get("bindingConditions")]
        if not waiting or claim["status"].get("devices"):
            return False
        condition = {
            "type": ATTACHED,
            "status": "True",
            "reason": "Ready",
            "message": "",
            "lastTransitionTime": LONG_AGO,
        }
        devices = [
            {name: each[name] for name in ("driver", "pool", "device")} | {"conditions": [condition]}
            for each in waiting
        ]
        await self._patched(f"{path}/status", {"status": {"devices": devices}})
        return True


def differences_of_claims(one: DeviceStory, other: DeviceStory, names: tuple[str, str]) -> list[str]:
    """Claims in which two stories differ, by act."""
    left, right = names
    return [
        f"{act}: claim {name}\n    {left}: {mine.get(name)}\n    {right}: {theirs.get(name)}"
        for act, mine in one.claims.items()
        for theirs in (other.claims.get(act, {}),)
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
LONG_AGO = "2026-01-01T00:00:00Z"


def _preference(node: str, preferred: str) -> Json:
    weight = 100 if node == preferred else 90 - 10 * NODES.index(node)
    return {
        "weight": weight,
        "preference": {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]},
    }


def _gpu(number: int, model: str, numa: int = 0) -> Json:
    attributes = {"model": {"string": model}, "index": {"int": number}, "numa": {"int": numa}}
    return {"name": f"gpu-{number}", "attributes": attributes}


def _nic(number: int) -> Json:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    capacity = {"bandwidth": {"value": "10Gi", "requestPolicy": policy}}
    return {"name": f"nic-{number}", "allowMultipleAllocations": True, "capacity": capacity}


def _model(model: str) -> str:
    return f'device.attributes["{GPU}"].?model.orValue("") == "{model}"'


def _exactly(device_class: str, expression: str = "", **fields: Any) -> Json:
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"exactly": {"deviceClassName": device_class, **selectors, **fields}}


def _steady(name: str) -> str:
    return re.sub(r"-extended-resources-\w+$", "-extended-resources", name)


def _comparable(claim: Json) -> Json:
    """A claim without what is random, and without what the API server alone decides."""
    status = claim.get("status", {})
    allocation = {name: each for name, each in status.get("allocation", {}).items() if name != "allocationTimestamp"}
    results = allocation.get("devices", {}).get("results", [])
    for each in results:
        if "shareID" in each:
            each["shareID"] = "random"
    owners = [each["name"] for each in claim["metadata"].get("ownerReferences", ())]
    return {
        "spec": claim["spec"],
        "annotations": claim["metadata"].get("annotations", {}),
        "owners": owners,
        "finalizers": claim["metadata"].get("finalizers", []),
        "allocation": allocation,
        "reservedFor": [(each["resource"], each["name"]) for each in status.get("reservedFor", ())],
        "devices": [(each["device"], [c["type"] for c in each["conditions"]]) for each in status.get("devices", ())],
    }
