"""Extension points, those of kube-scheduler 1.36: what a plugin inherits from for each, and who calls it there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from berth.api.config.types import Point
from berth.framework.interface import (
    BindPlugin,
    EnqueueExtensions,
    FilterPlugin,
    NormalizePlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
)


class Service(StrEnum):
    """The services that call plugins."""

    WATCHER = "watcher"
    SCORER = "scorer"
    BINDER = "binder"


POINT_TYPES: Final[Mapping[Point, type[Plugin]]] = {
    Point.PRE_ENQUEUE: PreEnqueuePlugin,
    Point.QUEUE_SORT: QueueSortPlugin,
    Point.PRE_FILTER: PreFilterPlugin,
    Point.FILTER: FilterPlugin,
    Point.POST_FILTER: PostFilterPlugin,
    Point.PRE_SCORE: PreScorePlugin,
    Point.SCORE: ScorePlugin,
    Point.RESERVE: ReservePlugin,
    Point.PERMIT: PermitPlugin,
    Point.PRE_BIND: PreBindPlugin,
    Point.BIND: BindPlugin,
    Point.POST_BIND: PostBindPlugin,
}
"""What a plugin inherits from when it has an extension point."""

REFUSING: Final = frozenset((Point.PRE_ENQUEUE, Point.PRE_FILTER, Point.FILTER, Point.RESERVE, Point.PERMIT))
"""Where a plugin can refuse a pod, so that its events are asked for."""

RUNS_IN: Final[Mapping[type[Plugin], tuple[Service, ...]]] = {
    PreEnqueuePlugin: (Service.WATCHER,),
    QueueSortPlugin: (Service.WATCHER,),
    EnqueueExtensions: (Service.WATCHER,),
    PreFilterPlugin: (Service.SCORER, Service.BINDER),
    PreFilterExtensions: (Service.SCORER, Service.BINDER),
    FilterPlugin: (Service.SCORER, Service.BINDER),
    PostFilterPlugin: (Service.SCORER, Service.BINDER),
    PreScorePlugin: (Service.SCORER,),
    ScorePlugin: (Service.SCORER,),
    NormalizePlugin: (Service.SCORER,),
    ReservePlugin: (Service.BINDER,),
    PermitPlugin: (Service.BINDER,),
    PreBindPlugin: (Service.BINDER,),
    BindPlugin: (Service.BINDER,),
    PostBindPlugin: (Service.BINDER,),
}
"""Where each point of a plugin is called, those included that no file names: the services that must have the plugin."""


def services_of(point: Point) -> tuple[Service, ...]:
    """The services that call plugins at this point of a configuration."""
    return RUNS_IN[POINT_TYPES[point]]
