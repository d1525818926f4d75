"""Selectors answer, fail and cost as kube-scheduler 1.36.3 recorded it (tests/data/cel)."""

import json
import lzma
from pathlib import Path

import pytest

from berth.cel.errors import CompileError
from berth.cel.selector import compile_selector
from harness.builders.devices import device_of

DATA = Path(__file__).parents[2] / "data" / "cel"
RECORDED = json.loads((DATA / "recorded.json").read_text())
DEVICES = {name: device_of(device) for name, device in RECORDED["devices"].items()}
with lzma.open(DATA / "scheduler.json.xz", "rt") as text:
    AT_RANDOM = json.load(text)
DEVICES |= {name: device_of(device) for name, device in AT_RANDOM["devices"].items()}
with lzma.open(DATA / "kubernetes.jsonl.xz", "rt") as lines:
    FROM_LIBRARY = [json.loads(line) for line in lines]

SHARES = 48
"""Tests into which the many cases are divided: one each would cost more than its evaluation."""


def answer(case: dict) -> dict:
    """What berth says, in the words of a recorded case."""
    try:
        selector = compile_selector(case["expression"])
    except CompileError as error:
        return {"rejected": error.reason}
    evaluation = selector.evaluate(DEVICES[case["device"]])
    answer = (
        {"result": "error", "error": evaluation.error.reason} if evaluation.error else {"result": evaluation.matches}
    )
    return answer | ({"cost": evaluation.cost} if "cost" in case else {})


def expected(case: dict) -> dict:
    return {name: case[name] for name in ("rejected", "result", "error", "cost") if name in case}


# The API server estimates what an expression may cost; schedulers see those that it takes.
TAKEN = [case for case in RECORDED["cases"] if not case.get("rejected", "").endswith("too complex, exceeds cost limit")]


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case["expression"])
def test_recorded_by_kube_scheduler(case: dict):
    want = expected(case)
    if "rejected" in want:
        # The API server puts the field and the quoted expression before the reason.
        want["rejected"] = want["rejected"].partition(
            f"Invalid value: {json.dumps(case['expression'], ensure_ascii=False)}: "
        )[2]
    assert answer({"device": "plain", **case}) == want


@pytest.mark.parametrize("share", range(SHARES))
def test_answers_of_kube_scheduler_and_of_its_library(share: int):
    cases = [*FROM_LIBRARY, *AT_RANDOM["cases"]][share::SHARES]
    different = [(case, answer(case)) for case in cases if answer(case) != expected(case)]
    assert different == []


def test_the_cases_have_every_outcome():
    kinds = [("rejected" if "rejected" in case else case["result"]) for case in FROM_LIBRARY]
    assert min(kinds.count(kind) for kind in ("rejected", "error", True, False)) > 100


GPU = 'device.attributes["gpu.example.com"]'
TABLE = [
    ("A.index > 2.5", True), ("A.index == 3.0", True), ('A.index == "3"', False),
    ('A.index > "a"', "no such overload"), ("A.nothere == 1", "no such key: nothere"),
    ("A.nothere == 1 || true", True), ("A.nothere == 1 && false", False),
    ("A.nothere == 1 || false", "no such key: nothere"), ("has(A.nothere)", False),
    ('has(device.attributes["no.such"].x)', False), ('device.attributes["no.such"].x == 1', "no such key: x"),
    ('"no.such" in device.attributes', False),
    ('A["other.example.com/uuid"] == "u-1"', "no such key: other.example.com/uuid"),
    ('cel.bind(a, A, a.type == "gpu" && a.index == 3)', True), ('A[?"type"].orValue("x") == "gpu"', True),
    ("A.?nothere.orValue(7) == 7", True), ('C.memory == quantity("81920Mi")', True),
    ("C.cores.asInteger() == 1", "cannot convert value to integer"), ("C.cores.isInteger()", False),
    ('A.ver.isLessThan(semver("1.3.0"))', True), ('A.ver == semver("1.3.0-rc.1+b9")', True),
    ('semver("1.0").major() == 1', "No Major.Minor.Patch elements found"), ("1/0 == 1", "division by zero"),
    ('A.exists(k, v, k == "index" && v == 3)', True),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "want"), TABLE)
def test_tried_in_claims(expression: str, want: object):
    full = expression.replace("A.", f"{GPU}.").replace("A[", f"{GPU}[").replace("(a, A,", f"(a, {GPU},")
    full = full.replace("C.", 'device.capacity["gpu.example.com"].')
    evaluation = compile_selector(full).evaluate(DEVICES["gpu"])
    assert (evaluation.error.reason if evaluation.error else evaluation.matches) == want


@pytest.mark.slow
def test_five_nested_loops_cost_what_kube_scheduler_counted():
    expression = "a >= 0"
    for name in "edcba":
        expression = f"[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all({name}, {expression})"
    assert compile_selector(expression).evaluate(DEVICES["plain"]).cost == 544_441
