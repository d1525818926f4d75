"""Client of the API server and informers, by the settings of a leading service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.kinds import NODE, POD, WATCHED_KINDS, Kind
from berth.kube.client import KubeClient
from berth.kube.informers import EventListener, Informers
from berth.lifecycle.process import Process
from berth.observability.logging import log_request
from berth.observability.metrics import Meter, count_request
from berth.settings.settings import V_MESSAGE, Settings


@asynccontextmanager
async def kube_client(settings: Settings, *, name: str, meter: Meter) -> AsyncIterator[KubeClient]:
    """Client of the API server, closed at the end. Requests are counted in client-go's metrics, and logged at V(6).

    Raises:
        KubeconfigError: unusable configuration; the text contains the remedy.
    """
    kube, count = settings.kube, partial(count_request, meter)

    def count_and_log(method: str, path: str, host: str, status: int, seconds: float) -> None:
        count(method, path, host, status, seconds)
        log_request(method, path, status, seconds)

    listener = count_and_log if settings.log.verbosity >= V_MESSAGE else count
    async with await KubeClient.connect(
        kube.kubeconfig, user_agent=f"berth-{name}", qps=kube.qps, burst=kube.burst, listener=listener
    ) as client:
        yield client


def cluster_informers(
    client: KubeClient,
    listener: EventListener,
    process: Process,
    extenders: Sequence[ExtenderConfiguration] = (),
    *,
    whole: Collection[Kind[Any]] = (POD, NODE),
) -> Informers:
    """Informers of the kinds that scheduling reads, shown in /readyz and the metrics. The caller runs them.

    Objects of the kinds ``whole`` that ``extenders`` receive are kept whole: pending pods, and nodes for extenders
    without a node cache.
    """
    metrics, unread = process.metrics, dict[str, str]()
    condition = process.health.condition("devices")
    condition.ready()
    for kind in WATCHED_KINDS:
        metrics.count("berth_relists_total", 0, kind=kind.name)
        if kind.is_optional:
            metrics.set("berth_unread_kinds", 0, kind=kind.name)

    def note_unread(kind: str, reason: str) -> None:
        # It is ready all the same, because only pods that need the kind wait.
        unread[kind] = reason
        metrics.set("berth_unread_kinds", bool(reason), kind=kind)
        condition.ready("; ".join(filter(None, unread.values())) or "ok")

    return Informers(
        client,
        [as_extenders_read(kind, extenders) if kind in whole else kind for kind in WATCHED_KINDS],
        listener,
        on_complete=process.health.condition("cluster", "listing the cluster").ready,
        on_relist=lambda kind: metrics.count("berth_relists_total", kind=kind),
        on_unread=note_unread,
    )


def as_extenders_read(kind: Kind[Any], extenders: Sequence[ExtenderConfiguration]) -> Kind[Any]:
    """The kind, with whole objects if an extender receives them: pending pods, and nodes."""
    if kind is POD and any(extender.is_asked for extender in extenders):
        return replace(kind, keeps_whole=lambda pod: not pod.spec.node_name)
    if kind is NODE and any(extender.reads_nodes for extender in extenders):
        return replace(kind, keeps_whole=lambda _node: True)
    return kind
