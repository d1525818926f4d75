"""Whichever event makes a waiting pod fit, or lets it evict others, requeues it: random events on small clusters.

Each pod is ranked on the watcher's mirror, as a scorer would, and decided by the answer. Then something happens: the
mirror changes, and each pod that waits is ranked again. If the answer is better than before, the pod must not wait any
more. Clusters are dense (``DenseObjects``), so that one event in a few changes an answer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from berth.api.kinds import WATCHED_KINDS
from berth.api.meta import KubernetesObject
from berth.api.pod import Pod, PodCondition, TopologySpreadConstraint
from berth.api.volumes import BIND_COMPLETED, ClaimReference, PersistentVolume, PersistentVolumeClaim
from berth.clock import Backoff
from berth.cluster.buckets import MirroredSnapshot
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Ranking, RankOptions, rank
from berth.framework.profile import Profile
from berth.messages.attempts import Outcome, Positions
from berth.plugins.podtopologyspread.plugin import LIST, PodTopologySpreadArgs
from berth.plugins.registry import BUILT_IN
from berth.plugins.volumes.claims import uses_claim
from berth_watcher.queue.queuedpod import WAITING_FOR_EVENT, QueuedPod, Stage
from berth_watcher.settings import AttemptSettings, RequeueSettings
from harness.builders.dense_objects import KINDS_OF, LEAVING, NAMES, NODES, THEMES, DenseObjects
from harness.builders.objects import first_attempt
from harness.builders.profiles import default_profile, profile_of
from harness.plugins.long_runs import IS_LONG, often
from harness.worlds.watcher_world import WatcherUnderTest

STEPS: Final = 12
WAITING: Final = 3
TRIES: Final = 6
SOON: Final = AttemptSettings(
    requeue=RequeueSettings(backoff=Backoff(initial=timedelta(), maximum=timedelta(), jitter_ratio=0))
)
SPREADING = PodTopologySpreadArgs(
    defaulting_type=LIST,
    default_constraints=[TopologySpreadConstraint(max_skew=1, topology_key="zone", when_unsatisfiable="DoNotSchedule")],
)
ADDITIONAL = ("NodeReady", "NodeFilterLabel", "TenantSpread")
_NAME_OF: Final = {kind.struct: kind.name for kind in WATCHED_KINDS}
_BY_NAME: Final = {kind.name for kind in WATCHED_KINDS if not kind.is_namespaced}

Identity = tuple[str, str, str]  # kind, namespace, name


def profile_for(theme: str) -> Profile:
    """The default plugins without scores, which change no answer; others where the theme is about them."""
    profile = replace(default_profile(), pre_scores=(), scores=())
    if theme == "default constraints":
        return profile_of(BUILT_IN["PodTopologySpread"].build(SPREADING))
    if theme == "additional":
        factories = [BUILT_IN[name] for name in ADDITIONAL]
        return profile_of(*(each.build(each.args_type() if each.args_type else None) for each in factories))
    return profile


def identity_of(thing: KubernetesObject) -> Identity:
    return _NAME_OF[type(thing)], thing.metadata.namespace, thing.metadata.name


# By theme, answers that an event must make better in a long run: the plugin that rejected the pod, and the event.
REACHED: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    **dict.fromkeys(THEMES, ()),
    "NodeResourcesFit": (
        ("NodeResourcesFit", "node added"),
        ("NodeResourcesFit", "node allocatable"),
        ("NodeResourcesFit", "node replaced"),
        ("NodeResourcesFit", "pod deleted"),
        ("NodeResourcesFit", "pod finished"),
    ),
    "NodePorts": (
        ("NodePorts", "node added"),
        ("NodePorts", "pod deleted"),
        ("NodePorts", "pod finished"),
    ),
    "NodeAffinity": (
        ("NodeAffinity", "node added"),
        ("NodeAffinity", "node labels"),
        ("NodeAffinity", "node replaced"),
    ),
    "TaintToleration": (
        ("TaintToleration", "node added"),
        ("TaintToleration", "node replaced"),
    ),
    "NodeUnschedulable": (
        ("NodeUnschedulable", "node added"),
        ("NodeUnschedulable", "node replaced"),
        ("NodeUnschedulable", "node taints"),
    ),
    "NodeDeclaredFeatures": (
        ("NodeDeclaredFeatures", "node added"),
        ("NodeDeclaredFeatures", "node declared_features"),
        ("NodeDeclaredFeatures", "node replaced"),
    ),
    "PodTopologySpread": (
        ("NodeAffinity", "node added"),
        ("NodeAffinity", "node labels"),
        ("NodeAffinity", "node replaced"),
        ("PodTopologySpread", "node added"),
        ("PodTopologySpread", "node labels"),
        ("PodTopologySpread", "pod deleted"),
        ("TaintToleration", "node added"),
        ("TaintToleration", "node taints"),
    ),
    "InterPodAffinity": (
        ("InterPodAffinity", "namespace added"),
        ("InterPodAffinity", "namespace updated"),
        ("InterPodAffinity", "node added"),
        ("InterPodAffinity", "node deleted"),
        ("InterPodAffinity", "node replaced"),
        ("InterPodAffinity", "pod deleted"),
    ),
    "VolumeBinding": (
        ("VolumeBinding", "storageclass added"),
        ("VolumeBinding", "storageclass updated"),
        ("VolumeRestrictions", "pvc added"),
        ("VolumeZone", "pv added"),
    ),
    "VolumeRestrictions": (
        ("VolumeBinding", "pvc updated"),
        ("VolumeBinding", "storageclass added"),
        ("VolumeBinding", "storageclass updated"),
        ("VolumeRestrictions", "node added"),
        ("VolumeRestrictions", "pod deleted"),
        ("VolumeRestrictions", "pvc added"),
        ("VolumeZone", "pv added"),
    ),
    "VolumeZone": (("VolumeRestrictions", "pvc added"),),
    "NodeVolumeLimits": (
        ("VolumeBinding", "pvc updated"),
        ("VolumeBinding", "storageclass updated"),
        ("VolumeRestrictions", "pvc added"),
        ("VolumeZone", "pv added"),
    ),
    "DynamicResources": (
        ("DynamicResources", "deviceclass added"),
        ("DynamicResources", "deviceclass updated"),
        ("DynamicResources", "node added"),
        ("DynamicResources", "resourceclaim added"),
        ("DynamicResources", "resourceclaim updated"),
        ("DynamicResources", "resourceslice added"),
        ("DynamicResources", "resourceslice updated"),
    ),
    "additional": (("NodeFilterLabel", "node added"),),
}


class World:
    """A watcher that leads, the scorer's view of its mirror, and objects that change by chance."""

    def __init__(self, seed: int, theme: str, *, preempting: bool = False) -> None:
        self.chance = random.Random(f"{theme} {seed}")
        self.make = DenseObjects(self.chance, theme, preempting)
        self.profile = profile_for(theme)
        self.objects: dict[Identity, Any] = {}
        for thing in self._first_objects():
            self.objects[identity_of(thing)] = self._agreeing(thing)
        kinds = tuple(kind.name for kind in WATCHED_KINDS)
        self.watcher = WatcherUnderTest(profiles={"berth": self.profile}, settings=SOON, kinds=kinds)
        self.mirrored = MirroredSnapshot(Snapshot())
        self._read = 0
        self.watcher.lead(*self.objects.values())
        self.read_mirror()
        for _ in range(WAITING):
            self._add_waiting_pod()

    def _first_objects(self) -> Iterator[KubernetesObject]:
        yield from (self.make.node(name) for name in NODES[:2])
        for kind in dict.fromkeys((*KINDS_OF[self.make.theme], "namespace")):
            for name in NAMES[kind]:
                if self.make.maybe(0.8):
                    yield getattr(self.make, kind)(name)
        yield from (self.make.pod(f"p{number}", self.make.one(*NODES[:2])) for number in range(4))

    def _add_waiting_pod(self) -> None:
        """Add a pod that fits nowhere, if one is found in a few tries."""
        for _ in range(TRIES):
            pod = self.make.pod(f"w{self.make.made}")
            if any(volume.ephemeral for volume in pod.spec.volumes or ()) and self.make.maybe(0.8):
                self.put(self.make.pvc(f"{pod.metadata.name}-e", pod))
            if not self.rank(pod).candidates:
                break
        self.put(pod)

    # --- what happens

    def happen(self) -> str:
        """Something happens; returns what."""
        others = KINDS_OF[self.make.theme]
        kind = self.make.one("node", "node", "pod", "pod", "waiting", "nominated", *others, *others)
        match kind:
            case "pod":
                return f"pod {self._happen_to_placed_pod()}"
            case "waiting":
                return f"own {self._happen_to_waiting_pod()}"
            case "nominated":
                return f"nominated {self._happen_to_nominated_pod()}"
            case _:
                return f"{kind} {self._happen_to_object(kind)}"

    def _happen_to_object(self, kind: str) -> str:
        name = self.make.one(*NAMES[kind])
        made = getattr(self.make, kind)(name)
        identity = identity_of(made)
        known = self.objects.get(identity)
        if known is None:
            self.put(made)
            return "added"
        if self.make.maybe(0.3):
            self.remove(identity)
            return "deleted"
        part, changed = self._changed(kind, known, made)
        self.put(changed)
        return part

    def _changed(self, kind: str, known: Any, made: Any) -> tuple[str, Any]:
        if kind == "node":
            return self._changed_node(known, made)
        if kind == "pvc":
            return "updated", self._changed_claim(known, made)
        if kind == "resourceclaim":
            return "updated", msgspec.structs.replace(known, status=made.status)
        if kind == "csistoragecapacity":
            more = {"capacity": made.capacity, "maximum_volume_size": made.maximum_volume_size}
            return "updated", msgspec.structs.replace(known, **more)
        if kind in _BY_NAME:
            return "updated", made  # a LIST after a gap may show another object of the name
        return "updated", msgspec.structs.replace(
            made, metadata=msgspec.structs.replace(made.metadata, uid=known.metadata.uid)
        )

    def _changed_node(self, known: Any, made: Any) -> tuple[str, Any]:
        part = self.make.one(
            "labels",
            "labels",
            "taints",
            "allocatable",
            "conditions",
            "declared_features",
            "annotations",
            "images",
            "replaced",
        )
        meta, spec, status = known.metadata, known.spec, known.status
        match part:
            case "labels" | "annotations":
                meta = msgspec.structs.replace(meta, **{part: getattr(made.metadata, part)})
            case "taints":
                spec = made.spec
            case "replaced":
                meta, spec, status = made.metadata, made.spec, made.status
            case _:
                status = msgspec.structs.replace(status, **{part: getattr(made.status, part)})
        return part, msgspec.structs.replace(known, metadata=meta, spec=spec, status=status)

    def _changed_claim(self, known: Any, made: Any) -> Any:
        spec, meta = known.spec, known.metadata
        if self.make.maybe(0.2):
            meta = msgspec.structs.replace(meta, deletion_timestamp=LEAVING)
        elif not spec.volume_name and made.spec.volume_name and not self._is_used(known):
            spec = msgspec.structs.replace(spec, volume_name=made.spec.volume_name)
            meta = msgspec.structs.replace(meta, annotations={BIND_COMPLETED: "yes"})
        return msgspec.structs.replace(known, metadata=meta, spec=spec, status=made.status)

    def _is_used(self, claim: Any) -> bool:
        """Whether a placed pod uses the claim: such a claim was bound before the pod was."""
        return any(uses_claim(pod, claim) for pod in self.pods() if pod.spec.node_name)

    def _happen_to_placed_pod(self) -> str:
        placed = [each for each in self.pods() if each.spec.node_name]
        name = f"p{self.make.one(0, 1, 2, 3, 4)}"
        known = next((each for each in placed if each.metadata.name == name), None)
        if known is None:
            self.put(self.make.pod(name, self.make.one(*NODES)))
            return "placed"
        made = self.make.pod(name, known.spec.node_name)
        meta, spec, status = known.metadata, known.spec, known.status
        what = self.make.one(
            "deleted", "deleted", "labels", "terminating", "finished", "resized", "annotations", "condition"
        )
        match what:
            case "deleted":
                self.remove(identity_of(known))
                return what
            case "labels" | "annotations":
                meta = msgspec.structs.replace(meta, **{what: self.make.pod_labels()})
            case "terminating":
                meta = msgspec.structs.replace(meta, deletion_timestamp=LEAVING)
            case "finished":
                status = msgspec.structs.replace(status, phase="Succeeded")
            case "resized":
                spec = msgspec.structs.replace(spec, containers=self._resized(spec.containers, made.spec.containers))
            case _:
                status = msgspec.structs.replace(status, conditions=[PodCondition(type="Ready", status="True")])
        self.put(msgspec.structs.replace(known, metadata=meta, spec=spec, status=status))
        return what

    def _resized(self, containers: Any, others: Any) -> list[Any]:
        """Ports never change."""
        return [msgspec.structs.replace(containers[0], resources=others[0].resources)]

    def _happen_to_waiting_pod(self) -> str:
        waiting = [each for each in self.pods() if each.metadata.name.startswith("w") and not each.spec.node_name]
        if len(waiting) < WAITING:
            self._add_waiting_pod()
            return "added"
        known = self.make.one(*waiting)
        made = self.make.pod(known.metadata.name)
        meta, spec, status = known.metadata, known.spec, known.status
        what = self.make.one("labels", "tolerations", "gates", "nomination", "bound", "resized", "deleted")
        match what:
            case "labels":
                meta = msgspec.structs.replace(meta, labels=made.metadata.labels)
            case "tolerations":
                spec = msgspec.structs.replace(
                    spec, tolerations=[*(spec.tolerations or ()), *(made.spec.tolerations or ())]
                )
            case "gates":
                spec = msgspec.structs.replace(spec, scheduling_gates=None)
            case "nomination":
                status = msgspec.structs.replace(status, nominated_node_name=self.make.one("", *NODES))
            case "bound":
                spec = msgspec.structs.replace(spec, node_name=self.make.one(*NODES))
                status = msgspec.structs.replace(status, nominated_node_name="")
            case "resized":
                spec = msgspec.structs.replace(spec, containers=self._resized(spec.containers, made.spec.containers))
            case _:
                self.remove(identity_of(known))
                return what
        self.put(msgspec.structs.replace(known, metadata=meta, spec=spec, status=status))
        return what

    def _happen_to_nominated_pod(self) -> str:
        """A pod of another scheduler, which is nominated to a node."""
        known = next((each for each in self.pods() if each.metadata.name == "x"), None)
        made = self.make.pod("x")
        spec = msgspec.structs.replace(made.spec, scheduler_name="other", scheduling_gates=None, priority=5)
        status = msgspec.structs.replace(made.status, nominated_node_name=self.make.one(*NODES))
        if known is None:
            self.put(msgspec.structs.replace(made, spec=spec, status=status))
            return "added"
        what = self.make.one("deleted", "moved", "ended", "labels", "resized", "bound")
        match what:
            case "deleted":
                self.remove(identity_of(known))
                return what
            case "moved":
                known = msgspec.structs.replace(known, status=status)
            case "ended":
                known = msgspec.structs.replace(
                    known, status=msgspec.structs.replace(known.status, nominated_node_name="")
                )
            case "labels":
                meta = msgspec.structs.replace(known.metadata, labels=made.metadata.labels)
                known = msgspec.structs.replace(known, metadata=meta)
            case "resized":
                resized = self._resized(known.spec.containers, made.spec.containers)
                known = msgspec.structs.replace(known, spec=msgspec.structs.replace(known.spec, containers=resized))
            case _:
                meta = msgspec.structs.replace(known.metadata, name=f"p{20 + self.make.made}")
                spec = msgspec.structs.replace(known.spec, node_name=status.nominated_node_name)
                self.remove(identity_of(known))
                self.put(msgspec.structs.replace(known, metadata=meta, spec=spec))
                return what
        self.put(known)
        return what

    # --- the cluster, the mirror, and the pods

    def put(self, thing: Any) -> None:
        thing = self._agreeing(thing)
        self.objects[identity_of(thing)] = thing
        self.watcher.show(thing)
        self.read_mirror()

    def _agreeing(self, thing: Any) -> Any:
        """Claim and volume name each other, and a volume has one claim, as the volume controller leaves them."""
        claims = [each for each in self.objects.values() if isinstance(each, PersistentVolumeClaim)]
        if isinstance(thing, PersistentVolumeClaim) and thing.spec.volume_name:
            name, here = thing.spec.volume_name, identity_of(thing)
            if any(each.spec.volume_name == name and identity_of(each) != here for each in claims):
                meta = msgspec.structs.replace(thing.metadata, annotations=None)
                spec = msgspec.structs.replace(thing.spec, volume_name="")
                return msgspec.structs.replace(thing, metadata=meta, spec=spec)
        if isinstance(thing, PersistentVolume):
            for claim in claims:
                if claim.spec.volume_name == thing.metadata.name:
                    meta = claim.metadata
                    reference = ClaimReference(namespace=meta.namespace, name=meta.name, uid=meta.uid)
                    spec = msgspec.structs.replace(thing.spec, claim_ref=reference)
                    return msgspec.structs.replace(thing, spec=spec)
        return thing

    def remove(self, identity: Identity) -> None:
        self.watcher.delete(self.objects.pop(identity))
        self.read_mirror()

    def read_mirror(self) -> None:
        entries = [entry for entry in self.watcher.bucket.values() if entry.sequence > self._read]
        for entry in sorted(entries, key=lambda each: each.sequence):
            self.mirrored.apply(entry.key, entry.data)
        self._read = self.watcher.sequence

    def pods(self) -> list[Pod]:
        return [thing for thing in self.objects.values() if isinstance(thing, Pod)]

    def rank(self, pod: Pod) -> Ranking:
        return rank(pod, self.mirrored.snapshot, self.profile, attempt=first_attempt(pod), options=RankOptions(best=1))

    def decide(self) -> dict[str, Ranking]:
        """Decide the pods in flight that fit nowhere. Returns the answers about the pods that wait, by uid."""
        self.watcher.advance(0.001)
        rankings: dict[str, Ranking] = {}
        for pod in self.pods():
            queued = self.watcher.core.find(pod.uid)
            if queued is None:
                continue
            ranking = rankings[pod.uid] = self.rank(pod)
            if queued.stage is Stage.IN_FLIGHT and not ranking.error:
                self._decide(pod, ranking)
        found = ((uid, self.watcher.core.find(uid)) for uid in rankings)
        return {uid: rankings[uid] for uid, queued in found if queued is not None and queued.stage in WAITING_FOR_EVENT}

    def _decide(self, pod: Pod, ranking: Ranking) -> None:
        if ranking.candidates:  # bound elsewhere, so that a pod that waits takes its place
            self.remove(identity_of(pod))
            self._add_waiting_pod()
            return
        preempts = ranking.nomination
        decided = self.watcher.decision(
            pod.metadata.name,
            Outcome.UNSCHEDULABLE if preempts is None else Outcome.PREEMPTING,
            blockers=list(ranking.unschedulable_plugins),
            node="" if preempts is None else preempts.node,
            positions=Positions(cluster=self.watcher.sequence),
        )
        self.watcher.send(
            msgspec.structs.replace(decided, decision=msgspec.structs.replace(decided.decision, uid=pod.uid))
        )

    def fits_on_nominated_node(self, queued: QueuedPod) -> bool:
        """Whether the pod fits there, perhaps after evictions: ranked as if it named the node."""
        spec = msgspec.structs.replace(queued.pod.spec, node_name=queued.node)
        there = msgspec.structs.replace(queued.pod, spec=spec)
        return value_of(there, self.rank(there)) > 0


