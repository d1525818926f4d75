"""The waiting pods, from the leading watcher: its requests, and its answers as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Final

import msgspec
from rich.table import Table

from berth.api.pod import Pod
from berth.bus.interface import MissingError, Session
from berth.errors import DecodeError, TemporaryError
from berth.exits import UsageError
from berth.messages.encoding import encode
from berth.messages.groupattempts import group_named
from berth.messages.queue import (
    GROUPED,
    IN_FLIGHT,
    POD,
    QUEUE,
    QUEUES,
    GroupCounts,
    PageRequest,
    PodRequest,
    QueueAnswer,
    QueuedPodDetail,
    WaitingPod,
    decode_queue_answer,
)
from berth.messages.subjects import service_subject
from berth_cli.options import OutputFormat, PodName, print_document
from berth_cli.remedies.remedy import Advice
from berth_cli.rendering import duration, new_table, plain, print_rich
from berth_cli.services import DRAINING, Seen, leader, seen

WATCHER: Final = "berth-watcher"
_SHOWN: Final = (*QUEUES, IN_FLIGHT)
_STATES: Final = {"active": "waits for its turn", "awaiting watch": "is decided"}  # by stage
_ENDED: Final = "the watcher waits until the API server shows what the binder decided"


class NoLeaderError(TemporaryError):
    """No watcher leads or answers, so the waiting pods are unknown."""


async def leading_watcher(session: Session) -> Seen:
    """The leading watcher, which has the queue.

    Raises:
        NoLeaderError: no watcher leads.
    """
    found = leader(seen(await session.services(WATCHER)), "watcher")
    if found is None:
        raise NoLeaderError("asking which pods wait: no watcher leads: see `berth top`")
    return found


async def ask_watcher(
    session: Session, watcher: Seen, endpoint: str, request: PageRequest | PodRequest, *, for_admins: bool = False
) -> QueueAnswer:
    """The answer of the leading watcher.

    Raises:
        NoLeaderError: it no longer leads, or its version has no such request.
        UsageError: it cannot read the request.
    """
    subject = service_subject(WATCHER, watcher.identity, endpoint, for_admins=for_admins)
    try:
        answer = decode_queue_answer(await session.ask(subject, encode(request)))
    except MissingError as error:
        raise NoLeaderError(
            f"asking {watcher.name}: it does not answer on {subject!r}: it has ended, or is asked too often: try again"
        ) from error
    except DecodeError as error:
        raise UsageError(f"asking {watcher.name}: {error}: this berth and the watcher are of different versions") from (
            error
        )
    if answer.error:
        raise NoLeaderError(f"asking {watcher.name}: {answer.error}")
    return answer


async def queued_pod(session: Session, name: PodName) -> QueueAnswer:
    """The watcher's answer about the pod. Raises as :func:`leading_watcher` and :func:`ask_watcher`."""
    watcher = await leading_watcher(session)
    return await ask_watcher(session, watcher, POD, PodRequest(namespace=name.namespace, name=name.name))


async def waiting_pod(session: Session, name: PodName) -> Pod | None:
    """The pod from the leading watcher; ``None`` if it does not wait, or is too large for an answer.

    Raises:
        BerthError: as :func:`queued_pod`.
    """
    detail = (await queued_pod(session, name)).detail
    return None if detail is None else detail.object


async def queue_pages(session: Session, *, queue: str = "", namespace: str = "") -> AsyncGenerator[QueueAnswer, None]:
    """The queue's pages, one request at a time. Raises as :func:`queued_pod`."""
    watcher = await leading_watcher(session)
    start: int | None = 0
    while start is not None:
        answer = await ask_watcher(session, watcher, QUEUE, PageRequest(queue=queue, namespace=namespace, start=start))
        yield answer
        start = answer.next


async def read_queue(
    session: Session, *, queue: str, namespace: str, limit: int, most_requests: int | None = None
) -> tuple[QueueAnswer, bool]:
    """The last answer, the pods of all pages, and whether they are complete. Raises as :func:`queued_pod`.

    Stops after ``most_requests``; ``next`` of the answer is then the number of pods looked at.
    """
    answer, pods, requests = QueueAnswer(), dict[str, WaitingPod](), 0
    async with aclosing(queue_pages(session, queue=queue, namespace=namespace)) as pages:
        async for answer in pages:
            pods.update((pod.uid, pod) for pod in answer.pods)
            requests += 1
            if (limit and len(pods) > limit) or requests == most_requests:
                break
    chosen = sorted(pods.values(), key=_order)[: limit or None]
    complete = answer.next is None and len(chosen) == len(pods)
    return msgspec.structs.replace(answer, pods=chosen), complete


