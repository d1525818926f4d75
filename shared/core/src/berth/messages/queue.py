"""Questions to the leading watcher about waiting pods, and its answers, as JSON that a person can read.

    nats req berth.service.berth-watcher.<identity>.queue '{"queue": "unschedulable"}'
    nats req berth.service.berth-watcher.<identity>.pod '{"namespace": "default", "name": "web"}'

``berth queue`` and ``berth dead retry`` ask. A queue of 200,000 pods is answered in pages, so that a question costs the
watcher at most some milliseconds at a time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

from berth.api.pod import Pod
from berth.messages.encoding import Versioned, decode_versioned

QUEUE: Final = "queue"
POD: Final = "pod"
RETRY: Final = "retry"  # the watcher's endpoint for admins

WITH_GROUP: Final = "with group"  # pods that wait with their PodGroup, whatever the group waits for
# kube-scheduler's queues, from the pods that are tried next to those that only a person can release, and one more.
QUEUES: Final = ("active", "backoff", "unschedulable", "gated", WITH_GROUP)
# In place of a queue, of a PodGroup: it cannot be tried before it has its members, or before a person corrects it.
INCOMPLETE: Final = "incomplete"
UNUSABLE: Final = "unusable"
# The stage of a pod that waits with its group, and of a group that waits for members.
GROUPED: Final = "grouped"
# Instead of a queue: the latest attempt is with scorers or binder, or the watch does not show the pod bound yet.
IN_FLIGHT: Final = "in flight"


class PageRequest(Versioned, frozen=True, kw_only=True):
    """Pods from the ``start``-th on, optionally of one queue and namespace."""

    queue: str = ""
    namespace: str = ""
    start: Annotated[int, msgspec.Meta(ge=0, lt=10**9)] = 0


class PodRequest(Versioned, frozen=True, kw_only=True):
    namespace: str
    name: str


class GroupCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a PodGroup in the watcher's queue has. ``need``: members to be placed together, or none of them."""

    dialect: str
    name: str
    minimum: int
    need: int = 0
    bound: int = 0
    pending: int = 0


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod in the watcher's queue, or a PodGroup (``members``) under its name in subjects."""

    namespace: str
    name: str
    uid: str
    profile: str
    queue: str  # one of QUEUES, IN_FLIGHT, INCOMPLETE, or UNUSABLE
    # The watcher's name for the wait: `awaiting versions` is active after a conflict.
    stage: str
    # Its creation: a pod waits from then on, however often it was tried.
    since: datetime
    priority: int = 0
    # Attempts of the term; a new leader continues from the last one on the bus.
    attempts: int = 0
    plugins: list[str] = []  # that rejected or gate it
    message: str = ""  # of its last Decision or gating plugin; cut on a page
    devices: str = ""  # if it waits for devices, a digest of its requests for them, equal for alike pods
    tried_again_seconds: float | None = None  # until it is tried again without an event
    group: str = ""  # of a pod: the PodGroup that it names, as in subjects
    members: GroupCounts | None = None

    @property
    def waits_with_group(self) -> bool:
        return self.stage == GROUPED and self.members is None

    @property
    def title(self) -> str:
        """Its name as people write it."""
        name = self.name if self.members is None else self.members.name
        return f"{self.namespace}/{name}"


class Helping(msgspec.Struct, frozen=True, kw_only=True):
    """The events registered by one plugin, each of which may make the pod schedulable."""

    plugin: str  # empty if none rejected the pod
    events: list[str]  # empty: any event may
    hinted: list[str] = []  # those with a queueing hint


class QueuedPodDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that the watcher knows about why a pod waits."""

    pod: WaitingPod
    attempt: str = ""
    outcome: str = ""  # of the last final Decision
    node: str = ""
    failures: int = 0
    conflicts: int = 0
    lost_attempts: int = 0
    # After a conflict: by kind, the resourceVersion that the watcher must see first.
    awaited_versions: dict[str, int] = {}
    # Published instead of a try: a plugin failed, or the pod is above a limit.
    failure: str = ""
    helping: list[Helping] = []
    window: int = 0
    window_used: int = 0  # slots of its profile's window
    stalled_on: str = ""  # the service that should have taken its message
    object: Pod | None = None  # the pod as in PENDING; None if too large for an answer


class QueueAnswer(Versioned, frozen=True, kw_only=True):
    """The answer to each request. ``error``: why it failed."""

    error: str = ""
    now: datetime | None = None
    draining: bool = False
    queues: dict[str, int] = msgspec.field(default_factory=dict)  # pods by queue, of all namespaces, without groups
    pods: list[WaitingPod] = msgspec.field(default_factory=list)
    next: int | None = None  # `start` of the next page; None after the last
    detail: QueuedPodDetail | None = None  # of one pod; None: unknown to the watcher
    retried: bool = False


def decode_page_request(data: bytes) -> PageRequest:
    """An empty request asks for the first page. Raises as :func:`decode_versioned`."""
    return decode_versioned(data, PageRequest, "a request for the queue") if data.strip() else PageRequest()


def decode_pod_request(data: bytes) -> PodRequest:
    """Raises as :func:`decode_versioned`."""
    return decode_versioned(data, PodRequest, "a request for a pod")


def decode_queue_answer(data: bytes) -> QueueAnswer:
    """Raises as :func:`decode_versioned`."""
    return decode_versioned(data, QueueAnswer, "an answer about the queue")
