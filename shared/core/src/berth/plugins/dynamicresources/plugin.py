"""DynamicResources: gives devices to the pod's ResourceClaims, and the pod to a node with them.

An allocated claim restricts the pod to the nodes from which its devices can be used. For the others devices are
searched on each node (``search``). Score prefers nodes where the first alternatives of requests are met: 8 points for
the first, one less for each later one, then 0..100 by the best node. As kube-scheduler's plugin of that name.

The plugin is pure: Reserve assumes allocations in the device ledger of the binder's Snapshot, and ``writes``,
``releases`` and ``claim_to_free`` say what is to be written (docs/adr/0067).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

import msgspec
import numpy as np

from berth.api.config.types import Point
from berth.api.devices import AllocationResult, Allocations, ResourceClaim
from berth.api.pod import Pod, bound_by_condition
from berth.cluster.devices.extended import ExtendedClaims, ExtendedResources, extended_pod, is_extended_claim
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes, node_info
from berth.cluster.objects import Objects
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, ValueIndex, Values, nothing
from berth.framework.interface import (
    PRE_FILTER_SKIPPED,
    SNAPSHOT,
    AllocatingPlugin,
    ClaimName,
    ClaimPreEnqueuePlugin,
    CreateClaim,
    DryRun,
    EnqueueExtensions,
    FreeClaim,
    NormalizePlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReleaseClaim,
    RemedyPlugin,
    RemedySentence,
    ReserveClaim,
    ReservePlugin,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
    Write,
)
from berth.framework.status import SKIP, SUCCESS, Code, CycleState, Diagnosis, StateKey, Status, Verdicts
from berth.plugins.dynamicresources.answers import FITS, NodeAnswers
from berth.plugins.dynamicresources.claims import (
    BindingState,
    binding_of,
    is_reserved_for,
    is_too_late,
    known_claims,
    may_be_freed_for,
    may_be_left_by,
    names_of_claims,
    resolved_claims,
    unread_reason,
)
from berth.plugins.dynamicresources.extended import (
    IN_MEMORY,
    ExtendedClaim,
    extended_claim_name,
)
from berth.plugins.dynamicresources.podclaims import PodClaims, concerns, pod_claims
from berth.plugins.dynamicresources.remedies import of_allocated, of_unbound, remedies_of
from berth.plugins.dynamicresources.requests import CLAIM, PlanError
from berth.plugins.dynamicresources.results import allocation_of, as_proposed, chosen_alternative
from berth.plugins.dynamicresources.search import MOST_POINTS
from berth.plugins.factory import Args, PluginFactory, with_args
from berth.plugins.matching import terms_mask

NAME: Final = "DynamicResources"
NOT_AVAILABLE: Final = "resourceclaim not available on the node"
STALE_CLAIM: Final = "cannot schedule extended resource claim"
CANNOT_FIT: Final = "cannot fit resource"
NO_NEW_CLAIMS: Final = "no new claims to deallocate"
STILL_NOT: Final = "still not schedulable"
DEALLOCATED: Final = "deallocation of ResourceClaim completed"
DELETED: Final = "deletion of ResourceClaim completed"


class DynamicResourcesArgs(Args, frozen=True, kw_only=True):
    """Waiting for devices."""

    filter_timeout: timedelta = timedelta(seconds=10)
    """Has no effect: the search on a node ends after a fixed number of steps, the same in every process."""
    binding_timeout: timedelta = timedelta(minutes=10)
    """Wait of a pod on its node for its devices to be bound, at least a second. Ten minutes, as in kube-scheduler."""


CLAIMS: Final = StateKey[PodClaims]("DynamicResources.claims")
RESERVED: Final = StateKey["Reserved"]("DynamicResources.reserved")


@dataclass(frozen=True, slots=True)
class Reserved:
    """``given``: the allocations that this pod holds in the ledger. ``shared``: claims that were allocated before."""

    given: tuple[tuple[ResourceClaim, AllocationResult], ...]
    shared: tuple[ResourceClaim, ...]
    extended: ExtendedClaim | None = None

    def is_made_for(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Whether the claim's allocation was made for this pod, by this attempt or by an earlier one."""
        uid = claim.metadata.uid
        return all(each.metadata.uid != uid or is_reserved_for(each, pod) for each in self.shared)


