"""A hostile client of each account outside berth's own: whatever it asks with whatever reply, no stream changes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from berth.bus.accounts import DOMAIN, OWN, nats_conf, users
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings, NatsCredentials, TopologySettings
from berth.bus.topology import declared_streams
from harness.servers.bus_users import USERS, inbox_of, password_of
from harness.servers.nats_server import NatsServer, nats_server

pytestmark = pytest.mark.requires("nats-server")

OUTSIDE = tuple(user.name for user in users() if user.account != OWN)
ADMIN = "{ user: admin, password: admin-of-a-test }"
STREAMS = tuple(stream.name for stream in declared_streams(TopologySettings()))
OWN_TO_WRITE = {
    "scorer": ("berth.ranked.", "berth.dead.", "$KV.tries."),
    "collector": ("$KV.bandwidth.",),
    "people": ("$KV.facts.",),
}
"""What each may change, by prefix."""
FOREIGN_REPLIES = (
    *("berth.pending.berth.default.evil", "berth.ranked.berth.default.evil", "berth.decision.berth.default.evil"),
    *(
        "$KV.cluster.node.evil",
        "$KV.control.term.binder",
        "$KV.control.bus.id",
        "$KV.bandwidth.q.evil",
        "$KV.facts.s.evil",
    ),
    *(f"$JS.API.STREAM.{verb}.{name}" for verb in ("PURGE", "DELETE") for name in STREAMS),
    *("$JS.API.CONSUMER.DELETE.PENDING.scorer", "$JS.API.CONSUMER.PAUSE.PENDING.scorer"),
    *("$SRV.PING", "berth.service.berth-watcher.one", "stored.berth.ranked.berth.default.evil"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    passwords = "".join(f'{user}_PASSWORD: "{password_of(user)}"\n' for user in USERS)
    with nats_server(passwords + nats_conf().replace("users: [", f"users: [ {ADMIN}", 1)) as server:
        yield server


async def client_of(server: NatsServer, user: str, password: str, inbox: str = "_INBOX") -> Client:
    async def ignore(_: Exception) -> None:
        """A refusal is what the tests expect."""

    client = Client()
    await client.connect(
        server.address, user=user, password=password, inbox_prefix=inbox, error_cb=ignore, allow_reconnect=False
    )
    return client


@pytest.fixture
async def admin(server: NatsServer) -> AsyncIterator[NatsSession]:
    """A session that may do everything in berth's account, with something in each stream."""
    who = NatsCredentials(user="admin", password="admin-of-a-test")  # noqa: S106 - of a throw-away server
    session = await NatsBus(BusSettings(servers=(server.address,), credentials=who)).connect(name="admin")
    await session.apply()
    for stage in ("pending", "ranked", "decision", "dead"):
        await session.publish(f"berth.{stage}.berth.default.web-0", b"{}")
    for bucket in ("cluster", "bandwidth", "facts", "control", "tries", "commits"):
        await session.put(bucket, "known.key", b"{}")
    yield session
    await session.close()


async def content(session: NatsSession, user: str) -> dict[str, list[tuple[str, int, bytes]]]:
    """What is in every stream, but for what the user may change."""
    found = {}
    for stream in STREAMS:
        stored = [one async for one in session.scan(stream, ">")]
        found[stream] = [
            (one.subject, one.sequence, one.data) for one in stored if not one.subject.startswith(OWN_TO_WRITE[user])
        ]
    return found


def everything_that_stores(user: str) -> list[str]:
    return [
        f"{prefix}known.key" if prefix[0] == "$" else f"{prefix}berth.default.web-0" for prefix in OWN_TO_WRITE[user]
    ]


@pytest.mark.parametrize("user", OUTSIDE)
async def test_an_answer_never_goes_where_the_asker_may_not_publish(server, admin, user):
    client = await client_of(server, user, password_of(user), inbox_of(user))
    before = await content(admin, user)
    api = f"$JS.{DOMAIN}.API"
    for reply in FOREIGN_REPLIES:
        for subject in everything_that_stores(user):
            await client.publish(subject, b"", reply=reply)
        for stream in STREAMS:
            for key in ("known.key", "berth.default.web-0"):
                await client.publish(f"{api}.DIRECT.GET.{stream}.$KV.facts.{key}", b"", reply=reply)
            await client.publish(f"{api}.DIRECT.GET.{stream}", b'{"seq":1,"batch":9,"next_by_subj":">"}', reply=reply)
            await client.publish(f"{api}.STREAM.MSG.GET.{stream}", b'{"last_by_subj":">"}', reply=reply)
            await client.publish(f"{api}.STREAM.INFO.{stream}", b"", reply=reply)
        await client.publish(f"{api}.CONSUMER.MSG.NEXT.PENDING.scorer", b'{"batch":1,"no_wait":true}', reply=reply)
    await client.flush()
    await asyncio.sleep(0.3)
    assert await content(admin, user) == before
    assert await admin.consumers("PENDING") == ["scorer"]
    await client.close()


async def test_in_one_account_the_server_publishes_for_whoever_asks(server, admin):
    """Why there are accounts: the same requests, by a user of berth's own account."""
    client = await client_of(server, "admin", "admin-of-a-test")
    forged = "berth.ranked.berth.default.evil"
    await client.publish("$JS.API.DIRECT.GET.KV_facts.$KV.facts.known.key", b"", reply=forged)
    await client.publish("$KV.facts.empty.key", b"")
    purge = "$JS.API.STREAM.PURGE.dead"
    await client.publish("$JS.API.DIRECT.GET.KV_facts.$KV.facts.empty.key", b"", reply=purge)
    await client.flush()
    await asyncio.sleep(0.3)
    assert await admin.last("RANKED", forged) is not None
    assert (await admin.state("dead")).messages == 0
    await admin._connection.client.request("$JS.API.STREAM.PURGE.RANKED", b"")
    await client.close()


