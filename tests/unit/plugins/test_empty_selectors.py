"""Every place with a selector: an absent or null one selects nothing, one without requirements selects everything.

Each case is written as JSON, read, written as the mirror writes it, and read again, so that no step takes one form for
the other. Where an absent selector means something else (the own namespace, any volume), the case says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from berth.api.kinds import PLUGIN_KINDS
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.workloads import Namespace
from berth.cluster.buckets import MirroredSnapshot
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Ranking, RankOptions, rank
from berth.messages.mirror import MirrorEntry, encode_entry
from berth_watcher.mirror import trimmed
from harness.builders.objects import first_attempt
from harness.builders.profiles import default_profile

Json = dict[str, Any]
LEFT_OUT = object()
ABSENT = {"absent": LEFT_OUT, "null": None}
EMPTY: dict[str, object] = {
    "{}": {},
    "empty matchLabels": {"matchLabels": {}},
    "empty matchExpressions": {"matchExpressions": []},
    "both empty": {"matchLabels": {}, "matchExpressions": []},
    "both null": {"matchLabels": None, "matchExpressions": None},
}
ZONES = {"n0": "a", "n1": "b"}
ALL, A, B, NONE = {"n0", "n1"}, {"n0"}, {"n1"}, set[str]()


def without_left_out(value: Any) -> Any:
    if isinstance(value, list):
        return [without_left_out(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: without_left_out(inner) for name, inner in value.items() if inner is not LEFT_OUT}


def a_pod(name: str = "p", namespace: str = "ns", *, labels: Json | None = None, cpu: str = "1", **spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {}}
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    return {"kind": "Pod", "metadata": metadata, "spec": {"schedulerName": "berth", "containers": containers, **spec}}


def an_object(kind: str, name: str, namespace: str = "", **fields: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}, **fields}


def ranked(pod: Json, *others: Json, cpu: str = "4") -> Ranking:
    """Rank the pod on two nodes, each in a zone of its own, beside these objects."""
    mirrored = MirroredSnapshot(Snapshot())
    names = {kind.kind: name for name, kind in PLUGIN_KINDS.items()}
    structs: dict[str, tuple[str, type]] = {"Pod": ("pod", Pod), "Node": ("node", Node)}
    structs |= {"Namespace": ("namespace", Namespace)}
    structs |= {kind: (name, PLUGIN_KINDS[name].struct) for kind, name in names.items()}
    nodes = [
        an_object("Node", name, status={"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "9"}}) for name in ZONES
    ]
    for node in nodes:
        name = node["metadata"]["name"]
        node["metadata"]["labels"] = {"zone": ZONES[name], "kubernetes.io/hostname": name}
    for thing in [*nodes, *others]:
        name, struct = structs[thing["kind"]]
        read = msgspec.json.decode(json.dumps(without_left_out(thing)), type=struct)
        entry = MirrorEntry(object=msgspec.Raw(msgspec.json.encode(trimmed(read))), term=1)
        mirrored.apply(f"{name}.{read.metadata.uid}", encode_entry(entry))
    waiting = msgspec.json.decode(msgspec.json.encode(read_pod(pod)), type=Pod)
    return rank(
        waiting, mirrored.snapshot, default_profile(), attempt=first_attempt(waiting), options=RankOptions(best=9)
    )


def read_pod(pod: Json) -> Pod:
    return msgspec.json.decode(json.dumps(without_left_out(pod)), type=Pod)


def feasible(pod: Json, *others: Json) -> set[str]:
    return {candidate.node for candidate in ranked(pod, *others).candidates}


def preferred(pod: Json, *others: Json) -> set[str]:
    """The nodes with the highest score; both if the selector makes no difference."""
    candidates = ranked(pod, *others).candidates
    scores = {each.node: sum(each.scores.get(name, 0) for name in _SCORED) for each in candidates}
    return {node for node, total in scores.items() if total == max(scores.values())}


_SCORED = ("PodTopologySpread", "InterPodAffinity", "NodeAffinity")


def placed(node: str = "n0", namespace: str = "ns", **more: Any) -> Json:
    """A pod without labels on a node."""
    return a_pod(f"placed-{node}", namespace, nodeName=node, **more)


def required(kind: str, **term: Any) -> Json:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", **term}]}}


def weighted(kind: str, **term: Any) -> Json:
    one = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", **term}}
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [one]}}


def spread(selector: object, when: str = "DoNotSchedule", **more: Any) -> Json:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when, "labelSelector": selector, **more}
    return {"topologySpreadConstraints": [constraint]}


def of_budget(selector: object) -> set[str]:
    """The node whose pod is evicted: with the budget n1, whose pod is of another namespace."""
    victims = [placed("n0", cpu="2"), placed("n1", "else", cpu="2", priority=5)]
    budget = an_object("PodDisruptionBudget", "b", "ns", spec={"selector": selector})
    nomination = ranked(a_pod(priority=9, cpu="2"), *victims, budget, cpu="2").nomination
    assert nomination is not None
    return {nomination.node}


def of_claim(**objects: Any) -> Callable[[object], set[str]]:
    """A pod with a claim that waits for its first consumer; ``objects`` are further fields by kind."""

    def possible(selector: object) -> set[str]:
        given = {kind: fields(selector) for kind, fields in objects.items()}
        by_hand = "Capacity" not in objects and "Class" not in objects
        provisioner = "kubernetes.io/no-provisioner" if by_hand else "disk.example.com"
        mode = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer", **given.get("Class", {})}
        claim = {"storageClassName": "c", "resources": {"requests": {"storage": "1Gi"}}, **given.get("Claim", {})}
        volume = {"capacity": {"storage": "1Gi"}, "storageClassName": "c", **given.get("Volume", {})}
        capacity = {"storageClassName": "c", "capacity": "9Gi", **given.get("Capacity", {})}
        return feasible(
            a_pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
            an_object("StorageClass", "c", **mode),
            an_object("PersistentVolumeClaim", "c", "ns", spec=claim),
            *([an_object("PersistentVolume", "v", spec=volume, status={"phase": "Available"})] if by_hand else ()),
            an_object("CSIDriver", "disk.example.com", spec={"storageCapacity": "Capacity" in objects}),
            an_object("CSIStorageCapacity", "c", "ns", **capacity),
        )

    return possible


def owned(kind: str, version: str = "v1") -> Json:
    """A pod's metadata of this controller."""
    return {"ownerReferences": [{"apiVersion": version, "kind": kind, "name": "o", "uid": "uid-o", "controller": True}]}


