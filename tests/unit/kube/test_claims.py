"""Claims that no JSON patch can change: they are read and written as protobuf, with nothing else touched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.devices import ResourceClaim
from berth.kube import claims
from berth.kube.claims import PROTOBUF, add_finalizer, reserve, unreserve
from berth.kube.http1 import Response
from harness.builders.objects import a_pod

REFUSED = Response(status=422, body=b'{"message": "spec: Invalid value: field is immutable"}', retry_after=None)
OTHER_UID = Response(
    status=422, body=b'{"message": "metadata.uid: Invalid value: field is immutable"}', retry_after=None
)

TOO_MANY = Response(
    status=422, body=b'{"message": "status.reservedFor: Too many: 257: must have at most 256 items"}', retry_after=None
)


def field(number: int, value: bytes) -> bytes:
    return claims._field(number, value)


def user(name: str, uid: str) -> bytes:
    return field(2, field(3, b"pods") + field(4, name.encode()) + field(5, uid.encode()))


METADATA = field(1, field(1, b"c") + field(5, b"uid-c") + field(6, b"7"))
SPEC = field(2, b"\x08\x96\x01" + field(4, b"odd  bytes") + b"\x0d\x00\x00\x80\x3f")
STATUS = field(3, field(1, b"x" * 300) + user("one", "uid-one") + user("two", "uid-two"))
RAW = METADATA + SPEC + STATUS
KIND = field(1, field(1, b"resource.k8s.io/v1") + field(2, b"ResourceClaim"))


class Client:
    """An API server that refuses JSON, and has one claim as protobuf."""

    def __init__(self, refusal: Response = REFUSED) -> None:
        self.refusal = refusal
        self.written: list[tuple[str, bytes]] = []

    async def request(self, method: str, path: str, *, body: bytes = b"", **parts: Any) -> Response:
        if method == "PATCH":
            return self.refusal
        if method == "GET":
            assert parts["accept"] == PROTOBUF
            return Response(status=200, body=b"k8s\0" + KIND + field(2, RAW), retry_after=None)
        assert (method, parts["content_type"]) == ("PUT", PROTOBUF)
        self.written.append((path.rpartition("/resourceclaims/")[2], body))
        return Response(status=200, body=b"{}", retry_after=None)


def claim(version: str = "7", *users: str) -> ResourceClaim:
    reserved = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in users]
    metadata = {"name": "c", "namespace": "default", "uid": "uid-c", "resourceVersion": version}
    return msgspec.convert({"metadata": metadata, "status": {"reservedFor": reserved}}, ResourceClaim)


async def test_new_fields_are_appended():
    client = Client()
    assert (await add_finalizer(client, "default", "c", "uid-c")).succeeded
    finalizer = field(1, field(14, b"resource.kubernetes.io/delete-protection"))
    assert client.written == [("c", b"k8s\0" + KIND + field(2, RAW + finalizer))]


async def test_a_reservation_is_appended_to_the_status():
    client = Client()
    assert (await reserve(client, claim("7", "one", "two"), a_pod("web"))).succeeded
    assert client.written == [("c/status", b"k8s\0" + KIND + field(2, RAW + field(3, user("web", "uid-web"))))]


async def test_a_reservation_is_taken_out_and_all_else_stays():
    client = Client()
    assert (await unreserve(client, claim("7", "one", "two"), "uid-one")).succeeded
    left = METADATA + SPEC + field(3, field(1, b"x" * 300) + user("two", "uid-two"))
    assert client.written == [("c/status", b"k8s\0" + KIND + field(2, left))]


@pytest.mark.parametrize(
    ("uid", "version"), [pytest.param("uid-x", None, id="another claim"), pytest.param("", "6", id="another version")]
)
async def test_what_has_changed_is_not_written(uid, version):
    client = Client()
    if version is None:
        answer = await add_finalizer(client, "default", "c", uid)
    else:
        answer = await reserve(client, claim(version), a_pod("web"))
    assert (answer.status, client.written) == (409, [])


async def test_another_claim_of_the_name_is_no_reason_to_write():
    client = Client(OTHER_UID)
    assert (await add_finalizer(client, "default", "c", "uid-c")) is OTHER_UID
    assert client.written == []


async def test_a_reservation_too_many_is_no_reason_to_write_either():
    client = Client(TOO_MANY)
    assert (await reserve(client, claim("7", "one"), a_pod("web"))) is TOO_MANY
    assert client.written == []
