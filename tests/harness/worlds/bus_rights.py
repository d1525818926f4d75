"""What each user of NATS can do, found by trying: the program behind docs/rights/bus.yaml.

Each user publishes and subscribes to every subject of the protocol, of NATS itself and of the configuration, and gives
whatever it may ask for every form of reply. An observer without limits in each account sees what arrives there.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import yaml

from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings, NatsCredentials, TopologySettings
from berth.bus.topology import BUCKETS, PROBE, STORED_PREFIX, Names, declared_streams
from berth.messages.subjects import SERVICES
from berth_cli.pipeline.accounts import DOMAIN, OWN, User, users
from harness.servers.bus_users import password_of
from harness.servers.nats_server import NatsServer
from harness.servers.raw_client import WAIT_SECONDS, RawClient, Received

Right = tuple[str, str, str]
"""What the user does, the subject or request, and where that ends if elsewhere than in the user's account."""
TABLE: Final = Path(__file__).parents[3] / "docs/rights/bus.yaml"

STAGES: Final = ("pending", "ranked", "decision", "dead")
CONTROL_KEYS: Final = ("term.watcher", "term.binder", "fence.binder", "cluster.id", "bus.id", "drain")
OF_STREAM: Final = (
    *("CREATE", "UPDATE", "DELETE", "INFO", "PURGE", "SNAPSHOT", "RESTORE", "MSG.GET", "MSG.DELETE"),
    *("PEER.REMOVE", "LEADER.STEPDOWN"),
)
OF_CONSUMER: Final = (
    *("CREATE", "DURABLE.CREATE", "INFO", "DELETE", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN", "MSG.NEXT"),
)
OF_SERVER: Final = ("INFO", "STREAM.NAMES", "STREAM.LIST", "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.x")
OF_NATS: Final = (
    *("_R_.>", "$JS.EVENT.>", "$JSC.>", "$NRG.>", "$O.other.>", "$MQTT.>", "$SYS.>", "$SYS.ACCOUNT.>"),
    *("$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.USER.INFO", "$SYS.REQ.ACCOUNT.PING.CONNZ"),
)
WIDE: Final = (">", "*", "*.>", "_INBOX.*", "$KV.>", "$JS.>", "$JS.API.>", "$SRV.>", "stored.>", "berth.>")
"""What is subscribed to beside all that is published to."""
SETTLING: Final = ("+ACK", "-NAK", '-NAK {"delay": 1000}', "+WPI", "+TERM")
"""What may be answered to a delivery."""
HEADERS: Final = (
    *({"KV-Operation": word} for word in ("DEL", "PURGE")),
    *({"Nats-Rollup": word} for word in ("sub", "all")),
    *({"Nats-TTL": "1h"}, {"Nats-Incr": "1"}, {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1"}),
    {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "berth.ranked.x"},
)
"""By which a publisher asks a stream for more than to store the message."""
SETTINGS: Final = ("Nats-Rollup",)
"""Headers that the table names with their value."""
API: Final = "$JS.API."
IMPORTED_API: Final = f"$JS.{DOMAIN}.API."
PUTS: Final = f"{IMPORTED_API}$KV."
"""Under this name clients with a domain put into buckets."""
JETSTREAM: Final = (API, "$JS.ACK.")
RESERVED: Final = ("$JS.ACK.", "_R_.")
"""The server refuses them as replies of clients."""
EACH: Final = "each"
"""In the table: all streams that berth declares."""
OF_SUBJECT: Final = " of a subject"
"""In the table: a Direct Get that names the subject, whose answer is one message."""
OVER_ROUTES: Final = ", over routes"
"""In the table: which server has a stream's leader decides whether this is possible."""
OF_ANOTHER: Final = "another berth's "
NUMBER: Final = "Berth-Try"
"""The header with a try's number; its reply has the number as a token, above `ANSWERS`."""
FIRST: Final = 10_000_000
ANSWERS: Final = 80_000_000
KNOWN: Final = "known"
"""The key or pod of a message in each stream, which a user might remove."""
AT_ONCE: Final = 500
"""Requests between two waits; a server with too many at once drops all of them."""
SECONDS: Final = 15.0
"""How long an effect that the table names is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Something that a user publishes, and the table's words for it."""

    does: str
    what: str
    subject: str
    data: bytes = b"x"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Berth:
    """One berth on the server, and its part of the configuration."""

    prefix: str
    conf: str

    @cached_property
    def names(self) -> Names:
        return Names(self.prefix)

    @cached_property
    def users(self) -> tuple[User, ...]:
        return users(self.prefix)

    @cached_property
    def streams(self) -> list[str]:
        return [stream.name for stream in declared_streams(TopologySettings(prefix=self.prefix))]

    def plain(self, text: str) -> str:
        """Its names without prefix; the inboxes of NATS's own clients as they are without prefix."""
        if self.prefix:
            text = text.replace(f"{self.prefix}.", "").replace(f"{self.prefix}-", "")
        return text.replace("_INBOX_people.", "_INBOX.").replace("_INBOX_facts.", "_INBOX.")

    @cached_property
    def subjects(self) -> frozenset[str]:
        """Every subject that is no request to JetStream, with wildcards."""
        staged = [f"berth.{stage}.>" for stage in STAGES]
        keyed = [*(f"$KV.{bucket}.>" for bucket in BUCKETS), *(f"$KV.control.{key}" for key in CONTROL_KEYS)]
        of_services = [f"berth.{kind}.{one}.>" for kind in ("announce", "service", "admin") for one in SERVICES]
        verbs = [f"$SRV.{verb}" for verb in ("PING", "INFO", "STATS")]
        own = map(self.names.filter, (*staged, *keyed, *of_services, "berth.shadow.>", "berth.x.>", "$KV.x.>", "x.>"))
        stored = [STORED_PREFIX + self.names.filter(subject) for subject in (*staged, *keyed)]
        named = [f"{verb}.{self.names.word(one)}{rest}" for verb in verbs for one in SERVICES for rest in ("", ".>")]
        flows = [f"$JS.{word}.{stream}.>" for word in ("ACK", "FC") for stream in self.streams]
        inboxes = [f"{user.inbox}.>" for user in self.users]
        declared = [one for one in self._declared if not _is_request(one)]
        return frozenset((*own, *stored, *verbs, *named, *flows, *inboxes, *OF_NATS, *declared))

    @cached_property
    def requests(self) -> frozenset[str]:
        """Every request to JetStream, without the prefix of its API."""
        found = set(OF_SERVER)
        consumers = {self.names.stream("PENDING"): "scorer", self.names.stream("RANKED"): "binder-1"}
        for stream in (*self.streams, self.names.stream(PROBE), "x"):
            found |= {f"STREAM.{verb}.{stream}" for verb in OF_STREAM}
            found |= {f"CONSUMER.{verb}.{stream}" for verb in ("NAMES", "LIST", "CREATE")}
            for consumer in {"x", consumers.get(stream, "x")}:
                found |= {f"CONSUMER.{verb}.{stream}.{consumer}" for verb in OF_CONSUMER}
            found |= {f"CONSUMER.CREATE.{stream}.x.>", f"DIRECT.GET.{stream}", f"DIRECT.GET.{stream}.>"}
        declared = filter(_is_request, self._declared)
        return frozenset(found | {one.removeprefix(API).removeprefix(IMPORTED_API) for one in declared})

    @cached_property
    def _declared(self) -> set[str]:
        return set(re.findall(r'"([^"]+)"', self.conf))

    def tries(self, user: User) -> Iterator[Try]:
        """What the user publishes of this berth, its own or another."""
        for subject in sorted(self.subjects):
            yield Try(does="publishes", what=subject, subject=subject)
        for request in sorted(self.requests):
            for api in (API, IMPORTED_API):
                what = request if (api == API) == user.is_own else api + request
                yield Try(does="asks", what=what, subject=api + request, data=_body_of(request))


def _is_request(subject: str) -> bool:
    return subject.startswith((API, IMPORTED_API)) and not subject.startswith(PUTS)


def _body_of(request: str) -> bytes:
    # JetStream refuses this body in requests with an effect but for PURGE, so that there is no effect to repair.
    if request.startswith("DIRECT.GET") and not request.endswith(".>"):
        return b'{"batch":1,"seq":1,"next_by_subj":">"}'
    return b"" if request.endswith(".>") else b"x"


def _filled(pattern: str, number: int) -> str:
    """A subject of the pattern. Its wildcard at the end has the number."""
    *tokens, last = pattern.split(".")
    if tokens[:2] == ["$JS", "ACK"]:
        return ".".join([*(token.replace("*", "x") for token in tokens), "x", "1", "1", str(number), "1", "0"])
    one = "binder-1" if tokens and tokens[-1].endswith("RANKED") else str(number)
    end = {">": f"x.{number}", "*": one}.get(last, last)
    return ".".join([*(token.replace("*", "x") for token in tokens), end])


def observed(conf: str) -> str:
    """The configuration, with a user who may do everything in each account and in the server's own."""
    lines, account = [], "$SYS"
    for line in conf.splitlines():
        lines.append(line)
        if found := re.fullmatch(r"  ([\w-]+): \{", line):
            account = found[1]
        elif line == "    users: [":
            lines.append(f"      {_declared_observer(account)}")
        elif line == "accounts {":
            lines.append(f"  $SYS: {{ users: [ {_declared_observer('$SYS')} ] }}")
    return "\n".join(lines) + "\n"


def _observer(account: str) -> str:
    return f"observer-{account.strip('$')}"


def _declared_observer(account: str) -> str:
    return f"{{ user: {_observer(account)}, password: {password_of(_observer(account))} }}"


Table = dict[str, dict[str, dict[str, list[str]]]]


def rights_of(table: Table, user: str, *, of_routes: bool = False) -> set[Right]:
    """The lines on this user; or only the lines about what else may come about between servers of a cluster."""
    streams = [stream.name for stream in declared_streams(TopologySettings())]
    return {
        (does.removesuffix(OVER_ROUTES), each, one)
        for does, lines in table[user].items()
        if does.endswith(OVER_ROUTES) == of_routes
        for what, ends in lines.items()
        for each in _spelled_out(what)
        for end in ends or [""]
        for one in (streams if end == EACH else [end])
    }


def _spelled_out(text: str) -> Iterator[str]:
    """``a.b`` and ``a.c`` for ``a.{b,c}``."""
    before, opened, rest = text.partition("{")
    if not opened:
        yield text
        return
    inside, _, after = rest.partition("}")
    for each in inside.split(","):
        yield from _spelled_out(before + each + after)


def read_table() -> Table:
    return yaml.safe_load(TABLE.read_text(encoding="utf-8"))


def covers(wide: str, narrow: str) -> bool:
    """Whether every subject of one pattern is one of another."""
    ones, others = wide.split("."), narrow.split(".")
    for place, one in enumerate(ones):
        if place >= len(others):
            return False
        if one == ">":
            return True
        if one != others[place] and (one != "*" or others[place] == ">"):
            return False
    return len(ones) == len(others)


def without_narrower(found: set[Right]) -> set[Right]:
    """Without lines that a line with a wider subject contains."""

    def contains(wide: Right, narrow: Right) -> bool:
        if wide == narrow or wide[0] != narrow[0]:
            return False
        if wide[0] == "asks":
            is_one_of_them = wide[1].endswith(OF_SUBJECT) and covers(f"{wide[2]}.>", narrow[2])
            return wide[1] == narrow[1] and (is_one_of_them or covers(wide[2], narrow[2]))
        what = narrow[1].removeprefix(OF_ANOTHER)
        return narrow[2] in ("", wide[2]) and covers(wide[1], what)

    return {one for one in found if not any(contains(other, one) for other in found)}


class Attack:
    """Observers of all accounts, and users who try everything, on the same server or on another of its cluster."""

    def __init__(self, attacked: NatsServer, observed: NatsServer, confs: Mapping[str, str]) -> None:
        self._attacked, self._observed = attacked, observed
        self.berths = [Berth(prefix=prefix, conf=conf) for prefix, conf in confs.items()]
        self._numbers = itertools.count(FIRST)
        self._observers: dict[str, RawClient] = {}
        self._read: dict[str, int] = defaultdict(int)
        self._arrived: dict[int, list[tuple[str, Received]]] = defaultdict(list)

    @asynccontextmanager
    async def begun(self, replicas: int = 1) -> AsyncIterator[None]:
        """Have streams, a message in each, a consumer of the binder, and observers."""
        async with AsyncExitStack() as stack:
            for account in ["$SYS", *dict.fromkeys(user.account for berth in self.berths for user in berth.users)]:
                client = self._observers[account] = RawClient()
                await client.connect(self._observed, _observer(account), password_of(_observer(account)))
                stack.push_async_callback(client.close)
            for berth in self.berths:
                name = _observer(berth.names.word(OWN))
                settings = BusSettings(
                    servers=(self._observed.address,),
                    credentials=NatsCredentials(user=name, password=password_of(name)),
                    topology=TopologySettings(prefix=berth.prefix, replicas=replicas),
                )
                session = await NatsBus(settings).connect(name=name)
                await session.apply()
                await session.create_consumer("RANKED", "binder-1")
                await session.close()
                for subject in _known(berth):
                    self._own(berth).publish(subject, b"{}")
            for client in self._observers.values():
                client.subscribe(">", 1)
            await self._settle()
            yield

    async def rights(self, expected: Mapping[str, set[Right]]) -> dict[str, set[Right]]:
        """What each user of each berth can do. Effects that are expected are waited for."""
        found = await self._heard(expected)
        for berth in self.berths:
            for user in berth.users:
                found[user.name] |= await self._published(berth, user, expected[user.name])
        return found

    def _own(self, berth: Berth) -> RawClient:
        return self._observers[berth.names.word(OWN)]

    # --- to publish

    async def _published(self, berth: Berth, user: User, expected: set[Right]) -> set[Right]:
        """What the user can do by publishing."""
        client = RawClient()
        await client.connect(self._attacked, user.name, password_of(user.name))
        sent: dict[int, Try] = {}
        for one in self._tries(berth, user):
            sent[self._publish(client, one, f"{user.inbox}.{{}}")] = one
        found = await self._until(client, lambda: self._found(berth, user, sent), _of(expected, "publishes", "asks"))
        possible = [one for number, one in sent.items() if self._arrived[number] or self._arrived[number + ANSWERS]]
        found |= await self._answered(berth, user, client, possible, expected)
        found |= await self._settled(berth, user, client, expected)
        found |= await self._with_headers(berth, user, client, possible, expected)
        found |= await self._removed(berth)
        await client.close()
        return without_narrower(found)

    def _tries(self, berth: Berth, user: User) -> Iterator[Try]:
        seen = {}
        for one in berth.tries(user):
            seen[one.subject] = replace(one, what=berth.plain(one.what))
        for other in self.berths:
            for one in other.tries(user):
                seen.setdefault(one.subject, replace(one, what=OF_ANOTHER + one.what))
        return iter(seen.values())

    def _publish(self, client: RawClient, one: Try, reply: str) -> int:
        number = next(self._numbers)
        answer = reply.format(number + ANSWERS)
        client.publish(_filled(one.subject, number), one.data, answer, {NUMBER: str(number), **one.headers})
        return number

    def _found(self, berth: Berth, user: User, sent: Mapping[int, Try]) -> set[Right]:
        found: set[Right] = set()
        for number, one in sent.items():
            arrived = self._arrived[number]
            if one.does == "asks" and (arrived or self._arrived[number + ANSWERS]):
                found.add(("asks", *verb_of(one.what)))
            elif arrived:
                found |= {(one.does, one.what, end) for end in self._ends(berth, user, arrived)}
        return found

    def _ends(self, berth: Berth, user: User, arrived: Iterable[tuple[str, Received]]) -> set[str]:
        """Where it has come to: streams; else JetStream or other accounts; else nowhere but the user's own."""
        own = berth.names.word(OWN)
        streams, others = set(), set()
        for account, one in arrived:
            if account == own and one.subject == STORED_PREFIX + one.headers.get("Nats-Subject", ""):
                streams.add(berth.plain(one.headers["Nats-Stream"]))
            elif account == own and one.subject.startswith(JETSTREAM):
                others.add("JetStream")
            elif account not in (user.account, "$SYS"):
                others.add(self._named(berth, account))
        return streams or others or {""}

    def _named(self, berth: Berth, account: str) -> str:
        """An account, without its berth's prefix."""
        is_own = any(account == user.account for user in berth.users)
        return berth.plain(account) if is_own else OF_ANOTHER + account

    # --- replies

    async def _answered(
        self, berth: Berth, user: User, client: RawClient, possible: Sequence[Try], expected: set[Right]
    ) -> set[Right]:
        """Where the answer to anything that the user may ask goes, by every form of reply."""
        kinds = {_kind(one): one for one in possible}
        sent: dict[int, Try] = {}
        replies = sorted({one.subject for one in self._tries(berth, user) if one.does == "publishes"})
        replies += [f"{api}STREAM.PURGE.*" for api in (API, IMPORTED_API)]
        settled = 0
        for pattern in replies:
            if not pattern.endswith(("*", ">")):
                continue  # no room for a number
            for one in kinds.values():
                number = next(self._numbers)
                reply = _filled(pattern, number + ANSWERS)
                client.publish(_filled(one.subject, number), one.data, reply, {NUMBER: str(number)})
                sent[number] = Try(does="has answers sent to", what=berth.plain(pattern), subject=pattern)
            if len(sent) - settled > AT_ONCE:
                settled = len(sent)
                await self._settle(client)

        def found() -> set[Right]:
            ends = {
                (one.what, end) for number, one in sent.items() for end in self._ends_of_answer(berth, user, number)
            }
            reached = {what for what, _ in ends}
            everywhere = reached >= {one.what for one in sent.values() if not one.subject.startswith(RESERVED)}
            lines = {("has answers sent to", what, end) for what, end in ends if end or not everywhere}
            return lines | ({("has answers sent to", ">", "")} if everywhere and sent else set())

        return await self._until(client, found, _of(expected, "has answers sent to"))

    def _ends_of_answer(self, berth: Berth, user: User, number: int) -> set[str]:
        answers = self._arrived[number + ANSWERS]
        return self._ends(berth, user, answers) if answers else set()

    # --- deliveries, headers, what was there

    async def _settled(self, berth: Berth, user: User, client: RawClient, expected: set[Right]) -> set[Right]:
        """Which words to which deliveries of other clients the server takes from the user."""
        sent: dict[int, Try] = {}
        for stage, consumer in (("PENDING", "scorer"), ("RANKED", "binder-1")):
            stream = berth.names.stream(stage)
            for acknowledgement, word in zip(await self._delivered(berth, stream, consumer), SETTLING, strict=True):
                number = next(self._numbers)
                client.publish(
                    acknowledgement, word.encode(), f"{user.inbox}.{number + ANSWERS}", {NUMBER: str(number)}
                )
                sent[number] = Try(does="settles", what=f"{stage} {consumer}", subject=word)

        def found() -> set[Right]:
            return {
                (one.does, one.what, one.subject) for number, one in sent.items() if self._arrived[number + ANSWERS]
            }

        return await self._until(client, found, _of(expected, "settles"))

    async def _delivered(self, berth: Berth, stream: str, consumer: str) -> list[str]:
        """The subjects by which the deliveries of some messages to an honest client are settled.

        The consumer may also deliver other messages again. The message of `KNOWN` must stay: it is not settled.
        """
        observer, number = self._own(berth), next(self._numbers)
        stage = {"PENDING": "pending", "RANKED": "ranked"}[berth.names.own_stream(stream)]
        own = [berth.names.subject(f"berth.{stage}.{number}.{each}") for each in range(len(SETTLING))]
        for subject in own:
            observer.publish(subject, b"{}")
        observer.subscribe(f"x.delivered.{number}", number)
        replies: dict[str, str] = {}
        async with asyncio.timeout(WAIT_SECONDS):
            while not replies.keys() >= set(own):
                request = b'{"batch":%d,"no_wait":true}' % AT_ONCE
                observer.publish(f"{API}CONSUMER.MSG.NEXT.{stream}.{consumer}", request, f"x.delivered.{number}")
                await self._settle()
                replies = {one.subject: one.reply for one in observer.received if one.sid == number}
        return [replies[subject] for subject in own]

    async def _with_headers(
        self, berth: Berth, user: User, client: RawClient, possible: Sequence[Try], expected: set[Right]
    ) -> set[Right]:
        """Which headers streams take from the user."""
        sent: dict[int, Try] = {}
        for one, headers in itertools.product(possible, HEADERS):
            if one.does == "publishes" and one.subject.startswith(("$KV.", PUTS, berth.names.subject("berth."))):
                words = next(f"{name}: {text}" if name in SETTINGS else name for name, text in headers.items())
                tried = Try(does="with headers", what=one.what, subject=one.subject, headers=headers)
                number = self._publish(client, tried, f"{user.inbox}.{{}}")
                sent[number] = replace(tried, subject=words)

        def found() -> set[Right]:
            return {
                (one.does, one.what, one.subject)
                for number, one in sent.items()
                for _, answer in self._arrived[number + ANSWERS]
                if b'"seq"' in answer.data and b'"error"' not in answer.data
            }

        return await self._until(client, found, _of(expected, "with headers"))

    async def _removed(self, berth: Berth) -> set[Right]:
        """The streams that lack what they had before."""
        found: set[Right] = set()
        for subject in _known(berth):
            stream = berth.names.stream_of(subject)
            number = next(self._numbers) + ANSWERS
            self._own(berth).publish(f"{API}DIRECT.GET.{stream}.{subject}", b"", f"x.{number}")
            async with asyncio.timeout(WAIT_SECONDS):
                while not self._arrived[number]:
                    await self._settle()
            if "Nats-Stream" not in self._arrived[number][0][1].headers:
                found.add(("removes", berth.plain(stream), ""))
                self._own(berth).publish(subject, b"{}")
        return found

    # --- to subscribe

    async def _heard(self, expected: Mapping[str, set[Right]]) -> dict[str, set[Right]]:
        """What each user of each berth can hear, all at the same time."""
        listeners = [Listener(berth, user, self._patterns(berth)) for berth in self.berths for user in berth.users]
        for listener in listeners:
            await listener.client.connect(self._attacked, listener.user.name, password_of(listener.user.name))
            await listener.subscribe()
        sources: dict[str, str] = {}
        for account, observer in self._observers.items():
            if account == "$SYS":
                continue
            subjects = set(itertools.chain(*(berth.subjects for berth in self.berths)))
            for pattern in sorted({*subjects, *(one.removeprefix(STORED_PREFIX) for one in subjects), f"{API}INFO"}):
                if not pattern.startswith(("$JS.ACK", "_R_")):
                    number = next(self._numbers)
                    sources[str(number)] = account
                    observer.publish(_filled(pattern, number), b"x", "", {NUMBER: str(number)})
        found = {listener.user.name: set() for listener in listeners}
        for listener in listeners:
            heard, name = partial(listener.found, sources, self._named), listener.user.name
            found[name] = without_narrower(await self._until(listener.client, heard, _of(expected[name], "hears")))
        for listener in listeners:
            await listener.client.close()
        return found

    def _patterns(self, berth: Berth) -> dict[str, str]:
        """The table's words for each subject that is subscribed to."""
        requests = (f"{api}{one}" for one in berth.requests for api in (API, IMPORTED_API))
        own = {one: berth.plain(one) for one in (*berth.subjects, *requests, *map(berth.names.filter, WIDE), *WIDE)}
        others = {one: OF_ANOTHER + one for other in self.berths for one in other.subjects}
        return others | own

    # --- to wait

    async def _until(self, client: RawClient, found: Callable[[], set[Right]], expected: set[Right]) -> set[Right]:
        """What was found once the expected is among it; what else there is has had as much time."""
        await self._settle(client)
        deadline = asyncio.get_running_loop().time() + SECONDS
        while not expected <= without_narrower(found()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
            await self._settle(client)
        return found()

    async def _settle(self, *clients: RawClient) -> None:
        """Wait until the servers have handled what was sent, and JetStream what it was asked."""
        for client in clients:
            await client.settle()
        barriers = []
        for berth in self.berths:
            number = next(self._numbers) + ANSWERS
            self._own(berth).publish(f"{API}STREAM.NAMES", b"", f"x.{number}")
            barriers.append(number)
        async with asyncio.timeout(WAIT_SECONDS):
            for account, observer in self._observers.items():
                await observer.settle()
                self._note(account, observer)
            while not all(self._arrived[number] for number in barriers):
                await asyncio.sleep(0.005)
                for account, observer in self._observers.items():
                    self._note(account, observer)

    def _note(self, account: str, observer: RawClient) -> None:
        for one in observer.received[self._read[account] :]:
            answer = next((token for token in one.subject.split(".") if token.isdigit() and int(token) > ANSWERS), "")
            if number := answer or one.headers.get(NUMBER, ""):
                self._arrived[int(number)].append((account, one))
        self._read[account] = len(observer.received)


class Listener:
    """A user's connection with a subscription, also in a queue group, to each of these subjects."""

    def __init__(self, berth: Berth, user: User, patterns: Mapping[str, str]) -> None:
        self.berth, self.user, self.client = berth, user, RawClient()
        self._patterns = list(patterns.items())

    async def subscribe(self) -> None:
        for place, (pattern, _) in enumerate(self._patterns):
            self.client.subscribe(pattern, 2 * place + 2)
            self.client.subscribe(pattern, 2 * place + 3, f"queue-of-{self.user.name}")
        await self.client.settle()

    def found(self, sources: Mapping[str, str], named: Callable[[Berth, str], str]) -> set[Right]:
        alone, queued = set(), set()
        for one in self.client.received:
            source = sources.get(one.headers.get(NUMBER, ""))
            if source is not None:
                _, what = self._patterns[one.sid // 2 - 1]
                stream = self.berth.plain(one.headers.get("Nats-Stream", ""))
                end = stream or ("" if source == self.user.account else named(self.berth, source))
                (queued if one.sid % 2 else alone).add(("hears", what, end))
        only_queued = {what for _, what, _ in queued} - {what for _, what, _ in alone}
        return alone | {("hears", f"{what} in a queue group", end) for _, what, end in queued if what in only_queued}


def _of(rights: set[Right], *acts: str) -> set[Right]:
    return {right for right in rights if right[0] in acts}


def differences(found: Mapping[str, set[Right]], expected: Mapping[str, set[Right]]) -> list[str]:
    """What users can do without a line in the table, and lines of what they cannot do."""
    more = [("can, without a line", user, right) for user in found for right in found[user] - expected[user]]
    less = [("cannot, with a line", user, right) for user in found for right in expected[user] - found[user]]
    return [
        f"{user} {can}: {does} {what!r}: {end or 'own account'}" for can, user, (does, what, end) in sorted(more + less)
    ]


def _known(berth: Berth) -> list[str]:
    staged = [f"berth.{stage}.{KNOWN}" for stage in STAGES]
    return [berth.names.filter(one) for one in (*staged, *(f"$KV.{bucket}.{KNOWN}" for bucket in BUCKETS))]


def _kind(one: Try) -> str:
    """Answers to requests with the same verb go the same way."""
    return one.subject if one.does == "publishes" else verb_of(one.what)[0]


def verb_of(request: str) -> tuple[str, str]:
    """The verb of a request to JetStream, and the stream and consumer that it is about."""
    known = (*OF_SERVER, *(f"STREAM.{verb}" for verb in OF_STREAM), *(f"CONSUMER.{verb}" for verb in OF_CONSUMER))
    plain = request.removeprefix(API).removeprefix(IMPORTED_API)
    verbs = sorted((*known, "CONSUMER.NAMES", "CONSUMER.LIST", "DIRECT.GET"), key=len, reverse=True)
    verb = next((one for one in verbs if plain == one or plain.startswith(f"{one}.")), plain)
    about = plain[len(verb) + 1 :]
    if verb == "DIRECT.GET" and "." in about:
        verb, about = verb + OF_SUBJECT, about.removesuffix(".>")
    return request.removesuffix(plain) + verb, about
