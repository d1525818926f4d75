"""Reserve, as the binder asks it when a node is chosen: volumes that one pod gets are not there for the next."""

from __future__ import annotations

from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.guard import PluginFailure, call, named
from berth.framework.interface import SNAPSHOT
from berth.framework.profile import Profile
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Status


def reserve(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Status:
    """Success, or who does not let the pod go to the node; then every Reserve plugin has heard that it does not go."""
    state = CycleState(snapshot.class_of(pod))
    state.write(SNAPSHOT, snapshot)
    try:
        for plugin in profile.reserves:
            status = named(plugin, "Reserve", call(plugin, "Reserve", plugin.reserve, Status, state, pod, node))
            if not status.is_success:
                for asked in reversed(profile.reserves):
                    call(asked, "Unreserve", asked.unreserve, object, state, pod, node)
                return status
    except PluginFailure as failure:
        return Status.error(str(failure))
    return SUCCESS
