"""Authorities without keyUsage and key identifiers are taken, as Go takes them: those of EKS, MicroK8s and older ones.

Python 3.13 makes contexts with VERIFY_X509_STRICT, which refuses them. Under an older Python the tests make contexts
as 3.13 does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import urllib3.util.ssl_
from aiohttp import web

from berth.api.config.configuration import ExtenderConfiguration, ExtenderTls
from berth.bus.login import connect_options
from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings, TlsSettings
from berth.extenders.client import tls_context
from berth.kube.client import KubeClient
from berth.observability.tracing import Tracing
from berth_metrics_collector.prometheus import Prometheus
from berth_metrics_collector.settings import PrometheusAccess
from harness.servers.authorities import OldAuthority, old_authority
from harness.servers.nats_server import nats_server

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on the PATH")

SILENCE = timedelta(seconds=10)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> OldAuthority:
    return old_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def contexts_as_python_3_13_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
        def made(*args: object, **kwargs: object) -> ssl.SSLContext:
            context = make(*args, **kwargs)
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            return context

        return made

    monkeypatch.setattr(ssl, "create_default_context", strict(ssl.create_default_context))
    for module in (urllib3.util.ssl_, urllib3.connection):
        monkeypatch.setattr(module, "create_urllib3_context", strict(urllib3.util.ssl_.create_urllib3_context))


@asynccontextmanager
async def serving(tls: OldAuthority, seen: list[str] | None = None) -> AsyncIterator[str]:
    """An HTTPS server that answers every request with an empty vector of Prometheus, which is JSON too."""

    async def answer(request: web.Request) -> web.Response:
        if seen is not None:
            seen.append(f"{request.method} {request.path}")
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.server_side())
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, server: str, authority: Path) -> Path:
    cluster = {"server": server, "certificate-authority": str(authority)}
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


async def test_strict_checks_do_refuse_it(old):
    """Otherwise the other tests would show nothing."""
    async with serving(old) as url:
        port = int(url.rpartition(":")[2])
        strict = ssl.create_default_context(cafile=str(old.authority))
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=strict)


async def test_requests_to_the_api_server(old, tmp_path):
    async with serving(old) as url, await KubeClient.connect(kubeconfig(tmp_path, url, old.authority)) as client:
        assert (await client.request("GET", "/version")).status == 200


async def test_watches(old, tmp_path):
    async with (
        serving(old) as url,
        await KubeClient.connect(kubeconfig(tmp_path, url, old.authority)) as client,
        client.stream("/api/v1/pods", params={}, read_timeout=SILENCE) as answer,
    ):
        assert (await answer.whole()).status == 200


async def test_prometheus(old):
    async with serving(old) as url:
        server = Prometheus(url, timeout=SILENCE, access=PrometheusAccess(ca_file=old.authority))
        try:
            assert await server.query("up") == []
        finally:
            server.close()


@pytest.mark.requires("nats-server")
async def test_nats(old):
    with nats_server(f'tls {{ cert_file: "{old.certificate}", key_file: "{old.key}" }}\n') as server:
        settings = BusSettings(servers=(server.address,), tls=TlsSettings(authority_file=old.authority))
        session = await NatsBus(settings).connect(name="test")
        await session.close()


@pytest.mark.requires("nats-server")
async def test_nats_by_the_authorities_of_the_system(old, monkeypatch):
    """A tls:// address without a file is checked against the system's authorities, where an old one may be too."""
    monkeypatch.setenv("SSL_CERT_FILE", str(old.authority))
    with nats_server(f'tls {{ cert_file: "{old.certificate}", key_file: "{old.key}" }}\n') as server:
        address = server.address.replace("nats://", "tls://")
        session = await NatsBus(BusSettings(servers=(address,))).connect(name="test")
        await session.close()


def test_a_server_that_asks_for_tls_by_itself_is_checked_in_the_same_way():
    assert not connect_options(BusSettings())["tls"].verify_flags & ssl.VERIFY_X509_STRICT


async def test_exported_spans(old, monkeypatch):
    seen: list[str] = []
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
    ):  # where one is set, requests takes it in place of the exporter's
        monkeypatch.delenv(name, raising=False)
    async with serving(old, seen) as url:
        for name, value in (("ENDPOINT", url), ("CERTIFICATE", str(old.authority)), ("TIMEOUT", "10")):
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
        tracing = Tracing.from_environment(os.environ, service="test")
        with tracing.span("pod"):
            pass
        await asyncio.to_thread(tracing.close)
    assert seen == ["POST /v1/traces"]


def test_extenders(old):
    tls = ExtenderTls(ca_file=str(old.authority))
    context = tls_context(ExtenderConfiguration(name="e", url_prefix="https://e", tls=tls))
    assert context is not None
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


async def test_an_unknown_authority_is_refused_still(old, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    unknown = old_authority(other).authority
    async with serving(old) as url:
        async with await KubeClient.connect(kubeconfig(tmp_path, url, unknown)) as client:
            with pytest.raises(Exception, match="certificate verify failed"):
                await client.request("GET", "/version")
        server = Prometheus(url, timeout=SILENCE, access=PrometheusAccess(ca_file=unknown))
        with pytest.raises(Exception, match="certificate verify failed"):
            await server.query("up")
        server.close()
