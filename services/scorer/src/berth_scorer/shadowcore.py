"""The shadow's core: ranks live pods and groups on the view of their live ranking, and compares. Pure.

Changes are held until a live ranking has counted them, so that equal configurations rank alike
(``berth.ranking.alignedview``). A comparison ends with the Decision. A group is planned in slices; what comes
meanwhile waits. Same form as the scorer's core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from berth.bus.interface import StoredMessage
from berth.bus.topology import CLUSTER
from berth.errors import DecodeError
from berth.framework.cycle import check
from berth.messages.attempts import DecisionSummary, Positions, Ranked, attempt_of
from berth.messages.encoding import UnknownSchemaError, decode
from berth.messages.groupattempts import GroupRanked, decode_group
from berth.messages.shadow import ShadowComparison, ShadowResult, SkipReason
from berth.ranking.alignedview import AlignedView, Applied
from berth.ranking.comparison import (
    AwaitedDecisions,
    Side,
    best_node,
    compare,
    compare_plans,
    refusing_plugins,
    skip_reason,
)
from berth.ranking.groupranker import Answering, GroupRanker
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_scorer.core import HEARTBEAT_SECONDS
from berth_scorer.events import (
    DecisionsRead,
    LiveDataRead,
    LogFailure,
    MirrorRead,
    PeerRankingRead,
    ReadEvent,
    ReportUndecodable,
)

# Live rankings held for comparison, as many as a scorer holds; older ones are skipped.
MOST_WAITING: Final = 64
MOST_KEPT: Final = 4096  # live rankings held undecoded; beyond it the oldest are dropped
LONGEST_WAIT_SECONDS: Final = 1.0  # older live rankings are skipped, so that a shadow never falls further behind
BROADCASTS_A_SECOND: Final = 20  # as many differences as people can read; the counts include all


class LiveRankingArrived(msgspec.Struct, frozen=True, kw_only=True):
    """RANKED has stored a live ranking."""

    stored: StoredMessage


class ViewBuilt(msgspec.Struct, frozen=True, kw_only=True):
    """The start has been read to its end: live rankings are compared from here on."""


ShadowEvent = ReadEvent | LiveRankingArrived | ViewBuilt


class CountSkipped(msgspec.Struct, frozen=True, kw_only=True):
    """Live rankings are skipped."""

    reason: SkipReason
    count: int = 1


class CountRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin of ``side`` has rejected the other side's node."""

    side: Side
    plugin: str


class CountComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison has its Decision."""

    comparison: ShadowComparison


class Broadcast(msgspec.Struct, frozen=True, kw_only=True):
    """Publish a difference for people."""

    comparison: ShadowComparison


class ObserveShadowRanking(msgspec.Struct, frozen=True, kw_only=True):
    """The shadow has ranked a pod, or planned a group."""

    seconds: float


ShadowEffect = (
    CountSkipped | CountRefusal | CountComparison | Broadcast | ObserveShadowRanking | LogFailure | ReportUndecodable
)


@dataclass(slots=True)
class _ArrivedRanking:
    stored: StoredMessage
    arrived_at: float
    decoded: Ranked | GroupRanked | None = None

    def live(self) -> Ranked | GroupRanked:
        """Decode the message, once.

        Raises:
            DecodeError: it cannot be decoded.
        """
        if self.decoded is None:
            self.decoded = _decoded(self.stored.data)
        return self.decoded


def _decoded(data: bytes) -> Ranked | GroupRanked:
    try:
        live = decode(data, Ranked)
    except UnknownSchemaError:
        return decode_group(data, GroupRanked)
    attempt_of(live)
    return live


@dataclass(frozen=True, slots=True)
class _PlanUnderWay:
    """The shadow's plan of a group, under way since ``began`` by the stopwatch."""

    stored: StoredMessage
    live: GroupRanked
    answering: Answering
    began: float


