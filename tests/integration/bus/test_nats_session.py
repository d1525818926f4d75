"""A session on a real nats-server that is killed, restarted, paused, emptied or configured otherwise than declared."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import uvloop
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeoutError

from berth.bus import ordered
from berth.bus.connection import Connection, Subscription
from berth.bus.interface import (
    BusLostError,
    BusRefusedError,
    Endpoint,
    MissingError,
    StoredMessage,
    StoreFullError,
    TooLargeError,
    UnansweredError,
)
from berth.bus.ordered import NatsReader
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import MEBIBYTE, BusSettings, NatsCredentials, TopologySettings
from berth.bus.topology import reserved_bytes
from harness.plugins.fixtures_bus import TEST_TOPOLOGY
from harness.servers.nats_server import NatsServer, nats_server

pytestmark = pytest.mark.requires("nats-server")

PENDING = "berth.pending.berth.default.web-0"
QUICK = timedelta(seconds=0.5)
LONG = 15.0


def settings_for(server: NatsServer, **changed: object) -> BusSettings:
    return replace(BusSettings(servers=(server.address,), topology=TEST_TOPOLOGY), **changed)


@pytest.fixture
async def session(own_nats_server: NatsServer) -> AsyncIterator[NatsSession]:
    """A session on a server of its own, with the topology applied."""
    session = await NatsBus(settings_for(own_nats_server)).connect(name="test")
    await session.apply()
    yield session
    await session.close()


async def new_session(server: NatsServer) -> NatsSession:
    return await NatsBus(settings_for(server)).connect(name="again")


async def test_a_kill_of_the_server_is_known_before_a_ping_would_show_it(session, own_nats_server):
    own_nats_server.kill()
    async with asyncio.timeout(session._connection.settings.ping_interval.total_seconds()):
        await session.lost.wait()


async def test_a_write_to_a_socket_that_the_loop_has_closed_is_a_lost_connection(session, monkeypatch):
    async def closed(*_: object) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    monkeypatch.setattr(session._connection._client, "publish", closed)
    with pytest.raises(BusLostError, match="the handler is closed"):
        await session.publish(PENDING, b"{}")
    assert session.lost.is_set()


async def test_publishes_under_way_when_the_server_dies_all_end(session, own_nats_server):
    own_nats_server.pause()
    publishing = [asyncio.ensure_future(session.publish(f"{PENDING}-{n}", b"x" * 1000)) for n in range(2000)]
    await asyncio.sleep(0)
    own_nats_server.kill()
    async with asyncio.timeout(LONG):
        results = await asyncio.gather(*publishing, return_exceptions=True)
    assert {type(result) for result in results} == {BusLostError}


@pytest.mark.parametrize("part", ["data", "headers"])
async def test_a_subscription_with_a_limit_ends_at_some_bytes_until_the_limit_is_renewed(
    session, own_nats_server, monkeypatch, part
):
    renew = renewed_by_hand(monkeypatch)
    monkeypatch.setattr("berth.bus.connection.LIMIT_BYTES", 150_000)
    received: list[bytes] = []
    await session.subscribe("berth.announce.>", lambda _subject, data, _headers: received.append(data), most=1000)
    sender = Client()
    await sender.connect(own_nats_server.address)
    headers, data = ({"Junk": "x" * 60_000}, b"") if part == "headers" else (None, bytes(60_000))
    for _ in range(20):
        await sender.publish("berth.announce.berth-scorer.one", data, headers=headers)
    for _ in range(2):  # nats-py's PING overtakes what it still has to write
        await sender.flush()
    await session.state("PENDING")  # the server has sent what it will send
    renew()
    async with asyncio.timeout(LONG):
        while received[-1:] != [b"late"]:
            await sender.publish("berth.announce.berth-scorer.late", b"late")
            await asyncio.sleep(0.1)
    assert received.count(data) == 2
    await sender.close()


async def test_a_subscription_whose_limit_is_renewed_loses_nothing(session, own_nats_server, monkeypatch):
    """NATS counts over the subscription's whole life."""
    renew = renewed_by_hand(monkeypatch)
    received: list[int] = []
    await session.subscribe_stored("berth.ranked.>", lambda stored: received.append(stored.sequence), most=200)
    sender = await new_session(own_nats_server)
    for most in range(50, 2001, 50):
        for number in range(50):
            sender.publish_soon(f"berth.ranked.berth.default.web-{number}", bytes(300), on_answer=lambda _answer: None)
        await until(partial(has_at_least, received, most - 20))  # the others are on their way
        renew()
    await until(partial(has_at_least, received, 2000))
    assert received == list(range(1, 2001))
    await sender.close()


