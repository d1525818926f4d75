"""Rankings that no pod waits for. Anybody with a scorer's credential may write them without end (ADR 65)."""

from __future__ import annotations

from typing import Final

# Rankings a second that are examined although the watch shows no such pod: an honest one is of a pod that the watch
# shows next, or does not show any more. Each may cost a request to the API server, a dead letter or a Decision.
STRAYS_PER_SECOND: Final = 20.0
# Of these at once. One whose pod waits after all is not counted.
STRAYS_BURST: Final = 256


class Strays:
    """The budget for rankings of pods that the watch does not show. Beyond it they are acknowledged unread.

    So messages with a pod are examined next, however many others come. A pod whose ranking is lost in this way is
    ranked again (docs/protocol.md, 3.8). Pure, the clock is injected.
    """

    def __init__(self) -> None:
        self._left = float(STRAYS_BURST)
        self._filled_at: float | None = None

    def may_be_examined(self, now: float) -> bool:
        """Take one from the budget; ``False``: drop the message."""
        if self._filled_at is not None:
            self._left = min(STRAYS_BURST, self._left + (now - self._filled_at) * STRAYS_PER_SECOND)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        """Its pod waits: the watch was behind."""
        self._left += 1
