"""Since when a pod is on its node, as far as its object says."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from berth.api.pod import Pod

_POD_SCHEDULED: Final = "PodScheduled"
LONG_AGO: Final = 0.0
"""Unix seconds of a Binding of which nobody knows when it was: nothing of it is new."""


def bound_at(pod: Pod) -> float:
    """Unix seconds: when the API server took the Binding, else the pod's start or creation, else LONG_AGO."""
    return unix_seconds(_bound_by_condition(pod) or pod.status.start_time or pod.metadata.creation_timestamp)


def bound_since(pod: Pod) -> str | None:
    """The same as RFC 3339 text, as the mirror holds it: when the API server took the Binding, else the creation."""
    return _bound_by_condition(pod) or pod.metadata.creation_timestamp


def _bound_by_condition(pod: Pod) -> str | None:
    for condition in pod.status.conditions or ():
        if condition.type == _POD_SCHEDULED and condition.status == "True" and condition.last_transition_time:
            return condition.last_transition_time
    return None


def unix_seconds(text: str | None) -> float:
    """Unix seconds of an RFC 3339 time; LONG_AGO for none, and for text that is none."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return LONG_AGO