@pytest.mark.parametrize("user", OUTSIDE)
async def test_two_hundred_random_requests_change_nothing(server, admin, user):
    chance = random.Random(f"requests of {user}")
    client = await client_of(server, user, password_of(user), inbox_of(user))
    before = await content(admin, user)
    for _ in range(200):
        await client.publish(random_subject(chance), random_body(chance), reply=chance.choice(FOREIGN_REPLIES))
    await client.flush()
    await asyncio.sleep(0.3)
    assert await content(admin, user) == before
    assert await admin.consumers("PENDING") == ["scorer"]
    await client.close()


@pytest.mark.parametrize("user", OUTSIDE)
async def test_no_request_that_manages_streams_or_consumers_is_carried_out(server, admin, user):
    client = await client_of(server, user, password_of(user), inbox_of(user))
    before = await content(admin, user), await consumer_state(admin)
    for api in ("$JS.API", f"$JS.{DOMAIN}.API"):
        for stream in STREAMS:
            for verb in ("PURGE", "DELETE", "UPDATE", "CREATE", "MSG.DELETE", "RESTORE", "LEADER.STEPDOWN"):
                await client.publish(f"{api}.STREAM.{verb}.{stream}", b"" if verb != "MSG.DELETE" else b'{"seq":1}')
            for verb in ("DELETE", "CREATE", "DURABLE.CREATE", "PAUSE"):
                body = b'{"pause_until":"2099-01-01T00:00:00Z"}' if verb == "PAUSE" else b""
                await client.publish(f"{api}.CONSUMER.{verb}.{stream}.scorer", body)
    await client.flush()
    await asyncio.sleep(0.3)
    assert (await content(admin, user), await consumer_state(admin)) == before
    await client.close()


async def consumer_state(session: NatsSession) -> tuple[object, object]:
    """The scorers' consumer: its configuration, and whether it is paused."""
    answer = await session._connection.client.request("$JS.API.CONSUMER.INFO.PENDING.scorer", b"")
    info = json.loads(answer.data)
    return info.get("config"), info.get("paused")


@pytest.mark.parametrize("user", OUTSIDE)
async def test_a_writer_of_one_key_cannot_purge_the_others(server, admin, user):
    client = await client_of(server, user, password_of(user), inbox_of(user))
    before = await content(admin, user)
    for prefix in OWN_TO_WRITE[user]:
        for rollup in ("all", "sub"):
            await client.publish(prefix + "mine.key", b"", headers={"Nats-Rollup": rollup})
    await client.flush()
    await asyncio.sleep(0.3)
    assert await content(admin, user) == before
    assert (await admin.get("facts", "known.key")) is not None
    await client.close()


async def test_people_follow_a_pod_through_every_stage(server, admin):
    client = await client_of(server, "people", password_of("people"))
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def see(msg: object) -> None:
        seen.put_nowait(msg.subject)

    await client.subscribe("berth.*.*.default.web-9", cb=see)
    await client.flush()
    scorer = await NatsBus(
        BusSettings(
            servers=(server.address,),
            credentials=NatsCredentials(user="scorer", password=password_of("scorer")),
            inbox_prefix=inbox_of("scorer"),
            domain=DOMAIN,
        )
    ).connect(name="scorer")
    await admin.publish("berth.pending.berth.default.web-9", b"{}")
    await scorer.publish("berth.ranked.berth.default.web-9", b"{}")
    await admin.publish("berth.decision.berth.default.web-9", b"{}")
    async with asyncio.timeout(10):
        found = [await seen.get() for _ in range(3)]
    assert found == [f"berth.{stage}.berth.default.web-9" for stage in ("pending", "ranked", "decision")]
    await scorer.close()
    await client.close()


def random_subject(chance: random.Random) -> str:
    """A subject of berth's, of NATS's API under either name, of a bucket or of the service protocol."""
    stream = chance.choice(STREAMS)
    verb = chance.choice(
        ["PURGE", "DELETE", "UPDATE", "CREATE", "INFO", "SNAPSHOT", "RESTORE", "MSG.DELETE", "MSG.GET"]
    )
    consumer = chance.choice(["PAUSE", "DELETE", "CREATE", "INFO", "UNPIN", "LEADER.STEPDOWN"])
    api = chance.choice(["$JS.API", f"$JS.{DOMAIN}.API"])
    return chance.choice(
        [
            f"{api}.STREAM.{verb}.{stream}",
            f"{api}.CONSUMER.{consumer}.{stream}.scorer",
            f"{api}.DIRECT.GET.{stream}",
            f"$KV.{chance.choice(['cluster', 'control'])}.{chance.choice(['node.a', 'term.binder', 'bus.id'])}",
            f"berth.{chance.choice(['pending', 'decision'])}.berth.default.web-{chance.randrange(9)}",
            f"berth.{chance.choice(['announce', 'service'])}.berth-watcher.one",
            f"$JS.ACK.{stream}.{chance.choice(['scorer', 'binder-1'])}.1.1.1.1.0",
            f"$SRV.{chance.choice(['PING', 'INFO', 'STATS'])}",
        ]
    )


def random_body(chance: random.Random) -> bytes:
    return chance.choice(
        [
            b"",
            b"{}",
            b'{"seq":1}',
            b'{"pause_until":"2099-01-01T00:00:00Z"}',
            b'{"config":{"deliver_subject":"x"}}',
            b"+TERM",
        ]
    )
