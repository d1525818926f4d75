"""What becomes of an attempt, before it is a message."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.messages import Outcome, Preemption, Reason, Rejection
from berth.framework.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An outcome with its node, a reason in one word and a message for people, where it has them.

    ``refusals`` replace the scorer's rejections: on a conflict it was the binder who refused. ``preemption``: who was
    evicted for the pod.
    """

    outcome: Outcome
    node: str = ""
    reason: str = ""
    message: str = ""
    refusals: tuple[Rejection, ...] = ()
    blockers: tuple[str, ...] = ()
    preemption: Preemption | None = None


GONE = Verdict(outcome=Outcome.GONE)
CHANGED = Verdict(
    outcome=Outcome.CONFLICT, reason=Reason.CHANGED, message="the pod has changed since it was ranked, or was gated"
)


def bound(node: str) -> Verdict:
    """The API shows or has said that the pod is on the node."""
    return Verdict(outcome=Outcome.BOUND, node=node)


def bound_somewhere(node: str, among: frozenset[str]) -> Verdict:
    """The pod is on a node: one of those that were ours to give, or else somebody else has bound it."""
    if node in among:
        return bound(node)
    return Verdict(outcome=Outcome.GONE, node=node, message=f"the pod was bound to {node} by somebody else")


def failed(message: str, reason: str = "") -> Verdict:
    """The attempt cannot succeed, and people must hear why."""
    return Verdict(outcome=Outcome.ERROR, message=message, reason=reason)


def refused(node: str, status: Status) -> Verdict:
    """A plugin of Reserve, Permit or PreBind does not let the pod onto the node."""
    reasons = ", ".join(status.reasons)
    rejection = Rejection(plugin=status.plugin, reason=reasons, nodes=1, examples=[node])
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=reasons, refusals=(rejection,), blockers=(status.plugin,))


def waiting(node: str, message: str) -> Verdict:
    """Not decided yet: the room stays reserved, the place in the window is free."""
    return Verdict(outcome=Outcome.WAITING, node=node, message=message)
