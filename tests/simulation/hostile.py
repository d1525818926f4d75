"""Clients with stolen credentials: of a scorer, the collector, a writer of facts, a shadow, a person.

They do harm, then they leave. Each session has the rights of its user, from the declaration that NATS's configuration
is made of; a deed beyond them is a mistake of this file. What a deed does must end with it
(docs/adr/0051-work-in-a-queue-has-an-end.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec

from berth.api.pod import Pod
from berth.bus.interface import MESSAGE_ID, Delivery, StoredMessage
from berth.bus.jetstream import EXPECTED_SEQUENCE, TTL, purge_headers
from berth.bus.stages import FEWER_CANDIDATES, ranked_message
from berth.bus.topology import (
    BANDWIDTH,
    CLUSTER,
    DECISIONS,
    FACTS,
    PENDING,
    RANKED,
    TRIES,
    bucket_prefix,
    bucket_stream,
)
from berth.errors import BerthError
from berth.lifecycle.peers import Announcement
from berth.messages.attempts import Candidate, DeadLetter, Pending, Preemption, Ranked, Rejection, Victim
from berth.messages.encoding import decode, encode
from berth.messages.livedata import NodeSample
from berth.messages.mirror import decode_entry
from berth.messages.subjects import Attempt, key
from berth_cli.pipeline.accounts import publishes, users
from harness.fakes.memory_streams import matches_any
from simulation.bus import Endpoint, SimulatedSession
from simulation.configurations import LOAD, NETWORK_QUERY
from simulation.patches import true_time

USERS: Final = {user.name: user for user in users()}
A_CENTURY: Final = timedelta(days=36500)
TAKEN_AT_ONCE: Final = 64
"""As many messages as a scorer holds."""
REMEMBERED: Final = 200
FLOODS: Final = (10, 30, 100)
"""Messages at once."""
ODD: Final = (
    b"9223372036854775807", b"-9223372036854775808", b"9007199254740992", b"-1", b"0", b"1e30", b"1e-320", b"1e400",
    b"NaN", b"9" * 5000, b'""', b'"\\u0000"', b'"\\u202e"', b'"9999-12-31T23:59:59Z"', b'"0001-01-01T00:00:00Z"',
    b"null", b"[]", b"{}", b"true", b"[" * 100 + b"]" * 100,
)  # fmt: skip
"""Values of JSON that broke something once, and others of their kind."""
HOLE: Final = "a hole that no message has"
NODES: Final = ("n1", "n2", "n3", "nowhere")
"""Whoever writes facts knows nodes, though it reads nothing."""


class Thief:
    """A connection with a stolen credential, and what its holder remembers."""

    def __init__(
        self,
        session: SimulatedSession,
        user: str,
        chance: random.Random,
        steal: Callable[[str], None],
        only: frozenset[str],
    ) -> None:
        self.only = only
        """The names of what it does; empty: everything."""
        self.session = session
        self.chance = chance
        self.steal = steal
        """Called with each attempt whose message of PENDING it has got."""
        self.seen: dict[str, list[StoredMessage]] = {}
        """By stream, what it has read there, the newest last."""
        self._allowed = matches_any(publishes(USERS[user]))

    def among(self, deeds: Sequence[D]) -> tuple[D, ...]:
        """Those that it may choose among."""
        return tuple(deed for deed in deeds if not self.only or deed.__name__ in self.only)

    def must(self, subject: str) -> None:
        assert self._allowed(subject), f"a hostile client may not publish to {subject}"

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Publish, whatever becomes of it."""
        self.must(subject)
        named = dict(headers or {})
        with contextlib.suppress(BerthError):
            await self.session.publish(subject, data, message_id=named.pop(MESSAGE_ID, None), headers=named)

    async def flood(self, messages: list[tuple[str, bytes]]) -> None:
        """Publish many without waiting for answers."""
        for subject, data in messages:
            self.must(subject)
            self.session.publish_soon(subject, data, on_answer=lambda _answer: None)
        await self.rest()

    async def broadcast(self, subject: str, data: bytes) -> None:
        self.must(subject)
        await self.session.broadcast(subject, data)

    async def rank(self, ranked: Ranked, headers: Mapping[str, str] | None = None) -> None:
        """Publish a ranking as a scorer does, with other headers in place of its own or as it is."""
        message = ranked_message(self.session, ranked)
        named = {MESSAGE_ID: message.message_id} if headers is None else headers
        await self.publish(message.subject, message.data, named)

    async def read(self, stream: str) -> None:
        """Remember what is in a stream, without end."""
        self.must(f"$JS.berth.API.DIRECT.GET.{stream}")
        seen = self.seen.setdefault(stream, [])
        async with self.session.read_stream(stream) as reader:
            async for batch in reader.batches():
                seen.extend(batch)
                del seen[:-REMEMBERED]

    @contextlib.asynccontextmanager
    async def pending(self) -> AsyncIterator[Any]:
        self.must("$JS.berth.API.CONSUMER.MSG.NEXT.PENDING.scorer")
        self.must("$JS.ACK.PENDING.scorer.1.1.1.1.1")
        async with self.session.consume(PENDING, "scorer", max_unacked=TAKEN_AT_ONCE) as deliveries:
            yield deliveries

    def rankings(self) -> list[Ranked]:
        return [found for each in self.seen.get(RANKED, ()) if (found := _read(each.data, Ranked)) is not None]

    def pods(self) -> list[Pod]:
        """Placed pods of the mirror."""
        prefix = f"{bucket_prefix(CLUSTER)}pod."
        mirrored = (each for each in self.seen.get(MIRROR, ()) if each.subject.startswith(prefix) and each.data)
        return [
            msgspec.convert(msgspec.json.decode(decode_entry(each.data).object), Pod, strict=False) for each in mirrored
        ]

    def nodes(self) -> list[str]:
        """Nodes of the mirror, and one that does not exist."""
        prefix = f"{bucket_prefix(CLUSTER)}node."
        names = {each.subject.removeprefix(prefix) for each in self.seen.get(MIRROR, ()) if prefix in each.subject}
        return [*sorted(names), "nowhere"]

    def distorted(self, data: bytes) -> bytes:
        """A message with an odd value somewhere."""
        found = msgspec.json.decode(data)
        at = found
        while True:
            places: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
            place = self.chance.choice(places)
            if not isinstance(at[place], dict | list) or not at[place] or self.chance.random() < 0.2:
                break
            at = at[place]
        at[place] = HOLE
        return msgspec.json.encode(found).replace(f'"{HOLE}"'.encode(), self.chance.choice(ODD))

    async def rest(self) -> None:
        """After much at once."""
        await asyncio.sleep(self.chance.uniform(1.0, 8.0))

    async def pause(self) -> None:
        await asyncio.sleep(self.chance.choice((0.1, 0.5, 2.0)) * self.chance.uniform(0.3, 1.0))


