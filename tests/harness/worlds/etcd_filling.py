"""Fills a cluster by writing to its etcd: 70,000 pods in the time in which the API server creates some hundreds.

The first object of each form is created through the API server. The others are what it has stored, with a name, uid,
labels and node of their own, so that they have every default and all managed fields.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Iterable
from itertools import islice
from typing import Any

import aiohttp

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser

PUTS = 128
"""In one transaction: etcd takes no more."""
AT_ONCE = 4

Json = dict[str, Any]


class EtcdFilling:
    """Writes nodes and pods. The control plane must store JSON (`faults.world.API_FLAGS`)."""

    def __init__(self, plane: ControlPlane, user: ClusterUser) -> None:
        self._url = plane.etcd_url
        self._user = user
        self._templates: dict[str, asyncio.Task[Json]] = {}

    async def add(self, manifests: Iterable[Json], *, together: int = PUTS) -> None:
        """Store every object. Those that are stored ``together`` have one resourceVersion, which real ones never have.

        A watch that the API server ends in the midst of them, as it does when they come too fast, misses the others.
        """
        left = iter(manifests)
        async with aiohttp.ClientSession() as session:

            async def work() -> None:
                while puts := [await self._put(session, made) for made in islice(left, together)]:
                    await self._call(session, "txn", {"success": puts})

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _put(self, session: aiohttp.ClientSession, made: Json) -> Json:
        stored = _like(await self._template(session, made), made)
        return {"request_put": {"key": _base64(_key(made)), "value": _base64(json.dumps(stored))}}

    async def _template(self, session: aiohttp.ClientSession, made: Json) -> Json:
        form = _form(made)
        if form not in self._templates:
            self._templates[form] = asyncio.create_task(self._first(session, made))
        return await self._templates[form]

    async def _first(self, session: aiohttp.ClientSession, made: Json) -> Json:
        """An object of this form, as the API server stores it."""
        first = {**made, "metadata": {**made["metadata"], "name": f"first-{made['metadata']['name']}"}}
        await self._user.create([first])
        found = await self._call(session, "range", {"key": _base64(_key(first))})
        return json.loads(base64.b64decode(found["kvs"][0]["value"]))

    async def _call(self, session: aiohttp.ClientSession, call: str, body: Json) -> Json:
        async with session.post(f"{self._url}/v3/kv/{call}", data=json.dumps(body)) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


def _form(made: Json) -> str:
    """What objects have in common that are stored alike."""
    spec = {**made["spec"], "nodeName": bool(made["spec"].get("nodeName"))}
    return json.dumps([made["kind"], made["metadata"].get("namespace"), spec, made.get("status")])


def _like(template: Json, made: Json) -> Json:
    own = {"name": made["metadata"]["name"], "uid": str(uuid.uuid4()), "labels": made["metadata"].get("labels", {})}
    node = {"nodeName": made["spec"]["nodeName"]} if "nodeName" in made["spec"] else {}
    return {**template, "metadata": {**template["metadata"], **own}, "spec": {**template["spec"], **node}}


def _key(made: Json) -> str:
    metadata = made["metadata"]
    if made["kind"] == "Node":
        return f"/registry/minions/{metadata['name']}"
    return f"/registry/pods/{metadata['namespace']}/{metadata['name']}"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
