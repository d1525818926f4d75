"""What one scheduler with full knowledge would see and do: a Snapshot made of the API server's own objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from berth.api.kinds import (
    COSCHEDULING_POD_GROUP,
    DEVICE_CLASS,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    PLUGIN_KINDS,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    STORAGE_CLASS,
    Kind,
)
from berth.api.pod import Pod, bound_at, is_finished
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Ranking, RankOptions, check, rank
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth.kube.listwatch import ObjectDecoder, Undecodable
from berth.messages.subjects import Attempt, Term, Uid
from berth_sim.apiserver.kinds import BY_ADDRESS
from berth_sim.apiserver.store import Store, StoredObject

READ_KINDS: Final[tuple[Kind[Any], ...]] = (
    NODE, NAMESPACE, POD, POD_DISRUPTION_BUDGET, STORAGE_CLASS, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM,
)  # fmt: skip
"""What the services of a run read. The other kinds have no objects in these clusters."""
DEVICE_KINDS: Final[tuple[Kind[Any], ...]] = (DEVICE_CLASS, RESOURCE_SLICE, RESOURCE_CLAIM)
"""And of a run with devices."""
GROUP_KINDS: Final[tuple[Kind[Any], ...]] = (POD_GROUP, COSCHEDULING_POD_GROUP)
"""And of a run with groups."""
_DECODERS: Final = {
    (kind.group, kind.plural): ObjectDecoder(kind) for kind in (POD, NODE, NAMESPACE, *PLUGIN_KINDS.values())
}
_BEST: Final = 32


def simulated(kind: Kind[Any]) -> Any:
    """The simulated API server's kind."""
    return next(found for each in kind.versions if (found := BY_ADDRESS.get((each.group, each.version, each.plural))))


@lru_cache(maxsize=4096)
def decoded(stored: StoredObject) -> Any:
    """An object as berth decodes it; ``None`` for one that cannot be decoded. The judges ask again and again."""
    found = _DECODERS[stored.kind.group, stored.kind.plural].one(stored.encoded(stored.kind))
    return None if isinstance(found, Undecodable) else found


@dataclass
class Truth:
    """A Snapshot, and the pods in it."""

    snapshot: Snapshot
    pods: Mapping[str, Pod]

    def rank(self, pod: Pod, profile: Profile, *, may_preempt: bool = False) -> Ranking:
        attempt = Attempt(uid=Uid(pod.uid), term=Term(1), n=1)
        return rank(
            pod, self.snapshot, profile, attempt=attempt, options=RankOptions(best=_BEST, may_preempt=may_preempt)
        )

    def check(self, pod: Pod, node: str, profile: Profile) -> Status:
        return check(pod, node, self.snapshot, profile)


def truth_of(
    store: Store,
    *,
    kinds: Iterable[Kind[Any]],
    revisions: Mapping[str, int] | None = None,
    placed: Mapping[str, str] | None = None,
    read: Iterable[Pod] = (),
) -> Truth:
    """The cluster as it is, or as it was at a revision for each kind (by plural).

    ``placed`` are further pods that count on a node, by uid: those whose Binding is on its way. ``read`` are pods that
    are known though no watch has shown them: a binder reads a pod that it is to bind.
    """
    snapshot, pods = Snapshot(), {pod.uid: pod for pod in read}
    placed, revisions = placed or {}, revisions or {}
    for kind in kinds:
        table = store.table(simulated(kind))
        at = revisions.get(kind.plural)
        for stored in table.in_order() if at is None else table.as_of(max(at, table.floor)):
            thing = decoded(stored)
            if kind is POD and thing is not None:
                pods[thing.uid] = thing
            elif thing is not None:
                _show(snapshot, kind, thing)
    for uid, pod in pods.items():
        if is_finished(pod):
            continue
        node = pod.spec.node_name or placed.get(uid, "")
        if node:
            snapshot.place(pod, node, bound_at=bound_at(pod))
        elif pod.status.nominated_node_name:
            snapshot.nominate(pod, pod.status.nominated_node_name)
    return Truth(snapshot=snapshot, pods=pods)


def _show(snapshot: Snapshot, kind: Kind[Any], thing: Any) -> None:
    if kind is NODE:
        snapshot.set_node(thing)
    elif kind is NAMESPACE:
        snapshot.set_namespace(thing)
    else:
        key = kind.key_of(uid=thing.metadata.uid, name=thing.metadata.name)
        snapshot.objects(kind.struct).set(key, thing)


@lru_cache(maxsize=4096)
def amounts(cpu: str, memory: str) -> tuple[float, float]:
    """Cores and bytes of the quantities that the simulation uses."""
    return _amount(cpu), _amount(memory)


def _amount(text: str) -> float:
    if text.endswith("m"):
        return float(text[:-1]) / 1000
    for suffix, factor in (("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30)):
        if text.endswith(suffix):
            return float(text[:-2]) * factor
    return float(text or 0)


def requests_of(pod: Mapping[str, Any]) -> tuple[float, float, int]:
    """Cores, bytes and the pod itself, without berth's own parser."""
    cpu = memory = 0.0
    for container in pod["spec"]["containers"]:
        wanted = (container.get("resources") or {}).get("requests") or {}
        more = amounts(wanted.get("cpu", "0"), wanted.get("memory", "0"))
        cpu, memory = cpu + more[0], memory + more[1]
    return cpu, memory, 1


def is_present(pod: Mapping[str, Any]) -> bool:
    """Whether a pod uses its node."""
    return pod["status"].get("phase") not in ("Succeeded", "Failed")
