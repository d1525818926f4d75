"""Advice on a pod, from its last Decision, the pod itself if found, and the mirror."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.pod import Pod, priority_of
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS
from berth.cluster.nodes import Mask
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.framework.profile import Profile
from berth.messages.attempts import Decision, GroupResult, Outcome
from berth.messages.encoding import decode
from berth.messages.livedata import LiveSource
from berth.profiles.configuration import profiles_of
from berth_cli.mirror import open_mirror
from berth_cli.options import PodName
from berth_cli.pods.finding import pod_on_the_bus
from berth_cli.pods.podgroups import ExplainedGroup, GroupSummary
from berth_cli.remedies.rejections import remedies_by_reasons, remedies_of
from berth_cli.remedies.remedy import Advice, Remedy

OTHER_CONFIGURATION: Final = (
    "what would help is unknown, because the pod was rejected under another configuration: name it with --config, "
    "--algorithm-provider and --feature-gates"
)
NO_POD: Final = "the pod's requests are unknown: no leading watcher knows the pod"
ANOTHER_POD: Final = "what would help is unknown: the last Decision is on an earlier pod of this name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """``profiles`` are made once."""

    session: Session
    snapshot: Snapshot
    digest: str
    profiles: Mapping[str, Profile]

    async def on(self, name: PodName, pod: Pod | None = None) -> Advice:
        """The advice on this pod; empty unless its last Decision found no feasible node, or an error.

        ``pod``: the pod, if the watcher has sent it already.
        """
        stored = await self.session.last(DECISIONS, name.filter("decision"))
        try:
            decision = decode(stored.data, Decision) if stored is not None else None
        except DecodeError:
            return Advice()
        if decision is None or decision.outcome not in {Outcome.UNSCHEDULABLE, Outcome.ERROR}:
            return Advice()
        profile = self.profiles.get(decision.profile)
        if decision.config != self.digest or profile is None:
            return Advice(missing=OTHER_CONFIGURATION)
        if pod is None and (found := await pod_on_the_bus(self.session, name, self.snapshot)) is not None:
            pod = found.pod
        if pod is not None and pod.uid != decision.uid:
            return Advice(missing=ANOTHER_POD)
        is_error = decision.outcome is Outcome.ERROR
        if pod is None:
            remedies = remedies_by_reasons(decision.rejections, self.snapshot, profile)
            return Advice() if is_error else Advice(remedies=remedies, missing=NO_POD)
        return Advice(remedies=remedies_of(pod, self.snapshot, profile, only_errors=is_error))

    async def on_group(self, explained: ExplainedGroup) -> Advice:
        """The advice on one member that had no place, with its name. Empty if no node rejected it."""
        if explained.decision is None or not explained.unplaced:
            return Advice()
        if explained.decision.config != self.digest:
            return Advice(missing=OTHER_CONFIGURATION)
        name, result = explained.unplaced, explained.decision.group or GroupResult()
        named = PodName(namespace=explained.summary.key.namespace, name=name)
        found = await pod_on_the_bus(self.session, named, self.snapshot)
        profile = self.profiles.get(found.pod.spec.scheduler_name) if found is not None else None
        if found is None or profile is None:
            return Advice()
        among, where = None, ""
        if result.domain and explained.summary.is_in_one_domain:
            among = _rows_with(self.snapshot, result.topology_key, result.domain)
            where = f" in {result.topology_key} {result.domain}"
        remedies = remedies_of(found.pod, self.snapshot, profile, among=among)
        more = result.need - sum(each.placed for each in result.classes)
        if not remedies or result.need <= 1:
            return Advice(remedies=remedies)
        kept = "" if among is None else _not_evicted(explained.summary, self.snapshot, among, result.topology_key)
        if remedies[0].is_passing and more > 0:
            beside = _beside_the_others(remedies[0], f"{name} alone", result.need, more, where)
            return Advice(remedies=[beside], missing=kept)
        alone = f"that is about {name} alone: {result.need} members need room together{where}"
        return Advice(remedies=remedies, missing="; ".join(filter(None, (alone, kept))))


def _rows_with(snapshot: Snapshot, key: str, value: str) -> Mask:
    """bool[rows]: the nodes with this label."""
    column = snapshot.label_column(key)
    if value not in column.values:
        return np.zeros(snapshot.size, dtype=np.bool_)
    found: Mask = column.codes[: snapshot.size] == column.values.index(value)
    return found


def _not_evicted(summary: GroupSummary, snapshot: Snapshot, among: Mask, key: str) -> str:
    """Why pods of lower priority on these nodes stay; empty without any, or if they may be evicted for the group."""
    topology, row = summary.group.topology if summary.group is not None else None, summary.row
    if topology is None or row is None:
        return ""
    placed = (each.pod for at in np.flatnonzero(among).tolist() for each in snapshot.placed_on_row(at))
    if all(priority_of(pod) >= row.priority for pod in placed):
        return ""
    return f"pods of lower priority run there: none is evicted for a group that requires one {key}"


def _beside_the_others(alone: Remedy, name: str, need: int, more: int, where: str) -> Remedy:
    """The remedy for a group of which any member alone has a node; ``more`` members are needed than have a place."""
    members = "1 more member" if more == 1 else f"{more} more members"
    have = "has" if need - more == 1 else "have"
    beside = f"beside the {need - more} that {have} a place" if more < need else "at the same time"
    text = f"room for {members}{where} {beside}; for {name} {alone.text}"
    return msgspec.structs.replace(alone, text=text)


@asynccontextmanager
async def open_advisory(session: Session, configuration: KubeSchedulerConfiguration) -> AsyncIterator[Advisory]:
    profiles = profiles_of(configuration)
    async with open_mirror(session, sources=sources_of_filters(profiles.values())) as mirror:
        yield Advisory(session=session, snapshot=mirror.snapshot, digest=configuration.digest, profiles=profiles)


def sources_of_filters(profiles: Iterable[Profile]) -> set[LiveSource]:
    """The live data that filters read; without it, a mirror does not show their rejections."""
    return {source for profile in profiles for source in profile.live_sources_of_filters}


async def advice_on(
    session: Session, name: PodName, configuration: KubeSchedulerConfiguration, pod: Pod | None = None
) -> Advice:
    """Advice from a mirror read for this pod. ``pod`` is as in :meth:`Advisory.on`."""
    async with open_advisory(session, configuration) as advisory:
        return await advisory.on(name, pod)
