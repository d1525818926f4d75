"""docs/schemas: the JSON Schema of everything that berth writes to the bus, made from the types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berth.api.pod import Pod
from berth.messages import attempts, livedata, mirror, queue
from berth.messages.attempts import DeadLetter, Decision, Pending, Ranked
from berth.messages.encoding import Versioned
from berth.messages.livedata import NodeSample
from berth.messages.mirror import MirrorEntry, Watermark
from berth.messages.queue import PageRequest, PodRequest, QueueAnswer, QueuedPodDetail


def _with(kind: type[msgspec.Struct], *fields: tuple[str, Any] | tuple[str, Any, Any]) -> Any:
    """The same type with other fields: bytes that berth keeps unread have no schema, what they hold has."""
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,), namespace={"__doc__": kind.__doc__}, kw_only=True)


_POD: Final = _with(Pod, ("whole", object, None))
_DETAIL: Final = _with(QueuedPodDetail, ("object", _POD | None, None))

TYPES: Final[Mapping[str, type[Versioned]]] = {
    "pending": _with(Pending, ("pod", _POD)),
    "ranked": _with(Ranked, ("pod", _POD)),
    "decision": Decision,
    "dead-letter": DeadLetter,
    "mirror-entry": _with(MirrorEntry, ("object", object, None)),
    "watermark": Watermark,
    "bandwidth": NodeSample,
    "queue-request": PageRequest,
    "pod-request": PodRequest,
    "queue-answer": _with(QueueAnswer, ("detail", _DETAIL | None, None)),
}
"""By the name of the file."""

_STRUCTS: Final = {
    name: kind
    for module in (attempts, livedata, mirror, queue)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}
_SENTENCE: Final = re.compile(r"(?<=\.)\s+(?=[A-Z`])")


def files() -> Mapping[str, str]:
    """The text of each file, by its path below docs/."""
    return {f"schemas/{name}.json": schema(name, kind) for name, kind in TYPES.items()}


def schema(name: str, kind: type[Versioned]) -> str:
    """The schema of a message, for draft 2020-12."""
    made: dict[str, Any] = msgspec.json.schema(kind, schema_hook=_any)
    for struct, part in made["$defs"].items():
        _complete(struct, part)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **made}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _any(kind: type) -> dict[str, Any]:
    """Values of any form, which berth keeps as they are."""
    if kind is not object:
        raise NotImplementedError
    return {"description": "Any value."}


def _complete(struct: str, part: dict[str, Any]) -> None:
    """Docstrings on one line; the number of the schema is always there, which msgspec cannot know."""
    if "description" in part:
        part["description"] = _one_line(part["description"])
    for name, field in part.get("properties", {}).items():
        if meaning := _meaning(struct, name):
            field["description"] = meaning
    if "schema" in part.get("properties", {}):
        part["required"] = ["schema", *part["required"]]


def _meaning(struct: str, field: str) -> str:
    """The sentences about the field in the docstrings of its class and that class's parents."""
    kinds = [kind for kind in _STRUCTS.get(struct, object).__mro__ if kind not in (object, msgspec.Struct)]
    texts = [_one_line(kind.__doc__) for kind in kinds if kind.__doc__]
    return " ".join(sentence for text in texts for sentence in _SENTENCE.split(text) if f"`{field}`" in sentence)


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
