"""Devices of a run, all wanted at once: who publishes them, who asks for them, and Kubernetes' claim controller.

Always more claims are wanted than there are devices. Whenever nearly all are given, many pods end at the same moment,
and as many new ones want what becomes free. After the last fault just as many claims are left as devices, so that one
device that is lost leaves a pod waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from faults.judge import EXTENDED, ClaimState, PodState
from faults.workload import POOL, Workload, each
from harness.worlds.kubernetes_api import Answer

DRIVER = "gpu.example.com"
CLASS = "gpu.example.com"
PER_NODE = 4
TEMPLATE, NAMED, SHARED, RESOURCE = "template", "named", "shared", "resource"
FORMS = (TEMPLATE, TEMPLATE, TEMPLATE, NAMED, SHARED, RESOURCE)
"""How pods ask: each by a claim of a template, by a claim of its name, two by one claim, by an extended resource."""
TOO_MANY = 1.25
"""Claims that are wanted, for each device."""
NEARLY_ALL = 0.9
ENDING = 0.5
"""The share of the claims with devices whose pods end at once."""
LOOK_SECONDS = 0.1
FINALIZER = "resource.kubernetes.io/delete-protection"
RESOURCES = "/apis/resource.k8s.io/v1"
TAINT = {"key": "example.com/broken", "effect": "NoSchedule"}
TEMPORARY = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One device that is wanted, by one pod or by two; `claim` is the name of their claim, if it is not made later."""

    form: str
    pods: Sequence[str]
    claim: str = ""