D = TypeVar("D", bound=Callable[..., Awaitable[None]])
MIRROR: Final = bucket_stream(CLUSTER)
Deed = Callable[[Thief], Awaitable[None]]
"""It is done again and again."""
Taken = Callable[[Thief, Delivery], Awaitable[None]]


# --- with a scorer's credential: what is done to a message of PENDING


async def put_off(_thief: Thief, delivery: Delivery) -> None:
    """Have the message redelivered in a hundred years."""
    delivery.nak(A_CENTURY)


async def give_back(thief: Thief, delivery: Delivery) -> None:
    """Have it redelivered at once, or soon: its deliveries are counted."""
    delivery.nak(timedelta(seconds=thief.chance.choice((0.1, 0.5, 2.0))))


async def hold(_thief: Thief, delivery: Delivery) -> None:
    """Claim to work on it, until the connection ends."""
    while True:
        delivery.in_progress()
        await asyncio.sleep(1.0)


async def claim(thief: Thief, delivery: Delivery) -> None:
    """Put it off, and announce that a scorer works on it, until the connection ends."""
    delivery.nak(A_CENTURY)
    attempt = decode(delivery.data, Pending).attempt
    while True:
        ghost = Announcement(service="scorer", identity=f"ghost-{attempt}", held=(attempt,))
        await thief.broadcast(ghost.subject, encode(ghost))
        await asyncio.sleep(2.0)


