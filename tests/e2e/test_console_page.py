"""The console's page in a real Chromium, where a test gives the answers: what is old, refused or unknown."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.select import Select

from berth_cli.console.guard import HEADERS, Guard
from berth_cli.console.pages import GuardedPage, json_answer, serving
from harness.servers.browser import browser, opened, press, severe, shown, until

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.timeout(240)]

POD = "/api/pods/default/web"
NOW = "2026-01-01T12:00:00Z"
QUEUES = {"active": 0, "backoff": 0, "unschedulable": 2, "gated": 0}
FIGURES = {
    "seconds": 60,
    "step": 1,
    "begin": 1_799_999_950.0,
    "since": 1_799_999_950.0,
    "outcomes": {},
    "profiles": {},
    "namespaces": {},
    "series": {},
    "repeated": 0,
    "bound": 0,
    "waited": None,
    "ranked": None,
    "decided": None,
}
SERVICES = {
    "queues": {},
    "in_flight": {},
    "window": {},
    "draining": False,
    "attention": [],
    "processes": [],
    "streams": [],
}


class ToldConsole:
    """A console without a bus: its frames and answers are those that a test gives it."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: Counter[str] = Counter()
        self.answers: dict[str, tuple[int, object]] = {"/api/room": (200, {})}
        self.first: dict[str, object] = {}
        self.refusal = ""
        self.opened = 0
        """Streams that were begun: a page begins one anew after 25 of its seconds without a frame."""
        self._streams: set[asyncio.Queue[dict[str, object] | None]] = set()

    def application(self) -> web.Application:
        page = GuardedPage(Guard.of("127.0.0.1", names=(), token=None, proxy=None), "index.html")
        return page.application([web.get("/api/stream", self._stream), web.route("*", "/api/{rest:.*}", self._answer)])

    def begin(self, *, pods: dict[str, int] | None = None, **frame: object) -> None:
        """What a page is sent first: two nodes, of which one has pods, by profile."""
        placed = pods or {}
        self.first = {
            "whole": True,
            "bus": {"connected": True, "source": "cluster uid-1, NATS nats://there:4222"},
            "nodes": [[row, f"n{row}", "", 4000, 2**33, 110, 0, []] for row in range(2)],
            "loads": [[0, sum(placed.values()), 500, 2**30, placed], [1, 0, 0, 0, {}]],
            "figures": FIGURES,
            "services": SERVICES,
            **frame,
        }

    def tell(self, **frame: object) -> None:
        """Send a frame to the pages that are open."""
        for stream in self._streams:
            stream.put_nowait(frame)

    def end(self) -> None:
        """End the streams, which the server would wait for."""
        for stream in self._streams:
            stream.put_nowait(None)

    def answer(self, path: str, document: object, *, status: int = 200) -> None:
        self.answers[path] = status, document

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self.refusal:
            return json_answer({"error": self.refusal}, status=503)
        frames: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        frames.put_nowait(self.first)
        self._streams.add(frames)
        self.opened += 1
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            while (frame := await self._next(frames)) is not None:
                await response.write(b"data: " + json.dumps(frame).encode() + b"\n\n")
        except ConnectionError:
            pass
        finally:
            self._streams.discard(frames)
        return response

    @staticmethod
    async def _next(frames: asyncio.Queue[dict[str, object] | None]) -> dict[str, object] | None:
        """Wait for the next frame; an empty one each second, since a page gives a silent stream up."""
        try:
            return await asyncio.wait_for(frames.get(), timeout=1)
        except TimeoutError:
            return {}

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        status, document = self.answers.get(request.path, (404, {"error": f"{request.path} is not told"}))
        return json_answer(document, status=status)


@pytest.fixture(scope="module")
def driver() -> Iterator[WebDriver]:
    with browser(times_faster=5) as driver:  # what it asks again after 10 s, it asks after 2
        driver.set_script_timeout(60)
        yield driver


@pytest.fixture
async def told() -> AsyncIterator[ToldConsole]:
    async with told_console() as console:
        yield console


@asynccontextmanager
async def told_console() -> AsyncIterator[ToldConsole]:
    console = ToldConsole()
    console.begin()
    async with serving(console.application(), "127.0.0.1", 0) as port:
        console.url = f"http://127.0.0.1:{port}/"
        yield console
        console.end()


async def see(driver: WebDriver, selector: str, pattern: str = "") -> str:
    return await asyncio.to_thread(shown, driver, selector, pattern)


async def click(driver: WebDriver, selector: str, pattern: str = "") -> None:
    await asyncio.to_thread(press, driver, selector, pattern)


async def go(driver: WebDriver, url: str) -> None:
    await asyncio.to_thread(opened, driver, url)


async def run(driver: WebDriver, script: str, *arguments: object) -> object:
    return await asyncio.to_thread(driver.execute_script, script, *arguments)


