"""How a scheduler says on a pod that it evicts it for a more important one: the condition DisruptionTarget."""

from __future__ import annotations

from typing import Final

from berth.api.pod import Pod, PodCondition

DISRUPTION_TARGET: Final = "DisruptionTarget"
BY_SCHEDULER: Final = "PreemptionByScheduler"
_TRUE: Final = "True"


def disruption(pod: Pod) -> PodCondition | None:
    """The pod's condition of that type."""
    return next((each for each in pod.status.conditions or () if each.type == DISRUPTION_TARGET), None)


def is_marked(pod: Pod) -> bool:
    """Whether a scheduler has said on the pod that it evicts it."""
    said = disruption(pod)
    return said is not None and said.status == _TRUE and said.reason == BY_SCHEDULER


def is_being_preempted(pod: Pod) -> bool:
    """Whether the pod is going because a scheduler evicted it."""
    return pod.metadata.deletion_timestamp is not None and is_marked(pod)