@dataclass(kw_only=True)
class Devices:
    """Creates and ends; `chance` decides about each pod."""

    work: Workload
    chance: random.Random
    nodes: list[str] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    is_last_fault_over: bool = False
    waves: int = 0
    """How often many devices became free at once."""
    _numbers: itertools.count = field(default_factory=lambda: itertools.count(1))
    _generations: dict[str, int] = field(default_factory=dict)
    _ended_claims: set[str] = field(default_factory=set)
    _slices: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.nodes) * PER_NODE

    @property
    def claims_path(self) -> str:
        """Of the run's namespace."""
        return f"{RESOURCES}/namespaces/{self.work.world.user.namespace}/resourceclaims"

    # --- drivers

    async def prepare(self, count: int) -> None:
        """Create the nodes with at least so many devices, and want them."""
        self.nodes = [f"devices-{number:03}" for number in range(-(-count // PER_NODE))]
        made = {"metadata": {"name": CLASS}, "spec": {"extendedResourceName": EXTENDED}}
        await self.work.insist_created(f"{RESOURCES}/deviceclasses", made)
        await each([self.work.create_node(name) for name in self.nodes])
        await each([self.publish(name) for name in self.nodes])

    async def publish(self, node: str, tainted: str = "") -> None:
        """The driver publishes a new generation of the node's devices; one may have a taint."""
        async with self._slices:
            former = self._generations.get(node, 0)
            self._generations[node] = generation = former + 1
            devices: list[dict] = [{"name": f"gpu-{number}"} for number in range(PER_NODE)]
            for device in devices:
                if device["name"] == tainted:
                    device["taints"] = [TAINT]
            pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
            body = {"metadata": {"name": f"{node}-{generation}"}, "spec": spec}
            await self.work.insist_created(f"{RESOURCES}/resourceslices", body)
            if former:
                api = self.work.world.user.api
                await self.work.insist(lambda: api.delete(f"{RESOURCES}/resourceslices/{node}-{former}"))

    # --- users

    async def want(self) -> None:
        """Keep all devices wanted until the last fault, and then exactly as many as there are."""
        while not self.is_last_fault_over:
            missing = int(self.count * TOO_MANY) - len(self.wanted)
            await each([self._add(self._any()) for _ in range(missing)])
            given = [one for one in self.wanted if self._is_given(one)]
            if len(given) >= self.count * NEARLY_ALL:
                self.waves += 1
                ending = self.chance.sample(given, int(len(given) * ENDING))
                await each([self.end(one) for one in ending])
            await asyncio.sleep(LOOK_SECONDS)
        await each([self._add(self._any()) for _ in range(self.count - len(self.wanted))])
        waiting = [one for one in self.wanted if not self._is_given(one)]
        given = [one for one in self.wanted if self._is_given(one)]
        surplus = max(0, len(self.wanted) - self.count)
        await each([self.end(one, for_good=True) for one in [*waiting, *given][:surplus]])

    def _any(self) -> Wanted:
        number, form = next(self._numbers), self.chance.choice(FORMS)
        claim = f"claim-{number:05}" if form in {NAMED, SHARED} else ""
        pods = [f"gpu-{number:05}-{one}" for one in range(2 if form == SHARED else 1)]
        return Wanted(form=form, pods=pods, claim=claim)

    async def _add(self, one: Wanted) -> None:
        self.wanted.append(one)
        making = [self._create_pod(one, name) for name in one.pods]
        if one.claim:
            making.insert(self.chance.randint(0, len(making)), self._create_claim(one.claim))
        for made in making:
            await made

    async def _create_claim(self, name: str, **metadata: object) -> None:
        request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
        body = {"metadata": {"name": name, **metadata}, "spec": {"devices": {"requests": [request]}}}
        await self.work.insist_created(self.claims_path, body)

    async def _create_pod(self, one: Wanted, name: str) -> None:
        spec: dict = {"nodeSelector": {POOL: "devices"}}
        if one.form != RESOURCE:
            source = {"resourceClaimName": one.claim} if one.claim else {"resourceClaimTemplateName": "gpu"}
            spec["resourceClaims"] = [{"name": "gpu", **source}]
        pod = self.work.pod(name, spec)
        if one.form == RESOURCE:
            for amounts in ("requests", "limits"):
                pod["spec"]["containers"][0]["resources"].setdefault(amounts, {})[EXTENDED] = "1"
        await self.work.create(pod)

    async def end(self, one: Wanted, *, for_good: bool = False) -> None:
        """End its pods; a claim with a name is deleted, or stays for new pods."""
        if one not in self.wanted:
            return
        self.wanted.remove(one)
        # The judge must know whose deletion it sees.
        while not self._are_known(one):  # noqa: ASYNC110 - etcd's history has no event to wait for
            await asyncio.sleep(LOOK_SECONDS)
        await self.work.delete_pods(one.pods)
        if one.claim and not for_good and self.chance.random() < ENDING:
            await self._add(Wanted(form=NAMED, pods=[f"gpu-{next(self._numbers):05}-0"], claim=one.claim))
        elif one.claim:
            self._ended_claims.add(one.claim)

    def _are_known(self, one: Wanted) -> bool:
        known = {pod.name.rpartition("/")[2] for pod in self.work.world.judge.pods.values()}
        return known.issuperset(one.pods)

    def _is_given(self, one: Wanted) -> bool:
        """Whether all of its pods are bound."""
        pods = self.work.world.judge.pods.values()
        bound = {pod.name.rpartition("/")[2] for pod in pods if pod.node and not pod.left_at}
        return bound.issuperset(one.pods)

    async def leaks(self, seconds: float) -> list[str]:
        """What is wrong once every claim that is wanted has its device."""
        judge, deadline = self.work.world.judge, time.monotonic() + seconds
        while True:
            found = [f"claim {name} keeps its devices without a pod" for name in judge.leaked_devices()]
            if len(held := judge.held_devices()) < self.count:
                found.append(f"{len(held)} of {self.count} devices are given, and all are wanted")
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(LOOK_SECONDS)

    # --- Kubernetes' claim controller and garbage collector

    async def control(self) -> None:
        """Make claims of templates, and free and delete those whose pods are gone, until cancelled."""
        judge = self.work.world.judge
        while True:
            calls = [
                *(self._keep(name, claim) for name, claim in list(judge.claims.items()) if self._has_ended(claim)),
                *(self._make_claim(pod) for pod in list(judge.pods.values()) if pod.waits and pod.claims == (None,)),
                *(self._delete(name) for name in list(self._ended_claims)),
            ]
            await each(calls)
            await asyncio.sleep(self.chance.uniform(0.0, 0.4))

    def _is_gone(self, uid: str) -> bool:
        pod = self.work.world.judge.pods.get(uid)
        return pod is None or bool(pod.left_at)

    def _has_ended(self, claim: ClaimState) -> bool:
        is_of_an_ended_pod = bool(claim.owner) and self._is_gone(claim.owner)
        return claim.is_going or is_of_an_ended_pod or any(self._is_gone(uid) for uid in claim.reserved_for)

    async def _keep(self, key: str, claim: ClaimState) -> None:
        name = key.rpartition("/")[2]
        path, api = f"{self.claims_path}/{name}", self.work.world.user.api
        shown = await self._call(lambda: api.get(path))
        if shown is None or shown.code != 200:
            return
        found, status = shown.body, shown.body.get("status", {})
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        reserved = status.get("reservedFor", [])
        left = [user for user in reserved if not self._is_gone(user["uid"])]
        if len(left) < len(reserved) or (not left and claim.is_going and "allocation" in status):
            allocation = {} if left else {"allocation": None}
            body = {"metadata": version, "status": {"reservedFor": left or None, **allocation}}
            await self._call(lambda: api.patch(f"{path}/status", body))
        elif claim.is_going and found["metadata"].get("finalizers"):
            await self._call(lambda: api.patch(path, {"metadata": {**version, "finalizers": None}}))
        elif not claim.is_going and claim.owner and self._is_gone(claim.owner):
            await self._call(lambda: api.delete(path, {"preconditions": {"uid": claim.uid}}))

    async def _make_claim(self, pod: PodState) -> None:
        """Make the claim of a template, and name it in the pod's status."""
        name = pod.name.rpartition("/")[2]
        if not any(one.form == TEMPLATE and name in one.pods for one in self.wanted):
            return
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.uid, "controller": True}
        await self._create_claim(f"{name}-{pod.uid[:8]}", ownerReferences=[owner])
        statuses = [{"name": "gpu", "resourceClaimName": f"{name}-{pod.uid[:8]}"}]
        body = {"metadata": {"uid": pod.uid}, "status": {"resourceClaimStatuses": statuses}}
        path, api = f"{self.work.world.user.api.pods}/{name}/status", self.work.world.user.api
        await self._call(lambda: api.patch(path, body))

    async def _delete(self, name: str) -> None:
        answer = await self._call(lambda: self.work.world.user.api.delete(f"{self.claims_path}/{name}"))
        if answer is not None and answer.code in {200, 404}:
            self._ended_claims.discard(name)

    async def _call(self, call) -> Answer | None:
        """One request; what fails is seen again by the next look."""
        try:
            return await call()
        except TEMPORARY:
            return None


# --- faults


async def renew_slices(devices: Devices, chance: random.Random, seconds: float) -> None:
    """Drivers restart: they publish their devices anew."""
    await each([devices.publish(node) for node in chance.sample(devices.nodes, max(1, len(devices.nodes) // 2))])


async def taint_device(devices: Devices, chance: random.Random, seconds: float) -> None:
    """A device takes no new pods for a while."""
    node = chance.choice(devices.nodes)
    await devices.publish(node, f"gpu-{chance.randrange(PER_NODE)}")
    try:
        await asyncio.sleep(seconds)
    finally:
        await devices.publish(node)


async def cordon_devices(devices: Devices, chance: random.Random, seconds: float) -> None:
    """A node with devices takes no new pods for a while."""
    node = chance.choice(devices.nodes)
    await devices.work.cordon(node, unschedulable=True)
    await asyncio.sleep(seconds)
    await devices.work.cordon(node, unschedulable=False)


async def end_pods(devices: Devices, chance: random.Random, seconds: float) -> None:
    """Pods end, some of them while their devices are being given to them."""
    await each([devices.end(one) for one in chance.sample(devices.wanted, len(devices.wanted) // 4)])
