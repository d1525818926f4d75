"""The plugin contract: who calls what, when, in which service, and what is guaranteed (docs/design.md, 4).

A plugin is a class that inherits from the extension points which it has. One instance serves one profile for the life
of a process; calls never overlap. What belongs to one pod's cycle goes into the CycleState, not into the instance.

| extension point | called in | when |
|---|---|---|
| PreEnqueue | watcher | before a pod enters the queue, and again when one of the plugin's events happens |
| QueueSort | watcher | each time that a pod becomes active, or may before the end of its back-off |
| EnqueueExtensions | watcher | for each event and each pod that the plugin rejected, or once for all pods of a key |
| PreFilter, Filter | scorer | once a cycle, for all nodes |
| PreFilter, Filter | binder | before each commit, for one node, on the binder's own cache |
| AddPod, RemovePod | scorer, binder | between PreFilter and Filter, as if pods were placed or removed |
| PostFilter | scorer, binder | when no node is feasible; for one node before pods are evicted from it |
| Remedy | people's commands | when `berth why`, `berth queue` or the console shows a pod that fits nowhere |
| PreScore, Score, NormalizeScore | scorer | when more than one node is feasible |
| Reserve, Unreserve | binder | when a node is chosen; when a later step fails |
| Permit, PreBind, Bind, PostBind | binder | one after another, for the chosen node |

Guarantees:
- A rejection is a Status. An exception is a bug: the cycle ends in an error that names the plugin; the service goes on.
- A plugin does no I/O. It reads the Snapshot; the writes that it needs are part of its answer.
- The Snapshot does not change during a cycle, except before AddPod and RemovePod.
- The filters of a profile run in its order, and the first that rejects a node gives its reasons.
- Skip from PreFilter leaves the plugin's Filter out, Skip from PreScore its Score.
- Scalar forms are never called for rows without a node; vector forms may be, and the answer for such a row is ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Flag, auto
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.cluster.nodes import Mask, NodeInfo, Nodes, NodesWithAnother, RejectedNodes, RemovedPods, RowIndex
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.status import SKIP, SUCCESS, Code, CycleState, Diagnosis, StateKey, Status, Verdicts
from berth.messages.livedata import LiveSource

R = TypeVar("R")

Scores = npt.NDArray[np.int64]

MIN_SCORE = 0

MAX_SCORE = 100
"""Scores after NormalizeScore are within 0..100; anything else fails the cycle."""

SNAPSHOT: Final = StateKey[Snapshot]("framework.snapshot")
"""In the state from Reserve on: the binder's cache, in which Reserve may assume what is about to be written."""


class Reads(Flag):
    """What a plugin's PreFilter, Filter and scoring points read: it decides how long their answers may be cached.

    A plugin that reads only the pod's spec (without volumes) and the row in question is *row-local*: its answers are
    cached for the whole equivalence class, and only rows that changed are evaluated again. Its PreFilter and PreScore
    run once a class and may not read the Snapshot. Its NormalizeScore runs again when a raw score or the feasible nodes
    have changed.
    """

    SPEC = 0
    """Only the pod's spec and the node's name."""
    NODE = auto()
    """The row's node object: labels, annotations, creation time, spec and status."""
    PODS = auto()
    """The pods placed on the row: sums, counts, ports."""
    ANYTHING = auto()
    """More than that: the pod's labels or name, other rows, objects of other kinds, live data. Never cached.

    This includes the time, which a plugin reads from ``Snapshot.live.now`` (Unix seconds; 0 in ``berth simulate``).
    """


class CallLimit(Protocol):
    """Runs work, and interrupts it with ``plugincalls.OutOfTime`` when it takes too long."""

    def __call__(self, work: Callable[[], R]) -> R:
        """The work's result."""
        ...


class CallTimer(Protocol):
    """Records how long calls of plugins take."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds from any starting point."""
        ...

    def record(self, plugin: str, point: str, seconds: float, code: Code) -> None:
        """One call has ended."""
        ...


class Plugin(ABC):
    """What every plugin has. The default of ``reads``, ANYTHING, is always correct and the slowest."""

    name: ClassVar[str]
    reads: Reads = Reads.ANYTHING
    limit: CallLimit | None = None
    """Ends a call that hangs; services set one for third-party plugins."""
    timing: CallTimer | None = None
    """Set for some cycles only: reading the clock costs more than some calls."""
    live_sources: frozenset[LiveSource] = frozenset()
    """What the plugin reads of ``Snapshot.live``, which holds only declared sources. Such a plugin reads ANYTHING."""

    @cached_property
    def is_row_local(self) -> bool:
        """Whether answers may be cached for an equivalence class. Cached itself: ``reads`` does not change."""
        return Reads.ANYTHING not in self.reads

    @cached_property
    def reads_pods(self) -> bool:
        """Whether the answers for a row may change with its pods. Cached as well."""
        return Reads.PODS in self.reads


