"""Logs: JSON for machines, text for people, everything through one door."""

import io
import json
import logging
import re
import warnings

import pytest
import structlog

from berth.observability import logging as service_logging
from berth.settings.settings import LogSettings


@pytest.fixture
def said():
    """Configure logging onto a buffer; afterwards everything is as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def configure(*, identity: str = "host_1", **settings) -> io.StringIO:
        stream = io.StringIO()
        service_logging.configure(LogSettings(**settings), service="scorer", identity=identity, stream=stream)
        return stream

    yield configure
    root.handlers[:], root.level = before
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def test_a_line_is_one_json_object_with_time_level_message_and_keys(said):
    stream = said(format="json")
    structlog.get_logger().info("pod bound", pod="default/web-0", uid="u1", attempt="u1.3.1", trace_id="ab")
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "msg": "pod bound",
        "service": "scorer",
        "identity": "host_1",
        "pod": "default/web-0",
        "uid": "u1",
        "attempt": "u1.3.1",
        "trace_id": "ab",
    }


@pytest.mark.parametrize(("no_color", "is_coloured"), [(None, True), ("", True), ("1", False)])
def test_text_has_colours_at_a_terminal_unless_no_color_is_set(said, monkeypatch, no_color, is_coloured):
    monkeypatch.setattr(service_logging, "is_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    stream = said(format="text")
    structlog.get_logger().info("pod bound", pod="default/web-0")
    assert ("\x1b[" in stream.getvalue()) is is_coloured
    assert "pod bound" in stream.getvalue()


def test_libraries_and_warnings_speak_through_the_same_door(said):
    stream = said(format="json")
    logging.getLogger("some.library").warning("slow: %d ms", 7)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[0]["msg"] == "slow: 7 ms"
    assert "old thing" in lines[1]["msg"]
    assert {line["service"] for line in lines} == {"scorer"}


def test_what_has_no_form_in_json_is_written_as_it_reads(said):
    stream = said(format="json")
    structlog.get_logger().info("odd", path=object, error=ValueError("want 1"))
    assert json.loads(stream.getvalue())["error"] == "want 1"


def test_text_is_for_people(said):
    stream = said(format="text")
    structlog.get_logger().info("pod bound", pod="default/web-0")
    text = stream.getvalue()
    assert "pod bound" in text
    assert "pod=default/web-0" in text
    assert not text.startswith("{")


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        pytest.param("vm_08d7c1a2-0000-4000-8000-000000000001_scorer-2", "scorer-2", id="of berth up"),
        pytest.param("vm_08d7c1a2-0000-4000-8000-000000000001", "scorer vm", id="of a service on its own"),
        pytest.param("pod-7f", "scorer pod-7f", id="given by the user"),
    ],
)
def test_text_names_the_process(said, identity, shown):
    stream = said(format="text", identity=identity)
    structlog.get_logger().info("pod bound")
    assert re.search(f"service='?{shown}'?\n", re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()))


EVIL = "a\x1b[2J\x9b1m\u202eb\nforged: line\r"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_holds_what_a_terminal_obeys(said, form):
    stream = said(format=form)
    log = structlog.get_logger()
    log.info(EVIL, pod=EVIL, nodes=[EVIL], error=ValueError(EVIL))
    logging.getLogger("some.library").warning("failed: %s", EVIL)
    log.error("crashed", reason=EVIL, exc_info=ValueError(EVIL))
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    if form == "json":
        assert [json.loads(line)["msg"] for line in text.splitlines()][:2] == [EVIL, f"failed: {EVIL}"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_password_in_a_url_is_not_logged(said, form):
    stream = said(format=form)
    structlog.get_logger().info(
        "connecting to nats://who:canary@host:4222", url="https://canary@host", error=OSError("x://a:canary@b")
    )
    assert "canary" not in stream.getvalue()
    assert stream.getvalue().count("***@") == 3


def test_repeats_of_a_warning_are_sparse_and_counted(said, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(service_logging.time, "monotonic", lambda: now[0])
    stream = said(format="json")
    for number in range(1000):
        structlog.get_logger().warning("a message becomes a dead letter", subject=f"berth.ranked.{number}")
        structlog.get_logger().info("pod bound", pod=f"default/{number}")
    structlog.get_logger().warning("another")
    now[0] += 1
    structlog.get_logger().warning("a message becomes a dead letter", subject="last")

    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    dead = [line for line in found if line["msg"] == "a message becomes a dead letter"]
    assert len(dead) == service_logging.WARNINGS_AT_ONCE + 1
    assert (dead[-1]["subject"], dead[-1]["left_out"]) == ("last", 950)
    assert sum(line["msg"] == "pod bound" for line in found) == 1000
    assert sum(line["msg"] == "another" for line in found) == 1
