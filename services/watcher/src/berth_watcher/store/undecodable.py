"""Objects that cannot be decoded: left out with a warning, and if they are pods of berth's, with a dead letter."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import msgspec

from berth.decoding import decode_json, structure_of
from berth.errors import DecodeError
from berth.kube.listwatch import Undecodable
from berth.messages.attempts import DeadLetter
from berth.messages.subjects import PodSubject
from berth_watcher.events import Effect, PublishDeadLetter, Warn

PAYLOAD_CHARACTERS: Final = 4096  # of the object in its dead letter: enough to find the error


class UndecodableObjects:
    """Reports undecodable objects: a warning and, for an unbound pod of berth's, a dead letter.

    Reports each version once, because every LIST brings the object again.
    """

    def __init__(self, profiles: Container[str]) -> None:
        self._profiles = profiles
        self._reported: dict[tuple[str, str, str], str] = {}

    def report(self, thing: Undecodable) -> list[Effect]:
        key = (thing.kind, thing.namespace, thing.name)
        if thing.deleted:
            self._reported.pop(key, None)
            return []
        if self._reported.get(key) == thing.resource_version:
            return []
        self._reported[key] = thing.resource_version
        profile = self._profile_of(thing)
        return [_warning(thing), *([_dead_letter(thing, profile)] if profile else [])]

    def _profile_of(self, thing: Undecodable) -> str:
        """The profile of berth's that an unbound pod names, if its spec can be decoded; otherwise empty."""
        if thing.kind != "pod":
            return ""
        try:
            spec = decode_json(_partial_pod, thing.raw, "a pod").spec
        except DecodeError:
            return ""
        return spec.scheduler_name if spec.scheduler_name in self._profiles and not spec.node_name else ""


class _PartialSpec(msgspec.Struct, rename="camel"):
    scheduler_name: str = "default-scheduler"
    node_name: str = ""


class _PartialPod(msgspec.Struct):
    spec: _PartialSpec = msgspec.field(default_factory=_PartialSpec)


_partial_pod: Final = msgspec.json.Decoder(_PartialPod)


def _warning(thing: Undecodable) -> Warn:
    fields = {
        "kind": thing.kind,
        "name": _full_name(thing),
        "uid": thing.uid,
        "resource_version": thing.resource_version,
        "reason": thing.reason,
    }
    return Warn(message="object cannot be decoded and is left out", fields=fields)


def _dead_letter(thing: Undecodable, profile: str) -> PublishDeadLetter:
    subject = PodSubject(stage="pending", profile=profile, namespace=thing.namespace, pod=thing.name)
    payload = structure_of(thing.raw)[:PAYLOAD_CHARACTERS]  # people read it: no values of variables
    reason = f"pod {_full_name(thing)!r} cannot be decoded and is not scheduled: {thing.reason}"
    dead_letter = DeadLetter(subject=str(subject), reason=reason, service="watcher", payload=payload)
    return PublishDeadLetter(dead_letter=dead_letter)


def _full_name(thing: Undecodable) -> str:
    return f"{thing.namespace}/{thing.name}" if thing.namespace else thing.name
