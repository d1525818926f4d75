"""Informers of a leading service."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.kinds import NODE, POD, WATCHED_KINDS, Kind
from berth.kube.client import KubeClient
from berth.kube.informers import EventListener, Informers
from berth.lifecycle.process import Process


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
