"""Informers at the beginning of a leadership: what is current is not listed a second time."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

import berth.kube.informers
from berth.api.kinds import (
    COSCHEDULING_POD_GROUP,
    NODE,
    OPTIONAL_KINDS,
    PLUGIN_KINDS,
    POD,
    RESOURCE_CLAIM,
    WATCHED_KINDS,
)
from berth.clock import Clock
from berth.kube.informers import FRESH_SECONDS, SEEK_SECONDS, Informers
from berth.kube.listwatch import Current, Listed, Upserted
from berth_sim.faults import Clear, Fail, LoseAnswer, Reject
from harness.fakes.ticking_clock import TickingClock
from harness.plugins.fixtures_kube import Cluster


class CountingClient:
    """A client that counts the objects' LISTs by path."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.lists: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def request(self, method: str, path: str, **parts: Any) -> Any:
        self.lists[path] += 1
        return await self._client.request(method, path, **parts)


@pytest.fixture
def client(simulated_cluster: Cluster) -> CountingClient:
    return CountingClient(simulated_cluster.client)


@pytest.fixture
async def world(client: CountingClient) -> AsyncIterator[tuple[Informers, TickingClock, asyncio.Queue[Any]]]:
    clock, events = TickingClock(), asyncio.Queue[Any]()
    informers: Any = Informers(
        client, (NODE, POD), events.put_nowait, on_complete=list, on_relist=lambda _kind: None, clock=clock
    )
    running = asyncio.create_task(informers.run())
    await informers.listed()
    yield informers, clock, events
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_was_just_listed_is_not_listed_again(world, client):
    informers, clock, _ = world
    clock.jump(FRESH_SECONDS)
    await informers.refresh()
    assert set(client.lists.values()) == {1}


async def test_only_a_kind_of_which_nothing_was_heard_is_listed_again(world, client, simulated_cluster):
    informers, clock, events = world
    while not events.empty():
        events.get_nowait()
    clock.jump(FRESH_SECONDS + 1)
    await simulated_cluster.api.add_pod("web")
    while not isinstance(await events.get(), Upserted):
        pass
    await informers.refresh()
    assert (client.lists[NODE.path], client.lists[POD.path]) == (2, 1)


async def test_every_kind_is_listed_again_once_the_api_server_has_an_older_store(world, client, monkeypatch):
    """As after etcd was restored: what was reached says nothing about the objects that are there now."""

    async def present(*_: object) -> str:
        return "1"

    monkeypatch.setattr(berth.kube.informers, "present_version", present)
    informers, *_ = world
    await informers.become_current(POD, 1)
    assert (client.lists[NODE.path], client.lists[POD.path]) == (2, 2)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(
            Fail(verb="list", count=None, status=401), r".* refuses the credentials of kubeconfig .*\(401\).*", id="401"
        ),
        pytest.param(LoseAnswer(verb="list", count=None), r"GET http.*", id="no answer"),
    ],
)
async def test_what_fails_every_kind_is_logged_once_and_so_is_its_end(simulated_cluster, fault, error):
    faults = simulated_cluster.simulated.faults
    faults.inject(fault)
    informers = Informers(
        simulated_cluster.client, WATCHED_KINDS, lambda _: None, on_complete=list, on_relist=lambda _: None
    )
    with capture_logs() as logs:
        running = asyncio.create_task(informers.run())
        async with asyncio.timeout(20):
            while not all(each._failures > 1 for each in informers._reflectors.values()):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            faults.inject(Clear())
            await informers.listed()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(WATCHED_KINDS) > 10
    assert [line["event"] for line in logs] == ["cannot read from the API server", "the API server answers again"]
    assert re.fullmatch(error, logs[0]["error"])