async def wait_for(found: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(until, found, what)


# --- a pod

DECIDED = {
    "kind": "decided",
    "outcome": "unschedulable",
    "node": "",
    "sentences": ["default/web waits, no node is possible", "decided 3.0 s ago"],
    "candidates": [],
    "rejections": [],
    "evaluated": 2,
    "age_seconds": 3.0,
}


def a_pod_in_the_queue(name: str = "web", **more: object) -> dict[str, object]:
    pod = {"namespace": "default", "name": name, "uid": f"uid-{name}", "profile": "berth", "queue": "unschedulable"}
    return {**pod, "stage": "unschedulable", "since": NOW, "plugins": ["NodeResourcesFit"], **more}


def waits(**more: object) -> dict[str, object]:
    """The answer about one pod that waits."""
    pod = a_pod_in_the_queue()
    told = {"pod": "default/web", "outcome": "unschedulable", "message": "0/2 nodes are available", "now": NOW}
    return {**told, "sentences": ["default/web is unschedulable"], "queued": {"pod": pod, "helping": []}, **more}


async def test_a_pod_is_said_to_wait_no_more_only_where_the_watcher_says_so(told: ToldConsole, driver: WebDriver):
    told.answer(f"{POD}/why", DECIDED)
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", {"error": "asking which pods wait: no watcher leads"}, status=503)
    await go(driver, f"{told.url}#/pod/default/web")
    text = await see(driver, ".verdict", "Whether it waits is unknown: asking which pods wait: no watcher leads")
    assert "any more" not in text
    told.answer(f"{POD}/queue", {"pod": "default/web", "queued": None, "sentences": []})
    text = await see(driver, ".verdict", "It does not wait any more")  # which is asked again soon
    assert "unknown" not in text


OBSERVE = """
window.announced = [];
new MutationObserver((records) => window.announced.push(...records.map((record) => record.target.textContent)))
  .observe(document.querySelector(arguments[0]), { childList: true, characterData: true, subtree: true });
"""
"""Note what a screen reader would read out of a live region from now on."""


async def test_what_became_of_a_pod_is_read_out_when_it_is_another(told: ToldConsole, driver: WebDriver):
    told.answer(f"{POD}/why", DECIDED)
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", waits())
    await go(driver, f"{told.url}#/pod/default/web")
    await see(driver, ".verdict", "Waits, no node is possible.*decided 3.0 s ago")
    await run(driver, OBSERVE, ".verdict [aria-live], .verdict[aria-live]")
    told.answer(
        f"{POD}/why", {**DECIDED, "age_seconds": 9.0, "sentences": [DECIDED["sentences"][0], "decided 9.0 s ago"]}
    )
    await see(driver, ".verdict", "decided 9.0 s ago")
    assert await run(driver, "return window.announced") == []
    told.answer(f"{POD}/why", {**DECIDED, "outcome": "bound", "node": "n0", "sentences": ["default/web is on n0"]})
    await see(driver, ".verdict", "bound Is on n0")
    assert await run(driver, "return window.announced.length") > 0


def ranked(**more: object) -> dict[str, object]:
    """What a ranking found: four nodes, n0 the best."""
    scored = [
        {"node": f"n{at}", "total": 90 - at, "estimate": 90 - at, "scores": {}, "pods": 0, "loss": 0, "newcomers": 0}
        for at in range(4)
    ]
    counts = {"evaluated": 4, "feasible": 4}
    return {"node": "", "candidates": scored, "refused": [], "rejections": [], "notes": [], **counts, **more}


BADGES = """
const line = (each) => [each.querySelector("a"), ...each.querySelectorAll("em")].map((part) => part.textContent);
return [...document.querySelectorAll(`${arguments[0]} .candidates li`)].map(line)
  .map(([node, ...badges]) => [node, badges.join(" ")]);
"""


async def badges(driver: WebDriver, place: str) -> dict[str, str]:
    """The badges of each candidate that has one."""
    return {node: badge for node, badge in await run(driver, BADGES, place) if badge}


@pytest.mark.parametrize(
    ("present", "more"),
    [
        pytest.param("", {}, id="on no node"),
        pytest.param("n0", {"n0": "best present"}, id="on the best"),
        pytest.param("n1", {"n1": "runner-up present"}, id="on the second"),
        pytest.param("n3", {"n3": "present"}, id="on the last"),
        pytest.param("n9", {}, id="on one that is not possible"),
    ],
)
async def test_ask_again_now_marks_the_two_best_nodes_and_the_present_one(
    told: ToldConsole, driver: WebDriver, present: str, more: dict[str, str]
):
    decided = {**DECIDED, **ranked(node="n2"), "outcome": "bound", "sentences": ["default/web is on n2"]}
    told.answer(f"{POD}/why", decided)
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", {"pod": "default/web", "queued": None, "sentences": []})
    told.answer(f"{POD}/now", ranked(node=present, view_is_current=True))
    await go(driver, f"{told.url}#/pod/default/web")
    await see(driver, "footer", "cluster uid-1, NATS nats://there:4222")
    await click(driver, ".now button", "Ask again now")
    await see(driver, ".now .headline", "it would go to n0")
    assert await badges(driver, ".now") == {"n0": "best", "n1": "runner-up", **more}
    assert await badges(driver, ".card:not(.now)") == {"n2": "chosen", "n3": "runner-up"}


POINTS = """
return [...document.querySelectorAll(".candidates li")].map((each) => [
  each.querySelector("a").textContent, each.querySelector(".apart").textContent,
  Object.fromEntries([...each.querySelectorAll(".difference i")].map((part) => part.title.split(" "))),
]);
"""
"""Of each candidate: its node, its points apart from the best node, and those of each plugin."""


async def test_candidates_are_shown_by_what_separates_them_from_the_best(told: ToldConsole, driver: WebDriver):
    def a_candidate(node: str, newcomers: int = 0, **points: int) -> dict[str, object]:
        total = sum(points.values())
        scores = {plugin: {"points": each, "score": each, "weight": 1} for plugin, each in points.items()}
        costs = {"pods": 0, "loss": 2.0, "newcomers": newcomers, "estimate": total - 2.0 * newcomers}
        return {"node": node, "total": total, "scores": scores, **costs}

    candidates = [
        a_candidate("n0", Fit=60, Traffic=40, Taints=300),
        a_candidate("n1", Fit=70, Traffic=20, Taints=300),
        a_candidate("n2", newcomers=3, Fit=60, Traffic=40, Taints=300),
        {**a_candidate("n3"), "total": 350, "estimate": 350},  # of which only the total was kept
    ]
    decided = {**DECIDED, **ranked(node="n0", candidates=candidates), "outcome": "bound"}
    told.answer(f"{POD}/why", {**decided, "sentences": ["default/web is on n0"]})
    await go(driver, f"{told.url}#/pod/default/web")
    await see(driver, ".equal", r"Equal on all:\s+Taints 300")
    assert await run(driver, POINTS) == [
        ["n0", "", {}],
        ["n2", "\u22126", {"Newcomers": "\u22126"}],
        ["n1", "\u221210", {"Fit": "+10", "Traffic": "\u221220"}],
        ["n3", "\u221250", {"in": "all"}],
    ]
    assert "Taints" not in await see(driver, ".keys", "Traffic.*Fit.*Newcomers")


async def test_a_pod_that_nobody_knows_is_said_to_be_unknown(told: ToldConsole, driver: WebDriver):
    told.begin(
        decisions=[a_decision(1, "batch"), [*a_decision(2, "berth")[:1], "shop", "web", *a_decision(2, "berth")[3:]]]
    )
    told.answer(f"{POD}/why", {"error": "looking for a Decision on pod 'default/web': there is none"}, status=404)
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", {"pod": "default/web", "queued": None, "sentences": []})
    await go(driver, f"{told.url}#/pod/default/web")
    await see(
        driver,
        ".verdict",
        r"unknown\s+Berth knows no pod of this name.*there is none\..*Is the name right.*There is shop/web\.",
    )
    told.answer(f"{POD}/queue", {"error": "asking which pods wait: no watcher leads"}, status=503)
    text = await see(driver, ".verdict", "Whether it waits is unknown: asking which pods wait: no watcher leads")
    assert "knows no pod" not in text


async def test_the_name_of_a_group_leads_to_the_group(told: ToldConsole, driver: WebDriver):
    told.answer("/api/pods/default/train/why", {"error": "there is none"}, status=404)
    told.answer("/api/pods/default/train/trace", {"messages": []})
    told.answer("/api/pods/default/train/queue", {"pod": "default/train", "queued": None, "sentences": []})
    told.answer("/api/groups/default/train", {"state": "bound", "bound": 4, "minimum": 4, "sentences": ["is bound"]})
    told.answer("/api/groups/default/train/trace", {"messages": []})
    await go(driver, f"{told.url}#/pod/default/train")
    await see(driver, ".verdict", r"default/train group of pods\s+bound\s+4 pods are bound")
    assert driver.current_url.endswith("#/group/default/train")


async def test_the_field_at_the_top_takes_the_name_of_a_group_and_says_so(told: ToldConsole, driver: WebDriver):
    told.answer("/api/groups/default/train", {"state": "bound", "bound": 4, "minimum": 4, "sentences": ["is bound"]})
    told.answer("/api/groups/default/train/trace", {"messages": []})
    await go(driver, f"{told.url}#/cluster")
    field = driver.find_element(By.ID, "pod")
    assert field.get_attribute("placeholder") == "pod or group: namespace/name"
    assert field.accessible_name == "Pod or group"
    await asyncio.to_thread(field.send_keys, "default/train", Keys.ENTER)
    await see(driver, ".verdict", r"default/train group of pods\s+bound\s+4 pods are bound")


async def test_a_bound_member_leads_to_its_group_and_has_no_points_where_a_plan_placed_it(
    told: ToldConsole, driver: WebDriver
):
    plan = "placed with its PodGroup, all members in one plan"
    candidate = {"node": "n1", "total": 0, "estimate": 0, "scores": {}, "pods": 0, "loss": 0, "newcomers": 0}
    member = {**DECIDED, "outcome": "bound", "node": "n1", "candidates": [candidate], "evaluated": 0, "feasible": 0}
    placed = {**member, "sentences": ["default/web is on n1", plan], "group": "~train", "of_group": "uid.1.1"}
    told.answer(f"{POD}/why", placed)
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", {"pod": "default/web", "queued": None, "sentences": []})
    told.answer(GROUP, a_group(state="bound", bound=4, waiting=0, queued=None))
    told.answer(f"{GROUP}/trace", {"messages": []})
    await go(driver, f"{told.url}#/pod/default/web")
    await see(driver, ".verdict", rf"{plan}\s+Its group: default/train \(group\)\.")
    assert "Nodes that were possible" not in await see(driver, "main")
    await click(driver, ".verdict a", "default/train")
    await see(driver, ".verdict", r"default/train group of pods\s+bound")


async def test_a_link_names_one_message_of_a_pod(told: ToldConsole, driver: WebDriver):
    def a_message(second: int, stage: str) -> dict[str, object]:
        message = {
            "at": f"2026-01-01T12:00:0{second}Z",
            "since_seconds": second or None,
            "stage": stage,
            "text": "said",
        }
        return {**message, "subject": f"berth.{stage}.berth.default.web", "message": {"number": second}}

    told.answer(f"{POD}/why", DECIDED)
    told.answer(f"{POD}/trace", {"messages": [a_message(0, "pending"), a_message(3, "ranked")]})
    told.answer(f"{POD}/queue", {"pod": "default/web", "queued": None, "sentences": []})
    await go(driver, f"{told.url}#/pod/default/web?at=2026-01-01T12:00:03Z")
    await see(driver, ".trace .marked", r'ranked.*"number": 3')
    assert len(driver.find_elements(By.CSS_SELECTOR, ".trace details[open]")) == 1
    around = driver.find_element(By.CSS_SELECTOR, ".marked p a").get_attribute("href")
    assert around.endswith("#/decisions?from=2026-01-01T11%3A59%3A58Z&to=2026-01-01T12%3A00%3A08Z")


# --- the queue


def a_list(*pods: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "now": NOW,
        "draining": False,
        "queues": QUEUES,
        "pods": list(pods),
        "complete": True,
        "looked_at": None,
        **more,
    }


async def test_what_would_help_a_group_is_asked_again_and_has_its_age(told: ToldConsole, driver: WebDriver):
    told.answer("/api/queue", a_list(a_pod_in_the_queue()))
    told.answer(f"{POD}/queue", waits(remedies=[{"plugin": "NodeResourcesFit", "text": "asks for 8 CPU"}]))
    await go(driver, f"{told.url}#/queue")
    await see(driver, ".groups summary", r"^1 pod\s+asks for 8 CPU\s+NodeResourcesFit$")
    await click(driver, ".groups summary", "NodeResourcesFit")
    await see(driver, ".helps", r"asks for 8 CPU.*Asked \d+ s ago")
    told.answer(f"{POD}/queue", waits(remedies=[{"plugin": "NodeResourcesFit", "text": "asks for 16 CPU"}]))
    await see(driver, ".helps", r"asks for 16 CPU.*Asked \d+ s ago")


async def test_the_focus_stays_in_the_queue_while_it_is_drawn_anew(told: ToldConsole, driver: WebDriver):
    told.answer("/api/queue", a_list(a_pod_in_the_queue(), a_pod_in_the_queue("web-2")))
    told.answer(f"{POD}/queue", waits())
    await go(driver, f"{told.url}#/queue")
    for selector, tries in (("tbody tr:nth-child(2) a", 7), (".groups summary", 8)):
        await see(driver, selector)
        await run(driver, "document.querySelector(arguments[0]).focus()", selector)
        told.answer("/api/queue", a_list(a_pod_in_the_queue(attempts=tries), a_pod_in_the_queue("web-2")))
        await see(driver, "tbody tr:first-child", rf"\s{tries}\s")
        assert await run(driver, "return document.activeElement === document.querySelector(arguments[0])", selector)


async def test_a_group_is_a_row_of_the_queue(told: ToldConsole, driver: WebDriver):
    members = {"dialect": "scheduling.x-k8s.io", "name": "train", "minimum": 4, "pending": 4}
    message = "0 of 4 have a place"
    told.answer("/api/queue", a_list(a_pod_in_the_queue("~train", members=members, message=message)))
    await go(driver, f"{told.url}#/queue")
    cells = r"^default/train \(group, 4 pods\)\s+0 of 4 have a place.*\sunschedulable its pods: with group\s"
    await see(driver, "tbody tr:first-child", cells)
    assert not driver.find_elements(By.CSS_SELECTOR, ".groups summary")


async def test_a_list_that_stops_early_says_so(told: ToldConsole, driver: WebDriver):
    told.answer("/api/queue", a_list(complete=False, looked_at=10_000))
    await go(driver, f"{told.url}#/queue")
    await see(driver, ".empty", "None of these pods waits")
    looked = "Only the first 10,000 pods of all queues were looked at"
    await see(driver, "main", f"{looked}: berth queue looks at all of them")
    await click(driver, ".lane[data-queue=gated]")
    await see(driver, "main", f'{looked}: berth queue --queue "gated" looks at all of them')
    told.answer("/api/queue", a_list())
    await see(driver, ".empty", "No such pod waits")
    await click(driver, ".lane[data-queue=gated]")
    await see(driver, ".empty", "No pod waits")


# --- the cluster


def a_node(pods: int) -> dict[str, object]:
    amounts = {"cpu": 4000, "memory": 2**33}
    placed = {"namespace": "default", "cpu": 100, "memory": 0, "bound_at": 0}
    return {
        "node": "n0",
        "labels": {"pool": "gpu", "disk": "ssd"},
        "taints": [],
        "unschedulable": False,
        "allocatable": {**amounts, "pods": 110},
        "requested": {"cpu": 100 * pods, "memory": 0, "pods": pods},
        "devices": {"number": 0, "in_use": 0, "listed": []},
        "pods": [{**placed, "name": f"web-{number}"} for number in range(pods)],
    }


def a_device(name: str, *users: str, **more: object) -> dict[str, object]:
    line = {"driver": "gpu.example.com", "pool": "n0", "device": name, "node": "n0", "taints": [], "state": ""}
    return {**line, "used_by": users, "attributes": {"model": "h100"}, "capacity": {"memory": "80Gi"}, **more}


async def test_a_nodes_devices_have_their_users_and_what_keeps_pods_from_them(told: ToldConsole, driver: WebDriver):
    listed = [
        a_device("gpu-0", "default/web", "claim default/idle"),
        a_device("gpu-1", taints=["worn:NoSchedule"]),
        a_device("nic", pool="rack", state="its pool is being updated", attributes={}, capacity={}),
    ]
    told.answer("/api/nodes/n0", {**a_node(1), "devices": {"number": 9, "in_use": 1, "listed": listed}})
    await go(driver, f"{told.url}#/node/n0")
    await see(driver, "aside", "Devices, 1 of 9 in use.*and 6 more.*Pods, the latest first")
    await see(driver, ".devices li:nth-child(1)", "^gpu-0: default/web, claim default/idle\nmodel h100, memory 80Gi$")
    await see(driver, ".devices li:nth-child(2)", "^gpu-1: free\nmodel h100, memory 80Gi\ntaint worn:NoSchedule$")
    await see(driver, ".devices li:nth-child(3)", "^rack/nic: free\nits pool is being updated$")
    links = driver.find_elements(By.CSS_SELECTOR, ".devices a")
    assert [each.get_attribute("href").partition("#")[2] for each in links] == ["/pod/default/web"]


async def test_a_pod_has_its_devices_with_their_claims(told: ToldConsole, driver: WebDriver):
    shared = a_device("gpu-0", "default/web", "default/other")
    given = [
        {**shared, "claim": "default/both", "request": "gpu"},
        {**a_device("gpu-9", node="", state="in no slice"), "claim": "", "request": "r"},
    ]
    told.answer(f"{POD}/why", {**DECIDED, "outcome": "bound", "given": given})
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", {"pod": "default/web", "queued": None, "sentences": []})
    await go(driver, f"{told.url}#/pod/default/web")
    await see(driver, ".card", "^Its devices")
    await see(
        driver, ".card tbody tr:nth-child(1)", "gpu.example.com/n0/gpu-0.*shared with default/other.*n0.*request gpu"
    )
    await see(driver, ".card tbody tr:nth-child(2)", "gpu-9.*in no slice.*deleted")


async def test_a_node_is_read_anew_while_its_labels_are_open_and_the_focus_stays(told: ToldConsole, driver: WebDriver):
    told.answer("/api/nodes/n0", a_node(1))
    await go(driver, f"{told.url}#/node/n0")
    await click(driver, "aside summary", "2 labels")
    await see(driver, "aside .labels", "pool=gpu")
    focused = ("aside summary", "aside h2 button", "aside .pods a")
    for pods, selector in enumerate(focused, start=2):
        await run(driver, "document.querySelector(arguments[0]).focus()", selector)
        told.answer("/api/nodes/n0", a_node(pods))
        await see(driver, "aside", rf"\n{pods} of 110")
        await see(driver, "aside .labels", "pool=gpu")
        assert await run(driver, "return document.activeElement === document.querySelector(arguments[0])", selector)


async def test_a_cluster_without_nodes_is_not_said_to_await_a_watcher(told: ToldConsole, driver: WebDriver):
    none: dict[str, object] = {"nodes": [], "loads": []}
    told.begin(**none)
    told.answer(GROUP, a_group(topology_key=""))
    told.answer(f"{GROUP}/trace", {"messages": []})
    for view, awaited in (("cluster", "Awaited: a node, and a pod for berth"), ("group/default/~train", "")):
        await go(driver, f"{told.url}#/{view}")
        await see(driver, ".empty", "No nodes yet: a watcher that leads writes them")
        told.tell(figures=FIGURES, mirror_age=1.0)  # a watcher has written all of the mirror
        await see(driver, ".empty", r"^The cluster has no nodes\.$")
        await see(driver, "main", awaited)


async def test_a_profile_that_goes_leaves_no_filter_behind(told: ToldConsole, driver: WebDriver):
    told.begin(pods={"batch": 1, "berth": 1})
    await go(driver, told.url)
    await see(driver, ".totals", "^2 nodes")
    await wait_for(lambda: choose(driver, "Profile", "batch"), "the profile among those that are offered")
    await see(driver, ".totals", "^1 of 2 nodes")
    told.tell(loads=[[0, 1, 500, 2**30, {"berth": 1}]], figures=FIGURES)
    await see(driver, ".totals", "^2 nodes")
    assert selected(driver, "Profile") == ""
    assert told.opened == 1


def choose(driver: WebDriver, label: str, value: str) -> bool:
    """Whether the value was there to be chosen."""
    select = Select(driver.find_element(By.CSS_SELECTOR, f"select[aria-label={label}]"))
    if value not in [option.get_attribute("value") for option in select.options]:
        return False
    select.select_by_value(value)
    return True


def selected(driver: WebDriver, label: str) -> str | None:
    return driver.find_element(By.CSS_SELECTOR, f"select[aria-label={label}]").get_attribute("value")


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        pytest.param({}, "No pod has been decided on yet", id="none"),
        pytest.param({"default-scheduler": 5}, "No pod has been decided on yet", id="others'"),
        pytest.param({"berth": 5}, "No pod has been decided on lately.*DECISIONS keeps them: an hour", id="ours"),
    ],
)
async def test_without_decisions_the_page_says_since_when(
    told: ToldConsole, driver: WebDriver, pods: dict[str, int], says: str
):
    told.begin(pods=pods, services={**SERVICES, "window": {"berth": 64}})
    await go(driver, told.url)
    await see(driver, ".awaited", f"{says}.*Awaited: a pod whose schedulerName is berth")


