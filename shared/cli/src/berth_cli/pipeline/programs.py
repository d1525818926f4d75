"""The programs of a pipeline, with their command lines: NATS, a simulated cluster, the services."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from berth.bus.settings import MEBIBYTE, TopologySettings
from berth.bus.topology import reserved_bytes
from berth.settings.settings import NatsSettings
from berth_cli.pipeline import access
from berth_cli.pipeline.natsserver import ServerSettings, config_text, find_nats_server
from berth_cli.pipeline.room import free_bytes, stream_limits
from berth_cli.pipeline.supervisor import Program

# The services that use the API server, the collector for metrics.k8s.io; scorers use NATS only and get no credentials.
_NEED_THE_API: Final = frozenset({"berth_watcher", "berth_binder", "berth_metrics_collector"})
# Each service's NATS user; a shadow is a scorer with another user.
_USERS: Final = {
    "berth_watcher": "watcher",
    "berth_binder": "binder",
    "berth_scorer": "scorer",
    "berth_metrics_collector": "collector",
}
_SHADOW: Final = "shadow"
SERVICE_MODULES: Final = tuple(_USERS)
_TRAFFIC_CONFIGURATION: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins:
    multiPoint:
      enabled:
      - name: NetworkTraffic
  pluginConfig:
  - name: NetworkTraffic
    args:
      url: {url}
      deviceName: eth0
      timeRange: 5
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOptions:
    name: str
    config: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    nats: str
    kubeconfig: Path
    config: Path | None
    algorithm_provider: str | None
    feature_gates: str | None
    verbosity: int
    # Unique for this pipeline. A restarted service with the same identity takes its Lease again at once; this is
    # allowed only after its former process has ended.
    identity: str
    ready: Path  # the folder of the services' ready files
    extra: tuple[str, ...] = ()  # further flags of all services
    # The working folder with the passwords of an embedded NATS server; None for a given server.
    users: Path | None = None
    prefix: str = ""  # of this berth's names on the bus


def services(options: ServiceOptions, *, scorers: int, shadows: Sequence[ShadowOptions] = ()) -> Iterable[Program]:
    yield _service("berth_watcher", "watcher", options)
    yield _service("berth_binder", "binder", options)
    yield _service("berth_metrics_collector", "metrics-collector", options)
    for number in range(1, scorers + 1):
        yield _service("berth_scorer", f"scorer-{number}", options)
    for shadow in shadows:
        flags, own = ("--shadow", shadow.name), replace(options, config=shadow.config)
        yield _service("berth_scorer", f"shadow-{shadow.name}", own, user=_SHADOW, flags=flags)


def _service(module: str, name: str, options: ServiceOptions, *, user: str = "", flags: Sequence[str] = ()) -> Program:
    command: Sequence[str] = (
        *(sys.executable, "-m", module),
        *("--nats", options.nats),
        *(("--kubeconfig", str(options.kubeconfig)) if module in _NEED_THE_API else ()),
        *(("--config", str(options.config)) if options.config is not None else ()),
        *(("--algorithm-provider", options.algorithm_provider) if options.algorithm_provider is not None else ()),
        *(("--feature-gates", options.feature_gates) if options.feature_gates is not None else ()),
        *("-v", str(options.verbosity)),
        *("--identity", f"{options.identity}_{name}"),
        *("--ready-file", str(options.ready / name)),
        *options.extra,
        *flags,
    )
    user = user or _USERS[module]
    environment = access.environment(options.users, user, options.prefix) if options.users is not None else {}
    return Program(name=name, command=command, environment=environment, module=module)


def ready_file(options: ServiceOptions, program: Program) -> Path:
    return options.ready / program.name


GO_THREADS: Final = "GOMAXPROCS"
# Cores per Go thread of the embedded nats-server. It has work for one thread; idle ones spin. On two cores, one thread
# instead of two takes 0.49 to 0.59 ms of CPU a pod instead of 0.71 to 0.76, and 340 and 411 pods a second are bound
# instead of 323 and 360 (`bench.run --nodes 1000 --pods 2000`).
CORES_PER_THREAD: Final = 4
GO_MEMORY: Final = "GOMEMLIMIT"
# Above this Go frees memory as soon as it can, else it may keep as much again. Clients that read nothing cost less.
MEMORY: Final = "2250MiB"


def nats_server(folder: Path, port: int, *, name: str, settings: NatsSettings | None = None) -> Program:
    """A nats-server with its configuration and store in the folder."""
    config, settings = folder / "nats-server.conf", settings or NatsSettings()
    prefix, limits = settings.prefix, stream_limits(free_bytes(folder), settings, os.environ)
    # The store limit exceeds the streams' sizes, so that a small disk does not keep NATS from starting.
    store_bytes = 2 * (reserved_bytes(TopologySettings()) + sum(map(int, limits.values())) * MEBIBYTE)
    log = folder / "nats.log"
    text = config_text(ServerSettings(store=folder / "nats", port=port, name=name, store_bytes=store_bytes, log=log))
    config.touch(mode=0o600)
    config.write_text(text + access.create_passwords(folder, prefix), encoding="utf-8")
    access.write_limits(folder, limits)
    command = (str(find_nats_server()), "--config", str(config))
    threads = os.environ.get(GO_THREADS) or str(max(1, (os.cpu_count() or 1) // CORES_PER_THREAD))
    return Program(
        name="nats-server",
        command=command,
        environment={GO_THREADS: threads, GO_MEMORY: os.environ.get(GO_MEMORY) or MEMORY},
        log=log,
        stops_last=True,
    )


def simulated_cluster(folder: Path, port: int, *, nodes: int, devices: int, default_scheduler: str) -> Program:
    """The simulated cluster, which writes its kubeconfig into the folder.

    ``default_scheduler``: the schedulerName of pods without one; only berth schedules there.
    """
    command = (
        *(sys.executable, "-m", "berth_sim"),
        *("--port", str(port)),
        *("--nodes", str(nodes)),
        *("--devices", str(devices)),
        *("--default-scheduler", default_scheduler),
        *("--kubeconfig-out", str(folder / "kubeconfig")),
    )
    return Program(name="cluster", command=command, log=folder / "cluster.log", stops_last=True)


def write_traffic_configuration(folder: Path, cluster: str) -> Path:
    # NetworkTraffic and the default plugins, on the Prometheus of the simulated cluster.
    from berth_sim.prometheus import PREFIX  # noqa: PLC0415 - an HTTP server, which no other option needs

    path = folder / "berth.yaml"
    path.write_text(_TRAFFIC_CONFIGURATION.format(url=f"{cluster}{PREFIX}"), encoding="utf-8")
    return path
