"""What would help a pod without devices: for each request, why no devices of a node can be given to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from berth.api.devices import AllocationResult, ResourceClaim
from berth.cluster.devices.users import users_of
from berth.cluster.nodes import Mask, RejectedNodes
from berth.framework.interface import RemedySentence
from berth.plugins.dynamicresources.answers import NodeAnswers
from berth.plugins.dynamicresources.extended import IN_MEMORY
from berth.plugins.dynamicresources.requests import Request

# Nodes whose devices are looked at, and pods that a sentence names.
_MOST_NODES: Final = 200
_MOST_USERS: Final = 3

NO_MATCH, TAINTED, IN_USE, TOGETHER = range(4)


@dataclass(slots=True)
class _Obstacle:
    """One obstacle of a request on some nodes. ``devices``: that match there."""

    nodes: Mask
    devices: int = 0
    users: dict[str, None] = field(default_factory=dict)


def remedies_of(
    answers: NodeAnswers, claims: Sequence[ResourceClaim], nodes: RejectedNodes, among: Mask
) -> Iterator[RemedySentence]:
    """A sentence for each obstacle of each request, on the nodes ``among`` the rejected ones."""
    places = np.flatnonzero(among)[:_MOST_NODES].tolist()
    for request in answers.plan.requests:
        found: dict[int, _Obstacle] = {}
        for place in places:
            kind, matching, users = _obstacle_of(request, answers, int(nodes.rows[place]))
            obstacle = found.setdefault(kind, _Obstacle(np.zeros(len(nodes), dtype=np.bool_)))
            obstacle.nodes[place] = True
            obstacle.devices += matching
            obstacle.users.update(dict.fromkeys(users))
        for kind, obstacle in sorted(found.items()):
            yield _sentence(kind, obstacle, request, claims[request.claim])


def _obstacle_of(request: Request, answers: NodeAnswers, row: int) -> tuple[int, int, list[str]]:
    """The kind, the number of devices that match, and who uses them."""
    candidates, bit = answers.candidates(row), 1 << request.number
    busy = answers.busy(candidates)
    matching = [i for i, trait in enumerate(candidates.traits) if trait.selectable & bit]
    usable = [i for i in matching if candidates.traits[i].usable & bit]
    free = usable if request.is_admin else [i for i in usable if not busy[i]]
    wanted = max(1, len(matching)) if request.takes_all else request.count
    if len(matching) < wanted:
        return NO_MATCH, len(matching), []
    if len(usable) < wanted:
        return TAINTED, len(matching), []
    if len(free) < wanted:
        users = [users_of(candidates.devices[i].key, answers.snapshot) for i in usable]
        return IN_USE, len(matching), [user for each in users for user in each]
    return TOGETHER, len(matching), []


def _sentence(kind: int, obstacle: _Obstacle, request: Request, claim: ResourceClaim) -> RemedySentence:
    asked = "all devices" if request.takes_all else _devices(request.count)
    is_written = claim.metadata.name != IN_MEMORY
    whose = f"claim {claim.metadata.name}, request {request.local_name}" if is_written else "its extended resources"
    about = f"{claim.key}/{request.name}" if is_written else request.device_class.metadata.name
    before = f"asks for {asked} of class {request.device_class.metadata.name} ({whose}); "
    number = obstacle.devices
    match kind:
        case _ if kind == NO_MATCH:
            before += f"{_match(number)}, too few, on" if number else "none matches on"
        case _ if kind == TAINTED:
            before += f"{_match(number)}, with taints that it does not tolerate, on"
        case _ if kind == IN_USE:
            before += f"{_match(number)}, in use by {_named(list(obstacle.users))}, on"
        case _:
            before += f"{_match(number)}, but not with what else the pod asks for, on"
    return RemedySentence(about=about, nodes=obstacle.nodes, before=before)


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _match(number: int) -> str:
    return "1 matches" if number == 1 else f"{number} match"


def _named(users: Sequence[str]) -> str:
    if not users:
        return "others"
    more = len(users) - _MOST_USERS
    return ", ".join(users[:_MOST_USERS]) + (f" and {more} more" if more > 0 else "")


def of_allocated(claim: ResourceClaim, allocation: AllocationResult, nodes: Mask) -> RemedySentence:
    """A claim that has devices already, and the nodes from which these cannot be used."""
    results = allocation.devices.results or ()
    named = ", ".join(f"{each.pool}/{each.device}" for each in results[:_MOST_USERS]) or "its devices"
    before = f"its claim {claim.metadata.name} has {named}, which cannot be used from"
    return RemedySentence(about=claim.key, nodes=nodes, before=before)
