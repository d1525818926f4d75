"""Who is who on the bus: attempts, terms, epochs and the ids that make repeated messages harmless (PROTOCOL 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from berth.api.errors import DecodeError

Uid = NewType("Uid", str)
"""A Kubernetes object's metadata.uid."""
Term = NewType("Term", int)
"""The number of a watcher's leadership. Never comes again, also not in a new store."""
Epoch = NewType("Epoch", int)
"""The number of a binder's leadership. Never comes again, also not in a new store."""


@dataclass(frozen=True, slots=True, kw_only=True, order=False)
class Attempt:
    """One try to place a pod: the n-th of a uid in a watcher's term. Written ``<uid>.<term>.<n>``."""

    uid: Uid
    term: Term
    n: int

    @classmethod
    def parse(cls, text: str) -> Attempt:
        """Read ``<uid>.<term>.<n>``; the uid may hold dots itself.

        Raises:
            DecodeError: the text has another form.
        """
        uid, _, rest = text.rpartition(".")
        uid, _, term = uid.rpartition(".")
        if not uid or not (term.isascii() and term.isdigit()) or not (rest.isascii() and rest.isdigit()):
            raise DecodeError(f"decoding attempt {text!r}: want <uid>.<term>.<n>")
        return cls(uid=Uid(uid), term=Term(int(term)), n=int(rest))

    def __str__(self) -> str:
        return f"{self.uid}.{self.term}.{self.n}"

    @property
    def order(self) -> tuple[int, int]:
        """What attempts of one uid are ordered by: the term, then n."""
        return (self.term, self.n)

    def next(self, term: Term) -> Attempt:
        """The attempt after this one; a new term counts from 1."""
        return Attempt(uid=self.uid, term=term, n=self.n + 1 if term == self.term else 1)


def decision_id(attempt: Attempt, epoch: Epoch, outcome: str, repeat: int = 0) -> str:
    """The ``Nats-Msg-Id`` of a Decision; the k-th repeat of ``waiting`` is a message of its own."""
    plain = f"{attempt}.{epoch}.{outcome}"
    return f"{plain}.{repeat}" if repeat else plain
