"""The faults, each with the shortest and longest time that it lasts; a fault has been healed when its function returns.

What a fault chooses (which site, which process, which node) it draws from the generator that it is given.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import nats as nats_client

from faults import devices, gangs
from faults.bus import ignore
from faults.workload import ZONES, Workload
from faults.world import Site, World, paused, signalled
from harness.servers.nats_server import NatsServer
from harness.servers.proxies import TcpProxy, is_binding, is_write

Act = Callable[[World, Workload, random.Random, float], Awaitable[None]]

WATCH_SECONDS = 40.0
"""After a silent connection a watch may need its longest duration (30 s), and a request, to notice."""
SHIFT_SECONDS = 30
JETSTREAM_SECONDS = 5.0
STREAMS = ("PENDING", "RANKED", "DECISIONS", "KV_cluster", "KV_control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A fault: how long it lasts, in seconds, and what it does."""

    seconds: tuple[float, float]
    act: Act


# --- processes


def _kill(service: str) -> Act:
    async def act(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        found = [pid for name, pid in world.processes() if service in name]
        if found:
            signalled(chance.choice(found), signal.SIGKILL)

    return act


def _kill_leader(service: str) -> Act:
    async def act(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        if (pid := await world.leader(service)) is not None:
            signalled(pid, signal.SIGKILL)

    return act


async def _kill_all(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    for _, pid in world.processes():
        signalled(pid, signal.SIGKILL)


def _pause_leader(service: str) -> Act:
    async def act(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        pid = await world.leader(service)
        if pid is None or not paused(pid):
            return
        try:
            with world.judge.blind(3.0):
                await asyncio.sleep(seconds)
        finally:
            signalled(pid, signal.SIGCONT)

    return act


async def _pause_scorer(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    found = [pid for name, pid in world.processes() if "scorer" in name]
    if found and paused(pid := chance.choice(found)):
        try:
            await asyncio.sleep(seconds)
        finally:
            signalled(pid, signal.SIGCONT)


async def _shift_clock(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    clocks = [site.clock for site in world.sites if site.clock is not None]
    offset = chance.choice((-SHIFT_SECONDS, SHIFT_SECONDS))
    for clock in clocks:
        clock.write_text(f"{offset:+d}\n")
    try:
        await asyncio.sleep(seconds)
    finally:
        for clock in clocks:
            clock.write_text("+0\n")


# --- NATS


def _kill_nats(count: int) -> Act:
    async def act(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        await world.restart_nats(chance.sample(world.nats, count), NatsServer.kill, seconds)

    return act


async def _kill_stream_leader(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    leader = await leader_of_stream(world, chance.choice(STREAMS))
    servers = [server for server in world.nats if server.settings.name == leader]
    await world.restart_nats(servers, NatsServer.kill, seconds)


async def leader_of_stream(world: World, stream: str) -> str | None:
    """The name of the server that leads a stream; None when there is none at this moment."""
    addresses = [server.address for server in world.nats]
    try:
        client = await nats_client.connect(addresses, allow_reconnect=False, connect_timeout=3, error_cb=ignore)
    except (OSError, TimeoutError, nats_client.errors.Error):
        return None
    try:
        cluster = (await client.jetstream().stream_info(stream)).cluster
    except (TimeoutError, nats_client.errors.Error):
        return None
    finally:
        await client.close()
    return cluster.leader if cluster is not None else None


async def _lose_nats(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    await world.restart_nats([chance.choice(world.nats)], NatsServer.lose_store, seconds)


async def _fill_disk(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    disk, server = chance.choice(list(zip(world.disks, world.nats, strict=True)))
    if not disk.is_small:
        return
    async with world.nats_lock:
        await asyncio.to_thread(disk.fill)
        try:
            await asyncio.sleep(seconds)
        finally:
            disk.free()
        await asyncio.sleep(JETSTREAM_SECONDS)
    # A nats-server that could not write may have ended JetStream until it is restarted; its health endpoint says so.
    if not await asyncio.to_thread(server.is_healthy):
        await world.restart_nats([server], NatsServer.stop, 0.0)


def _bus(begin: Callable[[TcpProxy, random.Random], None]) -> Act:
    async def act(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        proxies = chance.choice(world.sites).nats
        for proxy in proxies:
            begin(proxy, chance)
        try:
            await asyncio.sleep(seconds)
        finally:
            for proxy in proxies:
                proxy.heal()

    return act


# --- the API server


async def _kill_api(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    async with world.api_lock:
        with world.judge.blind(10.0):
            await asyncio.to_thread(world.plane.kill_api_server)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(world.plane.start_api_server)


def _api(begin: Callable[[Site, random.Random], None], blind_seconds: float = 0.0) -> Act:
    async def act(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        site = chance.choice(world.sites)
        with world.judge.blind(blind_seconds):
            begin(site, chance)
            try:
                await asyncio.sleep(seconds)
            finally:
                site.api.heal()

    return act


def _answer(code: int) -> Callable[[Site, random.Random], None]:
    def begin(site: Site, chance: random.Random) -> None:
        site.api.answer(code, chance.randint(1, 30), chance.choice((is_write, is_binding)))

    return begin


def _reset(site: Site, chance: random.Random) -> None:
    site.api.reset_after(chance.randint(1, 20), chance.choice((is_write, is_binding)))


# --- the cluster


def _picked_node(work: Workload, chance: random.Random) -> str:
    return chance.choice([name for name in work.nodes if name not in work.busy_nodes])


async def _delete_node(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    work.busy_nodes.add(node := _picked_node(work, chance))
    gone = await work.delete_node(node)
    await asyncio.sleep(seconds)
    gone += await work.remove_orphans(node)  # bound before the schedulers knew
    await work.recreate_node(node)
    await work.add_pods(gone)
    work.busy_nodes.discard(node)


async def _cordon_node(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    work.busy_nodes.add(node := _picked_node(work, chance))
    await work.cordon(node, unschedulable=True)
    await asyncio.sleep(seconds)
    await work.cordon(node, unschedulable=False)
    work.busy_nodes.discard(node)


async def _shrink_node(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    work.busy_nodes.add(node := _picked_node(work, chance))
    await work.resize(node, chance.choice(("0", "300m", "700m")))
    await asyncio.sleep(seconds)
    await work.resize(node)
    work.busy_nodes.discard(node)


async def _replace_pods(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    for name in work.picked_pods(chance.randint(1, 5), chance):
        await work.replace_by_namesake(name, chance.choice(ZONES))


async def _delete_pods(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
    names = work.picked_pods(chance.randint(1, 20), chance)
    await work.delete_pods(names)
    await work.add_pods(len(names))


def _of_devices(act: Callable[[devices.Devices, random.Random, float], Awaitable[None]]) -> Act:
    async def acting(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        assert work.devices is not None, "a run without devices"
        await act(work.devices, chance, seconds)

    return acting


def _of_groups(act: Callable[[gangs.Gangs, World, random.Random, float], Awaitable[None]]) -> Act:
    async def acting(world: World, work: Workload, chance: random.Random, seconds: float) -> None:
        assert work.gangs is not None, "a run without groups"
        await act(work.gangs, world, chance, seconds)

    return acting


AT_ONCE = (0.0, 0.0)
SHORT = (1.0, 8.0)
PAUSE = (16.0, 22.0)
"""Longer than a Lease."""

KINDS: Mapping[str, Kind] = {
    "kill watcher": Kind(seconds=AT_ONCE, act=_kill("watcher")),
    "kill leading watcher": Kind(seconds=AT_ONCE, act=_kill_leader("watcher")),
    "kill binder": Kind(seconds=AT_ONCE, act=_kill("binder")),
    "kill leading binder": Kind(seconds=AT_ONCE, act=_kill_leader("binder")),
    "kill scorer": Kind(seconds=AT_ONCE, act=_kill("scorer")),
    "kill all services": Kind(seconds=AT_ONCE, act=_kill_all),
    "pause leading watcher": Kind(seconds=PAUSE, act=_pause_leader("watcher")),
    "pause leading binder": Kind(seconds=PAUSE, act=_pause_leader("binder")),
    "pause leading binder shortly": Kind(seconds=SHORT, act=_pause_leader("binder")),
    "pause scorer": Kind(seconds=SHORT, act=_pause_scorer),
    "clock off by 30 s": Kind(seconds=(5.0, 20.0), act=_shift_clock),
    "kill NATS": Kind(seconds=(0.0, 4.0), act=_kill_nats(1)),
    "NATS loses its store": Kind(seconds=(0.0, 4.0), act=_lose_nats),
    "NATS' disk full": Kind(seconds=SHORT, act=_fill_disk),
    "NATS connections cut": Kind(seconds=AT_ONCE, act=_bus(lambda proxy, chance: proxy.cut())),
    "NATS delayed": Kind(seconds=SHORT, act=_bus(lambda proxy, chance: proxy.delay(chance.uniform(0.05, 1.0)))),
    "NATS half open": Kind(seconds=(2.0, 20.0), act=_bus(lambda proxy, chance: proxy.half_open())),
    "kill API server": Kind(seconds=(0.0, 4.0), act=_kill_api),
    "API connections cut": Kind(seconds=AT_ONCE, act=_api(lambda site, chance: site.api.cut())),
    "API delayed": Kind(seconds=SHORT, act=_api(lambda site, chance: site.api.delay(chance.uniform(0.05, 2.0)), 5.0)),
    "API half open": Kind(seconds=(2.0, 20.0), act=_api(lambda site, chance: site.api.half_open(), WATCH_SECONDS)),
    "API answers 429": Kind(seconds=SHORT, act=_api(_answer(429))),
    "API answers 500": Kind(seconds=SHORT, act=_api(_answer(500))),
    "API answers 409": Kind(seconds=SHORT, act=_api(_answer(409))),
    "API resets after the write": Kind(seconds=SHORT, act=_api(_reset)),
    "node deleted": Kind(seconds=SHORT, act=_delete_node),
    "node cordoned": Kind(seconds=SHORT, act=_cordon_node),
    "node shrunk": Kind(seconds=SHORT, act=_shrink_node),
    "pods replaced by namesakes": Kind(seconds=AT_ONCE, act=_replace_pods),
    "pods deleted": Kind(seconds=AT_ONCE, act=_delete_pods),
}
OF_A_NATS_CLUSTER: Mapping[str, Kind] = {
    "kill leader of a stream": Kind(seconds=SHORT, act=_kill_stream_leader),
    "kill two NATS servers": Kind(seconds=SHORT, act=_kill_nats(2)),
}
"""Further faults of three NATS servers; of the others, those of NATS hit one of the three."""
OF_DEVICES: Mapping[str, Kind] = {
    "slices renewed": Kind(seconds=AT_ONCE, act=_of_devices(devices.renew_slices)),
    "device tainted": Kind(seconds=SHORT, act=_of_devices(devices.taint_device)),
    "node with devices cordoned": Kind(seconds=SHORT, act=_of_devices(devices.cordon_devices)),
    "pods with devices deleted": Kind(seconds=AT_ONCE, act=_of_devices(devices.end_pods)),
}
"""Further faults of runs with devices."""
OF_GROUPS: Mapping[str, Kind] = {
    "kill binder within a group": Kind(seconds=AT_ONCE, act=_of_groups(gangs.kill_binder_within_a_group)),
    "members of groups deleted": Kind(seconds=AT_ONCE, act=_of_groups(gangs.delete_members)),
    "node with groups cordoned": Kind(seconds=SHORT, act=_of_groups(gangs.cordon_node)),
    "PodGroups remade": Kind(seconds=AT_ONCE, act=_of_groups(gangs.remake_groups)),
}
"""Further faults of runs with groups."""
