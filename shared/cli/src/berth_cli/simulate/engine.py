"""Runs the scheduling cycle on one pod after another, without a bus or a cluster.

All pods use the same Snapshot, or each uses the Snapshot after the earlier pods. Then the simulation also reserves,
places and evicts, as binder and API server do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from berth.api.devices import Allocations, ResourceClaim
from berth.api.pod import Pod, is_gated, priority_of, unix_seconds
from berth.api.selectors import compile_label_selector
from berth.api.workloads import PodDisruptionBudget
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import EveryNode, Ranking, rank_every_node
from berth.framework.interface import SNAPSHOT, Nomination
from berth.framework.plugincalls import (
    PluginFailure,
    SortKey,
    call,
    default_sort_key,
    pre_enqueue,
    run_sort_key,
    with_plugin_name,
)
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, CycleState, Status
from berth.messages.subjects import Attempt, Term, Uid
from berth_cli.pods.choice import devices_by_claim

EXTENDED: Final = "extended resources"  # in place of the claim that berth would make


class NodeRejection(msgspec.Struct, frozen=True, kw_only=True):
    plugin: str
    reasons: tuple[str, ...]


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a pod: a line of ``-o json`` with exactly these members.

    ``scores`` are weighted, by plugin and node; plugins that skipped themselves are not listed. A single feasible node
    is not scored: then ``scores`` and ``totals`` are empty. ``message`` is the reason for having no node, ``None`` with
    a node. ``nominated`` is the node on which ``victims``, pods by name, would be evicted. ``devices``, by claim, are
    there only for a pod that gets some.
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
    devices: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class ReportCounts:
    """``nodes`` are the nodes that got pods."""

    pods: int = 0
    placed: int = 0
    nominated: int = 0
    nodes: set[str] = field(default_factory=set)

    def add(self, one: PodReport) -> None:
        self.pods += 1
        self.nominated += one.nominated is not None
        if one.bound is not None:
            self.placed += 1
            self.nodes.add(one.bound)


_GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"  # the API server's message

_LAST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Simulation:
    """Places pods on the Snapshot. ``failures`` has the error of each pod for which a plugin failed.

    ``nominated_first``: pods whose nominated node passed, so that no other node was tried.
    """

    snapshot: Snapshot
    profiles: Mapping[str, Profile]
    failures: dict[str, str] = field(default_factory=dict)
    nominated_first: set[str] = field(default_factory=set)

    def independently(self, pods: Iterable[Pod]) -> Iterator[PodReport]:
        for pod in pods:
            self._profile(pod).search.next_row = 0  # so that no result depends on the previous pod
            yield self._decide(pod)[0]

    def in_queue_order(self, pods: Iterable[Pod]) -> Iterator[PodReport]:
        waiting = sorted(pods, key=self._sort_key)
        for pod in waiting:
            if pod.status.nominated_node_name:
                self.snapshot.nominate(pod, pod.status.nominated_node_name)
        for pod in waiting:
            report, ranking = self._decide(pod)
            rejection = self.carry_out(pod, ranking)
            yield msgspec.structs.replace(report, bound=None, message=rejection) if rejection else report

    def carry_out(self, pod: Pod, ranking: Ranking) -> str:
        """Place the pod on the best node, or evict pods for it; returns why it is not placed.

        The reason is empty for a pod that is placed, or that has no node.
        """
        if ranking.candidates:
            return self._place(pod, ranking.candidates[0].node)
        if ranking.nomination is not None:
            self._preempt(pod, ranking.nomination)
        elif ranking.clears_nomination:
            self.snapshot.end_nomination(pod.uid)
        return ""

    def _sort_key(self, pod: Pod) -> SortKey:
        try:
            return run_sort_key(self._profile(pod).queue_sort, pod, _since(pod))
        except PluginFailure as failure:
            self.failures[pod.key] = str(failure)
            return default_sort_key(pod, _since(pod))

    def _profile(self, pod: Pod) -> Profile:
        return self.profiles[pod.spec.scheduler_name]

    def _decide(self, pod: Pod) -> tuple[PodReport, Ranking]:
        profile = self._profile(pod)
        admitted = pre_enqueue(profile.pre_enqueues, pod)
        if not admitted.is_success:
            message = self._gate_message(pod, admitted)
            return PodReport(pod=pod.key, profile=profile.scheduler_name, message=message), Ranking(message=message)
        attempt = Attempt(uid=Uid(pod.uid), term=Term(1), n=1)
        every = rank_every_node(pod, self.snapshot, profile, attempt=attempt)
        if every.ranking.error:
            self.failures[pod.key] = every.ranking.error
        if every.ranking.nominated_first:
            self.nominated_first.add(pod.key)
        return self._report(pod, profile, every), every.ranking

    def _gate_message(self, pod: Pod, status: Status) -> str:
        if status.code is status.code.ERROR:
            self.failures[pod.key] = ", ".join(status.reasons)
        return _GATED if is_gated(pod) and status.is_rejection else ", ".join(status.reasons)

    def _report(self, pod: Pod, profile: Profile, every: EveryNode) -> PodReport:
        candidates, nomination = every.ranking.candidates, every.ranking.nomination
        scored = candidates if len(candidates) > 1 else ()
        rejected = every.detail.node_to_status.items()
        return PodReport(
            pod=pod.key,
            profile=profile.scheduler_name,
            bound=candidates[0].node if candidates else None,
            feasible=sorted(candidate.node for candidate in candidates),
            scores=every.detail.scores,
            totals={candidate.node: candidate.total for candidate in scored},
            rejections={node: NodeRejection(plugin=why.plugin, reasons=why.reasons) for node, why in rejected},
            message=None if candidates else every.ranking.error or every.ranking.message,
            nominated=nomination.node if nomination else None,
            victims=self._names(nomination.victims) if nomination else [],
            devices=self._by_claim(every.ranking.devices) or msgspec.UNSET,
        )

    def _by_claim(self, given: Allocations) -> dict[str, list[str]]:
        claims = self.snapshot.objects(ResourceClaim)
        named = {uid: claims.api_object(uid) for uid in given}
        keys = {uid: EXTENDED if claim is None else claim.key for uid, claim in named.items()}
        return {keys[uid]: devices for uid, devices in devices_by_claim(given).items()}

    def _names(self, uids: Iterable[str]) -> list[str]:
        placed = (self.snapshot.placed(uid) for uid in uids)
        return sorted(victim.pod.metadata.name for victim in placed if victim is not None)

    def _place(self, pod: Pod, node: str) -> str:
        """Place the pod. Returns a Reserve plugin's reason for rejecting the node."""
        status = _run_reserve_plugins(pod, node, self.snapshot, self._profile(pod))
        if status.is_success:
            bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
            self.snapshot.end_nomination(pod.uid)
            self.snapshot.place(bound, node)
            return ""
        message = ", ".join(status.reasons)
        if not status.is_rejection:
            self.failures[pod.key] = message
        return message

    def _preempt(self, pod: Pod, nomination: Nomination) -> None:
        """Evict the victims at once, and end the nominations of pods of lower priority on the node."""
        _evict(self.snapshot, nomination.victims)
        for other in list(self.snapshot.nominations_to(nomination.node)):
            if priority_of(other.pod) < priority_of(pod):
                self.snapshot.end_nomination(other.pod.uid)
        self.snapshot.nominate(pod, nomination.node)


