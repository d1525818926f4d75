"""A profile: the plugins for the pods of one scheduler name, by extension point, with their weights.

It also has ``percentageOfNodesToScore``: how many feasible nodes are enough, and which. Filters run on all nodes at
once; the percentage saves scoring. Nodes are chosen for scoring as if they had been filtered one after another from
where the last pod's search ended, so that every node is scored in turn.
"""

# Extension points are abstract; their types are compared here, never instantiated.
# mypy: disable-error-code="type-abstract"
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol, TypeVar

import numpy as np

from berth.api.config.configuration import (
    EVERY_NODE,
    ExtenderConfiguration,
    KubeSchedulerConfiguration,
    ProfileConfiguration,
)
from berth.api.config.types import PluginRef, Point
from berth.api.pod import Pod
from berth.cluster.nodes import Mask, RowIndex
from berth.cluster.pods import TRAITS_OF_CLASS, TRAITS_OF_NODES, Trait
from berth.framework.events import EARMARK_ENDED, Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.extending import EXTENDER, binds, is_interested
from berth.framework.interface import (
    MAX_SCORE,
    AllocatingPlugin,
    BindPlugin,
    CallTimer,
    ClaimPreEnqueuePlugin,
    EnqueueExtensions,
    ExplainingPlugin,
    FilterPlugin,
    KeyedPlugin,
    NormalizePlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    RemedyPlugin,
    ReservePlugin,
    ScorePlugin,
    SpreadingPlugin,
)
from berth.messages.earmarks import FILTER
from berth.messages.livedata import LiveSource

# kube-scheduler's minFeasibleNodesToFind: fewer nodes leave too little choice.
MIN_FEASIBLE_NODES: Final = 100


def nodes_to_find(count: int, percentage: int) -> int:
    """The number of feasible nodes that ends the search among ``count`` nodes."""
    if percentage == EVERY_NODE or count < MIN_FEASIBLE_NODES:
        return count
    return min(count, max(MIN_FEASIBLE_NODES, count * percentage // 100))


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """``rows``: feasible nodes, ascending. ``evaluated``: number of nodes filtered to find them."""

    rows: RowIndex
    evaluated: int


@dataclass(slots=True)
class NodeSearch:
    """The start of the next search; one for all profiles of a process, as in kube-scheduler."""

    next_row: int = 0

    def find(self, feasible: Mask, exists: Mask, wanted: int) -> FoundNodes:
        """The first ``wanted`` feasible rows from the end of the last search, wrapping around."""
        rows, count = np.flatnonzero(feasible), int(np.count_nonzero(exists))
        if len(rows) <= wanted:
            return FoundNodes(rows, count)  # All were filtered: the next search begins where this one did.
        begin = self.next_row if self.next_row < len(feasible) else 0
        in_turn = np.roll(rows, -int(np.searchsorted(rows, begin)))[:wanted]
        last = int(in_turn[-1])
        self.next_row = last + 1
        passed = exists[begin : last + 1] if last >= begin else np.concatenate((exists[begin:], exists[: last + 1]))
        return FoundNodes(np.sort(in_turn), int(np.count_nonzero(passed)))


P = TypeVar("P", bound=Plugin)


class GroupEarmark(EnqueueExtensions):
    """Registers the events that may help a pod which an earmark keeps out. In every profile, since its filter is."""

    name: ClassVar[str] = FILTER

    def events(self) -> Sequence[EventHint]:
        return (
            EventHint(EARMARK_ENDED, key=nothing),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD), key=nothing),
        )


class ServiceName(StrEnum):
    """The services that call plugins."""

    WATCHER = "watcher"
    SCORER = "scorer"
    BINDER = "binder"


# By extension point, the class from which its plugins inherit.
POINT_TYPES: Final[Mapping[Point, type[Plugin]]] = {
    Point.PRE_ENQUEUE: PreEnqueuePlugin,
    Point.QUEUE_SORT: QueueSortPlugin,
    Point.PRE_FILTER: PreFilterPlugin,
    Point.FILTER: FilterPlugin,
    Point.POST_FILTER: PostFilterPlugin,
    Point.PRE_SCORE: PreScorePlugin,
    Point.SCORE: ScorePlugin,
    Point.RESERVE: ReservePlugin,
    Point.PERMIT: PermitPlugin,
    Point.PRE_BIND: PreBindPlugin,
    Point.BIND: BindPlugin,
    Point.POST_BIND: PostBindPlugin,
}


