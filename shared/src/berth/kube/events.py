"""Events as people see them with ``kubectl describe``: events.k8s.io/v1, written as plain JSON."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from berth.api.pod import Pod
from berth.kube.client import KubeClient
from berth.kube.clock import micro_time
from berth.kube.errors import Response

LONGEST_NOTE = 1024
"""Characters of a note; the API server refuses longer ones."""
LONGEST_NAME = 253
"""Characters of an object's name."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Who says it: ``controller`` is the scheduler's name, ``instance`` the process."""

    controller: str
    instance: str


def pod_event(  # noqa: PLR0913 - what an Event consists of
    pod: Pod,
    *,
    kind: Literal["Normal", "Warning"],
    reason: str,
    action: str,
    note: str,
    reporter: Reporter,
    time: datetime,
) -> bytes:
    """An Event on a pod. ``reason`` and ``action`` are CamelCase words such as ``FailedScheduling``, ``Scheduling``.

    ``eventTime`` is always written: the API server refuses an Event without it.
    """
    meta = pod.metadata
    suffix = f".{uuid.uuid4().hex[:16]}"
    regarding = {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }
    return _encoder.encode(
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": meta.name[: LONGEST_NAME - len(suffix)].rstrip(".-") + suffix,
                "namespace": meta.namespace,
            },
            "eventTime": micro_time(time),
            "type": kind,
            "reason": reason,
            "action": action,
            "note": cut(note),
            "regarding": regarding,
            "reportingController": reporter.controller,
            "reportingInstance": reporter.instance[:128],
        }
    )


def cut(note: str, longest: int = LONGEST_NOTE) -> str:
    """The note, cut where it is too long, so that one sees that it was."""
    return note if len(note.encode()) <= longest else note.encode()[: longest - 3].decode(errors="ignore") + "..."


async def create_event(client: KubeClient, namespace: str, body: bytes) -> Response:
    """Write an Event; 201 is success.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    return await client.request("POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body=body)
