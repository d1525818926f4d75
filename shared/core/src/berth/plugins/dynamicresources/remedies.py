"""What would help a pod without devices: for each request, which devices of a node match, and what hinders them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from berth.api.devices import AllocationResult, ResourceClaim
from berth.cluster.devices.pools import NodePool, PooledDevice
from berth.cluster.devices.users import users_of
from berth.cluster.nodes import Mask, RejectedNodes
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import RemedySentence
from berth.framework.status import Code
from berth.plugins.dynamicresources.answers import NodeAnswers
from berth.plugins.dynamicresources.candidates import Candidates
from berth.plugins.dynamicresources.extended import IN_MEMORY
from berth.plugins.dynamicresources.requests import Request
from berth.plugins.dynamicresources.usage import Usage

_MOST_NODES: Final = 200  # whose devices are looked at
_MOST_NAMED: Final = 3  # devices in a sentence
_MOST_USERS: Final = 2  # pods of one device
_MOST_CHARACTERS: Final = 80  # of an expression
_DOMAINS: Final = re.compile(r"""\bdevice\.attributes\s*\[\s*["']([^"']+)["']\s*\]""")  # that an expression reads

FAILED, UPDATED, NONE, NO_MATCH, TAKEN, TOGETHER = range(6)


@dataclass(slots=True)
class _Obstacle:
    """One kind of obstacle of a request on some nodes. ``matching`` of ``devices`` of the class match there.

    ``most``: that match on one node; ``why``: of devices that do not match, the expressions, with numbers; ``taken``:
    kind of hindrance, node, device and what hinders.
    """

    nodes: Mask
    devices: int = 0
    matching: int = 0
    most: int = 0
    why: dict[str, int] = field(default_factory=dict)
    taken: list[tuple[str, str, PooledDevice, str]] = field(default_factory=list)
    pool: NodePool | None = None
    failure: str = ""  # of an expression, with its device


def remedies_of(
    answers: NodeAnswers, claims: Sequence[ResourceClaim], nodes: RejectedNodes, among: Mask
) -> Iterator[RemedySentence]:
    """A sentence for each obstacle of each request, on the nodes ``among`` the rejected ones."""
    places = np.flatnonzero(among)[:_MOST_NODES].tolist()
    for request in answers.plan.requests:
        found: dict[int, _Obstacle] = {}
        for place in places:
            look = _Look(request, answers, int(nodes.rows[place]))
            obstacle = found.setdefault(look.kind, _Obstacle(np.zeros(len(nodes), dtype=np.bool_)))
            obstacle.nodes[place] = True
            look.add_to(obstacle)
        for kind, obstacle in sorted(found.items()):
            yield _sentence(kind, obstacle, request, claims[request.claim], answers)


class _Look:
    """One request on one node."""

    def __init__(self, request: Request, answers: NodeAnswers, row: int) -> None:
        self._request, self._answers = request, answers
        node = answers.snapshot.node_at(row)
        self._node = "" if node is None else node.metadata.name
        views = () if node is None else answers.views(row)
        code, _ = answers.statuses[int(answers.codes[row])]
        self._failure = next(self._failures(views), "") if code is Code.ERROR else ""
        self._of_class = [
            device
            for view in views
            for device in view.devices
            if (not device.part.per_device or (node is not None and device.is_for(node)))
            and self._failed(device) not in self._class_selectors
        ]
        self._candidates = answers.candidates(row)
        self._matching = [
            i for i, trait in enumerate(self._candidates.traits) if trait.selectable & (1 << request.number)
        ]
        self._taken = list(self._hindrances(answers.usage(self._candidates), self._candidates))
        self.kind = self._kind()

    @property
    def _class_selectors(self) -> range:
        return range(len(self._request.device_class.spec.selectors or ()))

    def _failed(self, device: PooledDevice) -> int:
        """The place of the request's first selector that the device does not satisfy; -1 if it satisfies all."""
        expressions = self._answers.plan.expressions
        return next(
            (i for i, (_, number) in enumerate(self._request.selectors) if expressions[number].of(device) is not True),
            -1,
        )

    def _failures(self, views: Iterable[NodePool]) -> Iterator[str]:
        """The expressions that cannot be evaluated, each with its device and the error."""
        for device in (device for view in views for device in view.devices):
            place = self._failed(device)
            if place >= 0:
                asked = self._answers.plan.expressions[self._request.selectors[place][1]]
                answer, text = asked.of(device), asked.expression
                if isinstance(answer, str):
                    on = _name(device, self._node)
                    yield f"{_short(text)} fails on {on}: {answer}{_no_domain(text, device)}"

    def _hindrances(self, usage: Usage, candidates: Candidates) -> Iterator[tuple[str, PooledDevice, str]]:
        request = self._request
        for i in self._matching:
            device = candidates.devices[i]
            taints = request.blocking(device.device.taints)
            if taints:
                yield "tainted", device, f"has the taint {taints[0].text}"
            elif usage.is_busy(request, i):
                yield "in use", device, f"is taken by {_users(device, self._answers.snapshot)}"
            elif not usage.has_capacity(request, i):
                left = f"has too little capacity left beside {_users(device, self._answers.snapshot)}"
                yield "shared", device, left
            elif not usage.has_counters(request, i):
                yield "counters", device, "shares what others of its pool have taken"

    def _kind(self) -> int:
        if self._failure:
            return FAILED
        request, matching = self._request, len(self._matching)
        wanted = max(1, matching) if request.takes_all else request.count
        if self._candidates.trouble is not None and (matching < wanted or request.takes_all):
            return UPDATED
        if matching < wanted:
            return NO_MATCH if self._of_class else NONE
        return TAKEN if matching - len(self._taken) < wanted else TOGETHER

    def add_to(self, obstacle: _Obstacle) -> None:
        obstacle.devices += len(self._of_class)
        obstacle.matching += len(self._matching)
        obstacle.most = max(obstacle.most, len(self._matching))
        obstacle.taken += [(kind, self._node, device, text) for kind, device, text in self._taken]
        obstacle.pool = obstacle.pool or self._candidates.trouble
        obstacle.failure = obstacle.failure or self._failure
        matching = {self._candidates.devices[i].key for i in self._matching}
        for device in self._of_class if self.kind == NO_MATCH else ():
            if device.key not in matching:
                why = self._why_not(device)
                obstacle.why[why] = obstacle.why.get(why, 0) + 1

    def _why_not(self, device: PooledDevice) -> str:
        failed = self._failed(device)
        if failed < 0:
            return "the capacity that it asks for"
        return _short(self._answers.plan.expressions[self._request.selectors[failed][1]].expression)


