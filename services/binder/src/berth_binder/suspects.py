"""Which pods may be what ends binders, and what they hold up. Pure."""

from __future__ import annotations

from berth_binder.attempt import BindingAttempt


class Suspects:
    """Pods that a former binder left when it ended: one of them may be what ended it (docs/protocol.md, 6).

    Each is counted before it goes on. One that was counted before goes on alone, so that the next end is its own.
    """

    def __init__(self) -> None:
        self._counting: str | None = None
        self._next_alone: BindingAttempt | None = None
        self._alone: str | None = None

    @property
    def hold_up_others(self) -> bool:
        """Whether nothing else may be started now."""
        return self._counting is not None or self._next_alone is not None or self._alone is not None

    def count(self, uid: str) -> None:
        """The pod's count is being stored."""
        self._counting = uid

    def counted(self, uid: str) -> bool:
        """The count is stored. Returns whether that was awaited."""
        awaited = self._counting == uid
        if awaited:
            self._counting = None
        return awaited

    def put_off(self, attempt: BindingAttempt) -> None:
        """The attempt goes on when nothing else is under way."""
        self._next_alone = attempt

    def take_alone(self) -> BindingAttempt | None:
        """Remove and return the attempt that was put off: nothing else is under way. It is alone until it ``ended``."""
        attempt, self._next_alone = self._next_alone, None
        self._alone = attempt.uid if attempt is not None else self._alone
        return attempt

    def ended(self, uid: str) -> None:
        """The pod is decided, or pauses."""
        if self._alone == uid:
            self._alone = None
