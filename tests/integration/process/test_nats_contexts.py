"""Commands on a server with accounts, with what a context of the NATS CLI says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.bus.session import NatsBus
from harness.servers.bus_users import bus_of_users, domain_of, inbox_of, password_of, settings_of
from harness.servers.nats_server import NatsServer

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    async def apply(server: NatsServer) -> None:
        session = await NatsBus(settings_of(server, "apply")).connect(name="apply")
        await session.apply()
        await session.close()

    with bus_of_users() as server:
        asyncio.run(apply(server))
        yield server


@pytest.fixture
def folder(tmp_path: Path, server: NatsServer) -> Path:
    """A folder of configurations, with a context for each of two users, and one with a wrong password."""
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    for name, user, password in (
        ("people", "people", password_of("people")),
        ("admin", "apply", password_of("apply")),
        ("wrong", "people", "of somebody else"),
    ):
        context = {
            "url": server.address,
            "user": user,
            "password": password,
            "jetstream_domain": domain_of(user),
            "inbox_prefix": inbox_of(user),
            "creds": "",
            "nsc": "",
        }
        (contexts / f"{name}.json").write_text(json.dumps(context))
    return tmp_path


def berth(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "NATS_"))}
    environment = {**others, "XDG_CONFIG_HOME": str(folder), "TMPDIR": str(folder), **variables}
    command = [sys.executable, "-m", "berth_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize("variables", [{}, {"BERTH_NATS_USER": "scorer", "BERTH_NATS_URL": "nats://127.0.0.1:1"}])
def test_the_context_is_all_that_says_where_and_who(folder, variables):
    done = berth("top", "--once", "--context", "people", folder=folder, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no watcher answers" in done.stdout


def test_the_variable_of_the_nats_cli_names_it_too(folder):
    done = berth("dead", "-o", "json", folder=folder, NATS_CONTEXT="people")
    assert (done.returncode, json.loads(done.stdout)["letters"]) == (0, [])


def test_nats_names_another_server(folder):
    done = berth("dead", "--context", "people", "--nats", "nats://127.0.0.1:1", folder=folder)
    assert done.returncode == 3
    assert "nats://127.0.0.1:1" in done.stderr


def test_wrong_credentials_and_missing_contexts_are_said(folder):
    done = berth("dead", "--context", "wrong", folder=folder)
    assert done.returncode != 0
    assert "it refuses user" in done.stderr
    done = berth("dead", "--context", "nobody", folder=folder)
    assert (done.returncode, "has admin, people, wrong" in done.stderr) == (2, True)


def test_an_admin_drains_and_people_do_not(folder):
    refused = berth("drain", "--context", "people", folder=folder)
    assert (refused.returncode, "this is an admin's command" in refused.stderr) == (2, True)
    done = berth("drain", "--context", "admin", "--timeout", "30", folder=folder)
    assert (done.returncode, "\ndrained: no pod is under way" in done.stdout) == (0, True)
    done = berth("drain", "--stop", "--context", "admin", folder=folder)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["pods are published again"])


def test_without_a_watcher_nobody_knows_which_pods_wait(folder):
    done = berth("queue", "--context", "people", folder=folder)
    assert (done.returncode, len(done.stdout.splitlines())) == (3, 1)  # cluster and NATS
    assert done.stderr == "berth: asking which pods wait: no watcher leads: see `berth top`\n"
