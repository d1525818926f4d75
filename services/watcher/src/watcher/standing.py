"""Where a pod stood under the former leader, as its messages tell: in flight, decided, or never tried."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.errors import DecodeError
from berth.api.identity import Attempt
from berth.api.pod import Pod
from watcher.events import FoundDecision, FoundInFlight


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What counts of what was found: of several attempts the highest."""

    attempt: Attempt | None = None
    """The latest one; ``None`` for a pod that nobody has tried."""
    in_flight: Pod | None = None
    """The pod as a message of that attempt carries it, when there is one and no final Decision."""
    has_place: bool = True
    """Whether it takes a place in the window; after ``waiting`` it does not."""
    decided: FoundDecision | None = None
    """The final Decision of that attempt."""


def standing(uid: str, found: FoundInFlight | None, last: FoundDecision | None) -> Standing:
    """From the message in PENDING or RANKED and the last Decision of the subject."""
    said = _attempt_of(uid, last)
    if found is not None and (said is None or said.order < found.attempt.order):
        return Standing(attempt=found.attempt, in_flight=found.pod)
    if said is None or last is None:
        return Standing()
    if last.decision.outcome.final:
        return Standing(attempt=said, decided=last)
    is_there = found is not None and found.attempt == said
    return Standing(attempt=said, in_flight=found.pod if found and is_there else None, has_place=False)


def _attempt_of(uid: str, last: FoundDecision | None) -> Attempt | None:
    """The attempt of the last Decision of a subject, unless it was a namesake's."""
    if last is None or last.decision.uid != uid:
        return None
    try:
        return Attempt.parse(last.decision.attempt)
    except DecodeError:
        return None
