"""A plain HTTP client of a Kubernetes API server, for tests that run one contract on two servers."""

import asyncio
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response of the server: the HTTP status and the decoded body."""

    code: int
    body: dict

    @property
    def version(self) -> str:
        """resourceVersion of the object or list."""
        return self.body["metadata"]["resourceVersion"]

    @property
    def names(self) -> list[str]:
        """Names of the items of a list."""
        return [item["metadata"]["name"] for item in self.body["items"]]


class WatchEvents:
    """The events of one watch, in order."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict:
        """Return the next event; fails after ANSWER_SECONDS."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return json.loads(await self._response.content.readline())

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Return type and object name of the next `count` events."""
        return [
            (event["type"], event["object"]["metadata"]["name"]) for event in [await self.next() for _ in range(count)]
        ]

    async def to_end(self) -> list[dict]:
        """Return all events up to the end of the watch."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return [json.loads(line) async for line in self._response.content]


class KubernetesApi:
    """One API server and a namespace of the test's own in it; paths begin with /api."""

    def __init__(self, session: aiohttp.ClientSession, compact: Callable[[], Awaitable[None]]) -> None:
        self._session = session
        self.compact = compact
        """Makes the server forget its history."""
        self.namespace = f"test-{uuid.uuid4().hex[:10]}"

    @property
    def pods(self) -> str:
        """Path of the namespace's pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def events(self) -> str:
        """Path of the namespace's core/v1 events."""
        return f"/api/v1/namespaces/{self.namespace}/events"

    @property
    def new_events(self) -> str:
        """Path of the namespace's events.k8s.io/v1 events."""
        return f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"

    @property
    def leases(self) -> str:
        """Path of the namespace's leases."""
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    async def get(self, path: str, **query: object) -> Answer:
        return await self.call("GET", path, query=query)

    async def post(self, path: str, body: object) -> Answer:
        return await self.call("POST", path, body)

    async def post_text(self, path: str, body: str) -> int:
        """Post JSON of which Python makes no object; return the HTTP status."""
        async with self._session.request("POST", path, data=body, headers={"Content-Type": JSON}) as response:
            return response.status

    async def put(self, path: str, body: object) -> Answer:
        return await self.call("PUT", path, body)

    async def patch(self, path: str, body: object, content_type: str = MERGE_PATCH) -> Answer:
        return await self.call("PATCH", path, body, content_type=content_type)

    async def delete(self, path: str, body: object = None, **query: object) -> Answer:
        return await self.call("DELETE", path, body, query=query)

    async def call(
        self, method: str, path: str, body: object = None, *, content_type: str = JSON, query: dict | None = None
    ) -> Answer:
        """Send a request and return the answer; every answer of the API is JSON."""
        # As printed by Go: with spaces in the opaque parameters of a claim, the server refuses every later patch.
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": content_type}
        parameters = {name: str(value) for name, value in (query or {}).items()}
        async with self._session.request(method, path, data=data, headers=headers, params=parameters) as response:
            return Answer(code=response.status, body=await response.json(content_type=None))

    @asynccontextmanager
    async def watch(self, path: str, **query: object) -> AsyncIterator[WatchEvents]:
        """Open a watch; it ends with the block."""
        parameters = {"watch": "true"} | {name: str(value) for name, value in query.items()}
        async with self._session.get(path, params=parameters) as response:
            assert response.status == 200, await response.text()
            yield WatchEvents(response)
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()  # closing TLS in order would outlive the test's event loop

    async def add_pod(self, name: str, *, labels: dict | None = None, **spec: object) -> Answer:
        """Create a pod that waits for the scheduler `berth`."""
        return await self.post(self.pods, minimal_pod(name, labels=labels, **spec))

    async def add_node(self, labels: dict | None = None) -> str:
        """Create a node for this test only; return its name."""
        name = f"node-{uuid.uuid4().hex[:10]}"
        answer = await self.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels or {}}})
        assert answer.code == 201, answer.body
        return name

    async def bind(self, name: str, node: str, **metadata: object) -> Answer:
        """Post a Binding; `metadata` is uid, resourceVersion, labels, annotations."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, **metadata},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        answer = await self.post(f"{self.pods}/{name}/binding", binding)
        if answer.code == HTTPStatus.CREATED:
            await self._seen_on_a_node(name)
        return answer

    async def _seen_on_a_node(self, name: str) -> None:
        """Wait until the API server's own cache has the Binding: a deletion before that is one of an unbound pod."""
        cached = f"{self.pods}/{name}?resourceVersion=0"
        while not (await self.get(cached)).body.get("spec", {}).get("nodeName"):  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.01)


def minimal_pod(name: str, *, labels: dict | None = None, **spec: object) -> dict:
    """Return a pod of one container."""
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "100m"}}}
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    spec = {"schedulerName": "berth", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@asynccontextmanager
async def bare_api(
    url: str, compact: Callable[[], Awaitable[None]], *, token: str = "", trust: ssl.SSLContext | None = None
) -> AsyncIterator[KubernetesApi]:
    """Connect, without creating the namespace."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector = aiohttp.TCPConnector(ssl=trust) if trust else aiohttp.TCPConnector()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=ANSWER_SECONDS)
    async with aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=timeout) as session:
        yield KubernetesApi(session, compact)
    await asyncio.sleep(0)  # closed TLS connections leave the loop one turn later
    await asyncio.sleep(0)


@asynccontextmanager
async def kubernetes_api(
    url: str, compact: Callable[[], Awaitable[None]], *, token: str = "", trust: ssl.SSLContext | None = None
) -> AsyncIterator[KubernetesApi]:
    """Connect and create the test's namespace. Nothing is removed: the server is stopped after the tests."""
    async with bare_api(url, compact, token=token, trust=trust) as api:
        answer = await api.post("/api/v1/namespaces", {"metadata": {"name": api.namespace}})
        assert answer.code == 201, answer.body
        yield api
