"""Results of a check: a verdict that ends the attempt or lets it wait, a node, or pods to evict; and the Decision.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from berth.api.devices import Allocations
from berth.api.node import Node
from berth.api.pod import Pod, changed, is_gated, is_gone_while_unbound
from berth.framework.interface import FreeClaim, Nomination
from berth.framework.status import Status
from berth.messages.attempts import Candidate, Decision, Outcome, Preemption, Ranked, Reason, Rejection, repeated
from berth.messages.bounds import within_bounds
from berth.messages.subjects import Epoch


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an attempt with its explanation; a Decision is built from it."""

    outcome: Outcome
    node: str = ""
    reason: str = ""  # one word
    message: str = ""  # for users
    rejections: tuple[Rejection, ...] = ()  # replace the scorer's: on a conflict the binder has rejected the nodes
    blockers: tuple[str, ...] = ()  # plugins that rejected the pod; replace the scorer's
    preemption: Preemption | None = None  # the pods evicted for this one


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """A node for the pod. ``pod`` is its newest known state, whose resourceVersion goes into the Binding.

    ``candidates`` are the candidates of RANKED that explain the choice, with the newcomers that the binder counted.
    """

    pod: Pod
    node: str
    candidates: list[Candidate]


class EvictionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The victims to evict from the node so that the pod fits there."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]
    demoted: tuple[Pod, ...]  # less important pods that lose their nomination for the node
    preemption: Preemption


class EvictionQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Asks extenders which of these evictions they keep, the best first; ``victims``: by uid."""

    candidates: tuple[Nomination, ...]
    victims: Mapping[str, Pod]


class NodeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Asks extenders which of these nodes they keep, because the pod fits there; by name."""

    nodes: Mapping[str, Node]


class Freeing(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose devices keep the pod out, to be freed before the verdict is published."""

    pod: Pod
    claim: FreeClaim
    verdict: Verdict


class RecheckError(Exception):
    """A plugin could not answer: a failure of the pod or a bug, never a rejection of the node."""


GONE = Verdict(outcome=Outcome.GONE)

CHANGED = Verdict(
    outcome=Outcome.CONFLICT, reason=Reason.CHANGED, message="the pod has changed since it was ranked, or was gated"
)


def bound(node: str) -> Verdict:
    """The API shows the pod on the node, or has answered 201."""
    return Verdict(outcome=Outcome.BOUND, node=node)


def bound_or_gone(node: str, candidates: frozenset[str]) -> Verdict:
    """The API shows the pod on a node: bound if the node is a candidate, else bound by another client."""
    if node in candidates:
        return bound(node)
    return Verdict(outcome=Outcome.GONE, node=node, message=f"the pod was bound to {node} by another client")


def failed(message: str, reason: str = "") -> Verdict:
    return Verdict(outcome=Outcome.ERROR, message=message, reason=reason)


def refused(request: str, status: int, reason: str) -> Verdict:
    return failed(f"{request} rejected by the API server: {status}: {reason}", reason=str(status))


def rejected(node: str, status: Status) -> Verdict:
    reasons = ", ".join(status.reasons)
    rejection = Rejection(plugin=status.plugin, reason=reasons, nodes=1, examples=[node])
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=reasons, rejections=(rejection,), blockers=(status.plugin,))


def preempted(node: str, preemptor: Pod) -> Verdict:
    """A pod that waits gives its room to a more important one."""
    message = f"preempted by {preemptor.key} while it waited"
    return Verdict(outcome=Outcome.UNSCHEDULABLE, node=node, reason=Reason.PREEMPTED, message=message)


def waiting(node: str, message: str, reason: str = "") -> Verdict:
    """Not decided yet: the pod stays assumed on the node."""
    return Verdict(outcome=Outcome.WAITING, node=node, message=message, reason=reason)


def verdict_on(pod: Pod, ranked: Pod, node: str) -> Verdict | None:
    """The verdict on an attempt for the node, given the pod's state in the API; ``None``: try again."""
    if pod.uid != ranked.uid:
        return GONE
    if pod.spec.node_name:
        return bound_or_gone(pod.spec.node_name, frozenset({node}))
    if is_gone_while_unbound(pod):
        return GONE
    return CHANGED if changed(ranked, pod) or is_gated(pod) else None


def decision_on(  # noqa: PLR0913 - the explanation of a verdict comes from several places
    verdict: Verdict,
    ranked: Ranked,
    pod: Pod,
    *,
    epoch: Epoch,
    config: str,
    candidates: list[Candidate],
    resource_versions: dict[str, str],
    devices: Allocations,
    repeat: int,
    of_group: str,
) -> Decision:
    """The message of a verdict, with its explanation. ``pod`` is its newest known state."""
    own = {
        "message": verdict.message,
        "candidates": candidates or ranked.candidates,
        "rejections": list(verdict.rejections) or ranked.rejections,
        "blockers": list(verdict.blockers) or ranked.blockers,
        "preemption": verdict.preemption,
        "devices": devices,
    }
    decision = Decision(
        config=config,
        **{**repeated(ranked), **own},
        epoch=epoch,
        outcome=verdict.outcome,
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        uid=pod.uid,
        node=verdict.node,
        reason=verdict.reason,
        repeat=repeat,
        resource_versions=resource_versions,
        of_group=of_group,
    )
    return within_bounds(decision)


def explaining_candidates(candidates: Sequence[Candidate], needed: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that a Decision repeats, in RANKED's order: the scored and the ``needed`` ones.

    ``berth why`` shows exactly these; a candidate after a gap has its place in RANKED.
    """
    nodes = {each.node for each in needed}
    kept: list[Candidate] = []
    for place, each in enumerate(candidates, start=1):
        if each.scores or each.node in nodes:
            kept.append(each if place == len(kept) + 1 else msgspec.structs.replace(each, place=place))
    return kept
