"""The other services on the bus: their processes, their configurations, and differences from this one's.

Every service announces itself every 5 s, and to a new one at once (docs/protocol.md, 2.9). Messages carry their
writer's digest as well, so that a service that does not announce itself is noticed too. A rollout has two
configurations: a difference is a warning and stops no work. Its begin and its end are logged once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Annotated, Final

import msgspec

from berth.api.config.encode import ConfigurationDigests
from berth.messages.encoding import Versioned
from berth.messages.subjects import PREFIX, escape_token
from berth.observability.health import Health
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter

log = get_logger()

EVERY_SECONDS: Final = 5.0  # between two announcements of a process, of a few hundred bytes
ANSWERS: Final = 10  # times in between at which a process announces itself if there is a new one
GONE_SECONDS: Final = 16.0  # without an announcement before a process counts as gone: three announcements
FORGOTTEN_SECONDS: Final = 600.0  # after which a process that has gone is no longer listed
MESSAGE_SECONDS: Final = 60.0  # how long a digest counts after the last message with it
# How long a message's digest may be unknown: its writer announces itself meanwhile.
GRACE_SECONDS: Final = 2 * EVERY_SECONDS

# How long it counts that a scorer says to hold an attempt: the time between two announcements, and one for delays.
HELD_SECONDS: Final = EVERY_SECONDS + 1.0
MAX_HELD: Final = 1024  # announced attempts of a process

# Processes of a service that are remembered, twice as many as may be connected. A further one takes the place of the
# one that has been silent for longest, but not of one that announces itself.
MAX_PEERS: Final = 128
NEW_PEERS: Final = 32  # of a service, read within a second; the rest are read when they announce themselves again
# Bytes of an announcement that is read: one with all attempts has 60 KB. Of a known process long ones are read once a
# second.
MAX_BYTES: Final = 96 * 1024
LONG_BYTES: Final = 4096
LONG_SECONDS: Final = 1.0
MAX_DIGESTS: Final = 64  # remembered digests of messages
NAMED: Final = 3  # processes named in a sentence; the rest are counted

# Announcements that NATS sends within 5 s: the processes that may be connected send a fifth.
MOST_ANNOUNCEMENTS: Final = 512

ALL_ANNOUNCEMENTS: Final = f"{PREFIX}.announce.>"

# What processes of a service can do that those of an older release cannot.
GROUPS: Final = "groups"  # reads messages about groups (ADR 72)
FEATURES: Final[Mapping[str, tuple[str, ...]]] = {"scorer": (GROUPS,), "binder": (GROUPS,)}
MAX_FEATURES: Final = 64

MAX_NAME: Final = 256  # characters of a name or digest
MAX_DIFFERENCES: Final = 64  # shown differences; each is a line in the log and a series of a metric
_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class Announcement(Versioned, frozen=True, kw_only=True):
    """A process and its configuration. ``leaving``: it stops, so its silence is no failure.

    ``held``: attempts that a scorer has held for seconds, such as those about which it asks extenders. ``features``:
    see ``FEATURES``.
    """

    service: _Name
    identity: _Name
    config: _Name = ""
    profiles: Annotated[dict[_Name, _Name], msgspec.Meta(max_length=256)] = msgspec.field(default_factory=dict)
    settings: _Name = ""
    leaving: bool = False
    held: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MAX_HELD)] = ()
    features: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MAX_FEATURES)] = ()

    @property
    def subject(self) -> str:
        """The subject to announce on; a user may publish for its own service only."""
        return f"{PREFIX}.announce.berth-{escape_token(self.service)}.{escape_token(self.identity)}"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One difference between processes of another service and this one.

    ``what`` has places for ``{who}``, the other processes, and ``{here}``, this service.
    """

    service: str
    profile: str
    what: str
    theirs: str  # the digest there; empty for a profile missing there


OTHER: Final = "profile {profile!r} has other plugins or arguments in {who} than in this {here}"
MISSING_THERE: Final = "profile {profile!r} of this {here} is not in the configuration of {who}"
MISSING_HERE: Final = "profile {profile!r} of {who} is not in the configuration of this {here}"
FILES: Final = "{who} has another configuration file than this {here}, and one of them reads only a part of it"
SETTINGS: Final = "settings outside the profiles differ between {who} and this {here}"
MESSAGES: Final = (
    "messages for profile {profile!r} come from {who} with another configuration than that of this {here}, and no such "
    "process says what differs"
)


class _State(Enum):
    PRESENT = "it announces itself"
    LEFT = "it has stopped; messages of it may still be in the work queues"
    GONE = "silent without a last announcement"


@dataclass(frozen=True, slots=True)
class _Announced:
    announcement: Announcement
    since: float
    at: float
    state: _State
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Read:
    profile: str
    since: float
    at: float


