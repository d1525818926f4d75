"""The memory that devices take in each service: bytes a device, from `berth up` with devices and without.

    make bench-device-memory ARGS="--nodes 2500"

Needs KUBEBUILDER_ASSETS. Each node has 8 devices with twelve attributes, one of which no other device has. Memory is
read when pods have been bound, with devices by claims, so the libraries and answers of expressions are included.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.claims import PER_NODE, add_claims, remove_claims
from bench.contenders import Berth
from bench.drain import PROC, Form, waiting_pod
from bench.run import UNREACHABLE, add_nodes
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import cluster_user

PODS = 200
_SIZES = re.compile(r"^(VmRSS|VmHWM):\s+(\d+) kB$", re.MULTILINE)
KIBI = 1024


async def memory(plane: ControlPlane, nodes: int, form: Form) -> dict[str, dict[str, int]]:
    """Bytes of each service, now and at most, by the kernel's names."""
    await add_nodes(plane, nodes, form)
    berth = Berth()
    async with cluster_user(plane.kubeconfig_path) as seen:
        names = [f"web-{number}" for number in range(PODS)]
        if form.needs_devices:
            await add_claims(seen, names)
        with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder, berth.run(plane, Path(folder)) as running:
            await seen.create(waiting_pod(name, seen.namespace, berth, form) for name in names)
            await seen.all_bound(names, 120)
            found = {name: _sizes(pid) for name, pid in running.pids.items()}
        if form.needs_devices:
            await remove_claims(seen)
    return found


def _sizes(pid: int) -> dict[str, int]:
    status = (PROC / str(pid) / "status").read_text()
    return {name: int(kibibytes) * KIBI for name, kibibytes in _SIZES.findall(status)}


def main(nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 2500) -> None:
    """Measure and print a table."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    found = {}
    for form in (Form.EQUAL, Form.CLAIMS):
        with control_plane(assets) as plane:
            found[form] = asyncio.run(memory(plane, nodes, form))
    devices = nodes * PER_NODE
    table = Table("service", "bytes a device", "at most", title=f"{devices:,} devices on {nodes:,} nodes")
    for service, sizes in found[Form.CLAIMS].items():
        taken = {name: (size - found[Form.EQUAL][service][name]) / devices for name, size in sizes.items()}
        table.add_row(service, f"{taken['VmRSS']:.0f}", f"{taken['VmHWM']:.0f}")
    Console(highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    typer.run(main)
