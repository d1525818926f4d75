"""Differences between a recorded ranking and its replay, a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from berth.messages.attempts import Candidate, Preemption, Ranked
from berth.messages.groupattempts import GroupRanked
from berth.messages.groups import GroupPlan
from berth_cli.recording.mask import without_names

_NAMED: Final = 3  # candidates that a difference names

NOT_COMPARED: Final = (
    "the order of nodes that are equally good: a hash of names that are masked; the recorded one is taken",
    "which devices a pod would get: pools and slices are searched in the order of their names",
    "names in sentences, the order of their parts, and the text of errors",
)  # in an anonymised recording


def differences(recorded: Ranked, again: Ranked, *, masked: bool = False) -> Iterator[str]:
    """Sentences about the differences; ``masked``: the recording is anonymised."""
    comparable: Callable[[str], object] = without_names if masked else str
    is_cut = _is_cut(recorded, again)
    yield from _candidate_differences(recorded.candidates, again.candidates, is_cut=is_cut)
    for name in ("evaluated", "feasible", "nodes", "nominated_first"):
        yield from _difference(name, getattr(recorded, name), getattr(again, name))
    if not is_cut and comparable(recorded.message) != comparable(again.message):
        yield from _difference("message", recorded.message, again.message)
    if not is_cut and (recorded.error != again.error if not masked else bool(recorded.error) != bool(again.error)):
        yield from _difference("error", recorded.error, again.error)
    for name in ("proposals_counted", "behind", "clears_nomination"):
        yield from _difference(name, getattr(recorded, name), getattr(again, name))
    yield from _difference("rejections", _reasons(recorded, comparable), _reasons(again, comparable))
    yield from _difference("blockers", recorded.blockers, again.blockers)
    yield from _difference("preemption", _evictions(recorded.preemption), _evictions(again.preemption))
    if not is_cut:
        yield from _difference("devices", _devices(recorded, masked=masked), _devices(again, masked=masked))


def plan_differences(recorded: GroupRanked, again: GroupRanked, *, masked: bool = False) -> Iterator[str]:
    """The same of a group's plan."""
    comparable: Callable[[str], object] = without_names if masked else str
    plan, other = recorded.plan, again.plan
    nodes, others = _nodes_of(plan), _nodes_of(other)
    if len(nodes) != len(others):
        yield f"members with a place: recorded {len(nodes)}, again {len(others)}"
    elif not masked:
        moved = [uid for uid, node in nodes.items() if others.get(uid) != node]
        for uid in moved[:_NAMED]:
            yield f"member {uid}: recorded {nodes[uid]}, again {others.get(uid, 'no node')}"
        yield from _difference("domain", plan.domain, other.domain)
    for name in ("message", "note"):
        if comparable(getattr(plan, name)) != comparable(getattr(other, name)):
            yield from _difference(name, getattr(plan, name), getattr(other, name))
    if bool(plan.error) != bool(other.error) if masked else plan.error != other.error:
        yield from _difference("error", plan.error, other.error)
    for name in ("is_impossible", "orders", "steps"):
        yield from _difference(name, getattr(plan, name), getattr(other, name))
    yield from _difference("preemption", _evictions(recorded.preemption), _evictions(again.preemption))
    for name in ("proposals_counted", "behind"):
        yield from _difference(name, getattr(recorded, name), getattr(again, name))


def _nodes_of(plan: GroupPlan) -> dict[str, str]:
    return {member.uid: plan.nodes[member.node] for member in plan.members}


def _is_cut(recorded: Ranked, again: Ranked) -> bool:
    # A message cut to NATS's limit has no plugin's points, and fewer nodes.
    return any(each.scores for each in again.candidates) and not any(each.scores for each in recorded.candidates)


def _candidate_differences(recorded: Sequence[Candidate], again: Sequence[Candidate], *, is_cut: bool) -> Iterator[str]:
    names, others = [each.node for each in recorded], [each.node for each in again]
    if is_cut:
        others = others[: len(names)]
    if names != others:
        place = next(at for at, (one, other) in enumerate(zip_longest(names, others)) if one != other)
        yield f"nodes: recorded {_named(names, place)}, again {_named(others, place)}"
    by_node = {each.node: each for each in again}
    different = (each for each in recorded if each.node in by_node and not _same(each, by_node[each.node]))
    for each in list(different)[:_NAMED]:
        yield f"{each.node}: recorded {_points(each)}, again {_points(by_node[each.node])}"


def _named(names: Sequence[str], place: int) -> str:
    """A few names from the first difference on."""
    shown = names[place : place + _NAMED]
    return (
        f"{', '.join(shown)}{', ...' if len(names) > place + _NAMED else ''} from place {place + 1}"
        if shown
        else "none"
    )


def _same(one: Candidate, other: Candidate) -> bool:
    alike = (one.total, one.pods, one.loss) == (other.total, other.pods, other.loss)
    return alike and (not one.scores or one.scores == other.scores)


def _points(candidate: Candidate) -> str:
    by_plugin = ", ".join(f"{name} {points}" for name, points in candidate.scores.items())
    counted = f"{candidate.pods} pods, loss {candidate.loss:g}"
    return f"{candidate.total} with {counted}{f' ({by_plugin})' if by_plugin else ''}"


def _reasons(ranked: Ranked, comparable: Callable[[str], object]) -> list[str]:
    # Without example nodes, which are the first ones in the scorer's own order.
    return sorted(f"{each.nodes} {each.plugin}: {comparable(each.reason)}" for each in ranked.rejections)


def _evictions(preemption: Preemption | None) -> str:
    if preemption is None:
        return ""
    victims = ", ".join(f"{victim.namespace}/{victim.name}" for victim in preemption.victims)
    return f"on {preemption.node} of {victims or 'no pods'}, {preemption.violations} against budgets"


def _devices(ranked: Ranked, *, masked: bool) -> str:
    """By claim; which of several, if names are masked, depends on their order."""
    given = {uid: [each.key for each in found.devices.results or ()] for uid, found in ranked.devices.items()}
    return "; ".join(f"{uid}: {len(keys) if masked else ', '.join(keys)}" for uid, keys in sorted(given.items()))


def _difference(name: str, recorded: object, again: object) -> Iterator[str]:
    if recorded != again:
        yield f"{name}: recorded {recorded or 'none'}, again {again or 'none'}"
