"""The commands of docs/nats.md, in their order, on a running pipeline with NATS's users `people` and `facts`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from harness.worlds.cluster_user import cluster_user
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server", "nats-cli"), pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/nats.md").read_text()
COMMANDS = re.findall(r"^\$ (nats .*)$", PAGE, re.MULTILINE)
WEB = next(yaml.safe_load_all((ROOT / "docs/tracing/pods.yaml").read_text()))
SECONDS = 20.0
FOLLOW = "nats sub 'berth.*.*.default.web-0' --count 3"
SHOWS = {
    "nats stream get DECISIONS -S berth.decision.berth.default.web-0": "Berth-Outcome: bound",
    "nats stream subjects DECISIONS": "berth.decision.berth.default.web-0",
    "nats stream get DECISIONS 1": "berth.decision.berth.default.web-0",
    "nats stream info DECISIONS": "berth.decision.>",
    "nats consumer report PENDING": "scorer",
    "nats consumer report RANKED": "binder-1",
    "nats stream subjects PENDING": "No subjects",
    "nats kv ls": "cluster",
    "nats kv get cluster node.node-03 --raw": '"name":"node-03"',
    """nats kv put facts disks.node-03 '{"free":3}' --context facts""": '"free":3',
    "nats kv get facts disks.node-03 --raw": '"free":3',
    "nats kv del facts disks.node-03 --force --context facts": "",  # it says nothing
    "nats micro ls": "berth-scorer",
    "nats micro info berth-scorer": "profile.berth",
    "nats micro stats berth-scorer": "berth-scorer Service Statistics",
    "nats stream info dead": "berth.dead.>",
}
"""What the answer of each command has in it."""


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell as the page has set it up: a context of the NATS CLI, of its own folder."""

    environment: dict[str, str]

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )

    def run(self, command: str) -> str:
        with self.start(command) as process:
            return said(process)


def said(process: subprocess.Popen[str]) -> str:
    """What a command says that succeeds in time."""
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def berth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    with berth_up("--nodes", 12, "--scorers", 2, folder=tmp_path_factory.mktemp("berth-up")) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="module")
def shell(berth: BerthUp, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """After the page's first commands."""
    folder = Path(berth.kubeconfig).parent
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}
    shell = Shell({**clean, "XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config")), "folder": str(folder)})
    for context in re.findall(r"^(nats context add .*nats://127.0.0.1:4222.*)$", PAGE, re.MULTILINE):
        shell.run(context.replace("nats://127.0.0.1:4222", berth.nats))
    return Shell({**shell.environment, "NATS_CONTEXT": "berth"})


def test_every_command_of_the_page_is_tried():
    assert [FOLLOW, *SHOWS] == COMMANDS


async def test_the_commands_answer_what_the_page_says(berth: BerthUp, shell: Shell):
    follower = shell.start(FOLLOW)
    assert follower.stdout is not None
    assert "Subscribing" in follower.stdout.readline()
    async with cluster_user(berth.kubeconfig) as cluster:
        created = await cluster.api.post("/api/v1/namespaces/default/pods", WEB)
        assert created.code == 201, created.body
    stages = re.findall(r'Received on "berth\.(\w+)\.berth\.default\.web-0"', said(follower))
    assert stages == ["pending", "ranked", "decision"]
    for command, answer in SHOWS.items():
        assert answer in shell.run(command), command
