"""Reads a running cluster's objects, in the form in which ``kubectl get -o json`` prints them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from berth.api.kinds import PRIORITY_CLASS, RESOURCE_CLAIM_TEMPLATE, WATCHED_KINDS
from berth.kube.client import KubeClient
from berth.kube.credentials import KubeCredentials
from berth.kube.errors import refusal
from berth.kube.gojson import decoded
from berth.kube.kubeconfig import Kubeconfig, source_for

# By the path that lists them in all namespaces: apiVersion and kind. Limit ranges and quotas only cause a note.
LISTED: Final = {
    **{
        each.path: (each.api_version, each.kind)
        for kind in (*WATCHED_KINDS, PRIORITY_CLASS, RESOURCE_CLAIM_TEMPLATE)
        for each in kind.versions
    },
    "/api/v1/limitranges": ("v1", "LimitRange"),
    "/api/v1/resourcequotas": ("v1", "ResourceQuota"),
}
_PAGE: Final = 500  # objects, as kubectl asks for
_PAGE_BYTES: Final = 1 << 29  # an object has at most 1.5 MB


class RunningCluster(NamedTuple):
    """All objects of a running cluster that a ranking reads."""

    objects: bytes  # a List
    summary: str  # how many objects, of which cluster


class _ListMetadata(msgspec.Struct, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")


class _ListPage(msgspec.Struct):
    items: list[dict[str, Any]] | None = None
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)


_page_decoder: Final = msgspec.json.Decoder(_ListPage)


async def read_cluster(kubeconfig: Path | None, context: str | None) -> RunningCluster:
    """List all objects that a ranking reads.

    Raises:
        KubeconfigError: unusable, or without this context.
        ApiUnreachableError: no answer.
        ApiRefusedError: a kind may not be listed.
    """
    source = Kubeconfig(kubeconfig, context=context) if context else source_for(kubeconfig)
    credentials = await KubeCredentials.from_source(source)
    async with KubeClient(credentials, user_agent="berth-export") as client:
        items = [each for path in LISTED async for each in _objects(client, path)]
    return RunningCluster(
        objects=msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}),
        summary=f"{len(items)} objects of the cluster at {credentials.server}",
    )


async def _objects(client: KubeClient, path: str) -> AsyncIterator[dict[str, Any]]:
    api_version, kind = LISTED[path]
    params = {"limit": str(_PAGE)}
    while True:
        answer = await client.request("GET", path, params=params, largest=_PAGE_BYTES)
        if answer.status == HTTPStatus.NOT_FOUND:  # an older API server does not serve the kind
            return
        if answer.status != HTTPStatus.OK:
            raise refusal(f"listing {kind!r}", answer)
        page = decoded(_page_decoder.decode, answer.body)
        for each in page.items or ():
            each.get("metadata", {}).pop("managedFields", None)  # half of an object, and kubectl hides them
            yield {"apiVersion": api_version, "kind": kind, **each}
        if not page.metadata.continue_:
            return
        params["continue"] = page.metadata.continue_