def _order(pod: WaitingPod) -> tuple[int, float, int, datetime, str, str]:
    queue = _SHOWN.index(pod.queue) if pod.queue in _SHOWN else len(_SHOWN)
    soonest = pod.tried_again_seconds if pod.tried_again_seconds is not None else float("inf")
    return queue, soonest if pod.queue == "backoff" else 0.0, -pod.priority, pod.since, pod.namespace, pod.name


def queue_json(answer: QueueAnswer, *, complete: bool) -> dict[str, object]:
    """``complete``: the answer has all waiting pods."""
    document = {"now": answer.now, "draining": answer.draining, "queues": answer.queues, "pods": answer.pods}
    return {**document, "complete": complete}


def queue_counts(answer: QueueAnswer) -> str:
    """``waiting pods: active 3, backoff 1, unschedulable 20, gated 2, with group 4``."""
    return "waiting pods: " + ", ".join(f"{name} {answer.queues[name]}" for name in QUEUES if name in answer.queues)


def queue_table(answer: QueueAnswer) -> Table:
    table = new_table("POD", "QUEUE", "AGE", "AGAIN IN", "TRIES", "WHY", numbers=("AGE", "AGAIN IN", "TRIES"))
    rows = rows_of(answer.pods)
    groups = Counter(pod.title for pod in rows if pod.members is not None)
    for pod in rows:
        again = "" if pod.tried_again_seconds is None else duration(pod.tried_again_seconds)
        cells = (
            _row_title(pod, is_unique=groups[pod.title] <= 1),
            pod.queue,
            _age(pod, answer.now),
            again,
            str(pod.attempts),
            _why(pod),
        )
        table.add_row(*map(plain, cells))
    return table


def rows_of(pods: Sequence[WaitingPod]) -> list[WaitingPod]:
    """Pods that wait with their group are in the group's row."""
    groups = {(pod.namespace, pod.name) for pod in pods if pod.members is not None}
    return [pod for pod in pods if not (pod.waits_with_group and (pod.namespace, pod.group) in groups)]


def _row_title(pod: WaitingPod, *, is_unique: bool) -> str:
    """``is_unique``: each dialect may have a group of one name."""
    if pod.members is None:
        return pod.title
    kind = "group" if is_unique else f"group of {pod.members.dialect}"
    return f"{pod.title} ({kind}, {_times(pod.members.pending, 'pod')})"


def _why(pod: WaitingPod) -> str:
    if pod.members is not None or pod.stage == GROUPED:
        return pod.message
    plugins = ", ".join(pod.plugins)
    if pod.queue in {"unschedulable", "gated"} and plugins:
        return plugins
    if pod.queue not in {pod.stage, IN_FLIGHT}:
        return pod.stage
    return pod.message if pod.queue == "backoff" else ""


def _age(pod: WaitingPod, now: datetime | None) -> str:
    return "" if now is None else duration(max(0.0, (now - pod.since).total_seconds()))


def may_be_helped(detail: QueuedPodDetail) -> bool:
    """Whether advice is possible, because nodes rejected the pod."""
    return detail.pod.queue in {"unschedulable", "backoff"}


def print_detail(
    answer: QueueAnswer, detail: QueuedPodDetail, stuck: str, advice: Advice, output: OutputFormat
) -> None:
    """``stuck``: why no pod moves; may be empty."""
    if output.is_document:
        print_document({**detail_json(answer, detail, stuck), **advice.as_json()}, output)
    else:
        shown = ["", *lines] if (lines := list(advice.lines())) else []
        print_rich(*detail_lines(answer, detail), *shown, *([plain(f"  {stuck}", "yellow")] if stuck else []))


def detail_lines(answer: QueueAnswer, detail: QueuedPodDetail) -> Iterator[str | Table]:
    """Why the pod waits, and until when."""
    yield from state_lines(answer, detail)
    yield from helping_lines(detail)


def state_lines(answer: QueueAnswer, detail: QueuedPodDetail) -> Iterator[str]:
    pod = detail.pod
    yield f"{pod.title} {_state(detail)}"
    if facts := ", ".join(_facts(answer, detail)):
        yield f"  {facts}"
    yield from (f"  {sentence}" for sentence in _what_ends_it(answer, detail))


