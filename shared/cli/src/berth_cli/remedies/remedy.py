"""Remedies for a pod, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from rich.console import RenderableType

from berth_cli.rendering import indented

HEADING: Final = "what would help, by the present state of the cluster:"


class Remedy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An obstacle to a pod, and the change that would remove it.

    ``about``: the resource, taint, label, port or claim. ``nodes``: how many nodes the obstacle excludes; ``alone``: on
    how many it is the only obstacle. ``amounts``, of a resource, in millicores or base units: ``asked``, ``largest``
    (the largest capacity of a node), and ``free`` of ``allocatable`` on the node with the most free (the first of
    ``examples``).
    """

    plugin: str
    about: str
    text: str
    nodes: int
    alone: int = 0
    examples: list[str] = []
    amounts: dict[str, int] = {}

    @property
    def is_passing(self) -> bool:
        """Whether no plugin rejects the pod on the nodes that are named."""
        return not self.plugin

    @property
    def sentence(self) -> str:
        """The text after the plugin's name, if it is about one."""
        return f"{self.plugin}: {self.text}" if self.plugin else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The remedies for a pod. ``missing``: why there are no more, and how to get them; empty if complete."""

    remedies: list[Remedy] = field(default_factory=list)
    missing: str = ""

    def as_json(self) -> dict[str, object]:
        return {"remedies": self.remedies, **({"missing": self.missing} if self.missing else {})}

    def lines(self) -> Iterator[RenderableType]:
        yield from remedy_lines(self.remedies)
        if self.missing:
            yield indented(self.missing)


def remedy_lines(remedies: Iterable[Remedy]) -> Iterator[RenderableType]:
    for number, remedy in enumerate(remedies):
        if not number:
            yield HEADING
        yield indented(remedy.sentence)
