"""Groups unschedulable pods that are rejected for the same reason, with advice on one pod of each group."""

from __future__ import annotations

import re
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

_NAMES: Final = re.compile(r'"[^"]*"|\b\d+(?:/\d+)?\b')  # and numbers, in which like reasons may differ


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
    """The unschedulable pods by plugins, reason and requests for devices, the largest groups first.

    PodGroups are left out: what would help one of their pods may not help all.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[WaitingPod]] = {}
    for pod in filter(_is_refused, pods):
        groups.setdefault((tuple(pod.plugins), _reason(pod), pod.devices), []).append(pod)
    found = [(plugins, of) for (plugins, _, _), of in groups.items()]
    return sorted(found, key=lambda group: (-len(group[1]), group[0]))


def _is_refused(pod: WaitingPod) -> bool:
    return pod.queue == "unschedulable" and bool(pod.plugins) and pod.members is None


def _reason(pod: WaitingPod) -> tuple[str, ...]:
    """The parts of the reason, without names of the pod's own objects."""
    text = _NAMES.sub("", re.sub(rf"\b{re.escape(pod.namespace)}/\S+", "", pod.message))
    return tuple(sorted(part.strip(" .") for part in re.split("[,:]", text)))


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
