"""``berth why``: why a pod is on its node or on none, from its last Decision, or from a cycle that runs now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from berth.api.config.configuration import EVERY_NODE, KubeSchedulerConfiguration
from berth.api.messages import Decision, decode, decoder
from berth.bus.port import Session
from berth.bus.topology import DECISIONS, PENDING, RANKED
from berth.cli import again, reasons
from berth.cli.again import Again
from berth.cli.asking import Form, NatsUrl, NoSuchThingError, Output, asking
from berth.cli.config import Gates, Provider, configured
from berth.cli.console import say_json, show
from berth.cli.ending import finish
from berth.cli.mirrored import Mirror, mirror
from berth.cli.podname import PodName, parse_pod
from berth.cli.podspec import find_pod, last_attempt
from berth.cli.reasons import Decided
from berth.cli.scores import Weights
from berth.cli.shown import ago
from berth.framework.everynode import rank_every_node
from berth.framework.profile import Profile
from berth.service.configuration import profiles_of
from berth.service.exits import UsageError

Pod = Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="Which pod.", show_default=False)]
Now = Annotated[bool, typer.Option("--now", help="Rank it again, on every node, as the mirror shows them now.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration of the services.", show_default=False),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="With --now: where the pod is read.", show_default=False),
]


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
    if now:
        finish(_now(pod, configuration, kubeconfig, output, nats))
    else:
        finish(_why(pod, configuration, output, nats))


async def _why(pod: str, configuration: KubeSchedulerConfiguration, form: Form, nats: str | None) -> None:
    name = parse_pod(pod)
    async with asking(nats, name="why") as session:
        decided = await last_decision(session, name)
    weights = _weights(configuration, decided.decision)
    if form is Form.JSON:
        say_json(reasons.as_json(decided, weights))
        return
    show(*reasons.told(decided, weights))
    if decided.decision.candidates and not weights:
        show("points are score x weight; the weights are those of another configuration: name it with --config")


async def last_decision(session: Session, name: PodName) -> Decided:
    """The pod's last Decision.

    Raises:
        NoSuchThingError: there is none; the text says where the pod is instead, as far as the bus knows.
        DecodeError: it cannot be read.
    """
    stored = await session.last(DECISIONS, name.filter("decision"))
    if stored is None:
        raise NoSuchThingError(f"looking for a Decision on pod {str(name)!r}: {await _where_it_is(session, name)}")
    now = (await session.state(DECISIONS)).now
    return Decided(decision=decode(stored.data, decoder(Decision)), at=stored.time, now=now)


async def _where_it_is(session: Session, name: PodName) -> str:
    for stream, stage, waits in ((PENDING, "pending", "to be ranked"), (RANKED, "ranked", "to be bound")):
        stored = await session.last(stream, name.filter(stage))
        if stored is not None:
            since = ago(stored.time, (await session.state(stream)).now)
            return f"there is none yet: it waits {waits}, asked for {since}"
    return "there is none, and nothing on the bus waits (Decisions are kept for an hour; is it a pod of berth's?)"


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
        said = Again(
            pod=found.pod,
            stands_on=kept.snapshot.node_of(found.pod.uid) or "",
            found_in=found.where,
            weights=profile.weights,
            every=rank_every_node(found.pod, kept.snapshot, profile, attempt=attempt),
            view_age_seconds=await _age(session, kept),
            on_the_way=(await session.state(RANKED)).messages,
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
    """How far the mirror is behind, by NATS's own clock."""
    complete = kept.oldest_watermark()
    if complete is None:
        return None
    return max(0.0, ((await session.state(DECISIONS)).now - complete).total_seconds())
