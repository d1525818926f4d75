"""Each response of a Prometheus server, or of another server there: at most one error, with its cause, in time."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import socket
import ssl
import subprocess
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from berth_metrics_collector.prometheus import Prometheus, SourceError, labels_of
from berth_metrics_collector.settings import PrometheusAccess
from harness.fakes.scripted_server import cut, scripted_server, stream
from harness.servers.child_processes import free_ports

TIMEOUT = timedelta(seconds=0.5)
GRACE = timedelta(seconds=0.3)
ROW = {"metric": {"instance": "n1:9100"}, "value": [1700000000.5, "80"]}


def body(result, **other) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **other}).encode()


def responds(data: bytes, status: int = 200, **headers: str):
    async def handler(request):
        return web.Response(body=data, status=status, headers=headers, content_type="application/json")

    return handler


async def hangs(request):
    await asyncio.sleep(60)


async def trickles(request):
    response = await stream(request, b"{")
    for _ in range(100):
        await asyncio.sleep(0.1)
        await response.write(b" ")
    return response


async def stops_in_the_middle(request):
    await stream(request, b'{"status":')
    await asyncio.sleep(60)


async def cuts_off(request):
    response = await stream(request, body([ROW])[:40])
    await asyncio.sleep(0.05)
    cut(request)
    return response


async def promises_more_than_it_sends(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(body([ROW]))
    cut(request)
    return response


async def redirects(request):
    return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/login"})


async def packed_badly(request):
    return web.Response(body=b"no gzip at all", headers={"Content-Encoding": "gzip"})


CASES = [
    pytest.param(responds(b'{"status":"error","error":"bad_data"}', 400), "refused", "400", id="bad request"),
    pytest.param(responds(b"who are you", 401), "refused", "401", id="no credentials"),
    pytest.param(responds(b"not here", 404), "refused", "404", id="another service"),
    pytest.param(responds(b'{"error":"duplicate series"}', 422), "refused", "duplicate series", id="unanswerable"),
    pytest.param(responds(b"oops", 500), "unavailable", "500", id="broken"),
    pytest.param(responds(b'{"error":"query timed out"}', 503), "unavailable", "timed out", id="its own time-out"),
    pytest.param(redirects, "refused", "302: an empty answer", id="a log-in page elsewhere"),
    pytest.param(responds(b"<html>welcome</html>"), "nonsense", "want JSON", id="HTML"),
    pytest.param(responds(b""), "nonsense", "want JSON", id="nothing"),
    pytest.param(responds(b"\xff\xfe"), "nonsense", "want JSON", id="no text"),
    pytest.param(responds(b"[" * 100_000), "nonsense", "another shape", id="nested without end"),
    pytest.param(responds(b"null"), "nonsense", "another shape", id="null"),
    pytest.param(responds(b"[1]"), "nonsense", "another shape", id="a list"),
    pytest.param(responds(b'"text"'), "nonsense", "another shape", id="a text"),
    pytest.param(responds(b"{}"), "nonsense", "another shape", id="no data"),
    pytest.param(responds(b'{"data":null}'), "nonsense", "another shape", id="null data"),
    pytest.param(responds(b'{"data":{}}'), "nonsense", "another shape", id="no result"),
    pytest.param(responds(body(None)), "nonsense", "null", id="null result"),
    pytest.param(responds(body([1700000000, "1"])), "nonsense", "instant vector", id="a scalar"),
    pytest.param(responds(body([{"metric": {}, "values": [[1, "1"]]}])), "nonsense", "value", id="a matrix"),
    pytest.param(responds(body([{"metric": {}, "value": [1]}])), "nonsense", "instant vector", id="half a value"),
    pytest.param(responds(body([{"metric": None, "value": [1, "1"]}])), "nonsense", "instant vector", id="no labels"),
    pytest.param(responds(body({"a": 1})), "nonsense", "instant vector", id="a mapping"),
    pytest.param(
        responds(body([{"metric": {"instance": "\ud800"}, "value": [1, "1"]}])),
        "nonsense",
        "hex escape",
        id="half of a surrogate pair",
    ),
    pytest.param(packed_badly, "nonsense", "unpacked", id="packed badly"),
    pytest.param(cuts_off, "unavailable", "cut off", id="cut off"),
    pytest.param(promises_more_than_it_sends, "unavailable", "cut off", id="cut off before its length"),
    pytest.param(hangs, "slow", "in time", id="hanging"),
    pytest.param(trickles, "slow", "in time: the response trickles", id="trickling"),
    pytest.param(stops_in_the_middle, "slow", "in time", id="stopping in the middle"),
]


@pytest.mark.parametrize(("handler", "cause", "words"), CASES)
async def test_each_failed_response_is_one_error_in_time(handler, cause, words):
    async with scripted_server(handler) as url:
        server = Prometheus(url, timeout=TIMEOUT, grace=GRACE)
        with pytest.raises(SourceError, match=words) as caught:
            async with asyncio.timeout(30):
                await server.query("up")
        assert caught.value.cause == cause
        assert str(caught.value).startswith(f"asking {url}: ")
        server.close()


async def test_a_refusal_quotes_the_start_of_the_answer_as_text():
    answer = '{"error":"metric name \'up\'\n unknown ä"}'.encode() + b"\xff" + b"!" * 300
    async with scripted_server(responds(answer, 422)) as url:
        server = Prometheus(url, timeout=TIMEOUT)
        with pytest.raises(SourceError) as caught:
            await server.query("up")
        server.close()
    start = f'asking {url}: HTTP status 422: {{"error":"metric name \'up\' unknown ä"}}\ufffd!!!'
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith("!!!...")


async def test_a_closed_port_is_unreachable():
    server = Prometheus(f"http://127.0.0.1:{free_ports(1)[0]}", timeout=TIMEOUT)
    with pytest.raises(SourceError, match="refused") as caught:
        await server.query("up")
    assert caught.value.cause == "unreachable"
    server.close()


async def test_an_unknown_host_name_is_unreachable():
    server = Prometheus("http://prometheus.invalid:9090", timeout=timedelta(seconds=5))
    with pytest.raises(SourceError) as caught:
        await server.query("up")
    assert caught.value.cause == "unreachable"
    server.close()


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr("berth_metrics_collector.prometheus.MAX_BYTES", 1000)
    async with scripted_server(responds(body([ROW] * 1000))) as url:
        server = Prometheus(url, timeout=TIMEOUT)
        with pytest.raises(SourceError, match="more than 1000 bytes"):
            await server.query("up")
        server.close()


async def test_a_valid_response_is_rows_compressed_or_not():
    for data, headers in ((body([ROW]), {}), (gzip.compress(body([ROW])), {"Content-Encoding": "gzip"})):
        async with scripted_server(responds(data, **headers)) as url:
            server = Prometheus(url, timeout=TIMEOUT)
            [row] = await server.query("up")
            assert (labels_of(row.metric), row.value) == ({"instance": "n1:9100"}, (1700000000.5, "80"))
            server.close()


async def test_after_a_hanging_request_the_next_one_uses_another_thread(monkeypatch):
    """A header that arrives byte by byte has no time limit, so the thread is abandoned."""
    answers = iter([drip_a_header, no_more])
    serving = []

    async def serve(reader, writer):
        serving.append(asyncio.current_task())
        await next(answers)(reader, writer)
        await writer.wait_closed()

    server_socket = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server_socket.sockets[0].getsockname()
    server = Prometheus(f"http://{host}:{port}", timeout=TIMEOUT, grace=GRACE)
    with pytest.raises(SourceError, match="no answer in time"):
        await server.query("up")
    assert await server.query("up") == []
    server.close()
    server_socket.close()
    await asyncio.wait(serving)


async def drip_a_header(reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(15):
        await asyncio.sleep(0.1)
        writer.write(b"x")
    writer.close()


async def no_more(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    data = body([])
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    await writer.drain()
    writer.close()


async def test_token_and_headers_are_those_of_the_files_at_the_time(tmp_path):
    token, headers, asked = tmp_path / "token", tmp_path / "headers", []

    async def handler(request):
        asked.append(request.headers)
        return await responds(body([]))(request)

    token.write_text("one\n")
    headers.write_text("X-Scope-OrgID: tenant-a\n")
    async with scripted_server(handler) as url:
        server = Prometheus(url, timeout=TIMEOUT, access=PrometheusAccess(token_file=token, headers_file=headers))
        await server.query("up")
        token.write_text("two")
        await server.query("up")
        token.unlink()
        with pytest.raises(SourceError, match="token: FileNotFoundError"):
            await server.query("up")
        headers.write_text("canary without a colon")
        with pytest.raises(SourceError, match="want lines 'Name: value'") as refused:
            await server.query("up")
        assert "canary" not in str(refused.value)
        server.close()
    assert [each["Authorization"] for each in asked] == ["Bearer one", "Bearer two"]
    assert [each["X-Scope-OrgID"] for each in asked] == ["tenant-a", "tenant-a"]


async def server_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context, and its certificate for 127.0.0.1."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    names = ["-subj", "/CN=prometheus", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl on the PATH to make certificates with"
)


@needs_openssl
async def test_certificate_is_checked_against_the_file(tmp_path):
    context, certificate = await server_certificate(tmp_path)
    serving = await asyncio.start_server(no_more, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{serving.sockets[0].getsockname()[1]}"
    trusting = Prometheus(url, timeout=timedelta(seconds=30), access=PrometheusAccess(ca_file=certificate))
    assert await trusting.query("up") == []
    suspicious = Prometheus(url, timeout=timedelta(seconds=30))
    with pytest.raises(SourceError, match=r"(?i)certificate"):
        await suspicious.query("up")
    for server in (trusting, suspicious):
        server.close()
    serving.close()


@needs_openssl
async def test_an_answer_whose_encryption_breaks_amid_its_body_is_unavailable(tmp_path):
    context, certificate = await server_certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        answering = asyncio.create_task(asyncio.to_thread(break_the_encryption, listening, context))
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        server = Prometheus(url, timeout=timedelta(seconds=30), access=PrometheusAccess(ca_file=certificate))
        with pytest.raises(SourceError, match="the answer was cut off") as caught:
            await server.query("up")
        assert caught.value.cause == "unavailable"
        server.close()
        await answering


def break_the_encryption(listening: socket.socket, context: ssl.SSLContext) -> None:
    """Answer one request with the start of a body, then with a record that nobody can decrypt."""
    plain, _ = listening.accept()
    with context.wrap_socket(plain, server_side=True) as connection:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        with suppress(OSError):
            connection.recv(1)  # until the client closes


async def test_what_no_library_documents_is_the_querys_failure_too(tmp_path):
    """requests raises a bare OSError for the file of an authority that is gone."""
    gone = PrometheusAccess(ca_file=tmp_path / "gone.pem")
    server = Prometheus("https://127.0.0.1:1", timeout=TIMEOUT, access=gone)
    with pytest.raises(SourceError, match=r"OSError: .*gone\.pem") as caught:
        await server.query("up")
    assert caught.value.cause == "nonsense"
    server.close()