async def test_a_subscription_that_has_reached_its_limit_goes_on_when_it_is_renewed(
    session, own_nats_server, monkeypatch
):
    renew = renewed_by_hand(monkeypatch)
    received: list[bytes] = []
    await session.subscribe("berth.announce.>", lambda _subject, data, _headers: received.append(data), most=3)
    sender = await new_session(own_nats_server)
    for round_ in (b"1", b"2", b"3"):
        for _ in range(10):
            await sender.broadcast("berth.announce.berth-scorer.one", round_)
        await sender.publish(PENDING, b"{}")  # the server has read all of them
        await until(partial(has_at_least, received, 3 * int(round_)))
        renew()
        await session.state("PENDING")  # the server has the renewal
    assert received == [b"1"] * 3 + [b"2"] * 3 + [b"3"] * 3
    await sender.close()


def renewed_by_hand(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to renew the limits of all subscriptions, which no time does any more."""

    def keep(connection: Connection, subscription: Subscription) -> None:
        limited[subscription] = connection

    def renew_all() -> None:
        for subscription, connection in limited.items():
            renew(connection, subscription)

    limited: dict[Subscription, Connection] = {}
    renew = Connection._renew
    monkeypatch.setattr("berth.bus.connection.LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(Connection, "_renew", keep)
    return renew_all


def has_at_least(received: Sequence[object], count: int) -> bool:
    return len(received) >= count


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not condition():  # noqa: ASYNC110 - a connection has no event for it
            await asyncio.sleep(0.005)


async def test_a_consumer_that_is_busy_keeps_its_connection_though_large_messages_wait(session):
    """More than `max_pending` of them: the server closes the connection of a client for which so much waits."""
    for number in range(50):
        await session.publish(f"berth.pending.berth.default.web-{number}", bytes(MEBIBYTE))
    async with asyncio.timeout(4 * LONG), session.consume("PENDING", "scorer", max_unacked=1024) as deliveries:
        await session.state("PENDING")  # the server has the request
        time.sleep(1.0)  # noqa: ASYNC251 - a long cycle
        taken = set()
        async for delivery in deliveries:
            taken.add(delivery.subject)
            delivery.ack()
            if len(taken) == 50:
                break
    assert not session.lost.is_set()


async def test_consuming_and_following_end_when_the_server_dies(session, own_nats_server):
    async with (
        session.consume("PENDING", "scorer", max_unacked=4) as consumption,
        session.read_stream("DECISIONS") as following,
    ):
        waiting = [asyncio.ensure_future(anext(aiter(one))) for one in (consumption, following.batches())]
        await asyncio.sleep(0)
        own_nats_server.kill()
        async with asyncio.timeout(LONG):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [BusLostError, BusLostError]


async def test_a_server_that_stops_answering_is_detected(own_nats_server):
    settings = settings_for(own_nats_server, ping_interval=QUICK)
    session = await NatsBus(settings).connect(name="test")
    own_nats_server.pause()
    async with asyncio.timeout(LONG):
        await session.lost.wait()
    with pytest.raises(BusLostError, match="no answer"):
        await session.publish(PENDING, b"")
    await session.close()
    own_nats_server.go_on()
    await nats_py_has_closed()


async def test_a_silent_server_is_detected_with_full_buffers_too(own_nats_server):
    settings = settings_for(own_nats_server, ping_interval=QUICK)
    session = await NatsBus(settings).connect(name="test")
    await session.apply()
    own_nats_server.pause()
    publishing = [asyncio.ensure_future(session.publish(f"{PENDING}-{n}", b"x" * 500_000)) for n in range(60)]
    async with asyncio.timeout(LONG):
        results = await asyncio.gather(*publishing, return_exceptions=True)
        assert {type(result) for result in results} == {BusLostError}
        await session.close()
        own_nats_server.go_on()
        await nats_py_has_closed()


async def test_what_a_slow_server_takes_late_is_stored_in_the_order_of_the_calls(own_nats_server):
    patient = timedelta(seconds=4 * LONG)  # 50 MB take a busy machine some seconds
    session = await NatsBus(settings_for(own_nats_server, answer_timeout=patient)).connect(name="test")
    await session.apply()
    own_nats_server.pause()
    publishing = [asyncio.ensure_future(session.publish(f"{PENDING}-{n}", b"x" * 500_000)) for n in range(100)]
    await asyncio.sleep(0.1)
    assert session._connection._outbox.is_crowded
    own_nats_server.go_on()
    async with asyncio.timeout(4 * LONG):
        stored = [(await one).sequence for one in publishing]
    assert stored == list(range(1, 101))
    assert not session._connection._outbox.is_crowded
    await session.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_server_that_dies_while_much_is_being_sent_ends_every_call(own_nats_server, run):
    async def die_while_sending() -> None:
        session = await NatsBus(settings_for(own_nats_server)).connect(name="test")
        await session.apply()
        own_nats_server.pause()
        publishing = [asyncio.ensure_future(session.publish(f"{PENDING}-{n}", b"x" * 500_000)) for n in range(60)]
        await asyncio.sleep(0.1)
        own_nats_server.kill()
        async with asyncio.timeout(LONG):
            results = await asyncio.gather(*publishing, return_exceptions=True)
            await session.close()
        assert {type(result) for result in results} == {BusLostError}

    run(die_while_sending())


async def test_a_publish_without_an_answer_ends_and_leaves_the_session(own_nats_server):
    session = await NatsBus(settings_for(own_nats_server, answer_timeout=QUICK)).connect(name="test")
    await session.apply()
    own_nats_server.pause()
    with pytest.raises(UnansweredError, match=r"no answer within 0\.5 s"):
        await session.publish(PENDING, b"", message_id="u.1.1")
    own_nats_server.go_on()
    assert not session.lost.is_set()
    assert (await session.publish(PENDING, b"", message_id="u.1.1")).duplicate  # it had arrived after all
    await session.close()


async def test_a_server_that_never_sends_info_is_not_reachable():
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:  # the test may end before the client's end is read
            writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        settings = BusSettings(servers=(f"nats://127.0.0.1:{port}",), connect_timeout=QUICK)
        with pytest.raises(BusLostError, match=f"127.0.0.1:{port}"):
            await NatsBus(settings).connect(name="test")


async def test_an_unreachable_server_is_named_by_its_address():
    with pytest.raises(BusLostError, match=r"nats://127\.0\.0\.1:1 as 'test': Connection refused"):
        await NatsBus(BusSettings(servers=("nats://127.0.0.1:1",))).connect(name="test")


async def test_all_that_was_stored_is_there_after_a_kill_and_a_restart(session, own_nats_server):
    bus_id = session.bus_id
    await session.publish(PENDING, b"pod")
    await session.put("cluster", "node.a", b"1")
    own_nats_server.kill()
    own_nats_server.start()
    again = await new_session(own_nats_server)
    assert again.bus_id == bus_id
    await again.verify()
    async with asyncio.timeout(LONG), again.consume("PENDING", "scorer", max_unacked=1) as consumption:
        assert (await anext(aiter(consumption))).data == b"pod"
    assert await again.get("cluster", "node.a") is not None
    await again.close()


@pytest.mark.parametrize("bucket", ["bandwidth", "facts"])
async def test_live_data_with_a_time_to_live_is_read_as_removed_since_nobody_hears_of_its_end(session, bucket):
    await session.put(bucket, "disks.a", b"1")
    found = []
    async with asyncio.timeout(LONG), session.read_bucket(bucket) as reader:
        for node in ("a", "b"):
            await session.publish(f"$KV.{bucket}.disks.{node}", b"2", headers={"Nats-TTL": "1s"})
        async for batch in reader.batches():
            found += batch
            if found and found[-1].key == "disks.b":
                break
        assert [(entry.key, entry.data) for entry in found[-2:]] == [("disks.a", None), ("disks.b", None)]
        while await session.get(bucket, "disks.b") is not None:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.1)
        await session.put(bucket, "disks.c", b"3")
        assert [entry.key for entry in await anext(aiter(reader.batches()))] == ["disks.c"]


async def test_a_delivery_of_a_lost_session_cannot_be_acknowledged_later(session, own_nats_server):
    await session.publish(PENDING, b"pod")
    async with asyncio.timeout(LONG), session.consume("PENDING", "scorer", max_unacked=1) as consumption:
        delivery = await anext(aiter(consumption))
    own_nats_server.kill()
    own_nats_server.start()
    delivery.ack()
    again = await new_session(own_nats_server)
    assert await again.last("PENDING", PENDING) is not None
    await again.close()


async def test_a_lost_store_comes_back_with_another_bus_id(session, own_nats_server):
    bus_id = session.bus_id
    own_nats_server.lose_store()
    own_nats_server.start()
    again = await new_session(own_nats_server)
    assert again.bus_id == ""
    with pytest.raises(MissingError, match="stream not found"):
        await again.verify()
    await again.apply()
    assert again.bus_id not in ("", bus_id)
    await again.close()


async def test_two_that_apply_at_once_agree_on_the_bus_id(own_nats_server):
    one, two = await new_session(own_nats_server), await new_session(own_nats_server)
    await asyncio.gather(one.apply(), two.apply())
    assert one.bus_id == two.bus_id != ""
    await one.close()
    await two.close()


async def test_differences_are_named_with_both_values_and_applied(session, own_nats_server):
    other = NatsBus(settings_for(own_nats_server, topology=TopologySettings()))
    stranger = await other.connect(name="other")
    with pytest.raises(BusRefusedError) as caught:
        await stranger.verify()
    text = str(caught.value)
    assert "stream PENDING: duplicate_window: want 120000000000, got 1000000000" in text
    assert "consumer PENDING scorer: ack_wait: want 3000000000, got 600000000" in text
    assert "berth bus apply" in text
    await stranger.apply()
    await stranger.verify()
    await stranger.close()


async def test_decisions_may_be_kept_for_less_than_message_ids_are_remembered(session, own_nats_server):
    settings = replace(TEST_TOPOLOGY, decisions_age=timedelta(minutes=1), duplicate_window=timedelta(hours=1))
    stranger = await NatsBus(settings_for(own_nats_server, topology=settings)).connect(name="other")
    await stranger.apply()
    await stranger.verify()
    await stranger.close()


async def test_what_the_server_cannot_change_is_refused_with_its_reason(session, own_nats_server):
    in_memory = replace(TEST_TOPOLOGY, storage="memory")
    stranger = await NatsBus(settings_for(own_nats_server, topology=in_memory)).connect(name="other")
    with pytest.raises(BusRefusedError, match="storage"):
        await stranger.apply()
    await stranger.close()


async def test_three_replicas_on_one_server_are_refused(own_nats_server):
    threefold = replace(TEST_TOPOLOGY, replicas=3)
    session = await NatsBus(settings_for(own_nats_server, topology=threefold)).connect(name="test")
    with pytest.raises(BusRefusedError, match="replicas"):
        await session.apply()
    await session.close()


async def test_a_message_above_the_servers_limit_is_refused(session):
    with pytest.raises(TooLargeError, match="8388608"):
        await session.publish(PENDING, bytes(8 * 1024 * 1024 + 1))
    assert not session.lost.is_set()


async def test_a_subject_that_breaks_the_protocol_is_refused_and_the_session_stays(session):
    for subject in ("berth.pending. x", "berth.pending.\r\nPUB x 0", ""):
        with pytest.raises(BusRefusedError):
            await session.publish(subject, b"")
    with pytest.raises(BusRefusedError):
        await session.publish(PENDING, b"", headers={"a b": "c"})
    await session.publish(PENDING, b"", headers={"X-Line": "a\r\nNats-Msg-Id: forged"})
    stored = await session.last("PENDING", PENDING)
    assert stored is not None
    assert "Nats-Msg-Id" not in stored.headers
    assert not session.lost.is_set()


@pytest.mark.parametrize(
    "head",
    [
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 99\r\n\r\n",
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 999999999\r\nNats-Pending-Bytes: 1\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: x\r\n\r\n",
        b"NATS/1.0\r\n\xff\xfe: \xff\r\nno colon\r\n: empty\r\nNats-Time-Stamp: never\r\nNats-Sequence: x\r\n\r\n",
    ],
    ids=range(6),
)
async def test_malformed_headers_do_not_end_the_session(session, own_nats_server, head):
    heard = asyncio.Event()
    await session.subscribe("berth.pending.>", lambda *_: heard.set())
    await publish_raw(own_nats_server, PENDING.encode(), head, b"data")
    await session.publish(f"{PENDING}-1", b"more")
    async with asyncio.timeout(LONG):
        await heard.wait()
        found = [stored.data async for stored in session.scan("PENDING", "berth.pending.>")]
        async with session.consume("PENDING", "scorer", max_unacked=2) as consumption:
            found += [(await anext(aiter(consumption))).data for _ in range(2)]
        assert (await session.last("PENDING", PENDING)).data == b"data"
    assert found == [b"data", b"more", b"data", b"more"]
    assert not session.lost.is_set()


@pytest.mark.parametrize(
    ("subject", "head"),
    [
        (PENDING.encode(), b"xx"),
        (PENDING.encode(), b"\r\n\r\n"),
        (PENDING.encode(), b"NATS/1.0"),
        (PENDING.encode(), b"NATS/1.0 404 \xff\xfe\r\n\r\n"),
        (b"berth.pending.\xff\xfe", b"NATS/1.0\r\n\r\n"),
    ],
    ids=[
        "no version",
        "only line ends",
        "only the version",
        "a status that is not UTF-8",
        "a subject that is not UTF-8",
    ],
)
async def test_bytes_at_which_nats_py_would_stop_reading_cost_their_message_only(own_nats_server, subject, head):
    session = await NatsBus(settings_for(own_nats_server, ping_interval=QUICK)).connect(name="test")
    await session.apply()
    async with asyncio.timeout(LONG), session.read_stream("PENDING") as following:
        await publish_raw(own_nats_server, subject, head, b"data")
        await session.publish(f"{PENDING}-1", b"more")
        assert await read_from(following) == ["data", "more"]
    async with asyncio.timeout(LONG), session.read_stream("PENDING") as following:
        assert await read_from(following) == ["data", "more"]
    async with asyncio.timeout(LONG), session.consume("PENDING", "scorer", max_unacked=2) as consumption:
        assert [(await anext(aiter(consumption))).data for _ in range(2)] == [b"data", b"more"]
    assert not session.lost.is_set()
    await session.close()
    await nats_py_has_closed()


async def read_from(following) -> list[str]:
    """The first two messages."""
    found: list[str] = []
    async for batch in following.batches():
        found += [stored.data.decode() for stored in batch]
        if len(found) >= 2:
            break
    return found


async def nats_py_has_closed() -> None:
    """It closes its socket in tasks of its own, once the server has read what it has written."""
    async with asyncio.timeout(LONG):
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def publish_raw(server: NatsServer, subject: bytes, head: bytes, data: bytes) -> None:
    """Publish with headers that no client would write."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.settings.port)
    await reader.readline()
    sizes = b"%d %d" % (len(head), len(head) + len(data))
    command = b"HPUB %b %b\r\n%b%b\r\n" % (subject, sizes, head, data)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + command + b"PING\r\n")
    async with asyncio.timeout(LONG):
        while await reader.readline() != b"PONG\r\n":
            pass
        writer.close()
        await writer.wait_closed()


