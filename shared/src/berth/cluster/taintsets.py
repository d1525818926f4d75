"""Equal lists of taints share a number, so that tolerating is decided once a list and not once a node."""

from __future__ import annotations

from berth.api.node import Taint

TaintSet = tuple[Taint, ...]


class TaintSets:
    """Interned lists of taints; number 0 is the empty one."""

    def __init__(self) -> None:
        self._ids: dict[tuple[tuple[str, str, str], ...], int] = {(): 0}
        self.sets: list[TaintSet] = [()]

    def intern(self, taints: list[Taint] | None) -> int:
        """The number of the list."""
        key = tuple((t.key, t.value, t.effect) for t in taints or ())
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self.sets)
            self.sets.append(tuple(taints or ()))
        return number
