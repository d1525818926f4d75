"""Label and field selectors: parsed once into requirements, matched against objects as dicts."""

import dataclasses
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from berth.sim.kinds import FieldPath, Kind
from berth.sim.status import ApiError, JsonObject, bad_request

Operator = Literal["=", "!=", "in", "notin", "exists", "!"]

_COMMON_FIELDS: dict[str, FieldPath] = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
}
_SET = re.compile(r"(?P<key>[^\s=!(),]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARISON = re.compile(r"(?P<key>[^\s=!(),]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s=!(),]*)$")
_PRESENCE = re.compile(r"(?P<absent>!?)\s*(?P<key>[^\s=!(),]+)$")
_BETWEEN_REQUIREMENTS = re.compile(r",(?![^(]*\))")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequirement:
    """One requirement on a label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: dict[str, str]) -> bool:
        """Say whether an object with these labels is meant; `!=` and `notin` also hold without the label."""
        match self.operator:
            case "=" | "in":
                return labels.get(self.key) in self.values
            case "!=" | "notin":
                return labels.get(self.key) not in self.values
            case "exists":
                return self.key in labels
            case "!":
                return self.key not in labels


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FieldRequirement:
    """One requirement on a field; a field that is not there is the empty string, or false."""

    path: FieldPath
    value: str
    is_equal: bool

    def matches(self, value: JsonObject) -> bool:
        """Say whether the object is meant."""
        return (_field(value, self.path) == self.value) is self.is_equal


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Everything that a request says about which objects it means, the namespace apart."""

    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    @property
    def is_everything(self) -> bool:
        """True when there is no requirement at all."""
        return not self.labels and not self.fields

    def matches(self, value: JsonObject) -> bool:
        """Say whether an object is meant."""
        for requirement in self.fields:
            if not requirement.matches(value):
                return False
        if not self.labels:
            return True
        labels = value["metadata"].get("labels") or {}
        return all(requirement.matches(labels) for requirement in self.labels)


def _field(value: JsonObject, path: FieldPath) -> str:
    found: object = value
    for member in path:
        found = found.get(member) if isinstance(found, dict) else None
    if found is None:
        return "false" if path[-1] == "unschedulable" else ""
    return str(found).lower() if isinstance(found, bool) else str(found)


@lru_cache(maxsize=1024)
def parse(kind: Kind, label_selector: str, field_selector: str) -> Selector:
    """Return the selector of a request.

    Raises:
        ApiError: 400, it cannot be parsed or names a field that the kind cannot be selected by.
    """
    return Selector(labels=parse_labels(label_selector), fields=parse_fields(kind, field_selector))


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    """Parse `a=b,c in (d,e),!f`."""
    return tuple(_label_requirement(part.strip()) for part in _BETWEEN_REQUIREMENTS.split(text) if part.strip())


def _label_requirement(text: str) -> LabelRequirement:
    for pattern, build in _LABEL_FORMS:
        if found := pattern.match(text):
            return build(found)
    raise _unparseable(text)


def _from_set(found: re.Match[str]) -> LabelRequirement:
    values = frozenset(value.strip() for value in found["values"].split(","))
    return LabelRequirement(key=found["key"], operator="in" if found["operator"] == "in" else "notin", values=values)


def _from_comparison(found: re.Match[str]) -> LabelRequirement:
    operator: Operator = "!=" if found["operator"] == "!=" else "="
    return LabelRequirement(key=found["key"], operator=operator, values=frozenset({found["value"]}))


def _from_presence(found: re.Match[str]) -> LabelRequirement:
    return LabelRequirement(key=found["key"], operator="!" if found["absent"] else "exists")


_LABEL_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], LabelRequirement]], ...] = (
    (_SET, _from_set),
    (_COMPARISON, _from_comparison),
    (_PRESENCE, _from_presence),
)


def _unparseable(text: str) -> ApiError:
    return bad_request(
        f"unable to parse requirement: {text!r}: want `k=v`, `k!=v`, `k in (a,b)`, `k notin (a)`, `k`, `!k`"
    )


def parse_fields(kind: Kind, text: str) -> tuple[FieldRequirement, ...]:
    """Parse `spec.nodeName=,status.phase!=Failed`."""
    return tuple(_field_requirement(kind, part.strip()) for part in text.split(",") if part.strip())


def _field_requirement(kind: Kind, text: str) -> FieldRequirement:
    found = _COMPARISON.match(text)
    if found is None:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    path = _COMMON_FIELDS.get(found["key"]) or kind.fields.get(found["key"])
    if path is None:
        raise bad_request(f"field label not supported: {found['key']}")
    return FieldRequirement(path=path, value=found["value"], is_equal=found["operator"] != "!=")
