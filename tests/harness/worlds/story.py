"""One story of a cluster, told to any scheduler: 60 pods on nodes that are full, grow, shrink, get lost and change.

    async with story_told_to(seen, "berth", Story) as story:
        await story.tell()
        story.outcome

No controllers run on the test's API server, so the story plays them: kubelets (pods run, deleted pods end), the
disruption controller, the volume controllers and the garbage collector of lost nodes. Which pod is bound, refused or
evicted follows from priorities and from what fits where, never from the choice among equal nodes: so two schedulers
that decide alike have the same outcome. Each act waits for the state that it must lead to, so that no timing matters.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from berth_sim.nodes import node_manifest
from harness.servers.child_processes import overload
from harness.worlds.cluster_user import ClusterUser, node_of
from harness.worlds.oracle import without_dynamic_resources

ACT_SECONDS = 60.0
"""How long an act may take to reach its state on an idle machine: several back-offs of the longest kind."""
QUIET_SECONDS = 1.5
"""How long the state must hold: a pod that is bound or evicted later was not settled."""
EVENTS_SECONDS = 3.0
"""Until the last Events have been sent."""
SEEN_SECONDS = 1.0
"""Between a change of a node and the next new pod. Watches of two kinds are not ordered: without a pause a scheduler
may try the pod before it sees the node, and nothing shows from outside what it has seen."""
STEP_SECONDS = 0.1
"""Between two rounds of the kubelets and controllers."""

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
SELECTED = "volume.kubernetes.io/selected-node"
STORAGE_CLASS = "slow"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
LOW_PODS = 12
NEVER = {"preemptionPolicy": "Never"}
PRIORITIES = {
    **{f"low-{number:02}": (number + 1, {}) for number in range(LOW_PODS)},
    "humble": (-10, {}),
    "gated": (500, {}),
    "ordinary": (600, NEVER),
    "vip": (1000, {}),
    "boss": (3000, {}),
    "fill": (5000, NEVER),
}
"""Value and further members of each class. Every low pod has a priority of its own, so that the victim is certain."""


@dataclass(frozen=True, slots=True)
class PodState:
    """What a user sees of a pod when an act is over."""

    bound: bool
    condition: str
    """PodScheduled: status, reason and generation; for a pod that this act has refused, the message as well. Later the
    message is that of the last attempt, and one scheduler may try a pod more often than the other."""
    nominated: bool


@dataclass(slots=True)
class Outcome:
    """What became of the story."""

    acts: dict[str, dict[str, PodState]] = field(default_factory=dict)
    """By act, every pod that exists at its end."""
    late: dict[str, str] = field(default_factory=dict)
    """By act, what was still missing at its deadline."""
    events: dict[str, set[str]] = field(default_factory=dict)
    """By pod, the reasons of its Events."""
    evicted: dict[str, str] = field(default_factory=dict)
    """By pod that the scheduler deleted: type, status, reason and generation of the condition that says so."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By act, how long its state took; not compared."""


def differences(one: Outcome, other: Outcome, names: tuple[str, str]) -> list[str]:
    """Everything in which two outcomes differ. A difference that lasts is listed with the act in which it began."""
    left, right = names
    lines: list[str] = []
    shown: dict[str, tuple[object, object]] = {}

    def compare(where: str, what: str, mine: object, theirs: object) -> None:
        if mine != theirs and shown.get(what) != (mine, theirs):
            lines.append(f"{where}: {what}\n    {left}: {mine}\n    {right}: {theirs}")
        shown[what] = (mine, theirs)

    for act, mine in one.acts.items():
        theirs = other.acts.get(act, {})
        compare(act, "missing at the deadline", one.late.get(act, "nothing"), other.late.get(act, "nothing"))
        for pod in sorted(mine.keys() | theirs.keys()):
            compare(act, pod, mine.get(pod, "gone"), theirs.get(pod, "gone"))
    for pod in sorted(one.events.keys() | other.events.keys()):
        compare("Events", f"of {pod}", sorted(one.events.get(pod, ())), sorted(other.events.get(pod, ())))
    for pod in sorted(one.evicted.keys() | other.evicted.keys()):
        compare("evictions", f"of {pod}", one.evicted.get(pod, "not evicted"), other.evicted.get(pod, "not evicted"))
    return lines


