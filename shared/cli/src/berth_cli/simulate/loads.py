"""The load of nodes for ``berth simulate --load``: NodeMetrics of ``metrics.k8s.io``, or berth's own samples.

NodeMetrics have one value of each resource, which counts for every statistic, with a deviation of 0. A sample is what
the bucket ``bandwidth`` holds of a node, with ``kind: NodeSample`` and the node's name in ``metadata``. The time of the
simulation is that of the newest sample, so that ages are as they were when the files were written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, get_args

import msgspec

from berth.api.config.decode import Problems, read_struct
from berth.api.config.nodeload.queries import MEASURED, MeasuredResource, Statistic
from berth.api.pod import Pod
from berth.api.resources import QuantityError, of_resource
from berth.cluster.snapshot import Snapshot
from berth.decoding import decode_json, decoding
from berth.errors import DecodeError
from berth.framework.profile import Profile
from berth.messages.attempts import Time
from berth.messages.encoding import SCHEMA
from berth.messages.livedata import (
    BANDWIDTH,
    MAX_USAGE,
    LiveSource,
    MeasuredUsage,
    NodeSample,
    check_time,
    decode_sample,
    encode_sample,
    impossible_amounts,
)
from berth.plugins.nodeload.scoring import LoadScore
from berth_cli.simulate.documents import Document

METRICS: Final = "NodeMetrics"
SAMPLE: Final = "NodeSample"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    api_version: str = msgspec.field(name="apiVersion", default="")
    kind: str = ""
    metadata: object = None


class _NodeMetrics(_File, frozen=True, kw_only=True):
    timestamp: object = None
    window: object = None
    usage: dict[str, object] = {}


class _NodeSample(_File, frozen=True, kw_only=True):
    schema: int = SCHEMA
    receive: float | None = None
    transmit: float | None = None
    capacity: float | None = None
    cpu: MeasuredUsage | None = None
    memory: MeasuredUsage | None = None
    sampled_at: object = None
    by: str = ""


_STATISTICS: Final = get_args(Statistic)
_objects: Final = msgspec.json.Decoder(dict[str, Any])


def loads_of(documents: Iterable[Document], problems: list[str]) -> dict[str, NodeSample]:
    """By node, the newest sample of the files; errors are added to ``problems``."""
    loads: dict[str, NodeSample] = {}
    for document in documents:
        found, node = Problems(), ""
        try:
            value = decode_json(_objects, document.raw, "an object")
            node = _node(value)
            sample = _load(document.kind, value, found)
        except DecodeError as exc:
            found.append(str(exc))
        where = f"{document.where}: node {node}" if node else document.where
        problems.extend(f"{where}: {problem}" for problem in found)
        if not found and (node not in loads or loads[node].sampled_at <= sample.sampled_at):
            loads[node] = sample
    return loads


def _node(value: Mapping[str, Any]) -> str:
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not name or not isinstance(name, str):
        raise DecodeError(f"metadata.name: want the node's name, got {name!r:.80}")
    return name


def _load(kind: str, value: Mapping[str, Any], problems: Problems) -> NodeSample:
    """The sample of an object; it counts only without ``problems``.

    Raises:
        DecodeError: there is nothing that could be checked further.
    """
    if kind not in _READERS:
        raise DecodeError(f"kind: want {METRICS} or {SAMPLE}, got {kind!r}")
    with decoding(f"a {kind}"):  # numbers beyond a float
        sample = _READERS[kind](value, problems)
    return sample if problems else decode_sample(encode_sample(sample))


def _of_metrics(value: Mapping[str, Any], problems: Problems) -> NodeSample:
    read = read_struct(value, _NodeMetrics, "", problems) or _NodeMetrics()
    cpu, memory = (_usage(resource, read.usage.get(resource), problems) for resource in MEASURED)
    if not problems and cpu is None and memory is None:
        problems.append(f"usage: want cpu or memory, got {', '.join(read.usage) or 'none'}")
    return NodeSample(cpu=cpu, memory=memory, sampled_at=_time("timestamp", read.timestamp, problems))


def _of_sample(value: Mapping[str, Any], problems: Problems) -> NodeSample:
    read = read_struct(value, _NodeSample, "", problems) or _NodeSample()
    fields = {name: getattr(read, name) for name in NodeSample.__struct_fields__ if name != "sampled_at"}
    sample = NodeSample(**fields, sampled_at=_time("sampled_at", read.sampled_at, problems))
    problems.extend(impossible_amounts(sample))
    if not problems and not sample.has_traffic and not any(map(_has_statistic, (sample.cpu, sample.memory))):
        problems.append(f"want cpu or memory with one of {', '.join(_STATISTICS)}, got none")
    return sample


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Problems], NodeSample]]] = {
    METRICS: _of_metrics,
    SAMPLE: _of_sample,
}


def _has_statistic(usage: MeasuredUsage | None) -> bool:
    return any(getattr(usage, statistic, None) is not None for statistic in _STATISTICS)


def _time(path: str, value: object, problems: Problems) -> datetime:
    try:
        at = msgspec.convert(value, Time)
        check_time(at, path)
    except msgspec.ValidationError:
        problems.add(path, "a time with its zone such as 2026-11-26T10:00:00Z", value)
    except DecodeError as exc:
        problems.append(str(exc))
    else:
        return at
    return datetime.fromtimestamp(0, UTC)  # so that the rest is still checked


def _usage(resource: MeasuredResource, quantity: object, problems: Problems) -> MeasuredUsage | None:
    if quantity is None:
        return None
    try:
        used = float(of_resource(resource, str(quantity)))
    except QuantityError as exc:
        problems.append(f"usage.{resource}: {exc}")
        return None
    if not 0 <= used <= MAX_USAGE:
        problems.append(f"usage.{resource}: want 0 to a petabyte, got {quantity}")
    return MeasuredUsage(average=used, deviation=0.0, p50=used, p90=used, p95=used, p99=used)


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


def abstentions(snapshot: Snapshot, pods: Iterable[Pod], profiles: Mapping[str, Profile]) -> Iterator[str]:
    """A note for each plugin that does not score a resource because too few nodes have a recent sample."""
    found: dict[str, None] = {}
    for pod in pods if snapshot.node_count else ():
        for plugin in profiles[pod.spec.scheduler_name].explaining:
            if isinstance(plugin, LoadScore) and (left_out := plugin.left_out(pod, snapshot)):
                found[f"--load: {plugin.name}: {left_out}"] = None
    yield from found
