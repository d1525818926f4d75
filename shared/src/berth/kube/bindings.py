"""Binding a pod to a node, with the pod's uid and resourceVersion as preconditions (PROTOCOL 5)."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from berth.kube.client import DEFAULT_TIMEOUT, KubeClient
from berth.kube.response import Response


class _Preconditions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str


class _Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    kind: str = "Node"
    api_version: str = "v1"


class _Binding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    metadata: _Preconditions
    target: _Target
    kind: str = "Binding"
    api_version: str = "v1"


_encoder = msgspec.json.Encoder()


def binding_body(*, namespace: str, name: str, uid: str, resource_version: str, node: str) -> bytes:
    """The Binding as it goes on the wire. The API server answers 409 when uid or resourceVersion are not the pod's."""
    metadata = _Preconditions(name=name, namespace=namespace, uid=uid, resource_version=resource_version)
    return _encoder.encode(_Binding(metadata=metadata, target=_Target(name=node)))


async def bind(  # noqa: PLR0913 - each says which pod, as which state of it, or where to
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    resource_version: str,
    node: str,
    timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - handed on to the client
) -> Response:
    """Bind the pod, if it is still the one of this uid and resourceVersion. 201 is success.

    A node that does not exist is accepted as well: whether it does is for the caller to know.

    Raises:
        ApiUnreachableError: no answer; with ``maybe_sent`` the pod may be bound, now or later.
    """
    body = binding_body(namespace=namespace, name=name, uid=uid, resource_version=resource_version, node=node)
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    return await client.request("POST", path, body=body, timeout=timeout)