async def blame(thief: Thief, delivery: Delivery) -> None:
    """Say that scorers have died of the pod, and have it delivered again and again."""
    attempt = decode(delivery.data, Pending).attempt
    tries = thief.chance.choice((b"4", b"3", b"-1", b"9" * 30, b"junk"))
    await thief.publish(bucket_prefix(TRIES) + key("attempt", attempt), tries)
    delivery.nak()


async def rank_for_another_profile(thief: Thief, delivery: Delivery) -> None:
    """Answer with a profile that no binder has, also in the pod itself, where the pod's ranking is looked for."""
    pending = decode(delivery.data, Pending)
    spec = msgspec.structs.replace(pending.pod.spec, scheduler_name="another")
    pod = thief.chance.choice((pending.pod, msgspec.structs.replace(pending.pod, spec=spec)))
    ranked = Ranked(attempt=pending.attempt, profile="another", pod=pod, scorer="hostile", message="no room")
    await thief.publish(delivery.subject.replace("pending", "ranked", 1), encode(ranked), {MESSAGE_ID: ranked.attempt})
    delivery.ack()


async def propose_evictions(thief: Thief, delivery: Delivery) -> None:
    """Say that the pod fits nowhere, and that evicting a pod would help."""
    pending, placed = decode(delivery.data, Pending), thief.pods()
    if placed:
        await thief.rank(_asking_to_evict(pending, thief.chance.choice(placed)))
    delivery.ack()


async def rank_at_random(thief: Thief, delivery: Delivery) -> None:
    """Name nodes by chance, and those that do not exist, with numbers as they come; the pod is another version."""
    pending = decode(delivery.data, Pending)
    chance, nodes = thief.chance, thief.nodes()
    candidates = [
        Candidate(
            node=chance.choice(nodes), total=chance.choice((0, 2**63 - 1, -(2**63))), pods=chance.choice((0, 2**52))
        )
        for _ in range(chance.choice((1, *FEWER_CANDIDATES, 40)))
    ]
    metadata = msgspec.structs.replace(pending.pod.metadata, resource_version=chance.choice(("1", "0", "9" * 18)))
    pod = msgspec.structs.replace(pending.pod, metadata=metadata)
    ranked = Ranked(attempt=pending.attempt, profile=pending.profile, pod=pod, scorer="hostile", candidates=candidates)
    await thief.rank(ranked)
    delivery.ack()


async def rank_oddly(thief: Thief, delivery: Delivery) -> None:
    """An answer with an odd value somewhere."""
    pending = decode(delivery.data, Pending)
    message = ranked_message(thief.session, _named(pending, thief.chance.choice(thief.nodes())))
    await thief.publish(message.subject, thief.distorted(message.data), {MESSAGE_ID: message.message_id})
    delivery.ack()


async def say_nothing(_thief: Thief, delivery: Delivery) -> None:
    """Acknowledge it without a ranking."""
    delivery.ack()


TAKEN: Final[tuple[Taken, ...]] = (
    put_off, hold, claim, rank_for_another_profile, propose_evictions, say_nothing, give_back, blame, rank_at_random,
    rank_oddly,
)  # fmt: skip


async def take(thief: Thief) -> None:
    """Take messages of PENDING, and do the same to each, or what comes to mind."""
    taken = thief.among(TAKEN)
    kinds = taken if thief.chance.random() < 0.3 else (thief.chance.choice(taken),)
    async with asyncio.TaskGroup() as tasks, thief.pending() as deliveries:
        async for delivery in deliveries:
            thief.steal(decode(delivery.data, Pending).attempt)
            tasks.create_task(_suppressing(thief.chance.choice(kinds)(thief, delivery)))


