"""The leader's answers about waiting pods: pages of its queue, and one pod in full (``berth.messages.queue``).

Read-only. Among 200,000 pods a page takes up to 3 ms, mostly to reach its first pod, and one pod 0.01 ms
(docs/adr/0023-an-admin-asks-where-people-may-not.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, Protocol

import msgspec

from berth.api.devices import ResourceClaim
from berth.api.pod import priority_of
from berth.api.podgroups import group_of
from berth.cluster.objects import Objects
from berth.framework.events import ClusterEvent
from berth.framework.profile import Profile
from berth.messages.attempts import Outcome
from berth.messages.groupattempts import subject_name
from berth.messages.queue import (
    IN_FLIGHT,
    INCOMPLETE,
    UNUSABLE,
    WITH_GROUP,
    GroupCounts,
    Helping,
    PageRequest,
    PodRequest,
    QueueAnswer,
    QueuedPodDetail,
    WaitingPod,
)
from berth.plugins.dynamicresources.claims import digest_of_requests
from berth.plugins.dynamicresources.plugin import NAME as DYNAMIC_RESOURCES
from berth_watcher.queue.groups import GroupEntry
from berth_watcher.queue.hints import NODES_CAME
from berth_watcher.queue.nominatednodes import VICTIM_DELETED
from berth_watcher.queue.queuedpod import QUEUES, WAITING_FOR_EVENT, EventClock, QueuedPod, Stage, created_at
from berth_watcher.queue.schedulingqueue import SchedulingQueue
from berth_watcher.store import label_of

# Per request, with the members of groups that are counted: bounds its time when few pods match.
PODS_SCANNED: Final = 2000
PODS_ON_A_PAGE: Final = 100
MESSAGE_CHARACTERS: Final = 300  # per message on a page: 100 pods fit into the smallest max_payload that berth allows
PLUGINS_ON_A_PAGE: Final = 16
POD_BYTES: Final = 32 * 1024  # a larger object is left out of an answer, for the same reason
# Stages that a person may end. In the others the pod is being tried, or another object must change first.
RETRIED_FROM: Final = frozenset({Stage.BACKOFF, Stage.UNSCHEDULABLE, Stage.AWAITING_VERSIONS})


class InFlight(Protocol):
    @property
    def is_draining(self) -> bool: ...

    def slots(self, profile: str, now: float) -> tuple[int, int]: ...

    def waits_for(self, uid: str) -> str: ...


class QueueAnswers:
    def __init__(
        self,
        queue: SchedulingQueue,
        attempts: InFlight,
        profiles: Mapping[str, Profile],
        claims: Objects[ResourceClaim],
        clock: EventClock,
    ) -> None:
        self._queue = queue
        self._attempts = attempts
        self._profiles = profiles
        self._claims = claims
        self._clock = clock

    def page(self, request: PageRequest, now: float) -> QueueAnswer:
        """The next pods of a queue, oldest entry first. Pods that come and go between two pages may shift it."""
        pods: list[WaitingPod] = []
        start, scanned, counted = request.start, 0, 0
        for queued in islice(self._queue.pods(), start, start + PODS_SCANNED):
            scanned += 1
            if request.namespace not in {"", queued.pod.metadata.namespace}:
                continue
            if request.queue and request.queue not in _queues_of(queued):
                continue
            pods.append(self._line(queued, now, whole=False))
            counted += len(queued.group.pods) if isinstance(queued, GroupEntry) else 0
            if len(pods) == PODS_ON_A_PAGE or counted >= PODS_SCANNED:
                break
        following = start + scanned
        return self._answer(now, pods=pods, next_start=following if following < len(self._queue) else None)

    def pod(self, request: PodRequest, now: float) -> QueueAnswer:
        queued = self.find(request)
        return self._answer(now, detail=None if queued is None else self._detail(queued, now))

    def find(self, request: PodRequest) -> QueuedPod | None:
        return self._queue.named(request.namespace, request.name)

    def _answer(
        self,
        now: float,
        *,
        pods: list[WaitingPod] | None = None,
        next_start: int | None = None,
        detail: QueuedPodDetail | None = None,
    ) -> QueueAnswer:
        return QueueAnswer(
            now=self._clock.at(now).wall,
            draining=self._attempts.is_draining,
            queues=self._queue.waiting_pods(),
            pods=pods or [],
            next=next_start,
            detail=detail,
        )

    def _line(self, queued: QueuedPod, now: float, *, whole: bool) -> WaitingPod:
        metadata = queued.pod.metadata
        plugins = sorted(queued.unschedulable_plugins)
        return WaitingPod(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            profile=queued.profile,
            queue=_queue_of(queued),
            stage=queued.stage,
            since=created_at(queued.pod) or queued.timestamp,
            priority=priority_of(queued.pod),
            attempts=queued.attempt.n if queued.attempt else 0,
            plugins=plugins if whole else plugins[:PLUGINS_ON_A_PAGE],
            message=queued.message if whole else queued.message[:MESSAGE_CHARACTERS],
            devices=digest_of_requests(queued.pod, self._claims) if DYNAMIC_RESOURCES in plugins else "",
            tried_again_seconds=_until_tried_again(queued, now),
            group=_named_group(queued),
            members=self._group_state(queued) if isinstance(queued, GroupEntry) else None,
        )

    def _group_state(self, entry: GroupEntry) -> GroupCounts:
        form, members = entry.form, entry.group.members(self._profiles)
        return GroupCounts(
            dialect=form.dialect.value,
            name=form.name,
            minimum=form.minimum,
            need=members.wanted(form),
            bound=len(members.bound),
            pending=len(members.pending),
        )

    def _detail(self, queued: QueuedPod, now: float) -> QueuedPodDetail:
        used, slots = self._attempts.slots(queued.profile, now)
        return QueuedPodDetail(
            pod=self._line(queued, now, whole=True),
            attempt=str(queued.attempt or ""),
            outcome=queued.outcome or "",
            node=queued.node,
            failures=queued.failures,
            conflicts=queued.conflicts,
            lost_attempts=queued.lost_attempts,
            awaited_versions=dict(queued.awaited_versions) if queued.stage is Stage.AWAITING_VERSIONS else {},
            failure=queued.failure,
            helping=list(self._helping(queued)) if queued.stage in WAITING_FOR_EVENT else [],
            window=slots,
            window_used=used,
            stalled_on=self._attempts.waits_for(queued.uid),
            object=queued.pod if len(msgspec.json.encode(queued.pod)) <= POD_BYTES else None,
        )

    def _helping(self, queued: QueuedPod) -> Iterator[Helping]:
        # The same decision as QueueingHints.may_help.
        if queued.outcome is Outcome.PREEMPTING:
            yield Helping(plugin="DefaultPreemption", events=_labels(VICTIM_DELETED))
        elif not queued.unschedulable_plugins:
            yield Helping(plugin="", events=_labels(NODES_CAME) if queued.awaits_nodes else [])
        profile = self._profiles[queued.profile]
        for name in sorted(queued.unschedulable_plugins):
            hints = profile.event_hints.get(name)
            events = {label: hint.hint is not None for hint in hints or () for label in _labels(hint.event)}
            hinted = [label for label, is_hinted in events.items() if is_hinted]
            yield Helping(plugin=name, events=list(events), hinted=hinted)


def _queue_of(queued: QueuedPod) -> str:
    if isinstance(queued, GroupEntry) and queued.stage is Stage.GROUPED:
        return UNUSABLE if queued.form.problems else INCOMPLETE
    return QUEUES.get(queued.stage, IN_FLIGHT)


def _queues_of(queued: QueuedPod) -> tuple[str, ...]:
    """Where people look for it: for a group also where its pods are."""
    return (_queue_of(queued), WITH_GROUP) if queued.is_group else (_queue_of(queued),)


def _named_group(queued: QueuedPod) -> str:
    named = None if isinstance(queued, GroupEntry) else group_of(queued.pod)
    return "" if named is None else subject_name(named)


def _until_tried_again(queued: QueuedPod, now: float) -> float | None:
    """Seconds until the pod is tried again; ``None`` if it waits for an event, or is active."""
    if queued.due is None or queued.stage not in RETRIED_FROM:
        return None
    return round(max(0.0, queued.due - now), 1)


def _labels(event: ClusterEvent) -> list[str]:
    """kube-scheduler's name of each of the event's actions. Pod updates include updates of the waiting pod."""
    labels = (label_of(ClusterEvent(event.resource, action)) for action in event.action)
    return [label.replace("AssignedPodUpdate", "PodUpdate", 1) for label in labels]
