"""The plugin contract: callers, times and guarantees of each extension point (docs/design.md, 4).

A plugin is a class that inherits from its extension points. One instance serves one profile for the life of a process;
calls never overlap. State of one pod's cycle goes into the CycleState, not into the instance.

| extension point | called in | when |
|---|---|---|
| PreEnqueue | watcher | before a pod enters the queue, and again when one of the plugin's events happens |
| QueueSort | watcher | when a pod becomes active, or may before the end of its back-off |
| EnqueueExtensions | watcher | for each event and each pod that the plugin rejected, or once for all pods of a key |
| PodKey | scorer, binder | before the other points of a cycle, and for the members of a group |
| PreFilter, Filter | scorer | once a cycle, for all nodes |
| PreFilter, Filter | binder | before each commit, for one node, on the binder's own cache |
| AddPod, RemovePod | scorer, binder | between PreFilter and Filter, as if pods were placed or removed |
| PostFilter | scorer, binder | when no node is feasible; for one node before pods are evicted from it |
| Remedy | people's commands | when `berth why`, `berth queue` or the console shows an unschedulable pod |
| PreScore, Score, NormalizeScore | scorer | when more than one node is feasible |
| Reserve, Unreserve | binder | when a node is chosen; when a later step fails |
| Permit, PreBind, Bind, PostBind | binder | one after another, for the chosen node |

Guarantees:
- A rejection is a Status. An exception is a bug: the cycle ends in an error that names the plugin; the service goes on.
- A plugin does no I/O. It reads the Snapshot; its answer contains the writes that it needs.
- The Snapshot does not change during a cycle, except before AddPod and RemovePod.
- The filters of a profile run in its order, and the first that rejects a node gives its reasons.
- Skip from PreFilter leaves out the plugin's Filter, Skip from PreScore its Score; ``Plugin.only_for`` skips both.
- Scalar forms are never called for rows without a node; vector forms may be, and the answer for such a row is ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Flag, auto
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.devices import AllocationResult, Allocations, ResourceClaim
from berth.api.pod import ContainerExtendedResourceRequest, Pod
from berth.cluster.nodes import Mask, NodeInfo, Nodes, NodesWithAnother, RejectedNodes, RemovedPods, RowIndex
from berth.cluster.objects import Objects
from berth.cluster.pods import PlacedPod, Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.status import SKIP, SUCCESS, Code, CycleState, Diagnosis, StateKey, Status, Verdicts
from berth.messages.livedata import LiveSource

R = TypeVar("R")

Scores = npt.NDArray[np.int64]

MIN_SCORE = 0

# Scores after NormalizeScore are within 0..100; others fail the cycle.
MAX_SCORE = 100

# In the state from Reserve on: the binder's cache, in which Reserve may assume objects that will be written.
SNAPSHOT: Final = StateKey[Snapshot]("framework.snapshot")


class Reads(Flag):
    """Inputs of a plugin's PreFilter, Filter and scoring points, which decide how long their answers may be cached.

    A plugin that reads only the pod's spec (without volumes) and the row in question is *row-local*: its answers are
    cached for the whole equivalence class, and only changed rows are evaluated again. Its PreFilter and PreScore run
    once a class and may not read the Snapshot. Its NormalizeScore runs again after a change of raw scores or feasible
    nodes. A KeyedPlugin is row-local too if it reads more of the pod.
    """

    SPEC = 0  # only the pod's spec and the node's name
    NODE = auto()  # the row's node object: labels, annotations, creation time, spec and status
    PODS = auto()  # the pods placed on the row: sums, counts, ports
    # Also the pod's labels or name, other rows, other kinds of objects, live data, or the time, which a plugin reads
    # from `Snapshot.live.now` (Unix seconds; 0 in `berth simulate`). Never cached.
    ANYTHING = auto()


class CallLimit(Protocol):
    """Runs work, and interrupts it with ``plugincalls.OutOfTime`` at the deadline."""

    def __call__(self, work: Callable[[], R]) -> R: ...


class CallTimer(Protocol):
    """Records the durations of plugin calls."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds from any starting point."""
        ...

    def record(self, plugin: str, point: str, seconds: float, code: Code) -> None: ...


