"""One Lease object at the API server: read, and written by compare-and-set on its resourceVersion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import msgspec

from berth.api.errors import DecodeError, TemporaryError
from berth.api.lease import Lease
from berth.kube.client import DEFAULT_TIMEOUT, KubeClient
from berth.kube.refusal import refusal
from berth.kube.response import Response

ANNOTATION_TERM = "berth/term"
"""The number of the last leadership, watcher's term or binder's epoch (PROTOCOL 1)."""
ANNOTATION_BUS_ID = "bus.id"
"""Which bus the holder meets the others on (PROTOCOL 2, *one cluster, one bus*)."""


class LeaseConflictError(TemporaryError):
    """Somebody else has written the Lease since it was read, or made or deleted it: read it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLease:
    """A Lease as it was read: typed, and whole, so that writing it back loses nothing that others put there."""

    lease: Lease
    document: dict[str, Any]

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        return self.lease.metadata.annotations or {}


class LeaseObject:
    """One Lease by its name."""

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self.name = name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def __str__(self) -> str:
        return f"{self._namespace}/{self.name}"

    async def read(self, timeout: timedelta = DEFAULT_TIMEOUT) -> StoredLease | None:  # noqa: ASYNC109 - the client's
        """The Lease, ``None`` when there is none. Raises as :meth:`write`, without conflicts."""
        response = await self._client.request("GET", f"{self._collection}/{self.name}", timeout=timeout)
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        return self._stored("reading", response)

    async def create(
        self,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str],
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the client's
    ) -> StoredLease:
        """Make the Lease. Raises as :meth:`write`."""
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self._namespace, "annotations": dict(annotations)},
            "spec": dict(spec),
        }
        body = msgspec.json.encode(document)
        return self._stored(
            "creating", await self._client.request("POST", self._collection, body=body, timeout=timeout)
        )

    async def write(
        self,
        read: StoredLease,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str],
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the client's
    ) -> StoredLease:
        """Write what is given over what was read; everything else stays.

        Raises:
            LeaseConflictError: it is not any more as it was read.
            ApiUnreachableError: no answer; it may have been written.
            ApiRefusedError: the API server does not allow it.
        """
        metadata = read.document["metadata"]
        document = {
            **read.document,
            "metadata": {**metadata, "annotations": {**read.annotations, **annotations}},
            "spec": {**read.document.get("spec", {}), **spec},
        }
        path, body = f"{self._collection}/{self.name}", msgspec.json.encode(document)
        return self._stored("writing", await self._client.request("PUT", path, body=body, timeout=timeout))

    def _stored(self, doing: str, response: Response) -> StoredLease:
        what = f"{doing} lease {str(self)!r}"
        gone = doing == "writing" and response.status == HTTPStatus.NOT_FOUND
        if response.status == HTTPStatus.CONFLICT or gone:
            raise LeaseConflictError(f"{what}: {response.message}")
        if not response.succeeded:
            raise refusal(what, response)
        try:
            lease = msgspec.json.decode(response.body, type=Lease)
            return StoredLease(lease=lease, document=msgspec.json.decode(response.body))
        except msgspec.MsgspecError as exc:
            raise DecodeError(f"{what}: {exc}") from exc


async def write_annotations(lease: LeaseObject, read: StoredLease | None, changes: Mapping[str, str]) -> StoredLease:
    """Write annotations for a leader that was not elected: the Lease is made when there is none, its holder is empty.

    ``read`` is what the changes were decided on. Raises as :meth:`LeaseObject.write`.
    """
    if read is None:
        return await lease.create({}, changes)
    spec = {"holderIdentity": ""} if read.lease.spec.holder_identity else {}
    return await lease.write(read, spec, changes)
