"""The simulation finds the services with one rule taken away."""

import pytest

from harness.plugins.long_runs import IS_LONG
from simulation.mutations import ELSEWHERE, MUTATIONS
from simulation.test_simulation import TESTS, simulate

# The quick ones together: a process takes as long to start as a mutation to be found.
TOGETHER = [[name] for name in MUTATIONS] if IS_LONG else [[name for name in MUTATIONS if MUTATIONS[name].is_quick]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0] if IS_LONG else "quick")
def test_a_rule_that_is_taken_away_is_missed(names):
    done = simulate("--mutations", *names)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("test", ELSEWHERE.values())
def test_what_the_simulation_cannot_show_has_a_test_elsewhere(test):
    path, _, name = test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text()
