"""The reflector against API servers, real, simulated and scripted: what its sink hears, whatever happens to them."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web

from berth.api.kinds import COSCHEDULING_POD_GROUP, NODE, POD, POD_GROUP, RESOURCE_CLAIM, Kind
from berth.kube.client import KubeClient
from berth.kube.credentials import Access, KubeCredentials
from berth.kube.errors import RIGHTS_PAGE
from berth.kube.informers import REFUSED_TRIES, Reflector, ReflectorSettings
from berth.kube.listwatch import (
    Current,
    Deleted,
    Listed,
    ReflectorEvent,
    Selection,
    Undecodable,
    Upserted,
    list_objects,
)
from berth_sim.faults import Compact, Fail, Reject
from harness.fakes.scripted_server import cut, scripted_server, stream
from harness.plugins.fixtures_kube import Cluster

ENOUGH = 15.0
QUICK = ReflectorSettings(
    shortest_watch=timedelta(seconds=1),
    longest_watch=timedelta(seconds=1),
    silence=timedelta(seconds=0.5),
    first_pause=timedelta(milliseconds=20),
    longest_pause=timedelta(milliseconds=40),
)


class Heard:
    """A sink that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.events: list[ReflectorEvent] = []
        self._new = asyncio.Event()

    def __call__(self, event: ReflectorEvent) -> None:
        self.events.append(event)
        self._new.set()

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[tuple[str, str]]:
        """What happened to which object; lists and bookmarks left out."""
        things = [event for event in self.events if isinstance(event, Upserted | Deleted)]
        return [(type(event).__name__, event.object.metadata.name) for event in things]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(ENOUGH):
            while not condition():
                self._new.clear()
                await self._new.wait()


class Hours:
    """A clock by which an hour passes whenever it is read."""

    def __init__(self) -> None:
        self._read = itertools.count()

    def now(self) -> float:
        return 3600.0 * next(self._read)

    async def sleep(self, seconds: float) -> None:
        del seconds


