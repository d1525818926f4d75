"""Objects in memory with one revision counter, a bounded history per kind, and listeners.

Values are never changed in place: a write brings a new dict that may share parts with the old one, so that a reader
may keep what it got. Each object is encoded once per revision.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from berth.sim.events import as_new_event
from berth.sim.kinds import KINDS, NEW_EVENTS, Kind
from berth.sim.status import JsonObject, expired

Key = tuple[str, str]
"""Namespace (empty for kinds without) and name."""
EventType = Literal["ADDED", "MODIFIED", "DELETED"]

DEFAULT_HISTORY = 20_000
FIRST_REVISION = 100
"""Above zero from the start, so that a made-up old resourceVersion is too old, as in a cluster that has lived."""


class Stored:
    """One object at one revision."""

    __slots__ = ("_body", "key", "kind", "revision", "value")

    def __init__(self, kind: Kind, key: Key, revision: int, value: JsonObject) -> None:
        self.kind = kind
        self.key = key
        self.revision = revision
        self.value = value
        self._body: bytes | None = None

    def body(self, kind: Kind) -> bytes:
        """Return the object as JSON without kind and apiVersion, in the form that `kind` shows (events have two)."""
        if kind is NEW_EVENTS:
            return msgspec.json.encode(as_new_event(self.value))
        if self._body is None:
            self._body = msgspec.json.encode(self.value)
        return self._body

    def encoded(self, kind: Kind) -> bytes:
        """Return the whole object as JSON."""
        return kind.preamble + self.body(kind)[1:]


class Change:
    """What one revision did to one object; `before` or `after` is None at the ends of its life."""

    __slots__ = ("_lines", "after", "before", "key", "revision")

    def __init__(self, key: Key, revision: int, before: Stored | None, after: Stored | None) -> None:
        self.key = key
        self.revision = revision
        self.before = before
        self.after = after
        self._lines: dict[tuple[EventType, Kind], bytes] = {}

    def line(self, event: EventType, kind: Kind) -> bytes:
        """Return the watch event as a line of JSON; a DELETED carries the last state at the revision of its end."""
        line = self._lines.get((event, kind))
        if line is None:
            shown = self._departed() if event == "DELETED" else self.after
            line = watch_line(event, shown.encoded(kind)) if shown is not None else b""
            self._lines[event, kind] = line
        return line

    def _departed(self) -> Stored | None:
        if self.before is None:
            return None
        value = with_revision(self.before.value, self.revision)
        return Stored(self.before.kind, self.key, self.revision, value)


def watch_line(event: str, encoded: bytes) -> bytes:
    """Return one line of a watch."""
    return b'{"type":"%b","object":%b}\n' % (event.encode(), encoded)


def with_revision(value: JsonObject, revision: int) -> JsonObject:
    """Return a copy of the object that carries a resourceVersion; everything but its metadata is shared."""
    return {**value, "metadata": {**value["metadata"], "resourceVersion": str(revision)}}


Listener = Callable[[Change], None]


class Table:
    """All objects of one kind, and what happened to them lately."""

    def __init__(self, kind: Kind, history: int, first_revision: int) -> None:
        self.kind = kind
        self.items: dict[Key, Stored] = {}
        self.listeners: dict[Listener, None] = {}
        self.floor = first_revision
        """Newest revision whose change was forgotten: a reader at an older one has to list again."""
        self.newest = first_revision
        """Revision of the latest change of this kind."""
        self._history: deque[Change] = deque()
        self._history_limit = history
        self._sorted: list[Stored] | None = None

    def in_order(self) -> list[Stored]:
        """Return all objects by namespace and name; the list is shared and must not be changed."""
        if self._sorted is None:
            self._sorted = [self.items[key] for key in sorted(self.items)]
        return self._sorted

    def as_of(self, revision: int) -> list[Stored]:
        """Return all objects as they were at a revision.

        Raises:
            ApiError: 410, the history does not reach back that far.
        """
        if revision < self.floor:
            raise expired("The resourceVersion for the provided list is too old.")
        if revision >= self.newest:
            return self.in_order()
        items = dict(self.items)
        for change in self._newer_first(revision):
            if change.before is None:
                items.pop(change.key)
            else:
                items[change.key] = change.before
        return [items[key] for key in sorted(items)]

    def since(self, revision: int) -> list[Change]:
        """Return the changes after a revision, oldest first.

        Raises:
            ApiError: 410, some of them have been forgotten.
        """
        if revision < self.floor:
            raise expired(f"too old resource version: {revision} ({self.floor})")
        return list(self._newer_first(revision))[::-1]

    def _newer_first(self, revision: int) -> Iterator[Change]:
        for change in reversed(self._history):
            if change.revision <= revision:
                return
            yield change

    def record(self, change: Change) -> None:
        """Take a change in and tell the listeners."""
        if change.after is None:
            del self.items[change.key]
        else:
            self.items[change.key] = change.after
        self._sorted = None
        self.newest = change.revision
        self._history.append(change)
        if len(self._history) > self._history_limit:
            self.floor = self._history.popleft().revision
        for listener in tuple(self.listeners):
            listener(change)

    def forget(self, revision: int) -> None:
        """Drop the whole history up to the present revision."""
        self._history.clear()
        self.floor = revision


class Store:
    """Every table, and the revision that they share."""

    def __init__(self, history: int = DEFAULT_HISTORY, first_revision: int = FIRST_REVISION) -> None:
        self.revision = first_revision
        tables = {kind: Table(kind, history, first_revision) for kind in KINDS if not kind.stored_as}
        core = {kind.plural: table for kind, table in tables.items() if not kind.group}
        self._tables = {kind: core[kind.stored_as] if kind.stored_as else tables[kind] for kind in KINDS}

    def table(self, kind: Kind) -> Table:
        """Return the table in which the objects of a kind are kept."""
        return self._tables[kind]

    def put(self, kind: Kind, key: Key, value: JsonObject) -> Stored:
        """Keep an object under the next revision, which it is given as its resourceVersion."""
        table = self._tables[kind]
        self.revision += 1
        stored = Stored(table.kind, key, self.revision, with_revision(value, self.revision))
        table.record(Change(key, self.revision, table.items.get(key), stored))
        return stored

    def remove(self, kind: Kind, key: Key) -> None:
        """Remove an object; that too is a revision."""
        table = self._tables[kind]
        self.revision += 1
        table.record(Change(key, self.revision, table.items[key], None))

    def compact(self) -> None:
        """Forget all history, so that every older list page and watch ends in 410."""
        for table in self._tables.values():
            table.forget(self.revision)
