"""A consistent LIST, read in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

from berth.kube.client import KubeClient
from berth.kube.decoding import ObjectDecoder, Page
from berth.kube.kinds import Kind
from berth.kube.port import T, Undecodable
from berth.kube.refusal import refusal
from berth.kube.response import Response

PAGE_SIZE = 500
"""Objects a page: 2 MB of full pods, 10 ms of decoding, in which the event loop stands still."""
PAGE_TIMEOUT = timedelta(seconds=30)
"""How long a page may take; a LIST of everything on a busy API server takes seconds."""


class _ExpiredError(Exception):
    """The snapshot of which pages were read is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a kind: by the API server's field and label selectors, all when both are ``None``."""

    field_selector: str | None = None
    label_selector: str | None = None

    def params(self) -> dict[str, str]:
        """As parameters of a request."""
        chosen = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return {key: value for key, value in chosen.items() if value}

    @property
    def may_be_paged(self) -> bool:
        """Whether the API server keeps its promise to go on after a page.

        With a field selector on metadata.namespace the second page of kube-apiserver 1.36 is empty and says that it is
        the last one: everything but the first page would be lost without a word.
        """
        return "metadata.namespace" not in (self.field_selector or "")


async def list_objects(
    client: KubeClient, kind: Kind[T], *, selection: Selection | None = None, page_size: int = PAGE_SIZE
) -> Page[T]:
    """Everything of a kind as it stood at one resourceVersion, as a single page.

    A list whose snapshot expires between two pages (410) is read again in one piece, which cannot expire.

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: an answer other than 200.
        DecodeError: an answer that is no list.
    """
    selection = selection or Selection()
    params = selection.params()
    decoder = ObjectDecoder(kind)
    if not selection.may_be_paged:
        return await _in_pages(client, kind, decoder, params)
    try:
        return await _in_pages(client, kind, decoder, {**params, "limit": str(page_size)})
    except _ExpiredError:
        return await _in_pages(client, kind, decoder, params)


async def _in_pages(client: KubeClient, kind: Kind[T], decoder: ObjectDecoder[T], params: Mapping[str, str]) -> Page[T]:
    objects: list[T] = []
    undecodable: list[Undecodable] = []
    token = ""
    while True:
        page = await _page(client, kind, decoder, {**params, "continue": token} if token else params)
        objects += page.objects
        undecodable += page.undecodable
        token = page.continue_token
        if not token:
            version = page.resource_version
            return Page(objects=objects, undecodable=undecodable, resource_version=version, continue_token="")


async def _page(client: KubeClient, kind: Kind[T], decoder: ObjectDecoder[T], params: Mapping[str, str]) -> Page[T]:
    response = await client.request("GET", kind.path, params=params, timeout=PAGE_TIMEOUT)
    if response.status == HTTPStatus.GONE and "continue" in params:
        raise _ExpiredError
    return decoder.page(_wanted(kind, response).body)


def _wanted(kind: Kind[T], response: Response) -> Response:
    if response.status != HTTPStatus.OK:
        raise refusal(f"listing {kind.name!r}", response)
    return response
