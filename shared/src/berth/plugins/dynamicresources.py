"""DynamicResources: berth does not hand out claimed devices, so a pod that claims some is refused and told so.

In kube-scheduler the plugin of this name allocates them. Its PostFilter fails where PreFilter ended before its turn,
and that failure is the last word there; the same is said here, so that refusals read alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.diagnosis import Diagnosis
from berth.framework.events import EventHint
from berth.framework.interface import (
    EnqueueExtensions,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
)
from berth.framework.preemption import DryRun
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, Status
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "DynamicResources"
NOT_ASKED: Final = "not found"
"""What kube-scheduler's plugin says when it looks for what its PreFilter would have left."""
ASKED: Final = StateKey[bool]("DynamicResources.asked")


class DynamicResources(PreFilterPlugin, PostFilterPlugin, EnqueueExtensions):
    """Refuses pods with claims."""

    name: ClassVar[str] = NAME

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod without claims; a rejection that names the claims otherwise."""
        state.write(ASKED, True)
        return PreFilterResult(refusal(pod) if pod.spec.resource_claims else SKIP)

    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, refusals: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """Nothing; the last word when another plugin's PreFilter has refused the pod, and for a pod with claims."""
        if state.find(ASKED) is None:
            return PostFilterResult(message=NOT_ASKED, is_last_word=True)
        return PostFilterResult(is_last_word=bool(pod.spec.resource_claims))

    def events(self) -> Sequence[EventHint]:
        """Nothing that happens to others helps a pod with claims."""
        return ()


def refusal(pod: Pod) -> Status:
    """Which claims, and what to do."""
    names = ", ".join(claim.name for claim in pod.spec.resource_claims or ())
    return Status.unresolvable(
        f"berth does not allocate resource claims (spec.resourceClaims: {names}): "
        "remove them, or name a scheduler that does in spec.schedulerName"
    )


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.POST_FILTER), build=no_args(DynamicResources))
