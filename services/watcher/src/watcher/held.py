"""What the mirror holds of each object: only what plugins read of it, so that a heartbeat writes nothing."""

from __future__ import annotations

import msgspec

from berth.api.boundat import bound_since
from berth.api.eviction import disruption, is_being_preempted
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodStatus, is_bound
from berth.kube.port import KubernetesObject
from watcher.cluster_events import nomination


def held(thing: KubernetesObject) -> KubernetesObject | None:
    """The object as the mirror holds it, without version; ``None`` for a pod that is neither bound nor nominated."""
    if isinstance(thing, Pod):
        return _held_pod(thing)
    return msgspec.structs.replace(thing, metadata=_unversioned(thing.metadata))  # type: ignore[type-var]  # all kinds are Structs


def _held_pod(pod: Pod) -> Pod | None:
    if is_bound(pod):
        status = PodStatus(
            start_time=bound_since(pod),  # its own comes a little later and would be one more write a pod
            conditions=[said] if is_being_preempted(pod) and (said := disruption(pod)) else None,
        )
    elif nomination(pod):
        status = PodStatus(nominated_node_name=pod.status.nominated_node_name)
    else:
        return None
    return Pod(metadata=_unversioned(pod.metadata), spec=pod.spec, status=status)


def _unversioned(metadata: ObjectMeta) -> ObjectMeta:
    return msgspec.structs.replace(metadata, resource_version="")
