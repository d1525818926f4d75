"""Rights on the bus, declared once: NATS accounts, their users, and the subjects of each.

Users of one account are no boundary. Each level of trust therefore has an account of its own and reaches berth's
account only by imports, which rewrite replies (docs/protocol.md, 8; docs/adr/0014-accounts-are-the-boundary.md).

The server's configuration and the tables of docs/security.md are generated from this declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from berth.bus.settings import DEFAULT_INBOX_PREFIX, IMPORTED_DOMAIN, TopologySettings
from berth.bus.topology import (
    BANDWIDTH,
    BUCKETS,
    BUS_ID_KEY,
    CLUSTER,
    COMMITS,
    COMPARED,
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
from berth.messages.livedata import POD_FAILURES
from berth.messages.subjects import PREFIX

API: Final = "$JS.API"
# The account that has the streams; only for services that write on behalf of the cluster.
OWN: Final = "BERTH"
# The admin's user. It is in the account of the streams, which it creates.
ADMIN: Final = "apply"
PEOPLE: Final = "PEOPLE"
# Bytes of a message, for users that write small ones: announcements have up to 96 KiB, comparisons and facts 64.
SMALL_BYTES: Final = 128 * 1024
DOMAIN: Final = IMPORTED_DOMAIN
DOMAINS_API: Final = f"$JS.{DOMAIN}.API"
# Replies to requests from other accounts, as the server rewrites them.
REWRITTEN_REPLIES: Final = "_R_.>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A subject that a user may publish to."""

    subject: str
    # The answer is several messages: a pull, a batched Direct Get, a request to all services.
    many: bool = False
    # The user's account has it under the domain's API.
    by_domain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of NATS, its account, and all its rights."""

    name: str
    account: str
    about: str
    sends: tuple[Path, ...]
    reads: tuple[str, ...] = ()  # subjects under which streams republish stored messages
    service: str = ""  # its name in NATS's service protocol; it may answer there
    announces: bool = True  # its service publishes its configuration to the others, and receives theirs
    broadcasts: tuple[str, ...] = ()  # for people; no stream stores them
    answers_admins: bool = False  # it has endpoints with side effects, for the admin's user only
    connections: int = 0  # that its account may have at once; 0: any number
    payload_bytes: int = 0  # of a message with its headers; 0: the server's limit
    # The prefix of its inboxes, its own, so that no user receives the replies to another.
    inbox: str
    names: Names  # the names of its berth

    @property
    def is_own(self) -> bool:
        """Whether the user is in the account that has the streams."""
        return self.account == self.names.word(OWN)

    @property
    def is_person(self) -> bool:
        """Whether the user is in the account that may only look."""
        return self.account == self.names.word(PEOPLE)


class _Subjects:
    """The subjects of one berth. Streams and buckets are named without prefix."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._streams = [stream.name for stream in declared_streams(TopologySettings(prefix=names.prefix))]
        self._words = {
            "pending": names.stream(PENDING),
            "ranked": names.stream(RANKED),
            "dead": names.stream(DEAD),
            "probe": names.stream(PROBE),
            "scorer": SCORER,
            "watcher": names.word("berth-watcher"),
            "admins_inbox": _inbox(names, ADMIN),
        }

    def path(self, subject: str, *, many: bool = False) -> Path:
        return Path(subject=self.names.filter(subject), many=many)

    def api(self, request: str, *, many: bool = False) -> Iterator[Path]:
        """``{each}`` stands for each stream, ``{pending}`` for the stream PENDING."""
        for stream in self._streams if "{each}" in request else [""]:
            yield Path(subject=f"{API}.{self.named(request.replace('{each}', stream))}", many=many)

    def named(self, subject: str) -> str:
        """``$JS.ACK.east-RANKED.*`` for ``$JS.ACK.{ranked}.*``."""
        return subject.format(**self._words)

    def copies(self, subject: str) -> str:
        return STORED_PREFIX + self.names.filter(subject)

    def direct(self, stream: str) -> Iterator[Path]:
        """Direct Get of one subject, and of many messages.

        They are separate: the server remembers a request with many answers until the requester's inbox has gone.
        """
        there = self.names.stream(stream)
        yield from self.api(f"DIRECT.GET.{there}.>")
        yield from self.api(f"DIRECT.GET.{there}", many=True)

    def stored(self, stream: str) -> Iterator[Path]:
        there = self.names.stream(stream)
        yield from self.direct(stream)
        yield from self.api(f"STREAM.MSG.GET.{there}")
        yield from self.api(f"STREAM.INFO.{there}")


