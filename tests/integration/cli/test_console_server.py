"""The console's answers over HTTP: its headers, whom it refuses, and its bounds. There is no bus behind it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.devices import ResourceSlice
from berth.messages.attempts import Candidate
from berth.messages.encoding import encode
from berth.messages.shadow import ShadowComparison, ShadowResult, ShownRanking
from berth.profiles.configuration import read_configuration
from berth.settings.readers import Secret
from berth_cli.bus import NatsServer
from berth_cli.console import askagain, pages
from berth_cli.console.askagain import AlreadyAskingError, AskAgain
from berth_cli.console.feed import Feed
from berth_cli.console.guard import COOKIE, HEADERS, SESSION, Guard, trusted_proxy
from berth_cli.console.hub import MOST_PAGES
from berth_cli.console.pages import page_files, serving
from berth_cli.console.server import ConsoleServer
from berth_cli.options import PodName
from harness.builders.objects import a_node

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of these tests
POD = PodName(namespace="default", name="web")


class Client:
    """A client of a console that serves."""

    def __init__(self, session: aiohttp.ClientSession, port: int, feed: Feed) -> None:
        self.session = session
        self.port = port
        self.feed = feed

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, path: str, method: str = "GET", **given) -> tuple[int, str]:
        async with self.session.request(method, f"{self.url}{path}", allow_redirects=False, **given) as answer:
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
            return answer.status, await answer.text()


@asynccontextmanager
async def a_console(*, token: str | None = None, proxy=None) -> AsyncIterator[Client]:
    guard = Guard.of("127.0.0.1", names=(), token=Secret(token) if token else None, proxy=proxy)
    feed = Feed(NatsServer())
    answers = ConsoleServer(feed, guard, AskAgain((), kubeconfig=None), a_configuration())
    async with serving(answers.application(), "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        yield Client(session, port, feed)


def a_configuration() -> KubeSchedulerConfiguration:
    return read_configuration(None)


@pytest.fixture
async def open_console() -> AsyncIterator[Client]:
    async with a_console() as client:
        yield client


@pytest.fixture
async def closed_console() -> AsyncIterator[Client]:
    async with a_console(token=TOKEN) as client:
        yield client


async def test_the_page_and_its_files_are_served_with_their_types(open_console: Client):
    status, page = await open_console.ask("/")
    assert status == 200
    for name in re.findall(r'(?:src|href)="page/([\w.]+)"', page):
        async with open_console.session.get(f"{open_console.url}/page/{name}") as answer:
            assert answer.status == 200
            assert answer.content_type in {"text/css", "text/javascript", "image/svg+xml"}


@pytest.mark.parametrize("name", ["../server.py", "..%2fserver.py", "index.html%00", "", "console.py", "%2e%2e/hub.py"])
async def test_nothing_else_is_a_file_of_the_page(open_console: Client, name: str):
    status, _ = await open_console.ask(f"/page/{name}")
    assert status == 404


def test_files_ask_for_nothing_from_elsewhere_and_run_nothing_inline():
    for name, (body, content_type) in page_files().items():
        text = body.decode()
        # The address of compose's simulated cluster is a text for people, which nothing asks.
        elsewhere = re.findall(r"https?://(?!www\.w3\.org/2000/svg|127\.0\.0\.1:8001 too)\S+|url\(|@import", text)
        assert elsewhere == [], name
        if content_type == "text/html":
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name


def test_every_import_of_a_script_is_there():
    files = page_files()
    for name, (body, _) in files.items():
        for imported in re.findall(r'from "\./([\w.]+)"', body.decode()):
            assert imported in files, f"{name} imports {imported}"


async def test_another_name_that_points_here_is_refused(open_console: Client):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        status, text = await open_console.ask("/", headers={"Host": host})
        assert status == 421
        assert "--allowed-host" in text


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_a_kubelet_probes_under_any_name(closed_console: Client, path: str):
    assert await closed_console.ask(path, headers={"Host": "10.2.3.4:8090"}) == (200, "ok")


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1"])
@pytest.mark.parametrize("path", ["/login", "/logout", "/api/pods/default/web/now"])
async def test_a_post_from_elsewhere_is_refused(open_console: Client, origin: str | None, path: str):
    headers = {"Origin": origin} if origin else {}
    status, text = await open_console.ask(path, "POST", headers=headers)
    assert (status, "Origin" in text) == (403, True)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_do_nothing(open_console: Client, method: str):
    headers = {"Origin": open_console.url}
    status, _ = await open_console.ask("/api/queue", method, headers=headers)
    assert status == 405


async def test_without_the_token_nothing_is_said(closed_console: Client):
    for path in ("stream", "queue", "session", "nodes/a", "pods/default/web/why", "pods/default/web/trace"):
        status, text = await closed_console.ask(f"/api/{path}")
        assert (status, "Type the token" in text) == (401, True)
    status, page = await closed_console.ask("/")
    assert (status, "Token" in page) == (200, True)


async def log_in(client: Client, token: str, **headers: str) -> tuple[int, str]:
    async with client.session.post(
        f"{client.url}/login", data={"token": token}, headers={"Origin": client.url, **headers}, allow_redirects=False
    ) as answer:
        return answer.status, answer.headers.get("Set-Cookie", "")


async def test_the_token_is_exchanged_for_a_cookie_that_no_script_reads(closed_console: Client, monkeypatch):
    monkeypatch.setattr(pages, "WRONG_TOKEN_SECONDS", 0.0)
    assert (await log_in(closed_console, "wrong"))[0] == 403
    status, cookie = await log_in(closed_console, TOKEN)
    assert status == 200
    assert cookie.startswith(f"{COOKIE}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    headers = {"Cookie": cookie.partition(";")[0]}
    assert (await closed_console.ask("/api/session", headers=headers)) == (200, '{"login":true}')
    status, _ = await closed_console.ask("/logout", "POST", headers={**headers, "Origin": closed_console.url})
    assert status == 200


async def test_a_wrong_bearer_is_held_up_as_a_wrong_token_is(closed_console: Client, monkeypatch):
    wrong, right = {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN}"}
    monkeypatch.setattr(pages, "WRONG_TOKEN_SECONDS", 0.0)
    assert (await closed_console.ask("/api/session", headers=wrong))[0] == 401
    status, page = await closed_console.ask("/", headers=wrong)
    assert (status, "Token" in page) == (200, True)
    monkeypatch.setattr(pages, "WRONG_TOKEN_SECONDS", 3600.0)
    for path in ("/api/session", "/"):  # of which each would tell that it is wrong
        guessing = asyncio.create_task(closed_console.session.get(f"{closed_console.url}{path}", headers=wrong))
        done, _ = await asyncio.wait({guessing}, timeout=0.5)
        assert not done, path
        guessing.cancel()
    assert (await closed_console.ask("/api/session", headers=right))[0] == 200
    assert (await closed_console.ask("/livez", headers=wrong))[0] == 200


async def test_a_stream_ends_with_the_session_that_it_began_in(closed_console: Client, monkeypatch):
    now = time.time()
    guard = Guard.of("127.0.0.1", names=(), token=Secret(TOKEN), proxy=None)
    headers = {"Cookie": f"{COOKIE}={guard.new_session(now=now)}"}
    async with closed_console.session.get(f"{closed_console.url}/api/stream", headers=headers) as stream:
        assert (await stream.content.readline()).startswith(b"data: ")
        closed_console.feed.hub.publish(b'{"now":5}')
        assert [await stream.content.readline() for _ in range(2)] == [b"\n", b'data: {"now":5}\n']
        monkeypatch.setattr(pages, "time", SimpleNamespace(time=lambda: now + SESSION.total_seconds() + 1))
        closed_console.feed.hub.publish(b'{"now":6}')
        assert await stream.content.read() == b"\n"
    assert (await closed_console.ask("/api/stream", headers=headers))[0] == 401
    assert len(closed_console.feed.hub) == 0


async def test_a_form_that_is_none_is_refused(closed_console: Client):
    headers = {"Origin": closed_console.url}
    status, _ = await closed_console.ask("/login", "POST", json={"token": TOKEN}, headers=headers)
    assert status == 415
    status, _ = await closed_console.ask("/login", "POST", data={"token": "x" * 100_000}, headers=headers)
    assert status == 413


async def test_a_proxy_of_another_address_is_not_believed():
    for address, status in (("127.0.0.1", 200), ("10.0.0.5", 401)):
        async with a_console(proxy=trusted_proxy("X-User", [address])) as client:
            assert (await client.ask("/api/session", headers={"X-User": "alice"}))[0] == status
            assert (await client.ask("/api/session"))[0] == 401


async def test_a_bus_that_is_away_is_one_sentence(open_console: Client):
    for path in ("queue", "pods/default/web/why", "pods/default/web/trace", "pods/default/web/queue"):
        status, text = await open_console.ask(f"/api/{path}")
        assert (status, json.loads(text)) == (503, {"error": "reading NATS: connecting to NATS"})
    status, text = await open_console.ask("/api/pods/default/web/now", "POST", headers={"Origin": open_console.url})
    assert status == 503


@pytest.mark.parametrize("name", ["Web", "web_1", "-o", "--now", "x" * 300, "a%2fb", "%00"])
async def test_a_name_that_no_pod_has_is_refused_before_anything_is_asked(open_console: Client, name: str):
    open_console.feed._session = object()  # type: ignore[assignment]  # a session that nothing may be asked
    for path in ("why", "trace", "queue"):
        status, text = await open_console.ask(f"/api/pods/default/{name}/{path}")
        assert (status, "reading the pod" in text) == (400, True)


async def test_a_node_is_answered_from_the_mirror_and_nothing_invisible_is_in_it(open_console: Client):
    open_console.feed.model.mirror.snapshot.set_node(a_node("a", labels={"said": "left\u202eright"}))
    status, text = await open_console.ask("/api/nodes/a")
    assert status == 200
    assert "\u202e" not in text
    assert json.loads(text)["labels"] == {"said": "left\u202eright"}
    assert (await open_console.ask("/api/nodes/b"))[0] == 404


async def test_a_nodes_devices_are_answered_with_the_node(open_console: Client):
    snapshot = open_console.feed.model.mirror.snapshot
    snapshot.set_node(a_node("a"))
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0", "attributes": {"said": {"string": "left\u202eright"}}}]
    body = {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": pool, "nodeName": "a", "devices": devices}}
    snapshot.objects(ResourceSlice).set("s", msgspec.convert(body, ResourceSlice))
    status, text = await open_console.ask("/api/nodes/a")
    found = json.loads(text)["devices"]
    assert (status, found["number"], found["in_use"]) == (200, 1, 0)
    assert found["listed"][0]["attributes"] == {"said": "left\u202eright"}
    assert "\u202e" not in text


async def test_a_difference_of_a_shadow_is_answered_with_both_rankings(open_console: Client):
    ranking = ShownRanking(candidates=[Candidate(node="left\u202eright", total=1)])
    one = ShadowComparison(
        shadow="packed",
        attempt="u.1.1",
        profile="berth",
        namespace="default",
        pod="web",
        uid="u",
        result=ShadowResult.NODE,
        live=ranking,
        own=ranking,
    )
    open_console.feed.model.shadows.received(one.subject, encode(one), 1.0)
    status, text = await open_console.ask("/api/shadows/packed/default/web")
    assert status == 200
    assert "\u202e" not in text
    assert json.loads(text)["live"]["candidates"][0]["node"] == "left\u202eright"
    assert (await open_console.ask("/api/shadows/other/default/web"))[0] == 404
    assert (await open_console.ask("/api/shadows/packed/default/none"))[0] == 404


async def test_a_page_is_sent_frames_and_one_too_many_is_refused(open_console: Client):
    async with open_console.session.get(f"{open_console.url}/api/stream") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert {name: stream.headers[name] for name in HEADERS} == HEADERS
        line = await stream.content.readline()
        frame = json.loads(line.removeprefix(b"data: "))
        assert frame["whole"]
        assert frame["bus"]["connected"] is False
        open_console.feed.hub.publish(b'{"now":5}')
        assert await stream.content.readline() == b"\n"
        assert await stream.content.readline() == b'data: {"now":5}\n'
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("berth_cli.console.hub.MOST_PAGES", 1)
            assert (await open_console.ask("/api/stream"))[0] == 503
            refused = '{"error":"opening the console: 1 pages are open already: close one of them"}'
            assert await open_console.ask("/api/room") == (503, refused)
    assert await open_console.ask("/api/room") == (200, "{}")
    assert MOST_PAGES > 1


async def test_one_pod_is_asked_about_at_a_time_and_few_wait(monkeypatch):
    asking, most, finish = 0, 0, asyncio.Event()

    async def ask(_self: AskAgain, _name: PodName) -> dict[str, object]:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await finish.wait()
        asking -= 1
        return {}

    monkeypatch.setattr(AskAgain, "_ask", ask)
    again = AskAgain((), kubeconfig=None)
    waiting = [asyncio.create_task(again.ask(POD)) for _ in range(askagain.MOST_WAITING + 1)]
    await asyncio.sleep(0)
    with pytest.raises(AlreadyAskingError):
        await again.ask(POD)
    finish.set()
    assert await asyncio.gather(*waiting) == [{}] * (askagain.MOST_WAITING + 1)
    assert most == 1