class Plugin(ABC):
    """The base of all plugins. The default of ``reads``, ANYTHING, is always correct and the slowest."""

    name: ClassVar[str]
    reads: Reads = Reads.ANYTHING
    # Reads amounts of resources: where they are too large for columns (`NodeColumns.large`), the vector forms' answers
    # are replaced by those of the scalar forms.
    reads_amounts: ClassVar[bool] = False
    # The plugin matters only to pods with one of these traits: for others it would return Skip, or accept every node.
    # It is not called for them from PreFilter to PreBind, except at PostFilter; at PreEnqueue only for want of
    # SCHEDULING_GATES, or, if it is a ClaimPreEnqueuePlugin, of RESOURCE_CLAIMS. None: called for every pod. A plugin
    # that is row-local names traits of the spec or the nodes only.
    only_for: Trait | None = None
    limit: CallLimit | None = None  # ends a call that hangs; services set one for third-party plugins
    timing: CallTimer | None = None  # set for some cycles only, because reading the clock costs more than some calls
    # The sources that the plugin reads of `Snapshot.live`, which holds only declared ones. Such a plugin reads
    # ANYTHING, or is a LivePlugin.
    live_sources: frozenset[LiveSource] = frozenset()

    @cached_property
    def is_row_local(self) -> bool:
        """Whether answers may be cached for an equivalence class. Cached, because ``reads`` does not change."""
        return Reads.ANYTHING not in self.reads

    @cached_property
    def reads_pods(self) -> bool:
        """Whether the answers for a row may change with its pods. Cached as well."""
        return Reads.PODS in self.reads


class KeyedPlugin(Plugin):
    """A row-local plugin that reads more of the pod than its spec, such as labels. Answers are cached for each key."""

    @abstractmethod
    def pod_key(self, pod: Pod) -> Hashable:
        """All that it reads of the pod beside the spec: pods with an equal spec and key get equal answers.

        Called in each cycle, and for the members of a group. Each different key is another class in the cache.
        """


class PreEnqueuePlugin(Plugin):
    """Decides whether a pod may enter the queue."""

    @abstractmethod
    def pre_enqueue(self, pod: Pod) -> Status:
        """Success, or why the pod must not be tried yet. It depends on the pod only."""


class ClaimPreEnqueuePlugin(PreEnqueuePlugin):
    """A PreEnqueue that depends on the pod's ResourceClaims. At PreFilter the plugin rejects the pod for the same."""

    def pre_enqueue(self, pod: Pod) -> Status:
        """Without the claims, PreFilter decides."""
        del pod
        return SUCCESS

    @abstractmethod
    def pre_enqueue_with(self, pod: Pod, claims: Objects[ResourceClaim]) -> Status:
        """Called in place of ``pre_enqueue`` where the claims are known."""


class QueueSortPlugin(Plugin):
    """The order of the queue. A profile has exactly one, and all profiles have the same."""

    @abstractmethod
    def sort_key(self, pod: Pod, since: datetime) -> tuple[Any, ...]:
        """The pod with the smallest key is tried first; ``since``: the start of its wait."""


class EnqueueExtensions(Plugin):
    """Events that may make a pod schedulable after a rejection by this plugin. By default every event requeues the pod.

    A queueing hint gets the pod and the object before and after (for BANDWIDTH and FACTS: None and a
    ``LiveDataUpdate``). Plugins need it at the points that can reject: PreEnqueue, PreFilter, Filter, Reserve, Permit.

    ``rejects_for``: the pod is tried again so long after a rejection without an event, as where live data that is too
    old rejects nothing any more; None: after 5 minutes, as every pod.
    """

    rejects_for: timedelta | None = None

    @abstractmethod
    def events(self) -> Sequence[EventHint]:
        """Called once. A hint that raises requeues the pod, because a needless attempt is better than a missed one."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """``nodes``: the only nodes by name that can be feasible; None for all.

    ``preferred``: bool[rows], nodes of which one is taken if one is feasible; others only if none is.
    """

    status: Status = SUCCESS
    nodes: frozenset[str] | None = None
    preferred: Mask | None = None


PRE_FILTER_SKIPPED: Final = PreFilterResult(SKIP)  # the answer of most plugins for most pods


class PreFilterPlugin(Plugin):
    """Checks the pod before any node is filtered."""

    @abstractmethod
    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Success, Skip (leave this plugin's Filter out) or a rejection of all nodes, which ends the cycle."""


