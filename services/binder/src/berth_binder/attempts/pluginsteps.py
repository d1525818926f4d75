"""The extension points after the choice of a node: Reserve, Permit, PreBind, Bind, PostBind; Unreserve after a failure.

Pure: the core sends the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import SNAPSHOT, Binding, Permission, Plugin, PreBindPlugin, Write
from berth.framework.plugincalls import PluginFailure, call, with_plugin_name
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Code, CycleState, Status

P = TypeVar("P", bound=Plugin)

NO_DEADLINE = float("inf")


@dataclass(slots=True, kw_only=True, eq=False)
class PluginSteps:
    """One pod's steps towards one node through the plugins of its profile."""

    profile: Profile
    state: CycleState
    pod: Pod
    node: str
    # Deadline on the caller's clock: a pod whose Permit plugins still answer WAIT is rejected then.
    waits_until: float = field(default=NO_DEADLINE)
    # Writes to send before PreBind; the core empties it once all are written.
    unwritten: tuple[Write, ...] = field(default=())
    _left_out: frozenset[str] = field(default=frozenset())  # the plugins that have nothing to do for the pod
    _has_asked_for_writes: bool = field(default=False)
    _is_permitted: bool = field(default=False)
    _is_reserved: bool = field(default=False)
    _waiting_since: dict[str, float] = field(default_factory=dict)

    @classmethod
    def on(cls, node: str, pod: Pod, snapshot: Snapshot, profile: Profile) -> PluginSteps:
        """Steps with a new CycleState for a pod that was just assumed on the node."""
        state = CycleState(snapshot.class_of(pod))
        state.write(SNAPSHOT, snapshot)
        left_out = profile.left_out(snapshot.traits_of(pod))
        return cls(profile=profile, state=state, pod=pod, node=node, _left_out=left_out)

    def before_binding(self, now: float) -> Status:
        """Run the remaining steps before the Binding. On WAIT call again; any other failure rejects the pod.

        Raises:
            PluginFailure: a plugin could not answer.
        """
        for step in (self._reserve, self._permit, self._collect_writes, self._pre_bind):
            status = step(now)
            if not status.is_success:
                return status
        return SUCCESS

    def binding(self) -> Binding:
        """The Binding to send.

        Raises:
            PluginFailure: no plugin of the profile binds this pod, or one could not answer.
        """
        for plugin in self.profile.binds:
            found = call(plugin, "Bind", plugin.bind, object, self.state, self.pod, self.node)
            if isinstance(found, Binding):
                return found
        raise PluginFailure(
            f"binding {self.pod.key!r}: no Bind plugin of profile {self.profile.scheduler_name!r} takes it"
        )

    def after_binding(self) -> None:
        """Run PostBind after the API has confirmed the Binding."""
        for plugin in self.profile.post_binds:
            with suppress(PluginFailure):  # the pod is bound: a plugin's failure changes nothing
                call(plugin, "PostBind", plugin.post_bind, object, self.state, self.pod, self.node)

    def undo(self) -> None:
        """Run Unreserve of all Reserve plugins in reverse order, because the pod was not bound to the node."""
        if not self._is_reserved:
            return
        self._is_reserved = False
        for plugin in reversed(self._concerned(self.profile.reserves)):
            with suppress(PluginFailure):  # the outcome is final: a plugin's failure changes nothing
                call(plugin, "Unreserve", plugin.unreserve, object, self.state, self.pod, self.node)

    def _concerned(self, plugins: Sequence[P]) -> list[P]:
        return [plugin for plugin in plugins if plugin.name not in self._left_out]

    def _reserve(self, _now: float) -> Status:
        """Run all Reserve plugins. If one fails, undo the reservations, so that the next try starts anew."""
        if self._is_reserved:
            return SUCCESS
        self._is_reserved = True
        try:
            for plugin in self._concerned(self.profile.reserves):
                answer = call(plugin, "Reserve", plugin.reserve, Status, self.state, self.pod, self.node)
                status = with_plugin_name(plugin, "Reserve", answer)
                if not status.is_success:
                    return status
        except PluginFailure:
            self.undo()
            raise
        return SUCCESS

    def _permit(self, now: float) -> Status:
        """Run all plugins again while one answers WAIT. The earliest deadline counts, from the first WAIT on."""
        if self._is_permitted:
            return SUCCESS
        waits = SUCCESS
        for plugin in self._concerned(self.profile.permits):
            answer = call(plugin, "Permit", plugin.permit, Permission, self.state, self.pod, self.node)
            status = with_plugin_name(plugin, "Permit", answer.status)
            if status.code is Code.WAIT:
                waits = status
                self.waits_until = min(self.waits_until, now + answer.timeout_seconds)
            elif not status.is_success:
                return status
        if waits.code is Code.WAIT and now >= self.waits_until:
            return Status(Code.UNSCHEDULABLE, (f'rejected: "{waits.plugin}" gave no permission in time',), waits.plugin)
        self._is_permitted = waits.is_success
        return waits

    def _collect_writes(self, _now: float) -> Status:
        if not self._has_asked_for_writes:
            plugins = self._concerned(self.profile.pre_binds)
            found = [call(p, "PreBind", p.writes, tuple, self.state, self.pod, self.node) for p in plugins]
            self.unwritten = tuple(write for writes in found for write in writes)
            self._has_asked_for_writes = True
        return Status(Code.WAIT, ("writes before the Binding are under way",)) if self.unwritten else SUCCESS

    def _pre_bind(self, now: float) -> Status:
        """Run all plugins again while one answers WAIT. Each has ``wait_seconds`` from its first WAIT on."""
        for plugin in self._concerned(self.profile.pre_binds):
            answer = call(plugin, "PreBind", plugin.pre_bind, Status, self.state, self.pod, self.node)
            status = with_plugin_name(plugin, "PreBind", answer)
            if status.code is Code.WAIT:
                return self._wait_or_reject(plugin, status, now)
            if not status.is_success:
                return status
        return SUCCESS

    def _wait_or_reject(self, plugin: PreBindPlugin, status: Status, now: float) -> Status:
        since = self._waiting_since.setdefault(plugin.name, now)
        if now < since + plugin.wait_seconds:
            return status
        return Status(Code.UNSCHEDULABLE, (plugin.too_late,), plugin.name)
