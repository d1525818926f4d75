"""Commitments that cannot go on now: which pause, until when, and whose ``waiting`` is to be said."""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.framework.status import Status
from binder.answers import Answer
from binder.commit_settings import CommitSettings
from binder.commitment import Commitment, Phase
from binder.effects import Effect, Publish
from binder.plugin_steps import PluginSteps
from binder.statements import Statements

SILENT = "the API server has not answered yet"
BROKEN = "trying again after an exception"


@dataclass(slots=True, kw_only=True)
class HoldUps:
    """Few as a rule: looking through them is cheaper than keeping them in order."""

    settings: CommitSettings
    statements: Statements
    _paused: dict[str, Commitment] = field(default_factory=dict)
    _troubled: dict[str, Commitment] = field(default_factory=dict)

    def pause(self, commitment: Commitment, answer: Answer | None, now: float) -> list[Effect]:
        """Back off: after an answer that leaves things open, or (``None``) after an exception."""
        commitment.failures += 1
        pause = self.settings.pauses.after(commitment.failures, answer.retry_after if answer is not None else None)
        self._put_off(commitment, now + pause, BROKEN if answer is None else SILENT)
        if commitment.next_word is None:
            commitment.next_word = now + self.settings.word_every.total_seconds()
        return []

    def await_plugin(self, commitment: Commitment, steps: PluginSteps, status: Status, now: float) -> list[Effect]:
        """A plugin says wait: the room stays reserved, the window's place is free at once."""
        due = min(now + self.settings.ask_again.total_seconds(), steps.waits_until)
        why = f"waiting for {status.plugin}: {', '.join(status.reasons) or 'no reason given'}"
        self._put_off(commitment, due, why)
        return [] if commitment.is_waiting else [self.word(commitment, now)]

    def word(self, commitment: Commitment, now: float) -> Effect:
        """Say ``waiting``; the next time is in a while."""
        said = self.statements.waiting(commitment)
        commitment.next_word = now + self.settings.word_every.total_seconds()
        return Publish(decision=said, held=commitment.foremost.held)

    def words(self, now: float) -> list[Effect]:
        """What is to be said (again) by now."""
        troubled = list(self._troubled.values())
        return [self.word(it, now) for it in troubled if it.next_word is not None and it.next_word <= now]

    def _put_off(self, commitment: Commitment, due: float, why: str) -> None:
        """Pause until then; from now on it counts as held up until it is settled."""
        commitment.phase = Phase.PAUSED
        commitment.due, commitment.hold_up = due, why
        self._paused[commitment.uid] = commitment
        self._troubled[commitment.uid] = commitment

    def resume(self, now: float) -> Commitment | None:
        """Of the pauses that are over, take the one that stands first in the stream."""
        over = [it for it in self._paused.values() if it.due <= now]
        first = min(over, key=lambda it: it.sequence, default=None)
        if first is not None:
            del self._paused[first.uid]
        return first

    def settled(self, uid: str) -> None:
        """It has come to its end."""
        self._paused.pop(uid, None)
        self._troubled.pop(uid, None)

    def due(self, *, has_place: bool) -> float | None:
        """When something is due by the clock alone. A pause that is over ends only when there is a place for it."""
        times = [it.next_word for it in self._troubled.values() if it.next_word is not None]
        if has_place:
            times += [it.due for it in self._paused.values()]
        return min(times, default=None)
