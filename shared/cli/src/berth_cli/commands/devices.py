"""``berth devices``: the devices of the cluster, and the pods that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from berth.cluster.devices.pools import DevicePools, PooledDevice
from berth.cluster.devices.users import users_of
from berth.cluster.snapshot import Snapshot
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.mirror import open_mirror
from berth_cli.options import EveryRow, Output, OutputFormat, print_document, run_command
from berth_cli.rendering import MOST_ROWS, and_more, natural, new_table, plain, print_rich

app = typer.Typer()

_MOST_USERS = 3  # pods that a row names

OneNode = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="Only devices of this node.", show_default=False)
]


class DeviceLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One device. ``node`` is empty for devices that several nodes can use."""

    driver: str
    pool: str
    device: str
    node: str
    used_by: list[str]


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
    """List the devices of the cluster (ResourceSlices), and the pods that use them.

    As the mirror has them; devices of the newest generation of each pool.
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
    """The devices in the order of nodes, pools and slices."""
    pools = DevicePools.of(snapshot)
    found = [_line(device, snapshot) for device in pools if _is_current(device, pools)]
    lines = [each for each in found if node in (None, each.node)]
    lines.sort(key=lambda each: (natural(each.node), each.driver, natural(each.pool), natural(each.device)))
    refused = [f"slice {name}: {why}" for name, why in sorted(pools.refused.items())]
    return DeviceList(devices=lines, refused=refused)


def _is_current(device: PooledDevice, pools: DevicePools) -> bool:
    return pools.device(device.part.pool, device.device.name) is device


def _line(device: PooledDevice, snapshot: Snapshot) -> DeviceLine:
    driver, pool = device.part.pool
    return DeviceLine(
        driver=driver,
        pool=pool,
        device=device.device.name,
        node=device.part.node or device.device.node_name or "",
        used_by=users_of(device.key, snapshot),
    )


def device_lines(found: DeviceList, *, rows: int | None) -> Iterator[RenderableType]:
    """A table of the first ``rows`` devices, and their number; ``None`` is all."""
    used = sum(1 for each in found.devices if each.used_by)
    yield plain(f"{len(found.devices)} devices, {used} in use")
    if found.devices:
        table = new_table("driver", "pool", "device", "node", "in use by")
        shown = found.devices[: rows or len(found.devices)]
        for each in shown:
            table.add_row(each.driver, each.pool, each.device, each.node or "several", _users(each.used_by))
        yield ""
        yield table
        yield from and_more(len(found.devices) - len(shown))
    yield from (plain(each, "yellow") for each in found.refused)


def _users(users: Sequence[str]) -> str:
    more = len(users) - _MOST_USERS
    return ", ".join(users[:_MOST_USERS]) + (f" and {more} more" if more > 0 else "")
