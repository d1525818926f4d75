"""Sessions: one verified connection after the other, whatever NATS does."""

import asyncio
from contextlib import aclosing

import pytest
from structlog.testing import capture_logs

from berth.bus.interface import (
    BusLostError,
    BusRefusedError,
    MissingError,
    Session,
    StoreFullError,
    UnansweredError,
    Unstored,
)
from berth.errors import BerthError, TemporaryError
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import (
    Refusals,
    StoreWatch,
    UndecodableReporter,
    present,
    serve_each_session,
    sessions,
)
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter
from harness.fakes.ticking_clock import TickingClock


@pytest.fixture
def process():
    return Process(name="watcher", metrics=RecordingMeter(), clock=TickingClock())


@pytest.fixture
async def time_passes(process):
    async def tick() -> None:
        while True:
            process.clock.jump(1)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    yield
    ticking.cancel()


def condition(process: Process):
    return process.health.condition("nats")


async def until(holds) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - looks at what the code under test says of itself
            await asyncio.sleep(0)


async def test_a_watcher_creates_missing_streams_and_gets_a_session(process, time_passes):
    bus = MemoryBus()
    async with aclosing(sessions(bus, name="w", process=process, apply_when_missing=True)) as each:
        session = await anext(each)
        assert session.bus_id == bus.bus_id() != ""
        assert process.health.is_ready


async def test_others_wait_for_whoever_applies_and_say_so(process, time_passes):
    bus = MemoryBus()
    with capture_logs() as logs:
        await wait_for_whoever_applies(bus, process)
    assert [line["event"].partition(":")[0] for line in logs[-2:]] == [
        "waiting for a watcher or `berth bus apply`",
        "NATS is there, with all streams and buckets",
    ]


async def wait_for_whoever_applies(bus: MemoryBus, process: Process) -> None:
    async with aclosing(sessions(bus, name="s", process=process)) as each:
        first = asyncio.create_task(anext(each))
        await until(lambda: "stream" in condition(process).sentence)
        assert condition(process).sentence.startswith("waiting for a watcher or `berth bus apply`: ")
        assert not process.health.is_ready
        bus.apply()
        assert (await first).bus_id == bus.bus_id()


async def test_a_server_that_is_away_is_waited_for_by_name(process, time_passes):
    bus = MemoryBus(name="nats://n:4222")
    bus.apply()
    bus.stop()
    async with aclosing(sessions(bus, name="s", process=process)) as each:
        first = asyncio.create_task(anext(each))
        await until(lambda: process.metrics.value("berth_bus_waits_total", cause="unreachable") > 3)
        assert "nats://n:4222" in process.health.summary()
        bus.start()
        await first


async def test_statistics_on_nats_have_no_password_that_a_condition_names():
    bus, process = MemoryBus(), Process(name="watcher", metrics=RecordingMeter(), clock=TickingClock())
    bus.apply()
    session = await bus.connect(name="w")
    process.health.condition("api").waiting("reading the kubeconfig: token: no https://admin:secret@10.0.0.1\x1b[2J")
    async with present(session, process):
        (own,) = await session.services()
    assert own.stats["readiness"] == "not ready: reading the kubeconfig: token: no https://***@10.0.0.1\\x1b[2J"


async def test_a_lost_session_is_followed_by_a_new_one_and_the_old_one_is_closed(process):
    bus = MemoryBus()
    bus.apply()
    seen = []
    async for session in sessions(bus, name="s", process=process):
        seen.append(session)
        assert process.health.is_ready
        if len(seen) == 3:
            process.stopping.set()
        process.clock.jump(5)
        bus.cut(session)
    assert len({id(session) for session in seen}) == 3
    assert all(session.lost.is_set() for session in seen)
    assert process.metrics.value("berth_bus_sessions_total") == 3


async def test_a_store_that_was_lost_gives_a_session_with_the_new_bus_id(process, time_passes):
    bus = MemoryBus()
    ids = []
    async for session in sessions(bus, name="w", process=process, apply_when_missing=True):
        ids.append(session.bus_id)
        if len(ids) == 2:
            break
        process.clock.jump(5)
        bus.wipe()
    assert ids[0] != ids[1] == bus.bus_id()


