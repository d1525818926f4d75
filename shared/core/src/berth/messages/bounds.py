"""A report cut to what its readers take: plugins and the API server write texts of any length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from berth.api.devices import AllocationResult, Allocations
from berth.api.meta import NAME_CHARACTERS
from berth.api.podlimits import MOST_CLAIMS
from berth.messages.attempts import (
    MESSAGE_CHARACTERS,
    MOST_PLUGINS,
    MOST_REJECTIONS,
    MOST_RESULTS,
    MOST_VICTIMS,
    SENTENCE_CHARACTERS,
    AttemptReport,
    Candidate,
    Rejection,
)

R = TypeVar("R", bound=AttemptReport)

_TEXTS: Final = {
    "message": MESSAGE_CHARACTERS,
    "error": MESSAGE_CHARACTERS,
    "reason": NAME_CHARACTERS,
    "scorer": NAME_CHARACTERS,
}


def within_bounds(report: R) -> R:
    """The report cut to its readers' limits, because plugins and the API server write texts of any length.

    A report within the limits is returned as it is.
    """
    changes: dict[str, object] = {}
    for name, most in _TEXTS.items():
        text = getattr(report, name, "")
        if len(text) > most:
            changes[name] = shortened(text, most)
    if report.rejections:
        changes["rejections"] = [bounded_rejection(each) for each in report.rejections[:MOST_REJECTIONS]]
    if report.blockers:
        changes["blockers"] = [shortened(name, NAME_CHARACTERS) for name in report.blockers[:MOST_PLUGINS]]
    if report.preemption is not None and len(report.preemption.victims) > MOST_VICTIMS:
        changes["preemption"] = None  # With fewer victims the binder would find that others are needed.
    if not _are_within_bounds(report.candidates):
        changes["candidates"] = [_bounded_candidate(each) for each in report.candidates]
    if report.devices and not _are_few(report.devices):
        changes["devices"] = {}
    if not _are_names(report.weights):
        changes["weights"] = {name: report.weights[name] for name in bounded_names(report.weights)}
    return msgspec.structs.replace(report, **changes) if changes else report


def shortened(text: str, most: int) -> str:
    """The text, ending in dots if it was longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def bounded_rejection(given: Rejection) -> Rejection:
    """The rejection with texts that its readers take."""
    if len(given.plugin) <= SENTENCE_CHARACTERS and len(given.reason) <= SENTENCE_CHARACTERS:
        return given
    plugin, reason = shortened(given.plugin, SENTENCE_CHARACTERS), shortened(given.reason, SENTENCE_CHARACTERS)
    return msgspec.structs.replace(given, plugin=plugin, reason=reason)


def _are_within_bounds(candidates: Sequence[Candidate]) -> bool:
    # All candidates with points have points of the same plugins.
    scores = candidates[0].scores if candidates else {}
    if not _are_names(scores):
        return False
    lines = [len(line) for each in candidates if each.details for line in each.details.values()]
    return not lines or max(lines) <= SENTENCE_CHARACTERS


def _are_names(plugins: Mapping[str, int]) -> bool:
    return not plugins or (len(plugins) <= MOST_PLUGINS and max(map(len, plugins)) <= NAME_CHARACTERS)


def bounded_names(plugins: Iterable[str]) -> list[str]:
    """The plugins whose names readers take."""
    # Plugins with too long a name are left out, because two cut names might be equal.
    return [name for name in plugins if len(name) <= NAME_CHARACTERS][:MOST_PLUGINS]


def _bounded_candidate(given: Candidate) -> Candidate:
    named = bounded_names(given.scores)
    details = {name: shortened(given.details[name], SENTENCE_CHARACTERS) for name in named if name in given.details}
    return msgspec.structs.replace(given, scores={name: given.scores[name] for name in named}, details=details)


def _are_few(devices: Allocations) -> bool:
    return len(devices) <= MOST_CLAIMS and sum(map(_results_of, devices.values())) <= MOST_RESULTS


def _results_of(allocation: AllocationResult) -> int:
    return len(allocation.devices.results or ())
