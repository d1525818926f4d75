"""A pod that is left alone, as PreEnqueue has it, for ``berth why``: told to people and to programs. Pure.

A pod ranked again, on every node, for ``berth why --now``: told to people and to programs. Pure.

``berth why``: why a pod is on its node or on none, from its last Decision, or from a cycle that runs now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from berth.api.config.configuration import EVERY_NODE, KubeSchedulerConfiguration
from berth.api.messages import Decision, Rejection
from berth.api.pod import Pod
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS, RANKED
from berth.cli import reasons
from berth.cli.commands.config import Gates, Provider, configured
from berth.cli.decisions import digest_in_use, find_pod, last_attempt, last_decision, pod_at_the_api
from berth.cli.exits import finish
from berth.cli.lookup import NatsUrl, Output, OutputFormat, PodName, asking, parse_pod
from berth.cli.mirrored import MirrorReader, mirror
from berth.cli.reasons import Weights, best_nodes, candidate_json, details, rejections_table
from berth.cli.rendering import below, columns, duration, is_current, note, plain, say_json, show
from berth.framework.cycle import EveryNode, rank_every_node
from berth.framework.enqueue import pre_enqueue
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Status
from berth.process.configuration import profiles_of
from berth.process.exits import UsageError

OUTCOME = "gated"


def gated_lines(pod: Pod, status: Status) -> Text:
    """For people: who holds the pod back, and why."""
    metadata = pod.metadata
    name = plain(f"{metadata.namespace}/{metadata.name} ", "bold")
    return name.append(f"is gated, nobody looks for a node: {held_back(status)}", style="yellow not bold")


def held_back(status: Status) -> str:
    """Who holds it back, with the reasons."""
    return f"{status.plugin}: {', '.join(status.reasons)}"


def gated_json(pod: Pod, status: Status) -> dict[str, object]:
    """The same for programs."""
    metadata = pod.metadata
    return {
        "pod": f"{metadata.namespace}/{metadata.name}",
        "uid": metadata.uid,
        "outcome": OUTCOME,
        "node": "",
        "message": ", ".join(status.reasons),
        "blockers": [status.plugin],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedAgain:
    """What a cycle says now.

    ``stands_on`` is the node on which the mirror shows the pod. ``found_in`` is where the pod was found;
    ``view_age_seconds`` is how long ago the mirror was confirmed, ``None`` when it does not say; ``on_the_way`` is how
    many pods are ranked and not yet bound: they are not counted here. ``gated`` is what PreEnqueue says; ``config`` and
    ``services_config`` are digests: of the configuration used here, and of that in which the services decide.
    """

    pod: Pod
    stands_on: str
    found_in: str
    weights: Weights
    every: EveryNode
    view_age_seconds: float | None
    on_the_way: int = 0
    gated: Status = SUCCESS
    config: str = ""
    services_config: str = ""


def ranked_again_lines(again: RankedAgain) -> Iterator[RenderableType]:
    """For people: every node with its scores or with who refused it."""
    ranking, metadata = again.every.ranking, again.pod.metadata
    yield plain(f"{metadata.namespace}/{metadata.name} ", "bold").append(_headline_now(again), style="not bold")
    yield below(_view(again))
    if ranking.error:
        yield below(ranking.error, "red")
        return
    if ranking.candidates:
        yield ""
        yield best_nodes(ranking.candidates, weights=again.weights)
        yield from details(ranking.candidates)
    refused = again.every.detail.node_to_status
    if refused:
        yield from ("", rejections_table(counted(refused)), "", refused_table(refused))


def _headline_now(again: RankedAgain) -> str:
    ranking = again.every.ranking
    stands = f"is on {again.stands_on}; " if again.stands_on else "is on no node; "
    if not again.gated.is_success:
        stands = f"is gated, nobody looks for a node ({held_back(again.gated)}); without that, "
    if ranking.error:
        return f"{stands}ranked now it would fail"
    if not ranking.candidates:
        return f"{stands}ranked now it would wait: {ranking.message}"
    return f"{stands}ranked now it would go to {ranking.candidates[0].node}"


def _view(again: RankedAgain) -> str:
    ranking, age = again.every.ranking, again.view_age_seconds
    view = "no watermark says how old the mirror is" if age is None else f"the mirror is {_how_old(age)}"
    others = f", {again.on_the_way} pods on their way are not counted" if again.on_the_way else ""
    possible = f"{ranking.feasible} of {ranking.evaluated} nodes are possible"
    return f"{possible}; {view}{others}; the pod is from {again.found_in}"


def _how_old(age: float) -> str:
    return f"current (confirmed {duration(age)} ago)" if is_current(age) else f"{duration(age)} old"


def counted(refused: Mapping[str, Status]) -> list[Rejection]:
    """The refusals by plugin and reason, the most frequent first."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for node, status in refused.items():
        for reason in status.reasons:
            nodes.setdefault((status.plugin, reason), []).append(node)
    groups = sorted(nodes.items(), key=lambda group: (-len(group[1]), group[0]))
    return [
        Rejection(plugin=plugin, reason=reason, nodes=len(names), examples=names[:3])
        for (plugin, reason), names in groups
    ]


def refused_table(refused: Mapping[str, Status]) -> Table:
    """A line a node: who refused it, and why."""
    table = columns("REFUSED", "PLUGIN", "REASON")
    for node, status in sorted(refused.items()):
        table.add_row(*map(plain, (node, status.plugin, ", ".join(status.reasons))))
    return table


