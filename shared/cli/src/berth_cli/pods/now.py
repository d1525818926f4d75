"""Ranks a pod now on every node of the mirror, and explains the result as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from berth.api.config.configuration import EVERY_NODE, KubeSchedulerConfiguration
from berth.api.pod import Pod
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS, RANKED
from berth.exits import UsageError
from berth.framework.cycle import EveryNode, rank_every_node
from berth.framework.plugincalls import pre_enqueue
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Status
from berth.messages.attempts import Rejection
from berth.profiles.configuration import profiles_of
from berth_cli.mirror import MirrorReader, open_mirror
from berth_cli.options import PodName
from berth_cli.pods.choice import devices_by_claim, devices_text, possible_nodes
from berth_cli.pods.explain import (
    Weights,
    candidate_details,
    candidate_json,
    candidates_table,
    legend,
    rejections_table,
)
from berth_cli.pods.finding import config_in_use, find_pod, get_pod_from_api, last_attempt, read_pod
from berth_cli.remedies.rejections import remedies_of
from berth_cli.remedies.remedy import Remedy, remedy_lines
from berth_cli.rendering import MOST_ROWS, and_more, duration, indented, is_current, new_table, plain

_GATED = "gated"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedNow:
    """The pod to rank: of this name, in the file or the cluster of the kubeconfig if given, else on the bus."""

    name: PodName
    pod_file: Path | None
    kubeconfig: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedNow:
    pod: Pod
    node: str  # the pod's node in the mirror; empty without one
    found_in: str  # where the pod was found
    weights: Weights
    every: EveryNode
    view_age_seconds: float | None  # seconds since the mirror was confirmed; ``None`` without a watermark
    in_flight: int = 0  # the number of ranked pods that are not bound yet; the cycle does not count them
    gated: Status = SUCCESS  # the Status of PreEnqueue
    config: str = ""  # digest of this cycle's configuration
    services_config: str = ""  # digest of the services' configuration
    remedies: Sequence[Remedy] = ()  # advice if no node is feasible


def ranked_now_lines(now: RankedNow, *, every_row: bool = False) -> Iterator[RenderableType]:
    """The best nodes, the pod's present node, and the plugins that rejected others."""
    ranking, metadata = now.every.ranking, now.pod.metadata
    yield plain(f"{metadata.namespace}/{metadata.name} ", "bold").append_text(plain(_headline_now(now), "not bold"))
    yield indented(_mirror_line(now))
    if ranking.error:
        yield indented(ranking.error, "red")
        return
    most = None if every_row else MOST_ROWS
    if ranking.candidates:
        best, others = ranking.candidates[:most], ranking.candidates[most or len(ranking.candidates) :]
        shown = [*best, *(each for each in others if each.node == now.node)]
        yield ""
        yield candidates_table(shown, weights=now.weights, among=ranking.candidates)
        yield from and_more(len(ranking.candidates) - len(shown))
        yield from legend(shown)
        if devices := devices_text(ranking.devices):
            yield plain(f"devices on {ranking.candidates[0].node}: {devices}")
        yield from candidate_details(shown)
    rejected = now.every.detail.node_to_status
    if rejected:
        names = sorted(rejected, key=lambda node: (node != now.node, node))[:most]
        yield from ("", rejections_table(rejections_of(rejected)), "")
        yield rejected_nodes_table({node: rejected[node] for node in names})
        yield from and_more(len(rejected) - len(names))
    yield from remedy_lines(now.remedies)


def _headline_now(now: RankedNow) -> str:
    ranking = now.every.ranking
    stands = f"is on {now.node}; " if now.node else "is on no node; "
    if not now.gated.is_success:
        stands = f"is gated and not scheduled ({gate_text(now.gated)}); without that, "
    if ranking.error:
        return f"{stands}ranked now it would fail"
    if not ranking.candidates:
        return f"{stands}ranked now it would wait: {ranking.message}"
    return f"{stands}ranked now it would go to {ranking.candidates[0].node}"


def _mirror_line(now: RankedNow) -> str:
    ranking, age = now.every.ranking, now.view_age_seconds
    view = "the mirror has no watermark, its age is unknown" if age is None else f"the data is {_how_old(age)}"
    uncounted = f", {now.in_flight} ranked pods that are not bound yet are not counted" if now.in_flight else ""
    return f"{possible_nodes(ranking, 'are')}; {view}{uncounted}; the pod is from {now.found_in}"


def _how_old(age: float) -> str:
    return "current" if is_current(age) else f"{duration(age)} old, so the watcher is behind"