async def test_a_reader_reads_lost_copies_again(session):
    """A lost copy leaves a gap in the sequences."""
    async with asyncio.timeout(LONG), session.read_stream("DECISIONS") as following:
        for number in range(1, 4):
            await session.publish("berth.decision.berth.default.web", b"%d" % number)
        await arrived(following, 3)
        del following._copies[1]
        found: list[int] = []
        async for batch in following.batches():
            found += [stored.sequence for stored in batch]
            if len(found) >= 3:
                break
    assert found == [1, 2, 3]


async def test_a_reader_asks_a_replica_that_is_behind_again(session, monkeypatch):
    await session.publish("berth.decision.berth.default.web", b"1")
    pages, nothing = ordered.get_page, [([], False)]

    async def get_page(*asked: object) -> tuple[list[StoredMessage], bool]:
        return nothing.pop() if nothing else await pages(*asked)

    monkeypatch.setattr(ordered, "get_page", get_page)
    async with asyncio.timeout(LONG), session.read_stream("DECISIONS") as following:
        following._is_replicated = True
        assert [stored.sequence for stored in await anext(following.batches())] == [1]


async def test_a_reader_notices_that_the_last_copy_was_lost(own_nats_server):
    settings = settings_for(own_nats_server, reader_check=timedelta(seconds=0.2))
    session = await NatsBus(settings).connect(name="test")
    await session.apply()
    async with asyncio.timeout(LONG), session.read_stream("DECISIONS") as following:
        await session.publish("berth.decision.berth.default.web", b"1")
        await arrived(following, 1)
        following._copies.clear()
        assert [stored.sequence for stored in await anext(following.batches())] == [1]
    await session.close()


