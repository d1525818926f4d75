"""Connections to the API server, on both event loops: what a server, a proxy and the network between may do to them."""

import asyncio
import base64
import shutil
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from berth.kube import connections
from berth.kube.connections import Call, ConnectionPool, NoAnswerError, Server
from berth.kube.credentials import Access
from berth.kube.http1 import request
from berth.kube.library import LibraryCall, LibraryClient
from harness.fakes.raw_server import Peer, raw_server

GET = request("GET", "/x", b"Host: x\r\n", None, "")
POST = request("POST", "/x", b"Host: x\r\n", b"{}", "application/json")

Run = Callable[[Awaitable[None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param


def at(port: int, **access: object) -> Server:
    return Server.of(Access(**{"server": f"http://127.0.0.1:{port}", **access}))


def get(seconds: float = 20, **parts: object) -> Call:
    return Call(GET, seconds, is_repeatable=True, **parts)


def post(seconds: float = 20, **parts: object) -> Call:
    return Call(POST, seconds, **parts)


async def failure(work: Awaitable[object]) -> NoAnswerError:
    with pytest.raises(NoAnswerError) as failed:
        await work
    return failed.value


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what the other end sees has no event
            await asyncio.sleep(0.001)


class Pool(ConnectionPool):
    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()
        await asyncio.sleep(0.01)

    @property
    def open(self) -> int:
        return len(self._all)


def test_one_connection_serves_one_request_after_the_other(run: Run):
    async def test():
        async with raw_server() as server, Pool() as pool:
            for _ in range(5):
                assert (await pool.exchange(at(server.port), post())).status == 200
            assert len(server.peers) == 1
            assert server.requests == [POST] * 5

    run(test())


def test_few_connections_are_opened_at_a_time_and_requests_take_those_that_are_free(run: Run, monkeypatch):
    connecting: list[asyncio.Event] = []
    connect = connections.connect

    async def slowly(*to: object) -> None:
        connecting.append(asyncio.Event())
        await connecting[-1].wait()
        await connect(*to)

    async def test():
        connecting.clear()
        async with raw_server() as server, Pool() as pool:
            await pool.exchange(at(server.port), post())
            monkeypatch.setattr(connections, "connect", slowly)
            sent = [asyncio.create_task(pool.exchange(at(server.port), post())) for _ in range(24)]
            await until(lambda: sum(each.done() for each in sent) == 20)
            assert len(connecting) == 4
            assert len(server.peers) == 1
            for each in connecting:
                each.set()
            await asyncio.gather(*sent)
            assert len(server.peers) == 5
        monkeypatch.setattr(connections, "connect", connect)

    run(test())


def test_all_requests_are_sent_at_once_where_answers_take_long(run: Run):
    async def test():
        async with raw_server(together(30, lambda peer: peer.request())) as server, Pool() as pool:
            await asyncio.gather(*(pool.exchange(at(server.port), post()) for _ in range(30)))
            assert len(server.peers) == 30

    run(test())


def test_answers_arrive_byte_by_byte_too(run: Run):
    async def slowly(peer: Peer):
        while await peer.request():
            for byte in b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n":
                peer.send(bytes([byte]))
                await peer.writer.drain()
                await asyncio.sleep(0)

    async def test():
        async with raw_server(slowly) as server, Pool() as pool:
            for _ in range(3):
                assert (await pool.exchange(at(server.port), post())).body == b"abcde"
            assert len(server.peers) == 1

    run(test())


@pytest.mark.parametrize("ends", ["close", "reset"])
def test_read_on_a_connection_that_was_closed_while_idle_is_repeated_and_a_write_never(run: Run, ends: str):
    async def once(peer: Peer):
        if peer.number % 2:
            await peer.request()
            peer.answer(b"first")
        if await peer.request():  # on an odd connection it comes when the server has just decided to close
            peer.answer(b"again") if peer.number % 2 == 0 else getattr(peer, ends)()
        await peer.writer.drain()

    async def test():
        async with raw_server(once) as server, Pool() as pool:
            assert (await pool.exchange(at(server.port), get())).body == b"first"
            assert (await pool.exchange(at(server.port), get())).body == b"again"
            assert len(server.peers) == 2
        async with raw_server(once) as server, Pool() as pool:
            await pool.exchange(at(server.port), post())
            await failure(pool.exchange(at(server.port), post()))
            assert len(server.peers) == 1

    run(test())


def test_connection_that_is_seen_to_be_closed_is_not_used_and_nothing_is_lost(run: Run):
    async def once(peer: Peer):
        await peer.request()
        peer.answer()
        await peer.writer.drain()

    async def test():
        async with raw_server(once) as server, Pool() as pool:
            for number in range(3):
                assert (await pool.exchange(at(server.port), post())).status == 200
                await until(lambda: not pool.open)
                assert len(server.peers) == number + 1

    run(test())


@pytest.mark.parametrize(
    ("answer", "is_whole"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", True, id="until the end"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", True, id="said to end"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", False, id="too short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", False, id="no last chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-", False, id="no whole head"),
        pytest.param(b"", False, id="nothing"),
        pytest.param(b"220 mail.example.com ESMTP\r\n\r\n", False, id="no HTTP"),
    ],
)
def test_end_of_the_connection_is_the_end_of_an_answer_only_where_it_says_so(run: Run, answer: bytes, *, is_whole):
    async def serve(peer: Peer):
        await peer.request()
        peer.send(answer)
        await peer.writer.drain()
        peer.close()

    async def test():
        async with raw_server(serve) as server, Pool() as pool:
            for number in range(2):
                exchange = pool.exchange(at(server.port), post())
                if is_whole:
                    assert (await exchange).body == b"abc"
                else:
                    await failure(exchange)
                assert len(server.peers) == number + 1

    run(test())


def test_loss_of_the_connections_is_told_to_everybody_who_waits(run: Run):
    async def test():
        arrived: list[Peer] = []

        async def swallow(peer: Peer):
            await peer.request()
            arrived.append(peer)
            await asyncio.Event().wait()

        async with raw_server(swallow) as server, Pool() as pool:
            waiting = [asyncio.create_task(failure(pool.exchange(at(server.port), post()))) for _ in range(9)]
            await until(lambda: len(arrived) == 9)
            for peer in arrived:
                peer.reset()
            await asyncio.gather(*waiting)
            assert pool.open == 0
            waiting = [asyncio.create_task(failure(pool.exchange(at(server.port), post()))) for _ in range(3)]
            await until(lambda: len(arrived) == 12)
            pool.close()
            await asyncio.gather(*waiting)
            await failure(pool.exchange(at(server.port), post()))

    run(test())


def together(count: int, later: Callable[[Peer], Awaitable[None]]):
    """A server whose first answers come when so many connections have asked; what it does next is the test's."""
    everybody = asyncio.Barrier(count)

    async def serve(peer: Peer):
        await peer.request()
        if peer.number <= count:
            await everybody.wait()
        peer.answer()
        await later(peer)

    return serve


def test_overdue_requests_are_given_up_each_at_its_time(run: Run):
    async def silent(peer: Peer):
        await peer.request()
        await asyncio.Event().wait()

    async def test():
        async with raw_server(together(3, silent)) as server, Pool() as pool:
            await asyncio.gather(*(pool.exchange(at(server.port), post()) for _ in range(3)))
            loop = asyncio.get_running_loop()

            async def give_up(seconds: float) -> None:
                began = loop.time()
                lost = await failure(pool.exchange(at(server.port), post(seconds)))
                assert str(lost) == f"no answer within {seconds:g} s"
                assert loop.time() - began >= seconds - 0.01

            await asyncio.gather(*(give_up(seconds) for seconds in (0.3, 0.1, 0.2)))
            assert pool.open == 0

    run(test())


def test_silence_closes_the_connections_that_were_idle_all_that_time(run: Run):
    """A peer that is gone without a word: each dead connection would cost another request its whole time."""

    async def gone(peer: Peer):
        await asyncio.Event().wait()

    async def test():
        async with raw_server(together(4, gone)) as server, Pool() as pool:
            await asyncio.gather(*(pool.exchange(at(server.port), post()) for _ in range(4)))
            assert pool.open == 4
            await failure(pool.exchange(at(server.port), post(0.1)))
            await until(lambda: not pool.open)
            assert (await pool.exchange(at(server.port), post())).status == 200

    run(test())


def test_idle_connections_are_closed_before_the_server_would(run: Run, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.1)

    async def test():
        async with raw_server() as server, Pool() as pool:
            await asyncio.gather(*(pool.exchange(at(server.port), post()) for _ in range(3)))
            assert pool.open == 3
            await until(lambda: not pool.open)
            assert (await pool.exchange(at(server.port), post())).status == 200

    run(test())


def test_requests_above_the_number_of_connections_wait_in_order_and_those_that_wait_too_long_were_not_sent(
    run: Run, monkeypatch
):
    monkeypatch.setattr(connections, "CONNECTIONS", 2)

    async def test():
        goes_on = asyncio.Event()

        async def serve(peer: Peer):
            while asked := await peer.request():
                await goes_on.wait()
                peer.answer(asked.split(b" ")[1])

        def call(number: int, seconds: float = 20) -> Call:
            return Call(request("POST", f"/{number}", b"", b"", "x"), seconds)

        async with raw_server(serve) as server, Pool() as pool:
            order: list[bytes] = []

            async def send(number: int) -> None:
                order.append((await pool.exchange(at(server.port), call(number))).body)

            sending = [asyncio.create_task(send(number)) for number in range(6)]
            await until(lambda: len(server.peers) == 2)
            late = await failure(pool.exchange(at(server.port), call(9, seconds=0.05)))
            assert str(late) == "no free connection within 0.05 s"
            given_up = asyncio.create_task(send(7))
            await asyncio.sleep(0)
            given_up.cancel()
            goes_on.set()
            await asyncio.gather(*sending)
            assert len(server.peers) == 2
            assert sorted(order) == [b"/%d" % number for number in range(6)]
            assert sorted(order[:2]) == [b"/0", b"/1"]

    run(test())


def test_place_of_a_connection_that_is_lost_goes_to_whoever_waits(run: Run, monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS", 1)

    async def serve(peer: Peer):
        await peer.request()
        if peer.number > 2:
            peer.answer(b"last")
            await peer.request()

    async def test():
        async with raw_server(serve) as server, Pool() as pool:
            calls = [pool.exchange(at(server.port), post()) for _ in range(3)]
            *lost, answer = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in lost] == [NoAnswerError, NoAnswerError]
            assert answer.body == b"last"

    run(test())


def test_connection_of_a_request_that_was_cancelled_is_used_no_more(run: Run):
    async def test():
        arrived = asyncio.Event()

        async def serve(peer: Peer):
            while await peer.request():
                arrived.set()
                if peer.number == 1:
                    await asyncio.Event().wait()
                peer.answer(b"%d" % peer.number)

        async with raw_server(serve) as server, Pool() as pool:
            task = asyncio.create_task(pool.exchange(at(server.port), post()))
            await arrived.wait()
            task.cancel()
            assert (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError
            assert (await pool.exchange(at(server.port), post())).body == b"2"

    run(test())


def test_bytes_that_nobody_has_asked_for_end_the_connection(run: Run):
    """Otherwise they would be the answer to the next request."""

    async def serve(peer: Peer):
        await peer.request()
        peer.answer(b"asked")
        await peer.writer.drain()
        await asyncio.sleep(0.02)
        peer.answer(b"forged")
        await peer.request()

    async def test():
        async with raw_server(serve) as server, Pool() as pool:
            for _ in range(2):
                assert (await pool.exchange(at(server.port), post())).body == b"asked"
                await until(lambda: not pool.open)
            assert len(server.peers) == 2

    run(test())


def test_check_that_fails_sends_nothing_and_keeps_the_connection(run: Run):
    class OverError(Exception):
        pass

    def check() -> None:
        raise OverError

    async def test():
        async with raw_server() as server, Pool() as pool:
            await pool.exchange(at(server.port), post())
            with pytest.raises(OverError):
                await pool.exchange(at(server.port), post(check=check))
            await pool.exchange(at(server.port), post())
            assert (len(server.peers), len(server.requests)) == (1, 2)

    run(test())


def test_other_server_gets_none_of_the_connections_and_requests_of_the_former(run: Run):
    async def test():
        async with raw_server() as one, raw_server() as other, Pool() as pool:
            await pool.exchange(at(one.port), post())
            await pool.exchange(at(other.port), get())
            await pool.exchange(at(one.port), post())
            assert (len(one.peers), one.requests) == (2, [POST, POST])
            assert other.requests == [GET]

    run(test())


# TLS.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the name api.example.com that signed itself; its key lies beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -addext subjectAltName=DNS:api.example.com"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True, timeout=60)
    return folder


def server_side(folder: Path, *, wants_client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "cert.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED if wants_client else ssl.CERT_NONE
    return context


def client_side(folder: Path, *, shows: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    if shows:
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def insecure() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def https(port: int, tls: ssl.SSLContext, **access: object) -> Server:
    return at(port, server=f"https://127.0.0.1:{port}", tls=tls, **access)


def test_server_is_known_by_its_certificate_and_the_client_by_its_own(run: Run, certificates: Path):
    async def test():
        context = server_side(certificates, wants_client=True)
        async with raw_server(tls=context) as server, Pool() as pool:
            shown = client_side(certificates, shows=True)
            right = https(server.port, shown, server_name="api.example.com")
            for _ in range(3):
                assert (await pool.exchange(right, post())).status == 200
            assert len(server.requests) == 3
            hidden = https(server.port, client_side(certificates), server_name="api.example.com")
            await failure(pool.exchange(hidden, post()))
            assert len(server.requests) == 3

    run(test())


def test_server_of_another_name_or_authority_gets_no_request(run: Run, certificates: Path):
    async def test():
        async with raw_server(tls=server_side(certificates)) as server, Pool() as pool:
            other_name = https(server.port, client_side(certificates), server_name="evil.example.com")
            by_address = https(server.port, client_side(certificates))
            unknown = https(server.port, ssl.create_default_context(), server_name="api.example.com")
            for wrong in (other_name, by_address, unknown):
                refused = await failure(pool.exchange(wrong, post()))
                assert str(refused).startswith(f"no connection to 127.0.0.1:{server.port}: ")
                assert "certificate verify failed" in str(refused)
            assert server.requests == []
            assert pool.open == 0
            assert (await pool.exchange(https(server.port, insecure()), post())).status == 200

    run(test())


def test_connecting_that_fails_or_takes_too_long_leaves_nothing_open(run: Run, certificates: Path, monkeypatch):
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.1)

    ended: list[Peer] = []

    async def silent(peer: Peer):
        with suppress(ConnectionError):
            await peer.reader.read()  # up to the end
        ended.append(peer)

    async def test():
        async with raw_server(tls=server_side(certificates)) as refused, raw_server(silent) as slow, Pool() as pool:
            for server in (refused, slow):
                await failure(pool.exchange(https(server.port, client_side(certificates)), post()))
                cancelled = asyncio.create_task(pool.exchange(https(slow.port, client_side(certificates)), post()))
                await asyncio.sleep(0.01)
                cancelled.cancel()
                await asyncio.gather(cancelled, return_exceptions=True)
            assert len(slow.peers) >= 1
            await until(lambda: len(ended) == len(slow.peers))
            assert pool.open == 0

    run(test())


def test_credentials_for_tls_are_not_sent_without():
    with pytest.raises(ValueError, match="want its certificates"):
        Server.of(Access(server="https://api"))


# Proxies.


def tunnelling(seen: list[bytes], to_port: int, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"):
    """What a proxy does when it is asked to CONNECT."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def serve(peer: Peer) -> None:
        seen.append(await peer.request())
        peer.send(answer)
        if b" 200 " not in answer:
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", to_port)
        try:
            await asyncio.wait(
                {
                    asyncio.ensure_future(pump(peer.reader, writer)),
                    asyncio.ensure_future(pump(reader, peer.writer)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            writer.transport.abort()

    return serve


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_server_with_tls_is_reached_through_a_tunnel_of_the_proxy(run: Run, certificates: Path, scheme, monkeypatch):
    to_server, to_proxy = client_side(certificates), insecure()

    async def test():
        seen: list[bytes] = []
        async with raw_server(tls=server_side(certificates)) as server:
            tls = server_side(certificates) if scheme == "https" else None
            async with raw_server(tunnelling(seen, server.port), tls=tls) as proxy, Pool() as pool:
                monkeypatch.setattr("berth.kube.connections.client_context", lambda: to_proxy)
                address = f"{scheme}://me:p%40ss@127.0.0.1:{proxy.port}"
                there = https(server.port, to_server, server_name="api.example.com", proxy=address)
                for _ in range(3):
                    assert (await pool.exchange(there, post())).status == 200
                monkeypatch.undo()
                assert server.requests == [POST] * 3
                to = b"127.0.0.1:%d" % server.port
                proof = base64.b64encode(b"me:p@ss")
                assert seen == [
                    b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nProxy-Authorization: Basic %b\r\n\r\n" % (to, to, proof)
                ]

    run(test())


def test_library_reaches_a_server_with_tls_through_a_tunnel_of_the_proxy(run: Run, certificates: Path):
    async def test():
        seen: list[bytes] = []
        async with (
            raw_server(tls=server_side(certificates, wants_client=True)) as server,
            raw_server(tunnelling(seen, server.port)) as proxy,
        ):
            client = LibraryClient("berth", {})
            access = Access(
                server=f"https://127.0.0.1:{server.port}",
                tls=client_side(certificates, shows=True),
                server_name="api.example.com",
                proxy=f"http://me:p%40ss@127.0.0.1:{proxy.port}",
            )
            call = LibraryCall("GET", "/x", None, "application/json", 10.0, None)
            assert (await client.call(access, {}, call)).status == 200
            await client.close()
            (connect,) = seen
            assert connect.startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % server.port)
            assert b"Proxy-Authorization: Basic %b\r\n" % base64.b64encode(b"me:p@ss") in connect

    run(test())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "answered 407"),
        (b"HTTP/1.1 200 OK\r\n\r\nand more", "sent more than an answer"),
        (b"what?\r\n\r\n", "want the head of an HTTP/1.1 answer"),
        (b"", "closed the connection"),
    ],
)
def test_proxy_that_makes_no_tunnel_is_quoted_and_nothing_was_sent(
    run: Run, certificates: Path, answer: bytes, words: str
):
    async def test():
        seen: list[bytes] = []
        async with raw_server(tunnelling(seen, 1, answer.replace(b" 200 ", b" 201 "))) as proxy, Pool() as pool:
            through = https(443, client_side(certificates), proxy=f"http://127.0.0.1:{proxy.port}")
            refused = await failure(pool.exchange(through, post()))
            assert words in str(refused)

    run(test())


def test_server_without_tls_is_asked_for_by_its_whole_url_at_the_proxy(run: Run):
    async def test():
        async with raw_server() as proxy, Pool() as pool:
            server = Server.of(Access(server="http://api:8080/k8s", proxy=f"http://me:x@127.0.0.1:{proxy.port}"))
            asked = request("GET", f"{server.prefix}/x", server.shared, None, "")
            await pool.exchange(server, Call(asked, 5))
            assert proxy.requests == [
                b"GET http://api:8080/k8s/x HTTP/1.1\r\nHost: api:8080\r\n"
                b"Proxy-Authorization: Basic %b\r\n\r\n" % base64.b64encode(b"me:x")
            ]

    run(test())


@pytest.mark.parametrize(
    ("url", "host", "prefix"),
    [
        ("https://api.example.com", b"api.example.com", ""),
        ("https://api.example.com:443/", b"api.example.com", "/"),
        ("https://api.example.com:6443/k8s/c-1", b"api.example.com:6443", "/k8s/c-1"),
        ("https://[fd00::1]:6443", b"[fd00::1]:6443", ""),
        ("https://bücher.example", b"xn--bcher-kva.example", ""),
    ],
)
def test_url_becomes_host_and_prefix(url: str, host: bytes, prefix: str):
    server = Server.of(Access(server=url, tls=insecure()))
    assert (server.shared, server.prefix) == (b"Host: %b\r\n" % host, prefix)


@pytest.mark.parametrize("first", ["refuses", "is silent"])
def test_next_address_of_the_host_is_tried_when_one_does_not_answer(run: Run, first: str, monkeypatch):
    original, tried = connections._connect_socket, []

    async def connect(loop, sock, address):
        tried.append(address)
        if len(tried) > 1:
            return await original(loop, sock, address)
        sock.close()
        if first == "is silent":
            await asyncio.Event().wait()
        raise ConnectionRefusedError

    async def test():
        async with raw_server() as server, Pool() as pool:
            loop = asyncio.get_running_loop()
            address = await loop.getaddrinfo("127.0.0.1", server.port, type=socket.SOCK_STREAM)

            class Loop:
                def __getattr__(self, name):
                    return getattr(loop, name)

                async def getaddrinfo(self, *_, **__):
                    return address * 2

            monkeypatch.setattr(connections, "_connect_socket", connect)
            sock = await connections._connected_socket(Loop(), "api", server.port)
            sock.close()
            assert len(tried) == 2
            assert (await pool.exchange(at(server.port), post())).status == 200

    run(test())
