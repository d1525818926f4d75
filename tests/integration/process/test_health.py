"""Readiness: named conditions with sentences, over HTTP, and the ready file."""

import asyncio
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from berth.exits import Exit, exit_for
from berth.observability.health import (
    MOST_CONNECTIONS,
    ONCE,
    Health,
    HealthPortError,
    Progress,
    WaitReporter,
    health_server,
    write_when_working,
)
from berth.observability.metrics import PrometheusMeter
from berth.settings.settings import HealthSettings
from harness.fakes.ticking_clock import TickingClock


@pytest.fixture
async def asked():
    """Health over HTTP: asking for a path gives status and text."""
    health, meter = Health(), PrometheusMeter()
    async with (
        health_server(HealthSettings(host="127.0.0.1"), health, meter) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):

        async def ask(path: str) -> tuple[int, str]:
            async with client.get(path) as response:
                return response.status, await response.text()

        ask.health, ask.meter, ask.port = health, meter, port
        yield ask


async def test_readyz_says_what_is_waited_for(asked):
    asked.health.condition("nats").waiting("waiting for NATS at nats://n:4222: connection refused")
    assert await asked("/readyz") == (503, "not ready: waiting for NATS at nats://n:4222: connection refused")


async def test_a_process_that_has_not_begun_is_alive_and_not_ready(asked):
    assert await asked("/readyz") == (503, "not ready: starting")
    assert await asked("/livez") == (200, "ok")


async def test_readyz_verbose_lists_every_condition(asked):
    asked.health.condition("nats").ready()
    asked.health.condition("leadership").waiting("waiting for the API server")
    status, text = await asked("/readyz?verbose")
    assert status == 503
    assert text == ("[+]nats ok\n[-]leadership waiting for the API server\nnot ready: waiting for the API server\n")


async def test_a_condition_is_one_line_without_passwords(asked):
    asked.health.condition("nats").waiting("waiting for nats://a:secret@n:4222: refused\n[+]nats ok")
    line = "waiting for nats://***@n:4222: refused\\n[+]nats ok"
    assert await asked("/readyz") == (503, f"not ready: {line}")
    assert await asked("/readyz?verbose") == (503, f"[-]nats {line}\nnot ready: {line}\n")


async def test_a_standby_is_ready(asked):
    asked.health.condition("leadership").standby("standing by: 'a' leads")
    assert await asked("/readyz") == (200, "ok")
    assert "standing by: 'a' leads" in (await asked("/readyz?verbose"))[1]


async def test_healthz_is_livez_under_its_older_name(asked):
    assert await asked("/healthz") == (200, "ok")


async def test_configz_is_empty_without_a_configuration(asked):
    assert await asked("/configz") == (200, '{"componentconfig":{}}')


async def test_metrics_are_served_in_prometheus_text_format(asked):
    asked.meter.count("scheduler_schedule_attempts_total", result="scheduled", profile="berth")
    status, text = await asked("/metrics")
    assert status == 200
    assert 'scheduler_schedule_attempts_total{profile="berth",result="scheduled"} 1.0' in text


async def test_a_port_that_is_taken_is_wrong_usage_said_in_a_sentence(asked):
    with pytest.raises(
        HealthPortError, match=r"health.port \d+ of '127.0.0.1': .*choose another with --health-port"
    ) as caught:
        async with health_server(HealthSettings(host="127.0.0.1", port=asked.port), Health(), PrometheusMeter()):
            pass
    assert exit_for(caught.value) is Exit.USAGE


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/9.9.9\r\n\r\n", id="version"),
        pytest.param(b"G\x00T / HTTP/1.1\r\n\r\n", id="method"),
        pytest.param(b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n", id="header"),
        pytest.param(b"GET http://[ HTTP/1.1\r\nHost: n\r\n\r\n", id="URL"),
        pytest.param(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", id="length"),
        pytest.param(b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", id="long line"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS"),
    ],
)
async def test_a_malformed_request_is_answered_and_not_logged(asked, caplog: pytest.LogCaptureFixture, sent: bytes):
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    writer.write(sent)
    assert (await reader.read()).startswith(b"HTTP/1.0 400")
    writer.close()
    assert caplog.records == []