def ranked_again_json(again: RankedAgain) -> dict[str, object]:
    """For programs: the same, every node."""
    ranking, metadata = again.every.ranking, again.pod.metadata
    return {
        "pod": f"{metadata.namespace}/{metadata.name}",
        "uid": metadata.uid,
        "node": again.stands_on,
        "found_in": again.found_in,
        "view_age_seconds": again.view_age_seconds,
        "on_the_way": again.on_the_way,
        "evaluated": ranking.evaluated,
        "feasible": ranking.feasible,
        "candidates": [candidate_json(candidate, again.weights) for candidate in ranking.candidates],
        "refused": list(_refused_json(again.every.detail.node_to_status)),
        "message": ranking.message,
        "error": ranking.error,
        "gated": None if again.gated.is_success else {"plugin": again.gated.plugin, "reasons": again.gated.reasons},
        "config": again.config,
        "services_config": again.services_config,
    }


def _refused_json(refused: Mapping[str, Status]) -> Iterable[dict[str, object]]:
    for node, status in sorted(refused.items()):
        yield {"node": node, "plugin": status.plugin, "reasons": status.reasons, "code": status.code.name}


PodArgument = Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="Which pod.", show_default=False)]

Now = Annotated[bool, typer.Option("--now", help="Rank it again, on every node, as the mirror shows them now.")]

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration of the services.",
        envvar="BERTH_CONFIG",
        show_default=False,
    ),
]

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Where the pod is read: one that waits without a message is nowhere else.",
        show_default=False,
    ),
]

HOW_TO_NAME_IT: Final = "name theirs with --config, --algorithm-provider and --feature-gates"


def why(  # noqa: PLR0913 - one parameter a flag, given by name
    pod: PodArgument,
    *,
    now: Now = False,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    kubeconfig: Kubeconfig = None,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
) -> None:
    """Say why a pod is on its node, or why it is on none: every plugin, every reason, and how old the data was."""
    configuration = configured(config, algorithm_provider, feature_gates)
    ask = _now if now else _why
    finish(ask(pod, configuration, kubeconfig, output, nats))


async def _why(
    pod: str, configuration: KubeSchedulerConfiguration, kubeconfig: Path | None, form: OutputFormat, nats: str | None
) -> None:
    name = parse_pod(pod)
    async with asking(nats, name="why") as session:
        if kubeconfig is not None and await _is_gated(session, name, configuration, kubeconfig, form):
            return
        decided = await last_decision(session, name)
    weights = _weights(configuration, decided.decision)
    if form is OutputFormat.JSON:
        say_json(reasons.as_json(decided, weights))
        return
    show(*reasons.told(decided, weights))
    if decided.decision.candidates and not weights:
        show(f"points are score x weight; the weights are those of another configuration: {HOW_TO_NAME_IT}")


async def _is_gated(
    session: Session, name: PodName, configuration: KubeSchedulerConfiguration, kubeconfig: Path, form: OutputFormat
) -> bool:
    """Whether nobody looks for a node for the pod; then it has been told."""
    found = await pod_at_the_api(session, name, kubeconfig)
    profile = profiles_of(configuration).get(found.spec.scheduler_name)
    status = SUCCESS if profile is None or found.spec.node_name else pre_enqueue(profile, found)
    if status.is_success:
        return False
    if form is OutputFormat.JSON:
        say_json(gated_json(found, status))
    else:
        show(gated_lines(found, status))
    return True


def _weights(configuration: KubeSchedulerConfiguration, decision: Decision) -> Weights:
    """The weights that the Decision was made with, when it was made under this very configuration."""
    if decision.config != configuration.digest:
        return {}
    profile = profiles_of(configuration).get(decision.profile)
    return profile.weights if profile is not None else {}


async def _now(
    pod: str, configuration: KubeSchedulerConfiguration, kubeconfig: Path | None, form: OutputFormat, nats: str | None
) -> None:
    name, profiles = parse_pod(pod), profiles_of(configuration)
    sources = {source for profile in profiles.values() for source in profile.live_sources}
    async with asking(nats, name="why") as session, mirror(session, sources=sources) as kept:
        found = await find_pod(session, name, kept.snapshot, kubeconfig)
        # Every node is told of, also where a scorer would stop at a percentage of them.
        profile = replace(_profile(profiles, found.pod.spec.scheduler_name), percentage_of_nodes_to_score=EVERY_NODE)
        attempt = await last_attempt(session, name, found.pod)
        services_config = await digest_in_use(session, found.pod)
        said = RankedAgain(
            pod=found.pod,
            stands_on=kept.snapshot.node_of(found.pod.uid) or "",
            found_in=found.where,
            weights=profile.weights,
            every=rank_every_node(found.pod, kept.snapshot, profile, attempt=attempt),
            view_age_seconds=await _age(session, kept),
            on_the_way=(await session.state(RANKED)).messages,
            gated=SUCCESS if found.pod.spec.node_name else pre_enqueue(profile, found.pod),
            config=configuration.digest,
            services_config=services_config,
        )
    if services_config not in {"", configuration.digest}:
        note(
            f"ranked under configuration {configuration.digest}, the services decide under {services_config}: "
            f"{HOW_TO_NAME_IT}"
        )
    if form is OutputFormat.JSON:
        say_json(ranked_again_json(said))
    else:
        show(*ranked_again_lines(said))


def _profile(profiles: Mapping[str, Profile], scheduler: str) -> Profile:
    if scheduler not in profiles:
        known = ", ".join(profiles)
        raise UsageError(f"ranking for scheduler {scheduler!r}: the configuration has {known}: name it with --config")
    return profiles[scheduler]


async def _age(session: Session, kept: MirrorReader) -> float | None:
    """How long ago the mirror was confirmed, by NATS's own clock."""
    complete = kept.oldest_watermark()
    if complete is None:
        return None
    return max(0.0, ((await session.state(DECISIONS)).now - complete).total_seconds())
