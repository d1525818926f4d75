"""The kinds that berth reads: where the API server has them and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from berth.api.furtherkinds import FURTHER_KINDS
from berth.api.lease import Lease
from berth.api.namespace import Namespace
from berth.api.node import Node
from berth.api.pod import Pod
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
FURTHER: tuple[Kind[Any], ...] = tuple(
    Kind(name=name, path=kind.path, struct=kind.struct) for name, kind in FURTHER_KINDS.items()
)
"""What plugins read beyond pods, nodes and namespaces."""
_ALL: tuple[Kind[Any], ...] = (POD, NODE, NAMESPACE, *FURTHER, LEASE)
KINDS: dict[str, Kind[Any]] = {kind.name: kind for kind in _ALL}