# Points at which a plugin can reject a pod, so that its events are needed.
REFUSING: Final = frozenset((Point.PRE_ENQUEUE, Point.PRE_FILTER, Point.FILTER, Point.RESERVE, Point.PERMIT))


# The services that call each extension point, including points that no configuration file names.
RUNS_IN: Final[Mapping[type[Plugin], tuple[ServiceName, ...]]] = {
    PreEnqueuePlugin: (ServiceName.WATCHER,),
    ClaimPreEnqueuePlugin: (ServiceName.WATCHER,),
    QueueSortPlugin: (ServiceName.WATCHER,),
    EnqueueExtensions: (ServiceName.WATCHER,),
    KeyedPlugin: (ServiceName.SCORER, ServiceName.BINDER),
    PreFilterPlugin: (ServiceName.SCORER, ServiceName.BINDER),
    PreFilterExtensions: (ServiceName.SCORER, ServiceName.BINDER),
    FilterPlugin: (ServiceName.SCORER, ServiceName.BINDER),
    PostFilterPlugin: (ServiceName.SCORER, ServiceName.BINDER),
    RemedyPlugin: (),  # people's commands
    AllocatingPlugin: (ServiceName.SCORER, ServiceName.BINDER),
    PreScorePlugin: (ServiceName.SCORER,),
    ScorePlugin: (ServiceName.SCORER,),
    NormalizePlugin: (ServiceName.SCORER,),
    ReservePlugin: (ServiceName.BINDER,),
    PermitPlugin: (ServiceName.BINDER,),
    PreBindPlugin: (ServiceName.BINDER,),
    BindPlugin: (ServiceName.BINDER,),
    PostBindPlugin: (ServiceName.BINDER,),
}


def services_of(point: Point) -> tuple[ServiceName, ...]:
    """The services that call plugins at this point of a configuration."""
    return RUNS_IN[POINT_TYPES[point]]


@dataclass(frozen=True, slots=True)
class WeightedScore:
    """A score plugin and its weight, which multiplies the normalized score."""

    plugin: ScorePlugin
    weight: int