class Pauses:
    """A clock by which a pause lasts until the test ends it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begun = asyncio.Queue()
        self._over = asyncio.Semaphore(0)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._begun.put_nowait(seconds)
        await self._over.acquire()

    async def begun(self, count: int = 1) -> None:
        """Wait until so many pauses have begun; all but the last are ended at once."""
        async with asyncio.timeout(ENOUGH):
            for number in range(count):
                await self._begun.get()
                if number < count - 1:
                    self.end()

    def end(self) -> None:
        """End the pause that lasts."""
        self._over.release()


@asynccontextmanager
async def _running(reflector: Reflector) -> AsyncIterator[None]:
    task = asyncio.create_task(reflector.run())
    try:
        yield
        assert not task.done(), "run() must not end by itself"
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def _scripted(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    settings: ReflectorSettings = QUICK,
    clock: Pauses | None = None,
    kind: Kind = POD,
) -> AsyncIterator[tuple[Reflector, Heard]]:
    """A reflector whose API server is a script."""

    class Here:
        async def read(self) -> Access:
            return Access(server=url)

    async with scripted_server(handler) as url, KubeClient(await KubeCredentials.from_source(Here())) as client:
        heard = Heard()
        reflector = Reflector(client, kind, heard, settings=settings, clock=clock)
        async with _running(reflector):
            yield reflector, heard


def _in_namespace(cluster: Cluster) -> dict:
    return {"field_selector": f"metadata.namespace={cluster.api.namespace}", "settings": QUICK}


def _listing(version: str, *items: dict, token: str = "") -> web.Response:
    metadata = {"resourceVersion": version, **({"continue": token} if token else {})}
    return web.json_response({"kind": "PodList", "metadata": metadata, "items": list(items)})


def _pod(name: str, version: str, **spec: object) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version}, "spec": spec}


def _event(kind: str, thing: dict) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def _expired() -> dict:
    return {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}


def _denied(verb: str) -> dict:
    message = (
        f'User "berth" cannot {verb} resource "resourceclaims" in API group "resource.k8s.io" at the cluster scope'
    )
    return {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message}


async def _for_ever(request: web.Request) -> web.StreamResponse:
    return await stream(request, then=asyncio.Event())


async def test_what_there_is_comes_first_and_then_what_happens(cluster: Cluster):
    await cluster.api.add_pod("before")
    heard = Heard()
    reflector = Reflector(cluster.client, POD, heard, **_in_namespace(cluster))
    async with _running(reflector):
        await heard.until(lambda: heard.of(Current))
        await cluster.api.add_pod("web")
        await cluster.api.patch(f"{cluster.api.pods}/web", {"metadata": {"labels": {"a": "b"}}})
        await cluster.api.delete(f"{cluster.api.pods}/web", gracePeriodSeconds=0)
        await heard.until(lambda: heard.of(Deleted))
    assert [[pod.metadata.name for pod in listed.objects] for listed in heard.of(Listed)] == [["before"]]
    # A deletion is told as a modification first: the API server marks the pod, then removes it.
    assert heard.names() == [*[("Upserted", "web")] * 3, ("Deleted", "web")]
    assert heard.of(Upserted)[1].object.metadata.labels == {"a": "b"}


async def test_watches_end_and_go_on_without_a_new_list(cluster: Cluster):
    heard = Heard()
    async with _running(Reflector(cluster.client, POD, heard, **_in_namespace(cluster))):
        await heard.until(lambda: len(heard.of(Current)) >= 3)
        await cluster.api.add_pod("web")
        await heard.until(lambda: heard.names() == [("Upserted", "web")])
    assert len(heard.of(Listed)) == 1


async def test_list_is_read_in_pages_as_one(cluster: Cluster):
    for number in range(7):
        await cluster.api.add_pod(f"web-{number}", labels={"app": cluster.api.namespace})
    heard = Heard()
    selector = f"app={cluster.api.namespace}"
    settings = ReflectorSettings(page_size=3)
    async with _running(Reflector(cluster.client, POD, heard, label_selector=selector, settings=settings)):
        await heard.until(lambda: heard.of(Listed))
    (listed,) = heard.of(Listed)
    assert sorted(pod.metadata.name for pod in listed.objects) == [f"web-{number}" for number in range(7)]


async def test_list_of_one_namespace_is_complete_despite_an_empty_second_page(cluster: Cluster):
    for number in range(3):
        await cluster.api.add_pod(f"web-{number}")
    selection = Selection(field_selector=f"metadata.namespace={cluster.api.namespace}")
    assert len((await list_objects(cluster.client, POD, selection=selection, page_size=2)).objects) == 3


async def test_list_whose_pages_expire_is_read_again(simulated_cluster: Cluster):
    """Between the first page and the second the server forgets; the list is of one moment all the same (410)."""
    labels = {"app": simulated_cluster.api.namespace}
    for number in range(5):
        await simulated_cluster.api.add_pod(f"web-{number}", labels=labels)
    request, pages = simulated_cluster.client.request, []

    async def forgetful(method: str, path: str, **parts: object):
        pages.append(parts["params"])
        if "continue" in parts["params"]:
            await simulated_cluster.api.add_pod(f"late-{len(pages)}", labels=labels)
            await simulated_cluster.api.compact()
        return await request(method, path, **parts)

    simulated_cluster.client.request = forgetful
    selection = Selection(label_selector=f"app={simulated_cluster.api.namespace}")
    page = await list_objects(simulated_cluster.client, POD, selection=selection, page_size=2)
    assert len(page.objects) == len({pod.uid for pod in page.objects}) == 6
    assert [sorted(params) for params in pages][-1] == ["labelSelector"]


async def test_pod_that_gets_its_node_leaves_the_selection_as_deleted(cluster: Cluster):
    await cluster.api.add_pod("web")
    heard = Heard()
    reflector = Reflector(cluster.client, POD, heard, field_selector="spec.nodeName=", settings=QUICK)
    async with _running(reflector):
        await heard.until(lambda: heard.of(Current))
        await cluster.api.bind("web", "node-1")
        await heard.until(lambda: ("Deleted", "web") in heard.names())


async def test_an_object_that_is_not_selected_moves_the_position_by_the_next_bookmark(cluster: Cluster):
    selected = await cluster.api.add_node()
    heard = Heard()
    # The server sends its bookmark two seconds before the end of a watch.
    settings = ReflectorSettings(shortest_watch=timedelta(seconds=3), longest_watch=timedelta(seconds=3))
    reflector = Reflector(cluster.client, NODE, heard, field_selector=f"metadata.name={selected}", settings=settings)
    async with _running(reflector):
        await heard.until(lambda: heard.of(Current))
        other = await cluster.api.get(f"/api/v1/nodes/{await cluster.api.add_node()}")
        async with asyncio.timeout(ENOUGH):
            await reflector.reached(other.version)
        assert reflector.version >= int(other.version)


async def test_reached_is_told_after_the_sink_has_heard(cluster: Cluster):
    heard = Heard()
    reflector = Reflector(cluster.client, POD, heard, **_in_namespace(cluster))
    async with _running(reflector):
        await heard.until(lambda: heard.of(Current))
        created = await cluster.api.add_pod("web")
        async with asyncio.timeout(ENOUGH):
            await reflector.reached(created.version)
        assert heard.names() == [("Upserted", "web")]


async def test_pod_of_a_megabyte_comes_through_a_watch(cluster: Cluster):
    heard = Heard()
    async with _running(Reflector(cluster.client, POD, heard, **_in_namespace(cluster))):
        await heard.until(lambda: heard.of(Current))
        environment = [{"name": f"V{number}", "value": "x" * 100_000} for number in range(10)]
        answer = await cluster.api.add_pod("web", containers=[{"name": "main", "image": "pause", "env": environment}])
        assert answer.code == 201, answer.body
        await heard.until(lambda: heard.names() == [("Upserted", "web")])


async def test_watch_that_is_cut_goes_on_where_it_was(simulated_cluster: Cluster):
    faults = simulated_cluster.simulated.faults
    heard = Heard()
    async with _running(Reflector(simulated_cluster.client, POD, heard, **_in_namespace(simulated_cluster))):
        await heard.until(lambda: heard.of(Current))
        for number in range(5):
            await simulated_cluster.api.add_pod(f"web-{number}")
            faults.cut_watches()
        await heard.until(lambda: len(heard.names()) == 5)
    assert heard.names() == [("Upserted", f"web-{number}") for number in range(5)]
    assert len(heard.of(Listed)) == 1


async def test_history_that_is_gone_is_listed_again(simulated_cluster: Cluster):
    faults = simulated_cluster.simulated.faults
    heard = Heard()
    async with _running(Reflector(simulated_cluster.client, POD, heard, **_in_namespace(simulated_cluster))):
        await heard.until(lambda: heard.of(Current))
        faults.inject(Fail(verb="watch", count=None))
        faults.cut_watches()
        await simulated_cluster.api.add_pod("web")
        faults.inject(Compact())
        faults._armed.clear()
        await heard.until(lambda: len(heard.of(Listed)) == 2)
    assert [pod.metadata.name for pod in heard.of(Listed)[1].objects] == ["web"]


async def test_server_that_fails_is_asked_again_and_the_error_is_known_meanwhile(simulated_cluster: Cluster):
    faults = simulated_cluster.simulated.faults
    faults.inject(Fail(verb="list", count=3, status=500, message="etcd is away"))
    heard, clock = Heard(), Pauses()
    reflector = Reflector(simulated_cluster.client, POD, heard, settings=QUICK, clock=clock)
    async with _running(reflector):
        await clock.begun(3)
        assert (reflector.last_error, heard.events) == ("listing 'pod': 500: etcd is away", [])
        clock.end()
        await heard.until(lambda: heard.of(Current))
        assert reflector.last_error is None


async def test_missing_right_is_said_with_the_rule_to_add(simulated_cluster: Cluster):
    simulated_cluster.simulated.faults.inject(Reject(verb="watch", resource="pods", count=None, user="berth"))
    clock = Pauses()
    reflector = Reflector(simulated_cluster.client, POD, Heard(), clock=clock)
    async with _running(reflector):
        await clock.begun()
        assert "add to the ClusterRole: apiGroups" in (reflector.last_error or "")


@pytest.mark.parametrize("kind", [RESOURCE_CLAIM, NODE], ids=lambda kind: kind.name)
async def test_nothing_waits_for_an_optional_kind_that_the_api_server_does_not_serve(kind: Kind):
    async def script(_: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="404 page not found\n")

    clock = Pauses()
    async with _scripted(script, clock=clock, kind=kind) as (reflector, heard):
        await clock.begun(3)
        if not kind.is_optional:
            assert heard.events == []
            return
        assert (reflector.last_error, reflector.age()) == (None, None)
        unread = "the API server does not serve resource.k8s.io/v1"
        assert heard.events == [Current(kind=kind.name, resource_version="0", unread=unread)] * 3
        assert all(each >= 1 for each in clock.seconds)


async def test_a_rare_kind_that_the_api_server_lacks_is_absent_and_nothing_to_report():
    async def script(_: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="404 page not found\n")

    clock = Pauses()
    async with _scripted(script, clock=clock, kind=COSCHEDULING_POD_GROUP) as (reflector, heard):
        await clock.begun(2)
        assert heard.events == [Current(kind="coschedulingpodgroup", resource_version="0", is_served=False)] * 2
        assert reflector.last_error is None


async def test_an_older_version_is_read_until_an_upgraded_api_server_serves_another():
    asked = list[str]()

    async def script(request: web.Request) -> web.StreamResponse:
        asked.append(f"{'watch' if 'watch' in request.query else 'list'} {request.path.split('/')[3]}")
        served = "v1beta1" if "watch v1alpha2" in asked else "v1alpha2"
        if not asked[-1].endswith(served):
            return web.Response(status=404, text="404 page not found\n")
        return await _for_ever(request) if "watch" in request.query else _listing("7", _pod("c", "5"))

    clock = Pauses()
    async with _scripted(script, clock=clock, kind=POD_GROUP) as (_, heard):
        await clock.begun()
        clock.end()
        await heard.until(lambda: heard.of(Current))
    assert asked == ["list v1beta1", "list v1alpha2", "watch v1alpha2", "list v1beta1", "watch v1beta1"]


async def test_a_kind_that_an_upgraded_api_server_serves_is_found_and_its_objects_stay():
    lists = []

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return web.json_response(_expired(), status=410)
        lists.append(request.query)
        return _listing("7", _pod("c", "5")) if len(lists) == 2 else web.Response(status=404)

    clock = Pauses()
    async with _scripted(script, clock=clock, kind=RESOURCE_CLAIM) as (reflector, heard):
        await clock.begun(4)
        assert len(lists) > 2
        assert [len(each.objects) for each in heard.of(Listed)] == [1]
        assert "404" in (reflector.last_error or "")


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_nothing_waits_for_an_optional_kind_that_berth_may_not_read_until_it_may(verb: str):
    """A server that has just started refuses everybody for a moment, so that the first refusals only cost a pause."""
    granted = False

    async def script(request: web.Request) -> web.StreamResponse:
        if not granted and verb == ("watch" if "watch" in request.query else "list"):
            return web.json_response(_denied(verb), status=403)
        return await _for_ever(request) if "watch" in request.query else _listing("7", _pod("c", "5"))

    clock = Pauses()
    async with _scripted(script, clock=clock, kind=RESOURCE_CLAIM) as (reflector, heard):
        await clock.begun(REFUSED_TRIES - 1)
        assert heard.of(Current) == []
        clock.end()
        await clock.begun()
        unread = f"berth may not read resource.k8s.io/v1 ({RIGHTS_PAGE})"
        assert [each.unread for each in heard.of(Current)] == [unread]
        granted = True
        clock.end()
        await heard.until(lambda: heard.of(Current)[-1].unread == "")
        assert [len(each.objects) for each in heard.of(Listed)] == [1]
        assert reflector.last_error is None


@pytest.mark.parametrize("kind", [RESOURCE_CLAIM, COSCHEDULING_POD_GROUP], ids=lambda kind: kind.name)
async def test_nothing_waits_for_a_kind_that_the_api_server_serves_no_more_until_it_does_again(kind: Kind):
    """Its definition was deleted, or the API server went back a release: the objects stay, and are old."""
    lists, is_served = [], False

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            lists.append(request.query)
            return _listing("7", _pod("c", "5"))
        return await _for_ever(request) if is_served else web.Response(status=404, text="404 page not found\n")

    clock = Pauses()
    async with _scripted(script, clock=clock, kind=kind) as (_, heard):
        await clock.begun(REFUSED_TRIES - 1)
        assert heard.of(Current) == []
        clock.end()
        await clock.begun()
        assert [each.unread for each in heard.of(Current)] == [f"the API server no longer serves {kind.api_version}"]
        is_served = True
        clock.end()
        await heard.until(lambda: heard.of(Current)[-1].unread == "")
        assert (len(lists), len(heard.of(Listed))) == (1, 1)


async def test_a_kind_that_every_cluster_has_is_awaited_while_berth_may_not_read_it():
    async def script(_: web.Request) -> web.StreamResponse:
        return web.json_response(_denied("list"), status=403)

    clock = Pauses()
    async with _scripted(script, clock=clock) as (_, heard):
        await clock.begun(REFUSED_TRIES + 1)
        assert heard.events == []


@pytest.mark.parametrize("form", ["status", "event"])
async def test_gone_in_either_form_leads_to_a_new_list_at_once(form: str):
    lists = []

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            lists.append(request.query)
            return _listing(str(len(lists) * 100), _pod("web", "5"))
        if len(lists) > 1:
            return await _for_ever(request)
        if form == "status":
            return web.json_response(_expired(), status=410)
        return await stream(request, _event("ERROR", _expired()))

    patient = ReflectorSettings(first_pause=timedelta(minutes=1), longest_pause=timedelta(minutes=1))
    async with _scripted(script, patient) as (_, heard):
        await heard.until(lambda: len(heard.of(Listed)) == 2)


async def test_server_that_is_always_too_late_is_not_asked_without_a_pause():
    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await stream(request, _event("ERROR", _expired()))
        return _listing("100")

    clock = Pauses()
    settings = ReflectorSettings(first_pause=timedelta(seconds=1), longest_pause=timedelta(seconds=8))
    async with _scripted(script, settings, clock):
        await clock.begun(4)
    # none, then 2, 4, 8, each cut by chance to a half at least
    assert clock.seconds[0] == 0
    assert all(full / 2 <= pause <= full for pause, full in zip(clock.seconds[1:], [2, 4, 8], strict=True))


async def test_half_open_connection_is_found_and_the_watch_goes_on():
    watches = []

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _listing("100")
        watches.append(request.query["resourceVersion"])
        if len(watches) == 1:
            return await stream(request, _event("ADDED", _pod("web", "101")), then=asyncio.Event())
        return await stream(request, _event("ADDED", _pod("late", "102")), then=asyncio.Event())

    async with _scripted(script) as (_, heard):
        await heard.until(lambda: len(heard.names()) == 2)
    assert watches[:2] == ["100", "101"]
    assert len(heard.of(Listed)) == 1


async def test_event_that_breaks_off_in_the_middle_is_heard_once():
    watches = []

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _listing("100")
        watches.append(request.query["resourceVersion"])
        if len(watches) == 1:
            half = _event("ADDED", _pod("web", "102"))[:40]
            response = await stream(request, _event("ADDED", _pod("first", "101")) + half)
            cut(request)
            return response
        return await stream(request, _event("ADDED", _pod("web", "102")), then=asyncio.Event())

    async with _scripted(script) as (_, heard):
        await heard.until(lambda: len(heard.names()) == 2)
    assert heard.names() == [("Upserted", "first"), ("Upserted", "web")]
    assert watches[1] == "101"


async def test_watch_resumes_from_a_bookmark():
    watches = []

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _listing("100")
        watches.append(request.query["resourceVersion"])
        return await stream(request, _event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "150"}}))

    async with _scripted(script) as (reflector, heard):
        await heard.until(lambda: len(heard.of(Current)) >= 3)
    assert watches[:2] == ["100", "150"]
    assert reflector.version == 150


async def test_pod_that_cannot_be_decoded_is_reported_and_stops_nothing():
    bad = _pod("bad", "42", priority="high")

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _listing("100", _pod("web", "41"), bad)
        gone = {**bad, "metadata": {**bad["metadata"], "resourceVersion": "101"}}
        return await stream(
            request, _event("DELETED", gone) + _event("ADDED", _pod("late", "102")), then=asyncio.Event()
        )

    async with _scripted(script) as (_, heard):
        await heard.until(lambda: heard.names() == [("Upserted", "late")])
    kinds = [type(event) for event in heard.events]
    assert kinds == [Listed, Undecodable, Current, Undecodable, Upserted]
    assert [(event.name, event.deleted) for event in heard.of(Undecodable)] == [("bad", False), ("bad", True)]


async def test_line_that_is_no_event_leads_to_a_new_list():
    lists = []

    async def script(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            lists.append(request.query)
            return _listing("100")
        if len(lists) == 1:
            return await stream(request, b"<html>\n")
        return await _for_ever(request)

    async with _scripted(script) as (_, heard):
        await heard.until(lambda: len(heard.of(Listed)) == 2)


async def test_watch_that_ends_as_soon_as_it_begins_is_a_failure():
    async def script(request: web.Request) -> web.StreamResponse:
        return await stream(request) if "watch" in request.query else _listing("100")

    clock = Pauses()
    async with _scripted(script, QUICK, clock) as (reflector, _):
        await clock.begun()
        assert reflector.last_error == "watching 'pod': it ended right after its start"


@pytest.mark.parametrize(("present", "lists"), [("90", 2), ("100", 1)])
async def test_watch_without_a_line_leads_to_a_new_list_if_the_store_is_older(present: str, lists: int):
    """A restored etcd has lower versions: the API server sends nothing until they are reached, not even a bookmark."""
    asked = []

    async def script(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        if "watch" not in request.query:
            return _listing(present if len(asked) > 1 else "100")
        if len(asked) > 3:
            return await _for_ever(request)
        return await stream(request)

    async with _scripted(script, QUICK, Hours()) as (_, heard):
        await heard.until(lambda: len(heard.of(Current)) >= 2)
    assert ([each.get("limit") for each in asked][2], len(heard.of(Listed))) == ("1", lists)


async def test_pauses_grow_and_start_small_again_after_a_watch_that_gave_something():
    watches = 0

    async def script(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return _listing("100")
        watches += 1
        if watches == 5:
            return await stream(request, _event("ADDED", _pod("web", "101")))
        return web.Response(status=503)

    clock = Pauses()
    settings = ReflectorSettings(first_pause=timedelta(seconds=1), longest_pause=timedelta(seconds=8))
    async with _scripted(script, settings, clock):
        await clock.begun(7)
    # each is cut by chance to between a half and the whole
    expected = [1, 2, 4, 8, 1, 2, 4]
    assert all(full / 2 <= pause <= full for pause, full in zip(clock.seconds, expected, strict=True))


async def test_retry_after_of_a_busy_server_is_kept():
    async def busy(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "30"})

    clock = Pauses()
    async with _scripted(busy, QUICK, clock):
        await clock.begun()
    assert clock.seconds == [30]


async def test_exception_of_the_sink_is_a_bug_and_comes_out(simulated_cluster: Cluster):
    def broken(event: ReflectorEvent) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Reflector(simulated_cluster.client, POD, broken).run()


async def test_what_extenders_read_is_kept_of_the_objects_that_are_asked_for(cluster: Cluster):
    """In a LIST and in a watch; pods on a node are not sent to extenders."""
    kind = dataclasses.replace(POD, keeps_whole=lambda pod: not pod.spec.node_name)
    await cluster.api.add_pod("listed")
    await cluster.api.add_pod("placed")
    await cluster.api.bind("placed", "somewhere")
    heard = Heard()
    async with _running(Reflector(cluster.client, kind, heard, **_in_namespace(cluster))):
        await heard.until(lambda: heard.of(Current))
        await cluster.api.add_pod("web")
        await heard.until(lambda: "web" in dict(map(reversed, heard.names())))
    found = {pod.metadata.name: pod for pod in heard.of(Listed)[0].objects}
    found |= {event.object.metadata.name: event.object for event in heard.of(Upserted)}
    assert {name for name, pod in found.items() if pod.whole} == {"listed", "web"}
    for name in ("listed", "web"):
        whole = json.loads(bytes(found[name].whole))
        assert (whole["metadata"]["name"], "kind" in whole) == (name, False)
        assert "managedFields" not in whole["metadata"]
        assert whole["spec"]["containers"][0]["image"]
