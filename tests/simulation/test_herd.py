"""A burst of pods between two samples does not herd to the nodes that these show as idle (docs/design.md, 3.10).

``make bench-herd`` runs more clusters, and the rules of other projects beside.
"""

from __future__ import annotations

from statistics import fmean

import pytest

from harness.plugins.long_runs import IS_LONG
from harness.worlds.herd import RULES, Herd, MeasuredScorers, by_informed, by_oracle, by_rule, node_load

SEEDS = range(10) if IS_LONG else range(5)


@pytest.mark.parametrize("scorers", [1, 4])
@pytest.mark.parametrize("seconds", [0.0, 120.0], ids=["at once", "within two minutes"])
def test_a_burst_is_spread_as_by_an_oracle_that_knows_the_load(seconds, scorers):
    herds = [Herd(seed=seed, seconds=seconds) for seed in SEEDS]
    for herd in herds:
        outcome = MeasuredScorers(herd, node_load(), scorers).outcome()
        assert outcome.above <= herd.largest_pod
        assert outcome.deviation <= 1.05 * by_oracle(herd).deviation


def test_many_scorers_name_enough_nodes_of_which_no_two_are_equal():
    herd = Herd(seed=1, nodes=600, pods=1200)
    outcome = MeasuredScorers(herd, node_load(), 4).outcome()
    assert outcome.deviation <= 1.05 * by_oracle(herd).deviation


@pytest.mark.parametrize("use", [(0.7, 0.7), (0.3, 1.1)], ids=["all 0.7", "0.7 on average"])
def test_with_an_estimate_that_is_right_on_average_no_sample_is_needed_to_spread_a_burst(use):
    herds = [Herd(seed=seed, use=use) for seed in SEEDS[:3]]
    found = [MeasuredScorers(herd, node_load(70), 1).outcome() for herd in herds]
    informed = fmean(by_informed(herd).deviation for herd in herds)
    assert fmean(outcome.deviation for outcome in found) <= 1.1 * informed


@pytest.mark.parametrize("scorers", [1, 4])
def test_pods_that_use_other_amounts_than_estimated_bring_no_node_above_its_threshold(scorers):
    for seed in SEEDS[:2]:
        herd = Herd(seed=seed, use=(0.3, 1.1))
        assert MeasuredScorers(herd, node_load(), scorers).outcome().above <= herd.largest_pod


def test_a_rule_without_newcomers_herds_so_that_the_burst_is_one_that_can():
    herd = Herd(seed=1)
    rule, lag = RULES["LoadVariationRiskBalancing"]
    assert by_rule(herd, rule, lag).above > 100