@dataclass(eq=False)
class Profile:
    """Plugins in the order in which they run at each point."""

    scheduler_name: str
    queue_sort: QueueSortPlugin
    pre_enqueues: tuple[PreEnqueuePlugin, ...] = ()
    pre_filters: tuple[PreFilterPlugin, ...] = ()
    filters: tuple[FilterPlugin, ...] = ()
    post_filters: tuple[PostFilterPlugin, ...] = ()
    pre_scores: tuple[PreScorePlugin, ...] = ()
    scores: tuple[WeightedScore, ...] = ()
    reserves: tuple[ReservePlugin, ...] = ()
    permits: tuple[PermitPlugin, ...] = ()
    pre_binds: tuple[PreBindPlugin, ...] = ()
    binds: tuple[BindPlugin, ...] = ()
    post_binds: tuple[PostBindPlugin, ...] = ()
    percentage_of_nodes_to_score: int = EVERY_NODE
    search: NodeSearch = field(default_factory=NodeSearch)
    extenders: tuple[ExtenderConfiguration, ...] = ()  # called by the caller of a cycle
    # Filters that the file does not name. They keep pods that come one by one to what their group is promised.
    in_every_profile: tuple[Plugin, ...] = ()
    requeueing: Mapping[str, Plugin] = field(init=False)  # the plugins that can reject a pod, by name
    # Events by plugin; None for a plugin without EnqueueExtensions.
    event_hints: Mapping[str, Sequence[EventHint] | None] = field(init=False)
    rejects_for: Mapping[str, float] = field(init=False)  # seconds, of plugins whose rejections end without an event
    # The names that a rejection can have: plugins, and EXTENDER.
    rejecting: frozenset[str] = field(init=False)
    # The plugins whose answers the equivalence cache keeps.
    local_pre_filters: tuple[PreFilterPlugin, ...] = field(init=False)
    local_filters: tuple[FilterPlugin, ...] = field(init=False)
    local_pre_scores: tuple[PreScorePlugin, ...] = field(init=False)
    local_scores: tuple[WeightedScore, ...] = field(init=False)
    # The row-local plugins that read more of the pod than its spec.
    keyed: tuple[KeyedPlugin, ...] = field(init=False)
    # The score plugins whose score another pod on a node may change.
    scores_that_read_pods: tuple[WeightedScore, ...] = field(init=False)
    weights: dict[str, int] = field(init=False)
    allocating: tuple[AllocatingPlugin, ...] = field(init=False)
    # The score plugins that add a line to the best nodes.
    explaining: tuple[ExplainingPlugin, ...] = field(init=False)
    # The score plugin that keeps pods of a kind apart, if its weight outweighs all other scores together. Then a node
    # with fewer pods of the kind is better regardless of the other scores.
    spreading: SpreadingPlugin | None = field(init=False)
    # Whether the node with fewer pods wins among equal totals: no plugin prefers nodes with more.
    fewer_pods_first: bool = field(init=False)

    _ranking: tuple[Plugin, ...] = field(init=False)  # the plugins that filter and score
    _cycle: tuple[Plugin, ...] = field(init=False)  # the plugins of the scheduling cycle, also those after a rejection
    _particular: tuple[tuple[str, int], ...] = field(init=False)  # of plugins that only some pods need: their traits
    _left_out: dict[int, frozenset[str]] = field(init=False, default_factory=dict)  # by the traits of the pod

    def __post_init__(self) -> None:
        """Compute all that follows from the plugins once, so that no cycle does."""
        scoring = (*self.pre_scores, *(score.plugin for score in self.scores))
        self._ranking = (*self.pre_filters, *self.filters, *scoring)
        self._cycle = (*self._ranking, *self.post_filters)
        called = dict.fromkeys((*self._cycle, *self.reserves, *self.permits, *self.pre_binds))
        self._particular = tuple((p.name, int(p.only_for or 0)) for p in called if self._may_be_left_out(p))
        self._find_events()
        self._find_local_plugins()
        self._compare_scores()

    def _find_events(self) -> None:
        called = (*self.pre_enqueues, *self.pre_filters, *self.filters, *self.reserves, *self.permits)
        rejecting: tuple[Plugin, ...] = (*called, GroupEarmark())
        self.requeueing = {p.name: p for p in rejecting}
        self.rejects_for = {
            p.name: p.rejects_for.total_seconds()
            for p in rejecting
            if isinstance(p, EnqueueExtensions) and p.rejects_for is not None
        }
        self.event_hints = {p.name: p.events() if isinstance(p, EnqueueExtensions) else None for p in rejecting}
        if any(extender.filters for extender in self.extenders):
            self.event_hints = {**self.event_hints, EXTENDER: None}
        self.rejecting = frozenset((*self.event_hints, *(plugin.name for plugin in self.pre_binds)))

    def _find_local_plugins(self) -> None:
        self.local_pre_filters = tuple(plugin for plugin in self.pre_filters if plugin.is_row_local)
        self.local_filters = tuple(plugin for plugin in self.filters if plugin.is_row_local)
        self.allocating = tuple(plugin for plugin in self.filters if isinstance(plugin, AllocatingPlugin))
        self.local_pre_scores = tuple(plugin for plugin in self.pre_scores if plugin.is_row_local)
        self.local_scores = tuple(score for score in self.scores if score.plugin.is_row_local)
        local = dict.fromkeys(plugin for plugin in self._ranking if plugin.is_row_local)
        self.keyed = tuple(plugin for plugin in local if isinstance(plugin, KeyedPlugin))
        self.scores_that_read_pods = tuple(
            score
            for score in self.scores
            if (score.plugin.reads_pods if score.plugin.is_row_local else score.plugin.depends_on_pods)
        )

    def _compare_scores(self) -> None:
        self.weights = {score.plugin.name: score.weight for score in self.scores}
        self.explaining = tuple(score.plugin for score in self.scores if isinstance(score.plugin, ExplainingPlugin))
        self.fewer_pods_first = not any(score.plugin.packs for score in self.scores)
        self.spreading = None
        of_all = sum(score.weight for score in self.scores)
        for score in self.scores:
            if isinstance(score.plugin, SpreadingPlugin) and score.weight > MAX_SCORE * (of_all - score.weight):
                self.spreading = score.plugin
                break

    @cached_property
    def of_plans(self) -> Profile:
        """The profile for plans of whole groups, which choose a domain before they place members."""
        pre_filters = tuple(plugin for plugin in self.pre_filters if plugin not in self.in_every_profile)
        filters = tuple(plugin for plugin in self.filters if plugin not in self.in_every_profile)
        return replace(self, pre_filters=pre_filters, filters=filters)

    def left_out(self, traits: int) -> frozenset[str]:
        """The plugins that have nothing to do for a pod with these traits (``Plugin.only_for``)."""
        known = self._left_out.get(traits)
        if known is None:
            known = frozenset([name for name, only_for in self._particular if not only_for & traits])
            self._left_out[traits] = known
        return known

    def is_row_local_for(self, traits: int) -> bool:
        """Whether no plugin of a cycle looks beyond a row for pods with these traits: of labels only keys matter."""
        left_out = self.left_out(traits)
        return all(plugin.is_row_local or plugin.name in left_out for plugin in self._ranking)

    def pre_enqueues_of(self, pod: Pod) -> Sequence[PreEnqueuePlugin]:
        """The PreEnqueue plugins; for a pod without gates and claims, without those that matter to no such pod."""
        return self.pre_enqueues if pod.spec.scheduling_gates or pod.spec.resource_claims else self._for_ordinary

    @cached_property
    def _for_ordinary(self) -> tuple[PreEnqueuePlugin, ...]:
        return tuple(
            plugin
            for plugin in self.pre_enqueues
            if plugin.only_for != Trait.SCHEDULING_GATES and not isinstance(plugin, ClaimPreEnqueuePlugin)
        )

    def _may_be_left_out(self, plugin: Plugin) -> bool:
        if plugin.only_for is None:
            return False
        if plugin.is_row_local and plugin.only_for & ~(TRAITS_OF_CLASS | TRAITS_OF_NODES):
            return False  # its answers are kept for the class, whose pods may differ in the other traits
        # Without its PreFilter or PreScore in the profile, the plugin never skips a pod.
        filters: Sequence[Plugin] = self.filters
        scores: Sequence[Plugin] = [score.plugin for score in self.scores]
        if isinstance(plugin, PreFilterPlugin) and plugin in filters and plugin not in self.pre_filters:
            return False
        return not (isinstance(plugin, PreScorePlugin) and plugin in scores and plugin not in self.pre_scores)

    def asks_extenders(self, pod: Pod) -> bool:
        """Whether extenders filter or score nodes for the pod."""
        return any(extender.is_asked and is_interested(extender, pod) for extender in self.extenders)

    def is_extended(self, pod: Pod) -> bool:
        """Whether extenders filter nodes for the pod: nodes that pass the plugins' filters may still be rejected."""
        return any(extender.filter_verb and is_interested(extender, pod) for extender in self.extenders)

    @cached_property
    def asks_before_evictions(self) -> bool:
        """Whether the binder asks an extender before it evicts, for some pods."""
        return any(extender.filters for extender in self.extenders)

    def asked_before_evictions(self, pod: Pod) -> tuple[str, ...]:
        """The extenders that the binder asks before it evicts for the pod, by name."""
        return tuple(each.name for each in self.extenders if each.filters and is_interested(each, pod))

    def filters_evictions(self, pod: Pod) -> bool:
        """Whether extenders filter evictions for the pod."""
        return any(extender.preempt_verb and is_interested(extender, pod) for extender in self.extenders)

    def is_bound_by_extender(self, pod: Pod) -> bool:
        """Whether an extender binds the pod instead of the binder."""
        return any(binds(extender, pod) for extender in self.extenders)

    @property
    def live_sources(self) -> frozenset[LiveSource]:
        """Live data that plugins of the scheduling cycle read: the scorer subscribes to it."""
        scoring: tuple[Plugin, ...] = (*self.pre_scores, *(score.plugin for score in self.scores), *self.post_filters)
        return self.live_sources_of_filters.union(*(plugin.live_sources for plugin in scoring))

    @property
    def live_sources_of_filters(self) -> frozenset[LiveSource]:
        """Live data of plugins that run again before each commit: the binder subscribes to it."""
        plugins: tuple[Plugin, ...] = (*self.pre_filters, *self.filters, *self.reserves, *self.permits, *self.pre_binds)
        return frozenset[LiveSource]().union(*(plugin.live_sources for plugin in plugins))

    def time_plugins(self, timing: CallTimer | None) -> None:
        """Record the calls of the scheduling cycle from now on; None stops it."""
        for plugin in self._cycle:
            plugin.timing = timing


