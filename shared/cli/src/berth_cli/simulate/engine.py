"""Runs the scheduling cycle on one pod after another, and plans groups, without a bus or a cluster.

All pods use the same Snapshot, or each uses the Snapshot after the earlier pods. Then the simulation also reserves,
places and evicts, as binder and API server do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from berth.api.devices import Allocations, ResourceClaim
from berth.api.pod import Pod, is_gated, priority_of, unix_seconds
from berth.api.selectors import compile_label_selector
from berth.api.workloads import PodDisruptionBudget
from berth.cluster.podgroups import PodGroups
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
from berth.groups.evictions import GroupEvictions
from berth.messages.subjects import Attempt, Term, Uid
from berth_cli.pods.choice import devices_by_claim
from berth_cli.simulate.groups import GroupAnswer, PodGroupReport, WaitingGroup, answer_of, nodes_in, units_of

EXTENDED: Final = "extended resources"  # in place of the claim that berth would make


class NodeRejection(msgspec.Struct, frozen=True, kw_only=True):
    plugin: str
    reasons: tuple[str, ...]


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a pod: a line of ``-o json`` with exactly these members.

    ``scores`` are weighted, by plugin and node; plugins that skipped themselves are not listed. A single feasible node
    is not scored: then ``scores`` and ``totals`` are empty. ``message`` is the reason for having no node, ``None`` with
    a node. ``nominated`` is the node on which ``victims``, pods by name, would be evicted. ``devices``, by claim, are
    there only for a pod that gets some. ``group`` is only there for a pod that waits or is placed with its PodGroup;
    such a pod has no ``feasible``, ``scores`` and ``rejections``.
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
    group: str | msgspec.UnsetType = msgspec.UNSET


Report = PodReport | PodGroupReport


@dataclass(slots=True)
class ReportCounts:
    """``nodes`` are the nodes that got pods; ``whole``: groups whose minimum is placed."""

    pods: int = 0
    placed: int = 0
    nominated: int = 0
    nodes: set[str] = field(default_factory=set)
    groups: int = 0
    whole: int = 0

    def add(self, one: Report) -> None:
        if isinstance(one, PodGroupReport):
            self.groups += 1
            self.whole += one.message is None
            return
        self.pods += 1
        self.nominated += one.nominated is not None
        if one.bound is not None:
            self.placed += 1
            self.nodes.add(one.bound)


_GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"  # the API server's message

_LAST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Simulation:
    """Places pods on the Snapshot. ``failures`` has the error of each pod or group for which a plugin failed.

    The Snapshot's PodGroups have been shown the pods of the cluster that name them. ``nominated_first``: pods whose
    nominated node passed, so that no other node was tried.
    """

    snapshot: Snapshot
    profiles: Mapping[str, Profile]
    failures: dict[str, str] = field(default_factory=dict)
    nominated_first: set[str] = field(default_factory=set)

    def independently(self, pods: Iterable[Pod]) -> Iterator[Report]:
        for unit in self._units(pods):
            # So that no result depends on the previous pod.
            self._profile(_pod_for(unit)).search.next_row = 0
            if isinstance(unit, Pod):
                yield self._decide(unit)[0]
            else:
                yield from self._decide_group(unit, carries_out=False)

    def in_queue_order(self, pods: Iterable[Pod]) -> Iterator[Report]:
        units = self._units(pods)
        for pod in (each for unit in units for each in _pods_of(unit)):
            if pod.status.nominated_node_name:
                self.snapshot.nominate(pod, pod.status.nominated_node_name)
        for unit in sorted(units, key=lambda each: self._sort_key(_pod_for(each))):
            if isinstance(unit, Pod):
                yield self._decide_and_place(unit)
            else:
                yield from self._decide_group(unit, carries_out=True)

    def _units(self, pods: Iterable[Pod]) -> list[Pod | WaitingGroup]:
        def is_admitted(pod: Pod) -> bool:
            return pre_enqueue(self._profile(pod).pre_enqueues, pod).is_success

        return units_of(list(pods), PodGroups.of(self.snapshot), self.profiles, is_admitted)

    def _decide_and_place(self, pod: Pod) -> PodReport:
        report, ranking = self._decide(pod)
        rejection = self.carry_out(pod, ranking)
        return msgspec.structs.replace(report, bound=None, message=rejection) if rejection else report

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

    def _decide_group(self, waiting: WaitingGroup, *, carries_out: bool) -> Iterator[Report]:
        """The group, then its members. Those that it does not place with the others are decided by themselves."""
        report, members = self._outcome_of(waiting, carries_out=carries_out)
        yield report
        for pod in waiting.pods:
            if pod.uid in members:
                yield members[pod.uid]
            else:
                yield self._decide_and_place(pod) if carries_out else self._decide(pod)[0]

    def _outcome_of(self, waiting: WaitingGroup, *, carries_out: bool) -> tuple[PodGroupReport, dict[str, PodReport]]:
        """The group's report, and by uid those of the members whose outcome is the group's."""
        pending = {pod.uid: pod for pod in waiting.members.pending}
        if waiting.group is None or waiting.refusal:
            return waiting.report(message=waiting.refusal), _waiting_members(waiting, waiting.refusal)
        profile = self.profiles[waiting.members.profiles[0]]
        answer = answer_of(waiting, waiting.group, self.snapshot, profile)
        if answer.plan.error:
            self.failures[str(waiting.key)] = answer.plan.error
        nodes, rejected = nodes_in(answer.plan), dict[str, str]()
        if carries_out:
            wanted = [(pending[uid], node) for uid, node in nodes.items()]
            rejected = self._place_together(wanted, answer.plan.need)
            if answer.evictions is not None:
                self._preempt_together(pending, answer.evictions)
        placed = len(nodes) - len(rejected)
        if placed < answer.plan.need:
            message = answer.plan.error or answer.plan.message or next(iter(rejected.values()))
            return _group_report(waiting, answer, message=message), self._nominated_members(waiting, answer, message)
        reports = {uid: self._planned_member(waiting, answer, pending[uid], node) for uid, node in nodes.items()}
        reports |= {uid: _member(waiting, pending[uid], message=reason) for uid, reason in rejected.items()}
        return _group_report(waiting, answer, placed=placed), reports

    def _place_together(self, wanted: Iterable[tuple[Pod, str]], need: int) -> dict[str, str]:
        """Place the members, or none if fewer than ``need`` can be. Returns by uid the reasons of Reserve plugins."""
        placed: list[tuple[Pod, str, CycleState]] = []
        rejected: dict[str, str] = {}
        for pod, node in wanted:
            message, state = self._try_to_place(pod, node)
            if message:
                rejected[pod.uid] = f"{pod.metadata.name}: {message}"
            else:
                placed.append((pod, node, state))
        if len(placed) < need:
            for pod, node, state in reversed(placed):
                self.snapshot.remove_pod(pod.uid)
                try:
                    _unreserve(pod, node, state, self._profile(pod))
                except PluginFailure as failure:
                    self.failures[pod.key] = str(failure)
        return rejected

    def _preempt_together(self, pending: Mapping[str, Pod], evictions: GroupEvictions) -> None:
        """Evict the victims at once, and nominate every member of the plan."""
        _evict(self.snapshot, [pod.uid for pod in evictions.victims])
        for uid, node in nodes_in(evictions.plan).items():
            self._nominate(pending[uid], node)

    def _nominated_members(self, waiting: WaitingGroup, answer: GroupAnswer, message: str) -> dict[str, PodReport]:
        nodes = nodes_in(answer.evictions.plan) if answer.evictions is not None else {}
        return {
            pod.uid: _member(waiting, pod, message=message, nominated=nodes.get(pod.uid))
            for pod in waiting.members.pending
        }

    def _planned_member(self, waiting: WaitingGroup, answer: GroupAnswer, pod: Pod, node: str) -> PodReport:
        devices = self._by_claim(answer.plan.devices.get(pod.uid, {})) or msgspec.UNSET
        return _member(waiting, pod, bound=node, devices=devices)

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
        message, _ = self._try_to_place(pod, node)
        return message

    def _try_to_place(self, pod: Pod, node: str) -> tuple[str, CycleState]:
        """The same, with what Reserve plugins have noted."""
        state = CycleState(self.snapshot.class_of(pod))
        state.write(SNAPSHOT, self.snapshot)
        status = _reserve(pod, node, state, self._profile(pod))
        if status.is_success:
            bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
            self.snapshot.end_nomination(pod.uid)
            self.snapshot.place(bound, node)
            return "", state
        message = ", ".join(status.reasons)
        if not status.is_rejection:
            self.failures[pod.key] = message
        return message, state

    def _preempt(self, pod: Pod, nomination: Nomination) -> None:
        """Evict the victims at once."""
        _evict(self.snapshot, nomination.victims)
        self._nominate(pod, nomination.node)

    def _nominate(self, pod: Pod, node: str) -> None:
        """Nominate the pod, and end the nominations of pods of lower priority on the node."""
        for other in list(self.snapshot.nominations_to(node)):
            if priority_of(other.pod) < priority_of(pod):
                self.snapshot.end_nomination(other.pod.uid)
        self.snapshot.nominate(pod, node)


def _pod_for(unit: Pod | WaitingGroup) -> Pod:
    return unit if isinstance(unit, Pod) else unit.representative


def _pods_of(unit: Pod | WaitingGroup) -> Sequence[Pod]:
    return (unit,) if isinstance(unit, Pod) else unit.pods


def _group_report(
    waiting: WaitingGroup, answer: GroupAnswer, *, placed: int = 0, message: str | None = None
) -> PodGroupReport:
    found = answer.plan if answer.evictions is None else answer.evictions.plan
    return waiting.report(
        placed=placed,
        message=message,
        topology_key=found.topology_key,
        domain=found.domain,
        note=found.note,
        classes=answer.plan.results,
        victims=sorted(pod.key for pod in answer.evictions.victims) if answer.evictions is not None else [],
    )


def _waiting_members(waiting: WaitingGroup, message: str) -> dict[str, PodReport]:
    return {pod.uid: _member(waiting, pod, message=message) for pod in waiting.members.pending}


def _member(  # noqa: PLR0913 - the report has them
    waiting: WaitingGroup,
    pod: Pod,
    *,
    bound: str | None = None,
    message: str | None = None,
    nominated: str | None = None,
    devices: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET,
) -> PodReport:
    return PodReport(
        pod=pod.key,
        profile=pod.spec.scheduler_name,
        bound=bound,
        message=message,
        nominated=nominated,
        devices=devices,
        group=str(waiting.key),
    )


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


def _reserve(pod: Pod, node: str, state: CycleState, profile: Profile) -> Status:
    """Run the Reserve plugins; if one rejects the node, run Unreserve of all.

    As in the binder, a volume taken by one pod is not available to the next.
    """
    try:
        for plugin in profile.reserves:
            status = with_plugin_name(
                plugin, "Reserve", call(plugin, "Reserve", plugin.reserve, Status, state, pod, node)
            )
            if not status.is_success:
                _unreserve(pod, node, state, profile)
                return status
    except PluginFailure as failure:
        return Status.error(str(failure))
    return SUCCESS


def _unreserve(pod: Pod, node: str, state: CycleState, profile: Profile) -> None:
    for plugin in reversed(profile.reserves):
        call(plugin, "Unreserve", plugin.unreserve, object, state, pod, node)
