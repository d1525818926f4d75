"""A pod's messages in order of time, as text and as JSON.

Messages deleted from their streams are restored from the pod's Decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.podgroups import PodGroup
from berth.errors import DecodeError
from berth.messages.attempts import (
    DeadLetter,
    Decision,
    GroupResult,
    Outcome,
    Pending,
    Positions,
    Ranked,
    Reason,
    repeated,
)
from berth.messages.bundles import Bundle
from berth.messages.encoding import Message, decode
from berth.messages.groupattempts import GroupMessage, GroupPending, GroupRanked, decode_group, group_named
from berth.messages.groups import ClassPlan, GroupPlan
from berth.messages.subjects import PodSubject
from berth.settings.settings import short_identity
from berth_cli.options import PodName
from berth_cli.pods.choice import chosen_candidate, devices_text, estimate_text, possible_nodes
from berth_cli.rendering import clock, duration, new_table, plain, short_attempt

_LONGEST_LINE = 160
OUTCOME_STYLES: Mapping[Outcome, str] = {
    Outcome.BOUND: "green",
    Outcome.UNSCHEDULABLE: "yellow",
    Outcome.CONFLICT: "yellow",
    Outcome.ERROR: "red",
}
_RANKED_AGAIN: Final = " (ranked again)"
_REASONS: Mapping[Reason, str] = {
    Reason.NO_CANDIDATE: "none of the best nodes was feasible any more at binding",
    Reason.CHANGED: "it was changed or gated after the ranking",
    Reason.PROPOSALS: "proposals for pods that are not bound yet use the same resources",
    Reason.BEHIND: "the scorer had not read the newest state of the cluster",
    Reason.VICTIMS: "no pods could be evicted for it any more",
    Reason.FITS: "a node has become free for it, so that no pod has to be evicted",
    Reason.VOLUMES: "a volume or a claim of the pod changed after the ranking",
    Reason.CLAIMS: "a ResourceClaim of the pod changed after the ranking, or it does not fit where its devices are",
    Reason.PREEMPTED: "a more important pod gets the room where it waited",
    Reason.BEGUN: "a part of the group is bound",
    Reason.NO_NODES: "it waits for nodes",
}
# Reasons after which the binder's message would repeat the sentence above.
_COMPLETE: Final = frozenset({Reason.CHANGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMessage:
    """A received message, or a restored one, without ``data``.

    ``at``: seconds, on one clock for all messages of a table.
    """

    at: float
    subject: str
    data: bytes = b""
    recalled: Message | None = None

    @property
    def stage(self) -> str:
        """``pending``, ``ranked``, ``decision`` or ``dead``; empty for other subjects."""
        return next(iter(self.subject.split(".")[1:2]), "")

    @property
    def group(self) -> str:
        """The PodGroup that it is about, with its dialect; empty for a pod."""
        subject = PodSubject.parse(self.subject)
        key = group_named(subject.namespace, subject.pod)
        return "" if key is None else key.in_full

    def message(self) -> Message:
        """Decode the message.

        Raises:
            DecodeError: it cannot be decoded.
        """
        if self.recalled is not None:
            return self.recalled
        match self.stage:
            case "pending":
                return decode_group(self.data, GroupPending) if self.group else decode(self.data, Pending)
            case "ranked":
                return decode_group(self.data, GroupRanked) if self.group else decode(self.data, Ranked)
            case "decision":
                return decode(self.data, Decision)
            case "dead":
                return decode(self.data, DeadLetter)
            case _:
                raise DecodeError(f"decoding {self.subject!r}: not a subject of a pod's messages")


def with_recalled(messages: Iterable[TracedMessage]) -> list[TracedMessage]:
    """Add messages restored from a Decision, and sort by time."""
    received = list(messages)
    known = {(traced.stage, attempt) for traced in received if (attempt := _attempt(traced)) is not None}
    added: dict[tuple[str, str], TracedMessage] = {}
    for traced in received:
        for earlier in _recalled_by(traced):
            added.setdefault((earlier.stage, _attempt(earlier) or ""), earlier)
    missing = [traced for key, traced in added.items() if key not in known]
    return sorted((*received, *missing), key=lambda traced: traced.at)


def _recalled_by(traced: TracedMessage) -> Iterator[TracedMessage]:
    decision = _read(traced)
    if not isinstance(decision, Decision):
        return
    if decision.of_group:
        return  # the group's messages were a member's too
    if decision.group is not None:
        yield from _recalled_of_group(decision, decision.group, traced)
        return
    pod = Pod(metadata=ObjectMeta(name=decision.pod, namespace=decision.namespace, uid=decision.uid))
    if decision.asked_at is not None:
        pending = _ranked_of(decision, pod).pending(after=Positions())
        yield _recalled("pending", decision.asked_at, traced, pending)
    if decision.ranked_at is not None:
        yield _recalled("ranked", decision.ranked_at, traced, _ranked_of(decision, pod))


def _recalled_of_group(decision: Decision, result: GroupResult, traced: TracedMessage) -> Iterator[TracedMessage]:
    """The messages of a group as far as its Decision has them: without members."""
    key = group_named(decision.namespace, decision.pod)
    if key is None:
        return
    group = PodGroup(dialect=key.dialect, namespace=key.namespace, name=key.name, uid=decision.uid)
    both: dict[str, Any] = {
        "config": decision.config,
        "attempt": decision.attempt,
        "profile": decision.profile,
        "group": group,
        "bundle": Bundle(classes=[], members=[]),
        "need": result.need,
    }
    if decision.asked_at is not None:
        yield _recalled("pending", decision.asked_at, traced, GroupPending(**both))
    if decision.ranked_at is not None:
        classes = [ClassPlan(members=each.members, placed=each.placed) for each in result.classes]
        plan = GroupPlan(
            need=result.need,
            classes=classes,
            topology_key=result.topology_key,
            domain=result.domain,
            message=decision.message if decision.outcome is Outcome.UNSCHEDULABLE else "",
        )
        ranked = GroupRanked(**both, plan=plan, scorer=decision.scorer, seconds=decision.plan_seconds)
        yield _recalled("ranked", decision.ranked_at, traced, ranked)


def _recalled(stage: str, at: datetime, by: TracedMessage, message: Message) -> TracedMessage:
    prefix, _, rest = by.subject.split(".", 2)
    return TracedMessage(at=at.timestamp(), subject=f"{prefix}.{stage}.{rest}", recalled=message)


def _ranked_of(decision: Decision, pod: Pod) -> Ranked:
    """The Ranked message as far as the Decision has it."""
    found = bool(decision.candidates)
    return Ranked(
        **{**repeated(decision), "message": "" if found else "no node is possible"},
        pod=pod,
        error=decision.message if not found and decision.outcome is Outcome.ERROR else "",
    )


def _attempt(traced: TracedMessage) -> str | None:
    message = _read(traced)
    return message.attempt if isinstance(message, Pending | Ranked | Decision | GroupMessage) else None


def subject_table(messages: list[TracedMessage]) -> Table:
    """A line a message: milliseconds since the first, subject, description."""
    table = new_table("", "", "")
    table.show_header = False
    for traced in messages:
        table.add_row(plain(f"+{(traced.at - messages[0].at) * 1000:7.1f} ms"), plain(traced.subject), describe(traced))
    return table


def stage_table(messages: list[TracedMessage]) -> Table:
    """A line a message: time of day, time since the message before, stage, description."""
    table = new_table("TIME", "SINCE", "STAGE", "", numbers=("SINCE",))
    for traced, before in zip(messages, (None, *messages), strict=False):
        table.add_row(*stage_row(traced, before))
    return table


def stage_row(traced: TracedMessage, before: TracedMessage | None) -> tuple[Text, Text, Text, Text]:
    at = plain(clock(datetime.fromtimestamp(traced.at, UTC)))
    since = plain("" if before is None else f"+{duration(max(0.0, traced.at - before.at))}")
    return at, since, plain(traced.stage), describe(traced)


def trace_json(pod: PodName, messages: list[TracedMessage]) -> dict[str, object]:
    documents = [as_json(message, before) for message, before in zip(messages, (None, *messages), strict=False)]
    return {"pod": str(pod), "messages": documents}


def as_json(traced: TracedMessage, before: TracedMessage | None) -> dict[str, object]:
    readable = _read(traced)
    return {
        "at": datetime.fromtimestamp(traced.at, UTC),
        "since_seconds": None if before is None else round(traced.at - before.at, 6),
        "subject": traced.subject,
        "stage": traced.stage,
        "text": describe(traced).plain,
        "recalled": traced.recalled is not None,
        "message": readable if readable is not None and traced.recalled is None else None,
    }


def describe(traced: TracedMessage) -> Text:
    match _read(traced):
        case Pending() as pending:
            return plain(f"attempt {short_attempt(pending.attempt)} waits for a node")
        case Ranked() as ranked:
            return plain(f"{short_identity(ranked.scorer)}: {_ranking(ranked)}")
        case GroupMessage() as message:
            return plain(_of_group(message))
        case Decision() as decision:
            return _decided(decision)
        case DeadLetter() as letter:
            return plain(f"dead letter of the {letter.service}: {letter.reason}", "red")
        case _:
            return plain(f"cannot be read: {traced.data[:_LONGEST_LINE]!r}", "red")


def _decided(decision: Decision) -> Text:
    words = plain(with_meaning(decision.outcome, decision.outcome), OUTCOME_STYLES.get(decision.outcome, ""))
    if decision.node:
        words.append_text(plain(f" {decision.node}"))
    if (chosen := chosen_candidate(decision)) is not None and chosen.newcomers:
        words.append_text(plain(f" with {estimate_text(chosen)}"))
    if decision.group is not None and decision.group.bound:
        words.append_text(plain(f" {decision.group.bound} pods of the group"))
    if devices := devices_text(decision.devices):
        words.append_text(plain(f", devices {devices}"))
    if decision.preemption is not None and decision.preemption.victims:
        victims = ", ".join(f"{one.namespace}/{one.name}" for one in decision.preemption.victims)
        words.append_text(plain(f" (evicted {victims})"))
    if why := reason_text(decision):
        colon = ":" if decision.outcome is Outcome.CONFLICT or decision.group is not None else ""
        words.append_text(plain(f"{colon} {why}"))
    return words


def _of_group(message: GroupMessage) -> str:
    if isinstance(message, GroupRanked):
        return f"{short_identity(message.scorer)}: {_plan(message)}"
    count = len(message.bundle.members)
    pods = f" of {count} pods" if count else ""
    return f"attempt {short_attempt(message.attempt)} of the group waits for a plan{pods}"


def _plan(ranked: GroupRanked) -> str:
    plan, victims = ranked.plan, ranked.preemption.victims if ranked.preemption is not None else []
    if plan.error:
        return f"failed: {plan.error}"
    evictions = "1 eviction makes room" if len(victims) == 1 else f"{len(victims)} evictions make room"
    evicts = f"; {evictions}" if victims else ""
    if plan.message:
        return f"{plan.message}{evicts}"
    placed, members = sum(each.placed for each in plan.classes), sum(each.members for each in plan.classes)
    where = f" in {plan.topology_key} {plan.domain}" if plan.domain else ""
    return f"{placed} of {members} have a place{where}{evicts}, the plan took {duration(ranked.seconds)}"


def with_meaning(outcome: str, text: str) -> str:
    """Add the consequence of a conflict."""
    return f"{text}{_RANKED_AGAIN}" if outcome == Outcome.CONFLICT else text


def reason_text(decision: Decision) -> str:
    return reason_of_attempt(decision.reason, decision.message)


def reason_of_attempt(reason: str, message: str) -> str:
    if reason not in set(Reason):
        return ": ".join(filter(None, (reason, message)))
    known = Reason(reason)
    return ": ".join(filter(None, (_REASONS[known], "" if known in _COMPLETE else message)))


def last_ranking(messages: list[TracedMessage]) -> Ranked | Decision | None:
    """The last message with candidates: a Decision has their newcomers too."""
    for traced in reversed(messages):
        message = _read(traced)
        if isinstance(message, Ranked | Decision) and message.candidates:
            return message
    return None


def node_of(messages: list[TracedMessage]) -> str:
    """The pod's node; empty if the pod was not bound."""
    for traced in reversed(messages):
        message = _read(traced)
        if isinstance(message, Decision) and message.outcome is Outcome.BOUND:
            return message.node
    return ""


def _read(traced: TracedMessage) -> Message | None:
    try:
        return traced.message()
    except DecodeError:
        return None


def _ranking(ranked: Ranked) -> str:
    if ranked.error:
        return f"failed: {ranked.error}"
    if not ranked.candidates:
        return ranked.message
    first = ranked.candidates[0]
    best = "" if ranked.nominated_first and ranked.nodes != 1 else f", best {first.node} with {first.total}"
    devices = devices_text(ranked.devices)
    return f"{possible_nodes(ranked, 'are')}{best}{f', devices {devices}' if devices else ''}"
