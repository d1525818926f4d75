"""Pods that a former binder left when it ended: one of them may have ended it (docs/protocol.md, 6).

Each suspect is counted in a bucket before it goes on. A suspect with an earlier count goes on alone, so that the next
crash is its own; after several it is given up. A binder that survives the pod removes the count. Pure.
"""

from __future__ import annotations

from berth.lifecycle.tries import MOST_TRIES
from berth_binder.decisions.verdict import Verdict, failed
from berth_binder.events import ClearTries, CountTry, TryCounted


class Suspects:
    """Which suspects are counted, and whether other pods may be started beside them; by uid."""

    def __init__(self) -> None:
        self._counting: str | None = None
        self._counted: set[str] = set()  # their counts are stored
        self._next_alone: str | None = None
        self._alone: str | None = None

    @property
    def hold_up_others(self) -> bool:
        """Whether no other pod may be started now."""
        return self._counting is not None or self._next_alone is not None or self._alone is not None

    def is_counted(self, uid: str) -> bool:
        return uid in self._counted

    def count(self, uid: str) -> CountTry:
        """Count the pod; no pod is started before the count is stored."""
        self._counting = uid
        return CountTry(uid=uid)

    def counted(self, event: TryCounted) -> bool:
        """The count is stored. Returns whether it was awaited."""
        if self._counting != event.uid:
            return False
        self._counting = None
        self._counted.add(event.uid)
        return True

    def put_off(self, uid: str) -> None:
        """The pod goes on once no other request is in flight."""
        self._next_alone = uid

    def take_alone(self) -> str | None:
        """Remove and return the postponed pod, alone until it is cleared. Call it with no request in flight."""
        uid, self._next_alone = self._next_alone, None
        self._alone = uid or self._alone
        return uid

    def clear(self, uid: str) -> list[ClearTries]:
        """The pod is decided or paused, so this binder has survived it: remove the count."""
        if self._alone == uid:
            self._alone = None
        if uid not in self._counted:
            return []
        self._counted.discard(uid)
        return [ClearTries(uid=uid)]


def given_up(pod: str, tries: int) -> Verdict | None:
    """The verdict on a pod (``namespace/name``) that has ended too many binders; ``None``: it may go on."""
    if tries < MOST_TRIES:
        return None
    return failed(f"committing {pod!r} ended {MOST_TRIES - 1} binders before this one", reason="tries")
