"""Who may do what on the bus, declared once: NATS accounts, their users, and what each may send and read.

Users of one account are no boundary. JetStream sends its answers to any reply subject without asking whether the asker
may publish there, so a user who may store a message and read it back could have the server publish it anywhere in the
account. So each level of trust has an account of its own, and reaches berth's account only by imports, which rewrite
replies (docs/protocol.md, 8; docs/adr/0014-accounts-are-the-boundary.md).

The server's configuration and the tables of docs/security.md are generated from this declaration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from berth.bus.settings import DEFAULT_INBOX_PREFIX, IMPORTED_DOMAIN, TopologySettings
from berth.bus.topology import (
    BANDWIDTH,
    BUCKETS,
    BUS_ID_KEY,
    CLUSTER,
    COMMITS,
    CONTROL,
    DEAD,
    DECISIONS,
    DRAIN_KEY,
    FACTS,
    PENDING,
    PROBE,
    RANKED,
    SCORER,
    STORED_PREFIX,
    TRIES,
    Names,
    bucket_prefix,
    bucket_stream,
    declared_streams,
)
from berth.messages.subjects import PREFIX

API: Final = "$JS.API"
OWN: Final = "BERTH"
"""The account that has the streams. Only services that write on behalf of the cluster are in it."""
ADMIN: Final = "apply"
"""The admin's user. It is in the account of the streams, which it creates."""
PEOPLE: Final = "PEOPLE"
DOMAIN: Final = IMPORTED_DOMAIN
REWRITTEN_REPLIES: Final = "_R_.>"
"""Replies to requests from other accounts, as the server rewrites them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A subject that a user may publish to."""

    subject: str
    many: bool = False
    """The answer is several messages: a pull, a batched Direct Get, a question to all services."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of NATS, its account, and everything that it may do."""

    name: str
    account: str
    about: str
    sends: tuple[Path, ...]
    reads: tuple[str, ...] = ()
    """Subjects under which streams republish what they have stored."""
    service: str = ""
    """Its name in NATS's service protocol; it may answer there."""
    announces: bool = True
    """Its service tells the others which configuration it has, and hears theirs."""
    broadcasts: tuple[str, ...] = ()
    """What it publishes for people besides; no stream has it."""
    answers_admins: bool = False
    """It has endpoints that change something, which only the admin's user may ask."""
    inbox: str
    """The prefix of its inboxes. One of its own, so that no user receives the replies to another."""
    names: Names
    """The names of its berth."""

    @property
    def is_own(self) -> bool:
        """Whether it is in the account that has the streams."""
        return self.account == self.names.word(OWN)

    @property
    def is_person(self) -> bool:
        """Whether it is for people, in the account that may only look."""
        return self.account == self.names.word(PEOPLE)


