"""The groups of a recording: how many pods of each were bound at which time, and for how long only a part was.

A group that ends pod by pod was whole before and is not partial; one that loses a pod is, until it is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from typing import Final

import msgspec

from berth.api.kinds import POD
from berth.api.pod import Pod
from berth.api.podgroups import (
    CoschedulingPodGroup,
    Dialect,
    GroupKey,
    PodGroup,
    UpstreamPodGroup,
    group_of,
    of_coscheduling,
    of_upstream,
)
from berth.bus.topology import CLUSTER, PENDING
from berth.cluster.podgroups import KINDS
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.messages.groupattempts import GroupPending, decode_group
from berth.messages.mirror import decode_entry
from berth.messages.subjects import parse_key
from berth_cli.recording.file import Recorded, Recording


def _coscheduling(raw: bytes | msgspec.Raw) -> PodGroup:
    return of_coscheduling(decode_json(_coscheduling_group, raw, "a mirrored PodGroup"))


def _upstream(raw: bytes | msgspec.Raw) -> PodGroup:
    return of_upstream(decode_json(_upstream_group, raw, "a mirrored PodGroup"))


_FORMS: Final = {KINDS[Dialect.COSCHEDULING]: _coscheduling, KINDS[Dialect.UPSTREAM]: _upstream}


@dataclass(slots=True, kw_only=True)
class GroupCourse:
    """One group's.

    ``bound``: the number of bound pods from each time on. ``asked_at``: the first PENDING; ``whole_at``: the first time
    at which the minimum was bound. ``partial_seconds``: the longest time with fewer.
    """

    key: GroupKey
    minimum: int = 1
    asked_at: datetime | None = None
    whole_at: datetime | None = None
    bound: list[tuple[datetime, int]] = field(default_factory=list)
    partial_seconds: float = 0.0
    _pods: set[str] = field(default_factory=set)
    _partial_since: datetime | None = None
    _was_whole: bool = False  # before it was partial

    @property
    def is_partial(self) -> bool:
        """Whether only a part is bound at the end."""
        return self._partial_since is not None

    def set_pod(self, uid: str, at: datetime, *, is_bound: bool) -> None:
        (self._pods.add if is_bound else self._pods.discard)(uid)
        if len(self._pods) != (self.bound[-1][1] if self.bound else 0):
            self.bound.append((at, len(self._pods)))
        self.note(at)

    def note(self, at: datetime) -> None:
        """The minimum or the bound pods may have changed."""
        count = len(self._pods)
        is_whole = count >= self.minimum
        if 0 < count < self.minimum:
            self._partial_since = self._partial_since or at
            return
        if not (count == 0 and self._was_whole):
            self._count_partial(at)
        self._partial_since, self._was_whole = None, is_whole
        if is_whole:
            self.whole_at = self.whole_at or at

    def end(self, at: datetime) -> None:
        self._count_partial(at)

    def _count_partial(self, at: datetime) -> None:
        if self._partial_since is not None:
            self.partial_seconds = max(self.partial_seconds, (at - self._partial_since).total_seconds())


def group_courses(recording: Recording) -> list[GroupCourse]:
    """The gangs of a recording, with the longest partial one first."""
    courses = _Courses()
    for at, event in merge(_asked(recording), _mirrored(recording), key=lambda each: each[0]):
        with suppress(DecodeError):  # as services, which leave such messages out
            courses.take(event, at)
    gangs = [each for each in courses.by_key.values() if each.minimum > 1]
    for each in gangs:
        each.end(recording.last_time)
    return sorted(gangs, key=lambda each: (-each.partial_seconds, each.key.namespace, each.key.name))


def _asked(recording: Recording) -> Iterator[tuple[datetime, Recorded | GroupPending]]:
    for record in recording.of(PENDING):
        with suppress(DecodeError):
            yield record.time, decode_group(record.payload or b"", GroupPending)


def _mirrored(recording: Recording) -> Iterator[tuple[datetime, Recorded | GroupPending]]:
    return ((record.time, record) for record in recording.of(CLUSTER))


class _Courses:
    def __init__(self) -> None:
        self.by_key: dict[GroupKey, GroupCourse] = {}
        self._of: dict[str, GroupKey] = {}  # by uid of a pod

    def take(self, event: Recorded | GroupPending, at: datetime) -> None:
        if isinstance(event, GroupPending):
            course = self._show(event.group, at)
            course.asked_at = course.asked_at or at
            self._of.update((member.uid, course.key) for member in event.bundle.members)
            return
        kind, name = parse_key(event.subject)
        if kind == POD.name:
            self._show_pod(name, event.payload, at)
        elif kind in _FORMS and event.payload is not None:
            self._show(_FORMS[kind](decode_entry(event.payload).object), at)

    def _show(self, group: PodGroup, at: datetime) -> GroupCourse:
        course = self.by_key.setdefault(group.key, GroupCourse(key=group.key))
        course.minimum = group.minimum
        course.note(at)
        return course

    def _show_pod(self, uid: str, payload: bytes | None, at: datetime) -> None:
        pod = None if payload is None else decode_json(_pod, decode_entry(payload).object, "a mirrored pod")
        key = self._of.get(uid) or (None if pod is None else group_of(pod))
        if key is not None:
            self._of[uid] = key
            is_bound = pod is not None and bool(pod.spec.node_name) and pod.metadata.deletion_timestamp is None
            self.by_key.setdefault(key, GroupCourse(key=key)).set_pod(uid, at, is_bound=is_bound)


_pod: Final = msgspec.json.Decoder(Pod)
_coscheduling_group: Final = msgspec.json.Decoder(CoschedulingPodGroup)
_upstream_group: Final = msgspec.json.Decoder(UpstreamPodGroup)