# --- with a scorer's credential: what is said without being asked


async def replay(thief: Thief) -> None:
    """Publish former rankings again, under their ids and under none."""
    if seen := thief.seen.get(RANKED):
        message = thief.chance.choice(seen)
        await thief.publish(message.subject, message.data, thief.chance.choice((message.headers, {})))
    await thief.pause()


async def forge(thief: Thief) -> None:
    """Rank a pod of somebody else: this attempt, the next, one far ahead, one of another term."""
    if rankings := thief.rankings():
        ranked, placed = thief.chance.choice(rankings), thief.pods()
        attempt = Attempt.parse(ranked.attempt)
        term, n = thief.chance.choice(((0, 0), (0, 1), (0, 1000), (1, 0), (7, 1), (-1, 0)))
        other = Attempt(uid=attempt.uid, term=max(0, attempt.term + term), n=attempt.n + n)  # type: ignore[arg-type] - forged
        asked = msgspec.structs.replace(ranked.pending(ranked.positions), attempt=str(other))
        forged = _named(asked, thief.chance.choice(thief.nodes()))
        if placed and thief.chance.random() < 0.5:
            forged = _asking_to_evict(asked, thief.chance.choice(placed))
        await thief.rank(forged, thief.chance.choice((None, {})))
    await thief.pause()


async def use_up_ids(thief: Thief) -> None:
    """Publish something else under the id of a pod's next attempt, so that its ranking counts as a duplicate."""
    if rankings := thief.rankings():
        attempt = Attempt.parse(thief.chance.choice(rankings).attempt)
        following = str(Attempt(uid=attempt.uid, term=attempt.term, n=attempt.n + 1))
        await thief.publish(f"berth.ranked.berth.default.{attempt.uid}", b"used up", {MESSAGE_ID: following})
    await thief.pause()


async def fill_ranked(thief: Thief) -> None:
    """Rankings of pods that do not exist, for a profile that no binder has, or of another schema: until none fits."""
    for number in range(50):
        large = "x" * ((thief.session.max_message_bytes - 4096) >> (0 if number < 18 else 4 if number < 35 else 16))
        uid = f"none-{thief.chance.randrange(10**6)}-{number}"
        schema = thief.chance.choice((1, 1, 99))
        pod = {
            "metadata": {"name": uid, "namespace": "default", "uid": uid, "resourceVersion": "1"},
            "spec": {"schedulerName": "another", "containers": [{"name": "c", "image": "i"}]},
        }
        message = {"schema": schema, "attempt": f"{uid}.1.1", "profile": "another", "pod": pod, "message": large}
        if schema == 1:
            del message["message"]
            pod["metadata"]["annotations"] = {"large": large}
        await thief.publish(f"berth.ranked.another.default.{uid}", msgspec.json.encode(message))
    await thief.rest()


async def flood_ranked(thief: Thief) -> None:
    """Junk, much at once."""
    count = thief.chance.choice(FLOODS)
    number = thief.chance.randrange(10**6)
    await thief.flood([(f"berth.ranked.berth.default.junk-{number}-{each}", b"junk") for each in range(count)])


async def bury(thief: Thief) -> None:
    """Dead letters about pods that live."""
    if rankings := thief.rankings():
        ranked = thief.chance.choice(rankings)
        name = f"default.{ranked.pod.metadata.name}"
        letter = DeadLetter(
            subject=f"berth.pending.berth.{name}", reason="dead", service="scorer", attempt=ranked.attempt
        )
        await thief.publish(f"berth.dead.berth.{name}", encode(letter))
    await thief.pause()


async def announce(thief: Thief) -> None:
    """Scorers that do not exist, with other configurations, many of them."""
    for number in range(thief.chance.choice(FLOODS)):
        other = Announcement(service="scorer", identity=f"ghost-{number}", config="other", profiles={"berth": "other"})
        await thief.broadcast(other.subject, encode(other))
    await thief.rest()