def helping_lines(detail: QueuedPodDetail) -> Iterator[str | Table]:
    """The events that may help."""
    if detail.helping:
        yield ""
        yield _helping_table(detail)
        if any(one.hinted for one in detail.helping):
            yield "*: if the plugin finds that the event helps this pod"


def detail_json(answer: QueueAnswer, detail: QueuedPodDetail, stuck: str) -> dict[str, object]:
    """A waiting pod as JSON: first the fields that `berth why` has for every pod."""
    pod = detail.pod
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "uid": pod.uid,
        "outcome": pod.queue,
        "node": "",
        "message": pod.message,
        "blockers": pod.plugins,
        "draining": answer.draining,
        "now": answer.now,
        "queued": detail,
        **({"problem": stuck} if stuck else {}),
    }


def _state(detail: QueuedPodDetail) -> str:
    pod = detail.pod
    reason = f": {pod.message}" if pod.message else ""
    if pod.stage == GROUPED:
        for_whom = f" with its group {group_named(pod.namespace, pod.group)}" if pod.waits_with_group else ""
        return f"waits{for_whom}{reason}"
    if pod.queue == "gated":
        return f"is gated and not scheduled: {', '.join(pod.plugins)}{reason}"
    if pod.queue == "unschedulable":
        return f"is unschedulable{reason}"
    if pod.queue == "backoff":
        after = f" after {_times(detail.failures, 'failed attempt')}" if detail.failures else ""
        return f"backs off{after}{reason}"
    return _STATES.get(pod.stage) or ("is being scheduled" if pod.queue == IN_FLIGHT else f"is next, {pod.stage}")


def _facts(answer: QueueAnswer, detail: QueuedPodDetail) -> Iterator[str]:
    pod = detail.pod
    if pod.members is not None:
        yield _members_text(pod.members)
    if answer.now is not None:
        yield f"has waited for {_age(pod, answer.now)}"
    if pod.priority:
        yield f"priority {pod.priority}"
    if pod.attempts:
        yield f"attempt {pod.attempts}"
    if detail.conflicts:
        yield _times(detail.conflicts, "conflict") + " in a row (the binder's check failed)"
    if detail.lost_attempts:
        yield _times(detail.lost_attempts, "lost attempt") + " in a row"
    yield f"profile {pod.profile}"


def _members_text(members: GroupCounts) -> str:
    together = f" ({members.need} together)" if 0 < members.need <= members.pending else ""
    counts = f"minimum {members.minimum}, {members.bound} bound, {members.pending} waiting{together}"
    return f"PodGroup of {members.dialect}, {counts}"


def _what_ends_it(answer: QueueAnswer, detail: QueuedPodDetail) -> Iterator[str]:
    pod = detail.pod
    if detail.failure:
        yield f"it is not tried, since {detail.failure}"
    if pod.tried_again_seconds is not None:
        earlier = ", earlier when one of these events may help" if detail.helping else ""
        yield f"tried again in {duration(pod.tried_again_seconds)}{earlier}"
    if pod.queue == "active" and pod.stage == "active":
        yield "highest priority first, then namespaces in turns, in each the oldest first"
        yield f"window of profile {pod.profile}: {detail.window_used} of {detail.window} in use"
    if detail.awaited_versions:
        awaited = ", ".join(f"{kind} {version}" for kind, version in sorted(detail.awaited_versions.items()))
        yield f"until the watcher has seen resourceVersion {awaited}"
    if pod.group:
        yield f"`berth why --group {group_named(pod.namespace, pod.group)}` shows its group"
    if pod.queue == IN_FLIGHT:
        trace = "berth trace" if pod.members is None else f"berth trace --group {pod.title}"
        yield _ENDED if pod.stage == "awaiting watch" else f"`{trace}` shows its messages"
    if detail.stalled_on:
        yield f"no {detail.stalled_on} has taken its message for more than 10 s: see `berth top`"
    if answer.draining and pod.queue != IN_FLIGHT:
        yield DRAINING


def _helping_table(detail: QueuedPodDetail) -> Table:
    table = new_table("PLUGIN", "WAITS FOR")
    for one in detail.helping:
        table.add_row(plain(one.plugin or "none"), plain(", ".join(_events(one.events, one.hinted)) or "any event"))
    return table


def _events(events: Iterable[str], hinted: Iterable[str]) -> Iterator[str]:
    asked = set(hinted)
    for event in events:
        yield f"{event}*" if event in asked else event


def _times(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