class PreEnqueuePlugin(Plugin):
    """Decides whether a pod may enter the queue."""

    @abstractmethod
    def pre_enqueue(self, pod: Pod) -> Status:
        """Success, or why the pod must not be tried yet. It depends on the pod only."""


class QueueSortPlugin(Plugin):
    """The order of the queue. A profile has exactly one, and all profiles have the same."""

    @abstractmethod
    def sort_key(self, pod: Pod, since: datetime) -> tuple[Any, ...]:
        """The pod with the smallest key is tried first; ``since`` is when the pod began to wait."""


class EnqueueExtensions(Plugin):
    """Which events may make a pod schedulable that this plugin rejected. Without it every event requeues the pod.

    A queueing hint gets the pod and the object before and after (for BANDWIDTH and FACTS: None and a
    ``LiveDataUpdate``). Plugins need it at the points that can reject: PreEnqueue, PreFilter, Filter, Reserve, Permit.
    """

    @abstractmethod
    def events(self) -> Sequence[EventHint]:
        """Called once. A hint that raises requeues the pod: a needless attempt is better than none at all."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """``nodes``: the only nodes by name that can be feasible, or None when all can."""

    status: Status = SUCCESS
    nodes: frozenset[str] | None = None


PRE_FILTER_SKIPPED: Final = PreFilterResult(SKIP)
"""The answer that most plugins have for most pods."""


class PreFilterPlugin(Plugin):
    """Checks the pod before any node is filtered."""

    @abstractmethod
    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Success, Skip (leave this plugin's Filter out) or a rejection of all nodes, which ends the cycle."""


class PreFilterExtensions(PreFilterPlugin):
    """For a PreFilter that stores something about other pods for its Filter: keeps the stored state up to date.

    Called when a cycle runs filters as if pods were placed or removed: on a clone of the state, after the Snapshot has
    changed.
    """

    @abstractmethod
    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        """``added`` is now counted on the node."""

    @abstractmethod
    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        """``removed`` is not counted on the node any more."""

    def refused_without(self, state: CycleState, pod: Pod, nodes: Nodes, removed: RemovedPods) -> Verdicts | None:
        """What Filter would return for each node if these pods were removed from that node only.

        It may accept a node that Filter rejects, but never the reverse. None (the default): each node must be tried.
        """
        del state, pod, nodes, removed
        return None


class FilterPlugin(Plugin):
    """Decides whether the pod can run on a node."""

    @abstractmethod
    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Success, or why not. May also be called for nodes that another filter rejects."""


class VectorFilterPlugin(FilterPlugin):
    """A Filter that answers for all nodes at once; both forms always give equal answers.

    ``sums_only``: of the pods on a row it reads only their number and the sum of their requests (``Nodes.pods``,
    ``Nodes.requested``). Preemption then evaluates it for all nodes at once, as if some of their pods were removed.
    """

    sums_only: ClassVar[bool] = False

    @abstractmethod
    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """One verdict a node, in the order of ``nodes``; called for all rows, or for those that changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedySentence:
    """One obstacle: what keeps the pod from nodes, and what would have to be different.

    The command counts and names the nodes: ``before`` 2 nodes (n1, n2) ``after``; and adds on how many of them the pod
    meets no other obstacle. ``after`` begins with have, are or lack, if with a verb: it is put into the singular.

    Attributes:
        about: the resource, taint, label, port or claim.
        nodes: bool[nodes], the nodes with this obstacle; None for all that the filter rejects. Without any, the
            sentence is left out.
        only: bool[nodes], the nodes without another obstacle; None for those that no other sentence of the plugin
            and no other filter is about. For a plugin that does not return a sentence for each obstacle.
        text: a whole sentence, in place of ``before``, the nodes and ``after``.
        examples: the nodes that ``text`` names.
        amounts: for programs, the numbers in ``text``, in millicores and base units.
    """

    about: str
    nodes: Mask | None = None
    only: Mask | None = None
    before: str = ""
    after: str = ""
    text: str = ""
    examples: Sequence[str] = ()
    amounts: Mapping[str, int] = field(default_factory=dict)


