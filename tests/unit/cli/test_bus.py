"""Which NATS a command asks when nobody gave an address: that of this user's own `berth up`, and no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from berth.bus.interface import BusLostError
from berth.bus.topology import CLUSTER_ID_KEY, CONTROL
from berth.exits import UsageError
from berth_cli import bus
from berth_cli.bus import NatsServer, open_session
from berth_cli.options import OutputFormat, Source, print_document
from berth_cli.pipeline.access import FOLDER_PREFIX, announce_address, announce_cluster
from harness.fakes.memory_bus import MemoryBus

DEFAULT = "nats://127.0.0.1:4222"
OTHERS = ["nats://127.0.0.1:30001", "nats://127.0.0.1:30002"]
ENDED = 2**22 + 1
"""A process id above the largest that Linux gives."""


ANY = NatsServer()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BERTH_NATS_URL", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def a_pipeline(place: Path, address: str, *, pid: int | None = None) -> Path:
    """The folder of a pipeline whose NATS listens there."""
    folder = place / f"{FOLDER_PREFIX}{pid or os.getpid()}-{address[-5:]}"
    (folder / "credentials").mkdir(parents=True)
    announce_address(folder, address)
    (folder / "credentials" / "limits").touch()
    (folder / "credentials" / "people").write_text("secret")
    return folder


async def asked(monkeypatch: pytest.MonkeyPatch, server: NatsServer = ANY) -> str:
    """The address to which the command connects."""
    connected = []

    async def connect(settings, *, name):
        connected.append(settings.nats.url)
        session = await MemoryBus().connect(name=name)
        await session.apply()
        await session.put(CONTROL, CLUSTER_ID_KEY, b"uid-1")
        return session

    monkeypatch.setattr(bus, "_connect", connect)
    async with open_session(server, name="test"):
        return connected[0]


async def test_a_server_on_natss_port_is_not_asked_when_no_pipeline_of_this_user_runs(monkeypatch):
    with pytest.raises(
        BusLostError, match="no address is given, and no `berth up` of yours runs with this TMPDIR: start it, name"
    ):
        await asked(monkeypatch)


async def test_a_pipeline_that_has_ended_leaves_its_port_to_others(place, monkeypatch):
    a_pipeline(place, DEFAULT, pid=ENDED)
    with pytest.raises(BusLostError, match="no `berth up` of yours runs"):
        await asked(monkeypatch)


async def test_the_pipeline_of_another_user_is_not_asked(place, monkeypatch):
    owner = a_pipeline(place, DEFAULT).stat().st_uid
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    with pytest.raises(BusLostError, match="no `berth up` of yours runs"):
        await asked(monkeypatch)


@pytest.mark.parametrize(
    ("running", "found"),
    [
        pytest.param([DEFAULT], DEFAULT, id="on NATS's port"),
        pytest.param(OTHERS[:1], OTHERS[0], id="on another port"),
        pytest.param([*OTHERS, DEFAULT], DEFAULT, id="several, one on NATS's port"),
    ],
)
async def test_ones_own_pipeline_is_asked(place, monkeypatch, running, found):
    for address in running:
        a_pipeline(place, address)
    assert await asked(monkeypatch) == found


async def test_of_several_on_other_ports_one_must_be_named(place, monkeypatch):
    for address in OTHERS:
        a_pipeline(place, address)
    with pytest.raises(UsageError, match=rf"at {OTHERS[0]}, {OTHERS[1]}: name one"):
        await asked(monkeypatch)
    assert await asked(monkeypatch, NatsServer(OTHERS[1])) == OTHERS[1]


async def test_an_address_that_was_given_is_asked_whoever_runs_it(place, monkeypatch):
    a_pipeline(place, DEFAULT)
    assert await asked(monkeypatch, NatsServer("nats://there:4222")) == "nats://there:4222"
    monkeypatch.setenv("BERTH_NATS_URL", "nats://elsewhere:4222")
    assert await asked(monkeypatch) == "nats://elsewhere:4222"


async def test_an_answer_names_its_cluster_and_nats(monkeypatch, capsys):
    await asked(monkeypatch, NatsServer("nats://there:4222"))
    print_document({"pod": "default/web"}, OutputFormat.JSON)
    printed = capsys.readouterr()
    first, _, document = printed.out.partition("\n")
    assert (first, printed.err) == ("cluster uid-1, NATS nats://there:4222", "")
    assert json.loads(document) == {"pod": "default/web", "cluster": "uid-1", "nats": "nats://there:4222"}


async def test_the_cluster_of_ones_own_pipeline_is_named_by_its_kubeconfig_too(place, monkeypatch, capsys):
    announce_cluster(a_pipeline(place, DEFAULT), place / "admin.kubeconfig")
    await asked(monkeypatch)
    assert capsys.readouterr().out == f"cluster uid-1 ({place}/admin.kubeconfig), NATS {DEFAULT}\n"


def test_a_cluster_that_no_watcher_has_named_is_unknown():
    source = Source(cluster="", nats="nats://there:4222")
    assert str(source) == "cluster unknown (no watcher has named it yet), NATS nats://there:4222"


def test_a_document_of_a_command_without_nats_names_none(capsys):
    print_document({"pod": "default/web"}, OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out) == {"pod": "default/web"}
