"""Requests by kubernetes_asyncio, where they could differ from those over berth's own connections (test_client.py)."""

import asyncio
from datetime import timedelta

import pytest
from aiohttp import web

from berth.kube import library
from berth.kube.client import KubeClient
from berth.kube.credentials import Access, KubeCredentials
from berth.kube.errors import ApiUnreachableError
from harness.fakes.raw_server import Peer, raw_server
from harness.fakes.scripted_server import scripted_server

SOON = timedelta(seconds=0.3)


class Tokens:
    """A source of credentials that hands out one token after the other."""

    def __init__(self, server: str, *tokens: str) -> None:
        self._server = server
        self._tokens = list(tokens)

    async def read(self) -> Access:
        return Access(server=self._server, authorization=f"Bearer {self._tokens.pop(0)}")


async def client_of(url: str, *tokens: str) -> KubeClient:
    return KubeClient(await KubeCredentials.from_source(Tokens(url, *tokens or ("t",))))


@pytest.mark.parametrize("way", ["request", "call"])
async def test_a_token_renewed_for_one_way_is_used_by_both(way: str):
    asked = []

    async def only_new(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Authorization"])
        return web.Response(status=200 if asked[-1] == "Bearer new" else 401)

    async with scripted_server(only_new) as url, await client_of(url, "old", "new") as client:
        for each in (way, *{"request", "call"} - {way}):
            assert (await getattr(client, each)("GET", "/x")).status == 200
    assert asked == ["Bearer old", "Bearer new", "Bearer new"]


async def test_body_path_and_content_type_arrive_as_given():
    seen = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, request.raw_path, request.content_type, await request.json()))
        return web.Response(status=201, body=b"created")

    async with scripted_server(handler) as url, await client_of(f"{url}/base") as client:
        answer = await client.call("PATCH", "/a%2Fb?x=1", body={"a": None}, content_type="application/merge-patch+json")
    assert (answer.status, answer.body) == (201, b"created")
    assert seen == [("PATCH", "/base/a%2Fb?x=1", "application/merge-patch+json", {"a": None})]


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("PUT", 1), ("DELETE", 1), ("POST", 1)])
async def test_a_write_whose_connection_was_closed_is_not_sent_again(method: str, times: int):
    """aiohttp sends a PUT and a DELETE again."""
    asked = []

    async def closes(peer: Peer) -> None:
        asked.append(await peer.request())
        peer.close()

    async with raw_server(closes) as server, await client_of(server.url) as client:
        with pytest.raises(ApiUnreachableError, match=r"closed the connection|disconnected"):
            await client.call(method, "/x")
        await asyncio.sleep(0.05)
    assert len([each for each in asked if each]) == times


async def test_a_redirect_is_an_answer():
    asked = []

    async def redirects(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with scripted_server(redirects) as url, await client_of(url) as client:
        assert (await client.call("GET", "/x")).status == 307
    assert asked == ["/x"]


async def test_answer_that_is_too_long_is_no_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "ANSWER_BYTES", 1000)

    async def long(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 1001)

    async with scripted_server(long) as url, await client_of(url) as client:
        with pytest.raises(ApiUnreachableError, match="more than 1000 bytes"):
            await client.call("GET", "/x")


async def test_proxy_of_the_environment_is_not_taken_for_the_local_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with raw_server() as server, await client_of(server.url) as client:
        assert (await client.call("GET", "/x")).status == 200


async def test_after_silence_idle_connections_are_not_used_again_and_running_requests_go_on():
    slow_goes_on = asyncio.Event()

    async def serve(peer: Peer) -> None:
        while request := await peer.request():
            if b"/silent" in request:
                await asyncio.Event().wait()
            if b"/slow" in request:
                await slow_goes_on.wait()
            peer.answer(b"%d" % peer.number)

    async with raw_server(serve) as server, await client_of(server.url) as client:
        idle = await client.call("GET", "/x")
        slow = asyncio.create_task(client.call("GET", "/slow"))
        await asyncio.sleep(0.05)
        assert (await client.call("GET", "/x")).body != idle.body, "the slow request has the first connection"
        with pytest.raises(ApiUnreachableError, match=r"no answer within 0\.3 s"):
            await client.call("GET", "/silent", timeout=SOON)
        before = len(server.peers)
        assert (await client.call("GET", "/x")).body == b"%d" % (before + 1)
        slow_goes_on.set()
        assert (await slow).body == idle.body


async def test_time_limit_is_not_rounded_up():
    """aiohttp rounds limits above 5 s up to whole seconds."""

    async def silent(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with scripted_server(silent) as url, await client_of(url) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(ApiUnreachableError, match=r"no answer within 5\.1 s"):
            await client.call("GET", "/x", timeout=timedelta(seconds=5.1))
        assert asyncio.get_running_loop().time() - began < 5.6
