"""Explains a pod by its last Decision, or by the leading watcher while it has none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from berth.api.pod import Pod
from berth.bus.interface import Session
from berth.errors import BerthError
from berth.messages.groupattempts import group_named
from berth.messages.queue import QueueAnswer, QueuedPodDetail
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.lookup import ExplainedDecision, check_it_is_the_last, last_decision
from berth_cli.pods.waiting import NoLeaderError, queued_pod


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownByDecision:
    """A pod with a Decision. ``pod`` comes from the watcher, which is not asked about a placed pod."""

    decided: ExplainedDecision
    pod: Pod | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownByWatcher:
    answer: QueueAnswer
    detail: QueuedPodDetail


async def explanation_of(session: Session, name: PodName) -> KnownByDecision | KnownByWatcher:
    """A Decision on an earlier pod of the name does not count, nor one on a pod that waits with its group.

    Raises:
        NotFoundError: the pod has no Decision, and the watcher does not know it.
        DecodeError: the Decision cannot be decoded.
    """
    try:
        decided = await last_decision(session, name)
    except NotFoundError:
        answer = await ask_the_watcher(session, name)
        if answer is None or answer.detail is None:
            raise
        return KnownByWatcher(answer=answer, detail=answer.detail)
    if decided.is_on_its_node:
        return KnownByDecision(decided=decided)
    answer = None
    with suppress(BerthError):  # the Decision explains the pod without it
        answer = await ask_the_watcher(session, name)
    if answer is None or answer.detail is None:
        await check_it_is_the_last(session, decided)
        return KnownByDecision(decided=decided)
    if answer.detail.pod.uid != decided.decision.uid or answer.detail.pod.waits_with_group:
        return KnownByWatcher(answer=answer, detail=answer.detail)
    group = group_named(name.namespace, answer.detail.pod.group)
    return KnownByDecision(decided=replace(decided, group=group), pod=answer.detail.object)


async def ask_the_watcher(session: Session, name: PodName) -> QueueAnswer | None:
    """The watcher's answer; ``None`` if the leading watcher does not know the pod, or no watcher leads."""
    try:
        answer = await queued_pod(session, name)
    except NoLeaderError:
        return None
    return answer if answer.detail is not None else None