class Peers:
    """The other processes, by their announcements. No I/O; times are monotonic seconds."""

    def __init__(self, digests: ConfigurationDigests | None = None, *, service: str = "", identity: str = "") -> None:
        own = digests or ConfigurationDigests()
        self.own = Announcement(
            service=service,
            identity=identity,
            config=own.config,
            profiles=dict(own.profiles),
            settings=own.settings,
            features=FEATURES.get(service, ()),
        )
        self._announced: dict[str, _Announced] = {}  # by subject
        self._new: dict[str, tuple[float, int]] = {}  # by service: when a second began, and the new processes in it
        self._read: dict[tuple[str, str], _Read] = {}
        self._passed_at = self._listening_since = float("-inf")
        self._has_newcomer = self._was_hastened = False

    def is_read(self, subject: str, size: int, now: float) -> bool:
        """Whether an announcement is to be decoded and received. Anybody with a service's rights may send thousands."""
        known = self._announced.get(subject)
        if size > MAX_BYTES or (known is not None and size > LONG_BYTES and now - known.at < LONG_SECONDS):
            return False
        if known is not None:
            return True
        service = subject.rpartition(".")[0]
        began, count = self._new.get(service, (now, 0))
        if now - began >= 1.0:
            began, count = now, 0
        self._new[service] = began, count + 1
        return count < NEW_PEERS

    def receive(self, announcement: Announcement, now: float) -> None:
        if (announcement.service, announcement.identity) == (self.own.service, self.own.identity):
            return
        key = announcement.subject
        known = self._announced.get(key)
        if known is not None or self._has_room(announcement.service, now):
            state = _State.LEFT if announcement.leaving else _State.PRESENT
            since, held = known.since if known else now, frozenset(announcement.held)
            self._announced[key] = _Announced(announcement, since, now, state, held)
        self._has_newcomer = self._has_newcomer or known is None

    def pauses(self) -> Iterator[float]:
        """The pauses in seconds after which to look again, until this process is to announce itself again.

        A new process need not wait for what it must know of this one. Never twice in a row: made-up processes would
        have all others say more than readers are sent.
        """
        may_hasten, self._was_hastened, self._has_newcomer = not self._was_hastened, False, False
        for _ in range(ANSWERS):
            yield EVERY_SECONDS / ANSWERS
            if may_hasten and self._has_newcomer:
                self._was_hastened = True
                return

    def _has_room(self, service: str, now: float) -> bool:
        of_service = [key for key, each in self._announced.items() if each.announcement.service == service]
        if len(of_service) < MAX_PEERS:
            return True
        oldest = min(of_service, key=lambda key: self._announced[key].at)
        if now - self._announced[oldest].at <= HELD_SECONDS:
            return False
        del self._announced[oldest]
        return True

    def read(self, service: str, config: str, profile: str, now: float) -> None:
        """A message of this service carries this digest. Equal digests, the usual case, cost a comparison."""
        if config == self.own.config or not config or not self.own.config:
            return
        key = (service, config[:MAX_NAME])
        known = self._read.get(key)
        if known is not None or len(self._read) < MAX_DIGESTS:
            self._read[key] = _Read(profile[:MAX_NAME], known.since if known else now, now)

    def hold(self, attempt: str, now: float) -> bool:
        """Whether a scorer has said in the last seconds that it holds the attempt."""
        return any(
            now - each.at <= HELD_SECONDS and attempt in each.held
            for each in self._announced.values()
            if each.announcement.service == "scorer"
        )

    def lacking(self, feature: str, profile: str) -> str:
        """Which process of a service that has the feature keeps this profile from using it; empty if none does."""
        for service in (each for each, features in FEATURES.items() if feature in features):
            present = [each.announcement for each in self._announced.values() if each.state is _State.PRESENT]
            able = [each for each in present if each.service == service and profile in (each.profiles or (profile,))]
            older = [each.identity for each in able if feature not in each.features]
            if older:
                return f"{_who(service, older)} cannot read messages about {feature}: update it"
            if not able:
                return f"no {service} of the profile has announced itself"
        return ""

    def pass_time(self, now: float) -> list[Announcement]:
        """Forget old entries. Returns the processes that have gone since the last call.

        A time in which this process did not receive, without NATS or while paused, counts for no process.
        """
        if now - self._passed_at > 2 * EVERY_SECONDS:
            self._listening_since = now
        self._passed_at = now
        self._forget_floods(now)
        gone = []
        for key, last in list(self._announced.items()):
            silent = now - max(last.at, self._listening_since)
            if now - last.at >= FORGOTTEN_SECONDS:
                del self._announced[key]
            elif silent >= GONE_SECONDS and last.state is _State.PRESENT:
                self._announced[key] = replace(last, state=_State.GONE)
                gone.append(last.announcement)
        self._read = {key: read for key, read in self._read.items() if now - read.at < MESSAGE_SECONDS}
        return gone

    def _forget_floods(self, now: float) -> None:
        """Forget more new processes than a rollout has that have announced themselves only once: they are made up."""
        once: dict[str, list[str]] = {}
        for key, last in self._announced.items():
            if last.at == last.since and last.state is not _State.LEFT and now - last.at >= GRACE_SECONDS:
                once.setdefault(last.announcement.service, []).append(key)
        for keys in once.values():
            if len(keys) > NEW_PEERS:
                for key in keys:
                    del self._announced[key]

    def gone(self, now: float) -> list[tuple[Announcement, float]]:
        """Processes that ended without a last announcement, and the seconds of their silence."""
        return [(each.announcement, now - each.at) for each in self._announced.values() if each.state is _State.GONE]

    def differences(self, now: float) -> dict[Difference, list[str]]:
        """The differences, with the identities of the processes; no more than MAX_DIFFERENCES."""
        found: dict[Difference, list[str]] = {}
        present = [each.announcement for each in self._announced.values() if each.state is _State.PRESENT]
        for one in present:
            if len(found) >= MAX_DIFFERENCES:  # Before sorting, because anybody may announce thousands.
                break
            for difference in islice(self._compared(one), MAX_DIFFERENCES):
                found.setdefault(difference, []).append(one.identity)
        known = {(each.announcement.service, each.announcement.config) for each in self._announced.values()}
        for (service, config), read in self._read.items():
            if (service, config) not in known and now - read.since >= GRACE_SECONDS:
                found[Difference(service, read.profile, MESSAGES, config)] = []
        return dict(sorted(found.items())[:MAX_DIFFERENCES])

    def services(self) -> set[str]:
        return {each.announcement.service for each in self._announced.values() if each.state is _State.PRESENT}

    def _compared(self, other: Announcement) -> Iterable[Difference]:
        own = self.own
        if other.config == own.config or not other.config or not own.config:
            return
        if not own.profiles or not other.profiles:  # The collector knows no plugins, so it has no digest of a profile.
            yield Difference(other.service, "", FILES, other.config)
            return
        for profile in sorted(own.profiles.keys() | other.profiles.keys()):
            ours, theirs = own.profiles.get(profile), other.profiles.get(profile)
            if ours != theirs:
                what = MISSING_HERE if ours is None else MISSING_THERE if theirs is None else OTHER
                yield Difference(other.service, profile, what, theirs or "")
        if own.settings != other.settings:
            yield Difference(other.service, "", SETTINGS, other.settings)

    def sentence(self, difference: Difference, identities: list[str]) -> str:
        who = _who(difference.service, identities)
        return difference.what.format(profile=difference.profile, who=who, here=self.own.service)