def users(prefix: str = "") -> tuple[User, ...]:
    """Every user of the berth with this prefix."""
    names = Names(prefix)
    of = _Subjects(names)
    own = names.word(OWN)
    streams = tuple(stream.name for stream in declared_streams(TopologySettings(prefix=prefix)))
    pending, ranked, dead, probe = (names.stream(name) for name in (PENDING, RANKED, DEAD, PROBE))
    admins_inbox = f"_INBOX_{names.word(ADMIN)}"
    info = tuple(_api(f"STREAM.INFO.{name}") for name in streams)
    shared = (*info, _api(f"CONSUMER.INFO.{pending}.{SCORER}"), *of.direct(bucket_stream(CONTROL)))
    create = tuple(_api(f"STREAM.CREATE.{name}") for name in streams)
    return (
        User(
            name=names.word(ADMIN),
            about="For an admin: berth bus apply, dead retry and drain. Creates and updates what berth declares.",
            account=own,
            sends=(
                *(*info, *create, *(_api(f"STREAM.UPDATE.{name}") for name in streams)),
                *(_api(f"CONSUMER.CREATE.{pending}.{SCORER}"), *of.direct(bucket_stream(CONTROL))),
                *(of.key(CONTROL, BUS_ID_KEY), of.key(CONTROL, DRAIN_KEY), *of.direct(DEAD)),
                *(_api(f"CONSUMER.LIST.{name}") for name in (pending, ranked, dead)),
                *(of.path(f"{PREFIX}.admin.>"), Path(subject=f"$SRV.STATS.{names.word('berth-watcher')}", many=True)),
            ),
            names=names,
            inbox=admins_inbox,
        ),
        User(
            name=names.word("watcher"),
            about="Publishes PENDING and the mirror. Makes streams anew after the loss of the store or a full disk.",
            account=own,
            sends=(
                *(of.stage("pending"), of.stage("dead"), of.key(CLUSTER, ">")),
                *(of.key(CONTROL, "term.watcher"), of.key(CONTROL, "cluster.id"), of.key(CONTROL, BUS_ID_KEY)),
                *(*create, *shared, *(_api(f"CONSUMER.{verb}.{pending}") for verb in ("NAMES", "LIST"))),
                *(_api(f"CONSUMER.{verb}.{pending}.{SCORER}") for verb in ("CREATE", "DELETE")),
                *(_api(f"STREAM.DELETE.{name}") for name in (*streams, probe)),
                *(_api(f"STREAM.CREATE.{probe}"), _api(f"STREAM.INFO.{probe}"), of.path(f"{PREFIX}.{PROBE}")),
                *of.stored(PENDING, RANKED, DECISIONS, *map(bucket_stream, BUCKETS)),
                Path(subject=f"{admins_inbox}.>"),
            ),
            reads=(of.copies(f"{PREFIX}.decision.>"), *(of.copies(bucket_prefix(bucket) + ">") for bucket in BUCKETS)),
            service="berth-watcher",
            answers_admins=True,
            names=names,
            inbox=f"_INBOX_{names.word('watcher')}",
        ),
        User(
            name=names.word("binder"),
            about="Consumes RANKED, publishes Decisions. Creates its own consumer and deletes those of former leaders.",
            account=own,
            sends=(
                *(
                    of.stage("decision"),
                    of.stage("dead"),
                    of.key(CONTROL, "term.binder"),
                    of.key(CONTROL, "fence.binder"),
                ),
                *(of.key(COMMITS, ">"), *of.direct(bucket_stream(COMMITS))),
                Path(subject=f"$JS.ACK.{ranked}.*.>"),
                *(_api(f"CONSUMER.{verb}.{ranked}") for verb in ("NAMES", "LIST")),
                *(_api(f"CONSUMER.{verb}.{ranked}.*") for verb in ("CREATE", "INFO", "DELETE")),
                *(_api(f"CONSUMER.MSG.NEXT.{ranked}.*"), *shared),
                *of.stored(RANKED, *map(bucket_stream, (CONTROL, BANDWIDTH, FACTS))),
            ),
            reads=tuple(of.copies(bucket_prefix(bucket) + ">") for bucket in (CONTROL, BANDWIDTH, FACTS)),
            service="berth-binder",
            names=names,
            inbox=f"_INBOX_{names.word('binder')}",
        ),
        User(
            name=names.word("scorer"),
            about="Consumes PENDING, publishes RANKED. Reads the mirror, live data and others' results.",
            account=names.word("SCORERS"),
            sends=(
                *(of.stage("ranked"), of.stage("dead"), of.key(TRIES, ">")),
                *(
                    Path(subject=f"$JS.ACK.{pending}.{SCORER}.>"),
                    _api(f"CONSUMER.MSG.NEXT.{pending}.{SCORER}", many=True),
                ),
                *shared,
                *(*of.direct(bucket_stream(TRIES)),),
                *of.stored(RANKED, DECISIONS, *map(bucket_stream, (CLUSTER, BANDWIDTH, FACTS))),
            ),
            reads=(
                *(of.copies(f"{PREFIX}.ranked.>"), of.copies(f"{PREFIX}.decision.>")),
                *(of.copies(bucket_prefix(bucket) + ">") for bucket in (CLUSTER, BANDWIDTH, FACTS)),
            ),
            service="berth-scorer",
            names=names,
            inbox=f"_INBOX_{names.word('scorer')}",
        ),
        User(
            name=names.word("collector"),
            about="Writes the nodes' bandwidth. Reads the nodes from the mirror.",
            account=names.word("COLLECTORS"),
            sends=(of.key(BANDWIDTH, ">"), *shared, *of.stored(*map(bucket_stream, (CLUSTER, BANDWIDTH)))),
            reads=(of.copies(bucket_prefix(CLUSTER) + "node.>"), of.copies(bucket_prefix(BANDWIDTH) + ">")),
            service="berth-metrics-collector",
            names=names,
            inbox=f"_INBOX_{names.word('collector')}",
        ),
        User(
            name=names.word("shadow"),
            about="For shadows: reads what scorers read and what they say. Publishes comparisons, for people only.",
            account=names.word("SHADOWS"),
            sends=(*shared, *of.stored(RANKED, DECISIONS, *map(bucket_stream, (CLUSTER, BANDWIDTH, FACTS)))),
            reads=(
                *(of.copies(f"{PREFIX}.ranked.>"), of.copies(f"{PREFIX}.decision.>")),
                *(of.copies(bucket_prefix(bucket) + ">") for bucket in (CLUSTER, BANDWIDTH, FACTS)),
            ),
            service="berth-shadow",
            announces=False,
            broadcasts=(names.subject(f"{PREFIX}.shadow.>"),),
            names=names,
            inbox=f"_INBOX_{names.word('shadow')}",
        ),
        User(
            name=names.word("people"),
            about="For people: berth why, trace, top, queue and dead, and the NATS CLI. May only look, and put facts.",
            account=names.word(PEOPLE),
            sends=(
                *(of.key(FACTS, ">"), *(_api(name) for name in ("INFO", "STREAM.NAMES", "STREAM.LIST")), *info),
                *(_api(f"CONSUMER.{verb}.{name}") for verb in ("NAMES", "LIST") for name in streams),
                *(_api(f"CONSUMER.INFO.{pending}.{SCORER}"), _api(f"CONSUMER.INFO.{ranked}.*")),
                *of.stored(PENDING, RANKED, DECISIONS, DEAD, *map(bucket_stream, BUCKETS)),
                *(Path(subject="$SRV.>", many=True), of.path(f"{PREFIX}.service.>")),
            ),
            reads=(f"{STORED_PREFIX}>",),
            names=names,
            inbox=f"{DEFAULT_INBOX_PREFIX}_{names.word('people')}" if prefix else DEFAULT_INBOX_PREFIX,
        ),
    )


