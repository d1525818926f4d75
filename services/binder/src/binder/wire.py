"""What is on the wire to the API server, and whether it answers at all."""

from __future__ import annotations

from binder.answers import Answer


class Wire:
    """A bounded number of places, one for each pod with a request under way."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._pods: set[str] = set()
        self._silence = 0

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def has_place(self) -> bool:
        """Whether one more request may start."""
        return len(self._pods) < self._places

    @property
    def is_silent(self) -> bool:
        """Whether as many requests in a row as there are places were left open: then nothing new is started."""
        return self._silence >= self._places

    def start(self, uid: str) -> None:
        """A request for the pod starts."""
        self._pods.add(uid)

    def end(self, uid: str, answer: Answer) -> bool:
        """The request is answered, or will not be; false when there was none."""
        if uid not in self._pods:
            return False
        self._pods.discard(uid)
        self._silence = self._silence + 1 if answer.is_open else 0
        return True
