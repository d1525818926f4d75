"""PostFilter: what can be done when no node is feasible, and the same asked once more before it is done."""

from __future__ import annotations

from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.dryrun import DryRun
from berth.framework.filtering import PreFiltered, pre_filter
from berth.framework.guard import call
from berth.framework.interface import Nomination, PostFilterResult
from berth.framework.profile import Profile
from berth.framework.refusals import Refusals


def post_filter(
    pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered, refusals: Refusals
) -> PostFilterResult:
    """Ask one plugin after another, up to the first that can do something. All that they say is joined.

    Without such a plugin nothing can be done, and a node that is kept for the pod is kept for nothing.

    Raises:
        PluginFailure: a plugin failed.
    """
    dry_run = DryRun(pod, snapshot, profile, found)
    said: list[str] = []
    clears = not profile.post_filters
    for plugin in profile.post_filters:
        arguments = (found.state, pod, snapshot, refusals, dry_run)
        answer = call(plugin, "PostFilter", plugin.post_filter, PostFilterResult, *arguments)
        said.extend([answer.message] if answer.message else [])
        if answer.nomination is not None:
            return PostFilterResult(answer.nomination, ", ".join(said))
        clears = clears or answer.clears_nomination
        if answer.is_last_word:
            break
    return PostFilterResult(None, ", ".join(said), clears)


def confirm(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Nomination | None:
    """What must go from the node for the pod to fit, by this state; None when nothing helps, or nothing has to go.

    Raises:
        PluginFailure: a plugin failed.
    """
    found = pre_filter(pod, snapshot, profile)
    dry_run = DryRun(pod, snapshot, profile, found)
    for plugin in profile.post_filters:
        answer = call(plugin, "PostFilter", plugin.confirm, object, pod, node, dry_run)
        if isinstance(answer, Nomination):
            return answer
    return None
