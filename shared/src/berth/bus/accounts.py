"""Who may do what on the bus, declared once: NATS accounts, their users, and what each may send and read.

Users of one account are no boundary. JetStream sends its answers to any reply subject without asking whether the asker
may publish there, so a user who may store a message and read it back could have the server publish it anywhere in the
account. So each level of trust has an account of its own, and reaches berth's account only by imports, which rewrite
replies (docs/protocol.md, 5a; docs/adr/0014-accounts-are-the-boundary.md).

The server's configuration and the tables of docs/security.md are generated from this declaration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from berth.api.subjects import PREFIX
from berth.bus.settings import DEFAULT_INBOX_PREFIX, TopologySettings
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
    bucket_prefix,
    bucket_stream,
    declared_streams,
)

API: Final = "$JS.API"
OWN: Final = "BERTH"
"""The account that has the streams. Only services that write on behalf of the cluster are in it."""
ADMIN: Final = "apply"
"""The admin's user. It is in the account of the streams, which it creates."""
ADMINS_INBOX: Final = "_INBOX_apply"
PEOPLE: Final = "PEOPLE"
DOMAIN: Final = "berth"
"""The JetStream domain under which other accounts reach the streams: ``nats --js-domain berth``."""
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
    answers_admins: bool = False
    """It has endpoints that change something, which only the admin's user may ask."""
    inbox: str = ""
    """The prefix of its inboxes. One of its own, so that no user receives the replies to another."""


def users(settings: TopologySettings | None = None) -> tuple[User, ...]:
    """Every user."""
    streams = tuple(stream.name for stream in declared_streams(settings or TopologySettings()))
    info = tuple(_api(f"STREAM.INFO.{name}") for name in streams)
    shared = (*info, _api(f"CONSUMER.INFO.{PENDING}.{SCORER}"), *_direct(bucket_stream(CONTROL)))
    create = tuple(_api(f"STREAM.CREATE.{name}") for name in streams)
    return (
        User(
            name=ADMIN,
            about="For an admin: berth bus apply, dead retry and drain. Creates and updates what berth declares.",
            account=OWN,
            sends=(
                *(*info, *create, *(_api(f"STREAM.UPDATE.{name}") for name in streams)),
                *(_api(f"CONSUMER.CREATE.{PENDING}.{SCORER}"), *_direct(bucket_stream(CONTROL))),
                *(_key(CONTROL, BUS_ID_KEY), _key(CONTROL, DRAIN_KEY), *_direct(DEAD)),
                *(_api(f"CONSUMER.LIST.{name}") for name in (PENDING, RANKED, DEAD)),
                *(Path(subject=f"{PREFIX}.admin.>"), Path(subject="$SRV.STATS.berth-watcher", many=True)),
            ),
            inbox=ADMINS_INBOX,
        ),
        User(
            name="watcher",
            about="Publishes PENDING and the mirror. Makes streams anew after the loss of the store or a full disk.",
            account=OWN,
            sends=(
                *(_stage("pending"), _stage("dead"), _key(CLUSTER, ">")),
                *(_key(CONTROL, "term.watcher"), _key(CONTROL, "cluster.id"), _key(CONTROL, BUS_ID_KEY)),
                *(*create, *shared, *(_api(f"CONSUMER.{verb}.{PENDING}") for verb in ("NAMES", "LIST"))),
                *(_api(f"CONSUMER.{verb}.{PENDING}.{SCORER}") for verb in ("CREATE", "DELETE")),
                *(_api(f"STREAM.DELETE.{name}") for name in (*streams, PROBE)),
                *(_api(f"STREAM.CREATE.{PROBE}"), _api(f"STREAM.INFO.{PROBE}"), Path(subject=f"{PREFIX}.{PROBE}")),
                *_stored(PENDING, RANKED, DECISIONS, *map(bucket_stream, BUCKETS)),
                Path(subject=f"{ADMINS_INBOX}.>"),
            ),
            reads=(_copies(f"{PREFIX}.decision.>"), *(_copies(bucket_prefix(bucket) + ">") for bucket in BUCKETS)),
            service="berth-watcher",
            answers_admins=True,
            inbox="_INBOX_watcher",
        ),
        User(
            name="binder",
            about="Consumes RANKED, publishes Decisions. Creates its own consumer and deletes those of former leaders.",
            account=OWN,
            sends=(
                *(_stage("decision"), _stage("dead"), _key(CONTROL, "term.binder"), _key(CONTROL, "fence.binder")),
                *(_key(COMMITS, ">"), *_direct(bucket_stream(COMMITS))),
                Path(subject=f"$JS.ACK.{RANKED}.*.>"),
                *(_api(f"CONSUMER.{verb}.{RANKED}") for verb in ("NAMES", "LIST")),
                *(_api(f"CONSUMER.{verb}.{RANKED}.*") for verb in ("CREATE", "INFO", "DELETE")),
                *(_api(f"CONSUMER.MSG.NEXT.{RANKED}.*"), *shared),
                *_stored(RANKED, *map(bucket_stream, (CONTROL, BANDWIDTH, FACTS))),
            ),
            reads=tuple(_copies(bucket_prefix(bucket) + ">") for bucket in (CONTROL, BANDWIDTH, FACTS)),
            service="berth-binder",
            inbox="_INBOX_binder",
        ),
        User(
            name="scorer",
            about="Consumes PENDING, publishes RANKED. Reads the mirror, live data and others' results.",
            account="SCORERS",
            sends=(
                *(_stage("ranked"), _stage("dead"), _key(TRIES, ">")),
                *(
                    Path(subject=f"$JS.ACK.{PENDING}.{SCORER}.>"),
                    _api(f"CONSUMER.MSG.NEXT.{PENDING}.{SCORER}", many=True),
                ),
                *shared,
                *(*_direct(bucket_stream(TRIES)),),
                *_stored(RANKED, DECISIONS, *map(bucket_stream, (CLUSTER, BANDWIDTH, FACTS))),
            ),
            reads=(
                *(_copies(f"{PREFIX}.ranked.>"), _copies(f"{PREFIX}.decision.>")),
                *(_copies(bucket_prefix(bucket) + ">") for bucket in (CLUSTER, BANDWIDTH, FACTS)),
            ),
            service="berth-scorer",
            inbox="_INBOX_scorer",
        ),
        User(
            name="collector",
            about="Writes the nodes' bandwidth. Reads the nodes from the mirror.",
            account="COLLECTORS",
            sends=(_key(BANDWIDTH, ">"), *shared, *_stored(*map(bucket_stream, (CLUSTER, BANDWIDTH)))),
            reads=(_copies(bucket_prefix(CLUSTER) + "node.>"), _copies(bucket_prefix(BANDWIDTH) + ">")),
            service="berth-metrics-collector",
            inbox="_INBOX_collector",
        ),
        User(
            name="people",
            about="For people: berth why, trace, top, queue and dead, and the NATS CLI. May only look, and put facts.",
            account=PEOPLE,
            sends=(
                *(_key(FACTS, ">"), *(_api(name) for name in ("INFO", "STREAM.NAMES", "STREAM.LIST")), *info),
                *(_api(f"CONSUMER.{verb}.{name}") for verb in ("NAMES", "LIST") for name in streams),
                *(_api(f"CONSUMER.INFO.{PENDING}.{SCORER}"), _api(f"CONSUMER.INFO.{RANKED}.*")),
                *_stored(PENDING, RANKED, DECISIONS, DEAD, *map(bucket_stream, BUCKETS)),
                *(Path(subject="$SRV.>", many=True), Path(subject=f"{PREFIX}.service.>")),
            ),
            reads=(_copies(">"),),
            inbox=DEFAULT_INBOX_PREFIX,
        ),
    )