def of_controller(kind: str, version: str = "apps/v1") -> Callable[[object], set[str]]:
    """The preferred nodes for a pod of the controller or service, by the default constraints of the system."""

    def possible(selector: object) -> set[str]:
        pod = a_pod(labels=WEB)
        pod["metadata"].update(owned(kind, version) if kind != "Service" else {})
        return preferred(pod, placed(labels=WEB), an_object(kind, "o", "ns", spec={"selector": selector}))

    return possible


WEB = {"app": "web"}
ELSEWHERE = an_object("Namespace", "else")

LABEL_SELECTORS: dict[str, tuple[Callable[[object], set[str]], set[str], set[str]]] = {
    "budget": (of_budget, A, B),
    "spread constraint": (lambda selector: feasible(a_pod(**spread(selector)), placed()), ALL, B),
    "preferred spread": (lambda selector: preferred(a_pod(**spread(selector, "ScheduleAnyway")), placed()), ALL, B),
    "spread, with a key that the pod lacks": (
        lambda selector: feasible(a_pod(**spread(selector, matchLabelKeys=["app"])), placed()),
        ALL,
        B,
    ),
    "spread, with a key that the pod has": (
        lambda selector: feasible(
            a_pod(labels={"app": "x"}, **spread(selector, matchLabelKeys=["app"])), placed(labels={"app": "x"})
        ),
        ALL,
        B,
    ),
    "affinity": (
        lambda selector: feasible(
            a_pod(affinity=required("podAffinity", labelSelector=selector)), placed(), placed("n1", "else")
        ),
        NONE,
        A,
    ),
    "anti-affinity": (
        lambda selector: feasible(a_pod(affinity=required("podAntiAffinity", labelSelector=selector)), placed()),
        ALL,
        B,
    ),
    "anti-affinity of a placed pod": (
        lambda selector: feasible(a_pod(), placed(affinity=required("podAntiAffinity", labelSelector=selector))),
        ALL,
        B,
    ),
    "preferred affinity": (
        lambda selector: preferred(a_pod(affinity=weighted("podAffinity", labelSelector=selector)), placed()),
        ALL,
        A,
    ),
    "preferred anti-affinity": (
        lambda selector: preferred(a_pod(affinity=weighted("podAntiAffinity", labelSelector=selector)), placed()),
        ALL,
        B,
    ),
    "preferred affinity of a placed pod": (
        lambda selector: preferred(a_pod(), placed(affinity=weighted("podAffinity", labelSelector=selector))),
        ALL,
        A,
    ),
    # Absent: the pod's own namespace, in which there is nobody.
    "namespaces of affinity": (
        lambda selector: feasible(
            a_pod(affinity=required("podAffinity", labelSelector={}, namespaceSelector=selector)),
            placed(namespace="else"),
            ELSEWHERE,
        ),
        ALL,
        A,
    ),
    "namespaces of anti-affinity, beside a named one": (
        lambda selector: feasible(
            a_pod(
                affinity=required("podAntiAffinity", labelSelector={}, namespaceSelector=selector, namespaces=["third"])
            ),
            placed(namespace="else"),
            placed("n1", "third"),
            ELSEWHERE,
        ),
        A,
        NONE,
    ),
    "namespaces of a placed pod's anti-affinity": (
        lambda selector: feasible(
            a_pod(),
            placed(
                namespace="else",
                affinity=required("podAntiAffinity", labelSelector={}, namespaceSelector=selector),
            ),
        ),
        ALL,
        B,
    ),
    "nodes of a storage capacity": (of_claim(Capacity=lambda selector: {"nodeTopology": selector}), NONE, ALL),
    # Absent: any volume.
    "volumes of a claim": (of_claim(Claim=lambda selector: {"selector": selector}), ALL, ALL),
}


