"""Which events are worth a look: what the plugins of each profile listen to, asked once for all pods they refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from berth.api.messages import Outcome
from berth.api.pod import Pod
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.interface import EnqueueExtensions, Plugin
from berth.framework.profile import Profile
from berth.framework.status import Status
from watcher.waiting_pod import WaitingPod

VICTIM_LEFT = ClusterEvent(Resource.POD, Action.DELETE)
"""What a pod waits for whose victims were evicted, whatever its blockers say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What pods have in common that the same events may help."""

    profile: str
    blockers: frozenset[str]
    preempting: bool = False


def refusal_of(pod: WaitingPod) -> Refusal:
    """By whom the pod was refused."""
    return Refusal(profile=pod.profile, blockers=pod.blockers, preempting=pod.outcome is Outcome.PREEMPTING)


class Interest:
    """Answers of the profiles' plugins. Pods without blockers, and plugins that name no events, hear everything."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self._profiles = profiles
        self._listened = {name: _listened(profile) for name, profile in profiles.items()}
        self._answers: dict[tuple[Refusal, ClusterEvent], bool] = {}
        self._everybody = [Refusal(profile=name, blockers=frozenset(all_)) for name, all_ in self._listened.items()]

    def listens(self, refusal: Refusal, event: ClusterEvent) -> bool:
        """Whether such an event may help any pod that was refused so."""
        key = (refusal, event)
        answer = self._answers.get(key)
        if answer is None:
            awaited = refusal.preempting and VICTIM_LEFT.matches(event)
            answer = self._answers[key] = awaited or self._names(refusal, event)
        return answer

    def may_help(self, pod: WaitingPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether this event may help this pod."""
        if pod.outcome is Outcome.PREEMPTING and VICTIM_LEFT.matches(event):
            return not isinstance(old, Pod) or not pod.node or old.spec.node_name == pod.node
        return self._profiles[pod.profile].may_help(pod.blockers, event, pod.pod, old, new)

    def helps(self, pod: WaitingPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Both questions at once."""
        return self.listens(refusal_of(pod), event) and self.may_help(pod, event, old, new)

    def anybody_listens(self, event: ClusterEvent) -> bool:
        """Whether any plugin of any profile names such an event: whether it has to be remembered."""
        return VICTIM_LEFT.matches(event) or any(self.listens(everybody, event) for everybody in self._everybody)

    def pre_enqueue(self, pod: Pod) -> Status:
        """Whether the pod may enter the queue."""
        return self._profiles[pod.spec.scheduler_name].pre_enqueue(pod)

    def _names(self, refusal: Refusal, event: ClusterEvent) -> bool:
        events = [self._listened[refusal.profile].get(name) for name in refusal.blockers]
        return not events or any(named is None or any(each.matches(event) for each in named) for named in events)


def _listened(profile: Profile) -> dict[str, tuple[ClusterEvent, ...] | None]:
    plugins: tuple[Plugin, ...] = (
        *profile.pre_enqueues,
        *profile.pre_filters,
        *profile.filters,
        *profile.reserves,
        *profile.permits,
    )
    return {
        plugin.name: tuple(hint.event for hint in plugin.events()) if isinstance(plugin, EnqueueExtensions) else None
        for plugin in plugins
    }