# --- Decisions


def a_decision(number: int, profile: str) -> list[object]:
    return [1_800_000_000.0 + number, "default", f"{profile}-{number}", profile, "bound", "n0", "", None, None, None, 1]


async def test_a_profile_that_is_chosen_stays_chosen_while_it_has_no_decisions(told: ToldConsole, driver: WebDriver):
    profiles = {"batch": 1, "berth": 1, "(others)": 3}
    told.begin(decisions=[a_decision(1, "batch"), a_decision(2, "berth")], figures={**FIGURES, "profiles": profiles})
    await go(driver, f"{told.url}#/decisions")
    await wait_for(lambda: choose(driver, "Profile", "batch"), "the profile among those that are offered")
    offered = Select(driver.find_element(By.CSS_SELECTOR, "select[aria-label=Profile]")).options
    assert [option.get_attribute("value") for option in offered] == ["", "batch", "berth"]
    await wait_for(lambda: "berth-2" not in driver.find_element(By.CSS_SELECTOR, ".lines").text, "the filtered list")
    told.tell(figures={**FIGURES, "profiles": {"berth": 7}})
    await see(driver, ".names", r"berth\s+7")
    assert selected(driver, "Profile") == "batch"
    await see(driver, ".lines", "batch-1")


async def test_dead_letters_that_nats_has_removed_are_shown_no_more(told: ToldConsole, driver: WebDriver):
    letters = [[1_800_000_000.0, "a.b.c.default.web", "binder", f"reason {number}", number] for number in (1, 2)]
    told.begin(decisions=[a_decision(1, "berth")], dead=letters, dead_kept={"letters": 2, "first": 1})
    await go(driver, f"{told.url}#/decisions")
    await click(driver, "summary", "^2 dead letters")
    await see(driver, ".dead", "reason 2.*reason 1")
    told.tell(dead_kept={"letters": 1, "first": 2}, figures=FIGURES)
    await see(driver, "summary", "^1 dead letter:")
    assert "reason 1" not in await see(driver, ".dead", "reason 2")  # and it stays open
    await see(driver, ".counter", r"^1\s+dead letters")
    told.tell(dead_kept={"letters": 0, "first": 3}, figures=FIGURES)
    await see(driver, ".counter", r"^0\s+dead letters")
    assert not driver.find_element(By.CSS_SELECTOR, ".dead").is_displayed()


