"""Devices and claims for drains: GPUs on each node, a claim of one GPU for each pod, and the claim controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec

from bench.devices import CLASS, device_class, resource_slice
from harness.worlds.cluster_user import AT_ONCE, ClusterUser

T = TypeVar("T")

PER_NODE = 8
RESOURCES = "/apis/resource.k8s.io/v1"
TEMPLATE = "gpu"
_POD_CLAIM = "gpu"
_REQUEST = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
_SPEC = {"devices": {"requests": [_REQUEST]}}


async def add_devices(cluster: ClusterUser) -> None:
    """The class, with a selector by driver, and a slice of each node."""
    await _made(cluster, f"{RESOURCES}/deviceclasses", msgspec.to_builtins(device_class()))
    slices = (resource_slice(node, number, PER_NODE) for number, node in enumerate(sorted(cluster.nodes)))
    await for_each(slices, lambda each: _made(cluster, f"{RESOURCES}/resourceslices", msgspec.to_builtins(each)))


def spec_with_claim(pod: str) -> dict[str, Any]:
    return {"resourceClaims": [{"name": _POD_CLAIM, "resourceClaimName": pod}]}


def spec_with_template() -> dict[str, Any]:
    return {"resourceClaims": [{"name": _POD_CLAIM, "resourceClaimTemplateName": TEMPLATE}]}


async def add_claims(seen: ClusterUser, pods: Iterable[str]) -> None:
    """A claim of each pod, by its name."""
    await for_each(pods, lambda name: _made(seen, _claims(seen), {"metadata": {"name": name}, "spec": _SPEC}))


async def control_claims(seen: ClusterUser, pods: Iterable[str]) -> None:
    """As kube-controller-manager: make the claim of each pod's template, then name it in the pod's status."""

    async def control(pod: str) -> None:
        uid = (await seen.api.get(f"{seen.api.pods}/{pod}")).body["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}
        name = f"{pod}-{_POD_CLAIM}"
        await _made(seen, _claims(seen), {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": _SPEC})
        status = {"resourceClaimStatuses": [{"name": _POD_CLAIM, "resourceClaimName": name}]}
        answer = await seen.api.patch(f"{seen.api.pods}/{pod}/status", {"status": status})
        assert answer.code == 200, answer.body

    await for_each(pods, control)


async def remove_claims(seen: ClusterUser) -> None:
    """Free the devices for the next scheduler."""
    names = (await seen.api.get(_claims(seen))).names

    async def release(name: str) -> None:
        answer = await seen.api.patch(f"{_claims(seen)}/{name}", {"metadata": {"finalizers": None}})
        assert answer.code == 200, answer.body

    await for_each(names, release)
    answer = await seen.api.delete(_claims(seen))
    assert answer.code == 200, answer.body


def _claims(seen: ClusterUser) -> str:
    return f"{RESOURCES}/namespaces/{seen.namespace}/resourceclaims"


async def _made(seen: ClusterUser, path: str, body: dict[str, Any]) -> None:
    answer = await seen.api.post(path, body)
    assert answer.code == 201, answer.body


async def for_each(items: Iterable[T], act: Callable[[T], Awaitable[None]]) -> None:
    """Some at a time."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await act(item)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