async def test_a_server_that_drops_everybody_is_not_stormed(process):
    bus = MemoryBus()
    bus.apply()
    each = sessions(bus, name="s", process=process)
    bus.cut(await anext(each))
    second = asyncio.create_task(anext(each))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not second.done()
    process.clock.jump(1)
    await second
    await each.aclose()


class SilentBus(MemoryBus):
    """Does not answer the first questions about its streams."""

    def __init__(self, error: BerthError) -> None:
        super().__init__()
        self.errors = [error] * 3

    def verify(self) -> None:
        if self.errors:
            raise self.errors.pop()


@pytest.mark.parametrize("error", [UnansweredError("no answer within 5 s"), TemporaryError("insufficient resources")])
async def test_a_server_that_does_not_answer_is_asked_again_on_another_client(process, time_passes, error):
    bus = SilentBus(error)
    bus.apply()
    async with aclosing(sessions(bus, name="s", process=process)) as each:
        assert (await anext(each)).bus_id == bus.bus_id()
    assert process.metrics.value("berth_bus_waits_total", cause="unreachable") == 3


class DifferentBus(MemoryBus):
    """Has something else under a declared name until somebody puts it right."""

    different = True

    def verify(self) -> None:
        if self.different:
            raise BusRefusedError("stream 'PENDING': want retention 'workqueue', got 'limits': delete it")


async def test_what_differs_is_said_once_and_looked_at_again_without_end(process, time_passes, monkeypatch):
    said = []
    monkeypatch.setattr("berth.observability.health.log.info", lambda sentence, **_: said.append(sentence))
    bus = DifferentBus()
    bus.apply()
    async with aclosing(sessions(bus, name="s", process=process, apply_when_missing=True)) as each:
        first = asyncio.create_task(anext(each))
        for _ in range(5):
            looks = process.metrics.value("berth_bus_waits_total", cause="refused")
            await until(lambda looks=looks: process.metrics.value("berth_bus_waits_total", cause="refused") > looks)
            process.clock.jump(60)
        assert said == ["stream 'PENDING': want retention 'workqueue', got 'limits': delete it"]
        assert not process.health.is_ready
        bus.different = False
        await first
        assert process.health.is_ready


async def test_every_look_is_closed_again(process, time_passes):
    bus = MemoryBus()
    async with aclosing(sessions(bus, name="s", process=process)) as each:
        first = asyncio.create_task(anext(each))
        await until(lambda: process.metrics.value("berth_bus_waits_total", cause="missing") > 20)
        assert sum(not session.lost.is_set() for session in bus.sessions) <= 1
        first.cancel()
        await asyncio.wait([first])


async def test_stopping_ends_the_waiting(process):
    bus = MemoryBus()
    bus.stop()
    process.clock.jump(1)

    async def use() -> None:
        async for _ in sessions(bus, name="s", process=process):
            pytest.fail("there is no server")

    using = asyncio.create_task(use())
    await until(lambda: not process.health.is_ready and process.health.summary() != "not ready: starting")
    process.stopping.set()
    async with asyncio.timeout(1):
        await using


@pytest.mark.parametrize("error", [BusLostError("gone"), MissingError("no stream"), ValueError("a bug")])
async def test_an_error_of_the_body_is_the_bodys(process, error):
    bus = MemoryBus()
    bus.apply()

    async def use() -> None:
        async for _ in sessions(bus, name="s", process=process):
            raise error

    with pytest.raises(type(error)):
        await use()


async def test_a_passing_failure_while_serving_begins_another_session(process, time_passes):
    bus = MemoryBus()
    bus.apply()
    serving, served, was_ready = process.health.condition("scorer", "waiting to serve"), [], []

    async def serve(session: Session) -> None:
        was_ready.append(process.health.is_ready)
        serving.ready()
        served.append(session)
        if len(served) < 3:
            raise (UnansweredError("no answer within 5 s"), BusLostError("gone"))[len(served) - 1]
        process.stopping.set()

    with capture_logs() as logs:
        await serve_each_session(bus, name="s", process=process, condition=serving, serve=serve)
    assert len({id(session) for session in served}) == 3
    assert [entry["reason"] for entry in logs if "again on another" in entry["event"]] == [
        "no answer within 5 s",
        "gone",
    ]
    assert was_ready == [False] * 3


async def test_a_bug_while_serving_is_no_reason_for_another_session(process):
    bus = MemoryBus()
    bus.apply()

    async def serve(_: Session) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await serve_each_session(
            bus, name="s", process=process, condition=process.health.condition("scorer"), serve=serve
        )


