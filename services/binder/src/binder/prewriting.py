"""What plugins want written before a Binding: the requests, in order, and what their answers come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from berth.api.meta import ObjectMeta
from berth.framework.writes import KeepVolume
from berth.framework.writes import Write as Request
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError
from berth.kube.response import Response
from berth.kube.volumes import keep_volume, select_node
from binder.answers import NO_ANSWER, Written
from binder.effects import Write
from binder.ledger import version_number
from binder.requests import failure_of

VOLUMES: Final = "pv"
CLAIMS: Final = "pvc"


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_decoder = msgspec.json.Decoder(_Object)


async def carry_out(client: KubeClient, write: Write, may_go_on: Callable[[], None]) -> Written:
    """Write one after another, up to the first failure. ``may_go_on`` raises when this binder leads no longer."""
    versions: dict[str, int] = {}
    try:
        for request in write.requests:
            may_go_on()
            response = await _send(client, request)
            if not response.succeeded:
                return _refused(response)
            kind = VOLUMES if isinstance(request, KeepVolume) else CLAIMS
            versions[kind] = max(versions.get(kind, 0), _version(response))
    except ApiUnreachableError as error:
        return Written(status=NO_ANSWER, message=str(error))
    return Written(status=response.status, versions=versions)


async def _send(client: KubeClient, request: Request) -> Response:
    return await (keep_volume(client, request) if isinstance(request, KeepVolume) else select_node(client, request))


def _version(response: Response) -> int:
    return version_number(_decoder.decode(response.body).metadata.resource_version)


def _refused(response: Response) -> Written:
    failure = failure_of(response)
    return Written(
        status=failure.status,
        message=failure.message,
        retry_after=failure.retry_after,
        missing_right=failure.missing_right,
    )
