"""The cluster at the end of a recording, as objects that ``berth simulate`` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from berth.api.kinds import POD, WATCHED_KINDS
from berth.api.pod import Pod
from berth.bus.topology import CLUSTER
from berth.errors import DecodeError
from berth.messages.mirror import decode_entry
from berth.messages.subjects import key, parse_key
from berth_cli.recording.file import Recording, is_recording, read_recording
from berth_cli.recording.history import Fate, History
from berth_cli.simulate.documents import Document

_KINDS: Final = {kind.name: kind for kind in WATCHED_KINDS}


def objects_of_recording(name: str) -> Iterator[Document] | None:
    """The objects of a file that is a recording; ``None`` for any other file.

    Raises:
        RecordingError: it cannot be read as one.
    """
    return _objects(read_recording(Path(name)), name) if is_recording(name) else None


def _objects(recording: Recording, name: str) -> Iterator[Document]:
    mirror = {record.subject: record.payload for record in recording.of(CLUSTER)}
    for subject, payload in mirror.items():
        if payload is not None:
            yield from _mirrored(subject, payload, f"{name}: {subject}")
    history = History(recording)
    for uid, pod in {asked.pod.uid: asked.pod for asked in history.asked}.items():
        fate = history.fate_of(uid)
        if key(POD.name, uid) not in mirror and fate.fate is not Fate.EVICTED and uid not in history.gone:
            yield _document(_on(pod, fate.node), f"{name}: pod {pod.key}")


def _mirrored(subject: str, payload: bytes, where: str) -> Iterator[Document]:
    """The object of an entry; None for watermarks, unknown kinds and undecodable values."""
    try:
        kind = _KINDS.get(parse_key(subject)[0])
        raw = bytes(decode_entry(payload).object) if kind is not None else b""
    except DecodeError:
        return
    if kind is not None:
        yield Document(where=where, api_version=kind.api_version, kind=kind.kind, raw=raw)


def _on(pod: Pod, node: str) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def _document(pod: Pod, where: str) -> Document:
    return Document(where=where, api_version=POD.api_version, kind=POD.kind, raw=msgspec.json.encode(pod))
