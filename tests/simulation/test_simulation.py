"""Seeds of the simulation, in a process whose hash seed is fixed: there the same seed gives the same run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from berth.clock import SteadyClock
from harness.plugins.long_runs import often
from simulation.loop import VirtualLoop
from simulation.patches import simulated, use

TESTS = Path(__file__).parents[1]
SEEDS_EACH = 20
SEEDS = often(40)


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_EACH))
def test_no_seed_breaks_what_must_hold(first):
    done = simulate("--first", str(first), "--seeds", str(SEEDS_EACH))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_no_seed_of_the_smallest_clusters_breaks_what_must_hold():
    done = simulate("--focus", "smallest", "--seeds", str(often(80)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_no_seed_with_groups_breaks_what_must_hold():
    done = simulate("--focus", "groups", "--seeds", str(often(40)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_what_was_found_once_is_not_found_again():
    done = simulate("--kept")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_clock_of_services_is_the_simulated_one():
    loop = VirtualLoop()
    with simulated(log=None):
        use(loop)
        before = SteadyClock().now()
        loop.run_until(loop.time() + 5.0)
        assert SteadyClock().now() == before + 5.0
    loop.close()


@pytest.mark.parametrize("focus", ["", "groups"])
def test_the_same_seed_gives_the_same_run(focus):
    first, second = (simulate("--seed", "11", "--focus", focus, "-v") for _ in range(2))
    assert first.returncode == 0, first.stdout + first.stderr
    assert len(first.stdout.splitlines()) > 20
    assert first.stdout == second.stdout


@pytest.mark.parametrize("focus", ["", "groups"])
def test_a_seed_gives_the_same_run_alone_and_after_others(focus):
    many = simulate("--first", "20", "--seeds", "10", "--digests", "--focus", focus)
    alone = simulate("--seed", "29", "--focus", focus)
    (digest,) = [line.split()[1] for line in many.stdout.splitlines() if line.startswith("29 ")]
    assert f"digest {digest}" in alone.stdout
