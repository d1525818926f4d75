"""Writing Events (events.k8s.io/v1), which ``kubectl describe`` and ``kubectl get events`` show."""

from __future__ import annotations

from typing import Final

from berth.kube.client import MERGE_PATCH, KubeClient
from berth.kube.errors import Response

MAX_NOTE_BYTES: Final = 1024
"""Of a note; the API server refuses longer ones."""


async def create_event(client: KubeClient, namespace: str, body: bytes) -> Response:
    """Create an Event; 201 is success.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    return await client.request("POST", _path(namespace), body=body)


async def patch_event(client: KubeClient, namespace: str, name: str, body: bytes) -> Response:
    """Apply a merge patch to an Event, such as the count of its series. Raises as :func:`create_event`."""
    return await client.request("PATCH", f"{_path(namespace)}/{name}", body=body, content_type=MERGE_PATCH)


def cut(note: str, max_bytes: int = MAX_NOTE_BYTES) -> str:
    """The note, shortened to the length that the API server takes; dots show that it was."""
    return note if len(note.encode()) <= max_bytes else note.encode()[: max_bytes - 3].decode(errors="ignore") + "..."


def _path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