def _since(pod: Pod) -> datetime:
    created = pod.metadata.creation_timestamp
    return datetime.fromtimestamp(unix_seconds(created), UTC) if created else _LAST


def _evict(snapshot: Snapshot, uids: Iterable[str]) -> None:
    """Subtract each evicted pod from the budgets that select it."""
    for uid in uids:
        placed = snapshot.placed(uid)
        if placed is not None:
            snapshot.remove_pod(uid)
            _charge_budgets(snapshot, placed.pod)


def _charge_budgets(snapshot: Snapshot, pod: Pod) -> None:
    """Update the budget as the disruption controller does when one of its healthy pods is removed."""
    budgets = snapshot.objects(PodDisruptionBudget)
    for budget in list(budgets.in_namespace(pod.metadata.namespace)):
        left = budget.status.disruptions_allowed - 1
        if left >= 0 and compile_label_selector(budget.spec.selector).matches(pod.metadata.labels or {}):
            status = msgspec.structs.replace(budget.status, disruptions_allowed=left)
            budgets.set(budget.metadata.uid, msgspec.structs.replace(budget, status=status))


def _run_reserve_plugins(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Status:
    """Run the Reserve plugins; if one rejects the node, run Unreserve of all.

    As in the binder, a volume taken by one pod is not available to the next.
    """
    state = CycleState(snapshot.class_of(pod))
    state.write(SNAPSHOT, snapshot)
    try:
        for plugin in profile.reserves:
            status = with_plugin_name(
                plugin, "Reserve", call(plugin, "Reserve", plugin.reserve, Status, state, pod, node)
            )
            if not status.is_success:
                for reserved in reversed(profile.reserves):
                    call(reserved, "Unreserve", reserved.unreserve, object, state, pod, node)
                return status
    except PluginFailure as failure:
        return Status.error(str(failure))
    return SUCCESS
