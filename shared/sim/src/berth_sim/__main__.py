"""`python -m berth_sim`: a simulated cluster in the foreground; prints its addresses as one line of JSON."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from berth.api.pod import DEFAULT_SCHEDULER
from berth.safetext import one_line
from berth_sim import cluster as snapshot
from berth_sim.apiserver.store import DEFAULT_HISTORY
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import KubeletSettings, node_manifests

EXIT_USAGE = 2
EXIT_UNREACHABLE = 3


def parser() -> argparse.ArgumentParser:
    line = argparse.ArgumentParser(prog="python -m berth_sim", description=__doc__)
    line.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    line.add_argument("--port", type=int, default=0, help="port to listen on; 0 is any free port")
    line.add_argument("--nodes", type=int, default=0, metavar="N", help="how many equal nodes to create")
    line.add_argument("--node-cpu", default="4", help="cpu of a created node (default: %(default)s)")
    line.add_argument("--node-memory", default="16Gi", help="memory of a created node (default: %(default)s)")
    line.add_argument("--node-pods", type=int, default=110, help="pods of a created node (default: %(default)s)")
    line.add_argument("--devices", type=int, default=0, metavar="N", help="GPUs of each node, by a played driver")
    line.add_argument("--load", type=Path, metavar="FILE", help="objects as `kubectl get -o json|yaml` writes them")
    line.add_argument("--kubeconfig-out", type=Path, metavar="FILE", help="where to write a kubeconfig")
    line.add_argument(
        "--history",
        type=int,
        default=DEFAULT_HISTORY,
        help="changes of each kind that watches can resume from",
    )
    line.add_argument(
        "--identity",
        default="",
        metavar="NAME",
        help="a cluster that is started again with this name is the same one, without its objects",
    )
    line.add_argument(
        "--default-scheduler",
        default=DEFAULT_SCHEDULER,
        metavar="NAME",
        help="schedulerName of pods that name none (default: %(default)s)",
    )
    line.add_argument("--start-delay", type=_seconds, default="0.5", help="seconds from Binding to Running")
    return line


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError) as exc:  # float accepts nan and inf
        raise argparse.ArgumentTypeError(f"want seconds, got {text!r}") from exc


async def serve(arguments: argparse.Namespace) -> None:
    """Run the cluster until SIGTERM or SIGINT.

    Raises:
        SnapshotError: the file to load is not a snapshot.
        OSError: the port is taken or the kubeconfig cannot be written.
    """
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    cluster = SimulatedCluster(
        nodes=node_manifests(
            arguments.nodes, cpu=arguments.node_cpu, memory=arguments.node_memory, pods=arguments.node_pods
        ),
        objects=snapshot.read(arguments.load) if arguments.load else (),
        host=arguments.host,
        port=arguments.port,
        kubelet=KubeletSettings(start_delay=arguments.start_delay),
        devices=arguments.devices,
        history=arguments.history,
        kubeconfig_path=arguments.kubeconfig_out,
        default_scheduler=arguments.default_scheduler,
        identity=arguments.identity,
    )
    async with cluster:
        started = {
            "event": "listening",
            "url": cluster.url,
            "kubeconfig": str(cluster.kubeconfig_path),
            "prometheus": cluster.prometheus_url,
        }
        _print({**started, "nodes": arguments.nodes, "loaded": cluster.loaded})
        await stopped.wait()


def _print(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        _run(arguments)
    except snapshot.SnapshotError as exc:
        sys.stderr.write(f"{one_line(str(exc))}\n")
        return EXIT_USAGE
    except OSError as exc:
        sys.stderr.write(f"starting the simulated cluster on {arguments.host}:{arguments.port}: {one_line(str(exc))}\n")
        return EXIT_UNREACHABLE
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if sys.platform == "win32":
        asyncio.run(serve(arguments))
        return
    import uvloop  # noqa: PLC0415 - it does not exist on Windows

    uvloop.run(serve(arguments))


if __name__ == "__main__":
    sys.exit(main())
