"""How many seeds and examples a random test tries: few on every run, many with `make test-long`.

    @pytest.mark.parametrize("seed", range(often(5)))
    @settings(max_examples=often(40))

`make test-long` runs the tests with the mark `long`. Those with a parameter `seed`, those of hypothesis, and all of
`tests/fuzz` and `tests/simulation` get it here. Other runs leave out the tests with `long(only=True)`.
"""

import os

import pytest
from hypothesis import is_hypothesis_test, settings

from harness.plugins.tiers import TESTS

LONG_VARIABLE = "BERTH_TEST_LONG"
IS_LONG = os.environ.get(LONG_VARIABLE) == "1"
LONG_FACTOR = 20
"""A long run tries so many times as many seeds and examples."""
RANDOM_FOLDERS = ("fuzz", "simulation")


def often(count: int) -> int:
    """Return how many seeds or examples to try where a short run tries `count`."""
    return count * LONG_FACTOR if IS_LONG else count


# No deadline for one example: machines that run several things at once are slow, not wrong. No database: a failure is
# printed with what to type to see it again, and nothing is left behind.
settings.register_profile("berth", max_examples=often(25), deadline=None, database=None)
settings.load_profile("berth")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "long(only=False): tries more in `make test-long`, or runs only there; random tests have it "
        "(harness.plugins.long_runs)",
    )


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and _is_random(item):
            item.add_marker("long")
    if not IS_LONG and (only_long := [item for item in items if _is_only_long(item)]):
        config.hook.pytest_deselected(items=only_long)
        items[:] = [item for item in items if item not in only_long]


def _is_only_long(item: pytest.Item) -> bool:
    return any(mark.kwargs.get("only") for mark in item.iter_markers("long"))


def _is_random(item: pytest.Function) -> bool:
    folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
    has_seed = hasattr(item, "callspec") and "seed" in item.callspec.params
    return folder in RANDOM_FOLDERS or has_seed or is_hypothesis_test(item.obj)
