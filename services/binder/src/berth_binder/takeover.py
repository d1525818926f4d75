"""The takeover by a new epoch. After it, no POST of a former epoch can land, and the watch has shown their results.

In this order (docs/protocol.md, 5): delete the consumers of former epochs; fence every unbound pod that may have a POST
in flight, and every claim to which a write in flight could do harm; wait until the own watches have reached the fences'
versions; create the epoch's own consumer.

After a release of the Lease with every request answered, no fence (5.4) is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Final, TypeVar

from berth.api.devices import FINALIZER, ResourceClaim
from berth.api.kinds import POD, RESOURCE_CLAIM
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, is_gone_while_unbound
from berth.api.podgroups import GroupKey
from berth.bus.interface import BusRefusedError, Session, StoredMessage
from berth.bus.topology import CONTROL, RANKED
from berth.decoding import version_number
from berth.errors import DecodeError
from berth.kube.claims import decode_claim, fence_claim
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, missing_right, refusal
from berth.kube.http1 import Response
from berth.kube.informers import Informers
from berth.kube.writes import decode_pod, fence, get_pod
from berth.leader.session import LeaderSession
from berth.messages.attempts import check_names
from berth.messages.encoding import Message, decode
from berth.messages.groupattempts import GROUP_SUBJECT, GroupRanked, decode_group
from berth.messages.subjects import Epoch, all_of
from berth.observability.logging import get_logger
from berth_binder.cache import PODS, Cache
from berth_binder.events import leaves_open

log = get_logger()

T = TypeVar("T")

# Key of ``control``: the last epoch that has taken over on this store. Missing on a new store.
FENCED_KEY: Final = "fence.binder"
# Pause before a rejected or unanswered request is repeated.
RETRY_SECONDS: Final = 0.5
MAX_IN_FLIGHT: Final = 32  # fence patches in flight: 300 take 0.6 s
CONSUMER_PREFIX: Final = "binder-"
RANKED_PODS: Final = all_of("ranked")


class _RankedPod(Message, frozen=True, kw_only=True):
    """The pod alone, because another version may accept messages that this one rejects."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    consumer: str  # to read from
    # Sequence of the last message that a crashed former leader left, because one of them may have crashed it; 0: none.
    left: int
    stored: int  # sequence of RANKED's last message
    # Sequences of messages about begun groups that need members: they go first, or others take their room.
    begun: frozenset[int] = frozenset()
    are_claims_fenced: bool = True  # False: they could not be read, and a former leader may have writes in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What former leaders may have left: Bindings of ``pods`` in flight, and messages up to ``sequence`` in RANKED."""

    pods: Sequence[Pod] = ()
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    session: Session
    leadership: LeaderSession
    client: KubeClient
    cache: Cache
    informers: Informers
    schedulers: Collection[str]  # names of the profiles

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.leadership.number)

    async def run(self) -> TakenOver:
        """Take over.

        Raises:
            BusLostError: the session is lost.
            ApiRefusedError: berth's account lacks a right; the text names the rule to add.
        """
        await self.informers.listed()
        consumer = consumer_of(self.epoch)
        while True:
            await self._delete_former_consumers()
            reads_claims = self.informers.reads(RESOURCE_CLAIM)
            left = await self._fence(with_claims=reads_claims)
            # A paused former leader may have created its consumer again: then start over.
            if await self._create_consumer(consumer):
                break
            await asyncio.sleep(RETRY_SECONDS)
        await self.session.put(CONTROL, FENCED_KEY, str(self.epoch).encode())
        log.info("taken over", epoch=self.epoch, fenced=len(left.pods))
        stored = (await self.session.state(RANKED)).last_sequence
        are_claims_fenced = reads_claims or self.leadership.follows_settled
        return TakenOver(
            consumer=consumer,
            left=left.sequence,
            stored=stored,
            begun=frozenset([sequence async for sequence in self._begun()]),
            are_claims_fenced=are_claims_fenced,
        )

    async def _delete_former_consumers(self) -> None:
        for name in former_consumers(await self.session.consumers(RANKED), self.epoch):
            await self.session.delete_consumer(RANKED, name)

    async def _create_consumer(self, consumer: str) -> bool:
        try:
            await self.session.create_consumer(RANKED, consumer)
        except BusRefusedError as error:
            log.info("waiting for a former consumer to be deleted", reason=str(error))
            return False
        return True

    async def _fence(self, *, with_claims: bool) -> Left:
        """Fence what former leaders have left, and wait until the watch has shown their results."""
        if self.cache.highest_fence > self.epoch:
            await self.leadership.confirm()
        left = Left() if self.leadership.follows_settled else await self._left_by_former_leaders()
        highest = await fence_each(left.pods or self._one_unbound(), self._fence_pod)
        if highest:
            await self.informers.reached(POD, str(highest))
        else:
            await self._become_current()
        if with_claims:
            await self._fence_claims()
        self.cache.forget_former_epochs()
        return left

    async def _begun(self) -> AsyncIterator[int]:
        """Messages about groups that are begun and need members, those included that came while pods were fenced."""
        async for each in self.session.scan(RANKED, RANKED_PODS):
            if (ranked := _group_in(each)) is not None and self._needs_members(ranked.group.key):
                yield each.sequence

    def _needs_members(self, key: GroupKey) -> bool:
        """Whether the group is begun and below its minimum. Its members beyond the minimum go as single pods do."""
        group, members = self.cache.groups.get(key), self.cache.members_of(key)
        return group is not None and members.is_begun and members.wanted(group) > 0

    async def _left_by_former_leaders(self) -> Left:
        named, sequence = await self._pods_in_ranked()
        newest = [self._newest(pod) for pod in named]
        pods = [pod for pod in (*newest, *await self._further_pods()) if pod is not None and needs_fence(pod)]
        return Left(pods=[*{pod.uid: pod for pod in pods}.values()], sequence=sequence)

    async def _fence_claims(self) -> None:
        """Wait until the watch has shown what former leaders have written to any claim, and fence these claims."""
        claims = self.cache.snapshot.objects(ResourceClaim)
        await self.informers.become_current(RESOURCE_CLAIM, len(claims))
        if self.leadership.follows_settled:
            return
        highest = await fence_each([each.metadata for each in claims if self._may_change(each)], self._fence_claim)
        if highest:
            await self.informers.reached(RESOURCE_CLAIM, str(highest))

    def _may_change(self, claim: ResourceClaim) -> bool:
        """Whether a late write could harm: it gives the claim devices, or takes them from a pod that is not bound yet.

        The claim itself shows it, also where its pod is gone, and whatever messages say.
        """
        if claim.status.allocation is None:
            return FINALIZER in (claim.metadata.finalizers or ())  # written before devices are
        return any(self.cache.bound_node(each.uid) is None for each in claim.status.reserved_for or ())

    def _one_unbound(self) -> list[Pod]:
        """Any unbound pod, to be fenced for a version that the watch must reach."""
        return list(islice(filter(needs_fence, self.cache.unbound_pods(self.schedulers)), 1))

    async def _become_current(self) -> None:
        await self.informers.become_current(POD, self.cache.pod_count)

    async def _pods_in_ranked(self) -> tuple[list[Pod], int]:
        """The pods as RANKED names them, alone or in groups, and the last message's sequence."""
        pods, last = list[Pod](), 0
        async for each in self.session.scan(RANKED, RANKED_PODS):
            last = max(last, each.sequence)
            pods += _pods_in(each)
        return pods, last

    def _newest(self, pod: Pod) -> Pod | None:
        """The pod's newest known state, if it is unbound."""
        is_bound = self.cache.bound_node(pod.uid) is not None
        shown = self.cache.pod(pod.uid)
        if is_bound or shown is not None:
            return shown
        return pod if version_number(pod.metadata.resource_version) > self.cache.reached(PODS) else None

    async def _further_pods(self) -> list[Pod]:
        """Pods outside RANKED that may have a POST in flight.

        These are the Bindings that this process itself has left open, and on a new store, where the old messages are
        lost, all unbound pods.
        """
        left = [assumed.pod for assumed in self.cache.assumed_pods.values() if not assumed.is_bound]
        if await self._is_new_store():
            await self._become_current()
            left += self.cache.unbound_pods(self.schedulers)
        return left

    async def _is_new_store(self) -> bool:
        """Whether binders have led before, but not on this store."""
        return self.epoch > 1 and await self.session.get(CONTROL, FENCED_KEY) is None

    async def _fence_pod(self, pod: Pod) -> int:
        """Patch until the API confirms it. Returns the pod's new resourceVersion, 0 if the pod is gone."""
        while True:
            version = await self._patch(pod)
            if version is not None:
                return version
            await asyncio.sleep(RETRY_SECONDS)

    async def _patch(self, pod: Pod) -> int | None:
        """Try once; ``None``: try again."""
        try:
            response = await fence(self.client, pod, self.epoch)
            if response.succeeded:
                return version_number(decode_pod(response.body).metadata.resource_version)
            if response.status == HTTPStatus.CONFLICT:
                return await self._after_conflict(pod)
        except ApiUnreachableError:
            return None
        return self._after_rejection(pod, response)

    async def _after_conflict(self, pod: Pod) -> int | None:
        """0 if another pod has the name now; ``None`` (try again) if the pod was written meanwhile."""
        now = await get_pod(self.client, pod.metadata.namespace, pod.metadata.name)
        return 0 if now is None or now.uid != pod.uid else None

    async def _fence_claim(self, claim: ObjectMeta) -> int:
        """As ``_fence_pod``. Whichever claim has the name now: one that had it before takes no write by its uid."""
        while True:
            with suppress(ApiUnreachableError):
                response = await fence_claim(self.client, claim.namespace, claim.name)
                if response.succeeded:
                    return version_number(decode_claim(response.body).metadata.resource_version)
                if response.status == HTTPStatus.NOT_FOUND:
                    return 0
                if not leaves_open(response.status) and response.status != HTTPStatus.CONFLICT:
                    problem = refusal(f"fencing resource claim {f'{claim.namespace}/{claim.name}'!r}", response)
                    if missing_right(response.failure()):
                        raise problem
                    log.warning("cannot fence a resource claim", claim=claim.name, reason=str(problem))
                    return 0
            await asyncio.sleep(RETRY_SECONDS)

    def _after_rejection(self, pod: Pod, response: Response) -> int | None:
        if response.status == HTTPStatus.NOT_FOUND:
            return 0
        if leaves_open(response.status):
            return None
        problem = refusal(f"fencing pod {pod.key!r}", response)
        if missing_right(response.failure()):
            raise problem
        # One pod must not block all others; its own Binding is guarded by its uid and version.
        log.warning("cannot fence a pod", pod=pod.key, reason=str(problem))
        return 0