def build_profiles(
    configuration: KubeSchedulerConfiguration,
    registry: Mapping[str, Factory],
    in_every_profile: Sequence[Callable[[], Plugin]] = (),
) -> dict[str, Profile]:
    """A profile for each scheduler name of a valid configuration.

    ``in_every_profile``: makers of filters that no file can name or leave out.
    """
    search = NodeSearch()
    return {
        profile.scheduler_name: build_profile(profile, registry, search, configuration.extenders, in_every_profile)
        for profile in configuration.profiles
    }


def build_profile(
    configuration: ProfileConfiguration,
    registry: Mapping[str, Factory],
    search: NodeSearch | None = None,
    extenders: tuple[ExtenderConfiguration, ...] = (),
    in_every_profile: Sequence[Callable[[], Plugin]] = (),
) -> Profile:
    """Build each plugin once, however many points it has; ``search`` is shared with other profiles."""
    lists = configuration.plugins
    names = dict.fromkeys(ref.name for point in Point for ref in lists.get(point, ()))
    plugins = {name: registry[name].build(configuration.args.get(name)) for name in names}

    def at(point: Point, kind: type[P]) -> tuple[P, ...]:
        return _of_kind(kind, (plugins[ref.name] for ref in lists.get(point, ())))

    (queue_sort,) = at(Point.QUEUE_SORT, QueueSortPlugin)
    # Before the file's plugins: the first filter that rejects a node gives its reasons, and these explain the most.
    always = [make() for make in in_every_profile]
    return Profile(
        scheduler_name=configuration.scheduler_name,
        queue_sort=queue_sort,
        pre_enqueues=at(Point.PRE_ENQUEUE, PreEnqueuePlugin),
        pre_filters=(*_of_kind(PreFilterPlugin, always), *at(Point.PRE_FILTER, PreFilterPlugin)),
        filters=(*_of_kind(FilterPlugin, always), *at(Point.FILTER, FilterPlugin)),
        post_filters=at(Point.POST_FILTER, PostFilterPlugin),
        pre_scores=at(Point.PRE_SCORE, PreScorePlugin),
        scores=_weighted(lists.get(Point.SCORE, ()), plugins),
        reserves=at(Point.RESERVE, ReservePlugin),
        permits=at(Point.PERMIT, PermitPlugin),
        pre_binds=at(Point.PRE_BIND, PreBindPlugin),
        binds=at(Point.BIND, BindPlugin),
        post_binds=at(Point.POST_BIND, PostBindPlugin),
        percentage_of_nodes_to_score=configuration.percentage_of_nodes_to_score,
        search=search or NodeSearch(),
        extenders=extenders,
        in_every_profile=tuple(always),
    )


def _of_kind(kind: type[P], plugins: Iterable[Plugin]) -> tuple[P, ...]:
    return tuple(plugin for plugin in plugins if isinstance(plugin, kind))


def _weighted(refs: Sequence[PluginRef], plugins: Mapping[str, Plugin]) -> tuple[WeightedScore, ...]:
    # A weight that is absent or 0 is 1.
    found = ((plugins[ref.name], ref.weight or 1) for ref in refs)
    return tuple(WeightedScore(plugin, weight) for plugin, weight in found if isinstance(plugin, ScorePlugin))


class Factory(Protocol):
    """A factory of the registry, as a profile needs it."""

    @property
    def build(self) -> Callable[[Any], Plugin]:
        """Make the plugin from its arguments."""
        ...
