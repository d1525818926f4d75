"""SchedulingGates: keeps gated pods out of the queue until their gates are removed. As in kube-scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.pod import Pod, is_gated
from berth.cluster.pods import Trait
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.interface import EnqueueExtensions, PreEnqueuePlugin, Reads
from berth.framework.status import SUCCESS, Status
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "SchedulingGates"


class SchedulingGates(PreEnqueuePlugin, EnqueueExtensions):
    """Keeps gated pods out of the queue."""

    name: ClassVar[str] = NAME
    reads = Reads.SPEC
    only_for = Trait.SCHEDULING_GATES

    def pre_enqueue(self, pod: Pod) -> Status:
        gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
        if not gates:
            return SUCCESS
        return Status.unresolvable(f"waiting for scheduling gates: [{' '.join(gates)}]")

    def events(self) -> Sequence[EventHint]:
        eliminated = ClusterEvent(Resource.POD, Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
        return (EventHint(eliminated, _is_ungated_now, key=nothing),)


def _is_ungated_now(pod: Pod, _: object, new: object) -> bool:
    return isinstance(new, Pod) and new.uid == pod.uid and not is_gated(new)


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_ENQUEUE,), build=no_args(SchedulingGates))
