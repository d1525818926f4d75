"""What a group's attempt comes to, and the Decision on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from berth.api.pod import Pod
from berth.api.podgroups import Members, PodGroup
from berth.messages.attempts import MOST_MISSING, Candidate, Decision, GroupResult, Outcome, Ranked, Reason
from berth.messages.bounds import within_bounds
from berth.messages.earmarks import Earmark
from berth.messages.groupattempts import GroupRanked, subject_name
from berth.messages.subjects import Attempt, Epoch
from berth_binder.decisions.verdict import Verdict, failed

# On a ranking of a member alone: an old watcher or a forged message would bind a part of the group.
NOT_ALONE: Final = Verdict(
    outcome=Outcome.CONFLICT, reason=Reason.CHANGED, message="its PodGroup is not there, or needs it bound with others"
)
NOT_SHOWN: Final = "the API server has not shown this binder the group as it was planned"


def conflict(reason: Reason, message: str) -> Verdict:
    return Verdict(outcome=Outcome.CONFLICT, reason=reason, message=message)


def verdict_of_plan(ranked: GroupRanked) -> Verdict | None:
    """The scorer's verdict; None if there is a plan, or evictions are proposed."""
    plan = ranked.plan
    if plan.error:
        return failed(plan.error)
    if plan.is_found:
        return None
    if ranked.behind:
        return conflict(Reason.BEHIND, plan.message)
    if ranked.proposals_counted:
        return conflict(Reason.PROPOSALS, plan.message)
    if ranked.preemption is not None:
        return None
    reason = "" if plan.classes else Reason.NO_NODES  # no member was tried
    return Verdict(outcome=Outcome.UNSCHEDULABLE, reason=reason, message=plan.message)


def verdict_on_group(shown: PodGroup | None, planned: PodGroup) -> Verdict | None:
    """A conflict if the PodGroup is not the planned one any more."""
    if shown is None or shown.uid != planned.uid or shown.is_terminating:
        return conflict(Reason.CHANGED, f'PodGroup "{planned.name}" was deleted')
    if shown.problems:
        return conflict(Reason.CHANGED, "; ".join(shown.problems))
    return None


def verdict_after_binding(bound: int, members: Members, group: PodGroup, others: Sequence[Verdict]) -> Verdict:
    """The verdict once every member is bound or has failed; ``bound``: members bound by this attempt.

    ``others``: why the others have failed.
    """
    wanted = members.wanted(group)
    if not wanted and not bound:
        # The watcher is behind, and waits for its watch: after `bound` it would publish the group again at once.
        return conflict(Reason.CHANGED, "all members that it needs were bound before")
    if not wanted:
        return Verdict(outcome=Outcome.BOUND)
    if bound:
        there = group.minimum - members.need(group)
        more = f"{wanted} more {'is' if wanted == 1 else 'are'} needed"
        return conflict(Reason.BEGUN, f"{there} of {group.minimum} members are bound, {more}")
    error = next((each for each in others if each.outcome is Outcome.ERROR), None)
    return error or next(iter(others), conflict(Reason.CHANGED, "its members have changed or are gone"))


def earmarked_text(earmark: Earmark) -> str:
    """Without a time: an unchanged text writes no other condition."""
    count = len(earmark.nodes)
    return f"{count} node{'s are' if count > 1 else ' is'} earmarked for it"


def changed_members(ready: int, need: int) -> Verdict:
    message = f"{ready} members are as they were planned, and {need} are needed together"
    return conflict(Reason.CHANGED, message)


def ranking_of_member(ranked: GroupRanked, pod: Pod, attempt: Attempt, node: str, of_class: int) -> Ranked:
    """A member's part of the message, as the ranking of a pod."""
    return Ranked(
        config=ranked.config,
        attempt=str(attempt),
        profile=ranked.profile,
        pod=pod,
        failures=ranked.failures,
        scorer=ranked.scorer,
        asked_at=ranked.asked_at,
        positions=ranked.positions,
        view_age_seconds=ranked.view_age_seconds,
        candidates=_nodes_of_member(ranked, node, of_class),
    )


def group_decision(  # noqa: PLR0913 - the explanation of a verdict comes from several places
    verdict: Verdict,
    ranked: GroupRanked,
    *,
    need: int,
    bound: int,
    missing: Sequence[str],
    epoch: Epoch,
    config: str,
    resource_versions: dict[str, str],
    repeat: int,
    earmark: Earmark | None,
) -> Decision:
    """The Decision on the group: on its own subject, by the PodGroup's uid."""
    plan, message = ranked.plan, verdict.message
    if earmark is not None:
        message = "; ".join(filter(None, (message, earmarked_text(earmark))))
    rejections = list(verdict.rejections) or [each for found in plan.classes for each in found.rejections]
    blockers = list(verdict.blockers) or sorted({each.plugin for each in rejections if each.plugin})
    result = GroupResult(
        need=need,
        bound=bound,
        missing=[*missing[:MOST_MISSING]],
        classes=plan.results,
        topology_key=plan.topology_key,
        domain=plan.domain,
        note=plan.note,
    )
    decision = Decision(
        config=config,
        attempt=ranked.attempt,
        profile=ranked.profile,
        failures=ranked.failures,
        scorer=ranked.scorer,
        asked_at=ranked.asked_at,
        positions=ranked.positions,
        view_age_seconds=ranked.view_age_seconds,
        rejections=rejections,
        blockers=blockers,
        preemption=verdict.preemption,
        message=message,
        epoch=epoch,
        outcome=verdict.outcome,
        namespace=ranked.group.namespace,
        pod=subject_name(ranked.group.key),
        uid=ranked.group.uid,
        reason=verdict.reason,
        repeat=repeat,
        resource_versions=resource_versions,
        plan_seconds=ranked.seconds,
        group=result,
        earmark=earmark,
    )
    return within_bounds(decision)


def _nodes_of_member(ranked: GroupRanked, node: str, of_class: int) -> list[Candidate]:
    """The member's node, then the others of its class, as candidates of a ranking."""
    plan = ranked.plan
    others = plan.classes[of_class].alternates if of_class < len(plan.classes) else []
    found = [Candidate(node=plan.nodes[each.node], total=each.total, pods=each.pods, loss=each.loss) for each in others]
    total = max((each.total for each in found), default=0)
    return [Candidate(node=node, total=total), *(each for each in found if each.node != node)]
