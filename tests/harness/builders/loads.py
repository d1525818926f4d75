"""Nodes with measured CPU and memory, for the plugins that read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from berth.api.config.nodeload.queries import LoadReading
from berth.api.pod import Container, Pod, ResourceRequirements
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import VectorScorePlugin
from berth.framework.status import CycleState
from berth.messages.livedata import MeasuredUsage, NodeSample
from harness.builders.objects import a_node, a_pod

NOW = 1_700_000_000.0
"""Unix seconds."""
GIB = 2.0**30


def percents(cpu: float | None = None, memory: float | None = None, *, ago: float = 0.0, **more: float) -> NodeSample:
    """A sample of a node with 10 cores and 10 GiB, in percent of them; ``more``: other statistics of CPU."""
    return NodeSample(
        cpu=None if cpu is None and not more else MeasuredUsage(average=_of(cpu, 100.0), allocatable=10_000.0, **more),
        memory=None if memory is None else MeasuredUsage(average=_of(memory, GIB / 10), allocatable=10 * GIB),
        sampled_at=datetime.fromtimestamp(NOW - ago, tz=UTC),
    )


def _of(percent: float | None, unit: float) -> float | None:
    return None if percent is None else percent * unit


def measured(samples: Mapping[str, NodeSample | None], *readings: LoadReading) -> Snapshot:
    """Nodes with 10 cores and 10 GiB, and these samples of every reading."""
    snapshot = Snapshot()
    snapshot.live.observe_time(NOW)
    for name, sample in samples.items():
        snapshot.set_node(a_node(name, cpu="10", memory="10Gi"))
        for reading in readings:
            snapshot.live.set_sample(reading.query.token, name, sample)
    return snapshot


def using(name: str = "web", *, limits: Mapping[str, str] | None = None, **requests: str) -> Pod:
    """A pod whose only container has these requests and limits."""
    resources = ResourceRequirements(requests=dict(requests), limits=None if limits is None else dict(limits))
    return a_pod(name, containers=[Container(name="main", resources=resources)])


def labelled(pod: Pod, **labels: str) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))


def points(plugin: VectorScorePlugin, snapshot: Snapshot, pod: Pod) -> dict[str, int]:
    """The score of every node."""
    nodes = Nodes(snapshot)
    scores = plugin.score_all(CycleState(snapshot.class_of(pod)), pod, nodes)
    return dict(zip(nodes.names, scores.tolist(), strict=True))
