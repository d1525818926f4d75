"""The picture that docs/generate draws of a dashboard from a run's answers to its queries."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "generate"))

import dashboards

SVG = "{http://www.w3.org/2000/svg}"
STEPS = [{"value": None, "color": "text"}, {"value": 0, "color": "red"}, {"value": 1, "color": "green"}]


def drawn(*panels: dict[str, object]) -> ET.Element:
    return ET.fromstring(dashboards.picture({"seconds": 9, "step": 3, "panels": panels}))  # noqa: S314 - made here


def a_panel(kind: str = "stat", **more: object) -> dict[str, object]:
    place = {"x": 0, "y": 0, "w": 8, "h": 8}
    return {"title": "Leaders <&>", "type": kind, "place": place, "unit": "none", "steps": STEPS, "series": {}, **more}


@pytest.mark.parametrize(
    ("values", "words", "colour"),
    [
        pytest.param([1.0, 0.0], "0", dashboards.STEPS["red"], id="the last value counts"),
        pytest.param([0.0, 1.0, None], "1", dashboards.STEPS["green"], id="the last known value"),
        pytest.param([], "No data", None, id="no data is no zero"),
    ],
)
def test_a_single_number_has_the_colour_of_its_step(values: list[float | None], words: str, colour: str | None):
    (number,) = [
        each for each in drawn(a_panel(series={"a": values})).iter(f"{SVG}text") if each.get("class") == "single"
    ]
    assert (number.text, number.get("style")) == (words, colour and f"fill:{colour}")


def test_a_line_is_broken_where_nothing_was_answered():
    picture = drawn(a_panel("timeseries", series={"one": [1.0, 2.0, None, 4.0], "two": [None, 0.0, 0.0, 0.0]}))
    lines = [each.get("points", "").split() for each in picture.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [2, 1, 3]
    assert {"one", "two", "Leaders <&>"} <= {each.text for each in picture.iter(f"{SVG}text")}


def test_a_graph_without_an_answer_is_empty():
    assert list(drawn(a_panel("timeseries")).iter(f"{SVG}polyline")) == []
