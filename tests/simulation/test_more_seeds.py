"""The second half of the seeds."""

import pytest

from simulation.test_simulation import SEEDS, SEEDS_EACH, check_seeds


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, 2 * SEEDS, SEEDS_EACH))
def test_no_seed_breaks_what_must_hold(first):
    check_seeds(first)
