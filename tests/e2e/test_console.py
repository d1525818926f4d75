"""`berth console` in a real Chromium: what a person sees, chooses and is told, also while NATS is away."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth_cli.console.hub import MOST_PAGES
from harness.servers.browser import (
    RunningConsole,
    browser,
    console,
    main_thread_seconds,
    opened,
    press,
    severe,
    shown,
    until,
)
from harness.servers.nats_server import NatsServer
from harness.worlds.busy_bus import BusyBus
from harness.worlds.cluster_user import ClusterUser, cluster_user
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server", "chromium"), pytest.mark.timeout(300)]

NODES = 100
PODS = 1000
MANY_NODES = 5000
RATE, SECONDS = 1000.0, 5.0
MOST_WORK = 0.5
"""Seconds of the page's main thread for 1,000 Decisions, a second's worth. It took 0.07 for the list and 0.19 for the
tiles on two cores that eight processes wanted; with 1 it could not follow."""
TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of these tests
COUNT = """
const done = arguments[arguments.length - 1];
import("/page/store.js").then(({ store }) => {
  window.taken = 0;
  store.on("decisions", (lines) => { window.taken += lines.length; });
  done(null);
});
"""
"""Have the page count the Decisions that it takes from now on."""
WORK = """
const done = arguments[arguments.length - 1];
import("/page/store.js").then(({ store }) => {
  done({
    nodes: store.nodes.size, kept: store.decisions.length, seen: window.taken + store.leftOut,
    elements: document.querySelectorAll("main *").length,
  });
});
"""
"""What the page has taken, and how large it is."""


@pytest.fixture(scope="module")
def driver() -> Iterator[WebDriver]:
    with browser() as driver:
        driver.set_script_timeout(60)
        yield driver


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """A pipeline on a simulated cluster."""
    with berth_up("--nodes", NODES, "--scorers", 2, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture(scope="module")
def page(simulated: BerthUp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """The console of that pipeline."""
    environment = {"TMPDIR": str(simulated.temporary)}
    folder = tmp_path_factory.mktemp("console")
    with console("--nats", simulated.nats, folder=folder, environment=environment) as page:
        yield page


@pytest.fixture
async def people(simulated: BerthUp) -> AsyncIterator[ClusterUser]:
    async with cluster_user(simulated.kubeconfig) as people:
        yield people


def add(people: ClusterUser, name: str, **spec: object) -> dict[str, object]:
    return people.pod(name, cpu="100m", spec={"nodeSelector": {}, **spec})


async def test_the_page_shows_a_run_of_a_thousand_pods(page: RunningConsole, people: ClusterUser, driver: WebDriver):
    await asyncio.to_thread(opened, driver, page.url)
    await asyncio.to_thread(shown, driver, ".totals", f"^{NODES} nodes.*no pod waits")
    awaited = r"No pod has been decided on yet.*whose schedulerName is berth.*kubectl run web-1 .*schedulerName.*berth"
    await asyncio.to_thread(shown, driver, ".awaited", awaited)
    await asyncio.to_thread(shown, driver, "aside", r"Latest decisions\s+None yet: the first pods are awaited")
    await asyncio.to_thread(opened, driver, f"{page.url}#/decisions")
    await asyncio.to_thread(shown, driver, ".awaited", awaited)
    assert not any(each.is_displayed() for each in driver.find_elements(By.CSS_SELECTOR, ".cards, .counters, .lines"))
    await asyncio.to_thread(opened, driver, page.url)
    bodies = [add(people, f"web-{number}") for number in range(PODS)]
    creating = [people.api.post(people.api.pods, body) for body in bodies]
    for begin in range(0, PODS, 50):
        await asyncio.gather(*creating[begin : begin + 50])
    await asyncio.to_thread(shown, driver, ".totals", r"1,000 pods")
    assert not driver.find_element(By.CSS_SELECTOR, ".awaited").is_displayed()
    await asyncio.to_thread(opened, driver, f"{page.url}#/decisions")
    await asyncio.to_thread(shown, driver, ".stages", r"ranked.*p99.*Medians of 1,000 bound pods")
    await asyncio.to_thread(shown, driver, ".names", rf"berth\s+1,000.*{people.namespace}\s+1,000")
    await asyncio.to_thread(shown, driver, "tbody tr", r"web-\d+.*bound.*node-\d+.*ms")
    assert severe(driver) == []


async def test_from_a_tile_to_the_reason_by_clicks(page: RunningConsole, people: ClusterUser, driver: WebDriver):
    await people.api.post(people.api.pods, add(people, "clicked"))
    node = (await people.all_bound(["clicked"]))["clicked"]
    pod = f"{people.namespace}/clicked"

    def click_through() -> None:
        opened(driver, page.url)
        shown(driver, ".totals", f"^{NODES} nodes")
        tile = tile_of(driver, node)
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **tile})
        shown(driver, ".tip", rf"{node}.*CPU .*Memory .*Pods ")
        for kind in ("mousePressed", "mouseReleased"):
            driver.execute_cdp_cmd(
                "Input.dispatchMouseEvent", {"type": kind, "button": "left", "clickCount": 1, **tile}
            )
        shown(driver, "aside h2", node)
        press(driver, "aside .pods a", f"^{pod}$")
        shown(driver, ".headline", rf"bound\s+Is on {node}")
        shown(driver, ".verdict", r"ranked .* after the request.*runner-up: node-")
        shown(driver, ".candidates li.chosen", rf"{node}\s*chosen\s.*\d")
        shown(driver, ".equal", r"Equal on all:.*TaintToleration \d+")
        press(driver, "details summary", "Points as a table")
        shown(driver, "main", r"Loss: the points that one more pod .*Newcomers: pods that came there")
        headings = driver.find_elements(By.CSS_SELECTOR, "th[title]")
        assert [each.text for each in headings] == ["Loss", "Newcomers"]
        assert colour_of_decision(driver) == "rgb(0, 158, 115)"  # that of bound
        shown(driver, ".trace", r"pending.*ranked.*decision.*bound")
        press(driver, ".now button", "Ask again now")
        shown(driver, ".now .headline", rf"It is on {node}; ranked now it would go to node-")

    await asyncio.to_thread(click_through)
    assert severe(driver) == []


def tile_of(driver: WebDriver, node: str) -> dict[str, float]:
    """Where a node's tile is: found as a person finds it, by the filter, which leaves that one."""
    field = driver.find_element(By.CSS_SELECTOR, "input[aria-label='Filter by name or label']")
    field.clear()
    field.send_keys(node)
    shown(driver, ".totals", r"^1 of ")
    box = driver.find_elements(By.CSS_SELECTOR, "canvas")[1].rect
    return {"x": box["x"] + 6, "y": box["y"] + 6}