# --- shadows


def a_shadow(compared: int, name: str = "packed") -> dict[str, object]:
    return {
        "process": name,
        "readiness": "ok",
        "figures": {"name": name, "compared": compared, "results": {"equal": compared}},
    }


async def test_shadows_are_drawn_while_one_is_being_chosen(told: ToldConsole, driver: WebDriver):
    told.begin(shadows=[a_shadow(1)])
    await go(driver, f"{told.url}#/shadow")
    await see(driver, ".shadow", "of 1 pods as live")
    await run(driver, "document.querySelector('select[aria-label=Shadow]').focus()")
    told.tell(shadows=[a_shadow(25), a_shadow(3, "spread")])
    await see(driver, ".shadow", "of 25 pods as live")
    names = "return [...document.querySelectorAll('select[aria-label=Shadow] option')].map((each) => each.value)"
    assert await run(driver, names) == ["", "packed"]  # what is open is not changed
    await run(driver, "document.activeElement.blur()")
    assert await run(driver, names) == ["", "packed", "spread"]


# --- the head


async def test_skip_to_the_view_stays_in_the_view(told: ToldConsole, driver: WebDriver):
    told.begin(decisions=[a_decision(1, "berth")])
    await go(driver, f"{told.url}#/decisions")
    await see(driver, "nav a[aria-current]", "Decisions")
    await asyncio.to_thread(driver.find_element(By.CSS_SELECTOR, ".skip").send_keys, Keys.ENTER)
    await wait_for(lambda: driver.switch_to.active_element.get_attribute("id") == "view", "the focus on the view")
    assert driver.current_url.endswith("#/decisions")
    await see(driver, "nav a[aria-current]", "Decisions")


