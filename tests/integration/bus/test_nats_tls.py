"""TLS to a real nats-server: the certificate is checked, and a server without TLS gets no credentials."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from berth.bus.interface import BusLostError, BusRefusedError
from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings, NatsCredentials, TlsSettings
from harness.servers.nats_server import NatsServer, nats_server

pytestmark = [
    pytest.mark.requires("nats-server"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on the PATH to make certificates with"),
]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that signed itself; its key lies beside it."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True, timeout=60)
    return folder / "cert.pem"


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[NatsServer]:
    config = f'tls {{ cert_file: "{certificate}", key_file: "{certificate.with_name("key.pem")}" }}\n'
    with nats_server(config) as server:
        yield server


async def test_a_session_over_tls(tls_server, certificate):
    settings = BusSettings(servers=(tls_server.address,), tls=TlsSettings(authority_file=certificate))
    session = await NatsBus(settings).connect(name="test")
    await session.apply()
    await session.publish("berth.pending.berth.default.web-0", b"x" * 100_000)
    await session.close()


async def test_a_certificate_of_an_unknown_authority_is_refused(tls_server):
    settings = BusSettings(servers=(tls_server.address,), tls=TlsSettings())
    with pytest.raises(BusLostError, match="certificate"):
        await NatsBus(settings).connect(name="test")


async def test_a_server_without_tls_gets_no_credentials(shared_nats_server, certificate):
    settings = BusSettings(
        servers=(shared_nats_server.address,),
        tls=TlsSettings(authority_file=certificate),
        credentials=NatsCredentials(user="a", password="b"),  # noqa: S106 - of nobody
    )
    with pytest.raises(BusRefusedError, match="TLS is asked for"):
        await NatsBus(settings).connect(name="test")
    tls_address = shared_nats_server.address.replace("nats://", "tls://")
    with pytest.raises(BusRefusedError, match="TLS is asked for"):
        await NatsBus(BusSettings(servers=(tls_address,))).connect(name="test")


async def test_a_server_without_times_to_live_of_messages_is_refused_by_its_version():
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.10.26","max_payload":1048576}\r\n')
        while await reader.read(1000):
            writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(old, "127.0.0.1", 0) as server:
        settings = BusSettings(servers=(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}",))
        with pytest.raises(BusRefusedError, match=r"want 2\.11 or newer, got 2\.10\.26$"):
            await NatsBus(settings).connect(name="test")


@pytest.fixture
def creds_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Credentials with a seed, and a stand-in for the package that signs with it."""
    signer = SimpleNamespace(sign=lambda nonce: b"signed " + nonce, wipe=lambda: None)
    nkeys = ModuleType("nkeys")
    nkeys.__spec__ = ModuleSpec("nkeys", None)
    monkeypatch.setattr(nkeys, "from_seed", lambda _: signer, raising=False)
    monkeypatch.setitem(sys.modules, "nkeys", nkeys)
    file = tmp_path / "user.creds"
    file.write_text("-----BEGIN NATS USER JWT-----\njwt\n---\n-----BEGIN USER NKEY SEED-----\nseed\n---\n")
    return file


@pytest.mark.parametrize("way", ["user", "token", "creds", "address", "nothing"])
async def test_an_attacker_who_takes_tls_out_of_the_info_receives_nothing(creds_file, way):
    received = bytearray()

    async def without_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.15.1","max_payload":1048576,"auth_required":true,"nonce":"n"}\r\n')
        while data := await reader.read(1000):
            received.extend(data)
            writer.write(b"PONG\r\n")
        writer.close()

    credentials = {
        "user": NatsCredentials(user="a", password="b"),  # noqa: S106 - of nobody
        "token": NatsCredentials(token="c"),  # noqa: S106 - of nobody
        "creds": NatsCredentials(credentials_file=creds_file),
    }.get(way, NatsCredentials())
    async with await asyncio.start_server(without_tls, "127.0.0.1", 0) as attacker:
        address = f"tls://{'d:e@' if way == 'address' else ''}127.0.0.1:{attacker.sockets[0].getsockname()[1]}"
        with pytest.raises(BusRefusedError, match="TLS is asked for"):
            await NatsBus(BusSettings(servers=(address,), credentials=credentials)).connect(name="test")
    assert received == b""


async def test_a_user_in_a_tls_address_logs_in(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{certificate.with_name("key.pem")}" }}\n'
    with nats_server(tls + "authorization { user: a, password: b }\n") as server:
        address = server.address.replace("nats://", "tls://a:b@")
        session = await NatsBus(BusSettings(servers=(address,))).connect(name="test")
        await session.close()
        with pytest.raises(BusRefusedError, match="refuses"):
            await NatsBus(BusSettings(servers=(server.address.replace("nats://", "tls://"),))).connect(name="test")


@pytest.mark.parametrize(
    "settings",
    [
        BusSettings(tls=TlsSettings(authority_file=Path("/nowhere/ca.pem"))),
        BusSettings(tls=TlsSettings(certificate_file=Path("/nowhere/cert.pem"))),
        BusSettings(credentials=NatsCredentials(credentials_file=Path("/nowhere/user.creds"))),
        BusSettings(credentials=NatsCredentials(nkey_seed_file=Path("/nowhere/seed"))),
    ],
    ids=["authority", "certificate", "credentials", "seed"],
)
async def test_a_missing_file_is_named_before_connecting(settings):
    with pytest.raises(BusRefusedError, match=r"/nowhere/.*no such file"):
        await NatsBus(settings).connect(name="test")


async def test_a_file_without_certificate_is_refused(tmp_path):
    (tmp_path / "ca.pem").write_text("nonsense")
    settings = BusSettings(tls=TlsSettings(authority_file=tmp_path / "ca.pem"), connect_timeout=timedelta(seconds=1))
    with pytest.raises(BusRefusedError, match="connecting"):
        await NatsBus(settings).connect(name="test")
