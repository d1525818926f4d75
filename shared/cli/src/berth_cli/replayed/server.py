"""Serves the page of a recording with two clusters side by side. Its contents do not change."""

from __future__ import annotations

from aiohttp import web

from berth.exits import UsageError
from berth_cli.console.guard import Guard
from berth_cli.console.pages import GuardedPage, encoded_answer, json_answer, pod_of, safe_json
from berth_cli.replayed.comparison import TwoClusters


class ReplayServer:
    def __init__(self, clusters: TwoClusters, guard: Guard) -> None:
        self._page = GuardedPage(guard, "replay.html")
        self._clusters = clusters
        self._film = safe_json(clusters.document())

    def application(self) -> web.Application:
        routes = (
            web.get("/api/film", self._whole),
            web.get("/api/nodes/{name}", self._node),
            web.get("/api/pods/{namespace}/{name}", self._pod),
        )
        return self._page.application(routes)

    async def _whole(self, _request: web.Request) -> web.Response:
        return encoded_answer(self._film)

    async def _node(self, request: web.Request) -> web.Response:
        return json_answer(self._clusters.node_json(request.match_info["name"], _step_of(request)))

    async def _pod(self, request: web.Request) -> web.Response:
        return json_answer(self._clusters.pod_json(pod_of(request)))


def _step_of(request: web.Request) -> int:
    text = request.query.get("step", "")
    if not (text.isascii() and text.isdigit() and len(text) < 6):  # more than any film has
        raise UsageError(f"reading the step {text!r:.80}: want a number")
    return int(text)