async def test_a_reader_that_is_far_behind_drops_copies_and_reads_them_again(session, monkeypatch):
    monkeypatch.setattr("berth.bus.ordered.MOST_BUFFERED", 10)
    async with asyncio.timeout(LONG), session.read_stream("DECISIONS") as following:
        await asyncio.gather(*(session.publish(f"berth.decision.berth.default.web-{n}", b"") for n in range(25)))
        found: list[int] = []
        async for batch in following.batches():
            found += [stored.sequence for stored in batch]
            if len(found) >= 25:
                break
    assert found == list(range(1, 26))


async def arrived(following: NatsReader[StoredMessage], count: int) -> None:
    """Wait until so many copies are in the reader's buffer."""
    while len(following._copies) < count:
        await following._changed.wait()
        following._changed.clear()


async def test_a_lost_copy_before_an_entry_that_is_left_out_is_read_again(session):
    async with asyncio.timeout(LONG), session.read_bucket("cluster") as following:
        await session.put("cluster", "pod.theirs", b"1")
        following.leave_out(await session.put("cluster", "pod.own", b"2"))
        await arrived(following, 2)
        following._copies.popleft()
        async for batch in following.batches():
            if "pod.theirs" in [entry.key for entry in batch]:
                break


async def test_a_reader_without_copies_reads_nothing_while_it_writes_all_that_comes(session, monkeypatch):
    pages, asked = ordered.scan_messages, []

    def scan(connection, stream, subject, after):
        asked.append(after)
        return pages(connection, stream, subject, after)

    monkeypatch.setattr(ordered, "scan_messages", scan)
    reading = session.read_bucket("bandwidth", filters=("a.>", "b.>"), every=timedelta(seconds=0.1))
    async with asyncio.timeout(LONG), reading as following:
        for number in range(20):
            following.leave_out(await session.put("bandwidth", f"{'ab'[number % 2]}.node", b"1"))
        task = asyncio.ensure_future(anext(following.batches()))
        while following.position < 20:  # noqa: ASYNC110 - a position has no event
            await asyncio.sleep(0.05)
        assert not asked
        await session.put("bandwidth", "a.other", b"2")
        assert [entry.key for entry in await task] == ["a.other"]


