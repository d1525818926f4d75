"""One pod's messages in order, with the times between them, in words for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

from berth.api.errors import DecodeError
from berth.api.messages import Candidate, Decision, Message, Pending, Ranked, decode, decoder
from berth.api.subjects import PodSubject

_PENDING = decoder(Pending)
_RANKED = decoder(Ranked)
_DECISION = decoder(Decision)
_LONGEST_LINE = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A message as it was heard; ``at`` in seconds of one monotonic clock."""

    at: float
    subject: str
    data: bytes

    def message(self) -> Message:
        """What it says.

        Raises:
            DecodeError: it says nothing that can be read.
        """
        match PodSubject.parse(self.subject).stage:
            case "pending":
                return decode(self.data, _PENDING)
            case "ranked":
                return decode(self.data, _RANKED)
            case _:
                return decode(self.data, _DECISION)


def lines(steps: list[Step]) -> Iterator[str]:
    """A line a message: milliseconds since the first, subject, what it says."""
    for step in steps:
        yield f"+{(step.at - steps[0].at) * 1000:7.1f} ms  {step.subject}  {_said(step)}"


def best_nodes(candidates: list[Candidate]) -> Table:
    """The nodes of a ranking with every plugin's score."""
    plugins = sorted({plugin for candidate in candidates for plugin in candidate.scores})
    table = Table("node", *plugins, "total", "pods", title="the best nodes, score x weight", title_justify="left")
    for candidate in candidates:
        scores = (str(candidate.scores.get(plugin, "-")) for plugin in plugins)
        table.add_row(candidate.node, *scores, str(candidate.total), str(candidate.pods))
    return table


def candidates_of(steps: list[Step]) -> list[Candidate]:
    """The nodes of the last ranking among the messages."""
    for step in reversed(steps):
        message = _read(step)
        if isinstance(message, Ranked) and message.candidates:
            return message.candidates
    return []


def _read(step: Step) -> Message | None:
    try:
        return step.message()
    except DecodeError:
        return None


def _said(step: Step) -> str:
    match _read(step):
        case Pending() as pending:
            return f"attempt {pending.attempt} waits for a node"
        case Ranked() as ranked:
            return f"{ranked.scorer}: {_ranking(ranked)}"
        case Decision() as decision:
            return " ".join(filter(None, (decision.outcome, decision.node, decision.reason, decision.message)))
        case _:
            return f"cannot be read: {step.data[:_LONGEST_LINE]!r}"


def _ranking(ranked: Ranked) -> str:
    if ranked.error:
        return f"failed: {ranked.error}"
    if not ranked.candidates:
        return ranked.message
    first = ranked.candidates[0]
    return f"{ranked.feasible} of {ranked.evaluated} nodes are possible, best {first.node} with {first.total}"