async def test_a_pod_that_waits_says_for_what_and_is_asked_about_again(
    page: RunningConsole, people: ClusterUser, driver: WebDriver
):
    body = people.pod("large", cpu="1000", spec={"nodeSelector": {}})
    await asyncio.to_thread(opened, driver, f"{page.url}#/pod/{people.namespace}/large")
    await asyncio.to_thread(shown, driver, ".verdict", "no message of the pod is on the bus")
    await people.api.post(people.api.pods, body)

    def read() -> None:
        shown(driver, ".headline", r"unschedulable\s+Waits, no node is possible")
        what = r"In queue unschedulable, created at .*Has waited for "
        asks = r"asks for 1000 CPU; the largest node has \d+, and the freest [\d.]+ of \d+ free \(node-\d+\)"
        waits = shown(driver, ".card", rf"^What it waits for\s+What would help\s+{asks} NodeResourcesFit.*{what}")
        assert len(re.findall("waited for|waits for|waits since", waits, re.IGNORECASE)) == 2  # with the heading
        press(driver, ".events summary", "Events after which it is tried again")
        shown(driver, ".events", "NodeResourcesFit.*NodeAdd")
        assert colour_of_decision(driver) == "rgb(230, 159, 0)"  # that of unschedulable
        shown(driver, ".rejections", rf"NodeResourcesFit Insufficient cpu\s+{NODES} nodes")
        press(driver, ".now button", "Ask again now")
        shown(driver, ".now .headline", r"Ranked now it would wait: 0/100 nodes are available")
        shown(driver, ".now", rf"The data was current.*What would help\s+{asks} NodeResourcesFit")
        opened(driver, page.url)
        press(driver, ".totals a", "^1 pod waits$")
        shown(driver, "nav a[aria-current]", "Queue")
        shown(driver, ".lane[data-queue=unschedulable]", r"^1\s")
        press(driver, ".groups summary", "NodeResourcesFit")
        shown(driver, ".helps", rf"What would help\s+{asks} NodeResourcesFit")
        shown(driver, "tbody a", f"^{people.namespace}/large$")

    await asyncio.to_thread(read)
    assert [each for each in severe(driver) if "/why - Failed to load resource" not in each] == []


