"""docs/schemas describes what the services write: messages of a running pipeline are held to it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from berth.bus.interface import StoredMessage
from berth.messages.attempts import DeadLetter
from berth.messages.encoding import encode
from berth.messages.livedata import NodeSample
from berth.messages.subjects import service_subject
from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
BY_SUBJECT = {
    r"berth\.pending\..*": "pending",
    r"berth\.ranked\..*": "ranked",
    r"berth\.decision\..*": "decision",
    r"\$KV\.cluster\.watermark\..*": "watermark",
    r"\$KV\.cluster\.(?!watermark\.).*": "mirror-entry",
}
PODS = [
    pod
    for name in ("pods", "important")
    for pod in yaml.safe_load_all((ROOT / f"docs/tracing/{name}.yaml").read_text())
]
"""Placed; fits nowhere; held back; evicted; the one that it is evicted for."""


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problems(name: str, message: bytes) -> list[str]:
    return [error.message for error in validator(name).iter_errors(json.loads(message))]


@pytest.fixture(scope="module")
def berth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    with berth_up("--nodes", 12, folder=tmp_path_factory.mktemp("berth-up")) as running:
        running.wait_until_ready()
        yield running


@pytest.mark.requires("nats-server")
@pytest.mark.timeout(180)
async def test_messages_of_a_running_pipeline_are_as_their_schemas_say(berth: BerthUp):
    seen: dict[str, list[bytes]] = {name: [] for name in BY_SUBJECT.values()}
    outcomes: set[str] = set()

    def listen(stored: StoredMessage) -> None:
        subject, data = stored.subject, stored.data
        (name,) = (name for pattern, name in BY_SUBJECT.items() if re.fullmatch(pattern, subject))
        if data:  # a deleted key has none
            seen[name].append(data)
        if name == "decision":
            outcomes.add(json.loads(data)["outcome"])

    async def all_seen() -> bool:
        return outcomes >= {"bound", "unschedulable", "preempting"} and all(seen.values())

    session = await berth.session()
    try:
        for subject in ("berth.pending.>", "berth.ranked.>", "berth.decision.>", "$KV.cluster.>"):
            await session.subscribe_stored(subject, listen)
        async with cluster_user(berth.kubeconfig) as cluster:
            for pod in PODS:
                assert (await cluster.api.post("/api/v1/namespaces/default/pods", pod)).code == 201
                if pod["metadata"]["name"] == "low":
                    await eventually(lambda: low_is_placed(cluster), "low to be placed")
            await eventually(all_seen, "every kind of message and every outcome")
        assert [(name, found) for name, many in seen.items() for one in many if (found := problems(name, one))] == []
        await answers_are_as_their_schema_says(session)
    finally:
        await session.close()


async def low_is_placed(cluster) -> bool:
    return bool((await cluster.api.get("/api/v1/namespaces/default/pods/low")).body["spec"].get("nodeName"))


async def answers_are_as_their_schema_says(session) -> None:
    (watcher,) = await session.services("berth-watcher")
    for endpoint, name, question in (
        ("queue", "queue-request", b'{"schema":1,"queue":"unschedulable"}'),
        ("pod", "pod-request", b'{"schema":1,"namespace":"default","name":"big"}'),
    ):
        assert problems(name, question) == []
        subject = service_subject("berth-watcher", watcher.identity, endpoint)
        async with asyncio.timeout(20):
            while b'"big"' not in (answer := await session.ask(subject, question)):  # it may be on its way once more
                assert problems("queue-answer", answer) == []
                await asyncio.sleep(0.1)
        assert problems("queue-answer", answer) == []


def test_what_that_pipeline_does_not_write_is_as_its_schema_says():
    letter = DeadLetter(subject="berth.ranked.berth.default.web", reason="no JSON", service="binder")
    assert problems("dead-letter", encode(letter)) == []
    assert problems("bandwidth", encode(NodeSample(receive=1.5, sampled_at=datetime(2026, 1, 1, tzinfo=UTC)))) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("decision", {"attempt": "a.1.1", "outcome": "bound"}, id="without a schema and more"),
        pytest.param(
            "watermark", {"schema": 1, "term": "1", "resource_version": "5"}, id="a text in place of a number"
        ),
        pytest.param("dead-letter", {"schema": 1, "subject": "s", "service": "binder"}, id="without the reason"),
    ],
)
def test_other_messages_are_refused(name: str, message: dict):
    assert problems(name, json.dumps(message).encode())