# The subjects that a user may publish to, given the subjects of its berth.
Right = Callable[[_Subjects], Iterable[Path]]


def _publish(*subjects: str) -> Right:
    return lambda of: [of.path(subject) for subject in subjects]


def _put(bucket: str, *keys: str) -> Right:
    return _publish(*(bucket_prefix(bucket) + key for key in keys))


def _put_by_domain(bucket: str) -> Right:
    """As ``nats kv put`` and other clients with a domain do: they put its API before the bucket's subject."""
    return lambda of: [Path(subject=of.names.filter(bucket_prefix(bucket) + ">"), by_domain=True)]


def _api(*requests: str, many: bool = False) -> Right:
    return lambda of: [path for request in requests for path in of.api(request, many=many)]


def _request(*subjects: str, many: bool = False) -> Right:
    # NATS's own subjects, which have a prefix only in the names inside them.
    return lambda of: [Path(subject=of.named(subject), many=many) for subject in subjects]


def _get(*streams: str) -> Right:
    return lambda of: [path for stream in streams for path in of.direct(stream)]


def _get_one(stream: str, subject: str) -> Right:
    return lambda of: of.api(f"DIRECT.GET.{of.names.stream(stream)}.{of.names.filter(subject)}")


def _identity(of: _Subjects) -> Iterable[Path]:
    """The key by which a client notices that the streams are new."""
    return _get_one(bucket_stream(CONTROL), bucket_prefix(CONTROL) + BUS_ID_KEY)(of)


def _info(*streams: str) -> Right:
    return lambda of: [path for one in streams for path in of.api(f"STREAM.INFO.{of.names.stream(one)}")]


def _compare(service: str) -> Right:
    """The right to compare the streams of a service with their declaration."""
    return _info(*COMPARED[service])


