"""Short runs of random faults on real servers and processes; `make faults` runs long ones.

BERTH_FAULTS_SEED=7 make test-all ARGS=tests/faults/test_random_faults.py repeats the run of another seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.kinds import KINDS, OF_A_NATS_CLUSTER, OF_DEVICES, OF_GROUPS
from faults.run import Size, run
from faults.world import faketime
from harness.servers.control_plane import assets_folder

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(600)]

SEED = int(os.environ.get("BERTH_FAULTS_SEED", "1"))
RECOVERED_SECONDS = 120.0
"""Twice that of `make faults`: other tests run at the same time."""
LONG = {"pause leading watcher", "pause leading binder", "NATS half open", "API half open"}
"""Faults that last longer than this test should."""
SHORT = [name for name in KINDS if name not in LONG and (faketime() or "clock" not in name)]
OF_PROCESSES = [name for name in SHORT if "kill" in name]
OF_NATS = [name for name in SHORT if "NATS" in name]


@pytest.mark.parametrize(
    ("kinds", "further"),
    [
        pytest.param(SHORT, {}, id="one NATS server"),
        pytest.param([*OF_NATS, *OF_A_NATS_CLUSTER], {"nats_servers": 3}, id="three NATS servers"),
        pytest.param([*OF_PROCESSES, *OF_DEVICES], {"devices": 12, "scorers": 2}, id="devices"),
        pytest.param([*OF_PROCESSES, *OF_GROUPS], {"groups": 24, "scorers": 2}, id="groups"),
    ],
)
async def test_pods_are_bound_once_and_where_they_fit(kinds: list[str], further: dict[str, int], tmp_path: Path):
    assets = assets_folder()
    assert assets is not None
    size = Size(
        nodes=20,
        tight=3,
        pods=180,
        faults=len(kinds),
        gap_seconds=1.0,
        kinds=kinds,
        recovered_seconds=RECOVERED_SECONDS,
        **{"scorers": 1, **further},
    )
    said: list[str] = [f"seed {SEED}"]
    outcome = await run(SEED, size, assets, tmp_path, said.append)
    assert outcome.problems == [], "\n".join([*said, str(outcome)])