def nats_conf(*prefixes: str) -> str:
    """The accounts as a part of nats-server's configuration, of the berths with these prefixes; by default of one.

    Passwords are variables: ``$scorer_PASSWORD``. Berths share no account, so none reaches another's streams
    (docs/adr/0024-a-prefix-for-each-berth.md).
    """
    lines = ["# Generated by `berth bus permissions --format nats-conf`. Do not edit.", "accounts {"]
    for prefix in dict.fromkeys(prefixes or ("",)):
        declared = users(prefix)
        for name in _accounts(declared):
            lines += [f"  {name}: {{", *(f"    {line}" for line in _account(name, declared)), "  }"]
    return "\n".join([*lines, "}", ""])


def _account(name: str, declared: Sequence[User]) -> Iterator[str]:
    members = [user for user in declared if user.account == name]
    is_own = any(user.is_own for user in members)
    if is_own:
        yield "jetstream: enabled"
    yield "users: ["
    for user in members:
        yield from (f"  {line}" for line in _user(user))
    yield "]"
    exports = list(_shared_streams(declared)) if is_own else []
    imports = [] if is_own else [line for user in members for line in _shared_imports(user)]
    for user in members:
        exports += _service_exports(user, declared)
    for account in _accounts(declared):
        if account != name:
            imports += _service_imports(name, account, declared)
    yield from _block("exports", exports)
    yield from _block("imports", imports)


def _user(user: User) -> Iterator[str]:
    yield f"# {user.about}"
    yield f"{{ user: {user.name}, password: ${user.name}_PASSWORD, permissions: {{"
    yield from (f"  {line}" for line in _block("publish", map(_quoted, publishes(user))))
    yield from (f"  {line}" for line in _block("subscribe", map(_quoted, subscribes(user))))
    yield "} }"


def local(user: User, subject: str) -> str:
    """A subject as the user's account has it: JetStream's API is imported as that of a domain.

    Each account has an API of its own under ``$JS.API``, which would answer that it has no JetStream.
    """
    return subject if user.is_own else subject.replace(f"{API}.", f"$JS.{DOMAIN}.API.", 1)


def publishes(user: User) -> list[str]:
    """Every subject that the user may publish to."""
    announced = [f"{_announcements(user)}*"] if user.announces else []
    own = [REWRITTEN_REPLIES, *announced] if user.service else []
    return list(dict.fromkeys([*(local(user, path.subject) for path in user.sends), *own, *user.broadcasts]))


def subscribes(user: User) -> list[str]:
    """Every subject that the user may subscribe to."""
    people = [user.names.subject(f"{PREFIX}.>")] if user.is_person else []
    announced = [user.names.subject(f"{PREFIX}.announce.>")] if user.service and user.announces else []
    return [f"{user.inbox}.>", *user.reads, *people, *announced, *_answers(user)]


def _answers(user: User) -> list[str]:
    """The subjects of NATS's service protocol on which the user's service answers."""
    if not user.service:
        return []
    verbs = [f"$SRV.{verb}" for verb in ("PING", "INFO", "STATS")]
    named = [f"{verb}.{user.names.word(user.service)}{rest}" for verb in verbs for rest in ("", ".>")]
    asked = [_asked(user)]
    if user.answers_admins:
        asked.append(user.names.subject(f"{PREFIX}.admin.{user.service}.>"))
    return [*verbs, *named, *asked]


def _announcements(user: User) -> str:
    return user.names.subject(f"{PREFIX}.announce.{user.service}.")


def _asked(user: User) -> str:
    """Where people ask the user's service."""
    return user.names.subject(f"{PREFIX}.service.{user.service}.>")


