"""What a plugin may have the binder write at the API server before a pod is bound: values, carried out elsewhere.

The plugin contract: who calls what, when, in which service, and what is guaranteed (DESIGN 4).

A plugin is a class that inherits from the extension points which it has. One instance serves one profile for the life
of a process; calls never overlap. What belongs to one pod's cycle goes into the CycleState, not into the instance.

| extension point | called in | when |
|---|---|---|
| PreEnqueue | watcher | before a pod enters the queue, and again when one of the plugin's events happens |
| QueueSort | watcher | once for each pod that enters the queue |
| EnqueueExtensions | watcher | for each event and each pod that the plugin refused |
| PreFilter, Filter | scorer | once a cycle, for all nodes |
| PreFilter, Filter | binder | before each commit, for one node, on the binder's own newest state |
| AddPod, RemovePod | scorer, binder | between PreFilter and Filter, when pods are supposed to be placed or removed |
| PostFilter | scorer, binder | when no node is feasible; for one node before pods are evicted from it |
| PreScore, Score, NormalizeScore | scorer | when more than one node is feasible |
| Reserve, Unreserve | binder | when a node is chosen; when a later step fails |
| Permit, PreBind, Bind, PostBind | binder | one after another, for the chosen node; what PreBind wants written before |

Guarantees:
- A rejection is a Status. An exception is a bug: the cycle ends in an error that names the plugin; the service goes on.
- Nothing here does I/O. What must be asked of the world stands in the Snapshot, what must be done to it is an answer.
- The Snapshot does not change during a cycle, but for AddPod and RemovePod, which are told.
- The filters of a profile are run in its order, and the first that refuses a node gives its reasons.
- Skip from PreFilter leaves the plugin's Filter out, Skip from PreScore its Score.
- Scalar forms never see rows without a node; vector forms may, and what they answer for them is ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Flag, auto
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.livedata import LiveSource
from berth.api.pod import Pod
from berth.cluster.nodes import Gone, NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SUCCESS, Status, Verdicts
from berth.framework.timing import Timing

if TYPE_CHECKING:
    from berth.framework.diagnosis import Diagnosis
    from berth.framework.preemption import DryRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """A PersistentVolumeClaim; the uid keeps a namesake from being taken for it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVolume:
    """Keep a PersistentVolume for a claim: the controller of volumes binds the two then."""

    volume: str
    claim: ClaimName


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectNode:
    """Have a volume made for a claim that can be reached from a node."""

    claim: ClaimName
    node: str


Write = KeepVolume | SelectNode


R = TypeVar("R")

Scores = npt.NDArray[np.int64]

MIN_SCORE = 0

MAX_SCORE = 100
"""Scores after NormalizeScore are within 0..100; anything else fails the cycle."""


class Reads(Flag):
    """What a plugin's PreFilter, Filter, PreScore and Score look at: what makes it necessary to ask them again.

    A plugin that looks only at the pod's spec (without volumes) and at the row that it is asked about is *row-local*:
    its answers are kept for the whole class of pods, and only rows that changed are asked again. Then its PreFilter and
    PreScore run once a class and may not look at the Snapshot.
    """

    SPEC = 0
    """Nothing but the pod's spec and the node's name."""
    NODE = auto()
    """The row's node object: labels, taints, allocatable, unschedulable, images."""
    PODS = auto()
    """The pods placed on that very row: sums, counts, ports."""
    ANYTHING = auto()
    """More than that: the pod's labels or name, other rows, live data, the clock. Asked anew in every cycle."""


class CallLimit(Protocol):
    """Runs work, and ends it from within by raising ``guard.OutOfTime`` when it takes too long."""

    def __call__(self, work: Callable[[], R]) -> R:
        """The work's result."""
        ...


class Plugin(ABC):
    """What every plugin has. ``reads`` is ANYTHING unless the plugin says otherwise: always right, never fastest."""

    name: ClassVar[str]
    reads: Reads = Reads.ANYTHING
    limit: CallLimit | None = None
    """What ends a call of the plugin that hangs; services give one to plugins from elsewhere."""
    timing: Timing | None = None
    """Who is told how long each call took; for some cycles only, since asking the clock costs more than some calls."""
    live_sources: frozenset[LiveSource] = frozenset()
    """What the plugin reads of ``Snapshot.live``: only what is declared here is there. Such a plugin reads ANYTHING."""

    @cached_property
    def is_row_local(self) -> bool:
        """Whether answers may be kept for a class of pods; ``reads`` does not change once the plugin is made."""
        return Reads.ANYTHING not in self.reads


