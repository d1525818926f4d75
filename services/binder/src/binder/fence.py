"""The fence: a status condition whose message is the epoch (PROTOCOL 5, *Fence*).

Writing it moves the pod's resourceVersion, so that no POST of a former leader can land any more. Pure: who needs one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from berth.api.identity import Epoch
from berth.api.pod import Pod, is_gone_while_unbound
from berth.kube.pods import CONDITION_FENCE

CONSUMER_PREFIX: Final = "binder-"


def fence_epoch(pod: Pod) -> int:
    """The epoch of the fence that the pod carries; 0 without one, or when somebody else wrote what is no number."""
    for condition in pod.status.conditions or ():
        if condition.type == CONDITION_FENCE:
            return _number(condition.message)
    return 0


def needs_fence(pod: Pod, epoch: Epoch) -> bool:
    """Whether a former leader's POST for the pod could still land: it is unbound, and not yet fenced by this epoch."""
    return not pod.spec.node_name and not is_gone_while_unbound(pod) and fence_epoch(pod) < epoch


def pods_to_fence(pods: Iterable[Pod], epoch: Epoch) -> list[Pod]:
    """Those of the pods that need this epoch's fence, each once."""
    return list({pod.uid: pod for pod in pods if needs_fence(pod, epoch)}.values())


def consumer_of(epoch: Epoch) -> str:
    """The name of an epoch's consumer of RANKED."""
    return f"{CONSUMER_PREFIX}{epoch}"


def former_consumers(names: Iterable[str], epoch: Epoch) -> list[str]:
    """Those of lower epochs: a leader that wakes late must not delete its successor's."""
    return [name for name in names if 0 < _number(name.removeprefix(CONSUMER_PREFIX)) < epoch]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
