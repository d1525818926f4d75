"""The simulation finds the services with one rule taken away."""

import pytest

from simulation.mutations import MUTATIONS
from simulation.test_simulation import simulate


@pytest.mark.parametrize("name", [name for name, mutation in MUTATIONS.items() if mutation.is_quick])
def test_a_rule_that_is_taken_away_is_missed(name):
    done = simulate("--mutations", name)
    assert done.returncode == 0, done.stdout + done.stderr
