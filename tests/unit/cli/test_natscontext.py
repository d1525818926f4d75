"""Contexts of the NATS CLI, as commands read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from berth.exits import UsageError
from berth_cli.natscontext import context_settings

# As nats 0.2 writes them: every field is there, most of them empty.
EMPTY = dict.fromkeys(
    ("description", "url", "socks_proxy", "token", "user", "password", "creds", "nkey", "cert", "key", "ca", "nsc"), ""
)
MORE = {
    **dict.fromkeys(("jetstream_domain", "jetstream_api_prefix", "jetstream_event_prefix", "inbox_prefix"), ""),
    **dict.fromkeys(("user_jwt", "color_scheme"), ""),
    "tls_first": False,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, name: str = "prod", **fields: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps({**EMPTY, **MORE, **fields}))


def test_server_and_credentials_are_settings(folder):
    own = {"user": "people", "password": "secret-of-a-test", "jetstream_domain": "berth"}
    write(folder, url="nats://a:4222,nats://b:4222", **own)
    assert context_settings("prod") == {
        "nats.url": "nats://a:4222,nats://b:4222",
        "nats.user": "people",
        "nats.password": "secret-of-a-test",
        "nats.domain": "berth",
    }


def test_files_are_found_in_the_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    write(folder, creds="~/people.creds", ca="/etc/ca.pem")
    assert context_settings("prod") == {
        "nats.credentials_file": "/home/somebody/people.creds",
        "nats.ca_file": "/etc/ca.pem",
    }


def test_without_xdg_it_is_in_config(folder, monkeypatch, tmp_path):
    write(folder, url="nats://a:4222")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".config").symlink_to(tmp_path)
    assert context_settings("prod") == {"nats.url": "nats://a:4222"}


@pytest.mark.parametrize("field", ["user_jwt", "nsc", "socks_proxy", "jetstream_api_prefix", "tls_first"])
def test_what_berth_cannot_do_is_refused(folder, field):
    write(folder, url="nats://a:4222", **{field: "something"})
    with pytest.raises(UsageError, match=f"berth cannot connect with its {field}"):
        context_settings("prod")


def test_a_missing_context_names_those_that_are_there(folder):
    for name in ("lab", "home"):
        write(folder, name)
    with pytest.raises(UsageError, match=r"has home, lab$"):
        context_settings("prod")


@pytest.mark.parametrize("text", ["not JSON", "[]", '{"url": '])
def test_a_file_that_is_no_context_is_refused(folder, text):
    (folder / "prod.json").write_text(text)
    with pytest.raises(UsageError, match="is no JSON object"):
        context_settings("prod")


@pytest.mark.parametrize("name", ["../prod", "a/b", ".."])
def test_a_context_is_a_name_and_no_path(folder, name):
    with pytest.raises(UsageError, match=r"want the name of a file|has none"):
        context_settings(name)
