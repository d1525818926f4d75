"""One pod's messages in order, with the times between them, in words for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from berth.api.errors import DecodeError
from berth.api.messages import (
    Candidate,
    DeadLetter,
    Decision,
    Message,
    Outcome,
    Pending,
    Ranked,
    Reason,
    decode,
)
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.cli.rendering import clock, columns, duration, plain, short_attempt, short_identity

_LONGEST_LINE = 160
OUTCOME_STYLES: Mapping[Outcome, str] = {
    Outcome.BOUND: "green",
    Outcome.UNSCHEDULABLE: "yellow",
    Outcome.CONFLICT: "yellow",
    Outcome.ERROR: "red",
}
_REASONS: Mapping[Reason, str] = {
    Reason.STALE: "other pods had come to every one of the best nodes since they were ranked",
    Reason.NO_CANDIDATE: "none of the best nodes had room any more when it was to be bound",
    Reason.CHANGED: "it was changed since it was ranked, or was gated",
    Reason.PROPOSALS: "the room is promised to pods that are not bound yet",
    Reason.VICTIMS: "the pods on that node have changed since it was ranked: others would have to be evicted, or none",
    Reason.VOLUMES: "a volume or a claim that it was to have was changed meanwhile",
}
"""Of a conflict."""
_ALL_THERE_IS_TO_SAY: Final = frozenset({Reason.CHANGED, Reason.VICTIMS})
"""Where the binder's message is the same in its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A message as it was heard, or as a later one recalls it.

    ``at`` is in seconds of one clock. A message that is gone and that its Decision tells of has no ``data``: what it
    said, as far as that is known, is ``recalled``.
    """

    at: float
    subject: str
    data: bytes = b""
    recalled: Message | None = None

    @property
    def stage(self) -> str:
        """``pending``, ``ranked``, ``decision`` or ``dead``; empty for a subject that is none of ours."""
        return next(iter(self.subject.split(".")[1:2]), "")

    def message(self) -> Message:
        """What it says.

        Raises:
            DecodeError: it says nothing that can be read.
        """
        if self.recalled is not None:
            return self.recalled
        match self.stage:
            case "pending":
                return decode(self.data, Pending)
            case "ranked":
                return decode(self.data, Ranked)
            case "decision":
                return decode(self.data, Decision)
            case "dead":
                return decode(self.data, DeadLetter)
            case _:
                raise DecodeError(f"decoding {self.subject!r}: no subject of a pod's way")


def with_recalled(steps: Iterable[Step]) -> list[Step]:
    """The steps in the order of time, with those of which only a Decision tells."""
    given = list(steps)
    known = {(step.stage, attempt) for step in given if (attempt := _attempt(step)) is not None}
    added: dict[tuple[str, str], Step] = {}
    for step in given:
        for earlier in _recalled_by(step):
            added.setdefault((earlier.stage, _attempt(earlier) or ""), earlier)
    wanted = [step for key, step in added.items() if key not in known]
    return sorted((*given, *wanted), key=lambda step: step.at)


def _recalled_by(step: Step) -> Iterator[Step]:
    decision = _read(step)
    if not isinstance(decision, Decision):
        return
    pod = Pod(metadata=ObjectMeta(name=decision.pod, namespace=decision.namespace, uid=decision.uid))
    if decision.asked_at is not None:
        asked = Pending(attempt=decision.attempt, profile=decision.profile, pod=pod)
        yield _recalled("pending", decision.asked_at, step, asked)
    if decision.ranked_at is not None:
        yield _recalled("ranked", decision.ranked_at, step, _ranked_of(decision, pod))


def _recalled(stage: str, at: datetime, by: Step, message: Message) -> Step:
    prefix, _, rest = by.subject.split(".", 2)
    return Step(at=at.timestamp(), subject=f"{prefix}.{stage}.{rest}", recalled=message)


def _ranked_of(decision: Decision, pod: Pod) -> Ranked:
    """What the Decision tells of its ranking; the reasons for a "no" are its own by then."""
    found = bool(decision.candidates)
    return Ranked(
        attempt=decision.attempt,
        profile=decision.profile,
        pod=pod,
        scorer=decision.scorer,
        evaluated=decision.evaluated,
        feasible=decision.feasible,
        candidates=decision.candidates,
        error=decision.message if not found and decision.outcome is Outcome.ERROR else "",
        message="" if found else "no node is possible",
        view_age_seconds=decision.view_age_seconds,
    )


def _attempt(step: Step) -> str | None:
    message = _read(step)
    return message.attempt if isinstance(message, Pending | Ranked | Decision) else None


def by_subject(steps: list[Step]) -> Table:
    """A line a message: milliseconds since the first, subject, what it says."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for step in steps:
        table.add_row(plain(f"+{(step.at - steps[0].at) * 1000:7.1f} ms"), plain(step.subject), said(step))
    return table