async def test_half_open_requests_silence_nobody(asked):
    waiting = [await asyncio.open_connection("127.0.0.1", asked.port) for _ in range(3 * MOST_CONNECTIONS)]
    for _, writer in waiting:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: a\r\n")
    assert await asked("/livez") == (200, "ok")
    for reader, _ in waiting[: MOST_CONNECTIONS + 1]:
        async with asyncio.timeout(60):  # closed, since others came after it
            assert await asyncio.gather(reader.read(), return_exceptions=True)
    for _, writer in waiting:
        writer.close()


async def test_connection_that_finishes_no_request_ends_at_its_deadline(asked, monkeypatch):
    monkeypatch.setattr("berth.observability.health.CONNECTION_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    writer.write(b"GET /readyz HTTP/1.1\r\n")
    async with asyncio.timeout(60):
        (answer,) = await asyncio.gather(reader.read(), return_exceptions=True)
    assert answer == b"" or isinstance(answer, ConnectionError)
    writer.close()


async def test_connection_is_for_one_request(asked):
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
    async with asyncio.timeout(60):
        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 1
    writer.close()


def test_only_this_machine_reaches_the_port_unless_a_setting_says_otherwise():
    assert HealthSettings().host == "127.0.0.1"


def test_the_ready_file_is_written_once_everything_works(tmp_path: Path):
    health, path = Health(), tmp_path / "ready"
    path.write_text("of an earlier run")
    write_when_working(health, path)
    assert not path.exists()
    nats, leadership = health.condition("nats"), health.condition("leadership")
    nats.ready()
    leadership.standby("standing by")
    assert not path.exists()
    leadership.ready()
    assert path.read_text() == "ready\n"
    path.unlink()
    nats.waiting("again")
    nats.ready()
    assert list(tmp_path.iterdir()) == []


def test_same_wait_is_logged_every_ten_seconds_and_a_new_one_at_once(monkeypatch):
    said, clock = [], TickingClock()
    monkeypatch.setattr("berth.observability.health.log.info", lambda sentence, **_: said.append(sentence))
    waiting = WaitReporter(Health().condition("nats"), clock)
    for _ in range(11):
        waiting.waiting("waiting for NATS")
        clock.jump(1)
    assert said == ["waiting for NATS"] * 2
    waiting.waiting("refused", every=ONCE)
    clock.jump(1000)
    waiting.waiting("refused", every=ONCE)
    assert said[2:] == ["refused"]


# Progress.


@pytest.fixture
def health():
    return Health()


@pytest.fixture
def progress(health):
    clock = TickingClock()
    made = Progress(health, clock, limit=timedelta(seconds=30))
    return made, clock


def three_wait() -> str:
    return "3 messages wait"


def test_leader_that_begins_nothing_for_too_long_is_not_ready_and_gives_up(health, progress):
    made, clock = progress
    health.condition("leadership").ready("leading as binder 7")
    assert made.check(three_wait, waiting=3, begun=7) is None
    assert health.is_ready
    clock.jump(30)
    assert made.check(three_wait, waiting=3, begun=7) == "3 messages wait: none was begun for 30 s"
    assert health.summary() == "not ready: 3 messages wait: none was begun for 30 s"


def test_leader_that_begins_some_of_the_work_or_has_none_goes_on(health, progress):
    made, clock = progress
    for begun, waiting in ((1, 3), (2, 3), (2, 0), (2, 3), (3, 3)):
        assert made.check(three_wait, waiting=waiting, begun=begun) is None
        clock.jump(20)
    assert health.condition("progress").is_ready


def test_next_leadership_is_not_blamed_for_the_last(health, progress):
    made, clock = progress
    made.check(three_wait, waiting=3, begun=0)
    clock.jump(60)
    made.begin()
    assert made.check(three_wait, waiting=3, begun=0) is None


def stalled(made, clock) -> None:
    made.check(three_wait, waiting=3, begun=0)
    clock.jump(30)
    made.check(three_wait, waiting=3, begun=0)


def test_leader_is_ready_again_once_it_has_begun_something(health, progress):
    made, clock = progress
    health.condition("leadership").ready("leading as binder 8")
    stalled(made, clock)
    made.begin()
    made.check(three_wait, waiting=3, begun=0)
    assert not health.is_ready
    made.check(three_wait, waiting=3, begun=1)
    assert health.is_ready


def test_standby_is_ready_whatever_its_last_leadership_was(health, progress):
    made, clock = progress
    health.condition("leadership").ready("leading as binder 7")
    stalled(made, clock)
    health.condition("leadership").waiting("leads no longer")
    assert not health.is_ready
    health.condition("leadership").standby("standing by")
    assert health.is_ready
