"""CPU time of a POST to a real API server: over berth's connections, by kubernetes_asyncio, and by aiohttp alone.

    PYTHONPATH=tests .venv/bin/python -m bench.requests --posts 3000 --rounds 3

Needs KUBEBUILDER_ASSETS with etcd and kube-apiserver. Each POST creates an Event, over TLS, 32 at a time, and its
answer is read. `bare` is the least that Python can do: a protocol without limits, errors and times. They take turns in
one process, so that a busy machine slows all; the CPU time is this process's alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import typer
import uvloop
from rich.console import Console

from berth.kube.client import KubeClient
from berth.kube.credentials import Access, KubeCredentials
from berth.kube.http1 import fields, request
from berth.kube.kubeconfig import source_for
from berth.kube.writes import create_event
from harness.servers.control_plane import HOW_TO_GET_IT, assets_folder, control_plane

RESULTS = Path(__file__).parent / "results"
AT_ONCE = 32
NAMESPACE = "default"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"

console = Console(highlight=False, soft_wrap=True)

Document = dict[str, Any]
Post = Callable[[Document, bytes], Awaitable[int]]


def event(name: str) -> Document:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "berth",
        "reportingInstance": "berth-bench",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": f"Successfully assigned {NAMESPACE}/{name} to node-1",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE, "name": name, "uid": name},
    }


async def microseconds(post: Post, name: str, posts: int) -> float:
    """CPU time of one POST, the mean of so many."""
    events = [event(f"{name}-{number}") for number in range(posts)]
    bodies = [(document, json.dumps(document).encode()) for document in events]

    async def send() -> None:
        while bodies:
            status = await post(*bodies.pop())
            assert status == 201, status

    began = time.process_time()
    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return (time.process_time() - began) / posts * 1e6


class Bare(asyncio.Protocol):
    """One connection that believes every answer."""

    def connection_made(self, transport):
        self.transport, self.received = transport, b""

    def data_received(self, data):
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.received[:end].lower()
        length = int(head[head.find(b"content-length:") + 15 :].split(b"\r", 1)[0])
        if len(self.received) >= end + 4 + length:
            self.received = b""
            self.answer.set_result(int(head[9:12]))

    async def post(self, request: bytes) -> int:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.answer


async def bare_connections(access: Access) -> list[Bare]:
    url, loop = urlsplit(access.server), asyncio.get_running_loop()
    made = [await loop.create_connection(Bare, url.hostname, url.port, ssl=access.tls) for _ in range(AT_ONCE)]
    return [protocol for _, protocol in made]


async def measure(kubeconfig: Path, posts: int, rounds: int) -> dict[str, list[float]]:
    credentials = await KubeCredentials.from_source(source_for(kubeconfig))
    access, headers = credentials.access, await credentials.headers()
    url, content = f"{access.server}{EVENTS}", {"Content-Type": "application/json"}
    async with KubeClient(credentials) as client, aiohttp.ClientSession(headers=headers) as session:

        async def through_berth(_: Document, body: bytes) -> int:
            return (await create_event(client, NAMESPACE, body)).status

        async def through_library(document: Document, _: bytes) -> int:
            return (await client.call("POST", EVENTS, body=document)).status

        async def through_aiohttp(_: Document, body: bytes) -> int:
            async with session.post(url, data=body, headers=content, ssl=access.tls) as answer:
                await answer.read()
                return answer.status

        free = await bare_connections(access)
        shared = fields({"Host": urlsplit(access.server).netloc, **headers})

        async def through_bare(_: Document, body: bytes) -> int:
            connection = free.pop()
            status = await connection.post(request("POST", EVENTS, shared, body, "application/json"))
            free.append(connection)
            return status

        contenders = {
            "berth": through_berth,
            "library": through_library,
            "aiohttp": through_aiohttp,
            "bare": through_bare,
        }
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for name, post in contenders.items():
            await microseconds(post, f"warm-{name}", AT_ONCE)
        for number in range(rounds):
            for name, post in contenders.items():
                taken[name].append(round(await microseconds(post, f"{name}-{number}", posts), 1))
                console.print(f"round {number + 1}: {name}: {taken[name][-1]:.0f} us of CPU a POST")
        for connection in free:
            connection.transport.abort()
        return taken


def main(
    posts: Annotated[int, typer.Option(min=1, help="POSTs of each in a round.")] = 3000,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print, write the figures."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(3)
    with control_plane(assets) as plane:
        taken = uvloop.run(measure(plane.kubeconfig_path, posts, rounds))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    ratios = {name: round(medians["berth"] / medians[name], 3) for name in ("library", "aiohttp", "bare")}
    for name, ratio in ratios.items():
        console.print(f"berth / {name}: {ratio:.2f} ({medians['berth']:.0f} and {medians[name]:.0f} us)")
    now = datetime.now(UTC)
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    figures = {"at": now.isoformat(), "machine": machine, "posts": posts, "rounds": rounds}
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"requests-{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps({**figures, "microseconds": taken, "ratios": ratios}, indent=2) + "\n")
    console.print(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)
