"""The short form of `make fuzz`: whatever comes in, a reader raises nothing but its declared error, and soon."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.run import failure
from fuzz.targets import FOUND, SLOW, TARGETS, mutated
from harness.plugins.long_runs import often


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_valid(name: str):
    for seed in TARGETS[name].seeds:
        try:
            TARGETS[name].run(seed)
        except TARGETS[name].errors:
            assert name in {"kubeconfig", "extender's answer"}  # the latter has one form for each verb


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_stays_mended(name: str, data: bytes):
    assert failure(TARGETS[name], data) is None


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs(name: str):
    chance = random.Random(name)
    for _ in range(often(100) // SLOW.get(name, 1) + 5):
        data = mutated(TARGETS[name].seeds, chance)
        assert failure(TARGETS[name], data) is None, data


@settings(max_examples=often(50), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from(sorted(set(TARGETS) - SLOW.keys())),
    st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")),
)
def test_any_bytes(name: str, data: bytes):
    assert failure(TARGETS[name], data) is None