async def test_kinds_of_a_group_that_berth_may_not_read_are_logged_once_with_the_rule_and_so_is_its_end(
    simulated_cluster,
):
    faults, unread, read = simulated_cluster.simulated.faults, dict[str, str](), list[str]()
    for kind in WATCHED_KINDS:
        if kind.is_optional:
            faults.inject(Reject(verb="list", resource=kind.plural, count=None, user="berth"))
    informers = Informers(
        simulated_cluster.client,
        WATCHED_KINDS,
        lambda _: None,
        on_complete=list,
        on_relist=lambda _: None,
        on_unread=unread.__setitem__,
    )
    with capture_logs() as logs:
        running = asyncio.create_task(informers.run())
        async with asyncio.timeout(30):
            await informers.listed()
            assert sorted(unread) == sorted(OPTIONAL_KINDS)
            assert not informers.reads(RESOURCE_CLAIM)
            informers.once_read(RESOURCE_CLAIM, lambda: read.append("claims"))
            faults.inject(Clear())
            while any(unread.values()):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (informers.reads(RESOURCE_CLAIM), read) == (True, ["claims"])
    events = ["cannot read an API group, pods that need it wait", "an API group can be read again"]
    refused = next(line for line in logs if line["group"] == RESOURCE_CLAIM.group)
    for group in {PLUGIN_KINDS[name].group for name in OPTIONAL_KINDS}:
        assert [line["event"] for line in logs if line["group"] == group] == events
    assert "'berth' may not list " in refused["error"]
    assert "apply this version's ClusterRole berth-reads" in refused["error"]
    assert "resources: [deviceclasses, resourceslices, resourceclaims], verbs: [get, list, watch]" in refused["error"]


@pytest.mark.parametrize("gone", [RESOURCE_CLAIM, COSCHEDULING_POD_GROUP], ids=lambda kind: kind.name)
async def test_a_new_leadership_does_not_wait_for_a_kind_that_is_served_no_more(simulated_cluster, gone):
    """As after its definition was deleted: everything else is scheduled."""
    lacking = list[str]()

    class Client(CountingClient):
        async def request(self, method: str, path: str, **parts: Any) -> Any:
            answer = await super().request(method, path, **parts)
            return replace(answer, status=404, body=b"404 page not found") if path in lacking else answer

    client: Any = Client(simulated_cluster.client)
    unread = dict[str, str]()
    informers = Informers(
        client, (POD, gone), lambda _: None, on_complete=list, on_relist=lambda _: None, on_unread=unread.__setitem__
    )
    running = asyncio.create_task(informers.run())
    async with asyncio.timeout(30):
        await informers.listed()
        lacking.append(gone.path)
        await informers._restart_all()
        assert unread == {gone.name: f"the API server no longer serves {gone.api_version}"}
        assert not informers.reads(gone)
        lacking.clear()
        while not informers.reads(gone):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class WithoutPodGroups(CountingClient):
    """The API server serves no PodGroups of Coscheduling's dialect, until told otherwise."""

    is_served = False

    async def request(self, method: str, path: str, **parts: Any) -> Any:
        answer = await super().request(method, path, **parts)
        return answer if self.is_served or path != COSCHEDULING_POD_GROUP.path else replace(answer, status=404)


async def test_a_rare_kind_that_is_served_since_is_found_when_it_is_sought(simulated_cluster):
    client, heard = WithoutPodGroups(simulated_cluster.client), list[Any]()
    async with without_pod_groups(client, heard.append) as informers:
        await informers.seek(COSCHEDULING_POD_GROUP)
        absent = Current(kind=COSCHEDULING_POD_GROUP.name, resource_version="0", is_served=False)
        assert [each for each in heard if each.kind == absent.kind] == [absent, absent]
        client.is_served = True
        await informers.seek(COSCHEDULING_POD_GROUP)
        assert isinstance(heard[-1], Listed)
        await informers.seek(COSCHEDULING_POD_GROUP)
    assert client.lists[COSCHEDULING_POD_GROUP.path] == 3


async def test_a_flood_of_pods_that_name_a_rare_kind_asks_for_it_once_a_second(simulated_cluster):
    client, clock = WithoutPodGroups(simulated_cluster.client), TickingClock()
    async with without_pod_groups(client, list[Any]().append, clock) as informers:
        await asyncio.gather(*(informers.seek(COSCHEDULING_POD_GROUP) for _ in range(50)))
        assert client.lists[COSCHEDULING_POD_GROUP.path] == 2
        seeks = [asyncio.create_task(informers.seek(COSCHEDULING_POD_GROUP)) for _ in range(50)]
        took = await clock.run_until(lambda: all(seek.done() for seek in seeks))
        assert took >= SEEK_SECONDS
    assert client.lists[COSCHEDULING_POD_GROUP.path] == 3


@asynccontextmanager
async def without_pod_groups(
    client: Any, listener: Callable[[Any], object], clock: Clock | None = None
) -> AsyncIterator[Informers]:
    kinds = (POD, COSCHEDULING_POD_GROUP)
    informers = Informers(client, kinds, listener, on_complete=list, on_relist=lambda _: None, clock=clock)
    running = asyncio.create_task(informers.run())
    async with asyncio.timeout(20):
        await informers.listed()
        yield informers
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
