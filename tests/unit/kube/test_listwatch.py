"""Lines of a WATCH and pages of a LIST become events."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.kinds import POD
from berth.api.trimming import LAST_APPLIED
from berth.errors import DecodeError
from berth.kube import listwatch
from berth.kube.http1 import StatusObject
from berth.kube.listwatch import Current, Deleted, LineSplitter, ObjectDecoder, Undecodable, Upserted

DECODER = ObjectDecoder(POD)


def _line(kind: str, thing: object) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode()


def _pod(**spec: object) -> dict:
    metadata = {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7", "managedFields": [{"x": 1}]}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


@given(lines=st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)), cuts=st.lists(st.integers(0, 200)))
def test_lines_are_the_same_however_the_bytes_are_cut(lines: list[bytes], cuts: list[int]):
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    splitter = LineSplitter()
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert [line for chunk in chunks for line in splitter.feed(chunk)] == lines


def test_line_without_its_end_is_not_given_out():
    splitter = LineSplitter()
    assert splitter.feed(b'{"type": "ADD') == []


def test_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listwatch, "MOST_LINE_BYTES", 8)
    splitter = LineSplitter()
    assert splitter.feed(b"12345678\n12345\n123") == [b"12345678", b"12345"]
    assert splitter.feed(b"45678\n") == [b"12345678"]
    assert splitter.feed(b"12345678") == []
    with pytest.raises(DecodeError, match="want lines of at most 8 bytes, got more"):
        splitter.feed(b"9")


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_pod_that_is_added_or_modified_is_upserted_trimmed(kind: str):
    pod = _pod(nodeName="n1")
    pod["metadata"]["annotations"] = {LAST_APPLIED: "{}"}
    event = DECODER.event(_line(kind, pod))
    assert isinstance(event, Upserted)
    assert (event.object.key, event.object.spec.node_name) == ("shop/web", "n1")
    assert event.object.metadata.annotations is None


def test_deleted_pod_comes_with_the_version_of_its_deletion():
    event = DECODER.event(_line("DELETED", _pod()))
    assert isinstance(event, Deleted)
    assert event.object.metadata.resource_version == "7"


def test_bookmark_says_up_to_where_the_kind_is_complete():
    bookmark = {
        "kind": "Pod",
        "metadata": {"resourceVersion": "12", "creationTimestamp": None},
        "spec": {"containers": None},
    }
    assert DECODER.event(_line("BOOKMARK", bookmark)) == Current(kind="pod", resource_version="12")


def test_error_event_gives_the_status_that_it_carries():
    status = {"kind": "Status", "message": "too old resource version", "reason": "Expired", "code": 410}
    expected = StatusObject(message="too old resource version", reason="Expired", code=410)
    assert DECODER.event(_line("ERROR", status)) == expected


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_pod_of_another_shape_is_named_and_does_not_stop_the_reading(kind: str):
    event = DECODER.event(_line(kind, _pod(priority="high")))
    assert isinstance(event, Undecodable)
    assert (event.namespace, event.name, event.uid, event.resource_version) == ("shop", "web", "u1", "7")
    assert "priority" in event.reason
    assert event.deleted is (kind == "DELETED")


def test_object_without_readable_metadata_is_undecodable_with_empty_names():
    event = DECODER.event(_line("ADDED", {"metadata": {"name": 5, "uid": "u1"}}))
    assert isinstance(event, Undecodable)
    assert (event.name, event.uid) == ("", "u1")
    assert DECODER.event(_line("ADDED", [])) == Undecodable(
        kind="pod",
        namespace="",
        name="",
        uid="",
        resource_version="",
        reason="Expected `object`, got `array`",
        raw=b"[]",
    )


def test_text_that_is_no_utf8_is_undecodable():
    assert isinstance(DECODER.one(b'{"metadata": {"name": "\xff"}}'), Undecodable)


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"type": "MELTED", "object": {}}', b"\xff"], ids=repr)
def test_line_that_is_no_watch_event_is_refused(line: bytes):
    with pytest.raises(DecodeError, match="decoding a watch event of 'pod'"):
        DECODER.event(line)


def test_page_keeps_good_objects_apart_from_bad_ones():
    body = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [_pod(), _pod(priority="high")]}
    page = DECODER.page(json.dumps(body).encode())
    objects, undecodable = DECODER.several(page.items)
    assert [pod.key for pod in objects] == ["shop/web"]
    assert [bad.name for bad in undecodable] == ["web"]
    assert (page.resource_version, page.continue_token) == ("9", "more")


def test_page_without_items_is_empty():
    page = DECODER.page(b'{"metadata": {"resourceVersion": "9"}, "items": null}')
    assert (page.items, page.continue_token) == ([], "")


def test_page_that_is_no_list_is_refused():
    with pytest.raises(DecodeError, match="decoding a list of 'pod'"):
        DECODER.page(b"<html>")