async def fence_each(targets: Iterable[T], fence_one: Callable[[T], Awaitable[int]]) -> int:
    """Fence the targets, a bounded number at once. Returns the highest resourceVersion after the patches."""
    left = iter(targets)

    async def fence_next() -> int:
        return max([await fence_one(each) for each in left], default=0)

    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(fence_next()) for _ in range(MAX_IN_FLIGHT)]
    return max(worker.result() for worker in workers)


def _pods_in(stored: StoredMessage) -> list[Pod]:
    """The pods that the message names; none for a message whose delivery makes it a dead letter."""
    if GROUP_SUBJECT in stored.subject:
        ranked = _group_in(stored)
        return [] if ranked is None else ranked.bundle.pods()
    try:
        pod = decode(stored.data, _RankedPod).pod
        check_names(pod.metadata)
    except DecodeError:
        return []
    return [pod]


def _group_in(stored: StoredMessage) -> GroupRanked | None:
    try:
        return decode_group(stored.data, GroupRanked) if GROUP_SUBJECT in stored.subject else None
    except DecodeError:
        return None


def needs_fence(pod: Pod) -> bool:
    """Whether a former leader's POST for the pod could still land: it is unbound, and not terminating."""
    return not pod.spec.node_name and not is_gone_while_unbound(pod)


def consumer_of(epoch: Epoch) -> str:
    return f"{CONSUMER_PREFIX}{epoch}"


def former_consumers(names: Iterable[str], epoch: Epoch) -> list[str]:
    """Consumers of lower epochs: a paused former leader must not delete its successor's."""
    return [name for name in names if 0 < version_number(name.removeprefix(CONSUMER_PREFIX)) < epoch]
