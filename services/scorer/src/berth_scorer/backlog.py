"""The order in which a scorer ranks messages: those whose positions the view has reached, in turns of namespaces."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from datetime import timedelta
from typing import Final

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.framework.plugincalls import ONE_TIME, PluginFailure, SortKey, default_sort_key, run_sort_key
from berth.framework.profile import Profile
from berth.messages.attempts import Pending, Positions
from berth.messages.groupattempts import GroupPending
from berth_scorer.events import PendingDelivery

# Longest wait of a message for its positions. The largest mirror is read in less; positions that are never reached
# belong to a store that lost its last writes.
MOST_WAIT_SECONDS: Final = 30.0


class Turns:
    """A queue in order of arrival, with turns of namespaces among consecutive messages of the same rank (ADR 20).

    Messages of different ranks keep their order, because the watcher has ordered them.
    """

    def __init__(self) -> None:
        # Rank, and its messages by namespace; the namespace whose turn it is comes first.
        self._rows: deque[tuple[Hashable, OrderedDict[str, deque[PendingDelivery]]]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, item: PendingDelivery) -> None:
        if not self._rows or self._rows[-1][0] != item.rank:
            self._rows.append((item.rank, OrderedDict()))
        self._rows[-1][1].setdefault(item.namespace, deque()).append(item)
        self._count += 1

    def popleft(self) -> PendingDelivery:
        _, row = self._rows[0]
        namespace, items = next(iter(row.items()))
        item = items.popleft()
        if items:
            row.move_to_end(namespace)
        else:
            del row[namespace]
        if not row:
            self._rows.popleft()
        self._count -= 1
        return item


class AheadTurns:
    """Pods whose plugins work ahead of the ranking: namespaces take turns, a slice each.

    Of a namespace, pods that wait for their first slice come first: most need no second one.
    """

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, tuple[deque[PendingDelivery], deque[PendingDelivery]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._namespaces)

    def append(self, item: PendingDelivery, *, has_begun: bool) -> None:
        self._namespaces.setdefault(item.namespace, (deque(), deque()))[has_begun].append(item)

    def popleft(self) -> PendingDelivery:
        namespace, (fresh, begun) = next(iter(self._namespaces.items()))
        item = (fresh or begun).popleft()
        if fresh or begun:
            self._namespaces.move_to_end(namespace)
        else:
            del self._namespaces[namespace]
        return item

    def clear(self) -> None:
        self._namespaces.clear()


class Backlog:
    """Orders messages: first those whose positions the view has reached (docs/protocol.md, 4.2).

    A message waits while the view advances, then ``position_wait`` longer, and ``MOST_WAIT_SECONDS`` at most. ``now``
    is in monotonic seconds.
    """

    def __init__(self, *, position_wait: timedelta) -> None:
        self._position_wait = position_wait.total_seconds()
        self._ready = Turns()
        self._waiting: deque[PendingDelivery] = deque()
        self._positions = Positions()
        # By source, the time of the view's last advance.
        self._advanced_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._waiting)

    def add(self, item: PendingDelivery, positions: Positions) -> None:
        if positions.covers(item.pending.after):
            self._ready.append(item)
        else:
            self._follow(positions, item.taken_at)
            self._waiting.append(item)

    def pop(self, positions: Positions, now: float) -> PendingDelivery | None:
        """Remove and return the next message to rank; ``None`` if no message is due."""
        self._promote(positions, now)
        return self._ready.popleft() if self._ready else None

    @property
    def is_ready(self) -> bool:
        return bool(self._ready)

    def due(self) -> float | None:
        """The time of ``pop`` at which the first waiting message is ranked even on an older view."""
        return min((self._due(item) for item in self._waiting), default=None)

    def clear(self) -> None:
        self._ready = Turns()
        self._waiting.clear()

    def _promote(self, positions: Positions, now: float) -> None:
        if not self._waiting:
            return
        self._follow(positions, now)
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            due = positions.covers(item.pending.after) or self._due(item) <= now
            (self._ready if due else self._waiting).append(item)

    def _follow(self, positions: Positions, now: float) -> None:
        for source in Positions.__struct_fields__:
            if getattr(positions, source) > getattr(self._positions, source):
                self._advanced_at[source] = now
        self._positions = positions

    def _due(self, item: PendingDelivery) -> float:
        wanted = item.pending.after
        lacking = (
            self._advanced_at.get(source, item.taken_at)
            for source in Positions.__struct_fields__
            if getattr(wanted, source) > getattr(self._positions, source)
        )
        return min(max((item.taken_at, *lacking)) + self._position_wait, item.taken_at + MOST_WAIT_SECONDS)


def rank_of(profile: Profile, pending: Pending | GroupPending) -> tuple[str, SortKey]:
    """A key equal for pods and groups that the profile's QueueSort plugin distinguishes only by time."""
    pod = pending.pod if isinstance(pending, Pending) else _representative(pending)
    try:
        return pending.profile, run_sort_key(profile.queue_sort, pod, ONE_TIME)
    except PluginFailure:  # the watcher has reported the failure and queued the pod by priority
        return pending.profile, default_sort_key(pod, ONE_TIME)


def _representative(pending: GroupPending) -> Pod:
    """A pod with the group's priority. A group that is too large has come without its members."""
    classes = pending.bundle.classes
    first = classes[0] if classes else Pod(metadata=ObjectMeta(namespace=pending.group.namespace))
    return msgspec.structs.replace(first, spec=msgspec.structs.replace(first.spec, priority=pending.priority))