def _read(*streams: str) -> Right:
    return lambda of: [path for stream in streams for path in of.stored(stream)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """A row of the table: a user before its berth has a prefix."""

    account: str
    about: str
    sends: tuple[Right, ...]
    # Subjects without prefix whose republished copies it reads.
    reads: tuple[str, ...] = ()
    service: str = ""
    announces: bool = True
    broadcasts: tuple[str, ...] = ()
    answers_admins: bool = False
    connections: int = 0
    payload_bytes: int = 0


def _keys(*buckets: str) -> tuple[str, ...]:
    return tuple(bucket_prefix(bucket) + ">" for bucket in buckets)


def _buckets(*buckets: str) -> tuple[str, ...]:
    return tuple(map(bucket_stream, buckets))


# Requests of watcher and binder: whether the streams are as declared, terms, and whether the drain is over.
_LOOK: Final = (_api("STREAM.INFO.{each}", "CONSUMER.INFO.{pending}.{scorer}"), _get(bucket_stream(CONTROL)))
# The subjects that a ranking depends on.
_RANKINGS: Final = (f"{PREFIX}.ranked.>", f"{PREFIX}.decision.>", *_keys(CLUSTER, BANDWIDTH, FACTS))
# In the order of the generated configuration.
_USERS: Final[Mapping[str, _Declared]] = {
    ADMIN: _Declared(
        account=OWN,
        about="For an admin: berth bus apply, dead retry and drain. Creates and updates what berth declares.",
        sends=(
            _api("STREAM.INFO.{each}", "STREAM.CREATE.{each}", "STREAM.UPDATE.{each}"),
            _api("CONSUMER.CREATE.{pending}.{scorer}"),
            _get(bucket_stream(CONTROL)),
            _put(CONTROL, BUS_ID_KEY, DRAIN_KEY),
            _get(DEAD),
            _api("CONSUMER.LIST.{pending}", "CONSUMER.LIST.{ranked}", "CONSUMER.LIST.{dead}"),
            _publish(f"{PREFIX}.admin.>"),
            _request("$SRV.STATS.{watcher}", many=True),
        ),
    ),
    "watcher": _Declared(
        account=OWN,
        about="Publishes PENDING and the mirror. Makes streams anew after the loss of the store or a full disk.",
        service="berth-watcher",
        answers_admins=True,
        sends=(
            _publish(f"{PREFIX}.pending.>", f"{PREFIX}.dead.>"),
            _put(CLUSTER, ">"),
            _put(FACTS, f"{POD_FAILURES.name}.>"),
            _put(CONTROL, "term.watcher", "cluster.id", BUS_ID_KEY),
            _api("STREAM.CREATE.{each}"),
            *_LOOK,
            _api("CONSUMER.NAMES.{pending}", "CONSUMER.LIST.{pending}", "STREAM.MSG.DELETE.{pending}"),
            _api("CONSUMER.CREATE.{pending}.{scorer}", "CONSUMER.DELETE.{pending}.{scorer}"),
            _api("STREAM.DELETE.{each}", "STREAM.DELETE.{probe}", "STREAM.CREATE.{probe}", "STREAM.INFO.{probe}"),
            _publish(f"{PREFIX}.{PROBE}"),
            _read(PENDING, RANKED, DECISIONS, *_buckets(*BUCKETS)),
            _request("{admins_inbox}.>"),
        ),
        reads=(f"{PREFIX}.decision.>", *_keys(*BUCKETS)),
    ),
    "binder": _Declared(
        account=OWN,
        about="Consumes RANKED, publishes Decisions. Creates its own consumer and deletes those of former leaders.",
        service="berth-binder",
        sends=(
            _publish(f"{PREFIX}.decision.>", f"{PREFIX}.dead.>"),
            _put(CONTROL, "term.binder", "fence.binder"),
            _put(COMMITS, ">"),
            _get(bucket_stream(COMMITS)),
            _request("$JS.ACK.{ranked}.*.>"),
            _api("CONSUMER.NAMES.{ranked}", "CONSUMER.LIST.{ranked}"),
            _api("CONSUMER.CREATE.{ranked}.*", "CONSUMER.INFO.{ranked}.*", "CONSUMER.DELETE.{ranked}.*"),
            _api("CONSUMER.MSG.NEXT.{ranked}.*"),
            *_LOOK,
            _read(RANKED, *_buckets(CONTROL, BANDWIDTH, FACTS)),
        ),
        reads=_keys(CONTROL, BANDWIDTH, FACTS),
    ),
    "scorer": _Declared(
        account="SCORERS",
        connections=64,
        about="Consumes PENDING, publishes RANKED. Reads the mirror, live data and others' results.",
        service="berth-scorer",
        sends=(
            _publish(f"{PREFIX}.ranked.>", f"{PREFIX}.dead.>"),
            _put(TRIES, ">"),
            _request("$JS.ACK.{pending}.{scorer}.>"),
            _api("CONSUMER.MSG.NEXT.{pending}.{scorer}", many=True),
            _identity,
            _compare("scorer"),
            _api("CONSUMER.INFO.{pending}.{scorer}"),
            _get_one(bucket_stream(TRIES), ">"),
            _read(RANKED, DECISIONS, *_buckets(CLUSTER, BANDWIDTH, FACTS)),
        ),
        reads=_RANKINGS,
    ),
    "collector": _Declared(
        account="COLLECTORS",
        connections=8,
        payload_bytes=SMALL_BYTES,
        about="Writes the nodes' bandwidth. Reads the nodes from the mirror.",
        service="berth-metrics-collector",
        sends=(_put(BANDWIDTH, ">"), _identity, _compare("collector"), _read(*_buckets(CLUSTER, BANDWIDTH))),
        reads=(bucket_prefix(CLUSTER) + "node.>", *_keys(BANDWIDTH)),
    ),
    "facts": _Declared(
        account="FACTS",
        connections=4,
        payload_bytes=SMALL_BYTES,
        about="Writes facts about nodes, and reads none. For nats kv put and del, and for programs.",
        announces=False,
        sends=(_put(FACTS, ">"), _put_by_domain(FACTS), _info(bucket_stream(FACTS))),
    ),
    "shadow": _Declared(
        account="SHADOWS",
        connections=8,
        payload_bytes=SMALL_BYTES,
        about="For shadows: reads what scorers read and what they say. Publishes comparisons, for people only.",
        service="berth-shadow",
        announces=False,
        broadcasts=(f"{PREFIX}.shadow.>",),
        sends=(_identity, _compare("shadow"), _read(RANKED, DECISIONS, *_buckets(CLUSTER, BANDWIDTH, FACTS))),
        reads=_RANKINGS,
    ),
    "people": _Declared(
        account=PEOPLE,
        connections=28,  # of commands, consoles and recorders
        payload_bytes=SMALL_BYTES,
        about="For people: berth why, trace, top, queue and dead, and the NATS CLI. May only look.",
        sends=(
            _api("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.{each}"),
            _api("CONSUMER.NAMES.{each}", "CONSUMER.LIST.{each}"),
            _api("CONSUMER.INFO.{pending}.{scorer}", "CONSUMER.INFO.{ranked}.*"),
            _read(PENDING, RANKED, DECISIONS, DEAD, *_buckets(*BUCKETS)),
            _request("$SRV.>", many=True),
            _publish(f"{PREFIX}.service.>"),
        ),
        reads=(">",),
    ),
}


def users(prefix: str = "") -> tuple[User, ...]:
    of = _Subjects(Names(prefix))
    return tuple(_user_of(name, declared, of) for name, declared in _USERS.items())


def _user_of(name: str, declared: _Declared, of: _Subjects) -> User:
    names = of.names
    return User(
        name=names.word(name),
        account=names.word(declared.account),
        about=declared.about,
        sends=tuple(path for right in declared.sends for path in right(of)),
        reads=tuple(map(of.copies, declared.reads)),
        service=declared.service,
        announces=declared.announces,
        broadcasts=tuple(map(names.subject, declared.broadcasts)),
        answers_admins=declared.answers_admins,
        connections=declared.connections,
        payload_bytes=declared.payload_bytes,
        inbox=_inbox(names, name),
        names=names,
    )


def _inbox(names: Names, user: str) -> str:
    # Who uses NATS's own clients has their inboxes, so that they need no setting, at a berth without prefix.
    if user in {"people", "facts"}:
        return f"{DEFAULT_INBOX_PREFIX}_{names.word(user)}" if names.prefix else DEFAULT_INBOX_PREFIX
    return f"_INBOX_{names.word(user)}"


def local(user: User, path: Path) -> str:
    """A subject as the user's account has it: JetStream's API is imported as a domain's.

    Each account has an API of its own under ``$JS.API``, which would answer that it has no JetStream.
    """
    if path.by_domain:
        return f"{DOMAINS_API}.{path.subject}"
    return path.subject if user.is_own else path.subject.replace(API, DOMAINS_API, 1)


def publishes(user: User) -> list[str]:
    announced = [f"{announcements(user)}*"] if user.announces else []
    own = [REWRITTEN_REPLIES, *announced] if user.service else []
    return list(dict.fromkeys([*(local(user, path) for path in user.sends), *own, *user.broadcasts]))


def subscribes(user: User) -> list[str]:
    people = [user.names.subject(f"{PREFIX}.>")] if user.is_person else []
    announced = [user.names.subject(f"{PREFIX}.announce.>")] if user.service and user.announces else []
    return [f"{user.inbox}.>", *user.reads, *people, *announced, *_answers(user)]


def _answers(user: User) -> list[str]:
    # NATS's service protocol, on which the user's service answers.
    if not user.service:
        return []
    subjects = [*listed(user), asked(user)]
    if user.answers_admins:
        subjects.append(user.names.subject(f"{PREFIX}.admin.{user.service}.>"))
    return subjects


def listed(user: User) -> list[str]:
    """The subjects of NATS's service protocol on which the user's service answers.

    Answers to the three subjects without a name are no proof: any service could have sent one under another name.
    """
    verbs = [f"$SRV.{verb}" for verb in ("PING", "INFO", "STATS")]
    return [*verbs, *(f"{verb}.{user.names.word(user.service)}{rest}" for verb in verbs for rest in ("", ".>"))]


def announcements(user: User) -> str:
    return user.names.subject(f"{PREFIX}.announce.{user.service}.")


def asked(user: User) -> str:
    return user.names.subject(f"{PREFIX}.service.{user.service}.>")