def colour_of_decision(driver: WebDriver) -> str:
    """Of the dot before the last Decision among a pod's messages."""
    rows = driver.find_elements(By.CSS_SELECTOR, ".trace li")
    decided = [row for row in rows if "decision" in row.text]
    return driver.execute_script(
        "return getComputedStyle(arguments[0].querySelector('.dot')).backgroundColor", decided[-1]
    )


async def test_the_keyboard_is_enough(page: RunningConsole, people: ClusterUser, driver: WebDriver):
    await people.api.post(people.api.pods, add(people, "typed"))
    await people.all_bound(["typed"])

    def type_through() -> None:
        opened(driver, f"{page.url}#/queue")
        shown(driver, "nav a[aria-current]", "Queue")
        body = driver.find_element(By.TAG_NAME, "body")
        body.send_keys("1")
        shown(driver, "nav a[aria-current]", "Cluster")
        shown(driver, ".totals", f"^{NODES} nodes")
        canvas = driver.find_elements(By.CSS_SELECTOR, "canvas")[1]
        canvas.send_keys(Keys.HOME)
        first = shown(driver, ".tip", r"^node-").split("\n")[0]
        canvas.send_keys(Keys.ARROW_RIGHT)
        shown(driver, ".tip", rf"^(?!{first})node-")
        canvas.send_keys(Keys.ENTER)
        shown(driver, "aside h2", r"^node-")
        body.send_keys("/")
        driver.switch_to.active_element.send_keys(f"{people.namespace}/typed", Keys.ENTER)
        shown(driver, ".headline", r"bound\s+Is on node-")

    await asyncio.to_thread(type_through)


async def test_text_of_others_is_shown_as_text(own_nats_server: NatsServer, tmp_path: Path, driver: WebDriver):
    async with busy_bus(own_nats_server, nodes=3) as busy:
        await busy.fill()
        with console("--nats", own_nats_server.address, folder=tmp_path) as page:
            await asyncio.to_thread(opened, driver, f"{page.url}#/decisions")
            await asyncio.to_thread(shown, driver, ".link", "live")
            hostile = "<img src=x onerror=document.title='taken'>\u202e</script>"
            await busy.decide_one(message=hostile, outcome=busy.unschedulable)
            await busy.bury(hostile)
            await asyncio.to_thread(shown, driver, "tbody tr", "unschedulable.*<img src=x")
            assert driver.find_elements(By.CSS_SELECTOR, "tbody img") == []
            await asyncio.to_thread(shown, driver, "summary", "1 dead letter")
            assert "taken" not in driver.title
            assert severe(driver) == []


async def test_nats_goes_away_and_comes_back(own_nats_server: NatsServer, tmp_path: Path, driver: WebDriver):
    async with busy_bus(own_nats_server, nodes=20) as busy:
        await busy.fill(pods_on_each=2)
    with console("--nats", own_nats_server.address, folder=tmp_path) as page:
        await asyncio.to_thread(opened, driver, page.url)
        await asyncio.to_thread(shown, driver, ".totals", r"^20 nodes.*40 pods")
        own_nats_server.kill()
        await asyncio.to_thread(shown, driver, ".link", "NATS away")
        await asyncio.to_thread(shown, driver, "#notices", r"NATS is not read: .*trying again")
        assert "20 nodes" in driver.find_element(By.CSS_SELECTOR, ".totals").text
        own_nats_server.start()
        await asyncio.to_thread(shown, driver, ".link", "live")
        async with busy_bus(own_nats_server, nodes=20) as busy:
            busy.pods = 1000
            for _ in range(5):
                await busy.decide_one(outcome=busy.bound)
        await asyncio.to_thread(shown, driver, ".totals", r"^20 nodes.*45 pods")
        own_nats_server.kill()
        await asyncio.to_thread(shown, driver, ".link", "NATS away")
        own_nats_server.lose_store()
        own_nats_server.start()
        async with busy_bus(own_nats_server, nodes=7) as busy:
            await busy.fill()
            await asyncio.to_thread(shown, driver, ".totals", r"^7 nodes.*0 pods")
        assert page.interrupt() == 0


BATCHES = """
const done = arguments[arguments.length - 1];
import("/page/store.js").then(({ store }) => {
  window.batches = [];
  store.on("decisions", () => window.batches.push([store.decisions.length, store.leftOut]));
  done(store.decisions.length);
});
"""
"""Note how many Decisions the page has, and how many it was not told, whenever it is sent some from now on."""


