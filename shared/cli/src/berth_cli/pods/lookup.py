"""Looks up a pod on the bus and the API server: its last Decision, its eviction, and the pod itself."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from berth.api.kinds import POD
from berth.api.pod import Pod
from berth.bus.interface import Session
from berth.bus.stages import OUTCOME
from berth.bus.topology import CLUSTER, DECISIONS, PENDING, RANKED
from berth.cluster.snapshot import Snapshot
from berth.decoding import check_size, decode_json
from berth.errors import BerthError, DecodeError
from berth.exits import UsageError
from berth.kube.kubeconfig import is_configured
from berth.messages.attempts import Decision, Outcome, Pending, Preemption, Ranked, decode, decode_entry, watermark_key
from berth.messages.subjects import PREFIX, Attempt, Term, Uid, escape_token, key
from berth_cli.bus import served_cluster
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.waiting import waiting_pod
from berth_cli.rendering import ago, duration
from berth_cli.services import what_stops

# Number of Decisions, of all pods, searched for the eviction of a pod; this takes one or two seconds.
LOOK_BACK: Final = 20_000
POD_BYTES: Final = 8 * 1024 * 1024  # of a pod in a file: as large as a message may be
# A watermark this much newer than a Decision includes its pod.
MIRRORED_WITHIN: Final = timedelta(seconds=5)
_POD: Final = msgspec.json.Decoder(Pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRecord:
    """An eviction for ``pod``, at a time on NATS's clock."""

    pod: PodName
    uid: str
    preemption: Preemption
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedDecision:
    """A Decision with its time and the time of reading, both on NATS's clock.

    ``preemption`` is the last preemption for the pod; ``evicted_for`` is the preemption that evicted the pod.
    ``has_left``: the pod was bound and is deleted. ``is_recorded``: the time of reading is the end of a recording.
    """

    decision: Decision
    at: datetime
    now: datetime
    preemption: EvictionRecord | None = None
    evicted_for: EvictionRecord | None = None
    has_left: bool = False
    is_recorded: bool = False

    @property
    def is_on_its_node(self) -> bool:
        """The pod was bound, and is neither evicted nor deleted as far as known."""
        return self.decision.outcome is Outcome.BOUND and not self.has_left and self.evicted_for is None

    def since(self, then: datetime) -> str:
        if not self.is_recorded:
            return ago(then, self.now)
        return f"{duration(max(0.0, (self.now - then).total_seconds()))} before the end of the recording"


async def last_decision(session: Session, name: PodName) -> ExplainedDecision:
    """The pod's last Decision.

    Raises:
        NotFoundError: there is no Decision; the text has the pod's stage, if it is on the bus.
        DecodeError: the Decision cannot be decoded.
    """
    stored = await session.last(DECISIONS, name.filter("decision"))
    if stored is None:
        raise await _no_decision(session, name)
    decision = decode(stored.data, Decision)
    return ExplainedDecision(
        decision=decision,
        at=stored.time,
        now=(await session.state(DECISIONS)).now,
        preemption=await preemption_for(session, decision),
        evicted_for=await eviction_of(session, decision, stored.sequence),
        has_left=decision.outcome is Outcome.BOUND and await _has_left(session, decision.uid, stored.time),
    )


async def check_it_is_the_last(session: Session, decided: ExplainedDecision) -> None:
    """Check that no later pod of the name is under way: StatefulSets reuse names.

    Raises:
        NotFoundError: a later pod has no Decision yet; the text is as in :func:`last_decision`.
    """
    decision = decided.decision
    name = PodName(namespace=decision.namespace, name=decision.pod)
    stages: tuple[tuple[str, str, type[Pending | Ranked]], ...] = (
        (PENDING, "pending", Pending),
        (RANKED, "ranked", Ranked),
    )
    for stream, stage, kind in stages:
        stored = await session.last(stream, name.filter(stage))
        if stored is None or stored.time <= decided.at:
            continue
        with suppress(DecodeError):
            if decode(stored.data, kind).pod.uid != decision.uid:
                raise await _no_decision(session, name)


async def _no_decision(session: Session, name: PodName) -> NotFoundError:
    return NotFoundError(f"looking for a Decision on pod {str(name)!r}: {await _stage_of(session, name)}")


