"""``berth devices``: the devices of the cluster, and the pods that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from berth.api.devices import BLOCKING, Allocations, ResourceClaim, device_key
from berth.api.node import Node
from berth.api.pod import NodeSelector
from berth.api.selectors import compile_node_selector, named_nodes
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools, NodePool, PooledDevice, PoolKey
from berth.cluster.devices.users import users_of
from berth.cluster.snapshot import Snapshot
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.mirror import open_mirror
from berth_cli.options import EveryRow, NotFoundError, Output, OutputFormat, print_document, run_command
from berth_cli.rendering import MOST_ROWS, and_more, natural, new_table, plain, print_rich

app = typer.Typer()

_MOST_USERS = 3  # pods that a row names
_MOST_ATTRIBUTES = 3

OneNode = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="Only devices of this node.", show_default=False)
]


class DeviceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One device. ``node`` is empty for devices that several nodes can use.

    ``attributes`` and ``capacity``: by name, without the driver's domain. ``taints``: those that keep pods from it.
    ``state``: why it is not given to any pod; empty if it may be.
    """

    driver: str
    pool: str
    device: str
    node: str
    used_by: list[str]
    attributes: dict[str, str | int | bool] = {}
    capacity: dict[str, str] = {}
    taints: list[str] = []
    state: str = ""


class GivenDevice(DeviceLine, frozen=True, kw_only=True):
    """A device of a pod, and the claim and request that it was given to."""

    claim: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList:
    """``refused``: slices that are left out, and why."""

    devices: Sequence[DeviceLine]
    refused: Sequence[str]


