"""PrioritySort: pods of higher priority first, then by age. As in kube-scheduler."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from berth.api.config.types import Point
from berth.api.pod import Pod, priority_of
from berth.framework.interface import QueueSortPlugin, Reads
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "PrioritySort"


class PrioritySort(QueueSortPlugin):
    name: ClassVar[str] = NAME
    reads = Reads.SPEC

    def sort_key(self, pod: Pod, since: datetime) -> tuple[Any, ...]:
        return (-priority_of(pod), since)


FACTORY: Final = PluginFactory(name=NAME, points=(Point.QUEUE_SORT,), build=no_args(PrioritySort))
