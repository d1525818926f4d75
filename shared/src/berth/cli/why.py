"""``berth why``: why a pod is on its node or on none, from its last Decision, or from a cycle that runs now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from berth.api.config.configuration import EVERY_NODE, KubeSchedulerConfiguration
from berth.api.messages import Decision
from berth.bus.port import Session
from berth.bus.topology import DECISIONS, RANKED
from berth.cli import again, gated, reasons
from berth.cli.again import Again
from berth.cli.asking import Form, NatsUrl, Output, asking
from berth.cli.config import Gates, Provider, configured
from berth.cli.console import note, say_json, show
from berth.cli.ending import finish
from berth.cli.lastdecision import last_decision
from berth.cli.mirrored import Mirror, mirror
from berth.cli.podname import PodName, parse_pod
from berth.cli.podspec import digest_in_use, find_pod, last_attempt, pod_at_the_api
from berth.cli.scores import Weights
from berth.framework.everynode import rank_every_node
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS
from berth.service.configuration import profiles_of
from berth.service.exits import UsageError

Pod = Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="Which pod.", show_default=False)]
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
    pod: Pod,
    *,
    now: Now = False,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Form.TABLE,
    nats: NatsUrl = None,
) -> None:
    """Say why a pod is on its node, or why it is on none: every plugin, every reason, and how old the data was."""
    configuration = configured(config, algorithm_provider, feature_gates)
    ask = _now if now else _why
    finish(ask(pod, configuration, kubeconfig, output, nats))


async def _why(
    pod: str, configuration: KubeSchedulerConfiguration, kubeconfig: Path | None, form: Form, nats: str | None
) -> None:
    name = parse_pod(pod)
    async with asking(nats, name="why") as session:
        if kubeconfig is not None and await _is_gated(session, name, configuration, kubeconfig, form):
            return
        decided = await last_decision(session, name)
    weights = _weights(configuration, decided.decision)
    if form is Form.JSON:
        say_json(reasons.as_json(decided, weights))
        return
    show(*reasons.told(decided, weights))
    if decided.decision.candidates and not weights:
        show(f"points are score x weight; the weights are those of another configuration: {HOW_TO_NAME_IT}")


async def _is_gated(
    session: Session, name: PodName, configuration: KubeSchedulerConfiguration, kubeconfig: Path, form: Form
) -> bool:
    """Whether nobody looks for a node for the pod; then it has been told."""
    found = await pod_at_the_api(session, name, kubeconfig)
    profile = profiles_of(configuration).get(found.spec.scheduler_name)
    status = SUCCESS if profile is None or found.spec.node_name else profile.pre_enqueue(found)
    if status.is_success:
        return False
    if form is Form.JSON:
        say_json(gated.as_json(found, status))
    else:
        show(gated.told(found, status))
    return True


def _weights(configuration: KubeSchedulerConfiguration, decision: Decision) -> Weights:
    """The weights that the Decision was made with, when it was made under this very configuration."""
    if decision.config != configuration.digest:
        return {}
    profile = profiles_of(configuration).get(decision.profile)
    return profile.weights if profile is not None else {}


async def _now(
    pod: str, configuration: KubeSchedulerConfiguration, kubeconfig: Path | None, form: Form, nats: str | None
) -> None:
    name, profiles = parse_pod(pod), profiles_of(configuration)
    sources = {source for profile in profiles.values() for source in profile.live_sources}
    async with asking(nats, name="why") as session, mirror(session, sources=sources) as kept:
        found = await find_pod(session, name, kept.snapshot, kubeconfig)
        # Every node is told of, also where a scorer would stop at a percentage of them.
        profile = replace(_profile(profiles, found.pod.spec.scheduler_name), percentage_of_nodes_to_score=EVERY_NODE)
        attempt = await last_attempt(session, name, found.pod)
        services_config = await digest_in_use(session, found.pod)
        said = Again(
            pod=found.pod,
            stands_on=kept.snapshot.node_of(found.pod.uid) or "",
            found_in=found.where,
            weights=profile.weights,
            every=rank_every_node(found.pod, kept.snapshot, profile, attempt=attempt),
            view_age_seconds=await _age(session, kept),
            on_the_way=(await session.state(RANKED)).messages,
            gated=SUCCESS if found.pod.spec.node_name else profile.pre_enqueue(found.pod),
            config=configuration.digest,
            services_config=services_config,
        )
    if services_config not in {"", configuration.digest}:
        note(
            f"ranked under configuration {configuration.digest}, the services decide under {services_config}: "
            f"{HOW_TO_NAME_IT}"
        )
    if form is Form.JSON:
        say_json(again.as_json(said))
    else:
        show(*again.told(said))


def _profile(profiles: Mapping[str, Profile], scheduler: str) -> Profile:
    if scheduler not in profiles:
        known = ", ".join(profiles)
        raise UsageError(f"ranking for scheduler {scheduler!r}: the configuration has {known}: name it with --config")
    return profiles[scheduler]


async def _age(session: Session, kept: Mirror) -> float | None:
    """How long ago the mirror was confirmed, by NATS's own clock."""
    complete = kept.oldest_watermark()
    if complete is None:
        return None
    return max(0.0, ((await session.state(DECISIONS)).now - complete).total_seconds())
