"""The pods that were ranked last and fit nowhere, as RANKED had them, so that one can be asked about again.

An unschedulable pod is in no stream and not in the mirror. Only the watcher has it, which answers with reasons alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Final

import msgspec

from berth.api.decoding import decode_json
from berth.api.errors import DecodeError
from berth.api.messages import Message, RankedNode
from berth.api.pod import Pod
from berth.api.subjects import PodSubject
from berth.cli.options import PodName

MOST_PODS: Final = 5000
MOST_BYTES: Final = 16 * 1024 * 1024
"""Of all pods together; the ones that were ranked longest ago are forgotten."""


class RankedPod(Message, frozen=True, kw_only=True):
    """The pod of a RANKED, not decoded, and whether there was a node for it."""

    pod: msgspec.Raw
    candidates: Annotated[list[RankedNode], msgspec.Meta(max_length=256)] = msgspec.field(default_factory=list)


_ranked: Final = msgspec.json.Decoder(RankedPod)
_pod: Final = msgspec.json.Decoder(Pod)


class WaitingPods:
    """The pods by name, each as JSON."""

    def __init__(self) -> None:
        self._pods: OrderedDict[PodName, bytes] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, name: PodName) -> bytes | None:
        """The pod; ``None``: it had a node when it was ranked last, or that was not heard."""
        return self._pods.get(name)

    def pod(self, name: PodName) -> Pod | None:
        """The same, decoded; ``None`` also where it is no pod."""
        data = self.get(name)
        try:
            return decode_json(_pod, data, "a pod") if data is not None else None
        except DecodeError:
            return None

    def ranked(self, subject: str, data: bytes) -> None:
        """A RANKED was stored. What cannot be read is left out: the binder says what is wrong with it."""
        try:
            parsed = PodSubject.parse(subject)
            ranked = decode_json(_ranked, data, "a ranking")
        except DecodeError:
            return
        name = PodName(namespace=parsed.namespace, name=parsed.pod)
        self._bytes -= len(self._pods.pop(name, b""))
        if ranked.candidates:
            return
        pod = bytes(ranked.pod)
        self._pods[name] = pod
        self._bytes += len(pod)
        while len(self._pods) > MOST_PODS or self._bytes > MOST_BYTES:
            self._bytes -= len(self._pods.popitem(last=False)[1])