class PreFilterExtensions(PreFilterPlugin):
    """Keeps the state up to date that a PreFilter stores about other pods for its Filter.

    Called on a clone of the state, after the Snapshot has changed, when a cycle runs filters as if pods were placed or
    removed.
    """

    @abstractmethod
    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        """``added`` is now counted on the node."""

    @abstractmethod
    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        """``removed`` is not counted on the node any more."""

    def rejected_without(self, state: CycleState, pod: Pod, nodes: Nodes, removed: RemovedPods) -> Verdicts | None:
        """Filter's verdict for each node as if these pods were removed from that node only.

        It may accept a node that Filter rejects, but never the reverse. None (the default): each node must be tried.
        """
        del state, pod, nodes, removed
        return None


class FilterPlugin(Plugin):
    """Decides whether the pod can run on a node."""

    @abstractmethod
    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Success, or a rejection. May also be called for nodes that another filter rejects."""


class VectorFilterPlugin(FilterPlugin):
    """A Filter that answers for all nodes at once; both forms always give equal answers.

    ``sums_only``: of the pods on a row it reads only their number and the sum of their requests (``Nodes.pods``,
    ``Nodes.requested``). Preemption then evaluates it for all nodes at once, as if some of their pods were removed.
    """

    sums_only: ClassVar[bool] = False

    def counted_amounts(self, state: CycleState) -> dict[str, int]:
        """By resource, the least that must be free on every node that takes the pod; after PreFilter.

        Of a plugin with ``sums_only``: by these sums the plan of a group knows where not all of its pods can fit.
        """
        del state
        return {}

    @abstractmethod
    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """One verdict per node, in the order of ``nodes``; called for all rows, or for changed ones."""


class AllocatingPlugin(FilterPlugin):
    """A Filter that gives devices to the pod, which other scorers must know as soon as they know the pod's node."""

    def prepare(self, pod: Pod, snapshot: Snapshot, may_continue: Callable[[], bool]) -> bool:
        """Work ahead of the pod's cycle, while it may continue; returns whether it is done.

        A scorer ranks other pods in between, and this one once it is done. By default there is none.
        """
        del pod, snapshot, may_continue
        return True

    @abstractmethod
    def allocations(self, state: CycleState, pod: Pod, node: NodeInfo) -> Allocations:
        """The devices that the pod would get on a feasible node; called for the best one."""

    @abstractmethod
    def reserved(self, state: CycleState) -> Allocations:
        """The devices of the pod's claims after Reserve: by the binder's own search, or allocated before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedySentence:
    """One obstacle to the pod on some nodes, and the change that would remove it.

    The command counts and names the nodes: ``before`` 2 nodes (n1, n2) ``after``; and adds on how many of them the pod
    meets no other obstacle. ``after`` begins with have, are or lack, if with a verb: it is put into the singular.

    Attributes:
        about: the resource, taint, label, port or claim.
        nodes: bool[nodes], the nodes with this obstacle; None for all that the filter rejects. Without any, the
            sentence is left out.
        only: bool[nodes], the nodes without another obstacle; None for nodes without another sentence of the plugin or
            another rejecting filter. For a plugin that does not return a sentence for each obstacle.
        text: a whole sentence, in place of ``before``, the nodes and ``after``.
        examples: the nodes that ``text`` names.
        amounts: for programs, the numbers in ``text``, in millicores and base units.
        lacking: these nodes could not take the pod if they were empty: shown after nodes that could.
    """

    about: str
    nodes: Mask | None = None
    only: Mask | None = None
    before: str = ""
    after: str = ""
    text: str = ""
    examples: Sequence[str] = ()
    amounts: Mapping[str, int] = field(default_factory=dict)
    lacking: bool = False


class RemedyPlugin(FilterPlugin):
    """A Filter that explains what would help a pod on the nodes it rejects.

    Called only for people, in the process of their command, never in a service. The state is as after PreFilter. Keys
    and names come from others: the command cuts long sentences and shows a few of many.
    """

    explains_errors: ClassVar[bool] = False
    """Whether ``remedy`` explains nodes on which the filter has ended in an error too."""

    @abstractmethod
    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        """The obstacles on the nodes that this filter rejects; it rejects at least one."""

    def remedy_by_reason(self, reason: str, nodes: Nodes) -> RemedySentence | None:
        """The nodes' side of a rejection, as ``text``, for a pod known only by the Decision's reason.

        ``nodes``: all nodes, at least one, in the order of their names. None (the default): no such sentence.
        """
        del reason, nodes
        return None


@dataclass(frozen=True, slots=True)
class Nomination:
    """A node where the pod fits after evictions: ``victims`` are the uids of the pods to evict, most important first.

    ``violations``: the number of evictions that violate a disruption budget.
    """

    node: str
    victims: tuple[str, ...] = ()
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """The outcome of PostFilter.

    ``nomination``: the node to preempt on; without victims, the node where victims are terminating already. ``message``
    is appended to the reasons of the nodes. ``clears_nomination``: the pod's nominated node does not help it.
    ``is_last_word``: later PostFilter plugins are not run. ``unschedulable_plugins``: evictions would help without
    these plugins' rejections, so their registered events may help the pod too.
    """

    nomination: Nomination | None = None
    message: str = ""
    clears_nomination: bool = False
    is_last_word: bool = False
    unschedulable_plugins: tuple[str, ...] = ()


class DryRunNode(Protocol):
    """One node without some of its pods. Filters run as if only the other pods were placed there."""

    def status(self) -> Status:
        """All filters' Status for the node as it is now."""
        ...

    def add(self, placed: PlacedPod) -> None:
        """Add a removed pod again."""
        ...

    def remove(self, placed: PlacedPod) -> None:
        """Remove a pod that was added again."""
        ...