class RemedyPlugin(FilterPlugin):
    """A Filter that says what would help a pod which it keeps from nodes.

    Called only for people, in the process of their command, never in a service on a pod's way. The state is as after
    PreFilter, and every filter has been asked about every node. Keys and names come from others: the command cuts long
    sentences and shows a few of many.
    """

    @abstractmethod
    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        """The obstacles on the nodes that this filter rejects; it rejects at least one."""

    def remedy_by_reason(self, reason: str, nodes: Nodes) -> RemedySentence | None:
        """The nodes' side of a rejection, as ``text``, for a pod of which only the Decision's reason is known.

        ``nodes``: all nodes, at least one, in the order of their names. None (the default): there is no such side.
        """
        del reason, nodes
        return None


@dataclass(frozen=True, slots=True)
class Nomination:
    """A node where the pod fits after evictions: ``victims`` are the uids of the pods to evict, most important first.

    ``violations`` is how many of the evictions violate a disruption budget.
    """

    node: str
    victims: tuple[str, ...] = ()
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """What can be done for the pod.

    ``nomination``: the node to preempt on; without victims, the node where victims are terminating already.
    ``message`` is appended to why no node is feasible. ``clears_nomination``: the pod's nominated node does not help
    it. ``is_last_word``: PostFilter plugins after this one are not run. ``blockers``: plugins without whose rejections
    evictions would help; the events that they register may help the pod too.
    """

    nomination: Nomination | None = None
    message: str = ""
    clears_nomination: bool = False
    is_last_word: bool = False
    blockers: tuple[str, ...] = ()


class DryRunNode(Protocol):
    """One node without some of its pods. Filters run as if the others were all that is placed there."""

    def status(self) -> Status:
        """What all filters answer for the node as it is now."""
        ...

    def add(self, placed: PlacedPod) -> None:
        """Add a removed pod again."""
        ...

    def remove(self, placed: PlacedPod) -> None:
        """Remove a pod that was added again."""
        ...


class DryRun(Protocol):
    """Runs the cycle's filters as if pods were removed. Afterwards the Snapshot is as it was.

    Every method raises PluginFailure when a plugin fails.
    """

    @property
    def pod(self) -> Pod:
        """The pod of the cycle."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The Snapshot of the cycle."""
        ...

    def removing(self, node: NodeInfo, pods: Collection[PlacedPod]) -> AbstractContextManager[DryRunNode]:
        """The node without these pods, until the context ends."""
        ...

    def refused_without(self, rows: RowIndex, removed: RemovedPods, diagnosis: Diagnosis) -> tuple[Mask, Mask]:
        """Rows that are certainly rejected once these pods are removed, evaluated for all rows at once.

        Evaluates filters that read no pods or only sums, and others by their own ``refused_without``. A row is added
        to ``diagnosis`` where the first filter that rejects it is known. Returns bool[rows]: which are rejected, and
        which of these have no reason in ``diagnosis``.
        """
        ...

    def sums_fit(self, rows: RowIndex, removed: RemovedPods) -> Mask:
        """bool[rows]: whether the filters with ``sums_only`` accept the node without these pods."""
        ...


class PostFilterPlugin(Plugin):
    """What to do when no node is feasible. The first plugin with a nomination ends the search."""

    @abstractmethod
    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, diagnosis: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """``diagnosis`` has the reason for each rejected node; ``dry_run`` evaluates evictions."""

    def candidates(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, diagnosis: Diagnosis, dry_run: DryRun
    ) -> list[Nomination]:
        """The nominations to choose from, the best first: extenders are asked about these. Empty: they are not."""
        del state, pod, snapshot, diagnosis, dry_run
        return []

    def confirm(self, pod: Pod, node: str, dry_run: DryRun) -> Nomination | None:
        """Called by the binder before it evicts: the victims on this node by the binder's own cache.

        None (the default): no pod is evicted.
        """
        del pod, node, dry_run
        return None


