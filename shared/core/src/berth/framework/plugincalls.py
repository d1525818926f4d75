"""Every call of a plugin's extension points, one function each.

An exception, an answer of the wrong type or range, or a Status of code ERROR becomes a PluginFailure that names the
plugin. Filter and Score of many nodes use the plugin's vector form if it has one. The watcher calls PreEnqueue and
queueing hints, the scheduling cycle the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timezone
from functools import partial
from pathlib import PurePath
from traceback import walk_tb
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from berth.api.devices import ResourceClaim
from berth.api.pod import Pod, priority_of
from berth.cluster.nodes import NodeInfo, Nodes, NodesWithAnother, RejectedNodes, RemovedPods, RowIndex
from berth.cluster.objects import Objects
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint, HintIndex, PodKey
from berth.framework.interface import (
    MAX_SCORE,
    MIN_SCORE,
    CallTimer,
    ClaimPreEnqueuePlugin,
    ExplainingPlugin,
    FilterPlugin,
    KeyedPlugin,
    LivePlugin,
    NormalizePlugin,
    Permission,
    Plugin,
    PostFilterResult,
    PreEnqueuePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    QueueSortPlugin,
    RemedyPlugin,
    RemedySentence,
    RowChanges,
    ScorePlugin,
    Scores,
    SpreadingPlugin,
    VectorExplainingPlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.status import SUCCESS, Code, CycleState, Status, Verdicts

P = ParamSpec("P")
R = TypeVar("R")
Clock = Callable[[], float]  # seconds from any starting point
_HINTS: Final = "EnqueueExtensions"  # names calls of queueing hints in failures


class PluginFailure(Exception):  # noqa: N818 - not every failure is an error of the program: a Status of code ERROR is one too
    """A plugin raised, returned a value of the wrong type or range, or returned ERROR. The text names the plugin."""


class PluginTimeout(PluginFailure):
    """A plugin's call took too long."""


class OutOfTime(BaseException):
    """Raised inside a plugin's call that takes too long; not an Exception, so that the plugin does not catch it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took longer than {seconds:g} s")


def call(plugin: Plugin, point: str, method: Callable[P, R], kind: type[R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a plugin's method and check the type of its answer.

    Raises:
        PluginFailure: the type is wrong, or the plugin raised. CancelledError and KeyboardInterrupt pass through.
    """
    if plugin.timing is not None:
        return _timed(plugin, plugin.timing, point, partial(_call, plugin, point, method, kind, *args, **kwargs))
    if plugin.limit is not None:
        return _call(plugin, point, method, kind, *args, **kwargs)
    try:  # as _call, without calling it: a cycle has 15 to 30 such calls
        answer = method(*args, **kwargs)
    except PluginFailure:
        raise
    except Exception as exc:
        raise _raised(plugin, point, exc) from exc
    if not isinstance(answer, kind):
        raise _unexpected(plugin, point, kind, answer)
    return answer


def call_within_limit(plugin: Plugin, point: str, work: Callable[[], R]) -> R:
    """Run work that calls a plugin, once or many times, within the plugin's time limit if it has one.

    Raises:
        PluginTimeout: it took too long.
    """
    if plugin.limit is None:
        return work()
    try:
        return plugin.limit(work)
    except OutOfTime as exc:
        raise PluginTimeout(f'running {point} plugin "{plugin.name}": {exc}') from exc


def error_of(plugin: Plugin, point: str, status: Status) -> Status:
    """A plugin's error in kube-scheduler's words, which name Filter in another way than other points."""
    what = f'"{plugin.name}" filter plugin' if point == "Filter" else f'{point} plugin "{plugin.name}"'
    return Status(Code.ERROR, (f"running {what}: {', '.join(status.reasons)}",), plugin.name)


def with_plugin_name(plugin: Plugin, point: str, status: Status) -> Status:
    """Add the plugin's name.

    Raises:
        PluginFailure: the status is an error.
    """
    if status.code is Code.ERROR:
        raise PluginFailure(", ".join(error_of(plugin, point, status).reasons))
    return status if status.plugin == plugin.name else Status(status.code, status.reasons, plugin.name)


# One function for each extension point. All raise PluginFailure.


