"""The second half of the seeds of ``make test``."""

import pytest

from simulation.test_simulation import SEEDS_EACH, check_seeds


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(250, 500, SEEDS_EACH))
def test_no_seed_breaks_what_must_hold(first):
    check_seeds(first)
