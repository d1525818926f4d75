"""docs/gangs.md: its example on the simulated cluster as commands explain it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[2] / "docs"
PATHS = {
    "PodGroup": "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    with berth_up("--nodes", 2, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


def berth(*arguments: str, of: BerthUp) -> str:
    done = run_berth(*arguments, of=of)
    done.check_returncode()
    return done.stdout


def run_berth(*arguments: str, of: BerthUp) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "berth_cli", *arguments, "--nats", of.nats]
    environment = {**os.environ, "TMPDIR": str(of.temporary)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def states(of: BerthUp) -> dict[str, tuple[str, int, int]]:
    found = json.loads(berth("groups", "-o", "json", of=of))["groups"]
    return {each["group"]: (each["state"], each["bound"], each["waiting"]) for each in found}


async def test_the_second_of_two_groups_waits_until_the_first_is_gone(simulated: BerthUp):
    async with cluster_user(simulated.kubeconfig) as user:
        for each in yaml.safe_load_all((DOCS / "examples/gangs/pods.yaml").read_text()):
            assert (await user.api.post(PATHS[each["kind"]], each)).code == 201

        async def one_waits() -> bool:
            return states(simulated) == {
                "default/first": ("bound", 4, 0),
                "default/second": ("unschedulable", 0, 4),
            }

        await eventually(one_waits, "the first group to be bound, and the second to wait")
        said = berth("why", "--group", "second", of=simulated)
        assert re.search(r"default/second is unschedulable: 0 of 4 have a place; 4 like second-\S+ do not fit: ", said)
        assert len(re.findall(r"^second-\S+ +waits$", said, re.MULTILINE)) == 4
        assert "NodeResourcesFit: asks for 2 CPU; the freest node has 0 of 4 free" in said
        pod = re.findall(r"^(second-\S+) +waits$", said, re.MULTILINE)[0]
        assert f"default/{pod} waits with its group default/second: 0 of 4" in berth("why", pod, of=simulated)
        assert "default/second (group, 4 pods)" in berth("queue", of=simulated)
        for command in (["why"], ["queue", "why"]):
            as_a_pod = run_berth(*command, "default/second", of=simulated)
            assert as_a_pod.returncode == 1
            assert as_a_pod.stderr.strip().endswith("; a group has this name: `berth why --group default/second`")
        assert (await user.api.delete(f"{PATHS['Deployment']}/first")).code == 200

        async def second_is_bound() -> bool:
            return states(simulated)["default/second"] == ("bound", 4, 0)

        await eventually(second_is_bound, "the second group to be bound")
    traced = berth("trace", pod, of=simulated)
    assert "decision  unschedulable: 0 of 4 have a place" in traced
    assert "decision  bound 4 pods of the group" in traced
    assert re.search(r"^second-\S+ +node-[01]$", berth("why", "--group", "second", of=simulated), re.MULTILINE)
    assert "placed with its PodGroup" in berth("why", pod, of=simulated)
