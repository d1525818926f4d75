"""DynamicResources: rejects pods with resource claims, because berth does not allocate devices.

kube-scheduler's plugin of this name allocates them. Its PostFilter fails if another plugin's PreFilter ended the cycle
first, so that no pod is evicted then. The same holds here, without the failure's text "not found" after the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.interface import (
    DryRun,
    EnqueueExtensions,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
)
from berth.framework.status import SKIP, CycleState, Diagnosis, Status
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "DynamicResources"


class DynamicResources(PreFilterPlugin, PostFilterPlugin, EnqueueExtensions):
    """Rejects pods with claims."""

    name: ClassVar[str] = NAME
    only_for = Trait.RESOURCE_CLAIMS

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        return PreFilterResult(_rejection(pod) if pod.spec.resource_claims else SKIP)

    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, diagnosis: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """End PostFilter for a pod with claims, or after a rejection by another plugin's PreFilter."""
        return PostFilterResult(is_last_word=not dry_run.came_to(NAME) or bool(pod.spec.resource_claims))

    def events(self) -> Sequence[EventHint]:
        """No event helps a pod with claims."""
        return ()


def _rejection(pod: Pod) -> Status:
    names = ", ".join(claim.name for claim in pod.spec.resource_claims or ())
    return Status.unresolvable(
        f"berth does not allocate resource claims (spec.resourceClaims: {names}): "
        "remove them, or name a scheduler that does in spec.schedulerName"
    )


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.POST_FILTER), build=no_args(DynamicResources))