def _sentence(
    kind: int, obstacle: _Obstacle, request: Request, claim: ResourceClaim, answers: NodeAnswers
) -> RemedySentence:
    asked = "all devices" if request.takes_all else _devices(request.count)
    is_written = claim.metadata.name != IN_MEMORY
    whose = f"claim {claim.metadata.name}, request {request.local_name}" if is_written else "its extended resources"
    about = f"{claim.key}/{request.name}" if is_written else request.device_class.metadata.name
    before = f"asks for {asked} of class {request.device_class.metadata.name} ({whose}); "
    match = _match(obstacle.matching, obstacle.devices)
    after = ""
    if kind == FAILED:
        before += "a selector cannot be evaluated on"
        after = f"where {obstacle.failure}"
    elif kind == UPDATED and obstacle.pool is not None:
        before += f"{match} on"
        after = f"where pool {obstacle.pool.text} is {obstacle.pool.trouble}"
    elif kind in (NONE, NO_MATCH):
        before += f"{match}{f', at most {obstacle.most} together,' if obstacle.matching else ''} on"
        after = f"where {_unmet(obstacle.why)}" if obstacle.why else ""
    elif kind == TAKEN:
        before += f"{match} on"
        after = f"where {_hindered(obstacle)}"
    else:
        before += f"{match}, but not with all else that the pod asks for, on"
        if wanted := _constraints(request, answers):
            after = f"where they must have {wanted}"
    lacking = kind in (NONE, NO_MATCH)
    return RemedySentence(about=about, nodes=obstacle.nodes, before=before, after=after, lacking=lacking)


