"""The final Decisions of this epoch, so that a redelivered message is acknowledged without another word."""

from __future__ import annotations

from collections import OrderedDict

from berth.api.identity import Attempt


class Given:
    """Per uid the highest attempt that was finally decided. Bounded: the oldest is forgotten.

    A redelivery comes within ack_wait (30 s): the default holds more than that at a thousand pods a second. One that
    comes later still meets the API's own truth (bound, gone) and is decided alike.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._orders: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def remember(self, attempt: Attempt) -> None:
        """This attempt has its final Decision."""
        known = self._orders.pop(attempt.uid, (0, 0))
        self._orders[attempt.uid] = max(known, attempt.order)
        if len(self._orders) > self._limit:
            self._orders.popitem(last=False)

    def covers(self, attempt: Attempt) -> bool:
        """Whether this or a higher attempt of the uid has its final Decision."""
        return attempt.order <= self._orders.get(attempt.uid, (-1, -1))

    def __len__(self) -> int:
        return len(self._orders)
