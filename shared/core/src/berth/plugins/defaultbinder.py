"""DefaultBinder: binds a pod by creating a Binding. As kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.framework.interface import Binding, BindPlugin, Reads
from berth.framework.status import CycleState
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "DefaultBinder"


class DefaultBinder(BindPlugin):
    """Binds every pod; the binder sends the request."""

    name: ClassVar[str] = NAME
    reads = Reads.SPEC

    def bind(self, state: CycleState, pod: Pod, node: str) -> Binding | None:
        """A Binding with the uid, so that a new pod of the same name is not bound."""
        meta = pod.metadata
        return Binding(namespace=meta.namespace, name=meta.name, uid=meta.uid, node=node)


FACTORY: Final = PluginFactory(name=NAME, points=(Point.BIND,), build=no_args(DefaultBinder))
