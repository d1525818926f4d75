"""Evicting a pod for a more important one, and keeping the node for that one: what is written to the API server.

Rights: ``delete`` on pods and ``patch`` on pods/status, as system:kube-scheduler has them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from berth.api.eviction import BY_SCHEDULER, DISRUPTION_TARGET
from berth.api.pod import Pod, PodCondition
from berth.kube.client import KubeClient
from berth.kube.pods import condition_patch, patch_pod_status
from berth.kube.response import Response
from berth.kube.timestamps import whole_seconds

REFUSED: Final = "EvictionRefused"

_encoder = msgspec.json.Encoder()


async def mark_victim(client: KubeClient, victim: Pod, *, scheduler_name: str, time: datetime) -> Response:
    """Say on the pod why it is about to go, before it does.

    Raises:
        ApiUnreachableError: no answer; it may have been said.
    """
    message = f"{scheduler_name}: preempting to accommodate a higher priority pod"
    said = PodCondition(type=DISRUPTION_TARGET, status="True", reason=BY_SCHEDULER, message=message)
    return await _say(client, victim, said, time)


async def unmark_victim(client: KubeClient, victim: Pod, *, time: datetime) -> Response:
    """Take it back: the pod was not evicted. Kubernetes' own disruption controller would after two minutes.

    Raises:
        ApiUnreachableError: no answer; it may have been taken back.
    """
    said = PodCondition(type=DISRUPTION_TARGET, status="False", reason=REFUSED, message="the eviction was refused")
    return await _say(client, victim, said, time)


async def _say(client: KubeClient, pod: Pod, condition: PodCondition, time: datetime) -> Response:
    said = msgspec.structs.replace(condition, last_transition_time=whole_seconds(time))
    body = condition_patch(said, uid=pod.uid)
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)


async def delete_victim(client: KubeClient, victim: Pod) -> Response:
    """Delete the pod, with the time that it has asked for; 409 when another pod has its name by now.

    Raises:
        ApiUnreachableError: no answer; it may be going.
    """
    body = _encoder.encode({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": victim.uid}})
    path = f"/api/v1/namespaces/{victim.metadata.namespace}/pods/{victim.metadata.name}"
    return await client.request("DELETE", path, body=body)


async def nominate(client: KubeClient, pod: Pod, node: str | None) -> Response:
    """Write on the pod which node is kept for it; ``None``: no node is. The answer holds the pod after it.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    body = _encoder.encode({"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}})
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)
