"""Plays the recorded decisions of kube-scheduler about devices (tests/data/oracle/devices*.jsonl.xz) to the plugin.

A case is a cluster and steps; a step is a pod. Each step is decided in the recorded state before it, so that one
mistake does not spoil the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from berth.api.config.load import default_configuration
from berth.api.config.presets import DEFAULT
from berth.api.devices import AllocationResult, ClaimConsumer, DeviceClass, ResourceClaim, ResourceSlice
from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod, unix_seconds
from berth.api.resources import exact
from berth.api.workloads import Namespace
from berth.cluster.devices.pools import DevicePools
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank_every_node
from berth.framework.equivalencecache import EquivalenceCache
from berth.framework.filtering import FeasibleNodes, pre_filter
from berth.framework.interface import SNAPSHOT, FreeClaim
from berth.framework.profile import Profile, build_profiles
from berth.framework.status import CycleState
from berth.plugins.dynamicresources.plugin import (
    NAME,
    RESERVED,
    DynamicResources,
    DynamicResourcesArgs,
)
from berth.plugins.registry import BUILT_IN
from harness.builders.objects import first_attempt

T = TypeVar("T")
Json = dict[str, Any]

_TYPES: Mapping[str, type[Any]] = {
    "ResourceClaim": ResourceClaim,
    "ResourceSlice": ResourceSlice,
    "DeviceClass": DeviceClass,
}
_PAST = "2026-01-01T00:00:00Z"
_NOW = "2026-11-27T00:00:00Z"  # of the recordings: later than the time-out of any binding condition


def profile_with_devices() -> tuple[Profile, DynamicResources]:
    """The default profile and its DynamicResources."""
    plugin = DynamicResources(DynamicResourcesArgs())
    known = {**BUILT_IN, NAME: replace(BUILT_IN[NAME], build=lambda _: plugin)}
    return build_profiles(default_configuration(known, DEFAULT), known)["berth"], plugin


def _decoded(thing: object, kind: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(thing), type=kind)


@dataclass
class DeviceWorld:
    """A cluster as the steps of a case change it."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    pods: dict[str, Pod] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Json) -> DeviceWorld:
        world = cls()
        DevicePools.of(world.snapshot)
        for name, labels in objects["namespaces"].items():
            world.apply({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        for kind in ("nodes", "deviceclasses", "resourceslices", "resourceclaims", "pods"):
            for each in objects[kind]:
                world.apply(each)
        return world

    def apply(self, thing: Json) -> None:
        kind, snapshot = thing["kind"], self.snapshot
        if kind == "Node":
            snapshot.set_node(msgspec.convert(thing, Node))
        elif kind == "Namespace":
            snapshot.set_namespace(msgspec.convert(thing, Namespace))
        elif kind == "Pod":
            pod = msgspec.convert(thing, Pod)
            self.pods[pod.key] = pod
            if pod.spec.node_name:
                snapshot.place(pod, pod.spec.node_name, bound_at=0.0)
        elif kind in _TYPES:
            made = _decoded(thing, _TYPES[kind])
            before = self.named(kind, made.metadata.name, made.metadata.namespace)
            if before is not None and before.metadata.uid != made.metadata.uid:
                snapshot.objects(_TYPES[kind]).remove(_key(before))
            if isinstance(made, ResourceClaim) and isinstance(before, ResourceClaim) and "status" not in thing:
                made = msgspec.structs.replace(made, status=before.status)
            snapshot.objects(_TYPES[kind]).set(_key(made), made)

    def named(self, kind: str, name: str, namespace: str = "") -> Any:
        return self.snapshot.objects(_TYPES[kind]).named(name, namespace)

    def change(self, change: Json) -> None:
        """One of the changes ``before`` a step."""
        if "apply" in change:
            self.apply(change["apply"])
        elif "remove" in change:
            kind, name = change["remove"]
            namespace, _, name = name.rpartition("/")
            if kind == "Node":
                self.snapshot.remove_node(name)
            elif kind in _TYPES:
                self.snapshot.objects(_TYPES[kind]).remove(_key(self.named(kind, name, namespace)))
        else:
            self.delete(change["delete"])

    def delete(self, key: str) -> None:
        """Delete a pod, with what the claim controller does then."""
        pod = self.pods.pop(key)
        self.snapshot.remove_pod(pod.uid)
        claims = self.snapshot.objects(ResourceClaim)
        for claim in list(claims):
            if any(owner.uid == pod.uid for owner in claim.metadata.owner_references or ()):
                claims.remove(_key(claim))
                continue
            users = claim.status.reserved_for or []
            left = [each for each in users if each.uid != pod.uid]
            if len(left) != len(users):
                status = msgspec.structs.replace(claim.status, reserved_for=left or None)
                if not left:
                    status = msgspec.structs.replace(status, allocation=None, devices=None)
                claims.set(_key(claim), msgspec.structs.replace(claim, status=status))

    def free(self, freed: FreeClaim) -> None:
        claims = self.snapshot.objects(ResourceClaim)
        claim = claims.named(freed.claim.name, freed.claim.namespace)
        assert claim is not None
        claims.remove(_key(claim))
        if not freed.is_deleted:
            claims.set(_key(claim), ResourceClaim(metadata=claim.metadata, spec=claim.spec))

    def bind(self, step: Json) -> None:
        """What a bound step left: the pod on its node, and the claims' statuses."""
        pod = {**step["pod"], "spec": {**step["pod"]["spec"], "nodeName": step["bound"]}}
        self.apply({**pod, "kind": "Pod"})
        for made in step.get("made", ()):
            self.apply({**made, "kind": "ResourceClaim"})
        for key, status in step["claims"].items():
            self.set_status(key, status)

    def set_status(self, key: str, recorded: Json) -> None:
        claims = self.snapshot.objects(ResourceClaim)
        if recorded.get("made"):
            self.apply({"kind": "ResourceClaim", **recorded["made"]})
        namespace, _, name = key.partition("/")
        claim = claims.named(name, namespace)
        if claim is None:
            return
        status = {name: recorded.get(name) for name in ("allocation", "reservedFor", "devices")}
        if status["allocation"]:
            results = [self._with_share(each, i, key) for i, each in enumerate(_results(status["allocation"]))]
            devices = {**status["allocation"]["devices"], "results": results}
            status["allocation"] = {**status["allocation"], "devices": devices, "allocationTimestamp": _PAST}
        made = _decoded({"metadata": {}, "status": status}, ResourceClaim)
        claims.set(_key(claim), msgspec.structs.replace(claim, status=made.status))

    def _with_share(self, result: Json, number: int, key: str) -> Json:
        device = DevicePools.of(self.snapshot).device((result["driver"], result["pool"]), result["device"])
        is_shared = device is not None and device.is_shareable
        return {**result, "shareID": f"{key}-{number}"} if is_shared else result


def _key(thing: Any) -> str:
    metadata: ObjectMeta = thing.metadata
    return metadata.uid if metadata.namespace else metadata.name


def _results(allocation: Json) -> list[Json]:
    results: list[Json] = allocation.get("devices", {}).get("results", [])
    return results


@dataclass
class Decided:
    """The plugin's answer to a step, in the form of the recording."""

    held: str = ""
    feasible: list[str] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    message: str = ""
    earlier: list[str] = field(default_factory=list)
    claims: dict[str, Json] = field(default_factory=dict)
    mappings: list[Json] = field(default_factory=list)


def decide(world: DeviceWorld, step: Json, profile: Profile, plugin: DynamicResources) -> Decided:
    """Ask about the step's pod in this state."""
    pod = msgspec.convert(step["pod"], Pod)
    decided = Decided()
    held = plugin.pre_enqueue_with(pod, world.snapshot.objects(ResourceClaim))
    if not held.is_success:
        decided.held = held.reasons[0]
        return decided
    for _ in range(10):
        every = rank_every_node(pod, world.snapshot, profile, attempt=first_attempt(pod))
        ranking = every.ranking
        decided.feasible = sorted(each.node for each in ranking.candidates)
        decided.totals = {each.node: each.total for each in ranking.candidates}
        decided.message = ranking.error or ("" if ranking.candidates else ranking.message)
        freed = _freed(pod, world.snapshot, profile, plugin) if not ranking.candidates and not ranking.error else None
        if freed is None:
            break
        decided.earlier.append(decided.message)
        world.free(freed)
        decided.claims[f"{freed.claim.namespace}/{freed.claim.name}"] = {"allocation": None}
    if step["bound"] in decided.feasible:
        _reserve(world, pod, step["bound"], plugin, decided)
    return decided


def _freed(pod: Pod, snapshot: Snapshot, profile: Profile, plugin: DynamicResources) -> FreeClaim | None:
    results = EquivalenceCache.of(snapshot, profile).results_of(pod)
    found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
    if found.rejection is not None:
        return None
    FeasibleNodes(pod, snapshot, profile, found, results.refresh_filters()).find()
    return plugin.claim_to_free(found.state, pod, snapshot)


def _reserve(world: DeviceWorld, pod: Pod, node: str, plugin: DynamicResources, decided: Decided) -> None:
    state = CycleState(world.snapshot.class_of(pod))
    state.write(SNAPSHOT, world.snapshot)
    status = plugin.reserve(state, pod, node)
    assert status.is_success, status
    reserved = state.find(RESERVED)
    if reserved is not None:
        user = ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.uid)
        for claim, allocation in reserved.given:
            decided.claims[_recorded_name(claim.key, pod)] = _status(allocation, [user])
        for claim in reserved.shared:
            if all(each.uid != pod.uid for each in claim.status.reserved_for or ()):
                users = [*(claim.status.reserved_for or ()), user]
                decided.claims[claim.key] = _status(claim.status.allocation, users)
        if reserved.extended is not None:
            decided.mappings = msgspec.to_builtins(list(reserved.extended.mappings))
    plugin.unreserve(state, pod, node)


def _recorded_name(key: str, pod: Pod) -> str:
    return key.replace("<extended-resources>", f"{pod.metadata.name}-extended-resources-00000")


def _status(allocation: AllocationResult | None, users: list[ClaimConsumer]) -> Json:
    return _decoded({"allocation": allocation, "reservedFor": users}, Json)


def comparable(status: Json) -> Json:
    """A claim's status in the form in which it is compared."""
    allocation = status.get("allocation")
    if allocation is None:
        return {"allocation": None}
    results = []
    for each in _results(allocation):
        kept = {name: value for name, value in each.items() if name != "shareID"}
        if "consumedCapacity" in kept:
            kept["consumedCapacity"] = {name: exact(amount) for name, amount in kept["consumedCapacity"].items()}
        results.append(kept)
    return {
        "results": results,
        "config": allocation.get("devices", {}).get("config", []),
        "nodeSelector": allocation.get("nodeSelector"),
        "reservedFor": status.get("reservedFor", []),
    }


def until_preemption(message: str) -> str:
    return message.partition("preemption: ")[0]


def differences(step: Json, decided: Decided) -> Iterator[tuple[str, Any, Any]]:
    """What the recording has otherwise: the field, the recorded value, the plugin's."""
    if "held" in step or decided.held:
        # kube-scheduler's text is empty where it was of an earlier state of the claims.
        if "held" not in step or step["held"] not in {"", decided.held} or not decided.held:
            yield "held", step.get("held"), decided.held
        return
    yield from _differences_of_nodes(step, decided)
    recorded = {key: comparable(each) for key, each in step["claims"].items()}
    found = {key: comparable(each) for key, each in decided.claims.items()}
    if recorded != found and not (step["bound"] and step["bound"] not in decided.feasible):
        yield "claims", recorded, found
    mappings = (step.get("extendedResourceClaimStatus") or {}).get("requestMappings", [])
    if mappings != decided.mappings:
        yield "mappings", mappings, decided.mappings


def _differences_of_nodes(step: Json, decided: Decided) -> Iterator[tuple[str, Any, Any]]:
    if step["bound"] is None:
        expected, got = (until_preemption(each) for each in (step["message"], decided.message))
        if step.get("reason") == "SchedulerError":
            expected, got = step["message"], decided.message
        if expected != got:
            yield "message", expected, got
    elif sorted(step["feasible"]) != decided.feasible:
        yield "feasible", step["feasible"], decided.feasible
    elif "totals" in step and step["totals"] != decided.totals:
        yield "totals", step["totals"], decided.totals
    earlier = [until_preemption(each["message"]) for each in step.get("earlier", ())]
    if earlier != [until_preemption(each) for each in decided.earlier]:
        yield "earlier", earlier, decided.earlier


def played(case: Json) -> Iterator[tuple[int, Json, Decided, list[tuple[str, Any, Any]]]]:
    """Every step with its answer and the differences."""
    profile, plugin = profile_with_devices()
    world = DeviceWorld.of(case["objects"])
    world.snapshot.live.observe_time(unix_seconds(_NOW))
    for number, step in enumerate(case["steps"]):
        for change in step.get("before", ()):
            world.change(change)
        for made in step.get("made", ()):
            world.apply({**made, "kind": "ResourceClaim"})
        decided = decide(world, step, profile, plugin)
        yield number, step, decided, list(differences(step, decided))
        if step["bound"] is not None:
            world.bind(step)
            continue
        for key, status in step["claims"].items():
            world.set_status(key, status)
        for made in step.get("made", ()):
            claim = world.named("ResourceClaim", made["metadata"]["name"], made["metadata"].get("namespace", ""))
            if claim is not None:
                world.snapshot.objects(ResourceClaim).remove(_key(claim))
