"""Seeds of the simulation, in a process whose hash seed is fixed: there the same seed gives the same run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SEEDS = 50
PARTS = 2


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_what_must_hold(part):
    count = SEEDS // PARTS
    done = simulate("--first", str(part * count), "--seeds", str(count))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_seed_gives_the_same_run():
    first, second = simulate("--seed", "11", "-v"), simulate("--seed", "11", "-v")
    assert first.returncode == 0, first.stdout + first.stderr
    assert len(first.stdout.splitlines()) > 20
    assert first.stdout == second.stdout
