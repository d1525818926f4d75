"""Reads the services' statistics: leaders, queues, and problems that need attention.

The statistics come from the services themselves, through NATS's service protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from berth.bus.interface import STORES_NOTHING, ServiceInstance, Session, StreamState
from berth.bus.topology import DEAD, DECISIONS, PENDING, RANKED
from berth.decoding import MALFORMED
from berth.messages.queue import QUEUES
from berth.messages.shadow import ShadowFigures, ShadowResult
from berth.settings.settings import process_label, short_identity
from berth_cli.rendering import duration

READY: Final = "ok"
DRAINING: Final = "draining: no pod is published until `berth drain --stop`"

NO_PROCESS: Final[Mapping[str, str]] = {
    "watcher": "no watcher answers: no pod is published, and the mirror becomes old",
    "scorer": "no scorer answers: nothing is ranked",
    "binder": "no binder answers: nothing is bound",
}
NO_LEADER: Final[Mapping[str, str]] = {
    "watcher": "no watcher leads: no pod is published, and the mirror becomes old",
    "binder": "no binder leads: nothing is bound",
}


class Leading(msgspec.Struct, frozen=True):
    number: int
    seconds: float


class Stalled(msgspec.Struct, frozen=True):
    """Pods of a profile that wait for a service for longer than an attempt takes."""

    profile: str
    waits_for: str
    pods: int


class Gone(msgspec.Struct, frozen=True):
    """A process that ended without an announcement, as reported by another process."""

    service: str
    identity: str
    seconds: float


class Statistics(msgspec.Struct, frozen=True):
    configuration: str = ""
    profiles: dict[str, str] = msgspec.field(default_factory=dict)
    settings: str = ""
    readiness: str = READY
    gone: list[Gone] = msgspec.field(default_factory=list)
    leading: Leading | None = None
    queues: dict[str, int] = msgspec.field(default_factory=dict)
    in_flight: dict[str, int] = msgspec.field(default_factory=dict)
    window: dict[str, int] = msgspec.field(default_factory=dict)
    groups: dict[str, int] = msgspec.field(default_factory=dict)
    stalled: list[Stalled] = msgspec.field(default_factory=list)
    draining: bool = False
    shadow: ShadowFigures | None = None


# The streams of a pod's way and of dead letters.
STREAMS: Final = (PENDING, RANKED, DECISIONS, DEAD)
# An older message of a stream with a consumer is marked; usual waits are milliseconds.
SLOW: Final = timedelta(seconds=5)

# Figures with a place of their own, which are not listed among a service's figures.
_OWN_FIGURES: Final = frozenset(field.name for field in msgspec.structs.fields(Statistics)) | {"differences"}


@dataclass(frozen=True, slots=True)
class Seen:
    service: str  # ``watcher``, ``scorer``, ``binder``, ``metrics-collector``, ``shadow``
    name: str  # the shortest unique part of its identity
    identity: str
    statistics: Statistics


def seen(instances: Iterable[ServiceInstance]) -> list[Seen]:
    """The processes with their statistics; malformed statistics are left empty."""
    return [
        Seen(
            service=one.service.removeprefix("berth-"),
            name=short_identity(one.identity),
            identity=one.identity,
            statistics=_read(one.stats),
        )
        for one in instances
    ]


def _read(stats: Mapping[str, object]) -> Statistics:
    try:
        return msgspec.convert(dict(stats), Statistics)
    except MALFORMED:
        return Statistics()


def activity(one: Seen) -> str:
    """The process's state: leads, stands by, is ready, or the reason why it is not."""
    if one.statistics.readiness != READY:
        return one.statistics.readiness
    if one.statistics.leading is not None:
        word = "term" if one.service == "watcher" else "epoch"
        return f"leads for {duration(one.statistics.leading.seconds)}, {word} {one.statistics.leading.number}"
    if one.statistics.shadow is not None:
        return compared(one.statistics.shadow)
    return "stands by" if one.service in NO_LEADER else "ready"


def compared(figures: ShadowFigures) -> str:
    if not figures.compared:
        return "compares, nothing yet"
    equal = figures.results.get(ShadowResult.EQUAL, 0)
    skipped = sum(figures.skipped.values())
    rest = f", {skipped} skipped" if skipped else ""
    return f"{equal / figures.compared:.1%} of {figures.compared} pods as live{rest}".replace("%", " %")


def figures(stats: Mapping[str, object]) -> str:
    """The statistics without a place of their own, as text: ``ranked 12, held 0``."""
    shown = ((name, value) for name, value in stats.items() if name not in _OWN_FIGURES)
    return ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in shown)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, Mapping):  # a collector's queries, and by query how many samples it knows
        return str(sum(each if isinstance(each, int) else 1 for each in value.values()))
    return str(value)


def oldest_age(state: StreamState) -> float | None:
    """Seconds since the oldest message of a stream; ``None``: it is empty."""
    return None if state.first_time is None else max(0.0, (state.now - state.first_time).total_seconds())


def is_slow(state: StreamState) -> bool:
    """Whether a message waits for a consumer for long, or there is a dead letter."""
    age = oldest_age(state)
    return age is not None and (state.stream == DEAD or (bool(state.consumers) and age > SLOW.total_seconds()))


