"""Random expressions have the same value for berth and for Google's evaluator in C++, which shares the parser only."""

import random

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from berth.cel.errors import CompileError
from berth.cel.selector import compile_selector
from harness.builders.devices import device
from harness.builders.random_selectors import RandomSelectors
from harness.plugins.long_runs import often

SEEDS = often(12)
EXPRESSIONS = 40
"""Expressions a seed."""

DEVICE = device(type="gpu", model="A100", index=3, healthy=True)
DATA = {
    "driver": DEVICE.driver,
    "allowMultipleAllocations": False,
    "attributes": {domain: dict(values) for domain, values in DEVICE.attributes.items()},
    "capacity": {},
}
PEER = cel.NewEnv(
    variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)},
    extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
)


def by_peer(expression: str) -> object:
    """True, False, or "error"."""
    try:
        value = PEER.compile(expression).eval(data={"device": DATA})
    except RuntimeError:
        return "error"
    return value.plain_value() if value.type() == cel.Type.BOOL else "error"


def by_berth(expression: str) -> object:
    try:
        evaluation = compile_selector(expression).evaluate(DEVICE)
    except CompileError as error:
        # Kubernetes refuses more than CEL: constants that cannot be converted, lists with elements of several types.
        if "program instantiation failed" in error.reason:
            return "error"
        return "refused" if "expected type" in error.reason else error.reason
    return "error" if evaluation.error else evaluation.matches


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_expressions(seed: int):
    selectors = RandomSelectors(random.Random(seed))
    different = []
    for _ in range(EXPRESSIONS):
        expression = selectors.expression()
        answer = by_berth(expression)
        if answer not in {"refused", by_peer(expression)}:
            different.append((expression, answer, by_peer(expression)))
    assert different == []


def test_most_random_expressions_have_a_value():
    selectors = RandomSelectors(random.Random(1))
    answers = [by_berth(selectors.expression()) for _ in range(200)]
    assert min(answers.count(True), answers.count(False)) > 30
