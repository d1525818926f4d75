"""``berth why``: explains a pod's placement from its last Decision, or from a cycle that runs now.

Plugins, NumPy and the reader of configurations take 0.3 s to import: only answers that need them import them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from berth.api.pod import Pod
from berth.bus.interface import Session
from berth.messages.attempts import Outcome
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.configflags import ConfigurationFlags
from berth_cli.options import (
    EveryRow,
    Gates,
    IsGroup,
    NotFoundError,
    Output,
    OutputFormat,
    PodArgument,
    PodName,
    PodNamespace,
    Provider,
    ServicesConfig,
    named_file,
    parse_pod,
    print_document,
    run_command,
)
from berth_cli.pods import explain
from berth_cli.pods.unplaced import KnownByWatcher, explanation_of
from berth_cli.pods.waiting import may_be_helped, print_detail
from berth_cli.remedies.remedy import Advice
from berth_cli.rendering import note, plain, print_rich
from berth_cli.services import what_stops

if TYPE_CHECKING:
    from berth_cli.pods.podgroups import ExplainedGroup

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
    group: IsGroup = False,
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

    Every plugin, every reason, and the age of the data. With --group: where the members of a PodGroup are, and why it
    waits; of both PodGroups where each dialect has one of the name.
    """
    if group and (now or kubeconfig is not None):
        raise typer.BadParameter("want it without --now and --kubeconfig", param_hint="--group")
    if pod_file is not None and (not now or kubeconfig is not None):
        raise typer.BadParameter("want it with --now, and without --kubeconfig", param_hint="--from")

    async def answer() -> None:  # a wrong name is an error of the command
        asked = _Asked(
            pod=parse_pod(pod, namespace, is_group=group),
            kubeconfig=kubeconfig,
            server=NatsServer(nats, nats_context),
            output=output,
            pod_file=pod_file,
            every_row=every_row,
            configuration=ConfigurationFlags(file=config, provider=algorithm_provider, gates=feature_gates),
        )
        if group:
            await _why_group(asked)
        else:
            await (_now(asked) if now else _why(asked))

    run_command(answer())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    pod: PodName
    kubeconfig: Path | None
    server: NatsServer
    output: OutputFormat
    pod_file: Path | None
    every_row: bool
    configuration: ConfigurationFlags


async def _why(asked: _Asked) -> None:
    name, output = asked.pod, asked.output
    async with open_session(asked.server, name="why", is_named=not output.is_document) as session:
        if asked.kubeconfig is not None and await _print_if_gated(session, asked, asked.kubeconfig):
            return
        try:
            known = await explanation_of(session, name)
        except NotFoundError as nothing:
            try:
                await _print_from_the_cluster(session, asked, nothing)
            except NotFoundError as error:
                from berth_cli.pods.podgroups import or_group  # noqa: PLC0415 - see the module

                raise await or_group(session, name, str(error)) from error
            return
        if isinstance(known, KnownByWatcher):
            detail = known.detail
            advice = await _advice(session, asked, detail.object) if may_be_helped(detail) else Advice()
            print_detail(known.answer, detail, await what_stops(session), advice, output)
            return
        decided = known.decided
        if not output.is_document:
            print_rich(*explain.decision_lines(decided, every_row=asked.every_row))
        waits = decided.decision.outcome in {Outcome.UNSCHEDULABLE, Outcome.ERROR}
        advice = await _advice(session, asked, known.pod) if waits else Advice()
    if output.is_document:
        print_document({**explain.decision_json(decided), **advice.as_json()}, output)
    else:
        print_rich(*advice.lines())


async def _why_group(asked: _Asked) -> None:
    from berth_cli.pods.podgroups import explain_groups, explained_json, explained_lines  # noqa: PLC0415 - see the module

    async with open_session(asked.server, name="why", is_named=not asked.output.is_document) as session:
        groups = await explain_groups(session, asked.pod.namespace, asked.pod.name)
        for at, explained in enumerate(groups):
            advice = await _advice_on_group(session, asked, explained)
            if asked.output.is_document:
                document = {**explained_json(explained), **advice.as_json()}
                print_document(document, asked.output, one_of_many=len(groups) > 1)
            else:
                apart = [""] if at else []
                print_rich(*apart, *explained_lines(explained, every_row=asked.every_row), *advice.lines())


async def _advice_on_group(session: Session, asked: _Asked, explained: ExplainedGroup) -> Advice:
    if not explained.unplaced:
        return Advice()
    from berth_cli.remedies.asking import open_advisory  # noqa: PLC0415 - see the module

    async with open_advisory(session, asked.configuration.read()) as advisory:
        return await advisory.on_group(explained)


async def _advice(session: Session, asked: _Asked, pod: Pod | None) -> Advice:
    from berth_cli.remedies.asking import advice_on  # noqa: PLC0415 - see the module

    return await advice_on(session, asked.pod, asked.configuration.read(), pod)


async def _print_if_gated(session: Session, asked: _Asked, kubeconfig: Path) -> bool:
    from berth_cli.pods.now import gated_json, gated_lines, gated_pod  # noqa: PLC0415 - see the module

    gated = await gated_pod(session, asked.pod, asked.configuration.read(), kubeconfig)
    if gated is None:
        return False
    if asked.output.is_document:
        print_document(gated_json(gated), asked.output)
    else:
        print_rich(gated_lines(gated))
    return True


async def _print_from_the_cluster(session: Session, asked: _Asked, nothing: NotFoundError) -> None:
    """Explain the pod by the API server. Raises as `ask_the_cluster`."""
    from berth_cli.pods.finding import ask_the_cluster  # noqa: PLC0415 - see the module

    found = await ask_the_cluster(
        session, asked.pod, asked.kubeconfig, asked.configuration.read().scheduler_names, nothing
    )
    if asked.output.is_document:
        print_document(found.as_json(), asked.output)
    else:
        print_rich(plain(f"{asked.pod} {found.sentence}"))


async def _now(asked: _Asked) -> None:
    from berth_cli.commands.config import extenders_not_asked  # noqa: PLC0415 - see the module
    from berth_cli.pods.now import AskedNow, rank_now, ranked_now_json, ranked_now_lines  # noqa: PLC0415 - the same

    configuration = asked.configuration.read()
    of = AskedNow(name=asked.pod, pod_file=asked.pod_file, kubeconfig=asked.kubeconfig)
    async with open_session(asked.server, name="why", is_named=not asked.output.is_document) as session:
        ranked = await rank_now(session, of, configuration)
    for sentence in extenders_not_asked(configuration):
        note(sentence)
    if ranked.services_config not in {"", ranked.config}:
        note(
            f"ranked under configuration {ranked.config}, the services decide under {ranked.services_config}: "
            f"{_NAME_THEIRS}"
        )
    if asked.output.is_document:
        print_document(ranked_now_json(ranked), asked.output)
    else:
        print_rich(*ranked_now_lines(ranked, every_row=asked.every_row))