async def test_a_bus_that_stores_nothing_is_said_once_and_makes_the_service_not_ready_until_it_stores(
    process, time_passes, capsys
):
    bus = MemoryBus()
    bus.apply()
    async with aclosing(sessions(bus, name="w", process=process)) as each:
        session = await anext(each)
        assert process.metrics.value("berth_store_refusing", stream="PENDING") == 0
        bus.fill("PENDING")
        for number in range(5):
            with pytest.raises(StoreFullError):
                await session.publish(f"berth.pending.berth.default.web-{number}", b"x")
            await until(lambda: not process.health.is_ready)
        assert "NATS stores nothing in PENDING: " in process.health.summary()
        assert "insufficient storage" in process.health.summary()
        assert process.metrics.value("berth_store_refusing", stream="PENDING") == 1
        bus.fill()
        await session.publish("berth.pending.berth.default.web", b"x")
        await until(lambda: process.health.is_ready)
        assert process.metrics.value("berth_store_refusing", stream="PENDING") == 0
    assert capsys.readouterr().out.count("NATS stores nothing") == 1


class GivenUp:
    """A session whose stream stores nothing and does not answer, and what is asked of it then."""

    def __init__(self, *, answered: bool, since: float, error: Exception | None = None) -> None:
        self.lost, self.remade, self._error = asyncio.Event(), 0, error
        self._unstored = {"RANKED": Unstored(reason="no answer within 5 s", since=since, answered=answered)}

    def unstored(self):
        return self._unstored

    async def remake(self, name):
        assert name == "RANKED"
        self.remade += 1
        if self._error is not None:
            raise self._error
        self.lost.set()
        return True


@pytest.mark.parametrize(
    ("session", "remakes", "remade"),
    [
        pytest.param(GivenUp(answered=False, since=11), True, 1, id="given up"),
        pytest.param(GivenUp(answered=False, since=9), True, 0, id="perhaps only late"),
        pytest.param(GivenUp(answered=True, since=99), True, 0, id="full, and it says so"),
        pytest.param(GivenUp(answered=False, since=99), False, 0, id="not by a scorer"),
        pytest.param(
            GivenUp(answered=False, since=99, error=BusRefusedError("no right")), True, 1, id="without the right"
        ),
        pytest.param(GivenUp(answered=False, since=99, error=UnansweredError("late")), True, 4, id="every 10 s"),
    ],
)
async def test_a_watcher_makes_anew_what_the_server_has_given_up(process, session, remakes, remade):
    watching = asyncio.create_task(StoreWatch(session, process, remakes=remakes).run())
    for _ in range(36):
        await asyncio.sleep(0)
        process.clock.jump(1)
        for _ in range(5):
            await asyncio.sleep(0)
    watching.cancel()
    assert session.remade == remade


def test_what_cannot_be_decoded_is_counted_and_logged_once_for_each_subject(capsys):
    metrics = RecordingMeter()
    undecodable = UndecodableReporter(metrics)
    for subject in ("facts disks.n1", "facts disks.n1", "facts disks.n2"):
        undecodable.report(subject, "no JSON")
    assert metrics.value("berth_undecodable_total") == 3
    assert capsys.readouterr().out.count("leaving out what cannot be decoded") == 2


def test_a_refusal_is_logged_once_and_not_raised():
    refusals = Refusals("cannot look after the streams")
    with capture_logs() as logs:
        for reason in ("no right", "no right", "another limit", "no right"):
            with refusals.logged_once():
                raise BusRefusedError(reason)
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("cannot look after the streams", "no right"),
        ("cannot look after the streams", "another limit"),
    ]


@pytest.mark.parametrize("error", [UnansweredError("no answer"), StoreFullError("no room")], ids=["answer", "room"])
def test_what_may_work_the_next_time_is_neither_raised_nor_logged(error):
    with capture_logs() as logs, Refusals("cannot ask").logged_once():
        raise error
    assert logs == []


@pytest.mark.parametrize("error", [BusLostError("lost"), MissingError("gone"), ValueError("a bug")], ids=repr)
def test_what_the_next_time_cannot_help_is_raised(error):
    with pytest.raises(type(error)), Refusals("cannot ask").logged_once():
        raise error