def value_of(pod: Pod, ranking: Ranking) -> int:
    """How good an answer is: 0 no node, 1 others are evicted, 2 a node."""
    if pod.spec.scheduling_gates:
        return 0
    return 2 if ranking.candidates else 1 if ranking.nomination is not None else 0


class Tally:
    """Counts of events, and by plugin and event: answers that became better, and pods that were requeued in vain."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.better: Counter[tuple[str, str]] = Counter()
        self.in_vain: Counter[tuple[str, str]] = Counter()

    def __str__(self) -> str:
        pairs = (f"{count} {plugin} {what}" for (plugin, what), count in sorted(self.better.items()) if count)
        return f"{self.events.total()} events, {self.better.total()} better answers: {', '.join(pairs)}"


def left_waiting(world: World, tally: Tally) -> Iterator[str]:
    """Let something happen. Yields a sentence for each pod that waits although its answer is better now."""
    waiting = world.decide()
    was = {pod.uid: (value_of(pod, waiting[pod.uid]), pod) for pod in world.pods() if pod.uid in waiting}
    plugins = {uid: sorted(world.watcher.core.find(uid).unschedulable_plugins) for uid in was}
    what = world.happen()
    tally.events[what] += 1
    for pod in world.pods():
        queued = world.watcher.core.find(pod.uid)
        if pod.uid not in was or queued is None:
            continue
        waits = queued.stage in WAITING_FOR_EVENT
        is_better = value_of(pod, world.rank(pod)) > was[pod.uid][0]
        for plugin in plugins[pod.uid]:
            tally.better[plugin, what] += is_better
            tally.in_vain[plugin, what] += not waits and not is_better
        if is_better and waits:
            yield f"{what}: {pod.key} waits, rejected by {plugins[pod.uid]}: {was[pod.uid][0]}\n{pod}"


@pytest.mark.parametrize("theme", THEMES)
def test_pod_is_requeued_by_whatever_makes_its_answer_better(theme):
    tally = Tally()
    for seed in range(often(5)):
        world = World(seed, theme)
        for step in range(STEPS):
            left = list(left_waiting(world, tally))
            assert not left, f"seed {seed}, step {step}: " + "\n".join(left)
    print(tally)  # noqa: T201 - shown with -s, and when the test fails
    missed = [pair for pair in REACHED[theme] if not tally.better[pair]]
    assert not (missed and IS_LONG), f"no random event of these kinds has made an answer better: {missed}"


# Of the themes, those in which waiting pods are nominated to nodes whose other pods are evicted.
PREEMPTING_THEMES: Final = (
    "NodeResourcesFit",
    "NodePorts",
    "PodTopologySpread",
    "InterPodAffinity",
    "VolumeBinding",
    "VolumeRestrictions",
    "VolumeZone",
    "NodeVolumeLimits",
    "everything",
)


def waiting_for_victims(world: World) -> list[QueuedPod]:
    found = (world.watcher.core.find(pod.uid) for pod in world.pods())
    waiting = (queued for queued in found if queued is not None and queued.stage in WAITING_FOR_EVENT)
    return [queued for queued in waiting if queued.outcome is Outcome.PREEMPTING]


@pytest.mark.parametrize("theme", PREEMPTING_THEMES)
def test_preemptor_is_requeued_by_whatever_makes_its_nominated_node_impossible(theme):
    lost: Counter[str] = Counter()
    for seed in range(often(2)):
        world = World(seed, theme, preempting=True)
        for step in range(STEPS):
            world.decide()
            preemptors = [each for each in waiting_for_victims(world) if world.fits_on_nominated_node(each)]
            what = world.happen()
            if what == "own nomination":
                continue  # by chance and not by berth, which ends less important nominations and counts equal ones
            impossible = [queued for queued in preemptors if not world.fits_on_nominated_node(queued)]
            lost[what] += len(impossible)
            left = [queued.pod for queued in impossible if queued in waiting_for_victims(world)]
            assert not left, f"seed {seed}, step {step}, {what}: {left}"
    assert lost.total() or not IS_LONG, "no random event has made a nominated node impossible"