async def test_once_nats_is_back_the_last_decisions_are_there_at_once(
    own_nats_server: NatsServer, tmp_path: Path, driver: WebDriver
):
    async with busy_bus(own_nats_server, nodes=5) as busy:
        await busy.fill()
        await busy.decide(rate=RATE, seconds=1.2)
    with console("--nats", own_nats_server.address, folder=tmp_path) as page:
        await asyncio.to_thread(opened, driver, f"{page.url}#/decisions")
        await asyncio.to_thread(shown, driver, "tbody tr", r"web-\d+")
        assert await asyncio.to_thread(driver.execute_async_script, BATCHES) == 1000
        own_nats_server.kill()
        await asyncio.to_thread(shown, driver, ".link", "NATS away")
        own_nats_server.start()
        await asyncio.to_thread(shown, driver, ".link", "live")
        async with busy_bus(own_nats_server, nodes=5) as busy:
            busy.pods = 10_000
            last = await busy.decide_one(outcome=busy.bound)
        await asyncio.to_thread(shown, driver, "tbody tr:first-child", last)
        batches = await asyncio.to_thread(driver.execute_script, "return window.batches")
        assert {tuple(each) for each in batches} == {(1000, 0)}


async def test_one_page_too_many_is_told_so(own_nats_server: NatsServer, tmp_path: Path, driver: WebDriver):
    async with busy_bus(own_nats_server, nodes=5) as busy:
        await busy.fill()
    with console("--nats", own_nats_server.address, folder=tmp_path) as page:
        with ExitStack() as others:
            for _ in range(MOST_PAGES):
                stream = await asyncio.to_thread(urlopen, f"{page.url}api/stream")
                await asyncio.to_thread(others.enter_context(stream).readline)
            await asyncio.to_thread(opened, driver, page.url)
            await asyncio.to_thread(shown, driver, "#notices", f"This page is refused: .* {MOST_PAGES} pages are open")
        await asyncio.to_thread(shown, driver, ".totals", "^5 nodes")


async def test_the_console_goes_away_and_comes_back(own_nats_server: NatsServer, tmp_path: Path, driver: WebDriver):
    async with busy_bus(own_nats_server, nodes=5) as busy:
        await busy.fill()
    with console("--nats", own_nats_server.address, folder=tmp_path) as page:
        await asyncio.to_thread(opened, driver, page.url)
        await asyncio.to_thread(shown, driver, ".totals", "^5 nodes")
    await asyncio.to_thread(shown, driver, ".link", "console away")
    port = page.url.rstrip("/").rpartition(":")[2]
    with console("--nats", own_nats_server.address, "--port", port, folder=tmp_path):
        await asyncio.to_thread(shown, driver, ".link", "live")


async def test_five_thousand_nodes_at_a_thousand_decisions_a_second(
    own_nats_server: NatsServer, tmp_path: Path, driver: WebDriver
):
    async with busy_bus(own_nats_server, nodes=MANY_NODES) as busy:
        await busy.fill()
        with console("--nats", own_nats_server.address, folder=tmp_path) as page:
            await asyncio.to_thread(opened, driver, f"{page.url}#/cluster")
            await asyncio.to_thread(shown, driver, ".totals", "^5,000 nodes")
            await asyncio.to_thread(driver.execute_async_script, COUNT)
            for view in ("cluster", "decisions"):
                await asyncio.to_thread(driver.execute_script, f"location.hash = '#/{view}'")
                await asyncio.to_thread(shown, driver, "nav a[aria-current]", view.title())
                work, pods = main_thread_seconds(driver), busy.pods
                deciding = asyncio.create_task(busy.decide(rate=RATE, seconds=SECONDS))
                if view == "decisions":
                    await asyncio.to_thread(pause_and_go_on, driver)
                await deciding
                end = await asyncio.to_thread(seen_in_all, driver, busy.pods)
                work = (main_thread_seconds(driver) - work) / (busy.pods - pods) * RATE
                assert work < MOST_WORK, (view, work)
                last = await busy.decide_one(outcome=busy.bound)
                if view == "decisions":
                    await asyncio.to_thread(shown, driver, "tbody tr:first-child", last)
                else:
                    await asyncio.to_thread(shown, driver, ".totals", rf"{busy.bound_pods:,} pods")
            complaints = severe(driver)
    assert end["nodes"] == MANY_NODES
    assert end["kept"] == 1000  # as many as it keeps
    assert end["elements"] < 1000  # what it lists is bounded: a Decision has five
    assert complaints == []


