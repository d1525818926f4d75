"""The proxies of the fault runs: each way of going wrong reaches the client, and the server has what it should have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp import web

from harness.servers.child_processes import free_ports
from harness.servers.proxies import ApiProxy, ProxyLoop, TcpProxy, proxies

WAIT_SECONDS = 0.3


class Upstream:
    """A server that counts POSTs."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.posts = 0

    async def serve(self, request: web.BaseRequest) -> web.Response:
        self.posts += request.method == "POST"
        return web.json_response({"posts": self.posts, "body": (await request.read()).decode()}, status=201)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    server = Upstream(free_ports(1)[0])
    runner = web.ServerRunner(web.Server(server.serve, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", server.port).start()
    yield server
    await runner.cleanup()


@pytest.fixture
def loop_of_proxies() -> Iterator[ProxyLoop]:
    with proxies() as loop:
        yield loop


@pytest.fixture
def api(loop_of_proxies: ProxyLoop, upstream: Upstream) -> ApiProxy:
    return loop_of_proxies.api(f"http://127.0.0.1:{upstream.port}", None, "token")


@pytest.fixture
def tcp(loop_of_proxies: ProxyLoop, upstream: Upstream) -> TcpProxy:
    return loop_of_proxies.tcp(upstream.port)


@pytest.fixture
async def client(api: ApiProxy) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(api.url) as session:
        yield session


async def post(client: aiohttp.ClientSession, path: str = "/pods/a/binding", data: str = "x") -> int:
    async with client.post(path, data=data) as answer:
        await answer.read()
        return answer.status


async def test_requests_pass(client: aiohttp.ClientSession, upstream: Upstream):
    async with client.post("/pods?a=1", data="x") as answer:
        assert (answer.status, await answer.json()) == (201, {"posts": 1, "body": "x"})


@pytest.mark.parametrize("code", [409, 429, 500])
async def test_next_writes_are_answered_without_reaching_the_server(
    code: int, api: ApiProxy, client: aiohttp.ClientSession, upstream: Upstream
):
    api.answer(code, 2)
    assert [await post(client) for _ in range(3)] == [code, code, 201]
    assert upstream.posts == 1


async def test_write_takes_effect_although_its_connection_is_reset(
    api: ApiProxy, client: aiohttp.ClientSession, upstream: Upstream
):
    api.reset_after(1)
    with pytest.raises(aiohttp.ClientError):
        await post(client)
    assert upstream.posts == 1
    assert await post(client) == 201


async def test_delay_holds_requests(api: ApiProxy, client: aiohttp.ClientSession):
    api.delay(10)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(post(client), WAIT_SECONDS)
    api.heal()
    assert await post(client) == 201


async def test_half_open_connection_stays_silent_after_others_work_again(
    api: ApiProxy, client: aiohttp.ClientSession, upstream: Upstream
):
    assert await post(client) == 201
    api.half_open()
    silent = asyncio.create_task(post(client))
    await asyncio.sleep(WAIT_SECONDS)
    api.heal()
    async with aiohttp.ClientSession(api.url) as another:
        assert await post(another) == 201
    assert not silent.done()
    assert upstream.posts == 2
    silent.cancel()


async def test_cut_resets_open_connections(tcp: TcpProxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", tcp.port)
    async with asyncio.timeout(60):
        while not tcp._line._open:  # noqa: ASYNC110 - it is in another thread
            await asyncio.sleep(0.01)
    tcp.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.transport.abort()


async def test_bytes_pass_until_the_proxy_goes_silent(tcp: TcpProxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", tcp.port)
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    writer.write(request)
    assert (await reader.readline()).startswith(b"HTTP/1.1 201")
    await reader.readuntil(b"}")
    tcp.half_open()
    writer.write(request)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), WAIT_SECONDS)
    writer.transport.abort()
