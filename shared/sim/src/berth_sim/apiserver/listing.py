"""LIST and its query: label and field selectors, pages, and continue tokens of the real form.

Selectors are parsed once and matched against objects as dicts.
"""

import base64
import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from berth_sim.apiserver.kinds import FieldPath, SimulatedKind
from berth_sim.apiserver.status import JsonObject, StatusError, bad_request, expired, future_version
from berth_sim.apiserver.store import Store, StoredObject

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
    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: dict[str, str]) -> bool:
        """`!=` and `notin` also hold without the label."""
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
    """A missing field is the empty string, or false."""

    path: FieldPath
    value: str
    is_equal: bool

    def matches(self, value: JsonObject) -> bool:
        return (_field(value, self.path) == self.value) is self.is_equal


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A request's requirements for labels and fields, without its namespace."""

    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    @property
    def is_everything(self) -> bool:
        return not self.labels and not self.fields

    def matches(self, value: JsonObject) -> bool:
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
def parse(kind: SimulatedKind, label_selector: str, field_selector: str) -> Selector:
    """The selector of a request.

    Raises:
        StatusError: 400, it cannot be parsed, or the kind does not support the field.
    """
    return Selector(labels=parse_labels(label_selector), fields=parse_fields(kind, field_selector))


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
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


def _unparseable(text: str) -> StatusError:
    return bad_request(
        f"unable to parse requirement: {text!r}: want `k=v`, `k!=v`, `k in (a,b)`, `k notin (a)`, `k`, `!k`"
    )


def parse_fields(kind: SimulatedKind, text: str) -> tuple[FieldRequirement, ...]:
    """Parse `spec.nodeName=,status.phase!=Failed`."""
    return tuple(_field_requirement(kind, part.strip()) for part in text.split(",") if part.strip())


def _field_requirement(kind: SimulatedKind, text: str) -> FieldRequirement:
    found = _COMPARISON.match(text)
    if found is None:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    path = _COMMON_FIELDS.get(found["key"]) or kind.fields.get(found["key"])
    if path is None:
        raise bad_request(f"field label not supported: {found['key']}")
    return FieldRequirement(path=path, value=found["value"], is_equal=found["operator"] != "!=")


# Revision in a token that continues with the present state after the original one was compacted.
_PRESENT = -1

_TOKEN_VERSION = "meta.k8s.io/v1"  # noqa: S105 - a version, not a secret

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded continue token: the revision of the first page, and the key to continue at."""

    v: str
    rv: int
    start: str

    def encoded(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """A page of a list: `rest` is None on the last page, `remaining` is None if unknown."""

    items: list[StoredObject]
    revision: int
    rest: Token | None = None
    remaining: int | None = None

    def encoded(self, kind: SimulatedKind) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(self.revision)}
        if self.rest is not None:
            metadata["continue"] = self.rest.encoded()
        if self.remaining is not None:
            metadata["remainingItemCount"] = self.remaining
        items = b",".join([stored.body(kind) for stored in self.items])
        head = f'{{"kind":"{kind.name}List","apiVersion":"{kind.api_version}","metadata":'.encode()
        return b'%b%b,"items":[%b]}\n' % (head, msgspec.json.encode(metadata), items)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    selector: Selector
    limit: int = 0
    token: Token | None = None
    revision: int | None = None  # None without a resourceVersion
    is_exact: bool = False


def list_options(kind: SimulatedKind, query: Mapping[str, str]) -> ListOptions:
    """Read the query of a LIST.

    Raises:
        StatusError: 400 or 422.
    """
    version = query.get("resourceVersion", "")
    match = query.get("resourceVersionMatch", "")
    if match and not version:
        raise _match_without_version()
    token = _token(query["continue"]) if query.get("continue") else None
    return ListOptions(
        selector=selector_of(kind, query),
        limit=max(0, integer(query, "limit")),
        token=token,
        revision=resource_version(version),
        is_exact=match == "Exact",
    )


def selector_of(kind: SimulatedKind, query: Mapping[str, str]) -> Selector:
    return parse(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))


def is_set(query: Mapping[str, str], name: str) -> bool:
    """Whether a boolean parameter is true: all values but `false` and `0`, in any case (clients send `True`)."""
    return name in query and query[name].lower() not in {"false", "0"}


def integer(query: Mapping[str, str], name: str) -> int:
    """A number of the query; 0 if absent.

    Raises:
        StatusError: 400.
    """
    text = query.get(name) or "0"
    try:
        return int(text)
    except ValueError as exc:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from exc


def resource_version(text: str) -> int | None:
    """A resourceVersion as a number; None if absent.

    Raises:
        StatusError: 400.
    """
    if not text:
        return None
    if not text.isdigit():
        problem = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: resourceVersion: {problem}")
    return int(text)


def _match_without_version() -> StatusError:
    problem = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    cause = {"reason": "FieldValueForbidden", "message": problem, "field": "resourceVersionMatch"}
    details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause]}
    message = f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: {problem}'
    return StatusError(422, "Invalid", message, details)


def _token(text: str) -> Token:
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Token)
    except ValueError as exc:
        raise bad_request(f"invalid continue token: continue key is not valid: {exc}") from exc
    if token.v != _TOKEN_VERSION:
        raise bad_request(f"invalid continue token: want version {_TOKEN_VERSION!r}, got {token.v!r}")
    return token


def list_page(store: Store, kind: SimulatedKind, namespace: str, options: ListOptions) -> ListPage:
    """A page; every page of a list shows the state at the revision of its first page.

    Raises:
        StatusError: 410, that revision is compacted; 504, the requested revision is newer than the present one.
    """
    revision = _revision(store, options)
    matching = [stored for stored in _snapshot(store, kind, options, revision) if _is_meant(stored, namespace, options)]
    if options.token is not None:
        matching = [stored for stored in matching if _place(stored, namespace) >= options.token.start]
    if not options.limit or len(matching) <= options.limit or (options.revision == 0 and not options.is_exact):
        return ListPage(items=matching, revision=revision)
    items = matching[: options.limit]
    rest = Token(v=_TOKEN_VERSION, rv=revision, start=_place(items[-1], namespace) + "\0")
    remaining = len(matching) - len(items) if options.selector.is_everything else None
    return ListPage(items=items, revision=revision, rest=rest, remaining=remaining)


def _revision(store: Store, options: ListOptions) -> int:
    if options.token is not None:
        return store.revision if options.token.rv == _PRESENT else options.token.rv
    wanted = options.revision or 0
    if wanted > store.revision:
        raise future_version(wanted, store.revision)
    return wanted if options.is_exact else store.revision


def _snapshot(store: Store, kind: SimulatedKind, options: ListOptions, revision: int) -> list[StoredObject]:
    table = store.table(kind)
    if options.token is None:
        return table.as_of(revision)
    try:
        return table.as_of(revision)
    except StatusError as exc:
        rest = msgspec.structs.replace(options.token, rv=_PRESENT)
        raise expired(_TOO_OLD, rest.encoded()) from exc


def _is_meant(stored: StoredObject, namespace: str, options: ListOptions) -> bool:
    return (not namespace or stored.key[0] == namespace) and options.selector.matches(stored.value)


def _place(stored: StoredObject, namespace: str) -> str:
    return stored.key[1] if namespace or not stored.key[0] else f"/{stored.key[0]}/{stored.key[1]}"
