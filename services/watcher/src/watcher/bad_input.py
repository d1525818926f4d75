"""Objects that cannot be decoded: who owns them hears of it, in a sentence and, for a pod of ours, in ``dead``."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from berth.api.messages import DeadLetter
from berth.api.subjects import PodSubject
from berth.kube.port import Undecodable
from watcher.effects import Bury, Effect, Warn

PAYLOAD_CHARACTERS = 4096
"""Of the object, in the dead letter: enough to find what is wrong with it."""


class _Spec(msgspec.Struct, rename="camel"):
    scheduler_name: str = "default-scheduler"
    node_name: str = ""


class _Pod(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class BadInput:
    """Says each thing once: an object that stays as it is comes again with every LIST."""

    def __init__(self, profiles: Container[str]) -> None:
        self._profiles = profiles
        self._said: dict[tuple[str, str, str], str] = {}

    def take(self, thing: Undecodable) -> list[Effect]:
        """What is to be said of an object."""
        key = (thing.kind, thing.namespace, thing.name)
        if thing.deleted:
            self._said.pop(key, None)
            return []
        if self._said.get(key) == thing.resource_version:
            return []
        self._said[key] = thing.resource_version
        profile = self._asked_for(thing)
        return [_warning(thing), *([_letter(thing, profile)] if profile else [])]

    def _asked_for(self, thing: Undecodable) -> str:
        """The profile of ours that an unbound pod asks for, as far as it can be read; empty for none."""
        if thing.kind != "pod":
            return ""
        try:
            spec = msgspec.json.decode(thing.raw, type=_Pod).spec
        except msgspec.MsgspecError:
            return ""
        return spec.scheduler_name if spec.scheduler_name in self._profiles and not spec.node_name else ""


def _name(thing: Undecodable) -> str:
    return f"{thing.namespace}/{thing.name}" if thing.namespace else thing.name


def _warning(thing: Undecodable) -> Warn:
    sentence = f"{thing.kind} {_name(thing)!r} cannot be read and is left out: {thing.reason}"
    return Warn(sentence=sentence, fields={"uid": thing.uid, "resource_version": thing.resource_version})


def _letter(thing: Undecodable, profile: str) -> Bury:
    subject = PodSubject(stage="pending", profile=profile, namespace=thing.namespace, pod=thing.name)
    payload = thing.raw[:PAYLOAD_CHARACTERS].decode("utf-8", "replace")
    reason = f"pod {_name(thing)!r} cannot be read and is not scheduled: {thing.reason}"
    return Bury(letter=DeadLetter(subject=str(subject), reason=reason, service="watcher", payload=payload))
