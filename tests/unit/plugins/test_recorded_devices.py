"""DynamicResources decides as a real kube-scheduler 1.36.3 did (tests/data/oracle/devices*.jsonl.xz)."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.recorded_devices import played

DATA = Path(__file__).parents[2] / "data" / "oracle"
FILES = ("devices.jsonl.xz", "devices-wider.jsonl.xz")
CASES, STEPS = 140, 781
# Steps whose recorded text of PreEnqueue is of an earlier state of the pod: kube-scheduler did not run it again.
STALE_TEXTS = {(1006, 4)}


@cache
def cases() -> dict[str, list[dict[str, Any]]]:
    by_theme: dict[str, list[dict[str, Any]]] = {}
    for name in FILES:
        with lzma.open(DATA / name, "rt") as lines:
            for line in lines:
                case = json.loads(line)
                by_theme.setdefault(case["theme"], []).append(case)
    return by_theme


@pytest.mark.parametrize("theme", sorted(cases()))
def test_decisions_about_devices_are_kube_schedulers(theme):
    different = [
        (case["seed"], number, *difference)
        for case in cases()[theme]
        for number, _, _, differences in played(case)
        for difference in differences
        if (case["seed"], number) not in STALE_TEXTS
    ]
    assert different == []


def test_all_cases_are_played():
    counts = Counter(cases=sum(map(len, cases().values())))
    counts["steps"] = sum(len(case["steps"]) for theme in cases().values() for case in theme)
    assert counts == {"cases": CASES, "steps": STEPS}
