"""Taking over: nothing of a former epoch can land any more, and all it did has been seen, before the first message.

In this order (PROTOCOL 5): former consumers go; every unbound pod for which a POST could be under way is fenced; the
own watch reaches what the fence was answered with; only then the epoch's own consumer is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Final

from berth.api.errors import DecodeError
from berth.api.kinds import POD
from berth.api.messages import Ranked, decode, decoder
from berth.api.pod import Pod
from berth.api.subjects import Epoch, all_of
from berth.bus.interface import BusRefusedError, Session
from berth.bus.topology import CONTROL, RANKED
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, Response, missing_right, refusal
from berth.kube.pods import condition_patch, decode_pod, fence_condition, get_pod, patch_pod_status
from berth.leader.session import LeaderSession
from berth.process.logging import get_logger
from berth_binder.cache import PODS, Cache, consumer_of, former_consumers, pods_to_fence, version_number
from berth_binder.effects import Answer
from berth_binder.informers import BinderInformers

log = get_logger()

FENCED_KEY: Final = "fence.binder"
"""Key of ``control``: the last epoch that has taken over on this store. Missing on a new one."""
AGAIN_SECONDS: Final = 0.5
"""Before what was refused or not answered is tried again."""
AT_ONCE: Final = 32
"""Fence patches on the wire at once: 300 take 0.6 s."""

_decoder = decoder(Ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """One takeover of one epoch."""

    session: Session
    leadership: LeaderSession
    client: KubeClient
    ledger: Cache
    reading: BinderInformers
    schedulers: Collection[str]
    """The profiles' names."""

    @property
    def epoch(self) -> Epoch:
        """The number of this leadership."""
        return Epoch(self.leadership.number)

    async def run(self) -> str:
        """Take over; returns the consumer to read from.

        Raises:
            BusLostError: the session is gone.
            ApiRefusedError: the API server does not let berth do its work; the text names the rule to add.
        """
        await self.reading.listed()
        consumer = consumer_of(self.epoch)
        while True:
            await self._delete_former_consumers()
            fenced = await self._fence()
            # A former leader that woke late may have made its consumer again: then nothing of the above holds.
            if await self._create(consumer):
                break
            await asyncio.sleep(AGAIN_SECONDS)
        await self.session.put(CONTROL, FENCED_KEY, str(self.epoch).encode())
        log.info("taken over", epoch=self.epoch, fenced=fenced)
        return consumer

    async def _delete_former_consumers(self) -> None:
        for name in former_consumers(await self.session.consumers(RANKED), self.epoch):
            await self.session.delete_consumer(RANKED, name)

    async def _create(self, consumer: str) -> bool:
        try:
            await self.session.create_consumer(RANKED, consumer)
        except BusRefusedError as error:
            log.info("waiting for a former consumer to go", reason=str(error))
            return False
        return True

    async def _fence(self) -> int:
        """Fence, and read on until nothing of a former epoch is unseen; returns how many pods were fenced."""
        pods = pods_to_fence([*await self._named(), *await self._unnamed()], self.epoch) or self._any_that_waits()
        self.leadership.report_higher(self.ledger.highest_fence, seen_in="a fence")
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            patches = [tasks.create_task(self._fence_one(pod, places)) for pod in pods]
        highest = max((patch.result() for patch in patches), default=0)
        if highest:
            await self.reading.reached(POD, str(highest))
        else:
            await self._become_current()
        self.ledger.release_unanswered()
        return len(pods)

    def _any_that_waits(self) -> list[Pod]:
        """With nothing to fence there would be no version to reach: any pod that waits gives one."""
        return pods_to_fence(islice(self.ledger.unbound_pods(self.schedulers), 1), self.epoch)

    async def _become_current(self) -> None:
        await self.reading.become_current(POD, self.ledger.pod_count)

    async def _named(self) -> list[Pod]:
        """The unbound pods that RANKED names, as they are known newest."""
        stored = [each.data async for each in self.session.scan(RANKED, all_of("ranked"))]
        return [pod for data in stored if (pod := self._pod_of(data)) is not None]

    def _pod_of(self, data: bytes) -> Pod | None:
        try:
            pod = decode(data, _decoder).pod
        except DecodeError:
            return None  # it will be met again, and put aside, when it is delivered
        is_bound = self.ledger.node_shown(pod.uid) is not None
        shown = self.ledger.pod(pod.uid)
        if is_bound or shown is not None:
            return shown
        return pod if version_number(pod.metadata.resource_version) > self.ledger.reached(PODS) else None

    async def _unnamed(self) -> list[Pod]:
        """Pods for which a POST may be under way although RANKED does not name them.

        What this process itself has left open, and after a new store all that wait, since what named them is lost.
        """
        left = [reservation.pod for reservation in self.ledger.reservations.values() if not reservation.answered]
        if await self._is_first_here():
            await self._become_current()
            left += self.ledger.unbound_pods(self.schedulers)
        return left

    async def _is_first_here(self) -> bool:
        """Whether there were binders before this one, but none on this store."""
        return self.epoch > 1 and await self.session.get(CONTROL, FENCED_KEY) is None

    async def _fence_one(self, pod: Pod, places: asyncio.Semaphore) -> int:
        """Patch until it is known to be done; returns the resourceVersion that it gave, 0 when the pod is gone."""
        while True:
            async with places:
                version = await self._patch(pod)
            if version is not None:
                return version
            await asyncio.sleep(AGAIN_SECONDS)

    async def _patch(self, pod: Pod) -> int | None:
        """One try; ``None``: try again."""
        metadata = pod.metadata
        body = condition_patch(fence_condition(self.epoch), uid=pod.uid)
        try:
            response = await patch_pod_status(self.client, metadata.namespace, metadata.name, body)
            if response.succeeded:
                return version_number(decode_pod(response.body).metadata.resource_version)
            if response.status == HTTPStatus.CONFLICT:
                return await self._after_conflict(pod)
        except ApiUnreachableError:
            return None
        return self._after_refusal(pod, response)

    async def _after_conflict(self, pod: Pod) -> int | None:
        """Another pod of that name, or somebody wrote it at the same time."""
        now = await get_pod(self.client, pod.metadata.namespace, pod.metadata.name)
        return 0 if now is None or now.uid != pod.uid else None

    def _after_refusal(self, pod: Pod, response: Response) -> int | None:
        if response.status == HTTPStatus.NOT_FOUND:
            return 0
        if Answer(status=response.status).is_open:
            return None
        problem = refusal(f"fencing pod {pod.key!r}", response)
        if missing_right(response.failure()):
            raise problem
        # One odd pod must not keep all others from being bound; its own Binding is guarded by its uid and version.
        log.warning("a pod cannot be fenced", pod=pod.key, reason=str(problem))
        return 0