# --- with the collector's credential


async def measure_oddly(thief: Thief) -> None:
    """Samples with odd values, of nodes that exist and of others, also of keys that are no query's."""
    node, query = thief.chance.choice(thief.nodes()), thief.chance.choice((NETWORK_QUERY, NETWORK_QUERY, "q0"))
    by = await _author(thief, node)
    sample = NodeSample(receive=1e6, transmit=1e6, capacity=1e9, sampled_at=true_time(), by=by)
    data = thief.distorted(encode(sample)) if thief.chance.random() < 0.9 else thief.chance.choice(ODD)
    headers = thief.chance.choice(({}, {}, {TTL: "1s"}, {EXPECTED_SEQUENCE: "1"}, purge_headers(timedelta(minutes=10))))
    await thief.publish(
        bucket_prefix(BANDWIDTH) + key(query, node), b"" if "KV-Operation" in headers else data, headers
    )
    await thief.pause()


async def saturate(thief: Thief) -> None:
    """Every link is full, from now on or from the future."""
    ahead = timedelta(seconds=thief.chance.choice((0, 60, 290, 86400)))
    full = NodeSample(receive=1e9, transmit=1e9, capacity=1e9, sampled_at=true_time() + ahead)
    for node in thief.nodes():
        full = msgspec.structs.replace(full, by=await _author(thief, node))
        await thief.publish(bucket_prefix(BANDWIDTH) + key(NETWORK_QUERY, node), encode(full))
    await thief.pause()


async def _author(thief: Thief, node: str) -> str:
    """In whose name a sample is written: nobody's, the thief's, or that of whoever has measured the node."""
    thief.must(f"$JS.berth.API.DIRECT.GET.{bucket_stream(BANDWIDTH)}")
    known = ""
    with contextlib.suppress(BerthError):
        stored = await thief.session.get(BANDWIDTH, key(NETWORK_QUERY, node))
        found = _read(stored.data, NodeSample) if stored is not None and stored.data else None
        known = found.by if found is not None else ""
    return thief.chance.choice(("", "thief", known))


async def flood_bandwidth(thief: Thief) -> None:
    """Samples of nodes that do not exist, as many as there is room for."""
    sample = encode(NodeSample(receive=1e9, transmit=1e9, capacity=1e9, sampled_at=true_time()))
    count, number = thief.chance.choice(FLOODS), thief.chance.randrange(10**6)
    prefix = bucket_prefix(BANDWIDTH)
    await thief.flood([(prefix + key(NETWORK_QUERY, f"x{number}-{each}"), sample) for each in range(count)])


# --- with the credential for facts


async def state_oddly(thief: Thief) -> None:
    """Facts with odd values, too large, too deep, of nodes that exist and of others."""
    node = thief.chance.choice(NODES)
    fact = thief.distorted(b'{"sampled_at":"2026-01-01T00:00:00Z","load":0.5}')
    data = thief.chance.choice((fact, fact, *ODD, b'"' + b"x" * 65536 + b'"', b"[" * 5000))
    headers = thief.chance.choice(({}, {}, {TTL: "1s"}))
    await thief.publish(bucket_prefix(FACTS) + key(LOAD, node), data, headers)
    await thief.pause()


async def flood_facts(thief: Thief) -> None:
    """Facts of nodes that do not exist, as many as there is room for."""
    count, number = thief.chance.choice(FLOODS), thief.chance.randrange(10**6)
    fact, prefix = b'{"load":1,"more":"' + b"x" * 1000 + b'"}', bucket_prefix(FACTS)
    await thief.flood([(prefix + key(LOAD, f"x{number}-{each}"), fact) for each in range(count)])


# --- with a shadow's credential, and a person's


async def compare_wrongly(thief: Thief) -> None:
    """Comparisons that are none, many of them."""
    for number in range(thief.chance.choice(FLOODS)):
        await thief.broadcast(f"berth.shadow.evil.berth.default.pod-{number}", thief.chance.choice(ODD))
    await thief.rest()


