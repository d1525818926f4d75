"""The load of nodes for ``berth simulate --load``: NodeMetrics of ``metrics.k8s.io``, or berth's own samples.

NodeMetrics have one value of each resource, which counts for every statistic, with a deviation of 0. A sample is what
the bucket ``bandwidth`` holds of a node, with ``kind: NodeSample`` and the node's name in ``metadata``. The time of the
simulation is that of the newest sample, so that ages are as they were when the files were written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from berth.api.config.nodeload.queries import MeasuredResource
from berth.api.meta import ObjectMeta
from berth.api.resources import QuantityError, of_resource
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.messages.attempts import Time
from berth.messages.livedata import BANDWIDTH, LiveSource, MeasuredUsage, NodeSample, decode_sample, encode_sample
from berth_cli.simulate.documents import Document, decode

METRICS: Final = "NodeMetrics"
SAMPLE: Final = "NodeSample"


class _NodeMetrics(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    timestamp: Time
    usage: dict[str, str | int | float]


class _NamedSample(NodeSample, frozen=True, kw_only=True):
    metadata: ObjectMeta


_metrics: Final = msgspec.json.Decoder(_NodeMetrics)
_samples: Final = msgspec.json.Decoder(_NamedSample)


def loads_of(documents: Iterable[Document], problems: list[str]) -> dict[str, NodeSample]:
    """By node, the newest sample of the files; errors are added to ``problems``."""
    loads: dict[str, NodeSample] = {}
    for document in documents:
        try:
            node, sample = _load(document)
        except DecodeError as exc:
            problems.append(f"{document.where}: {exc}")
            continue
        before = loads.get(node)
        if before is None or before.sampled_at <= sample.sampled_at:
            loads[node] = sample
    return loads


def _load(document: Document) -> tuple[str, NodeSample]:
    if document.kind == METRICS:
        metrics = decode(_metrics, document.raw)
        cpu, memory = _usage(metrics, "cpu"), _usage(metrics, "memory")
        return _checked(metrics.metadata, NodeSample(cpu=cpu, memory=memory, sampled_at=metrics.timestamp))
    if document.kind == SAMPLE:
        named = decode(_samples, document.raw)
        fields = {name: getattr(named, name) for name in NodeSample.__struct_fields__}
        return _checked(named.metadata, NodeSample(**fields))
    raise DecodeError(f"kind: want {METRICS} or {SAMPLE}, got {document.kind!r}")


def _usage(metrics: _NodeMetrics, resource: MeasuredResource) -> MeasuredUsage | None:
    if resource not in metrics.usage:
        return None
    try:
        used = float(of_resource(resource, metrics.usage[resource]))
    except QuantityError as exc:
        raise DecodeError(f"usage.{resource}: {exc}") from exc
    return MeasuredUsage(average=used, deviation=0.0, p50=used, p90=used, p95=used, p99=used)


def _checked(metadata: ObjectMeta, sample: NodeSample) -> tuple[str, NodeSample]:
    if not metadata.name:
        raise DecodeError("metadata.name: want the node's name, got none")
    return metadata.name, decode_sample(encode_sample(sample))


def give_loads(snapshot: Snapshot, loads: Mapping[str, NodeSample], sources: Collection[LiveSource]) -> Iterator[str]:
    """Put the samples where the profiles' plugins read theirs. Yields notes."""
    queries = [source.name for source in sources if source.bucket == BANDWIDTH]
    if not queries:
        yield "--load: no profile has a plugin that reads samples"
        return
    snapshot.live.observe_time(max((each.sampled_at.timestamp() for each in loads.values()), default=0.0))
    for node, sample in loads.items():
        for query in queries:
            snapshot.live.set_sample(query, node, sample)
    nodes = set(snapshot.node_names())
    if missing := len(nodes - loads.keys()):
        yield f"--load: {missing} of {len(nodes)} nodes have no sample"
    if others := len(loads.keys() - nodes):
        yield f"--load: {others} of {len(loads)} samples are of nodes that the cluster does not have"