async def _stage_of(session: Session, name: PodName) -> str:
    for stream, stage, waits in ((PENDING, "pending", "to be ranked"), (RANKED, "ranked", "to be bound")):
        stored = await session.last(stream, name.filter(stage))
        if stored is not None:
            since = ago(stored.time, (await session.state(stream)).now)
            stuck = await what_stops(session)
            return f"there is none yet: it waits {waits}, published {since}{f': {stuck}' if stuck else ''}"
    if stuck := await what_stops(session):
        return f"there is none: {stuck}"
    return "there is none, and no message of the pod is on the bus (Decisions are kept for an hour)"


async def preemption_for(session: Session, decision: Decision) -> EvictionRecord | None:
    name = PodName(namespace=decision.namespace, name=decision.pod)
    return await _last(session, name.filter("decision"), 0, lambda made: made.uid == decision.uid)


async def eviction_of(session: Session, decision: Decision, after: int) -> EvictionRecord | None:
    """The preemption that evicted the pod after the Decision of this sequence bound it.

    ``None`` while the pod exists, and if no recent Decision evicted it.
    """
    if decision.outcome is not Outcome.BOUND or await _exists(session, decision.uid):
        return None
    after = max(after, (await session.state(DECISIONS)).last_sequence - LOOK_BACK)
    return await _last(session, f"{PREFIX}.decision.>", after, lambda made: _is_victim(decision.uid, made))


def _is_victim(uid: str, of: Decision) -> bool:
    return of.preemption is not None and any(victim.uid == uid for victim in of.preemption.victims)


async def _exists(session: Session, uid: str) -> bool:
    """The mirror has the pod, not being deleted."""
    entry = await session.get(CLUSTER, key("pod", uid))
    if entry is None or entry.data is None:
        return False
    try:
        return _POD.decode(decode_entry(entry.data).object).metadata.deletion_timestamp is None
    except (DecodeError, msgspec.MsgspecError):
        return True


async def _has_left(session: Session, uid: str, bound_at: datetime) -> bool:
    """A mirror with all pods bound by then lacks the pod (docs/protocol.md, 4)."""
    entry = await session.get(CLUSTER, key("pod", uid))
    if entry is not None:  # without data, the entry marks the pod's removal
        return entry.data is None
    complete = await session.get(CLUSTER, watermark_key(POD.name))
    return complete is not None and complete.time > bound_at + MIRRORED_WITHIN


async def _last(
    session: Session, subject: str, after: int, matches: Callable[[Decision], bool]
) -> EvictionRecord | None:
    found = None
    async for at, made in _preempting(session, subject, after):
        if made.preemption is not None and made.preemption.victims and matches(made):
            name = PodName(namespace=made.namespace, name=made.pod)
            found = EvictionRecord(pod=name, uid=made.uid, preemption=made.preemption, at=at)
    return found


async def _preempting(session: Session, subject: str, after: int) -> AsyncIterator[tuple[datetime, Decision]]:
    """The preempting Decisions. Headers have the outcome, so the others are not decoded."""
    async for stored in session.scan(DECISIONS, subject, after=after):
        if stored.headers.get(OUTCOME) == Outcome.PREEMPTING:
            try:
                yield stored.time, decode(stored.data, Decision)
            except DecodeError:
                continue


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPod:
    pod: Pod
    where: str


async def find_pod(session: Session, name: PodName, snapshot: Snapshot, kubeconfig: Path | None) -> FoundPod:
    """The pod, from the API server of the kubeconfig, or from the bus.

    Raises:
        NotFoundError: neither has the pod.
        UsageError: the kubeconfig is for another cluster.
        KubeconfigError, TemporaryError: the API server cannot be reached.
    """
    if kubeconfig is not None:
        return FoundPod(pod=await get_pod_from_api(session, name, kubeconfig), where="the API server")
    found = await pod_on_the_bus(session, name, snapshot)
    if found is not None:
        return found
    nowhere = (
        f"looking for pod {str(name)!r}: the bus has no message and no mirror entry of it, and no leading watcher has "
        "it in its queue"
    )
    if not is_configured():
        raise NotFoundError(f"{nowhere}: name the cluster with --kubeconfig")
    try:
        return FoundPod(pod=await get_pod_from_api(session, name, None), where="the API server")
    except NotFoundError:
        raise
    except BerthError as error:
        raise NotFoundError(f"{nowhere}; could not look it up in the cluster: {error}") from error


async def pod_on_the_bus(session: Session, name: PodName, snapshot: Snapshot) -> FoundPod | None:
    """The pod from its messages, the mirror or the leading watcher."""
    return await _in_a_stream(session, name) or _in_the_mirror(snapshot, name) or await _in_the_queue(session, name)