def _who(service: str, identities: list[str]) -> str:
    """``scorer 'a'``, or ``5 scorers ('a', 'b', 'c' and 2 more)``."""
    if not identities:
        return f"a {service}"
    named = ", ".join(repr(identity) for identity in sorted(identities)[:NAMED])
    if len(identities) == 1:
        return f"{service} {named}"
    more = f" and {len(identities) - NAMED} more" if len(identities) > NAMED else ""
    return f"{len(identities)} {service}s ({named}{more})"


class PeerReporter:
    """Shows differences: their begin and end in the log, /readyz?verbose, metric, statistics."""

    def __init__(self, peers: Peers, health: Health, metrics: Meter) -> None:
        self._peers = peers
        self._health = health
        self._metrics = metrics
        self._shown: dict[Difference, str] = {}

    @property
    def sentences(self) -> list[str]:
        return list(self._shown.values())

    def review(self, now: float) -> None:
        """Look for differences that have begun or ended."""
        for one in self._peers.pass_time(now):
            text = f"{one.service} {one.identity!r} has been silent for {GONE_SECONDS:g} s, and did not stop"
            log.warning(text, peer=one.identity)
        found = self._peers.differences(now)
        shown = {difference: self._peers.sentence(difference, who) for difference, who in found.items()}
        for difference in shown.keys() - self._shown.keys():
            ours = self._peers.own.profiles.get(difference.profile, "")
            log.warning(shown[difference], ours=ours, theirs=difference.theirs, configuration=self._peers.own.config)
        for difference in self._shown.keys() - shown.keys():
            over = f"no longer: {self._shown[difference]}"
            log.info(over)
        self._shown = shown
        self._show(found)

    def _show(self, found: Mapping[Difference, list[str]]) -> None:
        self._metrics.clear("berth_configuration_mismatch")
        processes = {
            (service, profile): 0 for service in self._peers.services() for profile in self._peers.own.profiles
        }
        for difference, who in found.items():
            key = (difference.service, difference.profile)
            processes[key] = processes.get(key, 0) + max(1, len(who))
        for (service, profile), number in processes.items():
            self._metrics.set("berth_configuration_mismatch", number, service=service, profile=profile)
        text = "; ".join(self.sentences)
        self._health.condition("configuration").ready(f"differs: {text}" if text else "the same as everywhere")