async def test_a_reader_without_copies_misses_nothing_that_comes_while_it_reads(session, monkeypatch):
    pages, late = ordered.scan_messages, [("a.late", b"1"), ("b.late", b"1")]

    async def scan(connection, stream, subject, after):
        async for one in pages(connection, stream, subject, after):
            yield one
        while late:
            await session.put("bandwidth", *late.pop(0))

    monkeypatch.setattr(ordered, "scan_messages", scan)
    reading = session.read_bucket("bandwidth", filters=("a.>", "b.>"), every=timedelta(seconds=0.1))
    async with asyncio.timeout(LONG), reading as following:
        await session.put("bandwidth", "b.first", b"1")
        found: list[str] = []
        async for batch in following.batches():
            found += [entry.key for entry in batch]
            if len(found) >= 3:
                break
    assert found == ["b.first", "a.late", "b.late"]


async def test_a_recreated_stream_ends_its_readers_session(session):
    await session.publish("berth.decision.berth.default.web", b"1")
    async with asyncio.timeout(LONG), session.read_stream("DECISIONS") as following:
        batches = following.batches()
        await anext(batches)
        await session._connection.request("$JS.API.STREAM.DELETE.DECISIONS")
        await session.apply()
        with pytest.raises(BusLostError, match="recreated"):
            await anext(batches)
    assert session.lost.is_set()


