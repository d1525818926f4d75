"""`berth replay --config --browse` in a real Chromium: two clusters side by side, over the time of a recording."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from berth.api.meta import ObjectMeta
from berth.api.podgroups import GROUP_LABEL, CoschedulingPodGroup, CoschedulingSpec
from harness.builders.objects import a_container, a_node, a_pod
from harness.servers.browser import (
    RunningConsole,
    browsed,
    browser,
    main_thread_seconds,
    opened,
    press,
    severe,
    shown,
    until,
)
from harness.worlds.recorded_world import RecordedWorld

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests/data/recordings/preemption-and-volumes.berth"
PACKING = ROOT / "docs/recordings/packing.yaml"
MANY_NODES, PODS = 5000, 300
MOST_WORK = 0.1
"""Seconds of the page's main thread for a step, of which there are four a second then."""
HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def driver() -> Iterator[WebDriver]:
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """The recording of a run with two scorers, preemption and volumes, beside a configuration that packs."""
    with browsed(KEPT, "--config", PACKING, folder=tmp_path_factory.mktemp("page")) as page:
        yield page


def a_world(nodes: int, **labels: str) -> RecordedWorld:
    """A recording of one scorer and some nodes of 4 cores."""
    world = RecordedWorld(0, scorers=1, nodes=0, lag=0.0, chosen_of=1, ever_away=False)
    for number in range(nodes):
        world.mirror(f"node.n{number}", a_node(f"n{number}", cpu="4", labels=labels))
    return world


def small(name: str, cpu: str = "500m"):
    return a_pod(name, containers=[a_container(cpu=cpu)], priority=0)


def test_both_clusters_are_shown_with_what_is_different(page: RunningConsole, driver: WebDriver):
    opened(driver, page.url)
    shown(driver, "[data-side=recorded]", r"^Recorded\s+6 nodes.*72 pods")
    shown(driver, "[data-side=other]", r"^With packing.yaml\s+6 nodes.*74 pods")
    shown(driver, "aside", r"91 pods: 68 elsewhere, 15 as recorded")
    shown(driver, ".different li", r"/web-0\s+test-\S+-0 → test-\S+-1")
    shown(driver, ".different li", r"/low-\d+\s+evicted from \S+ → \S+\s+placed instead of evicted")
    shown(driver, ".card tr", r"nodes with pods\s+6 of 6\s+6 of 6\s+5 of 6")
    driver.find_element(By.CSS_SELECTOR, "aside input").send_keys("low-")
    until(lambda: "web-0" not in driver.find_element(By.CSS_SELECTOR, ".different").text, "the filtered list")
    assert severe(driver) == []


def test_from_a_tile_to_the_reason_in_both_by_clicks(page: RunningConsole, driver: WebDriver):
    opened(driver, page.url)
    shown(driver, ".totals", "^6 nodes")
    field = driver.find_element(By.CSS_SELECTOR, "input[aria-label='Filter by name or label']")
    field.send_keys("-1")  # of the six nodes test-...-1 and node-1: the first tile is of the one without a zone
    shown(driver, "[data-side=other] .totals", "^2 of 6")
    tile = driver.find_elements(By.CSS_SELECTOR, "[data-side=other] canvas")[1].rect
    at = {"x": tile["x"] + 6, "y": tile["y"] + 26}
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **at})
    node = shown(driver, "[data-side=other] .tip", r"^\S+-1\s.*CPU .*Memory .*Pods ").split("\n")[0]
    for kind in ("mousePressed", "mouseReleased"):
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "button": "left", "clickCount": 1, **at})
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 2, "y": 2})
    shown(driver, ".chosen h2", node)
    field.send_keys(Keys.BACKSPACE, Keys.BACKSPACE)
    shown(driver, "[data-side=other] .totals", "^6 nodes")
    shown(driver, ".chosen [data-side=recorded]", r"^Recorded\s*\d+ pods")
    press(driver, ".chosen [data-side=other] .pods li:has(b) a", r"/web-\d+$")  # which is only there
    pod = shown(driver, ".chosen > h2", r"/web-").split("\n")[0]
    shown(driver, ".chosen .headline", "^elsewhere$")
    for side, where in (("recorded", rf"(?!{node}\s)\S+"), ("other", node)):
        card = f".chosen [data-side={side}]"
        found = shown(driver, card, rf"bound\s+Is on {where}.*At the time shown: on {where}\.")
        there = re.search(r"Is on (\S+)", found)
        assert there is not None
        shown(driver, f"{card} .candidates li.chosen", rf"{there[1]}\s*chosen\s.*\d")
        shown(driver, card, "(Equal on all|Points apart).*NodeResourcesFit")
        assert marked(driver, side) == there[1]
    shown(driver, ".chosen [data-side=other] .verdict", r"6 of 6 nodes were possible.*runner-up: ")
    assert pod.partition("/")[0].startswith("test-")
    assert severe(driver) == []


