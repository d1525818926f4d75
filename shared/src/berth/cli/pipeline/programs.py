"""Which programs a pipeline is made of, and their command lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth.bus.server import ServerSettings, config_text, find_nats_server
from berth.cli.pipeline.supervisor import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What every service of one pipeline is told alike."""

    nats: str
    kubeconfig: Path
    config: Path | None
    algorithm_provider: str | None
    feature_gates: str | None
    verbosity: int
    identity: str
    """Unique for this pipeline: a service that is started again under it takes its own Lease back at once. Only whoever
    has seen the former process end may do so."""
    ready: Path
    """A folder in which each service writes that it is ready."""
    extra: tuple[str, ...] = ()
    """Further flags, as they were given."""


def nats_server(folder: Path, port: int, *, name: str) -> Program:
    """The embedded NATS server; its configuration lies beside its store, which may be lost and made anew."""
    config = folder / "nats-server.conf"
    config.write_text(config_text(ServerSettings(store=folder / "nats", port=port, name=name)))
    command = (str(find_nats_server()), "--config", str(config))
    return Program(name="nats-server", command=command, log=folder / "nats.log", serves_others=True)


def simulated_cluster(folder: Path, port: int, *, nodes: int) -> Program:
    """The simulated cluster, which writes its kubeconfig into the folder."""
    command = (
        *(sys.executable, "-m", "berth.sim"),
        *("--port", str(port)),
        *("--nodes", str(nodes)),
        *("--kubeconfig-out", str(folder / "kubeconfig")),
    )
    return Program(name="cluster", command=command, log=folder / "cluster.log", serves_others=True)


def services(options: ServiceOptions, *, scorers: int) -> Iterable[Program]:
    """Watcher, binder, metrics collector and scorers."""
    yield _service("berth_watcher", "watcher", options)
    yield _service("berth_binder", "binder", options)
    yield _service("berth_metrics_collector", "metrics-collector", options)
    for number in range(1, scorers + 1):
        yield _service("berth_scorer", f"scorer-{number}", options)


def ready_file(options: ServiceOptions, program: Program) -> Path:
    """What a service writes once it works."""
    return options.ready / program.name


NEED_THE_API: Final = frozenset({"berth_watcher", "berth_binder"})
"""The others talk to NATS alone and get no credentials."""


def _service(module: str, name: str, options: ServiceOptions) -> Program:
    command: Sequence[str] = (
        *(sys.executable, "-m", module),
        *("--nats", options.nats),
        *(("--kubeconfig", str(options.kubeconfig)) if module in NEED_THE_API else ()),
        *(("--config", str(options.config)) if options.config is not None else ()),
        *(("--algorithm-provider", options.algorithm_provider) if options.algorithm_provider is not None else ()),
        *(("--feature-gates", options.feature_gates) if options.feature_gates is not None else ()),
        *("-v", str(options.verbosity)),
        *("--identity", f"{options.identity}_{name}"),
        *("--ready-file", str(options.ready / name)),
        *(options.extra if module in NEED_THE_API else ()),
    )
    return Program(name=name, command=command)


def described(programs: Iterable[Program]) -> str:
    """The command lines, for ``-v 2`` and for bug reports."""
    return "\n".join(f"{program.name}: {json.dumps(list(program.command))}" for program in programs)