async def test_a_reader_asks_about_its_stream_at_once_when_it_hears_an_earlier_message(own_nats_server):
    settings = settings_for(own_nats_server, reader_check=timedelta(minutes=10))
    session = await NatsBus(settings).connect(name="test")
    await session.apply()
    last = [await session.put("cluster", "node.n1", data) for data in (b"1", b"2")][-1]
    async with asyncio.timeout(LONG), session.read_bucket("cluster") as following:
        batches = following.batches()
        await anext(batches)
        assert following.position == last
        await session._connection.request("$JS.API.STREAM.DELETE.KV_cluster")
        await session.apply()
        await session.put("cluster", "node.n1", b"3")
        with pytest.raises(BusLostError, match="recreated"):
            await anext(batches)


@pytest.mark.parametrize("gone", ["KV_cluster", "KV_bandwidth", "KV_facts", "DECISIONS"])
async def test_messages_that_name_positions_do_not_outlive_what_they_name(session, gone):
    for subject in (
        "berth.pending.berth.default.web",
        "berth.ranked.berth.default.web",
        "berth.dead.berth.default.web",
    ):
        await session.publish(subject, b"1")
    await session.publish("berth.decision.berth.default.web", b"1")
    await session.apply()
    assert [(await session.state(stream)).last_sequence for stream in STAGES] == [1, 1, 1, 1], "nothing is missing"
    await session._connection.request(f"$JS.API.STREAM.DELETE.{gone}")
    await session.apply()
    assert [(await session.state(stream)).last_sequence for stream in STAGES] == [0, 0, 0, 1]
    await session.verify()


async def test_streams_that_another_client_is_just_creating_are_left_alone(session):
    created = [(await session.state(stream)).created for stream in STAGES]
    await session._connection.request("$JS.API.STREAM.DELETE.KV_facts")
    await session.apply()
    assert [(await session.state(stream)).created for stream in STAGES] == created


async def test_a_slow_reader_of_a_large_bucket_misses_nothing(session):
    for start in range(0, 12_000, 500):
        await asyncio.gather(*(session.put("cluster", f"pod.u{start + n}", b"x" * 600) for n in range(500)))
    found = 0
    async with asyncio.timeout(30), session.read_bucket("cluster") as following:
        async for batch in following.batches():
            found += len(batch)
            await asyncio.sleep(0.01)
            if following.caught_up.is_set():
                break
    assert found == 12_000
    assert following.position == 12_000


async def test_closing_twice_at_once_is_fine(session):
    await asyncio.gather(session.close(), session.close())
    assert session.lost.is_set()