class DryRun(Protocol):
    """Runs the cycle's filters as if pods were removed. Afterwards the Snapshot is as before.

    Every method raises PluginFailure if a plugin fails.
    """

    @property
    def pod(self) -> Pod: ...

    @property
    def snapshot(self) -> Snapshot: ...

    def came_to(self, plugin: str) -> bool:
        """Whether the cycle came to this plugin's PreFilter before it ended. True also if the plugin was left out."""
        ...

    def removing(self, node: NodeInfo, pods: Collection[PlacedPod]) -> AbstractContextManager[DryRunNode]:
        """The node without these pods, until the context ends."""
        ...

    def rejected_without(self, rows: RowIndex, removed: RemovedPods, diagnosis: Diagnosis) -> tuple[Mask, Mask]:
        """Rows that are certainly rejected once these pods are removed, evaluated for all rows at once.

        Evaluates filters that read no pods or only sums, and others by their own ``rejected_without``. A row enters
        ``diagnosis`` if its first rejecting filter is known. Returns bool[rows]: the rejected rows, and the rejected
        rows without a reason in ``diagnosis``.
        """
        ...

    def sums_fit(self, rows: RowIndex, removed: RemovedPods) -> Mask:
        """bool[rows]: whether the filters with ``sums_only`` accept the node without these pods."""
        ...


