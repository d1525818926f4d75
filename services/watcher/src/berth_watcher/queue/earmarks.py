"""The earmarks in ``cluster``: as the binder's Decisions say, until the group's next one or their end (ADR 74).

The binder ends its own ones earlier, by its clock and its watch: those here only show scorers which nodes to leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from berth.api.podgroups import GroupKey, PodGroup
from berth.messages.attempts import DecisionSummary
from berth.messages.earmarks import Earmark

# Seconds that an earmark outlives the binder's own: messages arrive later than they were written.
MARGIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    earmark: Earmark
    epoch: int
    due: float  # monotonic seconds


class ShownEarmarks:
    def __init__(self, show: Callable[[str, Earmark | None], None]) -> None:
        """``show`` writes the earmark of a profile to ``cluster``; None removes it."""
        self._show = show
        self._shown: dict[str, _Shown] = {}  # by profile

    def __len__(self) -> int:
        return len(self._shown)

    def due(self) -> float | None:
        return min((each.due for each in self._shown.values()), default=None)

    def decided(self, decision: DecisionSummary, at: datetime, now: float, age_seconds: float = 0.0) -> None:
        """A Decision was stored ``at`` this time. One of a later epoch ends all earmarks of former ones."""
        self._end(lambda each: each.epoch < decision.epoch)
        earmark = decision.earmark
        left = 0.0 if earmark is None else earmark.seconds - age_seconds
        if earmark is None or left <= 0:
            self._end(lambda each: each.earmark.uid == decision.uid and each.epoch == decision.epoch)
            return
        known = self._shown.get(earmark.profile)
        if known is not None and (known.epoch > decision.epoch or _is_same(known.earmark, earmark)):
            return
        self._end(lambda each: each.earmark.profile == earmark.profile)
        due = now + left + MARGIN_SECONDS
        self._shown[earmark.profile] = _Shown(earmark=earmark, epoch=decision.epoch, due=due)
        until = (at + timedelta(seconds=earmark.seconds)).isoformat(timespec="seconds")
        self._show(earmark.profile, msgspec.structs.replace(earmark, until=until))

    def observe_group(self, former: PodGroup | None, form: PodGroup | None) -> None:
        """A PodGroup has changed. As another one, or gone, it is not the group for which nodes were earmarked."""
        if former is not None and (form is None or _without_version(former) != _without_version(form)):
            self.end_of(former.key)

    def end_of(self, key: GroupKey) -> None:
        self._end(lambda each: each.earmark.group == key)

    def end_due(self, now: float) -> None:
        self._end(lambda each: each.due <= now)

    def _end(self, is_over: Callable[[_Shown], bool]) -> None:
        for profile in [profile for profile, each in self._shown.items() if is_over(each)]:
            del self._shown[profile]
            self._show(profile, None)


def _is_same(known: Earmark, earmark: Earmark) -> bool:
    return msgspec.structs.replace(known, seconds=0) == msgspec.structs.replace(earmark, seconds=0)


def _without_version(group: PodGroup) -> PodGroup:
    return msgspec.structs.replace(group, resource_version="")