async def test_services_are_listed_by_the_service_protocol(session, own_nats_server):
    await session.register("berth-scorer", identity="host-1_a.b", version="0.1.0", stats=lambda: {"held": 3})
    client = Client()
    await client.connect(own_nats_server.address)
    listed = await client.request("$SRV.PING.berth-scorer", b"", timeout=LONG)
    stats = await client.request("$SRV.STATS.berth-scorer", b"", timeout=LONG)
    status = await client.request("berth.service.berth-scorer.host-1_a=2Eb", b"", timeout=LONG)
    await client.close()
    assert json.loads(listed.data)["metadata"]["identity"] == "host-1_a.b"
    assert json.loads(stats.data)["endpoints"][0]["data"] == {"held": 3}
    assert status.data == b'{"held":3}'


async def test_the_service_protocol_has_what_each_endpoint_was_asked_and_how_long_it_took(session, own_nats_server):
    def refuse(request: bytes) -> dict[str, str]:
        return {"error": f"no pod {request.decode()!r}"} if request else {"error": ""}

    def fail(_: bytes) -> object:
        raise ValueError("a bug")

    endpoints = [
        Endpoint(name="queue", answer=lambda _: time.sleep(0.002)),
        Endpoint(name="pod", answer=refuse, error_of=lambda answer: answer["error"]),
        Endpoint(name="broken", answer=fail),
    ]
    stats = dict[str, object]
    await session.register("berth-watcher", identity="one", version="0.1.0", stats=stats, endpoints=endpoints)
    client = Client()
    await client.connect(own_nats_server.address)
    for endpoint, request in (("", b""), (".queue", b""), (".queue", b""), (".pod", b""), (".pod", b"web-0")):
        await client.request(f"berth.service.berth-watcher.one{endpoint}", request, timeout=LONG)
    with pytest.raises(NatsTimeoutError):
        await client.request("berth.service.berth-watcher.one.broken", b"", timeout=0.2)
    asked = [await client.request("$SRV.STATS.berth-watcher", b"", timeout=LONG) for _ in range(2)]
    answers = [json.loads(each.data) for each in asked]
    await client.close()
    assert answers[0] == answers[1], "asking for the figures is not counted"
    own, queue, pod, broken = answers[0]["endpoints"]
    assert [one["num_requests"] for one in (own, queue, pod, broken)] == [1, 2, 2, 1]
    assert [one["num_errors"] for one in (own, queue, pod, broken)] == [0, 0, 1, 1]
    assert [one["last_error"] for one in (own, queue, pod, broken)] == ["", "", "no pod 'web-0'", "ValueError: a bug"]
    assert queue["processing_time"] >= 4_000_000
    assert queue["average_processing_time"] == queue["processing_time"] // 2
    assert min(one["processing_time"] for one in (own, pod, broken)) > 0


STAGES = ("PENDING", "RANKED", "DECISIONS", "dead")
PASSWORD = "secret-of-a-test"  # noqa: S105 - of a throw-away server
USERS = """
authorization { users: [
  { user: scorer, password: secret-of-a-test, permissions: {
      publish: ["$JS.API.>", "$KV.>", "berth.ranked.>", "_INBOX.>"]
      subscribe: ["_INBOX.>", "stored.berth.ranked.>"] } }
] }
"""


async def test_a_user_and_password_are_asked_for_and_used():
    with nats_server(USERS) as server:
        with pytest.raises(BusRefusedError, match=r"refuses a client without credentials: .*BERTH_NATS_USER"):
            await NatsBus(settings_for(server)).connect(name="nobody")
        wrong = NatsCredentials(user="scorer", password=PASSWORD[::-1])
        with pytest.raises(BusRefusedError, match="refuses user 'scorer': the password is wrong, or") as caught:
            await NatsBus(settings_for(server, credentials=wrong)).connect(name="wrong")
        assert PASSWORD[::-1] not in str(caught.value)
        with pytest.raises(BusRefusedError, match="refuses the token: it is wrong, or the server takes users only"):
            await NatsBus(settings_for(server, credentials=NatsCredentials(token=PASSWORD))).connect(name="token")
        right = NatsCredentials(user="scorer", password=PASSWORD)
        session = await NatsBus(settings_for(server, credentials=right)).connect(name="scorer")
        await session.apply()
        with pytest.raises(BusRefusedError, match="give this user the permission"):
            await session.publish("berth.pending.berth.default.Web-0", b"")
        for number in range(50):  # the refusal must never come after the answer to the PING that waits for it
            with pytest.raises(BusRefusedError, match="give this user the permission"):
                await session.subscribe(f"berth.pending.{number}.>", print)
        await session.subscribe_stored("berth.ranked.>", print)
        await session.publish("berth.ranked.berth.default.web-0", b"")
        await session.close()