MARKED = """
const map = document.querySelector(`.cluster[data-side=${arguments[0]}] .stack`);
const canvas = map.querySelector("canvas + canvas");
return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0);
"""


def marked(driver: WebDriver, side: str) -> str:
    """The node of the pod that is chosen, once its tile has a ring."""
    until(lambda: driver.execute_script(MARKED, side), f"a ring on a tile of {side}")
    return shown(driver, f".chosen [data-side={side}] .then", "on ").removeprefix("At the time shown: on ").rstrip(".")


def test_a_pod_that_waits_says_what_refused_the_nodes_in_both(page: RunningConsole, driver: WebDriver):
    opened(driver, page.url)
    shown(driver, ".totals", "^6 nodes")
    namespace = driver.find_element(By.CSS_SELECTOR, ".different a").text.partition("/")[0]
    opened(driver, f"{page.url}#/pod/{namespace}/huge-0")
    for side in ("recorded", "other"):
        card = f".chosen [data-side={side}]"
        shown(driver, card, r"unschedulable\s+Waits, no node is possible: .*Insufficient cpu.*on no node")
        shown(driver, card, r"decided .* before the end of the recording at \d+:\d+")
        shown(driver, f"{card} .rejections", r"NodeResourcesFit Insufficient cpu\s+\d nodes?")
    opened(driver, f"{page.url}#/pod/{namespace}/nobody")
    shown(driver, ".chosen .notice", "the recording has no such pod")


def test_the_slider_goes_through_the_recording_and_the_keyboard_is_enough(page: RunningConsole, driver: WebDriver):
    opened(driver, page.url)
    shown(driver, "[data-side=recorded] .totals", "72 pods")
    slider = driver.find_element(By.CSS_SELECTOR, "input[type=range]")
    slider.send_keys(Keys.HOME)
    for side in ("recorded", "other"):
        shown(driver, f"[data-side={side}] .totals", r"^2 nodes .* 0 pods")
    begin = shown(driver, "output", r"\(\+0.0 ms\)")
    slider.send_keys(Keys.ARROW_RIGHT)
    until(lambda: driver.find_element(By.TAG_NAME, "output").text != begin, "the next step")
    slider.send_keys(Keys.HOME)
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.SPACE)
    shown(driver, ".player button[aria-pressed=true]", "^Pause$")
    shown(driver, "[data-side=recorded] .totals", r"^6 nodes .* [1-9]\d* pods")
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.SPACE)
    shown(driver, ".player button[aria-pressed=false]", "^Play$")
    slider.send_keys(Keys.END)
    shown(driver, "[data-side=recorded] .totals", "72 pods")  # also when it was reached by steps back and forth
    shown(driver, "[data-side=other] .totals", "74 pods")
    canvas = driver.find_elements(By.CSS_SELECTOR, "[data-side=other] canvas")[1]
    canvas.send_keys(Keys.HOME)
    first = shown(driver, "[data-side=other] .tip").split("\n")[0]
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    shown(driver, ".chosen > h2", rf"^(?!{first})\S+")
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    until(lambda: not driver.find_element(By.CSS_SELECTOR, ".chosen").is_displayed(), "nothing chosen")
    driver.find_element(By.TAG_NAME, "body").send_keys("/")
    namespace = driver.find_element(By.CSS_SELECTOR, ".different a").text.partition("/")[0]
    driver.switch_to.active_element.send_keys(f"{namespace}/web-0", Keys.ENTER)
    shown(driver, ".chosen > h2", "/web-0")
    assert severe(driver) == []


