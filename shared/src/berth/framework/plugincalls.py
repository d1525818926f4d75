"""The line between framework and plugins: what a plugin raises or answers in a wrong form is its failure, by name.

Asking one plugin about many nodes: by its vector form where it has one, one node after another otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.framework.interface import (
    MAX_SCORE,
    MIN_SCORE,
    FilterPlugin,
    Permission,
    Plugin,
    PostFilterResult,
    PreFilterResult,
    ScorePlugin,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Code, Status, Verdicts
from berth.framework.timing import Timing

P = ParamSpec("P")

R = TypeVar("R")


class OutOfTime(BaseException):
    """A plugin's call has taken the seconds that it had: raised within it, and not for its ``except Exception``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took longer than {seconds:g} s")


class PluginFailure(Exception):  # noqa: N818 - not every failure is an error of the program: a Status of code ERROR is one too
    """A plugin raised, answered in a wrong form, or said ERROR. The text names it."""


def call(plugin: Plugin, point: str, method: Callable[P, R], kind: type[R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a plugin's method and see that it answers with what its contract says.

    Raises:
        PluginFailure: it does not, or it raised. CancelledError, KeyboardInterrupt and their like pass through.
    """
    if plugin.timing is not None:
        return _timed(plugin, plugin.timing, point, partial(_call, plugin, point, method, kind, *args, **kwargs))
    return _call(plugin, point, method, kind, *args, **kwargs)


def _timed(plugin: Plugin, timing: Timing, point: str, work: Callable[[], R]) -> R:
    began, code = timing.clock(), Code.ERROR
    try:
        answer = work()
        code = _code_of(answer)
    finally:
        timing.asked(plugin.name, point, timing.clock() - began, code)
    return answer


def _code_of(answer: object) -> Code:
    """How a call ended. What is said of many nodes at once is a success when one of them passed."""
    if isinstance(answer, Verdicts):
        return Code.SUCCESS if not len(answer.codes) or (answer.codes == 0).any() else Code.UNSCHEDULABLE
    if isinstance(answer, PostFilterResult):
        return Code.SUCCESS if answer.nomination is not None else Code.UNSCHEDULABLE
    if isinstance(answer, PreFilterResult | Permission):
        return answer.status.code
    return answer.code if isinstance(answer, Status) else Code.SUCCESS


def _call(plugin: Plugin, point: str, method: Callable[P, R], kind: type[R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        answer = limited(plugin, point, partial(method, *args, **kwargs)) if plugin.limit else method(*args, **kwargs)
    except PluginFailure:
        raise
    except Exception as exc:
        raise PluginFailure(f'running {point} plugin "{plugin.name}": {type(exc).__name__}: {exc}') from exc
    if not isinstance(answer, kind):
        raise PluginFailure(f'running {point} plugin "{plugin.name}": want {kind.__name__}, got {answer!r:.80}')
    return answer


def limited(plugin: Plugin, point: str, work: Callable[[], R]) -> R:
    """Work that asks a plugin many times, all within one limit, where the plugin has one.

    Raises:
        PluginFailure: it took too long.
    """
    if plugin.limit is None:
        return work()
    try:
        return plugin.limit(work)
    except OutOfTime as exc:
        raise PluginFailure(f'running {point} plugin "{plugin.name}": {exc}') from exc


def named(plugin: Plugin, point: str, status: Status) -> Status:
    """The status with the plugin's name in it.

    Raises:
        PluginFailure: the status is an error.
    """
    if status.code is Code.ERROR:
        raise PluginFailure(f'running {point} plugin "{plugin.name}": {", ".join(status.reasons)}')
    return status if status.plugin == plugin.name else Status(status.code, status.reasons, plugin.name)


def says_skip(plugin: Plugin, status: Status) -> bool:
    """Whether PreScore said Skip.

    Raises:
        PluginFailure: it said neither Skip nor success.
    """
    if not status.is_success and not status.is_skip:
        raise PluginFailure(f'running PreScore plugin "{plugin.name}": {", ".join(status.reasons)}')
    return status.is_skip


def checked_verdicts(plugin: Plugin, verdicts: Verdicts, length: int) -> Verdicts:
    """The verdicts, if there is one for each node and each has its status.

    Raises:
        PluginFailure: they are not in order.
    """
    codes = verdicts.codes
    fine = codes.shape == (length,) and (not length or (codes.min() >= 0 and codes.max() < len(verdicts.statuses)))
    if not fine:
        raise PluginFailure(
            f'running Filter plugin "{plugin.name}": want {length} codes below {len(verdicts.statuses)}, '
            f"got {codes!r:.80}"
        )
    return verdicts


def checked_scores(plugin: Plugin, scores: Scores, length: int) -> Scores:
    """The scores as int64, if there is a whole number for each node.

    Raises:
        PluginFailure: they are not in order.
    """
    if scores.shape != (length,) or not np.issubdtype(scores.dtype, np.integer):
        raise PluginFailure(f'running Score plugin "{plugin.name}": want {length} whole numbers, got {scores!r:.80}')
    return scores.astype(np.int64, copy=False)


def whole_numbers(plugin: Plugin, scores: Sequence[int]) -> Scores:
    """Scores given one by one.

    Raises:
        PluginFailure: one does not fit into 64 bits.
    """
    try:
        return np.array(scores, dtype=np.int64)
    except OverflowError as exc:
        largest = max(scores, key=abs)
        raise PluginFailure(
            f'running Score plugin "{plugin.name}": want whole numbers of 64 bits, got {largest}'
        ) from exc


def check_range(plugin: Plugin, scores: Scores) -> None:
    """See that normalized scores are within 0..100.

    Raises:
        PluginFailure: one is not.
    """
    if not len(scores):
        return
    low, high = int(scores.min()), int(scores.max())
    if low < MIN_SCORE or high > MAX_SCORE:
        raise PluginFailure(
            f'applying score defaultWeights on Score plugins: plugin "{plugin.name}" returns an invalid score '
            f"{low if low < MIN_SCORE else high}, "
            f"it should in the range of [{MIN_SCORE}, {MAX_SCORE}] after normalizing"
        )


def evaluate_filter(plugin: FilterPlugin, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
    """One verdict a node; rows without a node get success, which nobody looks at.

    Raises:
        PluginFailure: the plugin raised or answered in a wrong form.
    """
    if isinstance(plugin, VectorFilterPlugin):
        verdicts = call(plugin, "Filter", plugin.filter_all, Verdicts, state, pod, nodes)
        return checked_verdicts(plugin, verdicts, len(nodes))

    def one_by_one() -> Verdicts:
        return Verdicts.of(
            SUCCESS if info is None else call(plugin, "Filter", plugin.filter, Status, state, pod, info)
            for info in nodes.infos()
        )

    return limited(plugin, "Filter", one_by_one)


def evaluate_score(plugin: ScorePlugin, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
    """One raw score a node; rows without a node get 0, which nobody looks at.

    Raises:
        PluginFailure: the plugin raised or answered in a wrong form.
    """
    if isinstance(plugin, VectorScorePlugin):
        scores = call(plugin, "Score", plugin.score_all, np.ndarray, state, pod, nodes)
        return checked_scores(plugin, scores, len(nodes))

    def one_by_one() -> list[int]:
        return [
            0 if info is None else call(plugin, "Score", plugin.score, int, state, pod, info) for info in nodes.infos()
        ]

    return whole_numbers(plugin, limited(plugin, "Score", one_by_one))
