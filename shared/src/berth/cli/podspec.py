"""Where a command finds a pod as it is: at the API server of a kubeconfig, or in what the bus has of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from berth.api.errors import DecodeError
from berth.api.identity import Attempt, Term, Uid
from berth.api.messages import Decision, Pending, Ranked, decode, decoder
from berth.api.pod import Pod
from berth.api.subjects import PREFIX, escape_token
from berth.bus.port import Session
from berth.bus.topology import DECISIONS, PENDING, RANKED
from berth.cli.asking import NoSuchThingError
from berth.cli.podname import PodName
from berth.cluster.snapshot import Snapshot
from berth.kube.client import KubeClient
from berth.kube.pods import get_pod
from berth.service.exits import UsageError
from berth.service.pairing import read_cluster_id
from berth.service.terms import read_served_cluster

_PENDING: Final = decoder(Pending)
_RANKED: Final = decoder(Ranked)
_DECISION: Final = decoder(Decision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A pod, and where it was found, in words."""

    pod: Pod
    where: str


async def find_pod(session: Session, name: PodName, snapshot: Snapshot, kubeconfig: Path | None) -> Found:
    """The pod as it is.

    Raises:
        NoSuchThingError: it is nowhere.
        UsageError: the kubeconfig is another cluster's.
        KubeconfigError, TemporaryError: the API server cannot be asked.
    """
    if kubeconfig is not None:
        return Found(pod=await pod_at_the_api(session, name, kubeconfig), where="the API server")
    found = await _on_the_way(session, name) or _in_the_mirror(snapshot, name)
    if found is None:
        raise NoSuchThingError(
            f"looking for pod {str(name)!r}: no message and no mirror entry on the bus has it (a pod that sleeps until "
            "something changes, or is gated, is in the watcher only): name the cluster with --kubeconfig"
        )
    return found


async def pod_at_the_api(session: Session, name: PodName, kubeconfig: Path) -> Pod:
    """The pod as the API server has it. Raises as :func:`find_pod`."""
    async with await KubeClient.connect(kubeconfig, user_agent="berth-why") as client:
        served = await read_served_cluster(session)
        if served and served != await read_cluster_id(client):
            raise UsageError(
                f"asking for pod {str(name)!r}: NATS serves another cluster than {str(kubeconfig)!r} names"
            )
        pod = await get_pod(client, name.namespace, name.name)
    if pod is None:
        raise NoSuchThingError(f"looking for pod {str(name)!r}: the API server has no such pod")
    return pod


async def _on_the_way(session: Session, name: PodName) -> Found | None:
    pending = await session.last(PENDING, name.filter("pending"))
    if pending is not None:
        return Found(pod=decode(pending.data, _PENDING).pod, where=PENDING)
    ranked = await session.last(RANKED, name.filter("ranked"))
    return Found(pod=decode(ranked.data, _RANKED).pod, where=RANKED) if ranked is not None else None


def _in_the_mirror(snapshot: Snapshot, name: PodName) -> Found | None:
    placed = (one.pod for row in range(snapshot.size) for one in snapshot.placed_on_row(row))
    for pod in chain(placed, (nominated.pod for nominated in snapshot.nominations())):
        if (pod.metadata.namespace, pod.metadata.name) == (name.namespace, name.name):
            return Found(pod=pod, where="bucket cluster")
    return None


async def last_attempt(session: Session, name: PodName, pod: Pod) -> Attempt:
    """The attempt of the pod's last Decision, so that equal nodes fall as they fell then; else one that never was."""
    stored = await session.last(DECISIONS, name.filter("decision"))
    try:
        attempt = Attempt.parse(decode(stored.data, _DECISION).attempt) if stored is not None else None
    except DecodeError:
        attempt = None
    if attempt is not None and attempt.uid == pod.uid:
        return attempt
    return Attempt(uid=Uid(pod.uid), term=Term(0), n=0)


async def digest_in_use(session: Session, pod: Pod) -> str:
    """The digest of the configuration under which the pod's profile was decided by last; empty when nobody was."""
    stored = await session.last(DECISIONS, f"{PREFIX}.decision.{escape_token(pod.spec.scheduler_name)}.>")
    try:
        return decode(stored.data, _DECISION).config if stored is not None else ""
    except DecodeError:
        return ""