def by_stage(steps: list[Step]) -> Table:
    """A line a message: the time of day, the time since the one before, stage, what it says."""
    table = columns("TIME", "SINCE", "STAGE", "", numbers=("SINCE",))
    for step, before in zip(steps, (None, *steps), strict=False):
        table.add_row(*row(step, before))
    return table


def row(step: Step, before: Step | None) -> tuple[Text, Text, Text, Text]:
    """One line of :func:`by_stage`."""
    at = plain(clock(datetime.fromtimestamp(step.at, UTC)))
    since = plain("" if before is None else f"+{duration(max(0.0, step.at - before.at))}")
    return at, since, plain(step.stage), said(step)


def as_json(step: Step, before: Step | None) -> dict[str, object]:
    """One message for programs; ``recalled`` ones are gone, and their Decision tells of them."""
    readable = _read(step)
    return {
        "at": datetime.fromtimestamp(step.at, UTC),
        "since_seconds": None if before is None else round(step.at - before.at, 6),
        "subject": step.subject,
        "stage": step.stage,
        "said": said(step).plain,
        "recalled": step.recalled is not None,
        "message": readable if readable is not None and step.recalled is None else None,
    }


def said(step: Step) -> Text:
    """What a message says, in words."""
    match _read(step):
        case Pending() as pending:
            return plain(f"attempt {short_attempt(pending.attempt)} waits for a node")
        case Ranked() as ranked:
            return plain(f"{short_identity(ranked.scorer)}: {_ranking(ranked)}")
        case Decision() as decision:
            words = plain(decision.outcome, OUTCOME_STYLES.get(decision.outcome, ""))
            if decision.node:
                words.append(f" {decision.node}", style="")
            if decision.preemption is not None and decision.preemption.victims:
                victims = ", ".join(f"{one.namespace}/{one.name}" for one in decision.preemption.victims)
                words.append(f" (evicted {victims})", style="")
            if why := why_in_words(decision):
                words.append(f"{':' if decision.outcome is Outcome.CONFLICT else ''} {why}", style="")
            return words
        case DeadLetter() as letter:
            return plain(f"put aside by the {letter.service}: {letter.reason}", "red")
        case _:
            return plain(f"cannot be read: {step.data[:_LONGEST_LINE]!r}", "red")


def why_in_words(decision: Decision) -> str:
    """Why an attempt ended as it did: its reason as a person says it, and its message."""
    if decision.reason not in set(Reason):
        return ": ".join(filter(None, (decision.reason, decision.message)))
    reason = Reason(decision.reason)
    message = "" if reason in _ALL_THERE_IS_TO_SAY else decision.message
    return ": ".join(filter(None, (_REASONS[reason], message)))


def candidates_of(steps: list[Step]) -> list[Candidate]:
    """The nodes of the last ranking among the messages."""
    for step in reversed(steps):
        message = _read(step)
        if isinstance(message, Ranked) and message.candidates:
            return message.candidates
    return []


def node_of(steps: list[Step]) -> str:
    """Where the pod was bound; empty when no message says so."""
    for step in reversed(steps):
        message = _read(step)
        if isinstance(message, Decision) and message.outcome is Outcome.BOUND:
            return message.node
    return ""


def _read(step: Step) -> Message | None:
    try:
        return step.message()
    except DecodeError:
        return None


def _ranking(ranked: Ranked) -> str:
    if ranked.error:
        return f"failed: {ranked.error}"
    if not ranked.candidates:
        return ranked.message
    first = ranked.candidates[0]
    return f"{ranked.feasible} of {ranked.evaluated} nodes are possible, best {first.node} with {first.total}"