async def test_a_user_who_may_not_read_its_replies_is_told_so_in_the_same_words_each_time():
    with nats_server(USERS) as server:
        who = NatsCredentials(user="scorer", password=PASSWORD)
        settings = settings_for(server, credentials=who, inbox_prefix="_ELSEWHERE")
        said = set()
        for _ in range(2):
            with pytest.raises(BusRefusedError, match=r"'_ELSEWHERE\.>'.*BERTH_NATS_INBOX_PREFIX") as caught:
                await NatsBus(settings).connect(name="scorer")
            said.add(str(caught.value))
        assert len(said) == 1


async def test_a_server_without_jetstream_is_told_how_to_start():
    with nats_server("jetstream: false\n") as server:
        session = await new_session(server)
        with pytest.raises(MissingError, match=f"no JetStream answers at {server.address}: start nats-server with -js"):
            await session.apply()
        await session.close()


async def test_a_server_with_too_little_room_is_told_how_much_it_takes():
    with nats_server(store_bytes=100 * MEBIBYTE) as server:
        session = await new_session(server)
        size = reserved_bytes(TEST_TOPOLOGY) // MEBIBYTE
        with pytest.raises(StoreFullError, match=f"set {size} MiB aside on a server: raise max_file_store"):
            await session.apply()
        await session.close()


async def test_settings_that_are_wrong_are_refused_all_at_once():
    settings = BusSettings(
        servers=(),
        credentials=NatsCredentials(user="a", token=PASSWORD),
        topology=TopologySettings(replicas=2, message_bytes=1),
        ping_interval=timedelta(0),
    )
    with pytest.raises(BusRefusedError) as caught:
        NatsBus(settings)
    for path in ("servers", "credentials", "topology.replicas", "topology.message_bytes", "ping_interval"):
        assert path in str(caught.value)


async def test_a_read_whose_answer_was_lost_is_repeated_and_ends_nothing(own_nats_server, monkeypatch):
    """As when a user's flood makes the server drop everybody's requests to JetStream's API."""
    settings = settings_for(own_nats_server, answer_timeout=QUICK, reader_check=timedelta(seconds=0.1))
    session = await NatsBus(settings).connect(name="reader")
    await session.apply()
    await session.put("control", "known", b"{}")
    send, dropped = session._connection.send, dict[str, int]()

    def lossy(subject: str, *arguments: object, **named: object) -> None:
        kind = ".".join(subject.split(".")[2:4])
        dropped[kind] = dropped.get(kind, 0) + 1
        if dropped[kind] > 2 or not subject.startswith("$JS.API."):
            send(subject, *arguments, **named)

    async with asyncio.timeout(60):
        monkeypatch.setattr(session._connection, "send", lossy)
        await asyncio.gather(
            *(session.state(stream) for stream in ("PENDING", "RANKED", "DECISIONS")),
            session.verify(),
            session.consumers("PENDING"),
            session.get("control", "known"),
            session.last("DECISIONS", "berth.decision.>"),
            *(drain(session.scan(stream, "berth.>")) for stream in ("PENDING", "dead")),
            drain(session.last_of_each("DECISIONS", [PENDING])),
        )
    for kind in ("STREAM.INFO", "STREAM.MSG", "CONSUMER.INFO", "CONSUMER.LIST", "CONSUMER.NAMES", "DIRECT.GET"):
        assert dropped[kind] > 2, kind
    assert not session.lost.is_set()
    await session.close()


async def test_a_reader_whose_checks_are_never_answered_goes_on(own_nats_server, monkeypatch):
    settings = settings_for(own_nats_server, answer_timeout=QUICK, reader_check=timedelta(seconds=0.1))
    session = await NatsBus(settings).connect(name="reader")
    await session.apply()
    send, checked = session._connection.send, asyncio.Event()

    def lossy(subject: str, *arguments: object, **named: object) -> None:
        if ".STREAM.INFO." in subject:
            checked.set()
        else:
            send(subject, *arguments, **named)

    async with asyncio.timeout(60), session.read_stream("RANKED") as reader:
        monkeypatch.setattr(session._connection, "send", lossy)
        batches = reader.batches()
        for number in range(5):
            reading = asyncio.ensure_future(anext(batches))
            for _ in range(4):
                checked.clear()
                await checked.wait()
            await session.publish(f"berth.ranked.berth.default.web-{number}", b"{}")
            assert [one.data for one in await reading] == [b"{}"]
    assert not session.lost.is_set()
    await session.close()


async def drain(messages: AsyncIterator[StoredMessage]) -> list[StoredMessage]:
    return [one async for one in messages]
