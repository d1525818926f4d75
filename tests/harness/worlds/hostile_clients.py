"""A hostile client of each user of the bus, and every way in which it may try to change what is not its."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from nats.aio.client import Client
from nats.errors import Error as NatsError

from berth.bus.session import NatsSession
from berth.bus.settings import TopologySettings
from berth.bus.topology import declared_streams
from berth_cli.pipeline.accounts import DOMAIN, OWN, users
from harness.servers.nats_server import NatsServer

OUTSIDE = tuple(user.name for user in users() if user.account != OWN)
INSIDE = ("watcher", "binder")
"""The services that share the account of the streams."""
STREAMS = tuple(stream.name for stream in declared_streams(TopologySettings()))
OWN_TO_WRITE = {
    "scorer": ("berth.ranked.", "berth.dead.", "$KV.tries."),
    "collector": ("$KV.bandwidth.",),
    "facts": ("$KV.facts.",),
    "shadow": (),
    "people": (),
    "watcher": (
        *("berth.pending.", "berth.dead.", "$KV.cluster."),
        *("$KV.control.term.watcher", "$KV.control.cluster.id", "$KV.control.bus.id"),
    ),
    "binder": (
        *("berth.decision.", "berth.dead.", "$KV.commits."),
        *("$KV.control.term.binder", "$KV.control.fence.binder"),
    ),
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


async def client_of(server: NatsServer, user: str, password: str, inbox: str = "_INBOX") -> Client:
    async def ignore(_: Exception) -> None:
        """A refusal is what the tests expect."""

    client = Client()
    await client.connect(
        server.address, user=user, password=password, inbox_prefix=inbox, error_cb=ignore, allow_reconnect=False
    )
    return client


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


async def ask_with_foreign_replies(client: Client, user: str) -> None:
    """Store, read and pull, with the answer to go where the user may not publish."""
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
    await _carried_out(client)


async def ask_at_random(client: Client, user: str) -> None:
    """Two hundred requests at everything that berth and NATS have subjects for."""
    chance = random.Random(f"requests of {user}")
    for _ in range(200):
        await client.publish(random_subject(chance), random_body(chance), reply=chance.choice(FOREIGN_REPLIES))
    await _carried_out(client)


async def ask_to_manage(client: Client) -> None:
    """Every request that manages streams and consumers."""
    for api in ("$JS.API", f"$JS.{DOMAIN}.API"):
        for stream in STREAMS:
            for verb in ("PURGE", "DELETE", "UPDATE", "CREATE", "MSG.DELETE", "RESTORE", "LEADER.STEPDOWN"):
                await client.publish(f"{api}.STREAM.{verb}.{stream}", b"" if verb != "MSG.DELETE" else b'{"seq":1}')
            for verb in ("DELETE", "CREATE", "DURABLE.CREATE", "PAUSE"):
                body = b'{"pause_until":"2099-01-01T00:00:00Z"}' if verb == "PAUSE" else b""
                await client.publish(f"{api}.CONSUMER.{verb}.{stream}.scorer", body)
    await _carried_out(client)


async def have_it_sent(client: Client, user: str, data: bytes, subject: str) -> None:
    """Have the server publish the data where the user may not: stored under a key of its own, read with this reply.

    It is tried some times, since the watcher removes keys that are not the cluster's.
    """
    bucket = {"watcher": "cluster", "binder": "commits"}[user]
    key = f"$KV.{bucket}.evil.key"
    for _ in range(5):
        with suppress(NatsError):  # the bucket may have been deleted
            await client.request(key, data, timeout=5)
        await client.publish(f"$JS.API.DIRECT.GET.KV_{bucket}.{key}", b"", reply=subject)
        await client.flush()
    await _carried_out(client)


async def roll_up(client: Client, user: str) -> None:
    """Take all keys of a bucket away by a write to one."""
    for prefix in OWN_TO_WRITE[user]:
        for rollup in ("all", "sub"):
            await client.publish(prefix + "mine.key", b"", headers={"Nats-Rollup": rollup})
    await _carried_out(client)


async def _carried_out(client: Client) -> None:
    await client.flush()
    await asyncio.sleep(0.3)


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
