"""The whole pipeline as child processes: the bus, a cluster unless one is given, the services.

Their temporary folder is removed at the end, or by the next pipeline after a crash.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.config.profiles import DEFAULT_SCHEDULER_NAME
from berth.bus.interface import BusLostError
from berth.exits import UsageError
from berth.leader.samepods import LeaseName
from berth.settings.sources import read_settings
from berth_cli.bus import apply_bus
from berth_cli.pipeline import access
from berth_cli.pipeline.natsserver import LOOPBACK
from berth_cli.pipeline.programs import (
    SERVICE_MODULES,
    ServiceOptions,
    ShadowOptions,
    ready_file,
    services,
    simulated_cluster,
    write_traffic_configuration,
)
from berth_cli.pipeline.room import want_room, watched_room
from berth_cli.pipeline.servers import (
    ANY_PORT,
    check_api,
    check_other_schedulers,
    check_simulated_cluster,
    embedded_nats,
    free_port,
    retry,
    retry_aloud,
)
from berth_cli.pipeline.supervisor import Program, Report, Supervisor, last_log_lines

START: Final = timedelta(seconds=20)  # until the embedded server or the simulated cluster first answers
PATIENCE: Final = timedelta(seconds=10)  # until a given server counts as unreachable
SHADOW_VARIABLE: Final = "BERTH_SHADOW"
REMINDER: Final = timedelta(seconds=10)  # between two lines about services that are not ready


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The parts to run. Without a kubeconfig the cluster is simulated, without a NATS address NATS is embedded."""

    kubeconfig: Path | None = None
    nats: str | None = None
    nats_ports: tuple[int, ...] = (ANY_PORT,)  # of an embedded server: the first free one is taken
    config: Path | None = None
    # Preset that profiles start from, as typed; None: the default of the services.
    algorithm_provider: str | None = None
    feature_gates: str | None = None  # of the preset, as typed
    scorers: int = 1
    shadows: tuple[ShadowOptions, ...] = ()
    nodes: int = 100  # of a simulated cluster
    devices: int = 0  # of each simulated node
    # The schedulerName that a simulated cluster gives pods without one: a profile's name.
    default_scheduler: str = DEFAULT_SCHEDULER_NAME
    # Whether NetworkTraffic is enabled, on the generated traffic of the simulated cluster.
    weighs_traffic: bool = False
    verbosity: int = 0
    leader_elect: str | None = None  # true or false, as typed; None: as in the configuration
    # Leases of schedulers that may have the same pods: no service is started on a given cluster while one is live.
    leases_of_others: tuple[LeaseName, ...] = ()
    allow_other_scheduler: bool = False  # start beside them with a warning
    # Services log to files instead of standard error; the end of a file is printed when its service fails.
    keep_services_quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    nats: str
    kubeconfig: Path
    programs: tuple[Program, ...]
    options: ServiceOptions
    report: Report

    def not_ready(self) -> list[str]:
        return [program.name for program in self.programs if not ready_file(self.options, program).exists()]

    def report_logs(self, names: Collection[str]) -> None:
        """Print the end of each service's log file."""
        for program in self.programs:
            if program.name in names:
                for line in last_log_lines(program):
                    self.report(f"{program.name}: {line}")

    async def ready(self) -> None:
        """Wait until every service is ready, with a line about the missing ones from time to time."""
        loop = asyncio.get_running_loop()
        reminder = loop.time() + REMINDER.total_seconds()
        while missing := self.not_ready():
            if loop.time() >= reminder:
                self.report(f"not ready yet: {', '.join(missing)}")
                reminder += REMINDER.total_seconds()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def pipeline(options: PipelineOptions, report: Report) -> AsyncIterator[Pipeline]:
    """Start everything; at the block's end stop it and remove its files.

    Raises (on entering, or in the block, in an exception group):
        TemporaryError: the given API server or NATS server does not answer.
        OtherSchedulerError: another scheduler has the same pods on the given cluster.
        ChildRefusedError: a service rejects its settings.
        UsageError: the environment makes shadows of all scorers.
        BerthError: there is too little room for an embedded NATS server.
    """
    if os.environ.get(SHADOW_VARIABLE):
        raise UsageError(f"{SHADOW_VARIABLE} makes shadows of all scorers, and nothing would be ranked: unset it")
    with working_folder() as folder:
        if options.nats is None:
            want_room(folder)
        async with watched_room(folder, report), Supervisor(report, forked=SERVICE_MODULES) as supervisor:
            yield await _start(options, folder, supervisor, report)


async def _start(options: PipelineOptions, folder: Path, supervisor: Supervisor, report: Report) -> Pipeline:
    own = read_settings().nats
    nats = options.nats or await embedded_nats(options.nats_ports, folder, supervisor, within=START, settings=own)
    port, kubeconfig = free_port(), options.kubeconfig or folder / "kubeconfig"
    if not options.kubeconfig:
        supervisor.start(
            simulated_cluster(
                folder,
                port,
                nodes=options.nodes,
                devices=options.devices,
                default_scheduler=options.default_scheduler,
            )
        )
    elif not options.nats:
        access.announce_cluster(folder, kubeconfig)
    if options.weighs_traffic:
        options = replace(options, config=write_traffic_configuration(folder, f"http://{LOOPBACK}:{port}"))
    try:
        if options.nats:
            await retry_aloud(lambda: apply_bus(nats), within=PATIENCE, what=f"NATS at {nats}", report=report)
        else:
            await retry(lambda: apply_bus(nats, is_own=True), within=START)
    except BusLostError as exc:
        if options.nats:
            raise BusLostError(f"{exc}: name another server with --nats, or none to run one here") from exc
        raise
    if options.kubeconfig:
        what = f"the API server of {kubeconfig}"
        await retry_aloud(lambda: check_api(kubeconfig), within=PATIENCE, what=what, report=report)
        await check_other_schedulers(
            kubeconfig, options.leases_of_others, is_allowed=options.allow_other_scheduler, report=report
        )
    else:
        await retry(lambda: check_simulated_cluster(kubeconfig), within=START)
    service_options = replace(_service_options(options, nats, kubeconfig, folder), prefix=own.prefix)
    programs = tuple(services(service_options, scorers=options.scorers, shadows=options.shadows))
    if options.keep_services_quiet:
        programs = tuple(_with_log_file(program, folder) for program in programs)
    for program in programs:
        supervisor.start(program)
    return Pipeline(
        nats=nats,
        kubeconfig=kubeconfig,
        programs=programs,
        options=service_options,
        report=report,
    )


def _service_options(options: PipelineOptions, nats: str, kubeconfig: Path, folder: Path) -> ServiceOptions:
    ready = folder / "ready"
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
        users=None if options.nats else folder,
        extra=tuple(_further_flags(options)),
    )


def _further_flags(options: PipelineOptions) -> Iterator[str]:
    if options.leader_elect is not None:
        yield f"--leader-elect={options.leader_elect}"
    if options.allow_other_scheduler:
        yield "--allow-other-scheduler"


def _with_log_file(program: Program, folder: Path) -> Program:
    """The program with its log in a file, to be printed when it fails."""
    environment = {"BERTH_LOG_FORMAT": "text", **program.environment}
    return replace(program, log=folder / f"{program.name}.log", environment=environment)


@contextmanager
def working_folder() -> Iterator[Path]:
    """A temporary folder in the block. Folders of ended processes are removed first."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{access.FOLDER_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{access.FOLDER_PREFIX}*-*"):
        if access.is_abandoned(folder) and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
