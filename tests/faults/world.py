"""What a run breaks: a real API server and NATS behind proxies, and two whole pipelines (everything is started twice).

Each pipeline reaches the servers through proxies of its own, so that one can be cut off while the other is not. The
run itself talks to the servers directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import aiohttp

from bench.contenders import kube_scheduler
from faults.judge import Judge, judging
from harness.servers.control_plane import ControlPlane, control_plane
from harness.servers.nats_server import NatsServer, nats_cluster, wait_for_jetstream
from harness.servers.proxies import ApiProxy, ProxyLoop, TcpProxy, proxies
from harness.servers.small_disk import SmallDisk, small_disk
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.podgroups import define_podgroups_for_good

T = TypeVar("T")

API_FLAGS = ("--storage-media-type=application/json", "--etcd-compaction-interval=0")
"""What the judge needs."""
STORE_MEBIBYTES = 256
STORE_LIMIT = 2**31
"""NATS' own limit is above the disk's size, so that the disk is what runs out; streams set 576 MiB of it aside."""
FAKETIME = "*/faketime/libfaketimeMT.so.1"
"""Where Debian's package libfaketime puts the library, below /usr/lib; BERTH_FAKETIME names another place."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/berth/leases"
READY_SECONDS = 120.0
SITES = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One pipeline with its way to the servers; `clock` is the file with the offset of its wall clock, if any."""

    name: str
    berth: BerthUp
    api: ApiProxy
    nats: Sequence[TcpProxy]
    """One in front of each NATS server."""
    clock: Path | None

    def missing(self) -> list[str]:
        """The services that do not run."""
        return sorted({"watcher", "binder", "scorer-1"} - self.berth.pids.keys())

    def all_run(self) -> bool:
        return not self.missing()


@dataclass(kw_only=True)
class World:
    """Everything that runs."""

    plane: ControlPlane
    nats: Sequence[NatsServer]
    """One, or a cluster of three."""
    disks: Sequence[SmallDisk]
    """That of each NATS server."""
    sites: Sequence[Site]
    user: ClusterUser
    judge: Judge
    before_loss: Callable[[], Awaitable[None]] | None = None
    """Called before a fault takes what NATS has stored."""
    nats_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    api_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the API server until it answers."""
        while True:
            try:
                return await call()
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.2)

    async def leader(self, service: str) -> int | None:
        """The process that holds the Lease of `watcher` or `binder`; None when it cannot be told."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            lease = (await self.user.api.get(f"{LEASES}/berth-{service}")).body
            holder = lease.get("spec", {}).get("holderIdentity", "")
            return next((pid for site in self.sites if holder and (pid := site.berth.pid_of(holder))), None)
        return None

    def processes(self) -> list[tuple[str, int]]:
        """Every living process of a service, with its name."""
        return [(f"{site.name}/{name}", pid) for site in self.sites for name, pid in sorted(site.berth.pids.items())]

    async def restart_nats(
        self, servers: Sequence[NatsServer], end: Callable[[NatsServer], None], down_seconds: float
    ) -> None:
        """End NATS servers in one of their ways, and start them again after some seconds."""
        async with self.nats_lock:
            if end is NatsServer.lose_store and len(self.nats) == 1 and self.before_loss is not None:
                await self.before_loss()
            for server in servers:
                await asyncio.to_thread(end, server)
            await asyncio.sleep(down_seconds)
            for server in servers:
                await asyncio.to_thread(server.start)
            await asyncio.to_thread(wait_for_jetstream, servers)


def signalled(pid: int, number: int) -> bool:
    """Send a signal, unless the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def paused(pid: int) -> bool:
    return signalled(pid, signal.SIGSTOP)


def faketime() -> Path | None:
    """libfaketime, where this machine has it."""
    found = [Path(os.environ.get("BERTH_FAKETIME", "/nowhere")), *Path("/usr/lib").glob(FAKETIME)]
    return next((path for path in found if path.is_file()), None)


@asynccontextmanager
async def world(
    assets: Path,
    folder: Path,
    *,
    scorers: int = 2,
    nats_servers: int = 1,
    environment: Mapping[str, str] = MappingProxyType({}),
    has_groups: bool = False,
) -> AsyncIterator[World]:
    """Start everything; all processes have ended when the block has. `environment` is that of both pipelines.

    `has_groups`: the API server has PodGroups, which a service finds at its start, or half a minute later.
    """
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(control_plane(assets, api_flags=API_FLAGS))
        loop = stack.enter_context(proxies())
        disks = [
            stack.enter_context(small_disk(folder / f"nats-{number}", STORE_MEBIBYTES))
            for number in range(nats_servers)
        ]
        nats = nats_cluster([disk.folder for disk in disks], store_bytes=STORE_LIMIT)
        for server in nats:
            stack.callback(server.stop)
            server.start()
        await asyncio.to_thread(wait_for_jetstream, nats)
        judge = await stack.enter_async_context(judging(plane.etcd_url))
        user = await stack.enter_async_context(cluster_user(plane.kubeconfig_path, cleans_up=False))
        if has_groups:
            await define_podgroups_for_good(user.api)
        if (peer := kube_scheduler()) is not None:
            stack.enter_context(peer.run(plane, folder))
        sites = [_site(name, stack, loop, plane, nats, folder, scorers, environment) for name in SITES]
        around = World(plane=plane, nats=nats, disks=disks, sites=sites, user=user, judge=judge)
        for service in ("watcher", "binder"):
            await eventually(lambda service=service: around.leader(service), f"a {service} to lead", READY_SECONDS)
        for site in sites:  # one that still starts would take the first fault for a server that is not there, and end
            await asyncio.to_thread(site.berth.wait_for, site.all_run, f"{site.name}'s services", READY_SECONDS)
        yield around


def _site(
    name: str,
    stack: AsyncExitStack,
    loop: ProxyLoop,
    plane: ControlPlane,
    nats: Sequence[NatsServer],
    folder: Path,
    scorers: int,
    environment: Mapping[str, str],
) -> Site:
    (mine := folder / name).mkdir()
    api = loop.api(plane.url, plane.ca_path, plane.token)
    buses = [loop.tcp(server.settings.port) for server in nats]
    clock, shifted = _clock(mine) if name == SITES[-1] else (None, {})
    arguments = (
        *("--kubeconfig", api.write_kubeconfig(mine / "kubeconfig")),
        *("--nats", ",".join(f"nats://127.0.0.1:{bus.port}" for bus in buses)),
        *("--scorers", scorers),
    )
    berth = stack.enter_context(
        berth_up(*arguments, folder=mine, environment={**environment, **shifted, "BERTH_NATS_REPLICAS": str(len(nats))})
    )
    return Site(name=name, berth=berth, api=api, nats=buses, clock=clock)


def _clock(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """A file that shifts the wall clock of the processes with this environment; monotonic time stays right."""
    library = faketime()
    if library is None:
        return None, {}
    (file := folder / "clock").write_text("+0\n")
    environment = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    return file, environment
