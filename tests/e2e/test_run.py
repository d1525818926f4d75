"""`berth run` as a new user runs it."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.servers.child_processes import ended_with_the_block
from harness.servers.small_disk import small_disk

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

RUN_SECONDS = 120.0
SUMMARY = re.compile(r"^bound (\d+)/(\d+) in \d+\.\d s \(\d+ pods/s\)$", re.MULTILINE)


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "berth_cli", "run", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )


def bound(text: str) -> tuple[int, int]:
    """The numbers of bound and of created pods."""
    ((placed, created),) = SUMMARY.findall(text)
    return int(placed), int(created)


def test_every_pod_is_bound_and_one_is_traced():
    answer = run("--pods", 20, "--nodes", 5, "--scorers", 2)
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert bound(answer.stdout) == (20, 20)
    assert lines[lines.index("next:") - 2].startswith("bound ")
    traced = [line for line in lines if line.startswith("+")]
    assert [line.split()[3] for line in traced] == [
        f"berth.{stage}.berth.default.web-20" for stage in ("pending", "ranked", "decision")
    ]
    assert re.search(r"scorer-[12]: 5 of 5 nodes are possible", traced[1])


def test_pods_are_placed_by_the_named_provider():
    answer = run("--pods", 10, "--nodes", 3, "--algorithm-provider", "ClusterAutoscalerProvider")
    assert answer.returncode == 0
    assert "100 x 10000" in answer.stdout  # NodePreferAvoidPods
    assert answer.stderr.count("DEPRECATED") == 1


def test_it_ends_with_1_when_pods_do_not_fit():
    answer = run("--pods", 120, "--nodes", 1, "--scorers", 1, "--deadline", 8)  # of which a node takes 110
    assert answer.returncode == 1
    placed, created = bound(answer.stdout)
    assert placed < created == 120


def test_it_can_be_stopped_while_it_creates_pods(tmp_path: Path):
    command = [sys.executable, "-m", "berth_cli", "run", "--pods", "20000", "--nodes", "5"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    with ended_with_the_block(started) as running:
        assert running.stdout is not None
        while not running.stdout.readline().startswith("bound"):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=RUN_SECONDS)
    assert (running.returncode, errors) == (0, "berth: stopping\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requires("small-disk")
def test_a_temporary_folder_that_becomes_full_is_named_with_its_size(tmp_path: Path):
    with small_disk(tmp_path / "disk", 24) as disk:
        command = [sys.executable, "-m", "berth_cli", "run", "--pods", "5000", "--nodes", "50", "--deadline", "15"]
        environment = {**os.environ, "TMPDIR": str(disk.folder)}
        started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        with ended_with_the_block(started) as running:
            assert running.stdout is not None
            lines = iter(running.stdout.readline, "")
            before = list(itertools.takewhile(lambda line: not line.startswith("bound"), lines))
            disk.fill()
            rest, _ = running.communicate(timeout=RUN_SECONDS)
    said = " ".join(f"{''.join(before)}{rest}".split())  # lines are broken at the width of the terminal
    assert running.returncode == 1
    folder = re.escape(str(disk.folder))
    assert re.search(rf"warning: {folder} has 2\d\.\d MiB free, and the pipeline's files grow with every pod", said)
    full = rf"{folder} is full \(0\.\d MiB free\): NATS stores no messages there, and pods wait until there is room"
    assert len(re.findall(full, said)) == 1
    assert "start again with TMPDIR set to another folder" in said


def test_an_invalid_setting_is_reported_on_one_line():
    answer = run("--pods", 5, "--nodes", 2, BERTH_LEADER_ELECTION_LEASE_DURATION="nonsense")
    assert (answer.returncode, answer.stderr) == (
        2,
        "berth: BERTH_LEADER_ELECTION_LEASE_DURATION: want a duration such as 15s, 1m30s or 500ms, got 'nonsense'\n",
    )