def forms(kinds: Iterable[dict[str, object]]) -> dict[str, object]:
    return {name: form for kind in kinds for name, form in kind.items()}


@pytest.mark.parametrize("form", forms([ABSENT, EMPTY]))
@pytest.mark.parametrize("place", LABEL_SELECTORS)
def test_label_selector_without_requirements_selects_everything(place, form):
    verdict, when_absent, when_empty = LABEL_SELECTORS[place]
    assert verdict(forms([ABSENT, EMPTY])[form]) == (when_absent if form in ABSENT else when_empty)


MAPS: dict[str, object] = {**ABSENT, "{}": {}}
TERMS: dict[str, object] = {
    "an empty term": [{}],
    "a term with empty lists": [{"matchExpressions": [], "matchFields": []}],
    "a term with nulls": [{"matchExpressions": None, "matchFields": None}],
}
NO_TERMS: dict[str, object] = {"no list of terms": LEFT_OUT, "null terms": None, "no terms": []}
TOPOLOGIES: dict[str, object] = {"an empty term": [{}], "a term with an empty list": [{"matchLabelExpressions": []}]}


def node_affinity(terms: object) -> Json:
    return {"required": {"nodeSelectorTerms": terms}}


def of_pod(terms: object) -> set[str]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return feasible(a_pod(affinity={"nodeAffinity": required}))


def of_volume(affinity: object) -> set[str]:
    return of_claim(Volume=lambda each: {"nodeAffinity": each})(affinity)


def of_bound_volume(affinity: object) -> set[str]:
    claim = an_object("PersistentVolumeClaim", "c", "ns", spec={"volumeName": "v"})
    claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    pod = a_pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])
    return feasible(pod, claim, an_object("PersistentVolume", "v", spec={"nodeAffinity": affinity}))


def preferring(term: object) -> set[str]:
    terms = [{"weight": 5, "preference": term}]
    return preferred(a_pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}))


def cases(verdict: Callable[[object], set[str]], selected: set[str], given: dict[str, object]) -> list[Any]:
    return [pytest.param(verdict, form, selected, id=name) for name, form in given.items()]


@pytest.mark.parametrize(
    ("verdict", "form", "selected"), cases(lambda form: feasible(a_pod(nodeSelector=form)), ALL, MAPS)
)
def test_no_node_selector_allows_every_node(verdict, form, selected):
    assert verdict(form) == selected


@pytest.mark.parametrize(("verdict", "form", "selected"), cases(of_pod, NONE, NO_TERMS | TERMS))
def test_required_node_affinity_without_expressions_allows_no_node(verdict, form, selected):
    assert verdict(form) == selected


@pytest.mark.parametrize(
    ("verdict", "form", "selected"),
    cases(
        preferring, ALL, {"an empty preference": {}, "with empty lists": {"matchExpressions": [], "matchFields": []}}
    ),
)
def test_preference_without_expressions_prefers_no_node(verdict, form, selected):
    assert verdict(form) == selected


ANYWHERE: dict[str, object] = {**MAPS, "nothing required": {"required": None}}
NOWHERE = {name: node_affinity(terms) for name, terms in {**NO_TERMS, **TERMS}.items()}


@pytest.mark.parametrize(
    ("verdict", "form", "selected"),
    [case for of in (of_volume, of_bound_volume) for case in cases(of, ALL, ANYWHERE) + cases(of, NONE, NOWHERE)],
)
def test_volume_is_accessible_everywhere_unless_node_affinity_is_required(verdict, form, selected):
    assert verdict(form) == selected


TOPOLOGY = of_claim(Class=lambda terms: {"allowedTopologies": terms})


@pytest.mark.parametrize(
    ("verdict", "form", "selected"),
    cases(TOPOLOGY, ALL, {**ABSENT, "an empty list": []}) + cases(TOPOLOGY, NONE, TOPOLOGIES),
)
def test_storage_class_provisions_everywhere_unless_it_has_topologies(verdict, form, selected):
    assert verdict(form) == selected


@pytest.mark.parametrize(
    ("verdict", "form", "selected"),
    [
        *cases(of_controller("Service"), ALL, MAPS),
        *cases(of_controller("ReplicationController", "v1"), ALL, MAPS),
        *cases(of_controller("ReplicaSet"), ALL, forms([ABSENT, EMPTY])),
        *cases(of_controller("StatefulSet"), ALL, forms([ABSENT, EMPTY])),
        # With a label they spread, so that the cases above can fail.
        *cases(of_controller("Service"), B, {"a selector of a service": WEB}),
        *cases(of_controller("ReplicationController", "v1"), B, {"a selector of a controller": WEB}),
        *cases(of_controller("ReplicaSet"), B, {"a selector of a set": {"matchLabels": WEB}}),
    ],
)
def test_service_or_controller_without_requirements_spreads_no_pods(verdict, form, selected):
    assert verdict(form) == selected
