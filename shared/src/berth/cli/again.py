"""A pod ranked again, on every node, for ``berth why --now``: told to people and to programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table

from berth.api.messages import Rejection
from berth.api.pod import Pod
from berth.cli.console import below, columns, plain
from berth.cli.gated import held_back
from berth.cli.reasons import rejections_table
from berth.cli.scores import Weights, best_nodes, candidate_json, details
from berth.cli.shown import duration, is_current
from berth.framework.everynode import EveryNode
from berth.framework.status import SUCCESS, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
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


def told(again: Again) -> Iterator[RenderableType]:
    """For people: every node with its scores or with who refused it."""
    ranking, metadata = again.every.ranking, again.pod.metadata
    yield plain(f"{metadata.namespace}/{metadata.name} ", "bold").append(_now(again), style="not bold")
    yield below(_view(again))
    if ranking.error:
        yield below(ranking.error, "red")
        return
    if ranking.candidates:
        yield ""
        yield best_nodes(ranking.candidates, weights=again.weights)
        yield from details(ranking.candidates)
    refused = again.every.detail.refused
    if refused:
        yield from ("", rejections_table(counted(refused)), "", refused_table(refused))


def _now(again: Again) -> str:
    ranking = again.every.ranking
    stands = f"is on {again.stands_on}; " if again.stands_on else "is on no node; "
    if not again.gated.is_success:
        stands = f"is gated, nobody looks for a node ({held_back(again.gated)}); without that, "
    if ranking.error:
        return f"{stands}ranked now it would fail"
    if not ranking.candidates:
        return f"{stands}ranked now it would wait: {ranking.message}"
    return f"{stands}ranked now it would go to {ranking.candidates[0].node}"


def _view(again: Again) -> str:
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


def as_json(again: Again) -> dict[str, object]:
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
        "refused": list(_refused_json(again.every.detail.refused)),
        "message": ranking.message,
        "error": ranking.error,
        "gated": None if again.gated.is_success else {"plugin": again.gated.plugin, "reasons": again.gated.reasons},
        "config": again.config,
        "services_config": again.services_config,
    }


def _refused_json(refused: Mapping[str, Status]) -> Iterable[dict[str, object]]:
    for node, status in sorted(refused.items()):
        yield {"node": node, "plugin": status.plugin, "reasons": status.reasons, "code": status.code.name}
