"""What becomes of an attempt, before it is a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from berth.api.identity import Attempt, Epoch
from berth.api.messages import Decision, Outcome, Ranked, Reason, Rejection
from berth.api.pod import Pod
from berth.framework.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An outcome with its node, a reason in one word and a message for people, where it has them.

    ``refusals`` replace the scorer's rejections: on a conflict it was the binder who refused.
    """

    outcome: Outcome
    node: str = ""
    reason: str = ""
    message: str = ""
    refusals: tuple[Rejection, ...] = ()
    blockers: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """On whose behalf and on what state a Decision is made: goes into every one."""

    epoch: Epoch
    config: str
    """Digest of the configuration."""


def decision(  # noqa: PLR0913 - the message's own parts
    ranked: Ranked,
    attempt: Attempt,
    verdict: Verdict,
    *,
    pod: Pod,
    stand: Stand,
    repeat: int,
    versions: Mapping[str, str],
) -> Decision:
    """The verdict as the message that everybody reads, with everything that explains it."""
    conflict = verdict.outcome is Outcome.CONFLICT
    return Decision(
        config=stand.config,
        attempt=str(attempt),
        epoch=stand.epoch,
        outcome=verdict.outcome,
        profile=ranked.profile,
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        uid=pod.uid,
        node=verdict.node,
        reason=verdict.reason,
        message=verdict.message,
        repeat=repeat,
        evaluated=ranked.evaluated,
        feasible=ranked.feasible,
        candidates=ranked.candidates,
        rejections=list(verdict.refusals) if verdict.refusals else ranked.rejections,
        blockers=list(verdict.blockers) or ranked.blockers,
        positions=ranked.positions,
        resource_versions=dict(versions) if conflict else {},
        scorer=ranked.scorer,
    )
