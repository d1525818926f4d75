"""The check of a group's plan on the newest state: all members that are needed are assumed, or none (ADR 72).

``GroupCheck.members_now`` finds the members of a plan that are as they were planned. ``examine`` takes them in the
plan's order; each passes all filters with those before it assumed, on its node or on the best alternate of its class.
What the binder's own cache says of group and pods counts, never what a message says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from berth.api.pod import Pod, digest_of, is_gated, is_gone_while_unbound
from berth.api.podgroups import GroupKey, Members, PodGroup, group_of
from berth.api.resources import counted, pod_requests
from berth.decoding import version_number
from berth.framework.cycle import check
from berth.framework.plugincalls import PluginFailure
from berth.framework.profile import Profile
from berth.framework.scoring import counted_pods_of
from berth.framework.status import EXAMPLES, SUCCESS, Code, Status
from berth.messages.attempts import Candidate, Outcome, Reason, Rejection, by_best_estimate
from berth.messages.groups import MOST_ALTERNATES, GroupPlan
from berth_binder.cache import PODS, Cache
from berth_binder.decisions.verdict import RecheckError, Verdict

# Members that the binder awaits because its watch has not shown them. Of a group with more it is far behind.
MOST_AWAITED = 32


class GroupPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The node of each member that has one, by uid, in the order in which they were assumed."""

    nodes: dict[str, str]


class Reservations:
    """What assumed pods reserve; by default nothing."""

    def reserve(self, pod: Pod, node: str) -> Status:  # noqa: ARG002 - see the binder's
        """Reserve for a pod that was just assumed on the node. Raises PluginFailure: a plugin could not answer."""
        return SUCCESS

    def undo(self, uid: str) -> None:
        """The pod is not assumed any more."""


Examination = Generator[None, None, GroupPlacement | Verdict]


@dataclass(slots=True)
class MembersNow:
    """``ready``: as they were planned. ``unknown``: the watch has not shown them, and may do so."""

    ready: dict[str, Pod] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def is_behind(self) -> bool:
        return len(self.unknown) > MOST_AWAITED


def refuses_single(pod: Pod, group: PodGroup | None, members: Members) -> bool:
    """Whether a ranking of this pod alone must not be bound, because its group needs it placed with others.

    ``group`` is the one that the pod names, None if it is not known. Old watchers and forged messages rank members
    one by one.
    """
    if group_of(pod) is None:
        return False
    return group is None or (members.need(group) > 0 and not group.is_ordinary(pod_requests(pod.spec).amounts))


def needs_others(pod: Pod, cache: Cache) -> bool:
    """Whether a single pod, as it is now, has a group that lacks members by the binder's cache."""
    key = group_of(pod)
    if key is None or key.dialect in cache.groups.absent:
        return False
    group = cache.groups.get(key)
    is_ordinary = group is not None and group.is_ordinary({})
    return not is_ordinary and refuses_single(pod, group, cache.members_of(key))


