"""NodeFailures: keeps a workload's pods away from nodes that refused or failed one of them of late.

Score: 0 on a node where a pod of the same controller has failed within ``remember``, 100 on all others. Filter, if
``backOff`` is set: refuses the node for that time after the failure. The watcher writes failures as facts
(``berth.cluster.failures``). Their age is as of the fact, so scorer, binder and replay agree on it. Asked for in
kubernetes/kubernetes 67874, 70201 and 106419.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

import msgspec
import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod, workload_of
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.framework.events import Action, ClusterEvent, EventHint, LiveDataUpdate, Resource
from berth.framework.interface import (
    MAX_SCORE,
    EnqueueExtensions,
    ExplainingPlugin,
    RemedyPlugin,
    RemedySentence,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.messages.livedata import POD_FAILURES, WorkloadFailure, decode_failures
from berth.plugins.factory import Args, PluginFactory, with_args

NAME: Final = "NodeFailures"
FAILED_LATELY: Final = Status.unresolvable("node(s) failed a pod of this workload lately")
_REMEMBER: Final = timedelta(minutes=5)
_SHORTEST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(hours=1)


class NodeFailuresArgs(Args, frozen=True, kw_only=True):
    """How long a failure counts."""

    remember: timedelta | None = None
    """Time after a failure for which the node gets 0 points, 1s..1h. Default: 5m."""
    back_off: timedelta | None = None
    """Time after a failure for which the node is filtered out, 1s up to ``remember``; unset: no filter."""


class NodeFailures(VectorScorePlugin, ExplainingPlugin):
    """Prefers nodes on which no pod of the same workload has failed of late, by facts that the watcher writes."""

    name: ClassVar[str] = NAME
    live_sources = frozenset({POD_FAILURES})
    depends_on_pods = False

    def __init__(self, args: NodeFailuresArgs) -> None:
        self._remember = args.remember or _REMEMBER
        self.ends = frozenset({self._remember})  # ages of a failure at which an answer changes

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return 0 if _lately(pod, node, self._remember) else MAX_SCORE

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        return np.where(_failing(pod, nodes, self._remember), 0, MAX_SCORE)

    def explain(self, state: CycleState, pod: Pod, node: NodeInfo) -> str:
        failure = _lately(pod, node, self._remember)
        if failure is None:
            return ""
        return f"{_sentence(failure, node.snapshot)}: score 0 of {MAX_SCORE} for this workload"


class FilteringNodeFailures(NodeFailures, VectorFilterPlugin, RemedyPlugin, EnqueueExtensions):
    """NodeFailures that also refuses a node for some time after a failure."""

    def __init__(self, args: NodeFailuresArgs) -> None:
        super().__init__(args)
        self._back_off = args.back_off or self._remember
        self.ends |= {self._back_off}

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return FAILED_LATELY if _lately(pod, node, self._back_off) else SUCCESS

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        return Verdicts.refusing(_failing(pod, nodes, self._back_off), FAILED_LATELY)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        infos = [info for info in nodes.infos() if info is not None]
        found = [each for info in infos if (each := _lately(pod, info, self._back_off)) is not None]
        newest = _sentence(min(found, key=lambda each: each.age), nodes.snapshot)
        after = f"have failed a pod of this workload in the last {self._back_off.total_seconds():g} s: {newest}"
        return [RemedySentence(about="lately", after=after)]

    def events(self) -> Sequence[EventHint]:
        """The fact that shows the back-off's end, or its removal; a new node."""
        return (
            EventHint(ClusterEvent(Resource.FACTS, Action.UPDATE), self._is_over, key=workload_of),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD)),
        )

    def _is_over(self, pod: Pod, _: object, news: object) -> bool:
        if not isinstance(news, LiveDataUpdate) or news.source != POD_FAILURES:
            return False
        if news.data is None:
            return True
        fact = decode_failures(news.data)
        failure = fact.workloads.get(workload_of(pod))
        return failure is not None and fact.written_at - failure.at >= self._back_off


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a workload on a node; ``age`` is as of the fact."""

    last: WorkloadFailure
    age: timedelta


class FailuresByWorkload:
    """The facts of a Snapshot by workload; only those that have changed are decoded again."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._live = snapshot.live
        self._seen = -1
        self._facts: dict[str, msgspec.Raw] = {}  # by node
        self._workloads: dict[str, tuple[str, ...]] = {}  # by node
        self._failures: dict[str, dict[str, Failure]] = {}  # by workload, then by node

    def refresh(self) -> None:
        if self._seen == self._live.facts_version:
            return
        self._seen, before = self._live.facts_version, self._facts
        self._facts = dict(self._live.facts(POD_FAILURES.name))
        for node in before.keys() | self._facts.keys():
            if self._facts.get(node) is not before.get(node):
                self._remove(node)
                self._add(node)

    def _remove(self, node: str) -> None:
        for workload in self._workloads.pop(node, ()):
            of_workload = self._failures[workload]
            del of_workload[node]
            if not of_workload:
                del self._failures[workload]

    def _add(self, node: str) -> None:
        if (data := self._facts.get(node)) is None:
            return
        try:
            fact = decode_failures(data)
        except DecodeError:
            return  # not the watcher's: users who write facts may write any
        self._workloads[node] = tuple(fact.workloads)
        for workload, last in fact.workloads.items():
            self._failures.setdefault(workload, {})[node] = Failure(last, fact.written_at - last.at)

    def of(self, pod: Pod) -> Mapping[str, Failure]:
        """The failures of the pod's workload, by node."""
        return self._failures.get(workload_of(pod), {})


