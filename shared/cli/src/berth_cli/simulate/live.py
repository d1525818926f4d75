"""Reads a running cluster's objects, in the form in which ``kubectl get -o json`` prints them."""

from __future__ import annotations

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

# By the path that lists them in all namespaces: apiVersion and kind, of a kind the newest version first. Limit ranges
# and quotas only cause a note.
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
        items = await _items(client)
    return RunningCluster(
        objects=msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}),
        summary=f"{len(items)} objects of the cluster at {credentials.server}",
    )


async def _items(client: KubeClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    served: set[tuple[str, str]] = set()
    for path, (api_version, kind) in LISTED.items():
        of_kind = api_version.rpartition("/")[0], kind
        if of_kind in served:  # an older version has the same objects in another form
            continue
        found = await _objects(client, path)
        if found is not None:
            served.add(of_kind)
            items += found
    return items


async def _objects(client: KubeClient, path: str) -> list[dict[str, Any]] | None:
    """The objects at the path; None where the API server does not serve it."""
    api_version, kind = LISTED[path]
    params = {"limit": str(_PAGE)}
    found: list[dict[str, Any]] = []
    while True:
        answer = await client.request("GET", path, params=params, largest=_PAGE_BYTES)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise refusal(f"listing {kind!r}", answer)
        page = decoded(_page_decoder.decode, answer.body)
        for each in page.items or ():
            each.get("metadata", {}).pop("managedFields", None)  # half of an object, and kubectl hides them
            found.append({"apiVersion": api_version, "kind": kind, **each})
        if not page.metadata.continue_:
            return found
        params["continue"] = page.metadata.continue_