def run_pod_keys(plugins: Sequence[KeyedPlugin], pod: Pod) -> tuple[Hashable, ...]:
    """All that these plugins read of the pod beside its spec."""

    def key_of(plugin: KeyedPlugin) -> Hashable:
        key = plugin.pod_key(pod)
        hash(key)  # here, so that a key without a hash is the plugin's failure
        return key

    return tuple([call(plugin, "PodKey", key_of, object, plugin) for plugin in plugins]) if plugins else ()


def run_pre_filter(plugin: PreFilterPlugin, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
    answer = call(plugin, "PreFilter", plugin.pre_filter, PreFilterResult, state, pod, snapshot)
    if answer.status.code in (Code.SUCCESS, Code.SKIP):
        return answer
    return PreFilterResult(with_plugin_name(plugin, "PreFilter", answer.status), answer.nodes)


def run_add_pod(plugin: PreFilterExtensions, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> None:
    _check_update(plugin, "AddPod", call(plugin, "AddPod", plugin.add_pod, Status, state, pod, added, node))


def run_remove_pod(plugin: PreFilterExtensions, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> None:
    _check_update(plugin, "RemovePod", call(plugin, "RemovePod", plugin.remove_pod, Status, state, pod, removed, node))


def run_filter(plugin: FilterPlugin, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
    """The answer for one node, without the plugin's name; it may be an ERROR."""
    return call(plugin, "Filter", plugin.filter, Status, state, pod, node)


def run_filter_on_all(plugin: FilterPlugin, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
    """One verdict per node; success for rows without a node, which is ignored."""

    def one_by_one(infos: Iterable[NodeInfo | None]) -> Verdicts:
        statuses = (SUCCESS if info is None else run_filter(plugin, state, pod, info) for info in infos)
        return call_within_limit(plugin, "Filter", partial(Verdicts.of, statuses))

    if not isinstance(plugin, VectorFilterPlugin):
        return one_by_one(nodes.infos())
    verdicts = call(plugin, "Filter", plugin.filter_all, Verdicts, state, pod, nodes)
    verdicts = _checked_verdicts(plugin, verdicts, nodes.size)
    large = _large(plugin, nodes)
    return verdicts if large is None else verdicts.with_others(large, one_by_one(nodes.infos_at(large)))


def _large(plugin: Plugin, nodes: Nodes) -> RowIndex | None:
    """Positions that the scalar form answers for, because their amounts are rounded in columns."""
    if not plugin.reads_amounts or not nodes.snapshot.columns.large:
        return None
    large = nodes.with_large_amounts()
    return large if len(large) else None


def run_refused_without(
    plugin: PreFilterExtensions, state: CycleState, pod: Pod, nodes: Nodes, removed: RemovedPods
) -> Verdicts | None:
    """Nodes that the plugin certainly rejects without some pods; None if not computable for all nodes at once."""
    answer = call(plugin, "Filter", plugin.rejected_without, object, state, pod, nodes, removed)
    return answer if isinstance(answer, Verdicts) else None


def run_remedy(plugin: RemedyPlugin, state: CycleState, pod: Pod, nodes: RejectedNodes) -> list[RemedySentence]:
    """What would help the pod on the nodes that the plugin's Filter rejects."""
    sentences = call(plugin, "Remedy", lambda: list(plugin.remedy(state, pod, nodes)), list)
    for sentence in sentences:
        if not isinstance(sentence, RemedySentence):
            raise _unexpected(plugin, "Remedy", RemedySentence, sentence)
        for mask in (sentence.nodes, sentence.only):
            if mask is not None and (np.shape(mask) != (nodes.size,) or np.asarray(mask).dtype != np.bool_):
                raise PluginFailure(f'running Remedy plugin "{plugin.name}": want bool[{nodes.size}], got {mask!r:.80}')
    return sentences


def run_remedy_by_reason(plugin: RemedyPlugin, reason: str, nodes: Nodes) -> RemedySentence | None:
    answer = call(plugin, "Remedy", plugin.remedy_by_reason, object, reason, nodes)
    if answer is not None and not isinstance(answer, RemedySentence):
        raise _unexpected(plugin, "Remedy", RemedySentence, answer)
    return answer


def run_pre_score(plugin: PreScorePlugin, state: CycleState, pod: Pod, nodes: Nodes) -> bool:
    """Run PreScore. Returns whether the plugin's Score is skipped."""
    status = call(plugin, "PreScore", plugin.pre_score, Status, state, pod, nodes)
    if status.code not in (Code.SUCCESS, Code.SKIP):
        raise PluginFailure(f'running PreScore plugin "{plugin.name}": {", ".join(status.reasons)}')
    return status.code is Code.SKIP


def run_score(plugin: ScorePlugin, state: CycleState, pod: Pod, node: NodeInfo) -> int:
    """The raw score of one node, within 64 bits."""
    score = call(plugin, "Score", plugin.score, int, state, pod, node)
    return score if -_BEYOND_64_BITS <= score < _BEYOND_64_BITS else int(_int64(plugin, [score])[0])


def run_score_on_all(plugin: ScorePlugin, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
    """One raw score per node; 0 for rows without a node, which is ignored."""

    def one_by_one(infos: Iterable[NodeInfo | None]) -> Scores:
        scores = (0 if info is None else call(plugin, "Score", plugin.score, int, state, pod, info) for info in infos)
        return _int64(plugin, call_within_limit(plugin, "Score", partial(list, scores)))

    if not isinstance(plugin, VectorScorePlugin):
        return one_by_one(nodes.infos())
    scores = call(plugin, "Score", plugin.score_all, np.ndarray, state, pod, nodes)
    scores = _checked_scores(plugin, scores, nodes.size)
    large = _large(plugin, nodes)
    if large is not None:
        scores = scores.copy()
        scores[large] = one_by_one(nodes.infos_at(large))
    return scores


def run_score_with_another(plugin: ScorePlugin, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores:
    """Run Score with one more pod on each node."""
    answer = call(plugin, "Score", plugin.score_with_another, object, state, pod, nodes)
    return (
        _checked_scores(plugin, answer, nodes.size)
        if isinstance(answer, np.ndarray)
        else run_score_on_all(plugin, state, pod, nodes)
    )


def run_row_changes(plugin: LivePlugin, point: str, snapshot: Snapshot, since: int) -> RowChanges:
    return call(plugin, point, plugin.row_changes, RowChanges, snapshot, since)


def run_explain(plugin: ExplainingPlugin, state: CycleState, pod: Pod, nodes: Nodes) -> list[str]:
    """One line per node."""
    if isinstance(plugin, VectorExplainingPlugin):
        lines: list[str] = call(plugin, "Explain", plugin.explain_all, list, state, pod, nodes)
        if len(lines) != nodes.size:
            raise PluginFailure(f'running Explain plugin "{plugin.name}": want {nodes.size} lines, got {len(lines)}')
        return lines
    infos = (info for info in nodes.infos() if info is not None)
    return [call(plugin, "Explain", plugin.explain, str, state, pod, info) for info in infos]


def run_normalize(plugin: NormalizePlugin, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
    """The normalized scores; their range is not checked yet."""
    normalized = call(plugin, "NormalizeScore", plugin.normalize, np.ndarray, state, pod, scores, nodes)
    return _checked_scores(plugin, normalized, nodes.size)


def run_counted_pods(plugin: SpreadingPlugin, pod: Pod, nodes: Nodes) -> Scores:
    counts = call(plugin, "Score", plugin.counted_pods, np.ndarray, pod, nodes)
    return _checked_scores(plugin, counts, nodes.size)


def check_range(plugin: Plugin, scores: Scores) -> int:
    """Check that normalized scores are within 0..100; return the highest."""
    if not len(scores):
        return 0
    high = highest(scores)
    if high > MAX_SCORE:
        low = int(scores.min())
        raise PluginFailure(
            f'applying score defaultWeights on Score plugins: plugin "{plugin.name}" returns an invalid score '
            f"{low if low < MIN_SCORE else high}, "
            f"it should in the range of [{MIN_SCORE}, {MAX_SCORE}] after normalizing"
        )
    return high


def highest(scores: Scores) -> int:
    """The highest score; a negative one counts as higher than all others."""
    return int(np.maximum.reduce(scores.view(np.uint64)))  # one pass finds both


class Duration(NamedTuple):
    """Seconds, result, and start by the clock of its :class:`Timing`; start 0 for several calls together."""

    seconds: float
    code: Code
    began: float = 0.0


class Timing:
    """Durations of the extension points and plugins of one cycle, by the given clock.

    ``points``: by extension point, all plugins together. ``plugins``: by plugin and extension point, all calls of the
    cycle together, if the profile has this timing (``Profile.time_plugins``). Plugins with cached answers are missing.
    """

    def __init__(self, clock: Clock) -> None:
        self.points: dict[str, Duration] = {}
        self.plugins: dict[tuple[str, str], Duration] = {}
        self.clock = clock
        self._point = ""
        self._since = 0.0

    def begin(self, point: str) -> None:
        self._point, self._since = point, self.clock()

    def end(self, code: Code = Code.SUCCESS) -> None:
        """Stop timing: all plugins of the point have been called."""
        self.points[self._point] = Duration(self.clock() - self._since, code, self._since)
        self._point = ""

    def fail(self) -> None:
        """End the current point, if any, with an error."""
        if self._point:
            self.end(Code.ERROR)

    def record(self, plugin: str, point: str, seconds: float, code: Code) -> None:
        """Add one call. After a successful call only an error changes the code."""
        before = self.plugins.get((plugin, point))
        if before is not None:
            seconds += before.seconds
            code = Code.SUCCESS if before.code is Code.SUCCESS and code is not Code.ERROR else code
        self.plugins[plugin, point] = Duration(seconds, code)


def no_clock() -> float:
    """The clock of an untimed cycle."""
    return 0.0


def _call(plugin: Plugin, point: str, method: Callable[P, R], kind: type[R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        answer = call_within_limit(plugin, point, partial(method, *args, **kwargs))
    except PluginFailure:
        raise
    except Exception as exc:
        raise _raised(plugin, point, exc) from exc
    if not isinstance(answer, kind):
        raise _unexpected(plugin, point, kind, answer)
    return answer


def _raised(plugin: Plugin, point: str, exc: Exception) -> PluginFailure:
    error = f"{type(exc).__name__}: {exc}"
    return PluginFailure(f'running {point} plugin "{plugin.name}": {error} ({_place(plugin, exc)})')


def _place(plugin: Plugin, exc: Exception) -> str:
    """The plugin's file and line where this was raised, because its author sees no traceback."""
    package = type(plugin).__module__.partition(".")[0]
    places = list(walk_tb(exc.__traceback__))
    own = [each for each in places if str(each[0].f_globals.get("__name__")).partition(".")[0] == package]
    frame, line = (own or places)[-1]
    return f"{PurePath(frame.f_code.co_filename).name}:{line}"


def _unexpected(plugin: Plugin, point: str, kind: type, answer: object) -> PluginFailure:
    return PluginFailure(f'running {point} plugin "{plugin.name}": want {kind.__name__}, got {answer!r:.80}')


def _timed(plugin: Plugin, timer: CallTimer, point: str, work: Callable[[], R]) -> R:
    began, code = timer.clock(), Code.ERROR
    try:
        answer = work()
        code = _code_of(answer)
    finally:
        timer.record(plugin.name, point, timer.clock() - began, code)
    return answer


def _code_of(answer: object) -> Code:
    # An answer for many nodes is a success if one of them passed.
    if isinstance(answer, Verdicts):
        return Code.SUCCESS if not len(answer.codes) or (answer.codes == 0).any() else Code.UNSCHEDULABLE
    if isinstance(answer, PostFilterResult):
        return Code.SUCCESS if answer.nomination is not None else Code.UNSCHEDULABLE
    if isinstance(answer, PreFilterResult | Permission):
        return answer.status.code
    return answer.code if isinstance(answer, Status) else Code.SUCCESS


def _check_update(plugin: Plugin, point: str, status: Status) -> None:
    if not status.is_success:
        raise PluginFailure(f'running {point} on PreFilter plugin "{plugin.name}": {status.reasons}')


def _checked_verdicts(plugin: Plugin, verdicts: Verdicts, length: int) -> Verdicts:
    """Check that the verdicts are complete: one per node, each with its status."""
    codes = verdicts.codes
    if codes.shape == (length,) and not np.count_nonzero(codes):
        return verdicts
    if codes.shape != (length,) or np.maximum.reduce(codes) >= len(verdicts.statuses) or np.minimum.reduce(codes) < 0:
        raise PluginFailure(
            f'running Filter plugin "{plugin.name}": want {length} codes below {len(verdicts.statuses)}, '
            f"got {codes!r:.80}"
        )
    return verdicts


# Kinds of dtypes: `np.issubdtype` gives the same answer in 3 µs.
_WHOLE: Final = "iu"


def _checked_scores(plugin: Plugin, scores: Scores, length: int) -> Scores:
    """The scores as int64, if there is an integer for each node."""
    if scores.shape != (length,) or scores.dtype.kind not in _WHOLE:
        raise PluginFailure(f'running Score plugin "{plugin.name}": want {length} whole numbers, got {scores!r:.80}')
    return scores.astype(np.int64, copy=False)


_BEYOND_64_BITS: Final = 2**63


def _int64(plugin: Plugin, scores: list[int]) -> Scores:
    try:
        return np.array(scores, dtype=np.int64)
    except OverflowError as exc:
        largest = max(scores, key=abs)
        raise PluginFailure(
            f'running Score plugin "{plugin.name}": want whole numbers of 64 bits, got {largest}'
        ) from exc


# The types of a key's values, then the values, so that values of different types are never compared.
SortKey = tuple[str, tuple[Any, ...]]

# Fixed timestamp. Pods whose sort keys are equal at this time have the same rank.
ONE_TIME: Final = datetime.min.replace(tzinfo=UTC)


def run_sort_key(plugin: QueueSortPlugin, pod: Pod, since: datetime) -> SortKey:
    # Keys must be tuples of numbers, strings and datetimes: a comparison that raises inside the heap is not caught.
    key = call(plugin, _QUEUE_SORT, plugin.sort_key, tuple, pod, since)
    types = _types_of(key, depth=0)
    if types is None:
        raise PluginFailure(
            f'running {_QUEUE_SORT} plugin "{plugin.name}": want a tuple of numbers, texts and times, got {key!r:.80}'
        )
    return types, key


def default_sort_key(pod: Pod, since: datetime) -> SortKey:
    """The sort key of a pod for which the plugin failed: by priority and age."""
    key = (-priority_of(pod), since)
    return _types_of(key, depth=0) or "", key


def run_pre_enqueue(plugin: PreEnqueuePlugin, pod: Pod, claims: Objects[ResourceClaim] | None = None) -> Status:
    if claims is not None and isinstance(plugin, ClaimPreEnqueuePlugin):
        status = call(plugin, "PreEnqueue", plugin.pre_enqueue_with, Status, pod, claims)
    else:
        status = call(plugin, "PreEnqueue", plugin.pre_enqueue, Status, pod)
    return with_plugin_name(plugin, "PreEnqueue", status)


_QUEUE_SORT: Final = "QueueSort"
_MAX_DEPTH: Final = 4
_TYPES: Final[Mapping[type, str]] = {bool: "n", int: "n", float: "n", str: "s", bytes: "b"}


def _types_of(value: object, *, depth: int) -> str | None:
    """A letter per type; None if a value must not be compared with others of its type."""
    if type(value) is tuple:
        parts = [_types_of(part, depth=depth + 1) for part in value] if depth < _MAX_DEPTH else [None]
        return None if None in parts else f"({''.join(part for part in parts if part)})"
    if isinstance(value, datetime):
        return "u" if value.tzinfo is None else "t" if type(value.tzinfo) is timezone else None
    found = _TYPES.get(type(value))
    return None if found is None or value != value else found  # noqa: PLR0124 - NaN does not equal itself


def pre_enqueue(plugins: Sequence[PreEnqueuePlugin], pod: Pod) -> Status:
    """Success, or the first rejection; an error with the plugin's name if a plugin failed."""
    for plugin in plugins:
        try:
            status = run_pre_enqueue(plugin, pod)
        except PluginFailure as failure:
            return Status.error(str(failure))
        if not status.is_success:
            return status
    return SUCCESS


def run_hint(plugin: Plugin, hint: EventHint, pod: Pod, old: object, new: object) -> bool:
    ask = hint.hint
    return ask is None or call(plugin, _HINTS, lambda: bool(ask(pod, old, new)), bool)


def run_key(plugin: Plugin, key: PodKey, pod: Pod) -> Hashable:
    def hashable() -> Hashable:
        found = key(pod)
        hash(found)
        return found

    return call(plugin, _HINTS, hashable, object)


def find_in_index(plugin: Plugin, index: HintIndex, old: object, new: object) -> list[Hashable]:
    return call(plugin, _HINTS, lambda: list(index.find(old, new)), list)


def update_index(plugin: Plugin, update: Callable[[], None]) -> None:
    call(plugin, _HINTS, update, object)