def nats_conf(settings: TopologySettings | None = None) -> str:
    """The accounts as a part of nats-server's configuration. Passwords are variables: ``$scorer_PASSWORD``."""
    declared = users(settings)
    lines = ["# Generated by `berth bus permissions --format nats-conf`. Do not edit.", "accounts {"]
    for name in _accounts(declared):
        lines += [f"  {name}: {{", *(f"    {line}" for line in _account(name, declared)), "  }"]
    return "\n".join([*lines, "}", ""])


def _account(name: str, declared: Sequence[User]) -> Iterator[str]:
    members = [user for user in declared if user.account == name]
    if name == OWN:
        yield "jetstream: enabled"
    yield "users: ["
    for user in members:
        yield from (f"  {line}" for line in _user(user))
    yield "]"
    exports = list(_shared_streams(declared)) if name == OWN else []
    imports = [] if name == OWN else [line for user in members for line in _shared_imports(user)]
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
    return subject if user.account == OWN else subject.replace(f"{API}.", f"$JS.{DOMAIN}.API.", 1)


def publishes(user: User) -> list[str]:
    """Every subject that the user may publish to."""
    own = [REWRITTEN_REPLIES, f"{_announcements(user)}*"] if user.service else []
    return list(dict.fromkeys([*(local(user, path.subject) for path in user.sends), *own]))


def subscribes(user: User) -> list[str]:
    """Every subject that the user may subscribe to."""
    people = [f"{PREFIX}.>"] if user.account == PEOPLE else []
    announced = [f"{PREFIX}.announce.>"] if user.service else []
    return [f"{user.inbox}.>", *user.reads, *people, *announced, *_answers(user)]


