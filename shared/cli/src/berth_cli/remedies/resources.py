"""Resources that are short: what the pod asks for, beside the largest node and the freest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from berth.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY
from berth.cluster.nodes import Amount, Mask, Nodes
from berth.cluster.snapshot import Snapshot
from berth.messages.attempts import Rejection
from berth.plugins.noderesources.fit import INSUFFICIENT, NAME, TOO_MANY_PODS, WANTED
from berth_cli.remedies.refusals import Counts, NodeRefusals, cut, places_by_name, several
from berth_cli.remedies.remedy import MOST_REMEDIES, Remedy

_MILLI: Final = 1000
_BINARY: Final = ("", " KiB", " MiB", " GiB", " TiB", " PiB")
_STEP: Final = 1024
_IN_BYTES: Final = frozenset({MEMORY, EPHEMERAL_STORAGE})
_WORDS: Final = {CPU: "CPU", MEMORY: "memory", EPHEMERAL_STORAGE: "ephemeral storage"}


def short_resources(refusals: NodeRefusals) -> Iterator[Remedy]:
    """One for each resource of which nodes have too little free, and one for those that may have no more pods."""
    nodes, refused = refusals.nodes, refusals.refused(NAME)
    wanted = refusals.state.find(WANTED) or ()
    short: list[Mask] = [asked > nodes.allocatable(name) - nodes.requested(name) for name, asked in wanted]
    full: Mask = refused & (nodes.pods + 1 > nodes.allowed_pods)
    once = refusals.alone(NAME) & (np.sum([*short, full], axis=0) == 1)
    for (resource, asked), mask in zip(wanted, short, strict=True):
        kept: Mask = refused & mask
        if kept.any():
            yield _remedy(refusals, resource, asked, kept, kept & once)
    if full.any():
        yield refusals.remedy(NAME, TOO_MANY_PODS, full, after="have as many pods as they may", only=once)


def _remedy(refusals: NodeRefusals, resource: str, asked: int, short: Mask, only: Mask) -> Remedy:
    """About the nodes that lack nothing else, where there are some."""
    among = only if only.any() else short
    count, nodes = int(np.count_nonzero(among)), refusals.nodes
    room = _room(nodes, resource, among, refusals.places)
    if count == len(nodes):
        compared = _compared(resource, room, asked)
    elif count == 1:
        compared = f"{room.node}{', which nothing else refuses,' if only.any() else ''} has {_free(resource, room)}"
    else:
        which = "that nothing else refuses" if only.any() else "that have too little"
        compared = f"of the {several(count)} {which}, {_compared(resource, room, asked)}"
    return Remedy(
        plugin=NAME,
        about=cut(resource),
        text=cut(f"asks for {amount(resource, asked, up=True)} {_word(resource)}; {compared}"),
        nodes=int(np.count_nonzero(short)),
        alone=int(np.count_nonzero(only)),
        examples=[room.node],
        amounts={"asked": asked, "largest": room.largest, "free": room.free, "allocatable": room.allocatable},
    )


class _Room(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one of some nodes has of a resource, and the node with the most free."""

    largest: int
    node: str
    free: int
    allocatable: int


def _room(nodes: Nodes, resource: str, among: Mask, places: Counts) -> _Room:
    """``places`` are those of the nodes by name: of equally free ones the first is named."""
    allocatable: Amount = nodes.allocatable(resource)
    free = np.where(among, allocatable - nodes.requested(resource), -np.inf)
    names, most = nodes.snapshot.rows.names, free.max()
    freest = np.flatnonzero(free == most)
    first = int(freest[places[freest].argmin()])
    return _Room(
        largest=int(allocatable[among].max()),
        node=names[int(nodes.rows[first])],
        free=int(max(0.0, most)),
        allocatable=int(allocatable[first]),
    )


def _compared(resource: str, room: _Room, asked: int) -> str:
    if not room.largest:
        return "no node has any"
    if asked > room.largest:
        largest = f"the largest node has {amount(resource, room.largest)}"
        return f"{largest}, and the freest {_free(resource, room)} ({room.node})"
    little = amount(resource, asked - room.free, up=True)
    return f"the freest node has {_free(resource, room)} ({room.node}), {little} too little"


def _free(resource: str, room: _Room) -> str:
    return f"{amount(resource, room.free)} of {amount(resource, room.allocatable)} free"


def room_for(rejections: Sequence[Rejection], snapshot: Snapshot) -> list[Remedy]:
    """Of a pod whose requests are unknown: what nodes have of the resources that were short when it was refused."""
    rows = np.flatnonzero(snapshot.columns.exists[: snapshot.size])
    every: Nodes = Nodes(snapshot, rows)
    found: list[Remedy] = []
    places = places_by_name(every)
    for rejection in rejections if len(rows) else ():
        if len(found) == MOST_REMEDIES:
            break
        resource = rejection.reason.removeprefix(INSUFFICIENT.format(""))
        if rejection.plugin != NAME or resource == rejection.reason:
            continue
        room = _room(every, resource, np.ones(len(rows), dtype=np.bool_), places)
        known = {"largest": room.largest, "free": room.free, "allocatable": room.allocatable}
        has = f"the largest node has {amount(resource, room.largest)}"
        text = f"{has}, and the freest {_free(resource, room)} ({room.node})" if room.largest else "no node has any"
        text = f"{_word(resource)}: {text}"
        about, nodes = cut(resource), rejection.nodes
        found.append(Remedy(plugin=NAME, about=about, text=cut(text), nodes=nodes, examples=[room.node], amounts=known))
    return found


def _word(resource: str) -> str:
    """The resource in a sentence."""
    return _WORDS.get(resource, resource)


def amount(resource: str, value: int, *, up: bool = False) -> str:
    """``2.5``, ``500m``, ``3.75 GiB``: to two places, rounded down, or ``up``, so that no shortage disappears."""
    if resource == CPU:
        whole = f"{value / _MILLI:.3f}".rstrip("0").rstrip(".")
        return whole if value >= _MILLI or not value else f"{value}m"
    if resource not in _IN_BYTES:
        return str(value)
    step = 0
    while step < len(_BINARY) - 1 and value >= _STEP ** (step + 1):
        step += 1
    hundredths = -(-value * 100 // _STEP**step) if up else value * 100 // _STEP**step
    return f"{f'{hundredths / 100:.2f}'.rstrip('0').rstrip('.')}{_BINARY[step] or ' B'}"
