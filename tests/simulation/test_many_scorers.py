"""Where pods go with many scorers whose views lag, compared with one scorer (docs/design.md, 3.9).

Rankers, views, cache and core are those of the services; the clock and the delays are simulated, from a seed. `make
bench-placement` compares the same clusters on the real pipeline.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from berth.framework.profile import Profile
from berth.profiles.configuration import profiles_of, read_configuration
from harness.plugins.long_runs import IS_LONG
from harness.worlds.many_scorers import PROFILE, ManyScorers
from harness.worlds.placements import NodeKind, Placements, Scenario, per_kind, scenarios

NODES = 300 if IS_LONG else 150
SCENARIOS = {scenario.name: scenario for scenario in scenarios(NODES)}
REPEATS_PER_100 = 3.0
MISPLACED_PERCENT = 3.0
MOST_APART = 2


def profile(scenario: Scenario) -> Profile:
    with TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(scenario.config)
        return profiles_of(read_configuration(path, provider=scenario.provider))[PROFILE]


@cache
def placed(name: str, scorers: int) -> Placements:
    scenario = SCENARIOS[name]
    return ManyScorers(scenario, profile(scenario), scorers).run()


@pytest.mark.parametrize("scorers", [2, 8] if IS_LONG else [8])
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_scorers_place_pods_as_one_does(name, scorers):
    by_one, by_many = placed(name, 1), placed(name, scorers)
    counts = f"{per_kind(by_one)} by one scorer, {per_kind(by_many)} by {scorers}"
    assert by_many.repeats_per_100 <= REPEATS_PER_100
    assert by_many.on_shunned(by_one) == 0, counts
    assert by_many.widest <= MOST_APART, counts
    if by_many.scenario.node_count >= NODES:  # on a few nodes a single pod is already more than 3 %
        assert by_many.misplaced_percent(by_one) <= MISPLACED_PERCENT, counts


@pytest.mark.parametrize("scorers", [4, 8] if IS_LONG else [8])
@pytest.mark.parametrize("nodes", [60, 99, 150] if IS_LONG else [60])
def test_pods_in_flight_are_a_large_part_of_a_small_cluster(nodes, scorers):
    scenario = next(scenario for scenario in scenarios(nodes) if scenario.name == "three sizes")
    made = profile(scenario)
    by_one, by_many = ManyScorers(scenario, made, 1).run(), ManyScorers(scenario, made, scorers).run()
    counts = f"{per_kind(by_one)} by one scorer, {per_kind(by_many)} by {scorers}"
    assert by_many.repeats_per_100 <= REPEATS_PER_100
    assert by_many.widest <= MOST_APART, counts
    assert by_many.misplaced_percent(by_one) <= MISPLACED_PERCENT, counts


def test_many_scorers_name_enough_nodes_of_a_large_cluster_of_which_no_two_are_equal():
    sizes = (8 + number * 7919 % 800 / 100 for number in range(600))
    kinds = tuple(
        NodeKind(name=f"n{number}", count=1, cpu=f"{cores:.2f}", memory="64Gi", present=number % 5)
        for number, cores in enumerate(sizes)
    )
    scenario = Scenario(name="no two equal", kinds=kinds, pods=900, cpu="1", memory="1Gi")
    by_one, by_many = (ManyScorers(scenario, profile(scenario), scorers).run() for scorers in (1, 4))
    assert by_many.misplaced_percent(by_one) <= MISPLACED_PERCENT


def test_a_seed_gives_the_same_run_again():
    scenario = SCENARIOS["new nodes"]
    first, again, other = (ManyScorers(scenario, profile(scenario), 4, seed=seed).run() for seed in (7, 7, 8))
    assert first == again != other
