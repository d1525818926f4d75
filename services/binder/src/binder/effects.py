"""What the core asks its shell to do. Each effect is one request; its answer comes back as an event of the core."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from berth.api.messages import Decision
from berth.api.pod import Pod
from berth.framework import writes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A RANKED message lent by the bus. ``delivery`` is the shell's own; the core only hands it back."""

    sequence: int
    """In the stream: the order in which POSTs are started."""
    delivery: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Start a Binding: the pod as this uid and resourceVersion, to this node."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read the pod from the API server."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Have these pods go from the node, and keep it for this one."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote:
    """Write on the pod that no node is kept for it any more."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Write what plugins want written before the pod is bound."""

    pod: Pod
    requests: tuple[writes.Write, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish a Decision on what ``held`` says. ``bury``: first copy it to ``dead``, we have failed at it too often."""

    decision: Decision
    held: Held
    bury: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Its effect is durable: the message is done."""

    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Nak:
    """Somebody else may know what to do with it: the message comes again after the delay."""

    held: Held
    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Tell people what became of the pod: Event and condition, when there is room in their budget."""

    decision: Decision
    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Complain:
    """Say in the log what an operator must mend; the shell says each text once."""

    text: str


Request = Post | Read | Evict | Demote | Write | Publish
"""What is answered later."""
Effect = Request | Ack | Nak | Announce | Complain
