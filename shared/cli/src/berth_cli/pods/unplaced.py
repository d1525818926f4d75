"""Explains a pod without a Decision: by the leading watcher, else by the API server.

The usual reason is a forgotten ``schedulerName``: berth never sees such a pod, and the API server shows its scheduler.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth.api.pod import Pod, is_gone_while_unbound
from berth.bus.interface import Session
from berth.errors import BerthError
from berth.kube.kubeconfig import is_configured
from berth.messages.queue import QueueAnswer, QueuedPodDetail
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.lookup import ExplainedDecision, check_it_is_the_last, get_pod_from_api, last_decision
from berth_cli.pods.waiting import NoLeaderError, queued_pod
from berth_cli.services import seen

_KEPT: Final = "Decisions are kept for an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInCluster:
    pod: Pod
    sentence: str

    def as_json(self) -> dict[str, object]:
        metadata, spec = self.pod.metadata, self.pod.spec
        return {
            "pod": f"{metadata.namespace}/{metadata.name}",
            "uid": metadata.uid,
            "outcome": "",
            "node": spec.node_name,
            "scheduler": spec.scheduler_name,
            "message": self.sentence,
        }


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
    """A Decision on an earlier pod of the name does not count.

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
    if answer.detail.pod.uid != decided.decision.uid:
        return KnownByWatcher(answer=answer, detail=answer.detail)
    return KnownByDecision(decided=decided, pod=answer.detail.object)


async def ask_the_watcher(session: Session, name: PodName) -> QueueAnswer | None:
    """``None`` if the leading watcher does not know the pod, or no watcher leads."""
    try:
        answer = await queued_pod(session, name)
    except NoLeaderError:
        return None
    return answer if answer.detail is not None else None


async def ask_the_cluster(
    session: Session, name: PodName, kubeconfig: Path | None, profiles: Collection[str], nothing: NotFoundError
) -> PodInCluster:
    """The pod from the API server; the default kubeconfig is as in kubectl.

    Raises:
        NotFoundError: there is no such pod, or no cluster to ask; the text begins with ``nothing``.
    """
    if kubeconfig is None and not is_configured():
        raise NotFoundError(f"{nothing}: no cluster was asked: name one with --kubeconfig")
    try:
        pod = await get_pod_from_api(session, name, kubeconfig)
    except NotFoundError as error:
        raise NotFoundError(f"{nothing}; the API server has no such pod") from error
    except BerthError as error:
        if kubeconfig is not None:
            raise
        raise NotFoundError(f"{nothing}; could not look it up in the cluster: {error}") from error
    return PodInCluster(pod=pod, sentence=whose(pod, await profiles_of_services(session) or profiles))


async def profiles_of_services(session: Session) -> set[str]:
    return {profile for one in seen(await session.services()) for profile in one.statistics.profiles}


def whose(pod: Pod, profiles: Collection[str]) -> str:
    """Why there is no Decision on the pod."""
    spec, scheduler = pod.spec, pod.spec.scheduler_name
    ours = ", ".join(sorted(profiles))
    if scheduler not in profiles:
        where = f"; it is on {spec.node_name}" if spec.node_name else ""
        return f"is not berth's: its schedulerName is {scheduler!r}, and berth schedules those with {ours}{where}"
    if spec.node_name:
        return f"is on {spec.node_name}; no Decision says why: it was placed before ({_KEPT}), or by another client"
    if is_gone_while_unbound(pod):
        return f"is not scheduled any more: it has ended, or is being deleted (phase {pod.status.phase or 'unknown'})"
    return "waits for berth, and no watcher has taken it yet: see `berth top`"