def gone(processes: Sequence[Seen]) -> list[Gone]:
    """Processes reported by watcher or binder that neither answer nor announced their end; the longest silent last.

    All services report them, but another one's NATS user should not choose what people read about watcher and binder.
    """
    here = {one.identity for one in processes}
    found: dict[str, Gone] = {}
    reports = (each for one in processes if one.service in NO_LEADER for each in one.statistics.gone)
    for each in (each for each in reports if each.identity not in here):
        known = found.get(each.identity)
        if known is None or each.seconds < known.seconds:
            found[each.identity] = each
    return sorted(found.values(), key=lambda each: (each.seconds, each.identity))


def leader(processes: Iterable[Seen], service: str) -> Seen | None:
    """The leading process. While one leadership follows another, both may claim it: the later one counts."""
    leading = [
        (one.statistics.leading.number, one) for one in processes if one.service == service and one.statistics.leading
    ]
    return max(leading, key=lambda each: each[0], default=(0, None))[1]


async def what_stops(session: Session) -> str:
    """Why no pod moves: NATS stores nothing for a service, or a service is missing. Empty if neither holds."""
    processes = seen(await session.services())
    states = [(process_label(one.service, one.name), one.statistics.readiness) for one in processes]
    full = (f"{who}: {state.removeprefix('not ready: ')}" for who, state in states if STORES_NOTHING in state)
    return next(full, "") or "; ".join(missing(processes))


def is_draining(processes: Iterable[Seen]) -> bool:
    """Whether a watcher says that it publishes no pods. Another service cannot know."""
    return any(one.statistics.draining for one in processes if one.service == "watcher")


def queue_lines(processes: Sequence[Seen]) -> Iterator[str]:
    watcher = leader(processes, "watcher")
    if watcher is None or not watcher.statistics.queues:
        return
    found = watcher.statistics
    yield "waiting pods: " + ", ".join(f"{queue} {found.queues[queue]}" for queue in QUEUES if queue in found.queues)
    yield "in flight: " + ", ".join(
        f"{profile} {pods} of {found.window.get(profile, 0)}" for profile, pods in sorted(found.in_flight.items())
    )
    if found.groups:
        yield "groups of pods: " + ", ".join(f"{state} {groups}" for state, groups in found.groups.items())


def attention(processes: Sequence[Seen]) -> list[str]:
    """The problems that need attention, a sentence each."""
    return [
        *missing(processes),
        *([DRAINING] if is_draining(processes) else []),
        *(
            f"{process_label(one.service, one.name)}: {one.statistics.readiness}"
            for one in processes
            if one.statistics.readiness != READY
        ),
        *_stalled(processes),
        *_configurations(processes),
        *(_silence(each) for each in gone(processes)),
    ]


def _silence(one: Gone) -> str:
    who = process_label(one.service, short_identity(one.identity))
    return f"{who} has been silent for {duration(one.seconds)}, and did not stop"


def missing(processes: Sequence[Seen]) -> Iterator[str]:
    """A sentence for each service without a process or the leader that it needs."""
    here = {one.service for one in processes}
    yield from (sentence for service, sentence in NO_PROCESS.items() if service not in here)
    for service, sentence in NO_LEADER.items():
        if service in here and leader(processes, service) is None:
            yield sentence


def _stalled(processes: Sequence[Seen]) -> Iterator[str]:
    watcher = leader(processes, "watcher")
    if watcher is None:
        return
    for each in watcher.statistics.stalled:
        used, slots = watcher.statistics.in_flight.get(each.profile, 0), watcher.statistics.window.get(each.profile, 0)
        full = f", and its window is full ({used} of {slots})" if used >= slots > 0 else ""
        pods = "1 pod" if each.pods == 1 else f"{each.pods} pods"
        wait = "waits" if each.pods == 1 else "wait"
        why = _why(processes, each)
        yield f"{pods} of profile {each.profile!r} {wait} for a {each.waits_for}{full}: {why}"


def _why(processes: Sequence[Seen], stalled: Stalled) -> str:
    service, profile = stalled.waits_for, stalled.profile
    there = [one for one in processes if one.service == service]
    if not there:
        return "none answers"
    knowing = [one for one in there if profile in one.statistics.profiles or not one.statistics.profiles]
    if not knowing:
        return f"none of the {len(there)} that answer has this profile in its configuration"
    if service in NO_LEADER and leader(processes, service) is None:
        return "none leads"
    ready = [one for one in knowing if one.statistics.readiness == READY]
    if not ready:
        return f"none that has the profile is ready ({knowing[0].name}: {knowing[0].statistics.readiness})"
    return f"{', '.join(one.name for one in ready)} should take them: see the log there"


def _configurations(processes: Sequence[Seen]) -> Iterator[str]:
    configured = [one for one in processes if one.statistics.configuration]
    # The collector knows no plugins, so it has no digest of a profile.
    knowing = [one for one in configured if one.statistics.profiles]
    for profile in sorted({profile for one in knowing for profile in one.statistics.profiles}):
        yield from _divided(
            f"profile {profile!r}", [(one, one.statistics.profiles.get(profile, "")) for one in knowing]
        )
    yield from _divided("settings outside the profiles", [(one, one.statistics.settings) for one in configured])


def _divided(what: str, digests: Iterable[tuple[Seen, str]]) -> Iterator[str]:
    sides: dict[str, list[str]] = {}
    for one, digest in digests:
        sides.setdefault(digest, []).append(process_label(one.service, one.name))
    if len(sides) > 1:
        shown = [f"{digest or 'missing'} in {', '.join(who)}" for digest, who in sorted(sides.items(), reverse=True)]
        yield f"configurations differ: {what}: {'; '.join(shown)}"