class DynamicResources(
    ClaimPreEnqueuePlugin,
    PreFilterPlugin,
    VectorFilterPlugin,
    AllocatingPlugin,
    RemedyPlugin,
    PostFilterPlugin,
    PreScorePlugin,
    VectorScorePlugin,
    NormalizePlugin,
    ReservePlugin,
    PreBindPlugin,
    EnqueueExtensions,
):
    """Allocates devices on the node of the pod."""

    name: ClassVar[str] = NAME
    only_for = Trait.RESOURCE_CLAIMS | Trait.EXTENDED_RESOURCES
    depends_on_pods = False
    too_late = "device binding timeout"
    late_is_error = True
    explains_errors = True
    wait_event = ("BindingConditionsPending", "waiting for binding conditions for device on node {node}")

    def __init__(self, args: DynamicResourcesArgs) -> None:
        self.wait_seconds = args.binding_timeout.total_seconds()

    def pre_enqueue_with(self, pod: Pod, claims: Objects[ResourceClaim]) -> Status:
        """Why the pod waits for one of its claims."""
        if claims.unread:
            return Status.unresolvable(claims.unread)
        found = resolved_claims(pod, claims)
        return found if isinstance(found, Status) else SUCCESS

    def prepare(self, pod: Pod, snapshot: Snapshot, may_continue: Callable[[], bool]) -> bool:
        """Evaluate the selectors, and search on every node: a second where each device differs from all others."""
        claims = pod_claims(pod, snapshot) if concerns(pod, snapshot) else SUCCESS
        if isinstance(claims, Status) or claims.stale is not None:
            return True
        rows = np.flatnonzero(snapshot.columns.exists[: snapshot.size])
        try:
            for _, served in claims.by_served(Nodes(snapshot, rows)):
                answers = None if served is None else claims.answers(pod, served)[0]
                if answers is not None and not answers.find(rows, may_continue):
                    return False
        except PlanError:
            pass  # the cycle says it
        return True

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        if not concerns(pod, snapshot):
            return PRE_FILTER_SKIPPED
        found = pod_claims(pod, snapshot)
        if isinstance(found, Status):
            return PreFilterResult(found)
        if found.is_empty:
            return PRE_FILTER_SKIPPED
        state.write(CLAIMS, found)
        return PreFilterResult()

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        verdicts = self.filter_all(state, pod, Nodes(node.snapshot, np.array([node.row], dtype=np.intp)))
        return verdicts.statuses[int(verdicts.codes[0])]

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        claims = state.find(CLAIMS)
        if claims is None:
            return Verdicts.all_fit(len(nodes))
        if claims.stale is not None:
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), Status.unresolvable(STALE_CLAIM))
        statuses: list[Status] = [SUCCESS]
        codes = np.zeros(len(nodes), dtype=np.int32)
        for mask, served in claims.by_served(nodes):
            if served is None:
                statuses.append(Status.unresolvable(claims.unread or CANNOT_FIT))
                codes[mask] = len(statuses) - 1
                continue
            try:
                answers, named = claims.answers(pod, served)
            except PlanError as exc:
                statuses.append(Status.error(_with_names(str(exc), claims.to_allocate)))
                codes[mask] = len(statuses) - 1
                continue
            if answers is not None:
                rows = nodes.rows[mask]
                answers.find(rows, budget=claims.budget)
                found = answers.codes[rows]
                first = len(statuses)
                if np.any(found != FITS):
                    statuses += [
                        Status(code, (_with_names(text, named),)) for code, text in answers.statuses[FITS + 1 :]
                    ]
                codes[mask] = np.where(found == FITS, 0, found - FITS - 1 + first)
        if claims.allocated:
            rejected = self._unavailable(claims, pod, nodes, codes == 0)
            if rejected.any():
                statuses.append(Status.unresolvable(NOT_AVAILABLE))
                codes[rejected] = len(statuses) - 1
        return Verdicts(codes, tuple(statuses))

    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, diagnosis: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """As kube-scheduler's, it ends PostFilter if another plugin's PreFilter rejected the pod first."""
        if not dry_run.came_to(NAME):
            return PostFilterResult(is_last_word=True)
        if state.find(CLAIMS) is None:
            return PostFilterResult(message=NO_NEW_CLAIMS if concerns(pod, snapshot) else "")
        freed = self._claim_to_free(state, pod, may_be_freed_for)
        if freed is None:
            return PostFilterResult(message=STILL_NOT)
        return PostFilterResult(message=DELETED if freed.is_deleted else DEALLOCATED)

    def may_free_claim(self, pod: Pod, snapshot: Snapshot) -> bool:
        if unread_reason(snapshot):
            return False
        claims = known_claims(pod, snapshot.objects(ResourceClaim))
        if any(claim.status.allocation is not None and may_be_left_by(claim, pod) for claim in claims):
            return True
        return bool(ExtendedResources.of(snapshot)) and ExtendedClaims.of(snapshot).of_pod(pod) is not None

    def claim_to_free(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> FreeClaim | None:
        """The claim whose devices no node of the cycle could use, or which is reserved for this pod.

        One that others have reserved too loses this pod's reservation: two pods would each wait for the other's end. A
        pod that lacks another claim gives up its reservations as well.
        """
        freed = self._claim_to_free(state, pod, may_be_left_by)
        if freed is not None:
            return freed
        claims = known_claims(pod, snapshot.objects(ResourceClaim))
        return next((FreeClaim(claim=_name_of(claim)) for claim in claims if is_reserved_for(claim, pod)), None)

    @staticmethod
    def _claim_to_free(
        state: CycleState, pod: Pod, is_concerned: Callable[[ResourceClaim, Pod], bool]
    ) -> FreeClaim | None:
        claims = state.find(CLAIMS)
        if claims is None:
            return None
        for claim in claims.unavailable.values():
            if claim.status.allocation is not None and is_concerned(claim, pod):  # one in flight is not freed
                return FreeClaim(claim=_name_of(claim))
        return None if claims.stale is None else FreeClaim(claim=_name_of(claims.stale), is_deleted=True)

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Only alternatives make a difference."""
        claims = state.find(CLAIMS)
        return SUCCESS if claims is not None and claims.has_choices else SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return int(self.score_all(state, pod, Nodes(node.snapshot, np.array([node.row], dtype=np.intp)))[0])

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        claims = state.find(CLAIMS)
        scores: Scores = np.zeros(len(nodes), dtype=np.int64)
        if claims is None:
            return scores
        scores += sum(_points_of(claim, allocation) for claim, allocation, _ in claims.allocated)
        for mask, served in claims.by_served(nodes):
            if served is None:
                continue
            answers, _ = claims.answers(pod, served)
            if answers is not None:
                rows = nodes.rows[mask]
                answers.find(rows, budget=claims.budget)
                scores[mask] += answers.points[rows].sum(axis=1)
        return scores

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        most = int(scores.max(initial=0))
        return scores * 100 // most if most else scores

    def allocations(self, state: CycleState, pod: Pod, node: NodeInfo) -> Allocations:
        """Without what only drivers and the eviction of pods need."""
        claims = state.find(CLAIMS)
        if claims is None:
            return {}
        ((_, served),) = claims.by_served(Nodes(node.snapshot, np.array([node.row], dtype=np.intp)))
        answers, named = claims.answers(pod, served or frozenset())
        return {
            claim.metadata.uid: as_proposed(allocation) for claim, allocation in _allocated(answers, named, pod, node)
        }

    def reserved(self, state: CycleState) -> Allocations:
        """Those of claims that were allocated before too, which people read in the Decision."""
        found = state.find(RESERVED)
        if found is None:
            return {}
        shared = ((claim, claim.status.allocation) for claim in found.shared)
        return {claim.metadata.uid: as_proposed(given) for claim, given in (*found.given, *shared) if given is not None}

    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Allocate on the node by the binder's own ledger, and assume the allocations there."""
        snapshot = state.read(SNAPSHOT)
        info = node_info(snapshot, node)
        claims = pod_claims(pod, snapshot)
        if isinstance(claims, Status):
            return claims
        if info is None:
            return Status.unschedulable(f"node {node!r} not found")
        if claims.is_empty:
            return SUCCESS
        own = CycleState(state.pod_class)
        own.write(CLAIMS, claims)
        status = self.filter(own, pod, info)
        if not status.is_success:
            return status
        state.write(RESERVED, self._assume(claims, pod, info))
        return SUCCESS

    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        reserved = state.find(RESERVED)
        if reserved is not None:
            ledger = DeviceLedger.of(state.read(SNAPSHOT))
            for claim, _ in reserved.given:
                ledger.forget(claim.metadata.uid, pod.uid)

    def finish_binding(self, state: CycleState, pod: Pod, node: str) -> None:
        """The watch shows the allocations by now."""
        self.unreserve(state, pod, node)

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        """In the pod's order; the claim for extended resources comes last."""
        reserved = state.find(RESERVED)
        if reserved is None:
            return ()
        given = {claim.metadata.uid: allocation for claim, allocation in reserved.given}
        claims = resolved_claims(pod, state.read(SNAPSHOT).objects(ResourceClaim))
        found: list[Write] = [
            ReserveClaim(claim=_name_of(claim), allocation=given.get(claim.metadata.uid))
            for claim in (() if isinstance(claims, Status) else claims)
            if not is_reserved_for(claim, pod)
        ]
        if reserved.extended is not None:
            claim, mappings = reserved.extended.claim, reserved.extended.mappings
            metadata = msgspec.structs.replace(claim.metadata, name=extended_claim_name(pod), uid="")
            named = msgspec.structs.replace(claim, metadata=metadata)
            found.append(CreateClaim(claim=named, allocation=given[claim.metadata.uid], mappings=mappings))
        return tuple(found)

    def releases(self, state: CycleState, pod: Pod, node: str, *, sent: bool) -> tuple[ReleaseClaim, ...]:
        reserved = state.find(RESERVED)
        if reserved is None:
            return ()
        found = [
            ReleaseClaim(claim=_name_of(claim))
            for claim in (*(claim for claim, _ in reserved.given), *reserved.shared)
            if claim.metadata.name != IN_MEMORY and (sent or is_reserved_for(claim, pod))
        ]
        if reserved.extended is not None and sent:
            name = ClaimName(namespace=pod.metadata.namespace, name=extended_claim_name(pod), uid="")
            found.append(ReleaseClaim(claim=name, is_deleted=True))
        return tuple(found)

    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Verify that no other scheduler was first; WAIT until the devices are bound."""
        reserved = state.find(RESERVED)
        if reserved is None:
            return SUCCESS
        snapshot = state.read(SNAPSHOT)
        shown = snapshot.objects(ResourceClaim)
        claims = resolved_claims(pod, shown)
        if isinstance(claims, Status):
            return claims
        if reserved.extended is not None:
            made = shown.named(extended_claim_name(pod), pod.metadata.namespace)
            if made is None:
                return Status.unschedulable(f"claim for extended resources of {pod.key} got deleted in the meantime")
            claims = (*claims, made)
        waits = SUCCESS
        for claim in claims:
            status = self._state_of(claim, reserved, pod, snapshot)
            if status.code is Code.WAIT:
                waits = status
            elif not status.is_success:
                return status
        return waits

    def _state_of(self, claim: ResourceClaim, reserved: Reserved, pod: Pod, snapshot: Snapshot) -> Status:
        """Whether a written claim can be used."""
        allocation = claim.status.allocation
        if allocation is None or not is_reserved_for(claim, pod):
            return Status.unschedulable(f"claim {claim.key} got deallocated elsewhere in the meantime")
        taken = _taken_before(claim, allocation, snapshot) if reserved.is_made_for(claim, pod) else ""
        if taken:
            return Status.unschedulable(f"device {taken} was given to another claim by another scheduler")
        problem = self._binding_problem(claim, allocation, snapshot.live.now)
        if problem:
            return Status.error(problem)
        if binding_of(claim, allocation)[0] is BindingState.DONE:
            return SUCCESS
        return Status(Code.WAIT, ("its devices are not bound yet",))

    def _binding_problem(self, claim: ResourceClaim, allocation: AllocationResult, now: float) -> str:
        """Why the devices of the claim were not bound; empty while they may be."""
        binding, error = binding_of(claim, allocation)
        if binding is BindingState.PENDING and is_too_late(allocation, now, self.wait_seconds):
            return f"device binding timeout: claim={claim.metadata.name}"
        return error

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        """A sentence per request and obstacle, and per claim whose devices are elsewhere."""
        claims = state.find(CLAIMS)
        if claims is None:
            return
        for among, served in claims.by_served(nodes):
            answers, named = claims.answers(pod, served or frozenset())
            if answers is not None:
                answers.find(nodes.rows)
                yield from remedies_of(answers, named, nodes, among & (answers.codes[nodes.rows] != FITS))
        for claim, allocation, terms in claims.allocated:
            if problem := self._binding_problem(claim, allocation, nodes.snapshot.live.now):
                yield of_unbound(claim, allocation, problem)
            elif terms is not None and (elsewhere := ~terms_mask(terms, nodes)).any():
                yield of_allocated(claim, allocation, elsewhere)

    def events(self) -> Sequence[EventHint]:
        return EVENTS

    def _unavailable(self, claims: PodClaims, pod: Pod, nodes: Nodes, others_fit: Mask) -> Mask:
        """The nodes that fit the other claims, but not an allocated one; such a claim may be freed."""
        rejected: Mask = np.zeros(len(nodes), dtype=np.bool_)
        now = nodes.snapshot.live.now
        for claim, allocation, terms in claims.allocated:
            # Of a pod that is being bound, PreBind says so, because that is an error.
            if self._binding_problem(claim, allocation, now) and not claims.allocator.ledger.holds(
                claim.metadata.uid, pod.uid
            ):
                mask = others_fit
            elif terms is None:
                continue
            else:
                mask = others_fit & ~terms_mask(terms, nodes)
            if mask.any():
                claims.unavailable[claim.metadata.uid] = claim
                rejected |= mask
        return rejected

    def _assume(self, claims: PodClaims, pod: Pod, info: NodeInfo) -> Reserved:
        nodes = Nodes(info.snapshot, np.array([info.row], dtype=np.intp))
        ((_, served),) = claims.by_served(nodes)
        served = served or frozenset()
        answers, named = claims.answers(pod, served)
        ledger = claims.allocator.ledger
        # Allocations in flight for other pods are taken over: whichever pod writes first writes them.
        given = [
            (claim, held)
            for claim, allocation, _ in claims.allocated
            if (held := ledger.assumed(claim.metadata.uid)) is not None
            and held.devices.results == allocation.devices.results
        ]
        shared = tuple(
            claim for claim, _, _ in claims.allocated if all(claim is not taken_over for taken_over, _ in given)
        )
        given += _allocated(answers, named, pod, info)
        for claim, allocation in given:
            ledger.assume(claim.metadata.uid, allocation, pod.uid)
        return Reserved(tuple(given), shared, claims.extended_claim(pod, served) if served else None)


def _taken_before(claim: ResourceClaim, allocation: AllocationResult, snapshot: Snapshot) -> str:
    """A device of the claim that another claim got first, or that is shared beyond its capacity; empty if none is."""
    ledger, pools = DeviceLedger.of(snapshot), DevicePools.of(snapshot)
    taken = ledger.earlier_owner(claim.metadata.uid)
    if taken is not None:
        return taken[0]
    for result in allocation.devices.results or ():
        device = pools.device((result.driver, result.pool), result.device) if result.share_id is not None else None
        # A claim for extended resources counts twice here: it is assumed under a uid of its own.
        if device is not None and not is_extended_claim(claim):
            used = ledger.consumed(result.key)
            if any(amount > device.capacities.get(name, amount) for name, amount in used.items()):
                return result.key
    return ""


def _allocated(
    answers: NodeAnswers | None, claims: Sequence[ResourceClaim], pod: Pod, node: NodeInfo
) -> list[tuple[ResourceClaim, AllocationResult]]:
    found = None if answers is None else answers.solution(node.row)
    if answers is None or found is None:
        return []
    return [
        (claim, allocation_of(answers.plan, i, found, node=node.name, share_id=f"{pod.uid}-{claim.metadata.uid}"))
        for i, claim in enumerate(claims)
    ]


def _points_of(claim: ResourceClaim, allocation: AllocationResult) -> int:
    chosen: dict[str, int] = {}
    for result in allocation.devices.results or ():
        number = chosen_alternative(claim, result.request)
        if number is not None:
            chosen[result.request] = MOST_POINTS - number
    return sum(chosen.values())


def _with_names(text: str, claims: Sequence[ResourceClaim]) -> str:
    if CLAIM[0] not in text:
        return text
    for i, claim in enumerate(claims):
        text = text.replace(CLAIM.format(i), claim.key)
    return text


def _name_of(claim: ResourceClaim) -> ClaimName:
    metadata = claim.metadata
    return ClaimName(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid)


def _after_claim_change(pod: Pod, old: object, new: object) -> bool:
    """A claim is deallocated, whosever it is, or a claim of the pod is new or has another status.

    That of its extended resources rejects it until it is gone.
    """
    if _frees_devices(old, new) or (new is None and isinstance(old, ResourceClaim) and extended_pod(old) == pod.uid):
        return True
    if not isinstance(new, ResourceClaim) or (new.metadata.namespace, new.metadata.name) not in names_of_claims(pod):
        return False
    return not isinstance(old, ResourceClaim) or old.status != new.status


def _frees_devices(old: object, new: object) -> bool:
    # After a gap of the watch, a claim may have other devices than before.
    if not isinstance(old, ResourceClaim) or old.status.allocation is None:
        return False
    return not isinstance(new, ResourceClaim) or new.status.allocation != old.status.allocation


def _claims_of(old: object, new: object) -> Values:
    if _frees_devices(old, new):
        return None
    claims = [each for each in (old, new) if isinstance(each, ResourceClaim)]
    return {
        *((each.metadata.namespace, each.metadata.name) for each in claims),
        *(pod for each in claims if (pod := extended_pod(each))),
    }


def _claim_index() -> ValueIndex:
    return ValueIndex(lambda pod: {*names_of_claims(pod), pod.uid}, _claims_of)


def _is_itself(pod: Pod, _: object, new: object) -> bool:
    return isinstance(new, Pod) and new.uid == pod.uid


def _has_waited(_: Pod, old: object, __: object) -> bool:
    """A pod's wait has ended: until then scorers count its devices, whatever its claims show."""
    return isinstance(old, Pod) and bound_by_condition(old) is None


_CHANGED: Final = Action.ADD | Action.UPDATE
EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ALLOCATABLE)),
    EventHint(ClusterEvent(Resource.POD, Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM), _is_itself, key=nothing),
    EventHint(ClusterEvent(Resource.POD, Action.DELETE), _has_waited, key=nothing),
    EventHint(ClusterEvent(Resource.RESOURCE_CLAIM, _CHANGED | Action.DELETE), _after_claim_change, index=_claim_index),
    # A class that is gone may leave a resource to another, and a slice a pool that is valid.
    EventHint(ClusterEvent(Resource.DEVICE_CLASS, _CHANGED | Action.DELETE)),
    EventHint(ClusterEvent(Resource.RESOURCE_SLICE, _CHANGED | Action.DELETE)),
)


def validate(args: DynamicResourcesArgs, path: str) -> list[str]:
    problems = []
    if args.filter_timeout < timedelta(0):
        problems.append(f"{path}.filterTimeout: want 0s or more, got {args.filter_timeout.total_seconds()}s")
    if args.binding_timeout < timedelta(seconds=1):
        problems.append(f"{path}.bindingTimeout: want 1s or more, got {args.binding_timeout.total_seconds()}s")
    return problems


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(
        Point.PRE_ENQUEUE,
        Point.PRE_FILTER,
        Point.FILTER,
        Point.POST_FILTER,
        Point.PRE_SCORE,
        Point.SCORE,
        Point.RESERVE,
        Point.PRE_BIND,
    ),
    build=with_args(DynamicResources, DynamicResourcesArgs),
    args_type=DynamicResourcesArgs,
    validate=validate,
)
