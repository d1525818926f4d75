"""The kinds that berth reads: where the API server has them and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from berth.api.lease import Lease
from berth.api.namespace import Namespace
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.kube.port import T


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """One kind. ``name`` is berth's word for it, as in ``watermark.<kind>``; ``path`` lists it in all namespaces."""

    name: str
    path: str
    struct: type[T]


POD = Kind(name="pod", path="/api/v1/pods", struct=Pod)
NODE = Kind(name="node", path="/api/v1/nodes", struct=Node)
NAMESPACE = Kind(name="namespace", path="/api/v1/namespaces", struct=Namespace)
LEASE = Kind(name="lease", path="/apis/coordination.k8s.io/v1/leases", struct=Lease)
SERVICE = Kind(name="service", path="/api/v1/services", struct=Service)
REPLICATION_CONTROLLER = Kind(
    name="replicationcontroller", path="/api/v1/replicationcontrollers", struct=ReplicationController
)
REPLICA_SET = Kind(name="replicaset", path="/apis/apps/v1/replicasets", struct=ReplicaSet)
STATEFUL_SET = Kind(name="statefulset", path="/apis/apps/v1/statefulsets", struct=StatefulSet)

WORKLOADS = (SERVICE, REPLICATION_CONTROLLER, REPLICA_SET, STATEFUL_SET)
"""What says which pods are a pod's like, for default spread constraints."""
KINDS: dict[str, Kind[Any]] = {kind.name: kind for kind in (POD, NODE, NAMESPACE, *WORKLOADS, LEASE)}