@app.command()
def devices(
    *,
    node: OneNode = None,
    every_row: EveryRow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """List the devices of the cluster, and the pods that use them.

    Devices of ResourceSlices, as the mirror has them: those of the newest generation of each pool. -o json has all
    attributes and capacities.
    """
    run_command(_list(NatsServer(nats, nats_context), node, output, every_row=every_row))


async def _list(server: NatsServer, node: str | None, output: OutputFormat, *, every_row: bool) -> None:
    async with (
        open_session(server, name="devices", is_named=not output.is_document) as session,
        open_mirror(session) as mirror,
    ):
        found = device_list(mirror.snapshot, node)
    if output.is_document:
        print_document({"devices": msgspec.to_builtins(found.devices), "refused": list(found.refused)}, output)
    else:
        print_rich(*device_lines(found, rows=None if every_row else MOST_ROWS))


def device_list(snapshot: Snapshot, node: str | None = None) -> DeviceList:
    """The devices in the order of nodes, pools and slices.

    Raises:
        NotFoundError: there is no such node.
    """
    if node is not None:
        row = snapshot.rows.of(node)
        found = None if row is None else snapshot.node_at(row)
        if found is None:
            raise NotFoundError(f"looking for node {node!r:.300}: the mirror has no such node")
        lines = devices_of_node(snapshot, found)
    else:
        lines = [*_lines_of_slices(snapshot), *_lines_of_claims(snapshot)]
    lines.sort(key=lambda each: (natural(each.node), each.driver, natural(each.pool), natural(each.device)))
    refused = [f"slice {name}: {why}" for name, why in sorted(DevicePools.of(snapshot).refused.items())]
    return DeviceList(devices=lines, refused=refused)


def devices_of_node(snapshot: Snapshot, node: Node) -> list[DeviceLine]:
    """The devices that the node's pods can use, then those that claims keep after their slice is deleted."""
    pools, ledger, name = DevicePools.of(snapshot), DeviceLedger.of(snapshot), node.metadata.name
    lines: list[DeviceLine] = []
    for view in pools.seen_from(node):
        state = _state(view)
        every = view.devices or pools.devices_of(view.key)
        lines += [_line(each, snapshot, state) for each in every if _is_for(each, node)]
    for key in ledger.pools_in_use:
        nodes = pools.nodes_of(key)
        if nodes is None or name in nodes:
            gone = [each for each in ledger.in_use(key) if pools.device(key, each) is None]
            lines += [_unknown(key, each, name, snapshot) for each in gone if _is_given(key, each, node, snapshot)]
    return lines


def _is_given(pool: PoolKey, device: str, node: Node, snapshot: Snapshot) -> bool:
    """Whether a claim that the node's pods can use has the device."""
    ledger, claims, key = DeviceLedger.of(snapshot), snapshot.objects(ResourceClaim), device_key(*pool, device)
    owners = (claims.api_object(uid) for uid in (*ledger.owners_of(key), *ledger.sharers_of(key)))
    given = (each.status.allocation for each in owners if each is not None)
    return any(_is_usable_from(each.node_selector, node) for each in given if each is not None)


def _is_usable_from(selector: NodeSelector | None, node: Node) -> bool:
    if selector is None:
        return True
    name, named = node.metadata.name, named_nodes(selector)
    if named is not None and name not in named:  # without compiling the selectors of other nodes
        return False
    return compile_node_selector(selector).matches(name, node.metadata.labels or {})


def device_numbers(snapshot: Snapshot, node: Node) -> tuple[int, int]:
    """How many devices of the node's own pools are in use, and how many there are."""
    pools, ledger, name = DevicePools.of(snapshot), DeviceLedger.of(snapshot), node.metadata.name
    keys = [view.key for view in pools.seen_from(node) if pools.nodes_of(view.key) == frozenset((name,))]
    return sum(len(ledger.in_use(key)) for key in keys), sum(len(pools.devices_of(key)) for key in keys)


def _is_for(device: PooledDevice, node: Node) -> bool:
    part = device.part
    return device.is_for(node) if part.per_device else part.node in (None, node.metadata.name)


def devices_of_pod(snapshot: Snapshot, uid: str, decided: Allocations) -> list[GivenDevice]:
    """The devices of the claims that are reserved for the pod, else those that its Decision has."""
    claims, pools = snapshot.objects(ResourceClaim), DevicePools.of(snapshot)
    given = dict(decided)
    for claim in claims:
        if claim.status.allocation is not None and any(each.uid == uid for each in claim.status.reserved_for or ()):
            given[claim.metadata.uid] = claim.status.allocation
    found: list[GivenDevice] = []
    for claim_uid, allocation in given.items():
        named = claims.api_object(claim_uid)
        for each in allocation.devices.results or ():
            key = each.driver, each.pool
            device = pools.device(key, each.device)
            line = _unknown(key, each.device, "", snapshot) if device is None else _line(device, snapshot, "")
            fields = {name: getattr(line, name) for name in DeviceLine.__struct_fields__}
            found.append(GivenDevice(**fields, claim="" if named is None else named.key, request=each.request))
    return found


def _lines_of_slices(snapshot: Snapshot) -> Iterator[DeviceLine]:
    pools = DevicePools.of(snapshot)
    states: dict[str, dict[PoolKey, str]] = {}  # by node, of pools of which no device is given
    for device in pools:
        if pools.device(device.part.pool, device.device.name) is not device:
            continue  # of a former generation
        node = device.part.node
        if node is not None and node not in states:
            states[node] = _states(snapshot, node)
        yield _line(device, snapshot, "" if node is None else states[node].get(device.part.pool, ""))


def _states(snapshot: Snapshot, name: str) -> dict[PoolKey, str]:
    row = snapshot.rows.of(name)
    node = None if row is None else snapshot.node_at(row)
    if node is None:
        return {}
    views = DevicePools.of(snapshot).seen_from(node)
    return {view.key: state for view in views if (state := _state(view))}


def _state(pool: NodePool) -> str:
    return f"its pool is {pool.trouble}" if pool.trouble else ""


def _lines_of_claims(snapshot: Snapshot) -> Iterator[DeviceLine]:
    """Devices that claims have, and that are in no slice any more."""
    pools, seen = DevicePools.of(snapshot), set[str]()
    for claim in snapshot.objects(ResourceClaim):
        allocation = claim.status.allocation
        for each in (allocation.devices.results if allocation is not None else None) or ():
            key = each.driver, each.pool
            if each.key not in seen and pools.device(key, each.device) is None:
                seen.add(each.key)
                yield _unknown(key, each.device, "", snapshot)


def _unknown(pool: PoolKey, device: str, node: str, snapshot: Snapshot) -> DeviceLine:
    users = users_of(device_key(*pool, device), snapshot)
    return DeviceLine(driver=pool[0], pool=pool[1], device=device, node=node, used_by=users, state="in no slice")


def _line(device: PooledDevice, snapshot: Snapshot, state: str) -> DeviceLine:
    driver, pool = device.part.pool
    own = f"{driver}/"
    attributes = {name: each.typed for name, each in sorted((device.device.attributes or {}).items())}
    return DeviceLine(
        driver=driver,
        pool=pool,
        device=device.device.name,
        node=device.part.node or device.device.node_name or "",
        used_by=users_of(device.key, snapshot),
        attributes={name.removeprefix(own): typed[1] for name, typed in attributes.items() if typed is not None},
        capacity={
            name.removeprefix(own): str(each.value) for name, each in sorted((device.device.capacity or {}).items())
        },
        taints=[taint.text for taint in device.device.taints or () if taint.effect in BLOCKING],
        state=state,
    )


def device_lines(found: DeviceList, *, rows: int | None) -> Iterator[RenderableType]:
    """A table of the first ``rows`` devices, and their number; ``None`` is all."""
    used = sum(1 for each in found.devices if each.used_by)
    yield plain(f"{len(found.devices)} devices, {used} in use")
    if found.devices:
        shown = found.devices[: rows or len(found.devices)]
        is_odd = any(each.taints or each.state for each in shown)
        headings = ("driver", "pool", "device", "node", "attributes", "in use by", *(["not given because"] * is_odd))
        table = new_table(*headings)
        for each in shown:
            cells = (each.driver, each.pool, each.device, _node(each), _attributes(each), _users(each.used_by))
            table.add_row(*map(plain, (*cells, *([_why_not(each)] * is_odd))))
        yield ""
        yield table
        yield from and_more(len(found.devices) - len(shown))
    yield from (plain(each, "yellow") for each in found.refused)


def _node(line: DeviceLine) -> str:
    return line.node or ("" if line.state else "several")


def _attributes(line: DeviceLine) -> str:
    """The first of each kind, as the driver names them."""
    named = [
        f"{name} {str(value).lower() if value in (True, False) else value}" for name, value in line.attributes.items()
    ]
    named = [*named[:_MOST_ATTRIBUTES], *(f"{name} {value}" for name, value in line.capacity.items())]
    more = len(line.attributes) + len(line.capacity) - 2 * _MOST_ATTRIBUTES
    return ", ".join(named[: 2 * _MOST_ATTRIBUTES]) + (", ..." if more > 0 else "")


def _why_not(line: DeviceLine) -> str:
    return ", ".join(filter(None, (line.state, *(f"taint {each}" for each in line.taints))))


def _users(users: Sequence[str]) -> str:
    more = len(users) - _MOST_USERS
    return ", ".join(users[:_MOST_USERS]) + (f" and {more} more" if more > 0 else "")