def test_skip_to_the_clusters_leaves_what_is_chosen(page: RunningConsole, driver: WebDriver):
    opened(driver, f"{page.url}#/node/node-0")
    shown(driver, ".chosen > h2", "node-0")
    driver.find_element(By.CSS_SELECTOR, ".skip").send_keys(Keys.ENTER)
    until(lambda: driver.switch_to.active_element.get_attribute("id") == "view", "the focus on the clusters")
    assert driver.current_url.endswith("#/node/node-0")
    shown(driver, ".chosen > h2", "node-0")


JUMP = """
const slider = document.querySelector("input[type=range]");
slider.value = arguments[0];
slider.dispatchEvent(new Event("input"));
const texts = () => [...document.querySelectorAll(".totals")].map((each) => each.textContent);
requestAnimationFrame(() => requestAnimationFrame(() => arguments[1](texts())));
"""
"""The totals of a step, once its nodes are laid out."""


def test_a_step_is_the_same_from_wherever_one_comes(page: RunningConsole, driver: WebDriver):
    opened(driver, page.url)
    shown(driver, "[data-side=recorded] .totals", "72 pods")
    steps = range(0, 240, 17)
    forth = {step: driver.execute_async_script(JUMP, step) for step in steps}
    back = {step: driver.execute_async_script(JUMP, step) for step in reversed(steps)}
    across = {
        step: driver.execute_async_script(JUMP, step) for step in sorted(steps, key=lambda step: step * 7919 % 241)
    }
    assert forth == back == across
    assert len({str(texts) for texts in forth.values()}) > 3


def test_a_node_has_its_pods_of_the_time_that_is_shown(page: RunningConsole, driver: WebDriver):
    opened(driver, f"{page.url}#/node/node-0")
    shown(driver, ".chosen [data-side=recorded]", r"[1-9]\d* pods, the latest first")
    slider = driver.find_element(By.CSS_SELECTOR, "input[type=range]")
    slider.send_keys(Keys.HOME)
    shown(driver, ".chosen [data-side=recorded]", r"0 pods.*None at the time shown")


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window(page: RunningConsole, width: int):
    with browser(width=width) as narrow:
        for dark in ("light", "dark"):
            scheme = {"name": "prefers-color-scheme", "value": dark}
            narrow.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            opened(narrow, page.url)
            press(narrow, ".different a", "/web-0$")
            shown(narrow, ".chosen [data-side=other] .candidates", r"\w")
            assert narrow.execute_script("return document.documentElement.scrollWidth") <= width
        assert severe(narrow) == []


def test_text_of_others_is_shown_as_text(tmp_path: Path, driver: WebDriver):
    world = a_world(2, **{"topology.kubernetes.io/zone": f"{HOSTILE}\u202e", "said": HOSTILE})
    world.one_by_one(small("web"))
    world.one_by_one(small(HOSTILE))
    recording = world.write(tmp_path / f"{HOSTILE}.berth")
    with browsed(recording, "--config", PACKING, folder=tmp_path) as page:
        opened(driver, page.url)
        shown(driver, "#what", re.escape(f"{HOSTILE}.berth, recorded from"))
        shown(driver, ".totals", "^2 nodes")
        opened(driver, f"{page.url}#/pod/default/{HOSTILE}")  # no pod's: a message with such a name is left out
        shown(driver, ".chosen > h2", re.escape(HOSTILE))
        shown(driver, ".chosen .notice", "reading the pod .* no pod has such a name")
        opened(driver, f"{page.url}#/node/{HOSTILE}")
        shown(driver, ".chosen h2", re.escape(HOSTILE))
        shown(driver, ".chosen .notice", "the recording has no such node")
        assert driver.find_elements(By.CSS_SELECTOR, "main img, #what img") == []
        assert "taken" not in driver.title.replace(HOSTILE, "")
        assert [each for each in severe(driver) if "/api/" not in each] == []
        assert page.interrupt() == 0


