"""Answers of the page about one pod, one node or the queue: the documents of ``berth why``, ``trace`` and ``queue``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.padding import Padding
from rich.text import Text

from berth.api.resources import CPU, MEMORY
from berth.bus.interface import Session
from berth.cluster.nodes import node_info
from berth.exits import UsageError
from berth.messages.queue import IN_FLIGHT, QUEUES
from berth_cli.commands.trace import stored_messages
from berth_cli.mirror import MirrorReader
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.explain import decision_json, decision_lines
from berth_cli.pods.lookup import ExplainedDecision
from berth_cli.pods.timeline import trace_json, with_recalled
from berth_cli.pods.unplaced import KnownByWatcher, explanation_of
from berth_cli.pods.waiting import detail_json, detail_lines, may_be_helped, queue_json, queued_pod, read_queue
from berth_cli.remedies.asking import Advisory
from berth_cli.remedies.remedy import Advice
from berth_cli.services import what_stops

Document = dict[str, object]
MOST_QUEUED: Final = 500  # pods of the queue that the page lists
# Requests to the watcher for one list. Each scans 2,000 pods, answers 100 and takes at most 3 ms of its time.
MOST_REQUESTS: Final = 5
MOST_ON_A_NODE: Final = 1000  # pods of a node that the page lists; Kubernetes supports 110 per node


async def why_json(session: Session, name: PodName) -> Document:
    """The document of ``berth why -o json`` with its sentences. Only the bus is asked, never the API server.

    Raises:
        NotFoundError: neither a Decision nor the leading watcher has the pod.
    """
    known = await explanation_of(session, name)
    if isinstance(known, KnownByWatcher):
        stuck = await what_stops(session)
        lines = [line for line in detail_lines(known.answer, known.detail) if isinstance(line, str) and line]
        return {"kind": "queued", "sentences": lines, **detail_json(known.answer, known.detail, stuck)}
    decided = known.decided
    return {"kind": "decided", "sentences": list(sentences_of(decided)), **decision_json(decided)}


def sentences_of(decided: ExplainedDecision) -> Iterator[str]:
    # Without tables and score explanations, which the page shows below the bars.
    for line in decision_lines(decided, has_details=False):
        text = line.renderable if isinstance(line, Padding) else line
        if isinstance(text, Text):
            yield text.plain


async def pod_trace_json(session: Session, name: PodName) -> Document:
    """The document of ``berth trace -o json``; an empty list without messages."""
    return trace_json(name, with_recalled([message for message, _ in await stored_messages(session, name)]))


async def pod_queue_json(advisory: Advisory, name: PodName) -> Document:
    """The document of ``berth queue why -o json`` with its sentences; without ``queued`` the pod is not queued.

    Raises:
        NoLeaderError: no watcher leads.
    """
    answer = await queued_pod(advisory.session, name)
    if answer.detail is None:
        return {"pod": str(name), "queued": None, "sentences": []}
    lines = [line for line in detail_lines(answer, answer.detail) if isinstance(line, str) and line]
    advice = await advisory.on(name, answer.detail.object) if may_be_helped(answer.detail) else Advice()
    stuck = await what_stops(advisory.session)
    return {"sentences": lines, **detail_json(answer, answer.detail, stuck), **advice.as_json()}


async def waiting_json(session: Session, *, queue: str, namespace: str) -> Document:
    """The document of ``berth queue -o json``: waiting pods among the first pods of the queue.

    ``looked_at`` is the number of scanned pods; ``None``: all.

    Raises:
        NoLeaderError: no watcher leads.
    """
    answer, complete = await read_queue(
        session, queue=queue, namespace=namespace, limit=MOST_QUEUED, most_requests=MOST_REQUESTS
    )
    return {**queue_json(answer, complete=complete), "looked_at": answer.next}


def check_queue(name: str) -> None:
    """Raises UsageError: there is no such queue."""
    if name and name not in {*QUEUES, IN_FLIGHT}:
        raise UsageError(f"listing queue {name!r:.80}: want one of {', '.join(QUEUES)}, {IN_FLIGHT!r}")


def node_json(mirror: MirrorReader, name: str) -> Document:
    """A node with its labels, taints and pods, from the mirror.

    Raises:
        NotFoundError: the mirror has no such node.
    """
    info = node_info(mirror.snapshot, name)
    if info is None:
        raise NotFoundError(f"looking for node {name!r:.300}: the mirror has no such node")
    placed = sorted(info.placed(), key=lambda each: each.bound_at or 0.0, reverse=True)
    return {
        "node": info.name,
        "labels": info.labels,
        "taints": info.taints,
        "unschedulable": info.unschedulable,
        "allocatable": {CPU: info.allocatable(CPU), MEMORY: info.allocatable(MEMORY), "pods": info.allowed_pods},
        "requested": {CPU: info.requested(CPU), MEMORY: info.requested(MEMORY), "pods": info.pods},
        "pods": [
            {
                "namespace": each.pod.metadata.namespace,
                "name": each.pod.metadata.name,
                "profile": each.pod.spec.scheduler_name,
                "priority": each.pod.spec.priority or 0,
                "cpu": each.pod_class.requests.amounts.get(CPU, 0),
                "memory": each.pod_class.requests.amounts.get(MEMORY, 0),
                "bound_at": each.bound_at,
            }
            for each in placed[:MOST_ON_A_NODE]
        ],
    }
