"""Saying what is waited for: at once when it is something new, then every 10 s, and all the time in /readyz."""

from __future__ import annotations

from typing import Final

from berth.kube.clock import Clock
from berth.service.health import Condition
from berth.service.logging import get_logger

log = get_logger()

SAY_EVERY_SECONDS: Final = 10.0
"""Often enough for somebody who looks, seldom enough for a log that is kept."""
ONCE: Final = float("inf")
"""For refusals: only a person can change them, and saying it again tells nobody more."""


class Waiting:
    """What one condition waits for, and when that was last said."""

    def __init__(self, condition: Condition, clock: Clock) -> None:
        self._condition = condition
        self._clock = clock
        self._said = ""
        self._said_at = 0.0

    def say(self, sentence: str, *, every: float = SAY_EVERY_SECONDS) -> None:
        """Not ready for this reason. Call it on every look; it decides whether it is time to say it again."""
        self._condition.waiting(sentence)
        self._log(sentence, every)

    def standby(self, sentence: str) -> None:
        """Ready to take over; said once."""
        self._condition.standby(sentence)
        self._log(sentence, ONCE)

    def over(self, sentence: str = "ok") -> None:
        """Ready; what comes next is new."""
        self._condition.ready(sentence)
        self._said = ""

    def _log(self, sentence: str, every: float) -> None:
        now = self._clock.now()
        if sentence == self._said and now - self._said_at < every:
            return
        self._said, self._said_at = sentence, now
        log.info(sentence, condition=self._condition.name)
