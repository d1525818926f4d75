"""The memory that devices take in each service: bytes a device, from `berth up` with devices and without, at two sizes.

    make bench-device-memory ARGS="--nodes 2500"

Needs KUBEBUILDER_ASSETS. Each node has 8 devices with twelve attributes, one of which no other device has. Memory is
read when pods have been bound, with devices by claims, so the libraries and answers of expressions are included: of the
growth from the first size to the second follows what each device takes, and what is left is taken once.
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
_SIZES = re.compile(r"^(VmRSS|VmHWM|RssFile):\s+(\d+) kB$", re.MULTILINE)
KIBI = 1024
MEBI = 1 << 20
Services = dict[str, dict[str, int]]


async def memory(plane: ControlPlane, nodes: int, form: Form) -> Services:
    """Bytes of each service, now, at most, and of code, by the kernel's names."""
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


def of_devices(assets: Path, nodes: int) -> Services:
    """What each service takes more with devices than without."""
    found = {}
    for form in (Form.EQUAL, Form.CLAIMS):
        with control_plane(assets) as plane:
            found[form] = asyncio.run(memory(plane, nodes, form))
    return {
        service: {name: size - found[Form.EQUAL][service][name] for name, size in sizes.items()}
        for service, sizes in found[Form.CLAIMS].items()
    }


def main(
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes; the second size has twice as many.")] = 2500,
) -> None:
    """Measure and print a table."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    few = nodes * PER_NODE
    less, more = of_devices(assets, nodes), of_devices(assets, 2 * nodes)
    whole = f"of {few:,} devices", f"of {2 * few:,}"
    table = Table("service", *whole, "each further one", "once", "of it code", "most while read")
    table.title = "Bytes a device; once: MiB"
    for service, sizes in more.items():
        each = (sizes["VmRSS"] - less[service]["VmRSS"]) / few
        once = (sizes["VmRSS"] - 2 * few * each) / MEBI
        table.add_row(
            service,
            f"{less[service]['VmRSS'] / few:.0f}",
            f"{sizes['VmRSS'] / (2 * few):.0f}",
            f"{each:.0f}",
            f"{once:.1f}",
            f"{sizes['RssFile'] / MEBI:.1f}",
            f"{sizes['VmHWM'] / (2 * few):.0f}",
        )
    Console(highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    typer.run(main)
