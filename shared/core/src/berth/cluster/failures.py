"""Which workloads have failed on which nodes of late: the log from which the watcher writes facts.

A workload is what one controller has made, such as a ReplicaSet: a changed template is another one. Pods without a
controller are not watched, nor are those of a DaemonSet and static pods, which have one node only.

A fact is written when a failure is new, when its age reaches one of ``ends`` (the times in the plugins' arguments), and
every REFRESH_SECONDS, because a fact ends five minutes after it was written. A failure is dropped by the write after
the one that shows its last end: queueing hints see from the fact that it no longer keeps pods out.

Times are Unix seconds by the watcher's clock, and by the kubelets' for the failures.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from berth.api.pod import Pod, unix_seconds, workload_of
from berth.cluster.livedata import FACT_AGE_SECONDS
from berth.messages.livedata import FailuresOnNode, WorkloadFailure

REFRESH_SECONDS: Final = FACT_AGE_SECONDS * 0.4
# Between two facts of a node, so that hundreds of pods that fail there together cost a few writes.
INTERVAL_SECONDS: Final = 1.0
# Until a fact that NATS did not store is written again.
RETRY_SECONDS: Final = 5.0
# Workloads in a fact, whose pods and reasons have up to 400 characters: a fact has at most 64 KiB. The latest count.
MOST_ON_A_NODE: Final = 128
# Failures in all, 10 MB; those that are known longest are dropped.
MOST_FAILURES: Final = 16_384


@dataclass(slots=True)
class _OnNode:
    workloads: dict[str, WorkloadFailure] = field(default_factory=dict)
    written_at: float = -math.inf
    due: float = math.inf  # of the next write


class NodeFailureLog:
    """Writes are due only after :meth:`begin`: until then the former leader's facts are taken in."""

    def __init__(self, ends: Iterable[timedelta]) -> None:
        """``ends``: without any, nothing is kept."""
        self._ends = sorted({end.total_seconds() for end in ends})
        self._nodes: dict[str, _OnNode] = {}
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()  # of node and workload, the oldest first
        self._due: list[tuple[float, str]] = []  # heap; entries that differ from the node's `due` are stale
        self._has_begun = False

    @property
    def is_kept(self) -> bool:
        return bool(self._ends)

    def observe(self, pod: Pod, now: float) -> None:
        """Take in the pod's newest state."""
        failure, node = pod.status.failure, pod.spec.node_name
        if failure is None or not node or not self._ends or not (workload := workload_of(pod)):
            return
        at = min(unix_seconds(failure.at), now)
        self._add(node, workload, WorkloadFailure(pod=pod.key, reason=failure.reason, at=_time(at)), now)

    def adopt(self, node: str, fact: FailuresOnNode, now: float) -> None:
        """Take in a fact of the former leader, whose pods may be deleted; nothing once writes have begun."""
        if self._has_begun or not self._ends:
            return
        for workload, failure in fact.workloads.items():
            self._add(node, workload, failure, now)

    def begin(self) -> None:
        self._has_begun = True

    def _add(self, node: str, workload: str, failure: WorkloadFailure, now: float) -> None:
        at, there = failure.at.timestamp(), self._nodes.get(node)
        known = None if there is None else there.workloads.get(workload)
        if now - at >= self._ends[-1] or (known is not None and known.at >= failure.at):
            return
        if there is None:
            there = self._nodes[node] = _OnNode()
        there.workloads[workload] = failure
        self._known[node, workload] = None
        self._known.move_to_end((node, workload))
        if len(there.workloads) > MOST_ON_A_NODE:
            self._drop(node, min(there.workloads, key=lambda each: there.workloads[each].at))
        if len(self._known) > MOST_FAILURES:
            self._drop(*next(iter(self._known)))
        self._schedule(node, max(now, there.written_at + INTERVAL_SECONDS))

    def _drop(self, node: str, workload: str) -> None:
        del self._known[node, workload]
        del self._nodes[node].workloads[workload]

    def _schedule(self, node: str, due: float) -> None:
        there = self._nodes[node]
        if due < there.due:
            there.due = due
            heapq.heappush(self._due, (due, node))

    def next_due(self) -> float | None:
        """When the next fact is to be written."""
        while self._due and self._is_stale(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due and self._has_begun else None

    def _is_stale(self, due: float, node: str) -> bool:
        there = self._nodes.get(node)
        return there is None or there.due != due

    def take_due(self, now: float) -> list[tuple[str, FailuresOnNode | None]]:
        """The facts to write now by node; ``None`` to remove one."""
        facts = []
        while (due := self.next_due()) is not None and due <= now:
            _, node = heapq.heappop(self._due)
            facts.append((node, self._fact(node, now)))
        return facts

    def _fact(self, node: str, now: float) -> FailuresOnNode | None:
        there = self._nodes[node]
        there.due = math.inf
        for workload, failure in list(there.workloads.items()):
            if failure.at.timestamp() + self._ends[-1] <= there.written_at:
                self._drop(node, workload)
        if not there.workloads:
            del self._nodes[node]
            return None
        there.written_at = now
        ends = [each.at.timestamp() + end for each in there.workloads.values() for end in self._ends]
        self._schedule(node, min([now + REFRESH_SECONDS, *(end for end in ends if end > now)]))
        return FailuresOnNode(written_at=_time(now), workloads=dict(there.workloads))

    def on_not_written(self, node: str, now: float) -> None:
        """Write the node's fact again."""
        if node in self._nodes:
            self._schedule(node, now + RETRY_SECONDS)


def _time(seconds: float) -> datetime:
    """To the millisecond, upward: an end that has passed has passed by the fact too."""
    return datetime.fromtimestamp(math.ceil(seconds * 1000) / 1000, tz=UTC)
