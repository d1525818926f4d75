"""Groups unschedulable pods by the plugins that reject them, with advice on one pod of each group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import RenderableType

from berth.bus.interface import Session
from berth.messages.queue import WaitingPod
from berth_cli.configflags import ConfigurationFlags
from berth_cli.options import PodName
from berth_cli.remedies.remedy import Advice
from berth_cli.rendering import indented, plain

MOST_GROUPS: Final = 5  # advice is given on the largest groups only


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedGroup:
    """A group of rejected pods; the advice is on ``example``."""

    plugins: tuple[str, ...]
    pods: int
    example: PodName
    advice: Advice

    def as_json(self) -> dict[str, object]:
        return {
            "plugins": self.plugins,
            "pods": self.pods,
            "example": str(self.example),
            **self.advice.as_json(),
        }


def grouped(pods: Iterable[WaitingPod]) -> list[tuple[tuple[str, ...], list[WaitingPod]]]:
    """The unschedulable pods by the plugins that rejected them, the largest groups first.

    PodGroups are left out: what would help one of their pods may not help all.
    """
    groups: dict[tuple[str, ...], list[WaitingPod]] = {}
    for pod in pods:
        if pod.queue == "unschedulable" and pod.plugins and pod.members is None:
            groups.setdefault(tuple(pod.plugins), []).append(pod)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


async def advise_groups(
    session: Session, pods: Sequence[WaitingPod], configuration: ConfigurationFlags
) -> list[RefusedGroup]:
    """Add advice on one pod of each group. Mirror and configuration are read only if there is a group."""
    groups = grouped(pods)[:MOST_GROUPS]
    if not groups:
        return []
    from berth_cli.remedies.asking import open_advisory  # noqa: PLC0415 - imports every plugin

    async with open_advisory(session, configuration.read()) as advisory:
        return [
            RefusedGroup(plugins=plugins, pods=len(of), example=example, advice=await advisory.on(example))
            for plugins, of in groups
            if (example := PodName(namespace=of[0].namespace, name=of[0].name))
        ]


def group_lines(groups: Iterable[RefusedGroup]) -> Iterator[RenderableType]:
    """Groups without advice are left out."""
    missing: dict[str, None] = {}
    for group in groups:
        if group.advice.missing:
            missing[group.advice.missing] = None
        if not group.advice.remedies:
            continue
        pods = str(group.example) if group.pods == 1 else f"{group.pods} pods, such as {group.example}"
        yield ""
        yield plain(f"{pods}, refused by {', '.join(group.plugins)}: what would help")
        yield from (indented(remedy.sentence) for remedy in group.advice.remedies)
    if missing:
        yield ""
        yield from map(plain, missing)
