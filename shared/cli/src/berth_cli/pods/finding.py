"""Finds the pod itself: on the bus, in the watcher's queue, in a file, or on the API server."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from berth.api.devices import CLAIM_OF_POD, ResourceClaim
from berth.api.pod import Pod, PodResourceClaimStatus, is_gone_while_unbound
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS, PENDING, RANKED
from berth.cluster.snapshot import Snapshot
from berth.decoding import check_size, decode_json
from berth.errors import BerthError, DecodeError
from berth.exits import UsageError
from berth.kube.kubeconfig import is_configured
from berth.messages.attempts import Decision, Pending, Ranked
from berth.messages.encoding import decode
from berth.messages.subjects import PREFIX, Attempt, Term, Uid, escape_token
from berth_cli.bus import served_cluster
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.waiting import waiting_pod
from berth_cli.services import seen

POD_BYTES: Final = 8 * 1024 * 1024  # of a pod in a file: as large as a message may be
_KEPT: Final = "Decisions are kept for an hour"
_POD: Final = msgspec.json.Decoder(Pod)


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
    return await _in_a_stream(session, name) or in_the_mirror(snapshot, name) or await _in_the_queue(session, name)


def in_the_mirror(snapshot: Snapshot, name: PodName) -> FoundPod | None:
    placed = (one.pod for row in range(snapshot.size) for one in snapshot.placed_on_row(row))
    for pod in chain(placed, (nominated.pod for nominated in snapshot.nominations())):
        if (pod.metadata.namespace, pod.metadata.name) == (name.namespace, name.name):
            return FoundPod(pod=_with_claims(pod, snapshot), where="bucket cluster")
    return None


def _with_claims(pod: Pod, snapshot: Snapshot) -> Pod:
    """The mirror's pod with the names of the claims that were made for it, which only its claims have there."""
    if not any(each.resource_claim_template_name for each in pod.spec.resource_claims or ()):
        return pod
    made = [
        PodResourceClaimStatus(name=entry, resource_claim_name=claim.metadata.name)
        for claim in snapshot.objects(ResourceClaim)
        if any(owner.uid == pod.uid for owner in claim.metadata.owner_references or ())
        and (entry := (claim.metadata.annotations or {}).get(CLAIM_OF_POD, ""))
    ]
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=made))


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
    """Read the pod; the default kubeconfig is as in kubectl. Raises as `find_pod`."""
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
