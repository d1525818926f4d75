"""A pod that is left alone, as PreEnqueue has it, for ``berth why``: told to people and to programs. Pure."""

from __future__ import annotations

from rich.text import Text

from berth.api.pod import Pod
from berth.cli.console import plain
from berth.framework.status import Status

OUTCOME = "gated"


def told(pod: Pod, status: Status) -> Text:
    """For people: who holds the pod back, and why."""
    metadata = pod.metadata
    name = plain(f"{metadata.namespace}/{metadata.name} ", "bold")
    return name.append(f"is gated, nobody looks for a node: {held_back(status)}", style="yellow not bold")


def held_back(status: Status) -> str:
    """Who holds it back, with the reasons."""
    return f"{status.plugin}: {', '.join(status.reasons)}"


def as_json(pod: Pod, status: Status) -> dict[str, object]:
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