class PostFilterPlugin(Plugin):
    """Helps a pod without a feasible node. The first plugin with a nomination ends the search."""

    @abstractmethod
    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, diagnosis: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """``diagnosis`` has the reason for each rejected node; ``dry_run`` evaluates evictions."""

    def confirm(self, pod: Pod, node: str, dry_run: DryRun) -> Nomination | None:
        """The victims on this node by the binder's own cache; None (the default): no pod is evicted."""
        del pod, node, dry_run
        return None

    def choose(self, pod: Pod, proposed: str, diagnosis: Diagnosis, dry_run: DryRun) -> Nomination | None:
        """Called by the binder before it evicts: the best eviction by its own cache; None: no pod is evicted.

        ``proposed``: the node of a scorer's message, which only decides between equally good nodes. The binder calls it
        in its loop, so its work is bounded. By default the proposed node is confirmed.
        """
        del diagnosis
        return self.confirm(pod, proposed, dry_run)

    def candidates(
        self, pod: Pod, proposed: str, diagnosis: Diagnosis, dry_run: DryRun, asked: Collection[str]
    ) -> list[Nomination]:
        """Called in place of ``choose`` if extenders filter evictions: the ones to ask about, the best first.

        ``asked``: nodes about which they were asked before, and kept none. By default what ``choose`` finds, once.
        """
        found = None if asked else self.choose(pod, proposed, diagnosis, dry_run)
        return [] if found is None else [found]

    def may_free_claim(self, pod: Pod, snapshot: Snapshot) -> bool:
        """Whether ``claim_to_free`` may name a claim; otherwise the binder does not look for a node."""
        del pod, snapshot
        return False

    def claim_to_free(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> FreeClaim | None:
        """Called by the binder when no node is feasible by its own cache: a claim whose devices keep the pod out.

        A plugin's PreFilter may have rejected the pod, so that the state lacks what later ones would write.
        """
        del state, pod, snapshot
        return None


class PreScorePlugin(Plugin):
    """Prepares scoring; may leave the plugin's Score out."""

    @abstractmethod
    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Success or Skip (leave this plugin's Score out); others fail the cycle. ``nodes``: the feasible ones.

        A row-local plugin is called once for an equivalence class, with all nodes, and may read the pod's spec only.
        """


class ScorePlugin(Plugin):
    """Scores a node; larger is better. ``packs``: it prefers nodes with more pods on them."""

    packs: bool = False
    # A row-local Score counts pods that a view shows beside (``others``, and its sums) as it counts such pods once they
    # are placed; where it does not, ``row_changes`` reports the row. Then scores are computed ahead (ADR 77). Not
    # inherited by a class with another ``score`` or ``score_all``.
    counts_others: ClassVar[bool] = False
    # A pod placed on a node can change its score; for plugins that read ANYTHING.
    depends_on_pods: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        said = ({"counts_others", "score", "score_all"} & vars(each).keys() for each in cls.__mro__)
        if "counts_others" not in next(filter(None, said)):
            cls.counts_others = False

    @abstractmethod
    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """An integer; 0..100 unless the plugin normalizes. May also be called for infeasible nodes."""

    def score_with_another(self, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores | None:
        """int64[nodes]: each node's raw score if one more pod like this one were on it, and on no other node.

        Gives the loss that a later pod causes there (docs/protocol.md, 4.3). None (the default): Score of these views
        is right, as their sums and their pods include the other pod. A plugin that counts pods in another way answers
        itself. Called for the best nodes, after Score.
        """
        del state, pod, nodes
        return None


class VectorScorePlugin(ScorePlugin):
    """A Score that answers for many nodes at once; both forms always give equal answers."""

    @abstractmethod
    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """int64[nodes], in the order of ``nodes``; called for all rows, changed ones, or feasible ones."""


class NormalizePlugin(ScorePlugin):
    """A Score whose raw scores are only relative to each other."""

    @abstractmethod
    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """0..100 for each of the feasible nodes, from their raw scores. ``scores`` is read-only."""


class SpreadingPlugin(ScorePlugin):
    """A Score that keeps pods of one kind apart: only pods of that kind change a node's score.

    If its weight is more than 100 times the sum of all others, scorer and binder count only these pods
    (docs/protocol.md, 5.8). The score must depend on ``counted_pods`` only.
    """

    @abstractmethod
    def counted_pods(self, pod: Pod, nodes: Nodes) -> Scores:
        """int64[nodes]: the pods of this pod's kind on each node, without itself."""


class ExplainingPlugin(ScorePlugin):
    """A Score that adds a line of explanation to each of the best nodes."""

    @abstractmethod
    def explain(self, state: CycleState, pod: Pod, node: NodeInfo) -> str:
        """The derivation of the score; called after NormalizeScore for the few nodes in the ranking."""


class VectorExplainingPlugin(ExplainingPlugin):
    """A plugin that explains several nodes at once; both forms always give equal answers."""

    @abstractmethod
    def explain_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> list[str]:
        """A line for each of the nodes, in their order."""


class RowChanges(NamedTuple):
    """``version`` increases with every change. ``rows`` changed since an earlier version; None: any may have."""

    version: int
    rows: Collection[int] | None


class LivePlugin(ScorePlugin):
    """A row-local Score, and Filter, whose answers change with live data and time too: it reports for which rows."""

    @abstractmethod
    def row_changes(self, snapshot: Snapshot, since: int) -> RowChanges:
        """The rows whose answers may have changed since this version, -1 at first, by whatever it reads.

        Rows whose node has changed may be left out, because they are evaluated again in any case. So may rows whose
        pods have changed, if ``reads`` has PODS and ``counts_others`` is false. Called for each equivalence class,
        before its kept answers are read.
        """


class ReservePlugin(Plugin):
    """Keeps its own state of assumed pods. Called by the binder."""

    @abstractmethod
    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        """The pod is assumed on this node. Any Status but success makes the binder unreserve all plugins."""

    @abstractmethod
    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        """The assumed pod is forgotten. Called in reverse order, even without a call of this plugin's ``reserve``."""

    def finish_binding(self, state: CycleState, pod: Pod, node: str) -> None:
        """The pod is bound. By default nothing is done."""
        del state, pod, node


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
    """A PersistentVolumeClaim or ResourceClaim. The uid distinguishes it from a later claim of the same name."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveClaim:
    """Write a ResourceClaim's finalizer and allocation, and the pod's reservation.

    ``allocation``: None if the claim has one already, which another scheduler or an earlier pod has written.
    """

    claim: ClaimName
    allocation: AllocationResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateClaim:
    """Create the ResourceClaim of the pod's extended resources, reserve it, and name it in the pod's status."""

    claim: ResourceClaim  # its uid is unknown
    allocation: AllocationResult
    mappings: tuple[ContainerExtendedResourceRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseClaim:
    """Take the pod's reservation of a ResourceClaim back, and the allocation with the last one.

    ``is_deleted``: delete the claim then, which the pod controls; its uid may be unknown (empty).
    """

    claim: ClaimName
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeClaim:
    """Clear a claim's allocation, or only the pod's reservation if others have one; ``is_deleted``: delete it."""

    claim: ClaimName
    is_deleted: bool = False


Write = KeepVolume | SelectNode | ReserveClaim | CreateClaim


class PreBindPlugin(Plugin):
    """Work that must be done before the Binding. Called by the binder after Permit.

    ``wait_seconds``: longest time of WAIT, after which the pod is rejected with ``too_late``; the outcome is an error
    with ``late_is_error``. ``wait_event``: reason and text of a Normal Event of a pod that WAITs, with ``{node}`` in
    the text; None for no Event.
    """

    wait_seconds: float = inf
    too_late: str = "PreBind was not done in time"
    late_is_error: ClassVar[bool] = False
    wait_event: ClassVar[tuple[str, str] | None] = None

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        """Requests that the binder sends to the API server first; by default none.

        Called once. ``pre_bind`` is called when all are written and the binder's cache shows them.
        """
        del state, pod, node
        return ()

    def releases(self, state: CycleState, pod: Pod, node: str, *, sent: bool) -> tuple[ReleaseClaim, ...]:
        """What takes the writes back, if the pod is not bound. The binder sends it before Unreserve.

        ``sent``: whether the binder has begun to send ``writes``; an earlier attempt may have written too.
        """
        del state, pod, node, sent
        return ()

    @abstractmethod
    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Success, WAIT (not yet: the binder calls it again), a rejection or an error: then the pod is unreserved."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The request that binds a pod; the binder sends it. The uid excludes a later pod of the same name."""

    namespace: str
    name: str
    uid: str
    node: str


class BindPlugin(Plugin):
    """Binds pods in the plugin's own way."""

    @abstractmethod
    def bind(self, state: CycleState, pod: Pod, node: str) -> Binding | None:
        """The request to send, or None to leave the pod to the next plugin."""


class PostBindPlugin(Plugin):
    """Notified that the pod is bound, after the API server has confirmed it."""

    @abstractmethod
    def post_bind(self, state: CycleState, pod: Pod, node: str) -> None:
        pass
