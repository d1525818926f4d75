"""One cluster, one bus (PROTOCOL 2): whether a service may work with this NATS on this cluster.

The bus says whose cluster it serves (``control`` ``cluster.id``, the uid of the namespace kube-system); a Lease says on
which bus its holder meets the others. Two pipelines on one cluster would give the same room away twice, two clusters on
one bus would place pods on nodes that are not theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from berth.api.errors import DecodeError
from berth.kube.client import KubeClient
from berth.kube.lease_watch import OtherBus
from berth.kube.refusal import refusal as api_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A bus and a cluster, as a service finds them."""

    bus_id: str
    cluster_id: str
    """The uid of the namespace kube-system at the API server."""
    served_cluster_id: str
    """Whose cluster the bus says that it serves; empty when nobody has said so yet."""
    other_bus: OtherBus | None
    """A live Lease of berth's in this cluster whose holder is on another bus."""


def refusal(pair: Pair) -> str | None:
    """Why nobody must work with this pair, in a sentence with what to do; ``None`` when it is all right."""
    if pair.served_cluster_id and pair.served_cluster_id != pair.cluster_id:
        return (
            f"refusing this NATS: it serves the cluster {pair.served_cluster_id!r}, and the API server's is "
            f"{pair.cluster_id!r} (uid of namespace kube-system): name the right one with --nats or --kubeconfig"
        )
    if pair.other_bus is not None:
        return (
            f"refusing this NATS (bus.id {pair.bus_id!r}): {pair.other_bus}: "
            "two pipelines in one cluster: stop the other one, or join it with --nats"
        )
    return None


class _Metadata(msgspec.Struct, frozen=True):
    uid: str


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _Metadata


async def read_cluster_id(client: KubeClient) -> str:
    """The uid of the namespace kube-system: it lives as long as the cluster.

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: the API server does not allow it.
        DecodeError: what came is no namespace.
    """
    doing = "reading namespace 'kube-system'"
    response = await client.request("GET", "/api/v1/namespaces/kube-system")
    if not response.succeeded:
        raise api_refusal(doing, response)
    try:
        return msgspec.json.decode(response.body, type=_Namespace).metadata.uid
    except msgspec.MsgspecError as exc:
        raise DecodeError(f"{doing}: {exc}") from exc
