"""kube-scheduler's words for what stands in the labels of its metrics."""

from __future__ import annotations

from typing import Final

from berth.api.messages import Outcome
from berth.framework.status import Code

_RESULTS: Final = {
    Outcome.BOUND: "scheduled",
    Outcome.UNSCHEDULABLE: "unschedulable",
    Outcome.PREEMPTING: "unschedulable",
    Outcome.ERROR: "error",
}
_POINTS: Final = {
    "NormalizeScore": "ScoreExtensionNormalize",
    "AddPod": "PreFilterExtensionAddPod",
    "RemovePod": "PreFilterExtensionRemovePod",
}
"""Where they are not those of the extension points."""
_STATUSES: Final = {code: "".join(word.capitalize() for word in code.name.split("_")) for code in Code}


def result_of(outcome: Outcome) -> str | None:
    """``scheduled``, ``unschedulable`` or ``error``; None for outcomes that only berth has.

    A conflict or a pod that went away is no result: the first is ranked again, the second needs none.
    """
    return _RESULTS.get(outcome)


def point_of(extension_point: str) -> str:
    """The label of an extension point, as plugins' failures name it."""
    return _POINTS.get(extension_point, extension_point)


def status_of(code: Code) -> str:
    """``Success``, ``Unschedulable`` and so on."""
    return _STATUSES[code]