async def test_a_notice_is_read_out_once_however_old_it_gets(told: ToldConsole, driver: WebDriver):
    def silent(age: str) -> dict[str, object]:
        return {**SERVICES, "attention": [f"scorer host-1 has been silent for {age}, and did not stop"]}

    told.begin(services=silent("59.2 s"))
    await go(driver, told.url)
    await see(driver, "#notices", "host-1 has been silent for 59.2 s")
    await run(driver, OBSERVE, "[role=alert]")
    for age in ("59.9 s", "1 min 2 s", "1 h 3 min"):
        told.tell(services=silent(age))
        await see(driver, "#notices", f"host-1 has been silent for {age}")
    assert await run(driver, "return window.announced") == []
    told.tell(services={**SERVICES, "attention": ["no binder leads"]})
    await see(driver, "#notices", "no binder leads")
    assert await run(driver, "return [...new Set(window.announced)]") == ["no binder leads"]


async def test_a_page_that_is_refused_says_why_and_comes_once_it_may(told: ToldConsole, driver: WebDriver):
    told.refusal = "opening the console: 32 pages are open already: close one of them"
    told.answer("/api/room", {"error": told.refusal}, status=503)
    await go(driver, told.url)
    await see(driver, "#notices", f"This page is refused: {told.refusal}. Trying again")
    await see(driver, ".link", "refused")
    text = await see(driver, "main", "Nothing has been read yet")
    assert "No nodes yet" not in text
    assert "None yet" not in text
    told.refusal = ""
    told.answer("/api/room", {})
    await see(driver, ".totals", "^2 nodes")
    await see(driver, ".link", "live")


async def test_a_page_that_logs_out_takes_the_others_with_it(told: ToldConsole, driver: WebDriver):
    await go(driver, f"{told.url}#/decisions")
    await see(driver, "nav a[aria-current]", "Decisions")
    await run(driver, "window.before = true; new BroadcastChannel('berth-logged-out').postMessage(null)")
    await wait_for(lambda: driver.execute_script("return !window.before"), "the page to be loaded anew")
    assert severe(driver) == []


STREAMS = """
const done = arguments[arguments.length - 1];
const made = [];
const open = () => made.filter((each) => each.readyState !== 2).length;
window.EventSource = class {
  static CLOSED = 2;
  constructor() { this.readyState = 1; made.push(this); }
  close() { this.readyState = 2; }
};
let answer;
window.fetch = () => new Promise((resolve) => { answer = () => resolve(new Response("{}")); });
import("/page/store.js").then(async ({ Store }) => {
  const store = new Store();
  const found = [];
  store.connect();
  store.connect();
  found.push(open());
  store.source.close();  // as the browser does where the console refuses
  const trying = store.tryAgain();
  store.isResting = true;  // meanwhile nobody has seen the page for long
  answer();
  await trying;
  found.push(open());
  store.rest();  // it is seen again
  found.push(open());
  const late = store.tryAgain();
  store.connect();
  answer();
  await late;
  found.push(open());
  done(found);
}).catch((error) => done(String(error)));
"""
"""How many streams a store has open after each of its ways to begin one."""