def _constraints(request: Request, answers: NodeAnswers) -> str:
    found = (answers.plan.constraints[number] for number in request.constraints)
    return ", ".join(f"{'different values' if each.distinct else 'one value'} of {each.attribute}" for each in found)


def _unmet(why: dict[str, int]) -> str:
    """The expressions that rule out most devices."""
    often = sorted(why.items(), key=lambda each: -each[1])
    text = ", ".join(f"{number} {'does' if number == 1 else 'do'} not meet {each}" for each, number in often[:2])
    return text if len(often) <= 2 else f"{text}, ..."


def _hindered(obstacle: _Obstacle) -> str:
    """Some devices of every kind of hindrance, in their order."""
    taken, chosen = obstacle.taken, dict[int, None]()
    kinds = [each[0] for each in taken]
    for place in (*(kinds.index(kind) for kind in dict.fromkeys(kinds)), *range(len(taken))):
        if len(chosen) < _MOST_NAMED:
            chosen[place] = None
    is_alone = int(np.count_nonzero(obstacle.nodes)) == 1
    named = [f"{_name(taken[i][2], taken[i][1] if is_alone else '')} {taken[i][3]}" for i in sorted(chosen)]
    more = len(taken) - len(named)
    return ", ".join(named) + (f", and {more} more" if more > 0 else "")


def _name(device: PooledDevice, node: str) -> str:
    pool = device.part.pool[1]
    return device.device.name if pool == node else f"{pool}/{device.device.name}"


def _users(device: PooledDevice, snapshot: Snapshot) -> str:
    return _named(users_of(device.key, snapshot)) or "others"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _match(matching: int, devices: int) -> str:
    if not devices:
        return "there is none"
    return f"{matching or 'none'} of {devices} {'match' if matching > 1 else 'matches'}"


def _named(users: Sequence[str]) -> str:
    more = len(users) - _MOST_USERS
    return " and ".join([*users[:_MOST_USERS], *([f"{more} more"] if more > 0 else [])])


def _short(expression: str) -> str:
    text = " ".join(expression.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def _no_domain(expression: str, device: PooledDevice) -> str:
    """Which domain of the expression the device has no attributes of: a misspelt one reads as empty."""
    domains = {name.rpartition("/")[0] or device.part.pool[0] for name in device.device.attributes or ()}
    unknown = next((each for each in _DOMAINS.findall(expression) if each not in domains), "")
    if not unknown or not domains:
        return ""
    return f" (it has no attributes of {unknown}, but of {', '.join(sorted(domains))})"


def of_allocated(claim: ResourceClaim, allocation: AllocationResult, nodes: Mask) -> RemedySentence:
    """A claim that has devices already, and the nodes from which these cannot be used."""
    before = f"its claim {claim.metadata.name} has {_results(allocation)}, which cannot be used from"
    return RemedySentence(about=claim.key, nodes=nodes, before=before)


def of_unbound(claim: ResourceClaim, allocation: AllocationResult, problem: str) -> RemedySentence:
    """A claim whose devices were not bound."""
    text = f"its claim {claim.metadata.name} has {_results(allocation)}: {problem}"
    return RemedySentence(about=claim.key, text=text)


def _results(allocation: AllocationResult) -> str:
    found: Iterable[str] = (f"{each.pool}/{each.device}" for each in allocation.devices.results or ())
    return ", ".join([*found][:_MOST_NAMED]) or "its devices"