def _answers(user: User) -> list[str]:
    """The subjects of NATS's service protocol on which the user's service answers."""
    if not user.service:
        return []
    verbs = [f"$SRV.{verb}" for verb in ("PING", "INFO", "STATS")]
    named = [f"{verb}.{user.service}{rest}" for verb in verbs for rest in ("", ".>")]
    asked = [f"{PREFIX}.service.{user.service}.>"]
    if user.answers_admins:
        asked.append(f"{PREFIX}.admin.{user.service}.>")
    return [*verbs, *named, *asked]


def _announcements(user: User) -> str:
    return f"{PREFIX}.announce.{user.service}."


def _shared_streams(declared: Iterable[User]) -> Iterator[str]:
    """What other accounts may reach of the streams: each subject once, with the accounts that import it."""
    paths: dict[Path, dict[str, None]] = {}
    copies: dict[str, dict[str, None]] = {}
    for user in declared:
        if user.account != OWN:
            for path in user.sends:
                if not _is_asked_of_services(path):
                    paths.setdefault(path, {})[user.account] = None
            for subject in user.reads:
                copies.setdefault(subject, {})[user.account] = None
    for path, accounts in paths.items():
        kind = ", response_type: stream" if path.many else ""
        yield f"{{ service: {_quoted(path.subject)}{kind}, accounts: [{', '.join(accounts)}] }}"
    for subject, accounts in copies.items():
        yield f"{{ stream: {_quoted(subject)}, accounts: [{', '.join(accounts)}] }}"


def _shared_imports(user: User) -> Iterator[str]:
    for path in user.sends:
        if not _is_asked_of_services(path):
            renamed = local(user, path.subject)
            to = f", to: {_quoted(renamed)}" if renamed != path.subject else ""
            yield f"{{ service: {{ account: {OWN}, subject: {_quoted(path.subject)} }}{to} }}"
    for subject in user.reads:
        yield f"{{ stream: {{ account: {OWN}, subject: {_quoted(subject)} }} }}"
    if user.account == PEOPLE:  # `nats sub 'berth.*.*.default.web-0'` follows a pod
        copies = _quoted(_copies(f"{PREFIX}.>"))
        yield f'{{ stream: {{ account: {OWN}, subject: {copies} }}, to: "{PREFIX}.>" }}'


def _service_exports(user: User, declared: Iterable[User]) -> Iterator[str]:
    """A service's announcements, for all, and its answers, for those who ask services."""
    if not user.service:
        return
    others = ", ".join(account for account in _accounts(declared) if account != user.account)
    yield f"{{ stream: {_quoted(_announcements(user) + '>')}, accounts: [{others}] }}"
    yield f'{{ service: "$SRV.>", response_type: stream, accounts: [{PEOPLE}] }}'
    yield f'{{ service: "{PREFIX}.service.{user.service}.>", accounts: [{PEOPLE}] }}'


def _service_imports(name: str, other: str, declared: Iterable[User]) -> Iterator[str]:
    """What an account imports of another account's services."""
    for user in declared:
        if user.account == other and user.service:
            yield f"{{ stream: {{ account: {other}, subject: {_quoted(_announcements(user) + '>')} }} }}"
            if name == PEOPLE:
                yield f'{{ service: {{ account: {other}, subject: "$SRV.>" }} }}'
                yield f'{{ service: {{ account: {other}, subject: "{PREFIX}.service.{user.service}.>" }} }}'


def _accounts(declared: Iterable[User]) -> list[str]:
    return list(dict.fromkeys(user.account for user in declared))


def _is_asked_of_services(path: Path) -> bool:
    return path.subject.startswith(("$SRV.", f"{PREFIX}.service."))


def _stage(stage: str) -> Path:
    return Path(subject=f"{PREFIX}.{stage}.>")


def _key(bucket: str, keys: str) -> Path:
    return Path(subject=bucket_prefix(bucket) + keys)


def _copies(subject: str) -> str:
    return STORED_PREFIX + subject


def _api(request: str, *, many: bool = False) -> Path:
    return Path(subject=f"{API}.{request}", many=many)


def _direct(stream: str) -> tuple[Path, ...]:
    """Direct Get of one subject, and of many messages.

    They are apart: the server remembers a request with many answers until the asker's inbox has gone.
    """
    return (_api(f"DIRECT.GET.{stream}.>"), _api(f"DIRECT.GET.{stream}", many=True))


def _stored(*streams: str) -> Iterator[Path]:
    """Everything that an ordered reader asks for."""
    for stream in streams:
        yield from (*_direct(stream), _api(f"STREAM.MSG.GET.{stream}"), _api(f"STREAM.INFO.{stream}"))


def _block(name: str, lines: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(lines))
    return [f"{name}: [", *(f"  {line}" for line in unique), "]"] if unique else []


def _quoted(text: str) -> str:
    return json.dumps(text)
