"""``berth why``: explains a pod's placement from its last Decision, or from a cycle that runs now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from berth.api.config.configuration import EVERY_NODE, KubeSchedulerConfiguration
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS, RANKED
from berth.exits import UsageError
from berth.framework.cycle import rank_every_node
from berth.framework.plugincalls import pre_enqueue
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS
from berth.messages.attempts import Decision, Outcome
from berth.profiles.configuration import profiles_of
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.commands.config import Gates, Provider, ServicesConfig, configured, extenders_not_asked, named_file
from berth_cli.mirror import MirrorReader, open_mirror
from berth_cli.options import (
    EveryRow,
    NotFoundError,
    Output,
    OutputFormat,
    PodArgument,
    PodName,
    PodNamespace,
    parse_pod,
    print_document,
    run_command,
)
from berth_cli.pods import explain
from berth_cli.pods.explain import (
    RankedNow,
    Weights,
    gated_json,
    gated_lines,
    ranked_now_json,
    ranked_now_lines,
)
from berth_cli.pods.lookup import (
    ExplainedDecision,
    config_in_use,
    find_pod,
    get_pod_from_api,
    last_attempt,
    read_pod,
)
from berth_cli.pods.unplaced import KnownByDecision, KnownByWatcher, ask_the_cluster, explanation_of
from berth_cli.pods.waiting import may_be_helped, print_detail
from berth_cli.remedies.asking import advice_on
from berth_cli.remedies.rejections import remedies_of
from berth_cli.remedies.remedy import Advice
from berth_cli.rendering import note, plain, print_rich
from berth_cli.services import what_stops

app = typer.Typer()


Now = Annotated[bool, typer.Option("--now", help="Rank the pod now, on every node of the mirror.")]


Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Read the pod from this cluster; by default from KUBECONFIG's if berth does not know the pod.",
        envvar="BERTH_KUBECONFIG",
        show_default=False,
    ),
]


From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="With --now: the pod as JSON, for example from RANKED; - is standard input.",
        parser=named_file,
        show_default=False,
    ),
]


_NAME_THEIRS: Final = "name theirs with --config, --algorithm-provider and --feature-gates"


@app.command()
def why(  # noqa: PLR0913 - one parameter a flag, given by name
    pod: PodArgument,
    *,
    namespace: PodNamespace = None,
    now: Now = False,
    config: ServicesConfig = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    kubeconfig: Kubeconfig = None,
    pod_file: From = None,
    every_row: EveryRow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Print why a pod is on its node, or on no node.

    Every plugin, every reason, and the age of the data.
    """
    configuration = configured(config, algorithm_provider, feature_gates)
    explain_pod = _now if now else _why
    if pod_file is not None and (not now or kubeconfig is not None):
        raise typer.BadParameter("want it with --now, and without --kubeconfig", param_hint="--from")
    asked = _Asked(pod, namespace, kubeconfig, NatsServer(nats, nats_context), output, pod_file, every_row)
    run_command(explain_pod(asked, configuration))


@dataclass(frozen=True, slots=True)
class _Asked:
    pod: str
    namespace: str | None
    kubeconfig: Path | None
    server: NatsServer
    output: OutputFormat
    pod_file: Path | None = None
    every_row: bool = False


async def _why(asked: _Asked, configuration: KubeSchedulerConfiguration) -> None:
    name, kubeconfig, output = parse_pod(asked.pod, asked.namespace), asked.kubeconfig, asked.output
    async with open_session(asked.server, name="why", is_named=not output.is_document) as session:
        if kubeconfig is not None and await _print_if_gated(session, name, configuration, kubeconfig, output):
            return
        try:
            known = await explanation_of(session, name)
        except NotFoundError as nothing:
            await _print_from_the_cluster(session, name, asked, configuration, nothing)
            return
        if isinstance(known, KnownByWatcher):
            await _print_waiting(session, name, known, configuration, output)
            return
        decided = known.decided
        weights = weights_of(configuration, decided.decision)
        if not output.is_document:
            _print_decision(decided, weights, every_row=asked.every_row)
        advice = await _advice(session, name, known, configuration)
    if output.is_document:
        print_document({**explain.decision_json(decided, weights), **advice.as_json()}, output)
    else:
        print_rich(*advice.lines())