def rejections_of(rejected: Mapping[str, Status]) -> list[Rejection]:
    """Rejections by plugin and reason, the most frequent first."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for node, status in rejected.items():
        for reason in status.reasons:
            nodes.setdefault((status.plugin, reason), []).append(node)
    groups = sorted(nodes.items(), key=lambda group: (-len(group[1]), group[0]))
    return [
        Rejection(plugin=plugin, reason=reason, nodes=len(names), examples=names[:3])
        for (plugin, reason), names in groups
    ]


def rejected_nodes_table(rejected: Mapping[str, Status]) -> Table:
    table = new_table("REJECTED", "PLUGIN", "REASON")
    for node, status in rejected.items():
        table.add_row(*map(plain, (node, status.plugin, ", ".join(status.reasons))))
    return table


def ranked_now_json(now: RankedNow) -> dict[str, object]:
    ranking, metadata = now.every.ranking, now.pod.metadata
    return {
        "pod": f"{metadata.namespace}/{metadata.name}",
        "uid": metadata.uid,
        "node": now.node,
        "found_in": now.found_in,
        "view_age_seconds": now.view_age_seconds,
        "view_is_current": now.view_age_seconds is not None and is_current(now.view_age_seconds),
        "on_the_way": now.in_flight,
        "evaluated": ranking.evaluated,
        "feasible": ranking.feasible,
        "nodes": ranking.nodes,
        "nominated_first": ranking.nominated_first,
        "candidates": [candidate_json(candidate, now.weights) for candidate in ranking.candidates],
        "devices": devices_by_claim(ranking.devices),
        "refused": list(_refused_json(now.every.detail.node_to_status)),
        "message": ranking.message,
        "error": ranking.error,
        "gated": None if now.gated.is_success else {"plugin": now.gated.plugin, "reasons": now.gated.reasons},
        "config": now.config,
        "services_config": now.services_config,
        "remedies": list(now.remedies),
    }


def _refused_json(rejected: Mapping[str, Status]) -> Iterable[dict[str, object]]:
    for node, status in sorted(rejected.items()):
        yield {"node": node, "plugin": status.plugin, "reasons": status.reasons, "code": status.code.name}


async def rank_now(session: Session, asked: AskedNow, configuration: KubeSchedulerConfiguration) -> RankedNow:
    """Rank the pod on the mirror's present state.

    Raises:
        UsageError: the configuration has no profile for the pod, or as `find_pod` and `read_pod`.
        NotFoundError, KubeconfigError, TemporaryError: as `find_pod`.
    """
    profiles = profiles_of(configuration)
    sources = {source for profile in profiles.values() for source in profile.live_sources}
    async with open_mirror(session, sources=sources) as mirror:
        if asked.pod_file is not None:
            found = read_pod(asked.pod_file, asked.name)
        else:
            found = await find_pod(session, asked.name, mirror.snapshot, asked.kubeconfig)
        # All nodes are reported, though a scorer may stop at a percentage of them.
        profile = replace(_profile(profiles, found.pod.spec.scheduler_name), percentage_of_nodes_to_score=EVERY_NODE)
        attempt = await last_attempt(session, asked.name, found.pod)
        services_config = await config_in_use(session, found.pod)
        every = rank_every_node(found.pod, mirror.snapshot, profile, attempt=attempt)
        return RankedNow(
            pod=found.pod,
            node=mirror.snapshot.node_of(found.pod.uid) or "",
            found_in=found.where,
            weights=profile.weights,
            every=every,
            remedies=[] if every.ranking.candidates else remedies_of(found.pod, mirror.snapshot, profile),
            view_age_seconds=await _age(session, mirror),
            in_flight=(await session.state(RANKED)).messages,
            gated=SUCCESS if found.pod.spec.node_name else pre_enqueue(profile.pre_enqueues, found.pod),
            config=configuration.digest,
            services_config=services_config,
        )


def _profile(profiles: Mapping[str, Profile], scheduler: str) -> Profile:
    if scheduler not in profiles:
        known = ", ".join(profiles)
        raise UsageError(f"ranking for scheduler {scheduler!r}: the configuration has {known}: name it with --config")
    return profiles[scheduler]


async def _age(session: Session, mirror: MirrorReader) -> float | None:
    """Seconds since the oldest watermark, by NATS's clock."""
    complete = mirror.oldest_watermark()
    if complete is None:
        return None
    return max(0.0, ((await session.state(DECISIONS)).now - complete).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedPod:
    pod: Pod
    status: Status


async def gated_pod(
    session: Session, name: PodName, configuration: KubeSchedulerConfiguration, kubeconfig: Path
) -> GatedPod | None:
    """The pod of the API server, if PreEnqueue gates it. Raises as `get_pod_from_api`."""
    found = await get_pod_from_api(session, name, kubeconfig)
    profile = profiles_of(configuration).get(found.spec.scheduler_name)
    status = SUCCESS if profile is None or found.spec.node_name else pre_enqueue(profile.pre_enqueues, found)
    return None if status.is_success else GatedPod(pod=found, status=status)


def gated_lines(gated: GatedPod) -> Text:
    metadata = gated.pod.metadata
    name = plain(f"{metadata.namespace}/{metadata.name} ", "bold")
    return name.append_text(plain(f"is gated and not scheduled: {gate_text(gated.status)}", "yellow not bold"))


def gate_text(status: Status) -> str:
    return f"{status.plugin}: {', '.join(status.reasons)}"


def gated_json(gated: GatedPod) -> dict[str, object]:
    metadata, status = gated.pod.metadata, gated.status
    return {
        "pod": f"{metadata.namespace}/{metadata.name}",
        "uid": metadata.uid,
        "outcome": _GATED,
        "node": "",
        "message": ", ".join(status.reasons),
        "blockers": [status.plugin],
    }
