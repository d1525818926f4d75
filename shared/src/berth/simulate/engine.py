"""What evicting pods does to a Snapshot that nobody else keeps up: they are gone, and their budgets allow fewer.

Reserve, as the binder asks it when a node is chosen: volumes that one pod gets are not there for the next.

The scheduling cycle asked about one pod after another, with no bus and no cluster: what would be decided. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from berth.api.pod import Pod, is_gated, priority_of, unix_seconds
from berth.api.selectors import compile_label_selector
from berth.api.subjects import Attempt, Term, Uid
from berth.api.workloads import PodDisruptionBudget
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import EveryNode, Ranking, rank_every_node
from berth.framework.interface import SNAPSHOT, Nomination
from berth.framework.plugincalls import PluginFailure, call, named
from berth.framework.profile import Profile
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Status


def evict(snapshot: Snapshot, uids: Iterable[str]) -> None:
    """Remove the pods, as if they ended at once, and take each from the budgets that mean it."""
    for uid in uids:
        placed = snapshot.placed(uid)
        if placed is not None:
            snapshot.remove_pod(uid)
            _charge(snapshot, placed.pod)


def _charge(snapshot: Snapshot, pod: Pod) -> None:
    """What the disruption controller does when it sees a healthy pod of a budget go."""
    budgets = snapshot.objects(PodDisruptionBudget)
    for budget in list(budgets.in_namespace(pod.metadata.namespace)):
        left = budget.status.disruptions_allowed - 1
        if left >= 0 and compile_label_selector(budget.spec.selector).matches(pod.metadata.labels or {}):
            status = msgspec.structs.replace(budget.status, disruptions_allowed=left)
            budgets.set(budget.metadata.uid, msgspec.structs.replace(budget, status=status))


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


GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"
"""What the API server writes into the condition of a pod that has gates."""

_LAST: Final = datetime.max.replace(tzinfo=UTC)


class NodeRejection(msgspec.Struct, frozen=True, kw_only=True):
    """Who refused a node, and why."""

    plugin: str
    reasons: tuple[str, ...]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What would be decided about a pod: a line of ``-o json``, these members and no others.

    ``scores`` are weighted, by plugin and node; a plugin that skipped itself is not listed. A single feasible node is
    not scored: then ``scores`` and ``totals`` are empty. ``message`` says why there is no node, ``None`` when there is
    one. ``nominated`` is where ``victims``, pods by name, would be evicted to make room.
    """

    pod: str
    profile: str
    bound: str | None = None
    feasible: list[str] = []
    scores: dict[str, dict[str, int]] = {}
    totals: dict[str, int] = {}
    rejections: dict[str, NodeRejection] = {}
    message: str | None = None
    nominated: str | None = None
    victims: list[str] = []


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A state, and the profiles that pods are asked with. ``failed`` says of pods why a plugin could not answer."""

    snapshot: Snapshot
    profiles: Mapping[str, Profile]
    failed: dict[str, str] = field(default_factory=dict)

    def each_alone(self, pods: Iterable[Pod]) -> Iterator[Simulated]:
        """Each pod on the state as it is, in the order given."""
        for pod in pods:
            self._profile(pod).search.next_row = 0  # where the last pod's search ended is no part of the state
            yield self._asked(pod)[0]

    def one_after_another(self, pods: Iterable[Pod]) -> Iterator[Simulated]:
        """In the order of the queue, each on what the ones before have left."""
        waiting = sorted(pods, key=lambda pod: self._profile(pod).sort_key(pod, _since(pod)))
        for pod in waiting:
            if pod.status.nominated_node_name:
                self.snapshot.nominate(pod, pod.status.nominated_node_name)
        for pod in waiting:
            simulated, ranking = self._asked(pod)
            if simulated.bound is not None:
                simulated = self._bound(pod, simulated, simulated.bound)
            elif ranking.nomination is not None:
                self._make_room(pod, ranking.nomination)
            elif ranking.clears_nomination:
                self.snapshot.end_nomination(pod.uid)
            yield simulated

    def _profile(self, pod: Pod) -> Profile:
        return self.profiles[pod.spec.scheduler_name]

    def _asked(self, pod: Pod) -> tuple[Simulated, Ranking]:
        profile = self._profile(pod)
        admitted = profile.pre_enqueue(pod)
        if not admitted.is_success:
            message = self._held_back(pod, admitted)
            return Simulated(pod=pod.key, profile=profile.scheduler_name, message=message), Ranking(message=message)
        attempt = Attempt(uid=Uid(pod.uid), term=Term(1), n=1)
        every = rank_every_node(pod, self.snapshot, profile, attempt=attempt)
        if every.ranking.error:
            self.failed[pod.key] = every.ranking.error
        return self._simulated(pod, profile, every), every.ranking

    def _held_back(self, pod: Pod, status: Status) -> str:
        if status.code is status.code.ERROR:
            self.failed[pod.key] = ", ".join(status.reasons)
        return GATED if is_gated(pod) and status.is_rejection else ", ".join(status.reasons)

    def _simulated(self, pod: Pod, profile: Profile, every: EveryNode) -> Simulated:
        candidates, nomination = every.ranking.candidates, every.ranking.nomination
        scored = candidates if len(candidates) > 1 else ()
        refused = every.detail.refused.items()
        return Simulated(
            pod=pod.key,
            profile=profile.scheduler_name,
            bound=candidates[0].node if candidates else None,
            feasible=sorted(candidate.node for candidate in candidates),
            scores=every.detail.scores,
            totals={candidate.node: candidate.total for candidate in scored},
            rejections={node: NodeRejection(plugin=why.plugin, reasons=why.reasons) for node, why in refused},
            message=None if candidates else every.ranking.error or every.ranking.message,
            nominated=nomination.node if nomination else None,
            victims=self._names(nomination.victims) if nomination else [],
        )

    def _names(self, uids: Iterable[str]) -> list[str]:
        placed = (self.snapshot.placed(uid) for uid in uids)
        return sorted(victim.pod.metadata.name for victim in placed if victim is not None)

    def _bound(self, pod: Pod, simulated: Simulated, node: str) -> Simulated:
        """What is decided once the Reserve plugins were asked: the pod is on the node, unless they refuse."""
        status = reserve(pod, node, self.snapshot, self._profile(pod))
        if status.is_success:
            bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
            self.snapshot.end_nomination(pod.uid)
            self.snapshot.place(bound, node)
            return simulated
        message = ", ".join(status.reasons)
        if not status.is_rejection:
            self.failed[pod.key] = message
        return msgspec.structs.replace(simulated, bound=None, message=message)

    def _make_room(self, pod: Pod, nomination: Nomination) -> None:
        """Evict, as if it took no time; pods of lower priority lose the room that was kept for them there."""
        evict(self.snapshot, nomination.victims)
        for other in list(self.snapshot.nominations()):
            if other.node == nomination.node and priority_of(other.pod) < priority_of(pod):
                self.snapshot.end_nomination(other.pod.uid)
        self.snapshot.nominate(pod, nomination.node)


def _since(pod: Pod) -> datetime:
    """When the pod began to wait: at its creation; one that is not created yet comes after those that are."""
    created = pod.metadata.creation_timestamp
    return datetime.fromtimestamp(unix_seconds(created), UTC) if created else _LAST
