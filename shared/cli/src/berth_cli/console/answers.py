"""Answers of the page about a pod, a node, the queue or a time: documents as of ``berth why``, ``trace``, ``queue``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import msgspec
from rich.padding import Padding
from rich.text import Text

from berth.api.devices import Allocations
from berth.api.pod import Pod
from berth.api.podgroups import group_of
from berth.api.resources import CPU, MEMORY
from berth.bus.interface import Session, StreamReader
from berth.bus.topology import DECISIONS
from berth.cluster.nodes import node_info
from berth.cluster.podgroups import STRUCTS
from berth.cluster.snapshot import Snapshot
from berth.exits import UsageError
from berth.messages.groupattempts import group_named, subject_name
from berth.messages.queue import IN_FLIGHT, QUEUES
from berth_cli.commands.devices import devices_of_node, devices_of_pod
from berth_cli.commands.trace import stored_messages
from berth_cli.console.decisionlog import BARS, Bars, CreationOf, DecisionLog
from berth_cli.mirror import MirrorReader
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.explain import decision_json, decision_lines
from berth_cli.pods.finding import in_the_mirror
from berth_cli.pods.lookup import ExplainedDecision
from berth_cli.pods.podgroups import (
    GroupSummary,
    add_waiting,
    explain_summary,
    explained_json,
    explained_sentences,
    groups_of,
    no_group,
)
from berth_cli.pods.timeline import trace_json, with_recalled
from berth_cli.pods.unplaced import KnownByWatcher, explanation_of
from berth_cli.pods.waiting import (
    NoLeaderError,
    detail_json,
    detail_lines,
    may_be_helped,
    queue_json,
    queued_pod,
    read_queue,
    rows_of,
)
from berth_cli.remedies.asking import Advisory
from berth_cli.remedies.remedy import Advice
from berth_cli.services import what_stops

Document = dict[str, object]
MOST_QUEUED: Final = 500  # pods of the queue that the page lists
# Requests to the watcher for one list. Each scans 2,000 pods, answers 100 and takes at most 3 ms of its time.
MOST_REQUESTS: Final = 5
MOST_DECISIONS: Final = 20_000  # read for a time that a page names; takes two seconds
LONGEST_SECONDS: Final = 24 * 3600.0
# A stream is read from so much earlier on, as this machine's clock may differ.
CLOCKS_APART: Final = timedelta(seconds=10)
MOST_DEVICES: Final = 256  # of a node that the page lists
MOST_ON_A_NODE: Final = 1000  # pods of a node that the page lists; Kubernetes supports 110 per node


async def why_json(session: Session, name: PodName, snapshot: Snapshot) -> Document:
    """The document of ``berth why -o json`` with its sentences, from the bus only.

    Raises:
        NotFoundError: neither a Decision, nor the leading watcher, nor the mirror has the pod.
    """
    try:
        explained = await explanation_of(session, name)
    except NotFoundError:
        known = in_the_mirror(snapshot, name)
        placed = snapshot.placed(known.pod.metadata.uid) if known is not None else None
        if placed is None:
            raise
        more = _more_json(snapshot, placed.pod.uid, {})
        return {**_placed_json(name, placed.pod, snapshot.rows.names[placed.row]), **more}
    if isinstance(explained, KnownByWatcher):
        stuck = await what_stops(session)
        lines = [line for line in detail_lines(explained.answer, explained.detail) if isinstance(line, str) and line]
        return {"kind": "queued", "sentences": lines, **detail_json(explained.answer, explained.detail, stuck)}
    decided = explained.decided
    more = _more_json(snapshot, decided.decision.uid, decided.decision.devices)
    return {"kind": "decided", "sentences": list(sentences_of(decided)), **decision_json(decided), **more}


def _more_json(snapshot: Snapshot, uid: str, devices: Allocations) -> Document:
    """A pod's devices, and its group's name in subjects while it is on a node; empty without a group."""
    placed = snapshot.placed(uid)
    key = None if placed is None else group_of(placed.pod)
    if key is not None and snapshot.objects(STRUCTS[key.dialect]).unread:
        key = None  # its label has no effect
    return {"given": devices_of_pod(snapshot, uid, devices), "group": "" if key is None else subject_name(key)}


def _placed_json(name: PodName, pod: Pod, node: str) -> Document:
    """A pod that is on a node and has no Decision."""
    why = "NATS has no Decision on it, because another scheduler bound it, or berth did longer ago than NATS keeps them"
    sentences = [f"{name} is on {node}", f"{why}; its schedulerName is {pod.spec.scheduler_name!r:.300}"]
    return {"kind": "placed", "pod": str(name), "outcome": "bound", "node": node, "sentences": sentences}


async def decisions_json(session: Session, begin: float, end: float, snapshot: Snapshot) -> Document:
    """The Decisions between two Unix times of NATS's clock: their counts, and the last of them line by line.

    ``until``: where reading stopped, because there are more than :data:`MOST_DECISIONS`; ``None``: all were read.

    Raises:
        UsageError: no times, or too long ones.
    """
    if not 0 <= begin < end <= begin + LONGEST_SECONDS:
        raise UsageError(f"listing Decisions: want a time of at most {LONGEST_SECONDS:g} s, got {begin!r} to {end!r}")
    state = await session.state(DECISIONS)
    now = state.now.timestamp()
    first = math.inf if state.first_time is None else state.first_time.timestamp()
    step = max(1, math.ceil((end - begin) / BARS))
    bars = Bars(step, math.ceil(end / step) - int(begin) // step)
    log = DecisionLog([bars], lacks_older=state.first_sequence > 1 and first > begin)
    until = None
    if begin < now:
        async with session.read_stream(DECISIONS, since=timedelta(seconds=now - begin) + CLOCKS_APART) as reader:
            until = await _count(log, reader, (begin, end), lambda uid: _created(snapshot, uid))
    return {"now": now, "until": until, "figures": log.figures(math.ceil(end)), "decisions": log.lines()}


async def _count(
    log: DecisionLog, reader: StreamReader, span: tuple[float, float], creation_of: CreationOf
) -> float | None:
    """Count Decisions between two times. Returns the time of the first that was one too many."""
    begin, end = span
    until, read = None, 0
    if reader.caught_up.is_set():  # there are none
        return None
    async for batch in reader.batches():
        for stored in batch:
            at = stored.time.timestamp()
            if begin <= at < end and read < MOST_DECISIONS:
                log.add(stored)
                read += 1
            elif begin <= at < end and until is None:
                until = at
        log.new_lines(creation_of)
        if until is not None or reader.caught_up.is_set() or (batch and batch[-1].time.timestamp() >= end):
            break
    log.new_lines(creation_of)  # those that were held
    return until


def _created(snapshot: Snapshot, uid: str) -> str | None:
    placed = snapshot.placed(uid)
    return None if placed is None else placed.pod.metadata.creation_timestamp


def sentences_of(decided: ExplainedDecision) -> Iterator[str]:
    # Without tables and score explanations, which the page shows below the bars.
    for line in decision_lines(decided, has_details=False):
        text = line.renderable if isinstance(line, Padding) else line
        if isinstance(text, Text):
            yield text.plain


async def pod_trace_json(session: Session, name: PodName) -> Document:
    """The document of ``berth trace -o json``; an empty list without messages."""
    return trace_json(name, with_recalled([message for message, _ in await stored_messages(session, [name])]))


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
    """The document of ``berth queue -o json``: waiting pods among the first pods of the queue, a group as one.

    ``looked_at`` is the number of scanned pods; ``None``: all.

    Raises:
        NoLeaderError: no watcher leads.
    """
    answer, complete = await read_queue(
        session, queue=queue, namespace=namespace, limit=MOST_QUEUED, most_requests=MOST_REQUESTS
    )
    folded = msgspec.structs.replace(answer, pods=rows_of(answer.pods))
    return {**queue_json(folded, complete=complete), "looked_at": answer.next}


async def group_json(advisory: Advisory, name: PodName) -> Document:
    """A PodGroup by its name: the document of ``berth why --group -o json``, with sentences.

    A name as in subjects has the dialect. A plain name means the first dialect that has such a group; ``twins`` has the
    group of this name in the other one.
    ``members`` has those that wait among the first pods of the queue; ``problem``: why they are unknown.

    Raises:
        NotFoundError: neither the mirror nor a pod that waits has the group.
    """
    session, key = advisory.session, group_named(name.namespace, name.name)
    found = groups_of(advisory.snapshot, name.namespace)
    problem = ""
    try:
        answer, _ = await read_queue(session, queue="", namespace=name.namespace, limit=0, most_requests=MOST_REQUESTS)
        add_waiting(found, answer.pods)
    except NoLeaderError as error:
        problem = str(error)
    named = (each for each in sorted(found) if each == key or (key is None and each.name == name.name))
    summary = next((found[each] for each in named), None)
    if summary is None:
        raise no_group(f"{name.namespace}/{name.name.lstrip('~')}", problem)
    explained = await explain_summary(session, summary)
    advice = await advisory.on_group(explained)
    twins = [_twin_json(each) for each in found.values() if each is not summary and each.key.name == summary.key.name]
    more = {"sentences": list(explained_sentences(explained)), "twins": twins, "problem": problem}
    return {**explained_json(explained), **more, **advice.as_json()}


def _twin_json(twin: GroupSummary) -> Document:
    return {"name": subject_name(twin.key), "dialect": twin.key.dialect.value, "state": twin.state}


def check_queue(name: str) -> None:
    """Raises UsageError: there is no such queue."""
    if name and name not in {*QUEUES, IN_FLIGHT}:
        raise UsageError(f"listing queue {name!r:.80}: want one of {', '.join(QUEUES)}, {IN_FLIGHT!r}")


def node_json(mirror: MirrorReader, name: str) -> Document:
    """A node with its labels, taints, devices and pods, from the mirror.

    Raises:
        NotFoundError: the mirror has no such node.
    """
    info = node_info(mirror.snapshot, name)
    if info is None:
        raise NotFoundError(f"looking for node {name!r:.300}: the mirror has no such node")
    devices = devices_of_node(mirror.snapshot, info.node)
    placed = sorted(info.placed(), key=lambda each: each.bound_at or 0.0, reverse=True)
    return {
        "node": info.name,
        "labels": info.labels,
        "taints": info.taints,
        "unschedulable": info.unschedulable,
        "allocatable": {CPU: info.allocatable(CPU), MEMORY: info.allocatable(MEMORY), "pods": info.allowed_pods},
        "requested": {CPU: info.requested(CPU), MEMORY: info.requested(MEMORY), "pods": info.pods},
        "devices": {
            "number": len(devices),
            "in_use": sum(1 for each in devices if each.used_by),
            "listed": devices[:MOST_DEVICES],
        },
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
