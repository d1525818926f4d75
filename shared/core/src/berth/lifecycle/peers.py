"""The other services on the bus: which are there, which configuration each has, and where it differs from this one.

Every service announces itself every 5 s and hears the others (docs/protocol.md, 2). Messages carry their writer's
digest as well, so that one which does not announce itself is noticed too. During a rollout two configurations side by
side are normal: a difference is a warning and stops nothing. It is logged once, and again when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Annotated, Final

import msgspec

from berth.api.config.encode import ConfigurationDigests
from berth.messages.attempts import Versioned
from berth.messages.subjects import PREFIX, escape_token
from berth.observability.health import Health
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter

log = get_logger()

EVERY_SECONDS: Final = 5.0
"""Between two announcements of a process: a few hundred bytes, for everybody."""
GONE_SECONDS: Final = 16.0
"""After so long without an announcement a process counts as gone: three announcements."""
FORGOTTEN_SECONDS: Final = 600.0
"""After which a process that is gone is no longer listed."""
MESSAGE_SECONDS: Final = 60.0
"""How long a digest counts after it was last read in a message."""
GRACE_SECONDS: Final = 2 * EVERY_SECONDS
"""How long a message's digest may be unknown: its writer announces itself meanwhile."""

MAX_PEERS: Final = 512
"""Processes that are remembered; what announces itself beyond that is left out."""
MAX_DIGESTS: Final = 64
"""Digests from messages that are remembered."""
NAMED: Final = 3
"""Processes that a sentence names; of the rest it gives the number."""

ALL_ANNOUNCEMENTS: Final = f"{PREFIX}.announce.>"

MAX_NAME: Final = 256
"""Characters of a name or digest."""
MAX_DIFFERENCES: Final = 64
"""Differences that are shown; each is a line in the log and a series of a metric."""
_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class Announcement(Versioned, frozen=True, kw_only=True):
    """What a process says of itself. ``leaving``: it stops, so it is not missed."""

    service: _Name
    identity: _Name
    config: _Name = ""
    profiles: Annotated[dict[_Name, _Name], msgspec.Meta(max_length=256)] = msgspec.field(default_factory=dict)
    settings: _Name = ""
    leaving: bool = False

    @property
    def subject(self) -> str:
        """Its user may publish for its own service only."""
        return f"{PREFIX}.announce.berth-{escape_token(self.service)}.{escape_token(self.identity)}"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One way in which processes of another service differ from this one.

    ``what`` has places for ``{who}``, the processes that differ, and ``{here}``, this service.
    """

    service: str
    profile: str
    what: str
    theirs: str
    """The digest there; empty for a profile that is missing there."""


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
    GONE = "nothing has been heard of it, and it did not stop"


@dataclass(frozen=True, slots=True)
class _Heard:
    announcement: Announcement
    at: float
    state: _State


@dataclass(frozen=True, slots=True)
class _Read:
    """A digest that was read in messages."""

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
        )
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._read: dict[tuple[str, str], _Read] = {}
        self._passed_at = self._listening_since = float("-inf")

    def hear(self, announcement: Announcement, now: float) -> None:
        """A process has announced itself."""
        key = (announcement.service, announcement.identity)
        if key == (self.own.service, self.own.identity):
            return
        if key in self._heard or len(self._heard) < MAX_PEERS:
            state = _State.LEFT if announcement.leaving else _State.PRESENT
            self._heard[key] = _Heard(announcement, now, state)

    def read(self, service: str, config: str, profile: str, now: float) -> None:
        """A message of this service carries this digest. Equal digests, the usual case, cost a comparison."""
        if config == self.own.config or not config or not self.own.config:
            return
        key = (service, config[:MAX_NAME])
        known = self._read.get(key)
        if known is not None or len(self._read) < MAX_DIGESTS:
            self._read[key] = _Read(profile[:MAX_NAME], known.since if known else now, now)

    def pass_time(self, now: float) -> list[Announcement]:
        """Forget what is too old. Returns the processes that have gone since the last call.

        Nothing has gone because this process did not listen: without NATS, or while it was paused itself.
        """
        if now - self._passed_at > 2 * EVERY_SECONDS:
            self._listening_since = now
        self._passed_at = now
        gone = []
        for key, heard in list(self._heard.items()):
            silent = now - max(heard.at, self._listening_since)
            if now - heard.at >= FORGOTTEN_SECONDS:
                del self._heard[key]
            elif silent >= GONE_SECONDS and heard.state is _State.PRESENT:
                self._heard[key] = replace(heard, state=_State.GONE)
                gone.append(heard.announcement)
        self._read = {key: read for key, read in self._read.items() if now - read.at < MESSAGE_SECONDS}
        return gone

    def gone(self, now: float) -> list[tuple[Announcement, float]]:
        """The processes that ended without a word, and for how many seconds they have been silent."""
        return [(each.announcement, now - each.at) for each in self._heard.values() if each.state is _State.GONE]

    def differences(self, now: float) -> dict[Difference, list[str]]:
        """What differs, with the identities of those that differ; no more than MAX_DIFFERENCES."""
        found: dict[Difference, list[str]] = {}
        present = [each.announcement for each in self._heard.values() if each.state is _State.PRESENT]
        for one in present:
            if len(found) >= MAX_DIFFERENCES:  # before they are sorted: anybody may announce thousands
                break
            for difference in islice(self._compared(one), MAX_DIFFERENCES):
                found.setdefault(difference, []).append(one.identity)
        known = {(each.announcement.service, each.announcement.config) for each in self._heard.values()}
        for (service, config), read in self._read.items():
            if (service, config) not in known and now - read.since >= GRACE_SECONDS:
                found[Difference(service, read.profile, MESSAGES, config)] = []
        return dict(sorted(found.items())[:MAX_DIFFERENCES])

    def services(self) -> set[str]:
        """The services of which a process is there."""
        return {each.announcement.service for each in self._heard.values() if each.state is _State.PRESENT}

    def _compared(self, other: Announcement) -> Iterable[Difference]:
        own = self.own
        if other.config == own.config or not other.config or not own.config:
            return
        if not own.profiles or not other.profiles:  # the collector knows no plugins, so it has no digest of a profile
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
        """A difference in words."""
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
    """Shows what differs: the log once when it begins and once when it ends, /readyz?verbose, metric, statistics."""

    def __init__(self, peers: Peers, health: Health, metrics: Meter) -> None:
        self._peers = peers
        self._health = health
        self._metrics = metrics
        self._shown: dict[Difference, str] = {}

    @property
    def sentences(self) -> list[str]:
        """What differs now."""
        return list(self._shown.values())

    def review(self, now: float) -> None:
        """Look for differences that have begun or ended."""
        for one in self._peers.pass_time(now):
            text = f"{one.service} {one.identity!r} has not been heard of for {GONE_SECONDS:g} s, and did not stop"
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
