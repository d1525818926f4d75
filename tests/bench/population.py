"""Nodes and pods of a busy cluster, as the mirror holds them. They are generated, and the same in each run.

Nodes have labels, conditions and images as kubelets report them. Pods belong to a few hundred applications and have
labels, an owner, tolerations and a token volume as the API server adds them. So the objects are as large and as varied
as in a real cluster.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from berth.api.meta import LabelSelector, ObjectMeta, OwnerReference
from berth.api.node import ContainerImage, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Taint
from berth.api.pod import (
    Affinity,
    Container,
    ContainerPort,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
    Volume,
)
from berth.api.workloads import LabelsSpec, Namespace, ReplicaSet, SelectorSpec, Service

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
APPLICATIONS = 400
NAMESPACES = 40
IMAGES_PER_NODE = 50
"""The most that a kubelet reports (nodeStatusMaxImages)."""
SINCE = "2026-05-04T10:20:30Z"
_SIZES = (("8", "32Gi"), ("16", "64Gi"), ("32", "128Gi"))
_CONDITIONS = (("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"), ("Ready", "True"))
_TOLERATIONS = [
    Toleration(key=f"node.kubernetes.io/{state}", operator="Exists", effect="NoExecute")
    for state in ("not-ready", "unreachable")
]


@dataclass(frozen=True)
class Application:
    """A workload of equal pods."""

    number: int

    @property
    def name(self) -> str:
        return f"service-{self.number:03d}"

    @property
    def namespace(self) -> str:
        return f"team-{self.number % NAMESPACES:02d}"

    @property
    def generation(self) -> str:
        return f"{self.number * 2654435761 % 2**32:08x}"

    @property
    def image(self) -> str:
        return f"registry.example.com/team-{self.number % NAMESPACES:02d}/{self.name}:v1.{self.number % 17}.3"

    @property
    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/part-of": self.namespace}

    @cached_property
    def spec(self) -> PodSpec:
        """Every tenth application spreads over zones, every twentieth has anti-affinity by host, the others neither."""
        chance = random.Random(self.number)
        requests = {"cpu": f"{chance.randrange(2, 16) * 50}m", "memory": f"{chance.randrange(2, 32) * 64}Mi"}
        return PodSpec(
            scheduler_name="berth",
            priority=0,
            containers=[
                Container(
                    name="main",
                    image=self.image,
                    resources=ResourceRequirements(requests=requests, limits={"memory": requests["memory"]}),
                    ports=[ContainerPort(container_port=8080)],
                )
            ],
            tolerations=_TOLERATIONS,
            termination_grace_period_seconds=30,
            **self._constraints(),
        )

    def _constraints(self) -> dict[str, Any]:
        selector = LabelSelector(match_labels={"app.kubernetes.io/name": self.name})
        if self.number % 10 == 1:
            spread = TopologySpreadConstraint(
                max_skew=5, topology_key=ZONE, when_unsatisfiable="ScheduleAnyway", label_selector=selector
            )
            return {"topology_spread_constraints": [spread]}
        if self.number % 20 == 2:
            term = PodAffinityTerm(topology_key=HOSTNAME, label_selector=selector)
            apart = PodAffinity(required_during_scheduling_ignored_during_execution=[term])
            return {"affinity": Affinity(pod_anti_affinity=apart)}
        return {}

    def pod(self, number: int, node: str = "") -> Pod:
        """One of its pods: bound to a node, or waiting."""
        owner = OwnerReference(
            kind="ReplicaSet",
            name=f"{self.name}-{self.generation}",
            uid=f"{self.number:08d}-1111-2222-3333-444444444444",
            api_version="apps/v1",
            controller=True,
        )
        metadata = ObjectMeta(
            name=f"{self.name}-{self.generation}-{number:05x}",
            namespace=self.namespace,
            uid=f"{number:08x}-aaaa-bbbb-cccc-{self.number:012x}",
            creation_timestamp=SINCE,
            labels={**self.labels, "pod-template-hash": self.generation},
            owner_references=[owner],
        )
        token = Volume(name=f"kube-api-access-{number:05x}")
        spec = msgspec.structs.replace(self.spec, node_name=node, volumes=[token])
        return Pod(metadata=metadata, spec=spec, status=PodStatus(start_time=SINCE if node else None))

    def owners(self) -> tuple[ReplicaSet, Service]:
        """Its replica set and its service."""
        metadata = ObjectMeta(name=f"{self.name}-{self.generation}", namespace=self.namespace, labels=self.labels)
        selector = LabelSelector(match_labels={**self.labels, "pod-template-hash": self.generation})
        service = Service(
            metadata=ObjectMeta(name=self.name, namespace=self.namespace), spec=LabelsSpec(selector=self.labels)
        )
        return ReplicaSet(metadata=metadata, spec=SelectorSpec(selector=selector)), service


def applications() -> list[Application]:
    return [Application(number) for number in range(APPLICATIONS)]


def namespaces() -> Iterator[Namespace]:
    for number in range(NAMESPACES):
        name = f"team-{number:02d}"
        labels = {"kubernetes.io/metadata.name": name, "tier": "gold" if number % 8 == 0 else "silver"}
        yield Namespace(metadata=ObjectMeta(name=name, labels=labels))


def nodes(count: int) -> Iterator[Node]:
    """Nodes of three sizes in three zones; one in 50 is tainted for batch jobs, one in 100 is cordoned."""
    images = [application.image for application in applications()]
    for number in range(count):
        yield _node(number, random.Random(number).sample(images, IMAGES_PER_NODE))


def _node(number: int, images: list[str]) -> Node:
    name = f"node-{number:05d}"
    cpu, memory = _SIZES[number % len(_SIZES)]
    allocatable = {"cpu": cpu, "memory": memory, "ephemeral-storage": "100Gi", "pods": "110"}
    addresses = [
        NodeAddress(type="InternalIP", address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"),
        NodeAddress(type="Hostname", address=name),
    ]
    dedicated = [Taint(key="dedicated", value="batch", effect="NoSchedule")] if number % 50 == 7 else None
    return Node(
        metadata=ObjectMeta(name=name, uid=f"{number:08x}-0000-0000-0000-000000000000", labels=_labels(number, name)),
        spec=NodeSpec(unschedulable=number % 100 == 3, taints=dedicated),
        status=NodeStatus(
            allocatable=allocatable,
            capacity=allocatable,
            conditions=[NodeCondition(type=kind, status=status) for kind, status in _CONDITIONS],
            addresses=addresses,
            images=[_image(image) for image in images],
        ),
    )


def _labels(number: int, name: str) -> dict[str, str]:
    size = _SIZES[number % len(_SIZES)][0]
    return {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        HOSTNAME: name,
        "node.kubernetes.io/instance-type": f"general-{size}",
        "topology.kubernetes.io/region": "region-1",
        ZONE: f"region-1{'abc'[number // len(_SIZES) % 3]}",
        "example.com/pool": f"pool-{number % 7}",
    }


def _image(name: str) -> ContainerImage:
    """An image with its digest and its tag as names, as kubelets list it."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    size = (int(digest[:8], 16) % 900 + 20) << 20
    return ContainerImage(names=[f"{name.rpartition(':')[0]}@sha256:{digest}", name], size_bytes=size)


def pods(nodes: int, per_node: int) -> Iterator[Pod]:
    """Bound pods, the same number on each node, from random applications. No application has two pods on a node."""
    every = applications()
    for node in range(nodes):
        chance = random.Random(node)
        for place, application in enumerate(chance.sample(every, per_node)):
            yield application.pod(node * per_node + place, f"node-{node:05d}")