def test_a_group_is_a_row_that_follows_the_slider_and_is_marked_if_it_was_bound_in_part(
    tmp_path: Path, driver: WebDriver
):
    world = a_world(2)
    spec = CoschedulingSpec(min_member=2)
    metadata = ObjectMeta(name="gang", namespace="default", uid="uid-gang")
    world.mirror("coschedulingpodgroup.uid-gang", CoschedulingPodGroup(metadata=metadata, spec=spec))
    for name in ("first", "second"):
        world.seconds += 5
        world.mirror(f"pod.{name}", a_pod(name, uid=name, node="n1", labels={GROUP_LABEL: "gang"}))
    recording = world.write(tmp_path / "gang.berth")
    with browsed(recording, "--config", PACKING, folder=tmp_path) as page:
        opened(driver, page.url)
        shown(driver, ".groups tbody tr", r"^default/gang\s+2\s+2\s+in part for 5\.0 s$")
        driver.find_element(By.CSS_SELECTOR, "input[type=range]").send_keys(Keys.HOME)
        shown(driver, ".groups tbody tr", r"^default/gang\s+0\s+2\s+in part for 5\.0 s$")
        assert severe(driver) == []


def test_five_thousand_nodes_are_played(tmp_path: Path, driver: WebDriver):
    world = a_world(MANY_NODES, **{"topology.kubernetes.io/zone": "zone-a"})
    for number in range(PODS):
        world.one_by_one(small(f"web-{number}"))
    recording = world.write(tmp_path / "large.berth")
    with browsed(recording, "--config", PACKING, folder=tmp_path) as page:
        opened(driver, page.url)
        for side in ("recorded", "other"):
            shown(driver, f"[data-side={side}] .totals", rf"^5,000 nodes .* {PODS} pods")
        driver.find_element(By.CSS_SELECTOR, "input[type=range]").send_keys(Keys.HOME)
        shown(driver, "[data-side=other] .totals", r"^5,000 nodes .* \d{1,2} pods")
        steps = int(driver.find_element(By.CSS_SELECTOR, "input[type=range]").get_attribute("max") or 0)
        work = main_thread_seconds(driver)
        press(driver, ".player button", "^Play$")
        shown(driver, ".player button[aria-pressed=true]", "^Pause$")
        shown(driver, ".player button[aria-pressed=false]", "^Play$")
        work = main_thread_seconds(driver) - work
        for side in ("recorded", "other"):
            shown(driver, f"[data-side={side}] .totals", rf"^5,000 nodes .* {PODS} pods")
        assert steps == 59
        assert work / steps < MOST_WORK, work
        assert severe(driver) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["--browse"], "name it with --config", id="nothing to compare"),
        pytest.param(["--config", PACKING, "--browse", "-o", "json"], "name one of them", id="two forms"),
        pytest.param(["--config", PACKING, "--port", "0"], "name --browse too", id="no page"),
        pytest.param(
            ["--config", PACKING, "--browse", "--host", "192.0.2.1"],
            "say who may look with --token-file",
            id="other machines",
        ),
        pytest.param(["--pod", "a/b", "--config", PACKING, "--browse"], "name one of them", id="a pod"),
    ],
)
def test_what_it_cannot_serve_is_one_line(arguments: list[object], sentence: str):
    command = [sys.executable, "-m", "berth_cli", "replay", str(KEPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
