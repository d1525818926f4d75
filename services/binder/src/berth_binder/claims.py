"""Writes of a pod's ResourceClaims, each with its retries (docs/adr/0067).

A 409 is answered by reading the claim again: what was written already is not written twice, and a claim that is gone,
or allocated otherwise, is a conflict. Every request may be repeated after a missing answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from berth.api.devices import AllocationResult, ResourceClaim
from berth.api.pod import Pod
from berth.framework.interface import ClaimName, CreateClaim, FreeClaim, ReleaseClaim, ReserveClaim
from berth.kube.claims import (
    add_finalizer,
    allocate,
    clear,
    create_claim,
    decode_claim,
    delete_claim,
    fence_claim,
    get_claim,
    reserve,
    unreserve,
)
from berth.kube.client import KubeClient
from berth.kube.http1 import Response
from berth.kube.writes import conflict, get_pod, report_extended_claim

# Reads and writes of a claim that other clients write in between, before the pod's attempt ends in a conflict.
TRIES: Final = 5


@dataclass(slots=True)
class _Turn:
    """The writes to one claim, which wait for each other. ``latest``: the claim after the last one, if it is known."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    latest: ResourceClaim | None = None


class ClaimWriter:
    """Writes to one claim wait for each other, because up to 256 pods may share it."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._turns: dict[tuple[str, str], _Turn] = {}

    async def reserve(self, pod: Pod, write: ReserveClaim) -> Response:
        """Allocate the claim, if it is to be, and reserve it for the pod."""
        async with self._alone(write.claim) as turn:
            return await self._reserve(pod, write.claim, write.allocation, turn)

    async def create(self, pod: Pod, write: CreateClaim) -> Response:
        """Create the claim of the pod's extended resources, unless it is there already, and reserve it."""
        metadata = write.claim.metadata
        response = await create_claim(self._client, write.claim)
        if response.status == HTTPStatus.CONFLICT:
            response = await get_claim(self._client, metadata.namespace, metadata.name)
        if not response.succeeded:
            return response
        made = decode_claim(response.body)
        if not _is_controlled_by(made, pod) or made.spec != write.claim.spec:
            return conflict(f"resource claim {made.key} was made for other resources")
        name = ClaimName(namespace=metadata.namespace, name=metadata.name, uid=made.metadata.uid)
        async with self._alone(name) as turn:
            return await self._reserve(pod, name, write.allocation, turn)

    async def report(self, pod: Pod, write: CreateClaim) -> Response:
        """Name the claim in the status of the pod."""
        for _ in range(TRIES):
            response = await report_extended_claim(self._client, pod, write.claim.metadata.name, write.mappings)
            if response.status != HTTPStatus.CONFLICT:
                return response
            shown = await get_pod(self._client, pod.metadata.namespace, pod.metadata.name)
            if shown is None or shown.uid != pod.uid:
                return conflict(f"pod {pod.key} was deleted")
            pod = shown
        return response

    async def release(self, pod: Pod, request: ReleaseClaim | FreeClaim, *, voids: bool) -> Response:
        """Take back what was written for the pod. A claim that is gone needs nothing.

        ``voids``: a write of the pod may have no answer yet; it must fail when it arrives.
        """
        async with self._alone(request.claim) as turn:
            turn.latest = None
            for _ in range(TRIES):
                response = await get_claim(self._client, request.claim.namespace, request.claim.name)
                if not response.succeeded:
                    return response
                claim = decode_claim(response.body)
                if not _is_meant(claim, request.claim, pod):
                    return response
                written = await self._take_back(claim, request, pod, voids=voids)
                response = written or response
                if response.succeeded and request.is_deleted:
                    response = await delete_claim(self._client, claim)
                if response.status != HTTPStatus.CONFLICT:
                    return response
            return response

    async def _take_back(
        self, claim: ResourceClaim, request: ReleaseClaim | FreeClaim, pod: Pod, *, voids: bool
    ) -> Response | None:
        """Write once; None if there is nothing to write."""
        users = [each.uid for each in claim.status.reserved_for or ()]
        others, is_ours = [uid for uid in users if uid != pod.uid], pod.uid in users
        is_allocated = claim.status.allocation is not None
        if is_allocated and not others and (is_ours or isinstance(request, FreeClaim)):
            return await clear(self._client, claim)
        if is_ours:
            return await unreserve(self._client, claim, pod.uid)
        return await fence_claim(self._client, claim.metadata.namespace, claim.metadata.name) if voids else None

    async def _reserve(self, pod: Pod, name: ClaimName, allocation: AllocationResult | None, turn: _Turn) -> Response:
        for _ in range(TRIES):
            claim = turn.latest
            if claim is None:
                response = await self._read(name, will_allocate=allocation is not None)
                if not response.succeeded:
                    return response
                claim = decode_claim(response.body)
            turn.latest = None
            problem = _problem(claim, name, allocation)
            if problem:
                return conflict(problem)
            if any(each.uid == pod.uid for each in claim.status.reserved_for or ()):
                return await get_claim(self._client, name.namespace, name.name)  # written, though its answer was lost
            if claim.status.allocation is None and allocation is not None:
                response = await allocate(self._client, claim, allocation, pod, datetime.now(UTC))
            else:
                response = await reserve(self._client, claim, pod)
            if response.succeeded:
                turn.latest = decode_claim(response.body)
            if response.status != HTTPStatus.CONFLICT:
                return response
        return response

    async def _read(self, name: ClaimName, *, will_allocate: bool) -> Response:
        """Read the claim; one that is to be allocated gets its finalizer, which costs no further request."""
        if will_allocate:
            response = await add_finalizer(self._client, name.namespace, name.name, name.uid)
            if response.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                return response
            # Another claim may have the name.
        return await get_claim(self._client, name.namespace, name.name)

    @asynccontextmanager
    async def _alone(self, name: ClaimName) -> AsyncIterator[_Turn]:
        key = (name.namespace, name.name)
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield turn
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]


def _problem(claim: ResourceClaim, name: ClaimName, allocation: AllocationResult | None) -> str:
    """Why the claim is not reserved as wanted, in kube-scheduler's words."""
    if claim.metadata.uid != name.uid or claim.metadata.deletion_timestamp is not None:
        return f"claim {claim.key} got deleted in the meantime"
    shown = claim.status.allocation
    if allocation is None:
        return "" if shown is not None else f"claim {claim.key} got deallocated elsewhere in the meantime"
    is_wanted = shown is None or _devices(shown) == _devices(allocation)
    return "" if is_wanted else f"claim {claim.key} got allocated elsewhere in the meantime"


def _devices(allocation: AllocationResult) -> list[tuple[str, str, str | None]]:
    return [(each.request, each.key, each.share_id) for each in allocation.devices.results or ()]


def _is_meant(claim: ResourceClaim, name: ClaimName, pod: Pod) -> bool:
    return claim.metadata.uid == name.uid if name.uid else _is_controlled_by(claim, pod)


def _is_controlled_by(claim: ResourceClaim, pod: Pod) -> bool:
    return any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references or ())