class PreEnqueuePlugin(Plugin):
    """May a pod enter the queue at all?"""

    @abstractmethod
    def pre_enqueue(self, pod: Pod) -> Status:
        """Success, or why the pod is not to be tried yet; sees the pod and nothing else."""


class QueueSortPlugin(Plugin):
    """In which order pods are tried. A profile has exactly one, and all profiles have the same."""

    @abstractmethod
    def sort_key(self, pod: Pod, since: datetime) -> tuple[Any, ...]:
        """A key of which the smaller one is tried first; ``since`` is when the pod began to wait."""


class EnqueueExtensions(Plugin):
    """Which events may help a pod that this plugin refused. A plugin without it counts as helped by every event.

    A hint gets the pod, the object before and after (of BANDWIDTH and FACTS: None and a ``LiveNews``). Asked for at the
    points at which a plugin can refuse: PreEnqueue, PreFilter, Filter, Reserve, Permit.
    """

    @abstractmethod
    def events(self) -> Sequence[EventHint]:
        """Asked once. A hint that raises counts as yes: better one try too many than a pod that sleeps."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """``nodes``: the only nodes by name that can be feasible, or None when all can."""

    status: Status = SUCCESS
    nodes: frozenset[str] | None = None


class PreFilterPlugin(Plugin):
    """Looks at the pod before any node is looked at."""

    @abstractmethod
    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Success, Skip (leave my Filter out) or a rejection, which holds for all nodes and ends the cycle."""


class PreFilterExtensions(PreFilterPlugin):
    """For a PreFilter that computed something from other pods and a Filter that uses it: keep it right.

    Called when a cycle supposes pods to be placed or removed: on a clone of the state, after the Snapshot shows it.
    """

    @abstractmethod
    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        """``added`` is now counted on the node."""

    @abstractmethod
    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        """``removed`` is not counted on the node any more."""

    def refused_without(self, state: CycleState, pod: Pod, nodes: Nodes, gone: Gone) -> Verdicts | None:
        """What Filter would say of each node if these pods were gone from that node alone, of many at once.

        It may let a node pass that Filter refuses, but never the other way round. None, unless a plugin says otherwise:
        each node has to be tried.
        """
        del state, pod, nodes, gone
        return None


class FilterPlugin(Plugin):
    """Can the pod run on a node?"""

    @abstractmethod
    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Success, or why not. May also be asked for nodes that another filter refuses."""


class VectorFilterPlugin(FilterPlugin):
    """A Filter that answers for all nodes at once; both forms always give equal answers.

    ``sums_only``: of the pods on a row it looks at nothing but how many they are and what they ask for together
    (``Nodes.pods``, ``Nodes.requested``). Then it is asked at once about all nodes as if some of their pods were gone.
    """

    sums_only: ClassVar[bool] = False

    @abstractmethod
    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """One verdict a node, in the order of ``nodes``; called for all rows, or for those that changed."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """A node on which room can be made for the pod, and the uids of the pods to evict for it, most important first.

    Of the evictions, ``violations`` are against a disruption budget.
    """

    node: str
    victims: tuple[str, ...] = ()
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """What can be done, and what is said.

    ``nomination``: room that can be made; without victims: room that is being made for the pod already. ``message`` is
    added to why no node is feasible. ``clears_nomination``: the node that is kept for the pod is of no use to it.
    ``is_last_word``: plugins after this one are not asked.
    """

    nomination: Nomination | None = None
    message: str = ""
    clears_nomination: bool = False
    is_last_word: bool = False


class PostFilterPlugin(Plugin):
    """What to do when no node is feasible. The first plugin with a nomination ends the search."""

    @abstractmethod
    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, refusals: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """May try suppositions on the Snapshot (``dry_run``) as long as it is left as it was."""

    def confirm(self, pod: Pod, node: str, dry_run: DryRun) -> Nomination | None:
        """Asked by the binder before anybody is evicted: what must go from this node by the binder's newest state.

        None unless a plugin says otherwise: then nobody is evicted.
        """
        del pod, node, dry_run
        return None


class PreScorePlugin(Plugin):
    """Looks at the pod before any node is scored."""

    @abstractmethod
    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Success or Skip (leave my Score out); anything else fails the cycle. ``nodes`` are the feasible ones.

        A row-local plugin is called once for a class of pods, with all nodes, and may look at the pod's spec only.
        """