async def test_a_page_has_one_stream_whatever_happens(told: ToldConsole, driver: WebDriver):
    await go(driver, told.url)
    await see(driver, ".totals", "^2 nodes")
    assert await asyncio.to_thread(driver.execute_async_script, STREAMS) == [1, 0, 1, 1]


# --- a time, and what is saved

BAR = [0] * 60


def counted(seconds: int, bound: int, **more: object) -> dict[str, object]:
    """Figures of a time that ends at 1,800,000,000, with all Decisions in its last bar."""
    step, begin = seconds // 60, 1_800_000_000.0 - seconds
    series = {"bound": [*BAR[1:], bound]}
    span = {"seconds": seconds, "step": step, "begin": begin, "since": begin}
    return {**FIGURES, **span, "outcomes": {"bound": bound}, "series": series, **more}


async def test_a_longer_time_is_chosen_and_in_the_address(told: ToldConsole, driver: WebDriver):
    known = {"since": 1_800_000_000.0 - 600}
    longer = [counted(900, 120), counted(3600, 3000, **known)]
    told.begin(decisions=[a_decision(0, "berth")], figures=counted(60, 6), longer=longer, now=1_800_000_000.0)
    await go(driver, f"{told.url}#/decisions")
    await see(driver, ".counter", r"^6\s+bound$")
    await click(driver, ".cards .choice input[value='900']")
    await see(driver, ".counter", r"^120\s+bound$")
    await see(driver, ".card", "At most 120 Decisions in 15 s")
    await go(driver, f"{told.url}#/decisions?span=3600&outcome=bound")
    await see(driver, ".counter", r"^3,000\s+bound$")
    await see(driver, ".card", r"At most 3,000 Decisions in a minute\. Known from \d\d:\d\d:\d\d on")
    await see(driver, ".counter", r"^5\.\d\s+bound a second")  # of the ten minutes that are known
    assert "span=3600" in driver.current_url


async def test_a_link_holds_a_time(told: ToldConsole, driver: WebDriver):
    told.begin(decisions=[a_decision(0, "berth")], figures=counted(60, 6), now=1_800_000_000.0)
    told.answer(
        "/api/decisions", {"now": 0, "until": None, "figures": counted(60, 1), "decisions": [a_decision(-9, "old")]}
    )
    await go(driver, f"{told.url}#/decisions")
    await click(driver, "button", "Hold this time")
    await see(driver, ".then", r"2027-01-1\d \d\d:\d\d:\d\d to .*1 Decisions\.")
    await see(driver, ".lines", "old--9")
    assert "berth-0" not in driver.find_element(By.CSS_SELECTOR, ".lines").text
    held = driver.current_url
    assert "from=2027-01-15T07%3A59%3A00Z&to=2027-01-15T08%3A00%3A0" in held
    await click(driver, ".then a", "Back to now")
    await see(driver, ".lines", "berth-0")
    told.answer("/api/decisions", {"error": "listing Decisions: want a time of at most 86400 s"}, status=400)
    await go(driver, held)
    await see(driver, ".then", "want a time of at most 86400 s")


async def test_what_is_chosen_is_in_the_address(told: ToldConsole, driver: WebDriver):
    told.answer("/api/queue", a_list(a_pod_in_the_queue()))
    await go(driver, f"{told.url}#/cluster?by=memory&text=n1")
    await see(driver, ".totals", "^1 of 2 nodes")
    assert driver.find_element(By.CSS_SELECTOR, "input[name=by]:checked").get_attribute("value") == "memory"
    await go(driver, f"{told.url}#/queue")
    await click(driver, ".lane[data-queue=gated]")
    await wait_for(lambda: driver.current_url.endswith("#/queue?queue=gated"), "the queue in the address")
    for by in ("nonsense", "constructor"):
        await go(driver, f"{told.url}#/cluster?by={by}&zone=%ff&profile=__proto__")
        await see(driver, ".totals", "^2 nodes")
        assert driver.find_element(By.CSS_SELECTOR, "input[name=by]:checked").get_attribute("value") == "cpu"
        assert severe(driver) == []


SAVED = """
const done = arguments[arguments.length - 1];
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { blob.text().then(done); return make.call(URL, blob); };
document.getElementById("save").click();
"""
"""Save what is shown; returns the file's text."""


async def test_what_is_shown_is_saved_as_json(told: ToldConsole, driver: WebDriver):
    told.begin(decisions=[a_decision(1, "berth"), a_decision(2, "batch")], figures=counted(60, 2))
    told.answer("/api/queue", a_list(a_pod_in_the_queue()))
    told.answer(f"{POD}/why", DECIDED)
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", waits())
    shown = {
        "decisions?profile=batch": (
            ".lines",
            "batch-2",
            lambda saved: [each["pod"] for each in saved["decisions"]] == ["batch-2"],
        ),
        "queue": (".rows", "default/web", lambda saved: saved["pods"][0]["name"] == "web"),
        "cluster": (".totals", "^2 nodes", lambda saved: [each["name"] for each in saved["nodes"]] == ["n0", "n1"]),
        "services": ("h2", "Nothing needs attention", lambda saved: saved["attention"] == []),
        "pod/default/web": (".verdict", "Waits", lambda saved: saved["why"]["outcome"] == "unschedulable"),
    }
    for view, (selector, pattern, is_right) in shown.items():
        await go(driver, f"{told.url}#/{view}")
        await see(driver, selector, pattern)
        saved = json.loads(await asyncio.to_thread(driver.execute_async_script, SAVED))
        assert (saved["view"], saved["source"]) == (
            view.split("?")[0].split("/")[0],
            "cluster uid-1, NATS nats://there:4222",
        )
        assert is_right(saved["shown"]), saved
    assert severe(driver) == []


# --- groups of pods

GROUP = "/api/groups/default/~train"
OUTLINED = """
const canvas = document.querySelector(".group .stack canvas:last-of-type");
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
const columns = new Set();
for (let at = 0; at < data.length; at += 4) {
  if (String(data.slice(at, at + 4)) === "230,159,0,255") columns.add((at / 4) % canvas.width);
}
return [columns.size, canvas.width];
"""
"""In how many of the map's columns of pixels there is an outline, and how many it has."""