def pause_and_go_on(driver: WebDriver) -> None:
    """A click holds the list while Decisions go on to come, another one lets it follow again."""

    def later(decisions: int) -> str:
        """The first row after so many more."""
        seen = driver.execute_async_script(WORK)["seen"] + decisions
        until(lambda: driver.execute_async_script(WORK)["seen"] > seen, f"{decisions} more Decisions")
        return shown(driver, "tbody tr:first-child", r"web-\d+")

    press(driver, ".controls button", "^Pause$")
    held = later(500)
    assert later(500) == held
    press(driver, ".controls button", "^Go on$")
    assert later(500) != held


def seen_in_all(driver: WebDriver, decisions: int) -> dict[str, float]:
    """What the page has taken once it knows of every Decision: each is listed, or counted as not listed."""

    def found() -> dict[str, float] | None:
        work = driver.execute_async_script(WORK)
        return work if work["seen"] >= decisions else None

    work = until(found, f"{decisions} Decisions on the page")
    assert work["seen"] == decisions
    return work


@pytest.mark.parametrize("width", [1280, 400])
async def test_nothing_is_wider_than_the_window(page: RunningConsole, driver: WebDriver, width: int):
    def widest() -> dict[str, int]:
        found = {}
        with browser(width=width) as narrow:
            for view in ("cluster", "decisions?span=3600", "queue", "services", "pod/default/nobody"):
                opened(narrow, f"{page.url}#/{view}")
                shown(narrow, "main", r"\w")
                found[view] = narrow.execute_script("return document.documentElement.scrollWidth")
        return found

    assert {view: wide for view, wide in (await asyncio.to_thread(widest)).items() if wide > width} == {}


async def test_a_token_opens_the_page_and_is_in_no_address_and_no_log(
    own_nats_server: NatsServer, tmp_path: Path, driver: WebDriver
):
    async with busy_bus(own_nats_server, nodes=3) as busy:
        await busy.fill()
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with console("--nats", own_nats_server.address, "--token-file", token, folder=tmp_path) as page:

        def log_in() -> None:
            opened(driver, page.url)
            shown(driver, "h1", "berth console")
            driver.find_element(By.ID, "token").send_keys("a-token-that-is-wrong", Keys.ENTER)
            shown(driver, "#problem", "that is not the token")
            driver.find_element(By.ID, "token").send_keys(Keys.BACKSPACE, TOKEN, Keys.ENTER)
            shown(driver, ".totals", "^3 nodes")
            (cookie,) = driver.get_cookies()
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            assert TOKEN not in cookie["value"]
            assert TOKEN not in driver.current_url
            press(driver, "#logout")
            shown(driver, "h1", "berth console")
            assert driver.get_cookies() == []

        await asyncio.to_thread(log_in)
        request = Request(f"{page.url}api/queue", headers={"Authorization": f"Bearer {TOKEN}"})  # noqa: S310 - http
        with pytest.raises(OSError, match="503"):  # let in; no watcher answers
            await asyncio.to_thread(urlopen, request)
        assert TOKEN not in page.said.read_text()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        pytest.param(["--host", "192.0.2.1"], "say who may look with --token-file", id="other machines"),
        pytest.param(["--proxy-header", "X-User"], "want both --proxy-header and --proxy-address", id="any proxy"),
        pytest.param(["--token-file", "/nowhere"], "'/nowhere': No such file", id="no token"),
        pytest.param(
            ["--host", "192.0.2.1", "--proxy-header", "X-User", "--proxy-address", "10.0.0.5"],
            "listening on",
            id="no address",
        ),
    ],
)
def test_what_it_cannot_serve_is_one_line(flags: list[str], sentence: str):
    command = [sys.executable, "-m", "berth_cli", "console", "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_nats_that_is_not_there_is_said_and_waited_for(tmp_path: Path, driver: WebDriver):
    with console("--nats", "nats://127.0.0.1:9", folder=tmp_path) as page:
        opened(driver, page.url)
        shown(driver, "#notices", r"NATS is not read: .*start `berth up`")
        assert page.said.read_text().count("trying again") == 1


def busy_bus(server: NatsServer, *, nodes: int):
    return BusyBus.on(NatsBus(BusSettings(servers=(server.address,))), nodes=nodes)