class ScorePlugin(Plugin):
    """How good is a node? The larger the better. ``packs``: more pods make a node better (it fills nodes up)."""

    packs: bool = False

    @abstractmethod
    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """A whole number; 0..100 unless the plugin normalizes. May also be asked for nodes that are not feasible."""


class VectorScorePlugin(ScorePlugin):
    """A Score that answers for many nodes at once; both forms always give equal answers."""

    @abstractmethod
    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """int64[nodes], in the order of ``nodes``; called for all rows, those that changed, or the feasible ones."""


class NormalizePlugin(ScorePlugin):
    """A Score whose raw numbers mean something only beside each other."""

    @abstractmethod
    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """0..100 for each of the feasible nodes, from their raw scores; ``scores`` is not to be changed."""


class SpreadingPlugin(ScorePlugin):
    """A Score that keeps pods of a kind apart: to such a pod a node changes when pods of its kind come, not others.

    Where its weight is more than 100 times that of all other scores together, candidates carry the number of these
    pods, and the binder takes the node that has the fewest by then. ``company`` must be all that its score is about.
    """

    @abstractmethod
    def company(self, pod: Pod, nodes: Nodes) -> Scores:
        """int64[nodes]: how many pods of the pod's kind are placed on each node, without the pod itself."""


class ExplainingPlugin(ScorePlugin):
    """A Score whose points alone do not tell a person why: it adds a line to each of the best nodes."""

    @abstractmethod
    def explain(self, state: CycleState, pod: Pod, node: NodeInfo) -> str:
        """What the points were made of; called after NormalizeScore for the few nodes that are named in the ranking."""


SNAPSHOT: Final = StateKey[Snapshot]("framework.snapshot")
"""In the state from Reserve on: the binder's newest state, of which Reserve may suppose what is about to be written."""


class ReservePlugin(Plugin):
    """Keeps its own books about pods that are on their way to a node. Called by the binder."""

    @abstractmethod
    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        """The pod is going to this node. Anything but success undoes the reservations of all plugins."""

    @abstractmethod
    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        """It is not going there after all. Called in reverse order, also when this plugin's reserve never ran."""


@dataclass(frozen=True, slots=True)
class Permission:
    """Success, a rejection, or WAIT with a deadline in seconds; the binder says `waiting` and asks again until then."""

    status: Status = SUCCESS
    timeout_seconds: float = 0.0


class PermitPlugin(Plugin):
    """May the pod be bound now? Called by the binder after Reserve."""

    @abstractmethod
    def permit(self, state: CycleState, pod: Pod, node: str) -> Permission:
        """Asked again while it says WAIT; past the shortest deadline the pod is refused."""


class PreBindPlugin(Plugin):
    """What must be before the Binding. Called by the binder after Permit.

    ``wait_seconds`` is how long it may say WAIT; past that the pod is refused with ``too_late``.
    """

    wait_seconds: float = inf
    too_late: str = "PreBind was not done in time"

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        """What the binder has to write at the API server; nothing unless a plugin says otherwise.

        Asked once. ``pre_bind`` is asked for the first time when all of it is written and the binder has seen it.
        """
        del state, pod, node
        return ()

    @abstractmethod
    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Success, WAIT (not yet: the binder asks again), or a rejection, which undoes the reservation."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The request that binds a pod: the binder sends it. The uid keeps a namesake from being bound."""

    namespace: str
    name: str
    uid: str
    node: str


class BindPlugin(Plugin):
    """How the pod is bound."""

    @abstractmethod
    def bind(self, state: CycleState, pod: Pod, node: str) -> Binding | None:
        """The request to send, or None when this plugin does not bind this pod: then the next one is asked."""


class PostBindPlugin(Plugin):
    """Told that the pod is bound. Called by the binder after the API said so; the answer is not waited for."""

    @abstractmethod
    def post_bind(self, state: CycleState, pod: Pod, node: str) -> None:
        """For the plugin's own books."""