def _failures_of(pod: Pod, snapshot: Snapshot) -> Mapping[str, Failure]:
    known = snapshot.derived(FailuresByWorkload, lambda: FailuresByWorkload(snapshot))
    known.refresh()
    return known.of(pod)


def _lately(pod: Pod, node: NodeInfo, end: timedelta) -> Failure | None:
    """The failure on the node, if it is younger than ``end``."""
    failure = _failures_of(pod, node.snapshot).get(node.name)
    return failure if failure is not None and failure.age < end else None


def _failing(pod: Pod, nodes: Nodes, end: timedelta) -> Mask:
    """bool[nodes]: where a failure is younger than ``end``."""
    snapshot = nodes.snapshot
    failing: Mask = np.zeros(snapshot.size, dtype=np.bool_)
    for node, failure in _failures_of(pod, snapshot).items():
        row = snapshot.rows.of(node)
        if row is not None and failure.age < end:
            failing[row] = True
    return nodes.take(failing)


def _sentence(failure: Failure, snapshot: Snapshot) -> str:
    age = max(snapshot.live.now - failure.last.at.timestamp(), failure.age.total_seconds())
    return f"failed {failure.last.pod} {age:.0f} s ago ({failure.last.reason})"


def _build(args: NodeFailuresArgs) -> NodeFailures:
    """The plugin, without Filter unless configured, so that the binder reads facts only for a filter."""
    return NodeFailures(args) if args.back_off is None else FilteringNodeFailures(args)


def validate(args: NodeFailuresArgs, path: str) -> list[str]:
    remember, back_off = _REMEMBER if args.remember is None else args.remember, args.back_off
    problems = []
    if not _SHORTEST <= remember <= _LONGEST:
        problems.append(f"{path}.remember: want 1s..1h, got {remember.total_seconds():g}s")
    if back_off is not None and not _SHORTEST <= back_off <= remember:
        want = f"want 1s..{remember.total_seconds():g}s, which is remember"
        problems.append(f"{path}.backOff: {want}, got {back_off.total_seconds():g}s")
    return problems


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.FILTER, Point.SCORE),
    build=with_args(_build, NodeFailuresArgs),
    args_type=NodeFailuresArgs,
    validate=validate,
)
