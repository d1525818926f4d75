"""PreEnqueue and queueing hints of a profile: whether a pod may enter the queue, and which events requeue it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from berth.api.pod import Pod
from berth.framework.events import ClusterEvent, EventHint
from berth.framework.interface import Plugin
from berth.framework.plugincalls import PluginFailure, call, call_within_limit, with_plugin_name
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Status


def pre_enqueue(profile: Profile, pod: Pod) -> Status:
    """Success, or the first rejection; an error with the plugin's name where a plugin failed."""
    for plugin in profile.pre_enqueues:
        try:
            status = with_plugin_name(plugin, "PreEnqueue", call(plugin, "PreEnqueue", plugin.pre_enqueue, Status, pod))
        except PluginFailure as failure:
            return Status.error(str(failure))
        if not status.is_success:
            return status
    return SUCCESS


def may_help(  # noqa: PLR0913, PLR0917 - the pod and the event as a queueing hint gets them, in the same order
    profile: Profile, unschedulable_plugins: Collection[str], event: ClusterEvent, pod: Pod, old: object, new: object
) -> bool:
    """Whether an event may make a pod schedulable that these plugins rejected.

    Every event may help when no plugin is named, or when one of them has no EnqueueExtensions.
    """
    return not unschedulable_plugins or any(
        hint is None or (hint.event.matches(event) and _run_hint(profile.requeueing[name], hint, pod, old, new))
        for name in unschedulable_plugins
        for hint in _hints_of(profile, name)
    )


def _hints_of(profile: Profile, plugin: str) -> Sequence[EventHint | None]:
    """The plugin's events; a single None where every event may help."""
    hints = profile.event_hints.get(plugin)
    return (None,) if hints is None else hints


def _run_hint(plugin: Plugin, hint: EventHint, pod: Pod, old: object, new: object) -> bool:
    if hint.hint is None:
        return True
    try:
        return call_within_limit(plugin, "EnqueueExtensions", partial(hint.hint, pod, old, new))
    except Exception:  # noqa: BLE001 - a hint that fails counts as yes: a try too many beats a pod that is never retried
        return True