class ShadowCore:
    """Makes all comparisons of one session. All events go through ``handle``."""

    def __init__(
        self,
        *,
        ranker: Ranker,
        name: str,
        stopwatch: Callable[[], float],
        proposal_lifetime: timedelta,
        position_wait: timedelta,
    ) -> None:
        self._ranker = ranker
        self._name = name
        self._stopwatch = stopwatch
        self._group_ranker = GroupRanker(
            profiles=ranker.profiles, config=ranker.config, identity=ranker.identity, clock=stopwatch
        )
        self._planning: _PlanUnderWay | None = None
        self._slice_goes_on: Callable[[], bool] = lambda: True
        self._position_wait = position_wait.total_seconds()
        self.view: Final = View(proposal_lifetime=proposal_lifetime)
        self._aligned = AlignedView(self.view)
        self._awaited = AwaitedDecisions()
        self._waiting: deque[_ArrivedRanking] = deque()
        self._last_arrived = 0  # sequence in RANKED
        self._is_built = False
        self._differences: deque[ShadowComparison] = deque(maxlen=BROADCASTS_A_SECOND)  # not broadcast yet
        self._sent_in_second = 0
        self._beat_at = 0.0
        self._due = float("inf")

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def awaited(self) -> int:
        return len(self._awaited)

    def due(self) -> float:
        """The time of the next call without an event."""
        return min(self._due, self._beat_at)

    def handle(self, events: Iterable[ShadowEvent], now: float, may_continue: Callable[[], bool]) -> list[ShadowEffect]:
        """Apply events, then compare live rankings in stream order while ``may_continue``."""
        effects: list[ShadowEffect] = []
        self._slice_goes_on = may_continue
        for event in events:
            effects += self._apply(event, now)
        while self._is_built:
            is_idle = not self._waiting and self._planning is None
            effects += self._note(self._aligned.apply_due(now, is_idle=is_idle))
            due = self._due_of_first(now, effects)
            self._due = now if due is None else due
            if due is not None or not may_continue():
                break
        if now >= self._beat_at:
            effects += self._beat(now)
        return effects

    def _apply(self, event: ShadowEvent, now: float) -> list[ShadowEffect]:
        match event:
            case MirrorRead():
                self._aligned.add_mirror(event.entries, event.position, now)
            case DecisionsRead():
                self._aligned.add_decisions(event.batch, event.position, now)
            case LiveDataRead():
                self.view.reached(event.bucket, event.position)
            case PeerRankingRead():
                return self._count_uncompared(event.stored, now)
            case LiveRankingArrived():
                return self._on_arrived(event.stored, now)
            case ViewBuilt():
                self._is_built = True
                return self._note(self._aligned.release(now))
        # Until the first comparison, changes are applied at once.
        return [] if self._is_built else self._note(self._aligned.release(now))

    def _note(self, applied: Applied) -> list[ShadowEffect]:
        """Report undecodable messages, and conclude the comparisons whose Decision was applied."""
        effects: list[ShadowEffect] = [
            ReportUndecodable(subject=CLUSTER, reason=problem) for problem in applied.problems
        ]
        for stored in applied.decisions if len(self._awaited) else ():
            try:
                decided = self._awaited.decided(decode(stored.data, DecisionSummary))
            except DecodeError:  # reported by the view
                continue
            if decided is not None:
                effects.append(CountComparison(comparison=decided))
                if decided.result is not ShadowResult.EQUAL:
                    self._differences.append(decided)
        return effects + self._broadcasts()

    def _broadcasts(self) -> list[ShadowEffect]:
        effects: list[ShadowEffect] = []
        while self._differences and self._sent_in_second < BROADCASTS_A_SECOND:
            self._sent_in_second += 1
            effects.append(Broadcast(comparison=self._differences.popleft()))
        return effects

    def _beat(self, now: float) -> list[ShadowEffect]:
        self._beat_at = now + HEARTBEAT_SECONDS
        self.view.expire(now)
        self._sent_in_second = 0
        overdue = self._awaited.expire(now)
        skipped = [CountSkipped(reason=SkipReason.UNDECIDED, count=overdue)] if overdue else []
        return [*skipped, *self._broadcasts()]

    # --- live rankings

    def _count_uncompared(self, stored: StoredMessage, now: float) -> list[ShadowEffect]:
        """Count a live ranking from before the view was built."""
        problem = self.view.apply_ranked(stored.data, stored.sequence, now)
        return [ReportUndecodable(subject=stored.subject, reason=problem)] if problem else []

    def _on_arrived(self, stored: StoredMessage, now: float) -> list[ShadowEffect]:
        missed = stored.sequence - self._last_arrived - 1 if self._last_arrived and self._is_built else 0
        self._last_arrived = max(stored.sequence, self._last_arrived)
        if not self._is_built:
            return self._count_uncompared(stored, now)
        effects: list[ShadowEffect] = [CountSkipped(reason=SkipReason.MISSED, count=missed)] if missed > 0 else []
        if len(self._waiting) >= MOST_KEPT:
            self._waiting.popleft()
            effects.append(CountSkipped(reason=SkipReason.BUSY))
        self._waiting.append(_ArrivedRanking(stored, now))
        return effects

    def _due_of_first(self, now: float, effects: list[ShadowEffect]) -> float | None:
        """Handle the oldest live ranking, or return the time at which that ranking, or a held change, is due."""
        if self._planning is not None:
            effects += self._plan(self._planning, now)
            return None
        if not self._waiting:
            held_until = self._aligned.due_at()
            return float("inf") if held_until is None else held_until
        first = self._waiting[0]
        is_late = len(self._waiting) > MOST_WAITING or now - first.arrived_at > LONGEST_WAIT_SECONDS
        try:
            live = first.live()
        except DecodeError as error:
            self._waiting.popleft()
            effects.append(ReportUndecodable(subject=first.stored.subject, reason=str(error)))
            effects.append(CountSkipped(reason=SkipReason.MISSED))
            return None
        waits_until = first.arrived_at + self._position_wait
        if not is_late and now < waits_until and not self._aligned.has_arrived(live.positions):
            return waits_until
        self._waiting.popleft()
        effects += self._compare(first.stored, live, now, is_late=is_late)
        return None

    def _compare(
        self, stored: StoredMessage, live: Ranked | GroupRanked, now: float, *, is_late: bool
    ) -> list[ShadowEffect]:
        """Compare a live ranking, then count it in the view, as every scorer does."""
        effects = self._note(self._aligned.advance_to(live, now))
        asked_at = min(live.asked_at, stored.time) if live.asked_at is not None else stored.time
        self.view.advance_clock(asked_at)
        reason = skip_reason(live, self._ranker.profiles.get(live.profile))
        if is_late:
            reason = reason or SkipReason.BUSY
        if reason is None and isinstance(live, GroupRanked):
            return [*effects, *self._begin_plan(stored, live, now)]
        if reason is not None:
            effects.append(CountSkipped(reason=reason))
        elif isinstance(live, Ranked):
            own, observed = self._rank(live, now)
            effects += [*observed, *self._await_decision(live, own, now)]
        self.view.count_peer(live, stored.sequence, now, len(stored.data))
        return effects

    def _rank(self, live: Ranked, now: float) -> tuple[Ranked, list[ShadowEffect]]:
        pending = live.pending(after=Positions())
        effects: list[ShadowEffect] = []
        began = self._stopwatch()
        try:
            own = self._ranker.answer(pending, self.view, now, also=best_node(live))
        except Exception as error:  # noqa: BLE001 - an exception of a plugin is this ranking's failure, not the shadow's
            effects.append(LogFailure(text="ranking failed", attempt=live.attempt, error=error))
            own = self._ranker.give_up(pending, f"ranking raised {type(error).__name__}: {error}")
        effects.append(ObserveShadowRanking(seconds=self._stopwatch() - began))
        return own, effects

    def _begin_plan(self, stored: StoredMessage, live: GroupRanked, now: float) -> list[ShadowEffect]:
        pending = live.pending(after=Positions())
        answering = self._group_ranker.answer(pending, self.view, may_continue=self._may_plan)
        self._planning = _PlanUnderWay(stored, live, answering, self._stopwatch())
        return self._plan(self._planning, now)

    def _may_plan(self) -> bool:
        return self._slice_goes_on()

    def _plan(self, planning: _PlanUnderWay, now: float) -> list[ShadowEffect]:
        """Work on the plan for a slice; once it is made, compare it and count the live one."""
        effects: list[ShadowEffect] = []
        live = planning.live
        try:
            next(planning.answering)
        except StopIteration as end:
            own: GroupRanked = end.value
        except Exception as error:  # noqa: BLE001 - an exception of a plugin is this plan's failure, not the shadow's
            effects.append(LogFailure(text="planning failed", attempt=live.attempt, error=error))
            reason = f"planning raised {type(error).__name__}: {error}"
            own = self._group_ranker.give_up(live.pending(after=Positions()), reason)
        else:
            return []
        self._planning = None
        effects.append(ObserveShadowRanking(seconds=self._stopwatch() - planning.began))
        effects += self._await(compare_plans(live, own, shadow=self._name), live, now)
        self.view.count_peer(live, planning.stored.sequence, now, len(planning.stored.data))
        return effects

    def _await_decision(self, live: Ranked, own: Ranked, now: float) -> list[ShadowEffect]:
        node, rejection = best_node(live), None
        if node and not own.error and all(each.node != node for each in own.candidates):
            rejection = check(live.pod, node, self.view.snapshot, self._ranker.profiles[live.profile])
        return self._await(compare(live, own, shadow=self._name, rejection=rejection), live, now)

    def _await(self, comparison: ShadowComparison, live: Ranked | GroupRanked, now: float) -> list[ShadowEffect]:
        refusals = [CountRefusal(side=side, plugin=plugin) for side, plugin in refusing_plugins(comparison, live)]
        dropped = self._awaited.add(comparison, now)
        skipped = [CountSkipped(reason=SkipReason.UNDECIDED, count=dropped)] if dropped else []
        return [*refusals, *skipped]