def a_group(**more: object) -> dict[str, object]:
    message = "1 of 4 have a place in the best domain, rack r1; 3 like train-1 do not fit: 1 Insufficient cpu"
    rejection = {"plugin": "NodeResourcesFit", "reason": "Insufficient cpu", "nodes": 1}
    classes = [{"members": 4, "placed": 1, "example": "train-1", "rejections": [rejection]}]
    row = {
        **a_pod_in_the_queue(),
        "name": "~train",
        "queue": "unschedulable",
        "stage": "unschedulable",
        "members": {"dialect": "scheduling.x-k8s.io", "name": "train", "minimum": 4, "need": 4, "pending": 4},
    }
    return {
        "group": "default/train",
        "state": "unschedulable",
        "minimum": 4,
        "bound": 0,
        "waiting": 4,
        "message": message,
        "topology_key": "rack",
        "members": [{"pod": f"train-{number}", "node": "", "message": message} for number in range(4)],
        "queued": {"pod": row, "helping": [{"plugin": "NodeResourcesFit", "events": ["AssignedPodDelete"]}]},
        "decision": {"result": {"need": 4, "classes": classes, "topology_key": "rack", "domain": "r1"}},
        "sentences": [f"default/train is unschedulable: {message}", "PodGroup of scheduling.x-k8s.io, minimum 4"],
        "problem": "",
        **more,
    }


