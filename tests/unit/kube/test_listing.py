"""A LIST is read in pages by the size of its objects, and passed on in steps between which other tasks run."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise

import pytest

from berth.api.kinds import POD
from berth.api.pod import Pod
from berth.errors import TemporaryError
from berth.kube.http1 import Response
from berth.kube.listwatch import LARGEST_PAGE, OBJECTS_IN_A_STEP, PAGE_BYTES, PAGE_SIZE, list_objects

GONE = Response(status=410, body=b"{}", retry_after=timedelta())


class ApiServer:
    """Answers LISTs of pods at one resourceVersion."""

    def __init__(self, pods: int, *, padding: int = 0) -> None:
        self.pods = [_pod(number, padding) for number in range(pods)]
        self.asked: list[Mapping[str, str]] = []
        self.history: list[str] = []
        """Requests, and pods passed on, in order."""
        self.fails_after = float("inf")

    async def request(self, method: str, path: str, *, params: Mapping[str, str], **_: object) -> Response:
        assert (method, path) == ("GET", "/api/v1/pods")
        self.asked.append(params)
        self.history.append("request")
        await asyncio.sleep(0)
        if len(self.asked) > self.fails_after and "continue" in params:
            return GONE
        begin = int(params.get("continue", "0"))
        end = begin + int(params.get("limit", len(self.pods)))
        metadata = {"resourceVersion": "1000000", "continue": str(end) if end < len(self.pods) else ""}
        head = json.dumps({"metadata": metadata, "items": []}).encode()
        body = head.replace(b"[]", b"[" + b",".join(self.pods[begin:end]) + b"]")
        return Response(status=200, body=body, retry_after=timedelta())

    def take(self, pods: list[Pod]) -> None:
        self.history += [pod.metadata.name for pod in pods]


def _pod(number: int, padding: int) -> bytes:
    metadata = {"name": f"p{number}", "uid": f"u{number}", "resourceVersion": str(number + 1)}
    return json.dumps({"metadata": metadata, "spec": {}, "padding": "x" * padding}).encode()


async def test_all_but_the_last_step_is_passed_on_while_the_list_is_read():
    server = ApiServer(4 * OBJECTS_IN_A_STEP + 7)
    parts: list[list[Pod]] = []
    found = await list_objects(server, POD, on_part=parts.append)
    assert [pod.metadata.name for pod in found.objects] == [f"p{number}" for number in range(len(server.pods))]
    assert [pod for part in parts for pod in part] == found.objects[: found.passed_on]
    assert [len(part) for part in parts] == [OBJECTS_IN_A_STEP] * 4
    assert found.resource_version == "1000000"


async def test_other_tasks_have_their_turn_after_each_step():
    server = ApiServer(LARGEST_PAGE)
    turns, passed_on = 0, []

    async def renew() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    renewing = asyncio.create_task(renew())
    await list_objects(server, POD, page_size=LARGEST_PAGE, on_part=lambda _: passed_on.append(turns))
    renewing.cancel()
    assert len(passed_on) == LARGEST_PAGE // OBJECTS_IN_A_STEP - 1
    assert all(before < after for before, after in pairwise(passed_on))


async def test_small_list_comes_as_one():
    parts: list[list[Pod]] = []
    found = await list_objects(ApiServer(OBJECTS_IN_A_STEP), POD, on_part=parts.append)
    assert (len(found.objects), found.passed_on, parts) == (OBJECTS_IN_A_STEP, 0, [])


@pytest.mark.parametrize(
    ("padding", "limit"),
    [
        pytest.param(0, LARGEST_PAGE, id="small pods"),
        pytest.param(4000, PAGE_BYTES // 4100, id="pods of 4 KB"),
        pytest.param(40_000, PAGE_SIZE, id="pods of 40 KB"),
    ],
)
async def test_size_of_a_page_is_chosen_by_the_bytes_of_the_one_before(padding: int, limit: int):
    server = ApiServer(PAGE_SIZE + 1, padding=padding)
    await list_objects(server, POD)
    first, second = (int(params["limit"]) for params in server.asked)
    assert first == PAGE_SIZE
    assert second == pytest.approx(limit, rel=0.05)


async def test_next_page_is_asked_for_before_the_last_one_is_passed_on():
    server = ApiServer(3 * OBJECTS_IN_A_STEP)
    await list_objects(server, POD, page_size=2 * OBJECTS_IN_A_STEP, on_part=server.take)
    second = server.history.index("request", 1)
    assert second < server.history.index(f"p{OBJECTS_IN_A_STEP}")


async def test_list_whose_pages_expire_is_passed_on_from_its_first_object_again():
    server = ApiServer(3 * OBJECTS_IN_A_STEP)
    server.fails_after = 1
    parts: list[list[Pod]] = []
    found = await list_objects(server, POD, page_size=2 * OBJECTS_IN_A_STEP, on_part=parts.append)
    assert [part[0].metadata.name for part in parts] == ["p0", "p0", f"p{OBJECTS_IN_A_STEP}"]
    assert (len(found.objects), found.passed_on) == (len(server.pods), 2 * OBJECTS_IN_A_STEP)


async def test_no_request_outlives_a_list_that_failed():
    server = ApiServer(3 * OBJECTS_IN_A_STEP)

    def refuse(_: list[Pod]) -> None:
        raise TemporaryError("no room")

    with pytest.raises(TemporaryError, match="no room"):
        await list_objects(server, POD, page_size=2 * OBJECTS_IN_A_STEP, on_part=refuse)
    assert [task for task in asyncio.all_tasks() if "list" in task.get_name()] == []