class Story:
    """The script, its kubelets and its controllers, in one namespace."""

    def __init__(self, seen: ClusterUser, scheduler: str) -> None:
        self.seen = seen
        self.api = seen.api
        self.outcome = Outcome()
        self._scheduler = scheduler
        self._deleted: set[str] = set()
        """Pods that the story itself deletes."""
        self._claims = f"/api/v1/namespaces/{seen.namespace}/persistentvolumeclaims"
        self._budgets = f"/apis/policy/v1/namespaces/{seen.namespace}/poddisruptionbudgets"
        self._beats = itertools.count()
        self._nodes: dict[str, dict] = {}
        self._node_changed_at = 0.0

    async def tell(self) -> None:
        """Play all acts."""
        await self._prepare()
        await self._fills_up()
        await self._has_no_room()
        await self._gets_important_pods()
        await self._opens_gates()
        await self._grows()
        await self._gets_a_label()
        await self._keeps_pods_apart()
        await self._spreads_over_zones()
        await self._waits_for_volumes()
        await self._has_a_tainted_node()
        await self._loses_a_node()
        await self._shrinks_and_is_cordoned()
        await self._keeps_its_budgets()
        await asyncio.sleep(EVENTS_SECONDS)
        await self._read_events()

    # --- the acts

    async def _prepare(self) -> None:
        for name, (value, members) in PRIORITIES.items():
            body = {"metadata": {"name": name}, "value": value, **members}
            await self._made("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        storage = {"metadata": {"name": STORAGE_CLASS}, "provisioner": "disks.example.com"}
        await self._made(
            "/apis/storage.k8s.io/v1/storageclasses", {**storage, "volumeBindingMode": "WaitForFirstConsumer"}
        )
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
        await self._made(self._budgets, {"metadata": {"name": "kept"}, "spec": budget})
        for number in range(3):
            await self._add_node(f"n-{number}", zone=f"z{number}")

    async def _fills_up(self) -> None:
        names = [f"low-{number:02}" for number in range(LOW_PODS)]
        for name in names:
            labels = {"app": "kept"} if name == "low-05" else {}
            await self._add_pod(name, name, labels=labels)
        await self._settle("fills up", bound=names)

    async def _has_no_room(self) -> None:
        names = await self._add_pods("wait", 6, "humble")
        await self._settle("has no room", refused=names)

    async def _gets_important_pods(self) -> None:
        for number in range(3):
            await self._add_pod(f"vip-{number}", "vip")
            await self._settle(f"gets important pod {number}", bound=[f"vip-{number}"], gone=[f"low-{number:02}"])

    async def _opens_gates(self) -> None:
        gate = {"schedulingGates": [{"name": "example.com/later"}]}
        names = await self._add_pods("gated", 4, "gated", **gate)
        await self._settle("has gates", gated=names)
        for number, victim in ((0, "low-03"), (1, "low-04")):
            await self.seen.ungate(f"gated-{number}")
            await self._settle(f"opens gate {number}", bound=[f"gated-{number}"], gone=[victim])

    async def _grows(self) -> None:
        await self._add_node("n-3", zone="z2", cpu="6")
        await self._settle("grows", bound=[f"wait-{number}" for number in range(6)])

    async def _gets_a_label(self) -> None:
        await self._add_node("n-4", zone="z2")
        names = await self._add_pods("labelled", 4, "ordinary", nodeSelector={"disk": "ssd"})
        await self._settle("has no such label", refused=names)
        await self._patched("/api/v1/nodes/n-4", {"metadata": {"labels": {"disk": "ssd"}}})
        await self._settle("gets a label", bound=names)

    async def _keeps_pods_apart(self) -> None:
        await self._add_node("n-5", zone="z0", cpu="8")
        await self._add_node("n-6", zone="z1", cpu="8")
        term = {"labelSelector": {"matchLabels": {"app": "anti"}}, "topologyKey": HOSTNAME}
        apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
        beside = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
        for number in range(4):
            name = f"anti-{number}"
            await self._add_pod(name, "ordinary", labels={"app": "anti"}, **apart)
            if number < 2:
                await self._settle(f"keeps pod {number} apart", bound=[name])
            else:
                await self._settle(f"keeps pod {number} apart", refused=[name])
        names = await self._add_pods("friend", 2, "ordinary", **beside)
        await self._settle("puts friends beside", bound=names)

    async def _spreads_over_zones(self) -> None:
        constraint = {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "spread"}},
        }
        for number in range(4):
            name = f"spread-{number}"
            await self._add_pod(name, "ordinary", labels={"app": "spread"}, topologySpreadConstraints=[constraint])
            if number < 2:
                await self._settle(f"spreads pod {number}", bound=[name])
            else:
                await self._settle(f"spreads pod {number}", refused=[name])

    async def _waits_for_volumes(self) -> None:
        names = [f"vol-{number}" for number in range(3)]
        for name in names:
            volume = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
            await self._add_pod(name, "ordinary", volumes=[volume])
        await self._settle("waits for volumes", refused=names)
        for name in names[:2]:
            spec = {**CLAIM, "storageClassName": STORAGE_CLASS}
            await self._made(self._claims, {"metadata": {"name": name}, "spec": spec})
        await self._settle("gets volumes", bound=names[:2], refused=names[2:])

    async def _has_a_tainted_node(self) -> None:
        taint = {"key": "dedicated", "value": "batch", "effect": "NoSchedule"}
        await self._add_node("n-7", zone="z2", taints=[taint])
        tolerated = {"key": "dedicated", "operator": "Exists"}
        names = await self._add_pods("batch", 4, "ordinary", tolerations=[tolerated], nodeSelector={HOSTNAME: "n-7"})
        await self._settle("has a tainted node", bound=names)
        large = await self._add_pods("plain", 4, "ordinary", cpu="6500m")
        await self._settle("has no room for large pods", refused=large)

    async def _loses_a_node(self) -> None:
        lost = await self._lose_node("n-3")
        again = await self._add_pods("again", 3, "ordinary")
        await self._settle("loses a node", bound=again, gone=lost)

    async def _shrinks_and_is_cordoned(self) -> None:
        await self.seen.report_status("n-4", {"allocatable": {"cpu": "2"}, "capacity": {"cpu": "2"}})
        await self._cordon(unschedulable=True)
        names = await self._add_pods("shrunk", 2, "ordinary")
        await self._settle("shrinks and is cordoned", refused=names)
        await self._cordon(unschedulable=False)
        await self._settle("is uncordoned", bound=names)

    async def _cordon(self, *, unschedulable: bool) -> None:
        for name in ("n-5", "n-6"):
            await self._patched(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": unschedulable}})
        self._node_changed_at = time.monotonic()

    async def _keeps_its_budgets(self) -> None:
        """Low-05 is the least important pod, and its budget allows no disruption: low-06 has to go, then low-07."""
        fill = await self._add_pods("fill", 3, "fill")
        await self._settle("is full again", bound=fill)
        for number, victim in ((0, "low-06"), (1, "low-07")):
            await self._add_pod(f"boss-{number}", "boss")
            await self._settle(f"keeps its budgets {number}", bound=[f"boss-{number}", "low-05"], gone=[victim])

    # --- the end of an act

    async def _settle(
        self,
        act: str,
        *,
        bound: Sequence[str] = (),
        refused: Sequence[str] = (),
        gated: Sequence[str] = (),
        gone: Sequence[str] = (),
    ) -> None:
        """Wait until the pods are in these states and stay so; remember what every pod looks like then."""
        wanted = {
            **dict.fromkeys(bound, "bound"),
            **dict.fromkeys(refused, "Unschedulable"),
            **dict.fromkeys(gated, "SchedulingGated"),
            **dict.fromkeys(gone, "gone"),
        }
        began = time.monotonic()
        settled_at = None
        while True:
            pods = await self.seen.pods()
            missing = {
                name: _stage(pods.get(name)) for name, stage in wanted.items() if _stage(pods.get(name)) != stage
            }
            now = time.monotonic()
            settled_at = None if missing else settled_at or now
            if settled_at is not None and now - settled_at >= QUIET_SECONDS:
                break
            if now - began >= ACT_SECONDS * overload():
                self.outcome.late[act] = str(missing or "it did not stay so")
                break
            await asyncio.sleep(STEP_SECONDS)
        self.outcome.seconds[act] = round((settled_at or time.monotonic()) - began, 2)
        self.outcome.acts[act] = {name: _state(pod, refused=name in refused) for name, pod in pods.items()}

    async def _read_events(self) -> None:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for event in (await self.api.get(self.api.new_events)).body["items"]:
            if event["regarding"]["kind"] == "Pod":
                found[event["regarding"]["name"]].add(event.get("reason", ""))
        self.outcome.events = dict(found)

    # --- what the acts do

    async def _add_node(self, name: str, *, cpu: str = "4", zone: str, **form: object) -> None:
        made = node_manifest(name, cpu=cpu, zone=zone, **form)
        self._nodes[name] = made
        await self._made("/api/v1/nodes", made)
        self._node_changed_at = time.monotonic()

    async def _lose_node(self, name: str) -> list[str]:
        """Delete a node and its pods; return their names."""
        lost = [pod for pod, node in (await self.seen.placed()).items() if node == name]
        self._deleted.update(lost)
        del self._nodes[name]
        assert (await self.api.delete(f"/api/v1/nodes/{name}")).code == 200
        self._node_changed_at = time.monotonic()
        for pod in lost:
            await self.seen.delete_pod(pod)
        return lost

    async def _add_pods(self, prefix: str, count: int, priority: str, **spec: object) -> list[str]:
        names = [f"{prefix}-{number}" for number in range(count)]
        for name in names:
            await self._add_pod(name, priority, **spec)
        return names

    async def _add_pod(
        self,
        name: str,
        priority: str,
        *,
        cpu: str = "1",
        labels: dict | None = None,
        resources: dict | None = None,
        **spec: object,
    ) -> None:
        await asyncio.sleep(max(0.0, self._node_changed_at + SEEN_SECONDS - time.monotonic()))
        form = {"cpu": cpu, "memory": "", "priority_class": priority, "scheduler": self._scheduler}
        pod = self.seen.pod(name, labels=labels or {}, spec={"nodeSelector": {}, **spec}, **form)
        pod["spec"]["containers"][0]["resources"].update(resources or {})
        await self._made(self.api.pods, pod)

    async def _made(self, path: str, body: dict) -> None:
        for _ in range(100):  # the API server knows a new priority class, or budget, a little later
            answer = await self.api.post(path, body)
            if answer.code != 403:
                break
            await asyncio.sleep(STEP_SECONDS)
        assert answer.code == 201, answer.body

    async def _patched(self, path: str, body: dict) -> None:
        answer = await self.api.patch(path, body)
        assert answer.code == 200, answer.body

    # --- kubelets and controllers

    def background(self) -> Iterator[Callable[[], Coroutine[None, None, None]]]:
        """What runs beside the acts."""
        yield self._run_pods
        yield self._update_nodes
        yield self._bind_volumes

    async def _run_pods(self) -> None:
        """Kubelets and the disruption controller: bound pods run, deleted pods end, the budget's status is current."""
        while True:
            pods = await self.seen.pods()
            for name, pod in pods.items():
                if "deletionTimestamp" in pod["metadata"]:
                    await self._end(name, pod)
                elif node_of(pod) and pod["status"].get("phase") == "Pending":
                    await self._start(name)
            kept = sum(pod["status"].get("phase") == "Running" for pod in pods.values() if _app(pod) == "kept")
            await self._report_budget(kept)
            await asyncio.sleep(STEP_SECONDS)

    async def _start(self, name: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        status = {"phase": "Running", "startTime": now, "conditions": [ready]}
        path = f"{self.api.pods}/{name}/status"
        await self.api.patch(path, {"status": status}, "application/strategic-merge-patch+json")

    async def _end(self, name: str, pod: dict) -> None:
        if name not in self._deleted:
            target = next(
                (each for each in pod["status"].get("conditions", []) if each["type"] == "DisruptionTarget"), {}
            )
            told = (target.get(member) for member in ("type", "status", "reason", "observedGeneration"))
            self.outcome.evicted[name] = " ".join(map(str, told))
        await self.seen.delete_pod(name)

    async def _report_budget(self, healthy: int) -> None:
        status = {
            "observedGeneration": 1,
            "expectedPods": healthy,
            "currentHealthy": healthy,
            "desiredHealthy": 1,
            "disruptionsAllowed": max(0, healthy - 1),
        }
        await self.api.patch(f"{self._budgets}/kept/status", {"status": status})

    async def _update_nodes(self) -> None:
        """Ten updates a second that help no pod: heartbeats, and a resource that no pod requests."""
        while True:
            await asyncio.sleep(STEP_SECONDS)
            for name in list(self._nodes):
                amount = {"example.com/gauge": str(next(self._beats) % 10)}
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
                status = {"allocatable": amount, "capacity": amount, "conditions": [ready]}
                path = f"/api/v1/nodes/{name}/status"
                await self.api.patch(path, {"status": status}, "application/strategic-merge-patch+json")
                await asyncio.sleep(STEP_SECONDS)

    async def _bind_volumes(self) -> None:
        """The provisioner and the volume controller."""
        while True:
            for claim in (await self.api.get(self._claims)).body["items"]:
                node = claim["metadata"].get("annotations", {}).get(SELECTED)
                if node and not claim["spec"].get("volumeName"):
                    await self._provision(claim["metadata"]["name"], node)
            await asyncio.sleep(STEP_SECONDS)

    async def _provision(self, claim: str, node: str) -> None:
        here = {"key": HOSTNAME, "operator": "In", "values": [node]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/x"}}
        whole = {**spec, "storageClassName": STORAGE_CLASS, "nodeAffinity": affinity}
        await self._made("/api/v1/persistentvolumes", {"metadata": {"name": f"pv-{claim}"}, "spec": whole})
        completed = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
        await self._patched(f"{self._claims}/{claim}", {**completed, "spec": {"volumeName": f"pv-{claim}"}})


S = TypeVar("S", bound=Story)


@asynccontextmanager
async def story_told_to(seen: ClusterUser, scheduler: str, kind: type[S]) -> AsyncIterator[S]:
    """A story with its kubelets and controllers, which end with the block; a failure of theirs ends the story."""
    story = kind(seen, scheduler)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work()) for work in story.background()]
        yield story
        for task in running:
            task.cancel()


def _app(pod: dict) -> str:
    return pod["metadata"].get("labels", {}).get("app", "")


def _condition(pod: dict) -> dict:
    conditions = pod["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})


def _stage(pod: dict | None) -> str:
    """``gone``, ``bound``, ``deleted``, or the reason of the pod's condition."""
    if pod is None:
        return "gone"
    if "deletionTimestamp" in pod["metadata"]:
        return "deleted"
    return "bound" if node_of(pod) else _condition(pod).get("reason", "new")


def _state(pod: dict, *, refused: bool) -> PodState:
    condition = _condition(pod)
    told = [condition.get("status", ""), condition.get("reason", ""), str(condition.get("observedGeneration", ""))]
    if refused:
        told.append(without_dynamic_resources(condition.get("message", "")))
    nominated = not node_of(pod) and bool(pod["status"].get("nominatedNodeName"))
    return PodState(bound=bool(node_of(pod)), condition=" ".join(filter(None, told)), nominated=nominated)