class GroupCheck:
    def __init__(self, *, cache: Cache, profiles: Mapping[str, Profile]) -> None:
        self._cache = cache
        self._profiles = profiles

    def members_now(
        self, uids: Iterable[str], planned: Mapping[str, tuple[str, int]], key: GroupKey, profile: str
    ) -> MembersNow:
        """``planned``: by uid, the digest and the resourceVersion of each member as the watcher saw it."""
        found = MembersNow()
        for uid in uids:
            pod = self._cache.pod(uid)
            digest, version = planned.get(uid, ("", 0))
            if pod is None or (version_number(pod.metadata.resource_version) < version and digest_of(pod) != digest):
                is_to_come = version > self._cache.reached(PODS)
                (found.unknown if is_to_come else found.changed).append(uid)
            elif self._cache.answered_node(uid) is None and self._is_as_planned(pod, digest, key, profile):
                found.ready[uid] = pod
            else:
                found.changed.append(uid)
        return found

    def _is_as_planned(self, pod: Pod, digest: str, key: GroupKey, profile: str) -> bool:
        waits = not (is_gated(pod) or is_gone_while_unbound(pod)) and pod.spec.scheduler_name == profile
        return waits and group_of(pod) == key and digest_of(pod) == digest

    def examine(  # noqa: PLR0913 - the plan, what counts of it, and the clock
        self,
        plan: GroupPlan,
        group: PodGroup,
        pods: Mapping[str, Pod],
        need: int,
        profile: str,
        *,
        may_continue: Callable[[], bool] = lambda: True,
        reservations: Reservations | None = None,
    ) -> Examination:
        """Assume at least ``need`` of these pods, or none. Yields when ``may_continue`` says that its time is over.

        Each assumed pod goes through Reserve at once, so that members behind it see what it got.

        Until it has returned a placement the caller must not act on what is assumed. If it is closed, nothing stays
        assumed.

        Raises:
            RecheckError: a plugin could not answer.
        """
        reservations = reservations or Reservations()
        examining = _Examining(self._cache, self._profiles[profile].of_plans, plan, group, pods, need, reservations)
        done = False
        try:
            for _ in examining.run():
                if not may_continue():
                    before = self._cache.snapshot.version
                    yield
                    examining.note_events_since(before)
            done = examining.is_enough
        finally:
            if not done:
                examining.forget_all()
        if not done:
            return examining.conflict()
        return GroupPlacement(nodes=dict(examining.nodes))

    def lacking(self, shown: PodGroup, placed: Iterable[Pod]) -> str:
        """What of minResources the nodes have not free, beyond what the members have. A check of sums, no promise."""
        asked = counted(shown.min_resources)
        if not asked:
            return ""
        for pod in (*self._cache.members_of(shown.key).bound, *placed):
            for resource, amount in pod_requests(pod.spec).amounts.items():
                if resource in asked:
                    asked[resource] -= amount
        columns, size = self._cache.snapshot.columns, self._cache.snapshot.size
        for resource, amount in asked.items():
            free = columns.allocatable.of(resource)[:size] - columns.requested.of(resource)[:size]
            if amount > free[columns.exists[:size]].clip(min=0).sum():
                return f"the nodes have not as much {resource} free as the group's minResources ask for"
        return ""

    def touched_since(self, version: int) -> set[str] | None:
        """The nodes that changed since; None: perhaps all."""
        changed = self._cache.snapshot.changed_since(version)
        names = self._cache.snapshot.rows.names
        return None if changed is None else {names[row] for row in changed.nodes | changed.pods}


