"""The flame graphs that docs/generate draws from sampled stacks."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "generate"))

import flames

RUN = "<module> (berth_scorer/__main__.py:12);Runner.run (asyncio/runners.py:118)"
RAW = (
    f"{RUN};Scorer._rank (berth_scorer/service.py:10);rank (/x/src/berth/framework/cycle.py:7) 600",
    f"{RUN};Scorer._rank (berth_scorer/service.py:12);rank (/x/src/berth/framework/cycle.py:9) 300",
    f"{RUN};Scorer._rank (berth_scorer/service.py:12);<genexpr> (/x/site-packages/numpy/core.py:1) 50",
    f"{RUN} 50",
    "Thread.run (threading.py:982);Watchdog._look (berth/lifecycle/shutdown.py:107) 4000",
)


def test_stacks_are_those_of_the_event_loop_without_lines():
    assert list(flames.folded(RAW)) == [
        "Scorer._rank (berth_scorer/service.py);<genexpr> (numpy/core.py) 50",
        "Scorer._rank (berth_scorer/service.py);rank (berth/framework/cycle.py) 900",
        f"{flames.IN_LOOP} 50",
    ]


def test_what_is_too_narrow_to_be_seen_counts_for_its_caller():
    narrow = f"{RUN};Scorer._rank (berth_scorer/service.py:10);seldom (berth_scorer/service.py:3) 1"
    wide = f"{RUN};Scorer._rank (berth_scorer/service.py:10) 9999"
    assert list(flames.folded([narrow, wide])) == ["Scorer._rank (berth_scorer/service.py) 10000"]


@pytest.fixture
def drawn() -> ET.Element:
    return ET.fromstring(flames.graph("scorer", flames.tree(flames.folded(RAW))))  # noqa: S314 - made here


def test_each_box_says_its_share(drawn: ET.Element):
    titles = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "Scorer._rank (berth_scorer/service.py): 95.0%",
        "rank (berth/framework/cycle.py): 90.0%",
        "<genexpr> (numpy/core.py): 5.0%",
        f"{flames.IN_LOOP}: 5.0%",
    ]


def test_boxes_are_as_wide_as_their_share_and_stand_below_their_callers(drawn: ET.Element):
    boxes = [
        (rect.get("class"), float(rect.get("width")), float(rect.get("y")))
        for group in drawn.iter("{http://www.w3.org/2000/svg}g")
        for rect in group.iter("{http://www.w3.org/2000/svg}rect")
    ]
    first, second = float(flames.HEAD), float(flames.HEAD + flames.ROW)
    assert boxes == [
        ("service", 1140.0, first),
        ("plugins", 1080.0, second),
        ("library", 60.0, second),
        ("library", 60.0, first),
    ]
