"""Runs the extension points of the binding cycle, for the binder. A plugin that fails is a Status that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.filtering import pre_filter
from berth.framework.interface import Binding, Permission, Plugin
from berth.framework.plugincalls import PluginFailure, call, named
from berth.framework.profile import Profile
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Code, Status

P = TypeVar("P", bound=Plugin)


def new_state(pod: Pod, snapshot: Snapshot, profile: Profile) -> CycleState:
    """The state for one pod's binding cycle, with what PreFilter wrote into it. To be kept until the pod is bound.

    Raises:
        PluginFailure: a plugin failed.
    """
    return pre_filter(pod, snapshot, profile).state


def run_reserve(state: CycleState, pod: Pod, node: str, profile: Profile) -> Status:
    """Success when all plugins reserved; otherwise the reason, and all of them have been told to unreserve."""
    status = _first_not_success(profile.reserves, "Reserve", lambda plugin: plugin.reserve(state, pod, node))
    if status.is_success:
        return status
    undone = run_unreserve(state, pod, node, profile)
    return status if undone.is_success else Status(status.code, (*status.reasons, *undone.reasons), status.plugin)


def run_unreserve(state: CycleState, pod: Pod, node: str, profile: Profile) -> Status:
    """Every plugin's unreserve, in reverse order; one that fails does not keep the others from being called."""
    failures: list[str] = []
    for plugin in reversed(profile.reserves):
        try:
            call(plugin, "Unreserve", plugin.unreserve, object, state, pod, node)
        except PluginFailure as failure:
            failures.append(str(failure))
    return Status.error(*failures) if failures else SUCCESS


def run_permit(state: CycleState, pod: Pod, node: str, profile: Profile) -> tuple[Status, timedelta]:
    """Success; the first rejection; or WAIT and the shortest time that a plugin is ready to wait.

    All plugins are asked unless one rejects, as in kube-scheduler.
    """
    waiting: list[tuple[float, Status]] = []
    for plugin in profile.permits:
        try:
            answer = call(plugin, "Permit", plugin.permit, Permission, state, pod, node)
            status = named(plugin, "Permit", answer.status)
        except PluginFailure as failure:
            return _failed(plugin, failure), timedelta(0)
        if status.code is Code.WAIT:
            waiting.append((answer.timeout_seconds, status))
        elif not status.is_success:
            return status, timedelta(0)
    if not waiting:
        return SUCCESS, timedelta(0)
    seconds, status = min(waiting, key=lambda wait: wait[0])
    return status, timedelta(seconds=seconds)


def run_pre_bind(state: CycleState, pod: Pod, node: str, profile: Profile) -> Status:
    """Success when all plugins are done; WAIT when one is not yet (to be asked again); or the first rejection."""
    return _first_not_success(profile.pre_binds, "PreBind", lambda plugin: plugin.pre_bind(state, pod, node))


def run_bind(state: CycleState, pod: Pod, node: str, profile: Profile) -> Binding | Status:
    """The request of the first plugin that binds this pod, or an error when none does."""
    for plugin in profile.binds:
        try:
            answer = call(plugin, "Bind", plugin.bind, object, state, pod, node)
        except PluginFailure as failure:
            return _failed(plugin, failure)
        if isinstance(answer, Binding):
            return answer
    return Status.error(f"no Bind plugin of profile {profile.scheduler_name!r} binds the pod")


def run_post_bind(state: CycleState, pod: Pod, node: str, profile: Profile) -> Status:
    """Tell every plugin; success, or an error with what failed: the pod is bound all the same."""
    failures: list[str] = []
    for plugin in profile.post_binds:
        try:
            call(plugin, "PostBind", plugin.post_bind, object, state, pod, node)
        except PluginFailure as failure:
            failures.append(str(failure))
    return Status.error(*failures) if failures else SUCCESS


def _first_not_success(plugins: Iterable[P], point: str, method: Callable[[P], Status]) -> Status:
    for plugin in plugins:
        try:
            status = named(plugin, point, call(plugin, point, method, Status, plugin))
        except PluginFailure as failure:
            return _failed(plugin, failure)
        if not status.is_success:
            return status
    return SUCCESS


def _failed(plugin: Plugin, failure: PluginFailure) -> Status:
    return Status(Code.ERROR, (str(failure),), plugin.name)