def _shared_streams(declared: Iterable[User]) -> Iterator[str]:
    """What other accounts may reach of the streams: each subject once, with the accounts that import it."""
    paths: dict[Path, dict[str, None]] = {}
    copies: dict[str, dict[str, None]] = {}
    for user in declared:
        if not user.is_own:
            for path in user.sends:
                if not _is_asked_of_services(user, path):
                    paths.setdefault(path, {})[user.account] = None
            for subject in user.reads:
                copies.setdefault(subject, {})[user.account] = None
    for path, accounts in paths.items():
        kind = ", response_type: stream" if path.many else ""
        yield f"{{ service: {_quoted(path.subject)}{kind}, accounts: [{', '.join(accounts)}] }}"
    for subject, accounts in copies.items():
        yield f"{{ stream: {_quoted(subject)}, accounts: [{', '.join(accounts)}] }}"


def _shared_imports(user: User) -> Iterator[str]:
    own = user.names.word(OWN)
    for path in user.sends:
        if not _is_asked_of_services(user, path):
            renamed = local(user, path.subject)
            to = f", to: {_quoted(renamed)}" if renamed != path.subject else ""
            yield f"{{ service: {{ account: {own}, subject: {_quoted(path.subject)} }}{to} }}"
    for subject in user.reads:
        yield f"{{ stream: {{ account: {own}, subject: {_quoted(subject)} }} }}"
    if user.is_person:  # `nats sub 'berth.*.*.default.web-0'` follows a pod
        followed = user.names.subject(f"{PREFIX}.>")
        copies = _quoted(STORED_PREFIX + followed)
        yield f"{{ stream: {{ account: {own}, subject: {copies} }}, to: {_quoted(followed)} }}"


def _service_exports(user: User, declared: Iterable[User]) -> Iterator[str]:
    """A service's announcements, for all, and its answers, for those who ask services."""
    if not user.service:
        return
    people = user.names.word(PEOPLE)
    hearing = [one.account for one in declared if one.is_person or (one.announces and one.account != user.account)]
    if user.announces:
        others = ", ".join(dict.fromkeys(hearing))
        yield f"{{ stream: {_quoted(_announcements(user) + '>')}, accounts: [{others}] }}"
    for subject in user.broadcasts:
        yield f"{{ stream: {_quoted(subject)}, accounts: [{people}] }}"
    yield f'{{ service: "$SRV.>", response_type: stream, accounts: [{people}] }}'
    yield f"{{ service: {_quoted(_asked(user))}, accounts: [{people}] }}"


def _service_imports(name: str, other: str, declared: Iterable[User]) -> Iterator[str]:
    """What an account imports of another account's services."""
    for user in declared:
        if user.account == other and user.service:
            if user.announces and any(one.announces for one in declared if one.account == name):
                yield f"{{ stream: {{ account: {other}, subject: {_quoted(_announcements(user) + '>')} }} }}"
            if name == user.names.word(PEOPLE):
                yield from (f"{{ stream: {{ account: {other}, subject: {_quoted(it)} }} }}" for it in user.broadcasts)
                yield f'{{ service: {{ account: {other}, subject: "$SRV.>" }} }}'
                yield f"{{ service: {{ account: {other}, subject: {_quoted(_asked(user))} }} }}"


def _accounts(declared: Iterable[User]) -> list[str]:
    return list(dict.fromkeys(user.account for user in declared))


def _is_asked_of_services(user: User, path: Path) -> bool:
    return path.subject.startswith(("$SRV.", user.names.subject(f"{PREFIX}.service.")))


def _api(request: str, *, many: bool = False) -> Path:
    return Path(subject=f"{API}.{request}", many=many)


class _Subjects:
    """The subjects of one berth that several users have. Streams and buckets are named without prefix."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def path(self, subject: str) -> Path:
        return Path(subject=self._names.filter(subject))

    def stage(self, stage: str) -> Path:
        return self.path(f"{PREFIX}.{stage}.>")

    def key(self, bucket: str, keys: str) -> Path:
        return self.path(bucket_prefix(bucket) + keys)

    def copies(self, subject: str) -> str:
        return STORED_PREFIX + self._names.filter(subject)

    def direct(self, stream: str) -> tuple[Path, ...]:
        """Direct Get of one subject, and of many messages.

        They are apart: the server remembers a request with many answers until the asker's inbox has gone.
        """
        there = self._names.stream(stream)
        return (_api(f"DIRECT.GET.{there}.>"), _api(f"DIRECT.GET.{there}", many=True))

    def stored(self, *streams: str) -> Iterator[Path]:
        """Everything that an ordered reader asks for."""
        for stream in streams:
            there = self._names.stream(stream)
            yield from (*self.direct(stream), _api(f"STREAM.MSG.GET.{there}"), _api(f"STREAM.INFO.{there}"))


def _block(name: str, lines: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(lines))
    return [f"{name}: [", *(f"  {line}" for line in unique), "]"] if unique else []


def _quoted(text: str) -> str:
    return json.dumps(text)
