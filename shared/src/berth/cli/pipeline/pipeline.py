"""The embedded NATS server of a pipeline: on the port where everybody looks first, if that is free.

The whole pipeline as children of this process: bus, cluster if none is given, services.
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.errors import TemporaryError
from berth.bus.server import LOOPBACK
from berth.cli.pipeline.folders import working_folder
from berth.cli.pipeline.programs import ServiceOptions, nats_server, ready_file, services, simulated_cluster
from berth.cli.pipeline.reachable import answers, apply_bus, ask_api, ask_simulated, free_port
from berth.cli.pipeline.supervisor import Program, Say, Supervisor, last_words
from berth.cli.pipeline.traffic import write_configuration

DEFAULT_PORT: Final = 4222
"""Where the NATS CLI, and every command here, looks unless told otherwise."""

ANY_PORT: Final = 0

_HELLO_SECONDS: Final = 2.0


async def embedded_nats(ports: tuple[int, ...], folder: Path, supervisor: Supervisor, *, within: timedelta) -> str:
    """Start the server; its address, once it is known that this very server answers there.

    Raises:
        TemporaryError: none of the ports is free, or somebody else answers on the one that was.
    """
    port, name = _first_free(ports), f"berth-{uuid.uuid4().hex}"
    supervisor.start(nats_server(folder, port, name=name))
    await answers(lambda: _is_ours(port, name), within=within)
    return f"nats://{LOOPBACK}:{port}"


def _first_free(ports: tuple[int, ...]) -> int:
    for port in ports:
        if port == ANY_PORT:
            return free_port()
        if is_free(port):
            return port
    raise TemporaryError(f"starting NATS on port {', '.join(map(str, ports))} of {LOOPBACK}: somebody listens there")


def is_free(port: int) -> bool:
    """Whether nobody listens on this port of the loopback address."""
    with socket.socket() as probe:
        # Connections of a server that has just ended linger for a minute and are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


async def _is_ours(port: int, name: str) -> None:
    """Two pipelines that start at once may both have found the port free: they must not share one server.

    Raises:
        TemporaryError: nobody answers yet, or somebody else does.
    """
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                hello = await reader.readline()
            finally:
                writer.transport.abort()
        found = json.loads(hello.partition(b" ")[2])["server_name"]
    except (OSError, TimeoutError, ValueError, LookupError, TypeError) as exc:
        raise TemporaryError(f"starting NATS on port {port}: it does not answer yet ({exc})") from exc
    if found != name:
        raise TemporaryError(f"starting NATS on port {port}: another server took it at the same moment: try again")


START: Final = timedelta(seconds=20)
"""How long the embedded server or the simulated cluster may take to answer for the first time."""

PATIENCE: Final = timedelta(seconds=10)
"""How long a server that is not ours may take to answer before it is called unreachable."""

REMINDER: Final = timedelta(seconds=10)
"""Between two lines that say who is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """What to run. Without a kubeconfig the cluster is simulated, without a NATS address the server is embedded."""

    kubeconfig: Path | None = None
    nats: str | None = None
    nats_ports: tuple[int, ...] = (ANY_PORT,)
    """Ports for an embedded server, the first that is free is taken; ``ANY_PORT`` is any."""
    config: Path | None = None
    algorithm_provider: str | None = None
    """Name of the preset that profiles start from, as it was typed; ``None``: as the services have it."""
    feature_gates: str | None = None
    """Its gates, as they were typed."""
    scorers: int = 1
    nodes: int = 100
    """Nodes of a simulated cluster."""
    weighs_traffic: bool = False
    """Whether NetworkTraffic is enabled, on the made-up traffic of the simulated cluster."""
    verbosity: int = 0
    leader_elect: str | None = None
    """``true`` or ``false``, as it was typed; ``None``: as the configuration says."""
    keep_services_quiet: bool = False
    """Their words go to a file, shown when something goes wrong, in place of standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline that was started: where its bus and its cluster are, and who is to be ready."""

    nats: str
    kubeconfig: Path
    programs: tuple[Program, ...]
    options: ServiceOptions
    supervisor: Supervisor
    say: Say

    def not_ready(self) -> list[str]:
        """The services that have not said that they work."""
        return [program.name for program in self.programs if not ready_file(self.options, program).exists()]

    def tell_last_words(self, names: Collection[str]) -> None:
        """Show the ends of what these services have written, where it goes to files."""
        for program in self.programs:
            if program.name in names:
                for line in last_words(program):
                    self.say(f"{program.name}: {line}")

    async def ready(self) -> None:
        """Wait until every service works; say now and then for whom."""
        loop = asyncio.get_running_loop()
        reminder = loop.time() + REMINDER.total_seconds()
        while missing := self.not_ready():
            if loop.time() >= reminder:
                self.say(f"not ready yet: {', '.join(missing)}")
                reminder += REMINDER.total_seconds()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def pipeline(options: PipelineOptions, say: Say) -> AsyncIterator[Pipeline]:
    """Start everything; end everything on leaving, and remove what was written.

    Raises (on entering, or in the block, in an exception group):
        TemporaryError: the API server or the NATS server that was named does not answer.
        ChildRefusedError: a service cannot run as it was told to.
    """
    with working_folder() as folder:
        async with Supervisor(say) as supervisor:
            yield await _start(options, folder, supervisor, say)


async def _start(options: PipelineOptions, folder: Path, supervisor: Supervisor, say: Say) -> Pipeline:
    nats = options.nats or await embedded_nats(options.nats_ports, folder, supervisor, within=START)
    port = free_port()
    kubeconfig = options.kubeconfig or _simulated_cluster(options, port, folder, supervisor)
    if options.weighs_traffic:
        options = replace(options, config=write_configuration(folder, f"http://127.0.0.1:{port}"))
    await answers(lambda: apply_bus(nats), within=PATIENCE if options.nats else START)
    if options.kubeconfig:
        await answers(lambda: ask_api(kubeconfig), within=PATIENCE)
    else:
        await answers(lambda: ask_simulated(kubeconfig), within=START)
    told = _told(options, nats, kubeconfig, folder / "ready")
    programs = tuple(services(told, scorers=options.scorers))
    if options.keep_services_quiet:
        programs = tuple(_quiet(program, folder) for program in programs)
    for program in programs:
        supervisor.start(program)
    return Pipeline(nats=nats, kubeconfig=kubeconfig, programs=programs, options=told, supervisor=supervisor, say=say)


def _quiet(program: Program, folder: Path) -> Program:
    """With its words in a file, in the form for people, who are shown them when something goes wrong."""
    readable = {"BERTH_LOG_FORMAT": "text", **program.environment}
    return replace(program, log=folder / f"{program.name}.log", environment=readable)


def _told(options: PipelineOptions, nats: str, kubeconfig: Path, ready: Path) -> ServiceOptions:
    ready.mkdir()
    return ServiceOptions(
        nats=nats,
        kubeconfig=kubeconfig,
        config=options.config,
        algorithm_provider=options.algorithm_provider,
        feature_gates=options.feature_gates,
        verbosity=options.verbosity,
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
        ready=ready,
        extra=() if options.leader_elect is None else (f"--leader-elect={options.leader_elect}",),
    )


def _simulated_cluster(options: PipelineOptions, port: int, folder: Path, supervisor: Supervisor) -> Path:
    supervisor.start(simulated_cluster(folder, port, nodes=options.nodes))
    return folder / "kubeconfig"
