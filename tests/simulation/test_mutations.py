"""The simulation finds the services with one rule taken away."""

import pytest

from harness.plugins.long_runs import IS_LONG
from simulation.mutations import ELSEWHERE, MUTATIONS
from simulation.test_simulation import TESTS, simulate


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name, mutation in MUTATIONS.items() if mutation.is_quick or IS_LONG])
def test_a_rule_that_is_taken_away_is_missed(name):
    done = simulate("--mutations", name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("test", ELSEWHERE.values())
def test_what_the_simulation_cannot_show_has_a_test_elsewhere(test):
    path, _, name = test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text()