def _print_decision(decided: ExplainedDecision, weights: Weights, *, every_row: bool) -> None:
    print_rich(*explain.decision_lines(decided, weights, every_row=every_row))
    if decided.decision.candidates and not weights:
        print_rich(
            f"points are score x weight; the weights are unknown, since the configuration is another: {_NAME_THEIRS}"
        )


async def _advice(
    session: Session, name: PodName, known: KnownByDecision, configuration: KubeSchedulerConfiguration
) -> Advice:
    if known.decided.decision.outcome is not Outcome.UNSCHEDULABLE:
        return Advice()
    return await advice_on(session, name, configuration, known.pod)


async def _print_if_gated(
    session: Session, name: PodName, configuration: KubeSchedulerConfiguration, kubeconfig: Path, output: OutputFormat
) -> bool:
    """Print the reason if PreEnqueue gates the pod; returns whether it does."""
    found = await get_pod_from_api(session, name, kubeconfig)
    profile = profiles_of(configuration).get(found.spec.scheduler_name)
    status = SUCCESS if profile is None or found.spec.node_name else pre_enqueue(profile.pre_enqueues, found)
    if status.is_success:
        return False
    if output.is_document:
        print_document(gated_json(found, status), output)
    else:
        print_rich(gated_lines(found, status))
    return True


async def _print_waiting(
    session: Session,
    name: PodName,
    known: KnownByWatcher,
    configuration: KubeSchedulerConfiguration,
    output: OutputFormat,
) -> None:
    helped = may_be_helped(known.detail)
    advice = await advice_on(session, name, configuration, known.detail.object) if helped else Advice()
    print_detail(known.answer, known.detail, await what_stops(session), advice, output)


async def _print_from_the_cluster(
    session: Session,
    name: PodName,
    asked: _Asked,
    configuration: KubeSchedulerConfiguration,
    nothing: NotFoundError,
) -> None:
    """Raises as :func:`ask_the_cluster`."""
    found = await ask_the_cluster(session, name, asked.kubeconfig, profiles_of(configuration), nothing)
    if asked.output.is_document:
        print_document(found.as_json(), asked.output)
    else:
        print_rich(plain(f"{name} {found.sentence}"))


def weights_of(configuration: KubeSchedulerConfiguration, decision: Decision) -> Weights:
    """The weights of the Decision; empty if it was made under another configuration."""
    if decision.config != configuration.digest:
        return {}
    profile = profiles_of(configuration).get(decision.profile)
    return profile.weights if profile is not None else {}


async def _now(asked: _Asked, configuration: KubeSchedulerConfiguration) -> None:
    name, profiles = parse_pod(asked.pod, asked.namespace), profiles_of(configuration)
    sources = {source for profile in profiles.values() for source in profile.live_sources}
    async with (
        open_session(asked.server, name="why", is_named=not asked.output.is_document) as session,
        open_mirror(session, sources=sources) as mirror,
    ):
        if asked.pod_file is not None:
            found = read_pod(asked.pod_file, name)
        else:
            found = await find_pod(session, name, mirror.snapshot, asked.kubeconfig)
        # All nodes are reported, though a scorer may stop at a percentage of them.
        profile = replace(_profile(profiles, found.pod.spec.scheduler_name), percentage_of_nodes_to_score=EVERY_NODE)
        attempt = await last_attempt(session, name, found.pod)
        services_config = await config_in_use(session, found.pod)
        every = rank_every_node(found.pod, mirror.snapshot, profile, attempt=attempt)
        ranked = RankedNow(
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
    for sentence in extenders_not_asked(configuration):
        note(sentence)
    if services_config not in {"", configuration.digest}:
        note(
            f"ranked under configuration {configuration.digest}, the services decide under {services_config}: "
            f"{_NAME_THEIRS}"
        )
    if asked.output.is_document:
        print_document(ranked_now_json(ranked), asked.output)
    else:
        print_rich(*ranked_now_lines(ranked, every_row=asked.every_row))


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