async def read_again(thief: Thief) -> None:
    """Read all that may be read from its beginning, several times at once, and never finish."""
    streams = (RANKED, DECISIONS, MIRROR)
    async with contextlib.AsyncExitStack() as stack:
        for stream in streams * thief.chance.choice((1, 5, 20)):
            thief.must(f"$JS.berth.API.DIRECT.GET.{stream}")
            await stack.enter_async_context(thief.session.read_stream(stream))
        await asyncio.sleep(thief.chance.uniform(0.5, 5.0))


async def ask(thief: Thief) -> None:
    """Questions without end, sensible ones and others, to every service."""
    asked = [f"berth.service.{name}" for name in await _instances(thief)]
    for subject in asked * thief.chance.choice((1, 10, 50)):
        for endpoint in ("", ".queue", ".pod"):
            request = thief.chance.choice((b"{}", b'{"schema":1,"namespace":"default","name":"p1"}', *ODD))
            thief.must(subject + endpoint)
            with contextlib.suppress(BerthError):
                await thief.session.ask(subject + endpoint, request)
    await thief.rest()


async def _instances(thief: Thief) -> list[str]:
    thief.must("$SRV.PING")
    return [f"{one.service}.{one.identity}" for one in await thief.session.services()]


# --- who does what


@dataclass(frozen=True, kw_only=True)
class Credential:
    """What the holder of a user's credential does and reads."""

    deeds: tuple[Deed, ...]
    reads: tuple[str, ...] = field(default=(MIRROR,))


CREDENTIALS: Final[Mapping[str, Credential]] = {
    "scorer": Credential(
        deeds=(
            take, take, take, take, take, replay, forge, use_up_ids, fill_ranked, flood_ranked, bury, announce,
        ),
        reads=(MIRROR, RANKED),
    ),
    "collector": Credential(deeds=(measure_oddly, saturate, flood_bandwidth)),
    "facts": Credential(deeds=(state_oddly, flood_facts), reads=()),
    "shadow": Credential(deeds=(compare_wrongly, read_again)),
    "people": Credential(deeds=(ask, read_again)),
}  # fmt: skip


async def be_hostile(
    bus: Endpoint, user: str, chance: random.Random, steal: Callable[[str], None], only: frozenset[str]
) -> None:
    """Do one or two deeds of this user until the process ends; ``steal`` is called with the attempts that it takes."""
    credential = CREDENTIALS[user]
    thief = Thief(await bus.connect(name="hostile"), user, chance, steal, only)
    deeds = thief.among(credential.deeds)
    async with asyncio.TaskGroup() as tasks:
        for stream in credential.reads:
            tasks.create_task(thief.read(stream))
        await asyncio.sleep(0.05)
        for deed in dict.fromkeys(chance.choice(deeds) for _ in range(chance.choice((1, 1, 2)))):
            tasks.create_task(_without_end(deed, thief))


async def _without_end(deed: Deed, thief: Thief) -> None:
    while True:
        await deed(thief)


async def _suppressing(work: Awaitable[None]) -> None:
    with contextlib.suppress(BerthError):
        await work


def _read(data: bytes, kind: type[Any]) -> Any:
    try:
        return decode(data, kind)
    except BerthError:
        return None


def _named(pending: Pending, node: str) -> Ranked:
    candidate = Candidate(node=node, total=100)
    return Ranked(
        attempt=pending.attempt, profile=pending.profile, pod=pending.pod, scorer="hostile", candidates=[candidate]
    )


def _asking_to_evict(pending: Pending, pod: Pod) -> Ranked:
    victim = Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)
    return Ranked(
        attempt=pending.attempt,
        profile=pending.profile,
        pod=pending.pod,
        scorer="hostile",
        message="no room",
        view_age_seconds=0.0,
        rejections=[Rejection(plugin="NodeResourcesFit", reason="no room", nodes=1)],
        preemption=Preemption(node=pod.spec.node_name or "n1", victims=[victim]),
    )
