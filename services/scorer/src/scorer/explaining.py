"""A line for each plugin, node, score and reason, from verbosity 4: what the articles' plugins log by themselves."""

from __future__ import annotations

from typing import Final

from berth.api.messages import Pending
from berth.framework.detail import Detail
from berth.service.logging import get_logger

log = get_logger()

VERBOSITY: Final = 4
"""klog's V from which on it is said; below it nothing is collected either."""


def explain(pending: Pending, detail: Detail) -> None:
    """Log what every plugin said of every node."""
    whose = {"pod": pending.pod.key, "uid": pending.pod.uid, "attempt": pending.attempt}
    for node, status in detail.refused.items():
        log.info("node refused", plugin=status.plugin, node=node, reason=", ".join(status.reasons), **whose)
    for plugin, scores in detail.scores.items():
        for node, score in scores.items():
            log.info("node scored", plugin=plugin, node=node, score=score, **whose)
