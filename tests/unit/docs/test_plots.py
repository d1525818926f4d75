"""The plots that docs/generate draws from measured figures."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

SVG = "{http://www.w3.org/2000/svg}"
SOURCE = Path(__file__).parents[3] / "docs" / "generate" / "plots.py"


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    spec = importlib.util.spec_from_file_location("berth_plots", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def waiting(count: int, rate: float, mebibytes: int) -> dict:
    return {"waiting": count, "bound_per_second": rate, "peak_mebibytes": {"watcher": mebibytes}}


def parsed(drawn: str) -> ET.Element:
    return ET.fromstring(drawn)  # noqa: S314 - made by this project


def heights(drawn: str) -> list[list[float]]:
    """Of each line, how far down its points are."""
    return [
        [float(point.partition(",")[2]) for point in points.split()] for points in re.findall(r'points="(.*?)"', drawn)
    ]


def test_several_rounds_of_one_size_are_drawn_as_their_median(plots: ModuleType):
    rows = [waiting(1000, 500, 90), waiting(1000, 100, 90), waiting(1000, 520, 90), waiting(5000, 500, 100)]
    rate, memory = heights(plots.picture(plots.by_waiting(rows)))
    assert rate[0] == rate[1]  # the median of 100, 500 and 520 is 500
    assert memory[0] > memory[1]


def test_a_goal_is_inside_the_panel_when_all_values_are_far_below_it(plots: ModuleType):
    drawn = parsed(plots.picture(plots.by_waiting([waiting(1000, 500, 90), waiting(5000, 500, 100)])))
    (goal,) = [line for line in drawn.iter(f"{SVG}line") if line.get("class") == "goal"]
    assert plots.TOP <= float(goal.get("y1", "0")) < plots.HEIGHT - plots.BOTTOM


def test_beside_kube_scheduler_are_only_rows_with_a_figure_of_both(plots: ModuleType, tmp_path: Path):
    rows = [
        {"what": "5,000 equal pods, bound/s", "kube_scheduler": "376", "berth": "527"},
        {"what": "4 scorers against 1, bound/s", "kube_scheduler": "-", "berth": "484, 626"},
        {"what": "CPU ms a pod, 5,000 nodes", "kube_scheduler": "2.00", "berth": "1.90"},
    ]
    results = tmp_path / "tests" / "bench" / "results"
    results.mkdir(parents=True)
    for name, measured in (("comparison-20261123T000000Z", rows[:1]), ("comparison-20261125T000000Z", rows)):
        (results / f"{name}.json").write_text(json.dumps({"rows": measured}))
    made = plots.files(tmp_path / "docs")
    drawn = parsed(made["pictures/beside-kube-scheduler.svg"])
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"376", "527", "2", "1.9"} <= set(words)
    assert len([bar for bar in drawn.iter(f"{SVG}rect") if bar.get("class") is None and bar.get("width") != "10"]) == 4


def test_names_are_written_as_text(plots: ModuleType):
    drawn = parsed(plots.picture([plots.Bars(title="<b>", names=["a&b"], groups={"one": [1.0]})]))
    assert {"<b>", "a&b"} <= {text.text for text in drawn.iter(f"{SVG}text")}