def read_pod(file: Path, name: PodName) -> FoundPod:
    """The pod of this name in a file.

    Raises:
        UsageError: the file cannot be read, or has no pod or another one.
    """
    is_standard_input = str(file) == "/dev/stdin"  # reopened by name, a socket cannot be read
    shown = "standard input" if is_standard_input else str(file)
    try:
        with nullcontext(sys.stdin.buffer) if is_standard_input else file.open("rb") as opened:
            data = opened.read(POD_BYTES + 1)
        check_size(data, "a pod", most=POD_BYTES)
        pod = decode_json(_POD, data, "a pod")
    except OSError as error:
        raise UsageError(f"reading a pod from {shown!r}: {error.strerror}") from error
    except DecodeError as error:
        raise UsageError(f"reading a pod from {shown!r}: {error}") from error
    metadata = pod.metadata
    if (metadata.namespace, metadata.name) != (name.namespace, name.name):
        raise UsageError(
            f"reading a pod from {shown!r}: want {name}, got {f'{metadata.namespace}/{metadata.name}'!r:.300}"
        )
    return FoundPod(pod=pod, where=shown)


async def get_pod_from_api(session: Session, name: PodName, kubeconfig: Path | None) -> Pod:
    """The pod from the API server; the default kubeconfig is as in kubectl. Raises as `find_pod`."""
    # HTTP takes 0.2 s to import, and most pods are explained from the bus alone.
    from berth.kube.client import KubeClient  # noqa: PLC0415 - see above
    from berth.kube.writes import get_pod  # noqa: PLC0415 - the same
    from berth.leader.onecluster import read_cluster_id  # noqa: PLC0415 - the same

    async with await KubeClient.connect(kubeconfig, user_agent="berth-why") as client:
        served = await served_cluster(session)
        if served and served != await read_cluster_id(client):
            raise UsageError(
                f"asking for pod {str(name)!r}: NATS serves another cluster than that of "
                f"{str(kubeconfig or os.environ.get('KUBECONFIG') or '~/.kube/config')!r}"
            )
        pod = await get_pod(client, name.namespace, name.name)
    if pod is None:
        raise NotFoundError(f"looking for pod {str(name)!r}: the API server has no such pod")
    return pod


async def _in_the_queue(session: Session, name: PodName) -> FoundPod | None:
    """Unschedulable and gated pods are in the watcher's queue only."""
    try:
        pod = await waiting_pod(session, name)
    except BerthError:
        return None
    return None if pod is None else FoundPod(pod=pod, where="the watcher's queue")


async def _in_a_stream(session: Session, name: PodName) -> FoundPod | None:
    pending = await session.last(PENDING, name.filter("pending"))
    if pending is not None:
        return FoundPod(pod=decode(pending.data, Pending).pod, where=PENDING)
    ranked = await session.last(RANKED, name.filter("ranked"))
    return FoundPod(pod=decode(ranked.data, Ranked).pod, where=RANKED) if ranked is not None else None


def _in_the_mirror(snapshot: Snapshot, name: PodName) -> FoundPod | None:
    placed = (one.pod for row in range(snapshot.size) for one in snapshot.placed_on_row(row))
    for pod in chain(placed, (nominated.pod for nominated in snapshot.nominations())):
        if (pod.metadata.namespace, pod.metadata.name) == (name.namespace, name.name):
            return FoundPod(pod=pod, where="bucket cluster")
    return None


async def last_attempt(session: Session, name: PodName, pod: Pod) -> Attempt:
    """The attempt of the pod's last Decision, so that ties break as they did then; else attempt 0."""
    stored = await session.last(DECISIONS, name.filter("decision"))
    try:
        attempt = Attempt.parse(decode(stored.data, Decision).attempt) if stored is not None else None
    except DecodeError:
        attempt = None
    if attempt is not None and attempt.uid == pod.uid:
        return attempt
    return Attempt(uid=Uid(pod.uid), term=Term(0), n=0)


async def config_in_use(session: Session, pod: Pod) -> str:
    """The configuration digest in the last Decision of the pod's profile; empty without one."""
    stored = await session.last(DECISIONS, f"{PREFIX}.decision.{escape_token(pod.spec.scheduler_name)}.>")
    try:
        return decode(stored.data, Decision).config if stored is not None else ""
    except DecodeError:
        return ""
