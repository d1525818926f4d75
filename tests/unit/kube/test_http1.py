"""HTTP/1.1 answers cut at every place, and everything that is no answer."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from berth.kube.http1 import (
    CHUNK_LINE_BYTES,
    HEAD_BYTES,
    INTERIM_ANSWERS,
    Answer,
    AnswerReader,
    BadAnswerError,
    fields,
    request,
)

BODY = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'
BOUND = (  # kube-apiserver 1.36's answer to a Binding
    b"HTTP/1.1 201 Created\r\nAudit-Id: 0f6c\r\nCache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
    b"Date: Sun, 22 Nov 2026 12:00:00 GMT\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
POD = (  # and to the GET of a pod of more than 2 KiB, which Go sends in chunks
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'8\r\n{"kind":\r\n0006;why=not\r\n"Pod"}\r\n0\r\nX-Trailer: 1\r\n\r\n'
)
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after:  1 \r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
OLD = b"HTTP/1.0 502 Bad Gateway\r\nServer: some proxy\r\n\r\n<html>until the end</html>"
LATE = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + BOUND
EMPTY = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"
NAKED = b"HTTP/1.1 200 \r\nContent-Length:0\r\nContent-Length: 0\r\n\r\n"

RECORDED = {
    BOUND: Answer(201, BODY, None, keeps=True),
    POD: Answer(200, b'{"kind":"Pod"}', None, keeps=True),
    BUSY: Answer(429, b"busy", "1", keeps=False),
    OLD: Answer(502, b"<html>until the end</html>", None, keeps=False),
    LATE: Answer(201, BODY, None, keeps=True),
    EMPTY: Answer(204, b"", None, keeps=True),
    NAKED: Answer(200, b"", None, keeps=True),
}


def read(*pieces: bytes) -> Answer | None:
    """The answer in these pieces, at the end of which the connection ends."""
    reader = AnswerReader()
    for number, piece in enumerate(pieces):
        answer = reader.feed(piece)
        if answer is not None:
            assert number == len(pieces) - 1, "it was over before"
            return answer
    return reader.end()


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [*sorted({cut % len(data) for cut in cuts} - {0}), len(data)]
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("data", RECORDED, ids=["binding", "pod", "busy", "old", "late", "empty", "naked"])
def test_answer_is_the_same_wherever_it_is_cut_in_two_and_byte_by_byte(data: bytes):
    for cut in range(1, len(data)):
        assert read(data[:cut], data[cut:]) == RECORDED[data], cut
    assert read(*(data[at : at + 1] for at in range(len(data)))) == RECORDED[data]


@given(st.sampled_from(list(RECORDED)), st.lists(st.integers(0, 10**6), max_size=12))
def test_answer_is_the_same_however_it_is_cut(data: bytes, cuts: list[int]):
    assert read(*pieces_of(data, cuts)) == RECORDED[data]


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(0, 10**6), max_size=12),
)
def test_chunks_of_any_content_become_the_body(chunks: list[bytes], cuts: list[int]):
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    assert read(*pieces_of(data, cuts)) == Answer(200, b"".join(chunks), None, keeps=True)


@pytest.mark.parametrize("data", [BOUND, POD, BUSY, LATE])
def test_answer_that_breaks_off_is_none(data: bytes):
    for end in range(len(data)):
        assert read(data[:end]) is None, end


def outcome(*pieces: bytes) -> object:
    reader = AnswerReader()
    try:
        for piece in pieces:
            answer = reader.feed(piece)
            if answer is not None:
                return answer[:3]
    except BadAnswerError:
        return BadAnswerError
    return reader.end()


MUTATED = st.builds(
    lambda data, at, new: data[: at % len(data)] + new + data[at % len(data) + len(new) :],
    st.sampled_from(list(RECORDED)),
    st.integers(0, 10**6),
    st.binary(min_size=1, max_size=3),
)


@given(st.one_of(MUTATED, st.binary(max_size=200)), st.lists(st.integers(0, 10**6), max_size=6))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", [40])
def test_bytes_of_any_kind_mean_the_same_however_they_are_cut_and_raise_nothing_else(data: bytes, cuts: list[int]):
    if data:
        assert outcome(*pieces_of(data, cuts)) == outcome(data)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/2 200 OK\r\n", id="another version"),
        pytest.param(b"HTTP/1.1 20 OK\r\n", id="no status"),
        pytest.param(b"HTTP/1.1 999 OK\r\n", id="no such status"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n", id="two lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n", id="a list of lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n", id="a negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n", id="a sign"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n", id="what int() takes"),
        pytest.param("HTTP/1.1 200 OK\r\nContent-Length: ²\r\n".encode("latin-1"), id="what isdigit() takes"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n", id="a length of many digits"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length:\r\n", id="no length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n", id="both framings"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n", id="compressed chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", id="twice"),
        pytest.param(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n", id="chunks of HTTP/1.0"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n", id="compressed"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n", id="a space before the colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n", id="a folded line"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 1\r\n", id="a bare line feed"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: \0\r\n", id="a null"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\n", id="another protocol from here on"),
    ],
)
def test_head_that_is_none_or_can_be_read_in_two_ways_is_an_error(head: bytes):
    with pytest.raises(BadAnswerError):
        AnswerReader().feed(head + b"\r\n")


@pytest.mark.parametrize(
    "chunks",
    [
        b"x\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b"\r\n",
        b"1" * 13 + b"\r\n",
        b"1\r\nab\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
        b"1 1\r\n",
    ],
)
def test_chunk_of_another_form_is_an_error(chunks: bytes):
    with pytest.raises(BadAnswerError):
        AnswerReader().feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"A: " + b"b" * 1000 + b"\r\n", id="the head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: ", b"b" * 1000, id="one line of it"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", b"b" * 1000, id="a body without an end"),
        pytest.param(CHUNKED, b"a\r\n0123456789\r\n", id="small chunks"),
        pytest.param(CHUNKED, b"1;" + b"x" * 1000, id="the line of a chunk"),
        pytest.param(CHUNKED + b"0\r\n", b"A: b\r\n", id="the trailer"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="answers before the answer"),
    ],
)
def test_answer_that_does_not_end_is_given_up_at_a_limit(begin: bytes, piece: bytes):
    reader, fed = AnswerReader(), len(begin)
    reader.expect(100_000)
    reader.feed(begin)
    with suppress(BadAnswerError):
        while fed < 10**6:
            reader.feed(piece)
            fed += len(piece)
    assert fed <= 100_000 + HEAD_BYTES + CHUNK_LINE_BYTES + INTERIM_ANSWERS


@pytest.mark.parametrize("head", [b"Content-Length: 11\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nb\r\n"])
def test_body_above_the_limit_is_given_up_before_it_is_read(head: bytes):
    reader = AnswerReader()
    reader.expect(10)
    with pytest.raises(BadAnswerError, match="want at most 10 bytes in an answer, got 11"):
        reader.feed(b"HTTP/1.1 200 OK\r\n" + head)


def test_connection_is_not_kept_when_more_came_than_was_asked_for():
    answer = AnswerReader().feed(BOUND + b"HTTP/1.1 200 OK\r\n")
    assert answer == Answer(201, BODY, None, keeps=False)


def test_reader_takes_one_answer_after_the_other():
    reader = AnswerReader()
    for data in (BOUND, POD, LATE):
        reader.expect(1000)
        assert reader.is_empty
        assert reader.feed(data[:30]) is None
        assert not reader.is_empty
        assert reader.feed(data[30:]) == RECORDED[data]


def test_request_is_one_piece_with_the_length_of_its_body():
    shared = fields({"Host": "api", "Authorization": "Bearer t"})
    assert request("POST", "/x?a=b", shared, b"{}", "application/json") == (
        b"POST /x?a=b HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer t\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert request("GET", "/x", shared, None, "") == b"GET /x HTTP/1.1\r\n" + shared + b"\r\n"
    assert request("DELETE", "/x", shared, None, "").endswith(b"\r\nContent-Length: 0\r\n\r\n")


@given(st.text(min_size=1, max_size=20))
def test_nothing_that_is_asked_for_can_end_the_line_or_the_header(text: str):
    for made in (lambda: request("GET", f"/{text}", b"", None, ""), lambda: fields({"Authorization": text})):
        try:
            data = made()
        except ValueError:
            continue
        assert data.count(b"\r\n") + data.count(b"\n") == 2 * data.count(b"\r\n")
        assert text.encode() in data
        assert all(33 <= ord(each) <= 126 or each in " \t" for each in text)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nHost: b", "/a\n", "/ü", ""])
def test_target_with_other_than_visible_ascii_is_refused(path: str):
    with pytest.raises(ValueError, match="want visible characters"):
        request("GET", path, b"", None, "")