class _Examining:
    """One examination: ``nodes`` of the assumed members, ``rejections`` of the others."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one examination
        self,
        cache: Cache,
        profile: Profile,
        plan: GroupPlan,
        group: PodGroup,
        pods: Mapping[str, Pod],
        need: int,
        reservations: Reservations,
    ) -> None:
        self._reservations = reservations
        self.nodes: dict[str, str] = {}
        self._rejected: dict[tuple[str, str], dict[str, None]] = {}  # by plugin and reason, the nodes
        self._without_node = 0
        # A plan whose nodes have all gone, or never were, takes at most twice the checks of one that holds.
        self._alternates_left = len(plan.members) + MOST_ALTERNATES
        self._cache = cache
        self._profile = profile
        self._plan = plan
        self._pods = pods
        self._need = need
        topology = group.topology
        self._domain = (topology.key, plan.domain) if topology is not None and topology.required else None
        self._is_begun = bool(cache.members_of(group.key).bound)
        self._touched: set[str] | None = set()  # nodes; None for all

    @property
    def is_enough(self) -> bool:
        return len(self.nodes) >= self._need

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Why members have no node, each reason once."""
        return tuple(
            Rejection(plugin=plugin, reason=reason, nodes=len(nodes), examples=[*islice(nodes, EXAMPLES)])
            for (plugin, reason), nodes in self._rejected.items()
        )

    def run(self) -> Generator[None, None, None]:
        """Assume members one after another, then check those again whose node an event has touched."""
        left = sum(member.uid in self._pods for member in self._plan.members)
        for member in self._plan.members:
            pod = self._pods.get(member.uid)
            if pod is None:
                continue
            if len(self.nodes) + left < self._need:
                return
            left -= 1
            self._find_node(pod, self._plan.nodes[member.node], member.of_class)
            yield
        yield from self._check_touched()

    def note_events_since(self, version: int) -> None:
        """Note the nodes that changed while others worked."""
        changed = self._cache.snapshot.changed_since(version)
        if changed is None or self._touched is None:
            self._touched = None
        else:
            names = self._cache.snapshot.rows.names
            self._touched |= {names[row] for row in changed.nodes | changed.pods}

    def forget_all(self) -> None:
        for uid in reversed(self.nodes):
            self._forget(uid)

    def conflict(self) -> Verdict:
        return Verdict(
            outcome=Outcome.CONFLICT,
            reason=Reason.NO_CANDIDATE,
            message=f"{self._without_node} members have no node any more, and {self._need} are needed together",
            rejections=self.rejections,
        )

    def _check_touched(self) -> Generator[None, None, None]:
        while (touched := self._touched) is None or touched:
            self._touched = set()
            for member in self._plan.members:
                node = self.nodes.get(member.uid)
                if node is None or (touched is not None and node not in touched):
                    continue
                pod = self._pods[member.uid]
                if not self._status(pod, node, has_room=True).is_success:
                    self._forget(member.uid)
                    del self.nodes[member.uid]
                    self._find_node(pod, node, member.of_class)
                yield

    def _find_node(self, pod: Pod, planned: str, of_class: int) -> None:
        status = self._take(pod, planned)
        if status.is_success:
            return
        for candidate in self._alternates(pod, of_class)[: self._alternates_left]:
            self._alternates_left -= 1
            if self._take(pod, candidate.node).is_success:
                return
        self._without_node += 1
        self._rejected.setdefault((status.plugin, ", ".join(status.reasons)), {})[planned] = None

    def _take(self, pod: Pod, node: str) -> Status:
        """Assume the pod there if it passes and gets what it reserves."""
        status = self._status(pod, node)
        if not status.is_success:
            return status
        self._cache.assume(pod, node)
        try:
            status = self._reservations.reserve(pod, node)
        except PluginFailure as failure:
            self._forget(pod.uid)
            raise RecheckError(f"reserving for {pod.key!r} on {node!r}: {failure}") from failure
        if status.is_success:
            self.nodes[pod.uid] = node
            return status
        self._forget(pod.uid)
        if status.code is Code.ERROR:
            raise RecheckError(f"reserving for {pod.key!r} on {node!r}: {status.plugin}: {', '.join(status.reasons)}")
        return status

    def _forget(self, uid: str) -> None:
        self._reservations.undo(uid)
        self._cache.forget(uid)

    def _alternates(self, pod: Pod, of_class: int) -> Sequence[Candidate]:
        """The class's other nodes, the best as the pods there are now first."""
        has_more = self._alternates_left > 0 and of_class < len(self._plan.classes)
        found = self._plan.classes[of_class].alternates if has_more else []
        names = [self._plan.nodes[each.node] for each in found]
        try:
            present = counted_pods_of(pod, names, self._cache.snapshot, self._profile)
        except PluginFailure as failure:
            raise RecheckError(f"checking {pod.key!r}: {failure}") from failure
        return by_best_estimate(
            Candidate(node=name, total=each.total, pods=each.pods, loss=each.loss, newcomers=count - each.pods)
            for name, each, count in zip(names, found, present, strict=True)
        )

    def _status(self, pod: Pod, node: str, *, has_room: bool = False) -> Status:
        if self._domain is not None and not self._is_in_domain(node):
            return Status.unresolvable(f"node(s) have no longer {self._domain[0]}={self._domain[1]}")
        # The rest of a begun group is no newcomer.
        with self._cache.snapshot.without_earmarks() if self._is_begun else nullcontext():
            status = check(pod, node, self._cache.snapshot, self._profile, has_room=has_room)
        if status.code is Code.ERROR:
            raise RecheckError(f"checking {pod.key!r} on {node!r}: {status.plugin}: {', '.join(status.reasons)}")
        return status

    def _is_in_domain(self, node: str) -> bool:
        snapshot = self._cache.snapshot
        row = snapshot.rows.of(node)
        there = snapshot.node_at(row) if row is not None else None
        if there is None or self._domain is None:
            return True  # the filters say so
        key, value = self._domain
        return (there.metadata.labels or {}).get(key) == value