class PreScorePlugin(Plugin):
    """Prepares scoring; may leave the plugin's Score out."""

    @abstractmethod
    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Success or Skip (leave this plugin's Score out); anything else fails the cycle. ``nodes``: the feasible ones.

        A row-local plugin is called once for an equivalence class, with all nodes, and may read the pod's spec only.
        """


class ScorePlugin(Plugin):
    """Scores a node; larger is better. ``packs``: it prefers nodes with more pods on them."""

    packs: bool = False
    depends_on_pods: ClassVar[bool] = True
    """Whether a pod that is placed on a node can change its score; for plugins that read ANYTHING."""

    @abstractmethod
    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """An integer; 0..100 unless the plugin normalizes. May also be called for nodes that are not feasible."""

    def score_with_another(self, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores | None:
        """int64[nodes]: the raw score of each node if one more pod like this one were on it, and on no other node.

        From it follows what a pod that comes later costs there (docs/protocol.md, 5, *Best estimate*). None (the
        default): Score of these views is right, as their sums and their pods include the other pod. A plugin that
        counts pods in another way answers itself. Called for the best nodes, after Score.
        """
        del state, pod, nodes
        return None


class VectorScorePlugin(ScorePlugin):
    """A Score that answers for many nodes at once; both forms always give equal answers."""

    @abstractmethod
    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """int64[nodes], in the order of ``nodes``; called for all rows, those that changed, or the feasible ones."""


class NormalizePlugin(ScorePlugin):
    """A Score whose raw scores mean something only relative to each other."""

    @abstractmethod
    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """0..100 for each of the feasible nodes, from their raw scores; ``scores`` is not to be changed."""


class SpreadingPlugin(ScorePlugin):
    """A Score that keeps pods of one kind apart: only pods of that kind change a node's score.

    Where its weight is more than 100 times that of all other scores together, scorer and binder count these pods only
    (docs/protocol.md, 5, *Best estimate*). The score must depend on ``counted_pods`` only.
    """

    @abstractmethod
    def counted_pods(self, pod: Pod, nodes: Nodes) -> Scores:
        """int64[nodes]: the pods that count for this pod: how many of its kind are on each node, without itself."""


class ExplainingPlugin(ScorePlugin):
    """A Score that adds a line of explanation to each of the best nodes."""

    @abstractmethod
    def explain(self, state: CycleState, pod: Pod, node: NodeInfo) -> str:
        """How the score was computed; called after NormalizeScore for the few nodes in the ranking."""


class ReservePlugin(Plugin):
    """Keeps its own state of assumed pods. Called by the binder."""

    @abstractmethod
    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        """The pod is assumed on this node. Anything but success makes the binder call ``unreserve`` of all plugins."""

    @abstractmethod
    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        """The assumed pod is forgotten. Called in reverse order, also when this plugin's ``reserve`` never ran."""


@dataclass(frozen=True, slots=True)
class Permission:
    """Success, a rejection, or WAIT with a timeout; the binder reports `waiting` and calls Permit again until then."""

    status: Status = SUCCESS
    timeout_seconds: float = 0.0


class PermitPlugin(Plugin):
    """Decides whether the pod may be bound now. Called by the binder after Reserve."""

    @abstractmethod
    def permit(self, state: CycleState, pod: Pod, node: str) -> Permission:
        """Called again while it returns WAIT; after the shortest timeout the pod is rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """A PersistentVolumeClaim. The uid distinguishes it from a later claim of the same name."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVolume:
    """Set a PersistentVolume's claimRef: the volume controller then binds the two."""

    volume: str
    claim: ClaimName


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectNode:
    """Set a claim's selected-node annotation: the provisioner then makes a volume that the node can reach."""

    claim: ClaimName
    node: str


Write = KeepVolume | SelectNode


class PreBindPlugin(Plugin):
    """Work that must be done before the Binding. Called by the binder after Permit.

    ``wait_seconds`` is how long it may return WAIT; after that the pod is rejected with ``too_late``.
    """

    wait_seconds: float = inf
    too_late: str = "PreBind was not done in time"

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        """What the binder writes to the API server first; by default nothing.

        Called once. ``pre_bind`` is called when all of it is written and the binder's cache shows it.
        """
        del state, pod, node
        return ()

    @abstractmethod
    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Success, WAIT (not yet: the binder calls it again), or a rejection, after which the pod is unreserved."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The request that binds a pod; the binder sends it. The uid excludes a later pod of the same name."""

    namespace: str
    name: str
    uid: str
    node: str


class BindPlugin(Plugin):
    """How the pod is bound."""

    @abstractmethod
    def bind(self, state: CycleState, pod: Pod, node: str) -> Binding | None:
        """The request to send, or None when this plugin does not bind this pod: then the next one is called."""


class PostBindPlugin(Plugin):
    """Notified that the pod is bound, after the API server has confirmed it."""

    @abstractmethod
    def post_bind(self, state: CycleState, pod: Pod, node: str) -> None:
        """Update the plugin's own state."""