def in_racks() -> dict[str, object]:
    """Four nodes in two racks."""
    return {
        "labels": ["rack=r0", "rack=r1"],
        "nodes": [[row, f"n{row}", "", 4000, 2**33, 110, 0, [row // 2]] for row in range(4)],
        "loads": [[row, 0, 0, 0, {}] for row in range(4)],
    }


async def test_a_group_that_waits_is_explained_from_its_row_in_the_queue(told: ToldConsole, driver: WebDriver):
    told.begin(**in_racks())
    remedies = [{"plugin": "NodeResourcesFit", "text": "asks for 2 CPU"}]
    group = a_group(remedies=remedies, missing="that is about train-1 alone: 4 members need room together")
    told.answer("/api/queue", a_list(group["queued"]["pod"]))
    told.answer(GROUP, group)
    told.answer(f"{GROUP}/trace", {"messages": []})
    await go(driver, f"{told.url}#/queue")
    await click(driver, ".rows a", r"default/train \(group, 4 pods\)")
    await see(driver, ".verdict", "1 of 4 have a place in the best domain, rack r1; 3 like train-1 do not fit")
    await see(driver, ".card", "in rack r1, the best")
    await see(driver, ".rows", r"4\s+1\s+default/train-1\s+1\s+Insufficient cpu NodeResourcesFit")
    await see(driver, ".helps", r"help\s+asks for 2 CPU\s+NodeResourcesFit\s+That is about train-1 alone")
    await see(driver, ".card:nth-of-type(3)", "Outlined: rack r1, where most of its members would have a place")
    await see(driver, ".card:nth-of-type(4)", r"0 bound, 4 waiting, minimum 4[\s\S]*train-3\s+waits")
    outlined, width = await asyncio.to_thread(driver.execute_script, OUTLINED)
    assert 0 < outlined < width
    assert severe(driver) == []


async def test_a_group_has_its_nodes_outlined_and_says_what_happens_to_a_part(told: ToldConsole, driver: WebDriver):
    told.begin(**in_racks())
    members = [{"pod": f"train-{at}", "node": f"n{at}" if at < 2 else "", "message": ""} for at in range(4)]
    told.answer(GROUP, a_group(bound=2, waiting=2, members=members, topology_key=""))
    told.answer(f"{GROUP}/trace", {"messages": []})
    await go(driver, f"{told.url}#/group/default/~train")
    part = "2 of the minimum of 4 are bound: the others go before groups that have not begun"
    await see(driver, ".notice.bad", rf"^{part}\.$")
    await see(driver, ".card:nth-of-type(3)", r"Outlined: the nodes of its members\.")
    narrow, _ = await asyncio.to_thread(driver.execute_script, OUTLINED)
    for each, node in zip(members, ("n0", "n1", "n2", "n3"), strict=True):
        each["node"] = node
    told.answer(GROUP, a_group(bound=4, waiting=0, members=members, state="bound", queued=None, topology_key=""))
    await go(driver, f"{told.url}#/group/default/~train")
    await see(driver, ".verdict", "4 pods are bound, of which 4 are needed together")
    wide, _ = await asyncio.to_thread(driver.execute_script, OUTLINED)
    assert 0 < narrow < wide  # one line around all of them


async def test_a_bound_group_says_why_its_members_beyond_the_minimum_wait(told: ToldConsole, driver: WebDriver):
    beyond = "2 pods wait beyond the minimum: 0/4 nodes are available: 4 Insufficient cpu."
    told.answer(GROUP, a_group(state="bound", minimum=3, bound=8, waiting=2, queued=None, message=beyond))
    told.answer(f"{GROUP}/trace", {"messages": []})
    await go(driver, f"{told.url}#/group/default/~train")
    await see(driver, ".verdict", rf"bound\s+8 pods are bound, of which 3 are needed together; {beyond}")


async def test_a_group_that_has_lost_a_member_says_so_once_and_is_asked_again(told: ToldConsole, driver: WebDriver):
    members = [{"pod": f"train-{at}", "node": "n0", "message": ""} for at in range(3)]
    message = "3 of 4 members are bound, and no pod waits"
    lost = {"state": "partly gone", "bound": 3, "waiting": 0, "members": members, "queued": None, "message": message}
    told.answer(GROUP, a_group(**lost, sentences=[f"default/train is partly gone: {message}"]))
    told.answer(f"{GROUP}/trace", {"messages": []})
    await go(driver, f"{told.url}#/group/default/~train")
    await see(driver, ".verdict", rf"partly gone\s+{message}$")
    asked = told.asked[GROUP]
    await wait_for(lambda: told.asked[GROUP] > asked + 1, "it to be asked about again, as one that waits is")
    assert not driver.find_elements(By.CSS_SELECTOR, ".notice.bad")  # nor the time since its last Binding


async def test_a_group_leads_to_the_one_of_the_other_dialect(told: ToldConsole, driver: WebDriver):
    twin = {"name": "~train", "dialect": "scheduling.x-k8s.io", "state": "unschedulable"}
    bound = {"state": "bound", "bound": 4, "waiting": 0, "queued": None}
    told.answer("/api/groups/default/train", a_group(**bound, twins=[twin]))
    told.answer(GROUP, a_group())
    await go(driver, f"{told.url}#/group/default/train")
    await see(driver, ".verdict", r"4 pods are bound.*Another group has this name: .* unschedulable\.")
    await click(driver, ".verdict a", r"^default/train of scheduling\.x-k8s\.io$")
    await see(driver, ".verdict", "1 of 4 have a place in the best domain")


async def test_a_group_of_which_a_part_stays_bound_is_marked_in_the_queue(told: ToldConsole, driver: WebDriver):
    row = a_group()["queued"]["pod"]
    told.answer("/api/queue", a_list({**row, "members": {**row["members"], "bound": 1}}))
    await go(driver, f"{told.url}#/queue")
    await see(driver, ".rows .partial", "1 of 4 bound")
    told.answer("/api/queue", a_list(row))
    await wait_for(lambda: not driver.find_elements(By.CSS_SELECTOR, ".rows .partial"), "no mark")


# --- the services


def a_process(name: str, **more: object) -> dict[str, object]:
    service = name.partition(" ")[0]
    state = {"leads": False, "ready": True, "silent": False, "version": "0.1.0", "configuration": "c1"}
    return {"name": name, "service": service, "state": "ready", **state, "figures": "", **more}


def services_at_work() -> dict[str, object]:
    consumer = {"name": "scorer", "undelivered": 7, "unacknowledged": 5, "redelivered": 1}
    stream = {"name": "PENDING", "messages": 12, "bytes": 4096, "oldest": 9.0, "is_slow": True, "consumers": [consumer]}
    processes = [
        a_process("binder a", leads=True, state="leads for 2 min 3 s, epoch 4"),
        a_process("scorer b", configuration="c2"),
        a_process("scorer c", ready=False, state="not ready: <b>no mirror</b>"),
        a_process("watcher d", leads=False, state="stands by"),
    ]
    return {**SERVICES, "processes": processes, "streams": [stream], "attention": ["no watcher leads"]}


async def test_services_show_leaders_lag_and_what_differs(told: ToldConsole, driver: WebDriver):
    told.begin(services=services_at_work())
    await go(driver, f"{told.url}#/services")
    await see(driver, ".counter", r"^none leads\s+watcher$")
    await see(driver, ".counter", r"^leads\s+binder$")
    await see(driver, ".counter", r"^1 of 2\s+scorers ready$")
    await see(driver, ".counter", r"^12\s+to be ranked$")
    await see(driver, ".card", r"Needs attention\s+no watcher leads")
    await see(driver, "tr", r"scorer c\s+not ready: <b>no mirror</b>")
    await see(driver, "tr", r"PENDING pods to be ranked\s+scorer\s+12\s+7\s+5\s+1\s+9\.0 s")
    marked = [each.text for each in driver.find_elements(By.CSS_SELECTOR, "td .problem, td.problem")]
    assert marked == ["c2", "not ready: <b>no mirror</b>", "9.0 s"]


# --- a narrow window

CUT = """
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter((each) => {
  if (!each.checkVisibility() || each.closest(".hidden, .skip, canvas, .scroll table:not(.rows), thead")) return false;
  const box = each.getBoundingClientRect();
  const style = getComputedStyle(each);
  const scrolls = each.matches(".scroll, input, select, pre");
  const isCut = style.overflowX !== "visible" && each.scrollWidth > each.clientWidth + 1 && !scrolls;
  return box.width && (box.right > width + 1 || isCut);
}).map((each) => `${each.tagName}.${each.className} ${each.innerText?.slice(0, 60)}`);
"""
"""What a narrow window cuts off; a box that scrolls says so by a shadow."""


async def test_nothing_is_cut_off_at_400_pixels(told: ToldConsole):
    long = "x" * 60
    told.begin(
        decisions=[
            [
                *a_decision(1, "berth")[:2],
                f"web-{long}",
                "berth",
                "unschedulable",
                "",
                f"0/12 nodes: {long}",
                1.0,
                1.1,
                1.2,
                3,
            ]
        ],
        figures={**counted(60, 2), "profiles": {long: 2}, "namespaces": {long: 1}},
        services=services_at_work(),
        shadows=[a_shadow(1)],
        differences=[
            [1.0, "packed", "default", f"web-{long}", "berth", "node", f"node-{long}", "n1", 3, 2, "", "bound", "n0"]
        ],
    )
    device = a_device(long, f"default/{long}", pool=long, attributes={long: long}, taints=[f"{long}:NoSchedule"])
    told.answer("/api/nodes/n0", {**a_node(1), "devices": {"number": 1, "in_use": 1, "listed": [device]}})
    told.answer("/api/queue", a_list(a_pod_in_the_queue(f"web-{long}", message=f"0/2 nodes: {long}", attempts=3)))
    told.answer(
        f"{POD}/why",
        {
            **DECIDED,
            **ranked(node="n2"),
            "outcome": "bound",
            "sentences": [f"default/web is on n2 {long}"],
            "given": [{**device, "claim": f"default/{long}", "request": long}],
        },
    )
    told.answer(f"{POD}/trace", {"messages": []})
    told.answer(f"{POD}/queue", waits(remedies=[{"plugin": "NodeResourcesFit", "text": f"asks for {long}"}]))
    shown = {
        "decisions": (".lines", "unschedulable.*0/12"),
        "queue": (".rows", "Again|Tries"),
        "services": (".rows", "PENDING"),
        "shadow": (".rows", "packed"),
        "pod/default/web": (".candidates", "n2"),
        "cluster": (".latest", "unschedulable"),
        "node/n0": (".devices", "NoSchedule"),
    }
    with browser(width=400, height=860) as narrow:
        for view, (selector, pattern) in shown.items():
            await go(narrow, f"{told.url}#/{view}")
            await see(narrow, selector, pattern)
            assert await run(narrow, CUT) == [], view


# --- what the nodes use

PIXEL = """
const canvas = document.querySelector(".stack canvas");
return [...canvas.getContext("2d").getImageData(30, 60, 1, 1).data].join();
"""
"""The colour of the first tile."""


async def test_tiles_are_coloured_by_measured_use_and_say_its_age(told: ToldConsole, driver: WebDriver):
    at = 1_800_000_000.0
    told.begin(now=at, usage=[[0, 3000.0, 2.0**32, at - 12]])  # of 4 cores 0.5 requested and 3 used
    await go(driver, f"{told.url}#/cluster")
    await see(driver, ".totals", "2 nodes")
    requested = await run(driver, PIXEL)
    await click(driver, ".choice label", "CPU used")
    await see(driver, ".totals", "1 measured")
    assert await run(driver, PIXEL) != requested
    canvas = driver.find_elements(By.CSS_SELECTOR, ".stack canvas")[1]
    await asyncio.to_thread(canvas.send_keys, Keys.HOME)
    text = await see(driver, "[id^=spoken]", "CPU used 75 %, 3 of 4")
    assert "Memory used 50 %, 4.0 GiB of 8.0 GiB, " in text
    await asyncio.to_thread(canvas.send_keys, Keys.ARROW_RIGHT)
    assert "CPU used not measured" in await see(driver, "[id^=spoken]", "n1")
