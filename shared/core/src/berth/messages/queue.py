"""What the leading watcher answers about the pods that wait: requests and answers, JSON that a person can read.

    nats req berth.service.berth-watcher.<identity>.queue '{"queue": "unschedulable"}'
    nats req berth.service.berth-watcher.<identity>.pod '{"namespace": "default", "name": "web"}'

``berth queue`` and ``berth dead retry`` ask. A queue of 200,000 pods is answered in pages, so that a person who asks
costs the watcher no more than some milliseconds at a time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

from berth.api.pod import Pod
from berth.messages.attempts import Versioned, decode_versioned

QUEUE: Final = "queue"
POD: Final = "pod"
RETRY: Final = "retry"
"""The watcher's endpoints; the last is for admins."""

QUEUES: Final = ("active", "backoff", "unschedulable", "gated")
"""kube-scheduler's queues, from the pods that are tried next to those that only a person can release."""
IN_FLIGHT: Final = "in flight"
"""In place of a queue: of pods whose latest attempt is with scorers or binder, or that the watch does not show bound
yet."""


class PageRequest(Versioned, frozen=True, kw_only=True):
    """Pods from the ``start``-th on, of a queue and a namespace if they are given."""

    queue: str = ""
    namespace: str = ""
    start: Annotated[int, msgspec.Meta(ge=0, lt=10**9)] = 0


class PodRequest(Versioned, frozen=True, kw_only=True):
    """One pod."""

    namespace: str
    name: str


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod in the watcher's queue."""

    namespace: str
    name: str
    uid: str
    profile: str
    queue: str
    """One of ``QUEUES``, or ``IN_FLIGHT``."""
    stage: str
    """What it waits for there, in the watcher's words: ``awaiting versions`` is active after a conflict."""
    since: datetime
    """When it was created: a pod waits from then on, however often it was tried."""
    priority: int = 0
    attempts: int = 0
    """Those of the term; a new leader goes on from the last one that it finds on the bus."""
    plugins: list[str] = []
    """Those that rejected it, or gate it."""
    message: str = ""
    """Of its last Decision, or of the plugin that gates it; cut on a page."""
    tried_again_seconds: float | None = None
    """Until it is tried again without any event."""


class Helping(msgspec.Struct, frozen=True, kw_only=True):
    """The events that one plugin has registered, of which each may make the pod schedulable."""

    plugin: str
    events: list[str]
    """Empty: any event may."""
    hinted: list[str] = []
    """Those of which the plugin is asked first whether they help this pod."""


class QueuedPodDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that the watcher knows about why a pod waits."""

    pod: WaitingPod
    attempt: str = ""
    outcome: str = ""
    """Of the last final Decision."""
    node: str = ""
    failures: int = 0
    conflicts: int = 0
    lost_attempts: int = 0
    awaited_versions: dict[str, int] = {}
    """After a conflict: by kind, the resourceVersion that the watcher must see first."""
    failure: str = ""
    """What is published in place of a try: a plugin failed, or the pod has too much of something."""
    helping: list[Helping] = []
    window: int = 0
    window_used: int = 0
    """Slots of its profile's window."""
    stalled_on: str = ""
    """The service that should have taken its message."""
    object: Pod | None = None
    """The pod itself, as a PENDING has it, with what it asks for; None of one that is too large for an answer."""


class QueueAnswer(Versioned, frozen=True, kw_only=True):
    """The answer to each of the requests. ``error``: why there is none."""

    error: str = ""
    now: datetime | None = None
    draining: bool = False
    queues: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of pods by queue, of all namespaces."""
    pods: list[WaitingPod] = msgspec.field(default_factory=list)
    next: int | None = None
    """The ``start`` of the next page; None: this was the last one."""
    detail: QueuedPodDetail | None = None
    """Of one pod; None: the watcher does not know it."""
    retried: bool = False


def decode_page_request(data: bytes) -> PageRequest:
    """Nothing at all asks for the first page. Raises as :func:`decode_versioned`."""
    return decode_versioned(data, PageRequest, "a request for the queue") if data.strip() else PageRequest()


def decode_pod_request(data: bytes) -> PodRequest:
    """Raises as :func:`decode_versioned`."""
    return decode_versioned(data, PodRequest, "a request for a pod")


def decode_queue_answer(data: bytes) -> QueueAnswer:
    """Raises as :func:`decode_versioned`."""
    return decode_versioned(data, QueueAnswer, "an answer about the queue")
