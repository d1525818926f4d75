"""LIST: a consistent snapshot, in pages; the continue token has the form of the real one."""

import base64
import dataclasses
from collections.abc import Mapping

import msgspec

from berth.sim.kinds import Kind
from berth.sim.selectors import Selector, parse
from berth.sim.status import ApiError, bad_request, expired, future_version
from berth.sim.store import Store, Stored

_PRESENT = -1
"""The revision of a token that goes on with the present state, in place of one that has been forgotten."""
_TOKEN_VERSION = "meta.k8s.io/v1"  # noqa: S105 - a version, not a secret
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What a continue token says: the revision of the first page and the key at which to go on."""

    v: str
    rv: int
    start: str

    def encoded(self) -> str:
        """Return the token as it travels."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list: `rest` is None when nothing follows, `remaining` None when that is not known."""

    items: list[Stored]
    revision: int
    rest: Token | None = None
    remaining: int | None = None

    def encoded(self, kind: Kind) -> bytes:
        """Return the page as JSON; its items carry no kind and apiVersion."""
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
    """The query of a LIST."""

    selector: Selector
    limit: int = 0
    token: Token | None = None
    revision: int | None = None
    """None when no resourceVersion was given."""
    is_exact: bool = False


def list_options(kind: Kind, query: Mapping[str, str]) -> ListOptions:
    """Read the query of a LIST.

    Raises:
        ApiError: 400 or 422.
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


def selector_of(kind: Kind, query: Mapping[str, str]) -> Selector:
    """Return the selector of a LIST or WATCH."""
    return parse(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))


def is_set(query: Mapping[str, str], name: str) -> bool:
    """Say whether a switch is on: everything but `false` and `0` is, whatever the case (clients send `True`)."""
    return name in query and query[name].lower() not in {"false", "0"}


def integer(query: Mapping[str, str], name: str) -> int:
    """Return a number of the query; 0 when it is not there.

    Raises:
        ApiError: 400.
    """
    text = query.get(name) or "0"
    try:
        return int(text)
    except ValueError as exc:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from exc


def resource_version(text: str) -> int | None:
    """Return a resourceVersion as a number, None when there is none.

    Raises:
        ApiError: 400.
    """
    if not text:
        return None
    if not text.isdigit():
        problem = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: resourceVersion: {problem}")
    return int(text)


def _match_without_version() -> ApiError:
    problem = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    cause = {"reason": "FieldValueForbidden", "message": problem, "field": "resourceVersionMatch"}
    details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause]}
    message = f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: {problem}'
    return ApiError(422, "Invalid", message, details)


def _token(text: str) -> Token:
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Token)
    except ValueError as exc:
        raise bad_request(f"invalid continue token: continue key is not valid: {exc}") from exc
    if token.v != _TOKEN_VERSION:
        raise bad_request(f"invalid continue token: want version {_TOKEN_VERSION!r}, got {token.v!r}")
    return token


def list_page(store: Store, kind: Kind, namespace: str, options: ListOptions) -> Page:
    """Return a page; every page of one list shows the state at the revision of its first.

    Raises:
        ApiError: 410, that state is forgotten; 504, the revision asked for is still to come.
    """
    revision = _revision(store, options)
    matching = [stored for stored in _snapshot(store, kind, options, revision) if _is_meant(stored, namespace, options)]
    if options.token is not None:
        matching = [stored for stored in matching if _place(stored, namespace) >= options.token.start]
    if not options.limit or len(matching) <= options.limit or (options.revision == 0 and not options.is_exact):
        return Page(items=matching, revision=revision)
    items = matching[: options.limit]
    rest = Token(v=_TOKEN_VERSION, rv=revision, start=_place(items[-1], namespace) + "\0")
    remaining = len(matching) - len(items) if options.selector.is_everything else None
    return Page(items=items, revision=revision, rest=rest, remaining=remaining)


def _revision(store: Store, options: ListOptions) -> int:
    if options.token is not None:
        return store.revision if options.token.rv == _PRESENT else options.token.rv
    wanted = options.revision or 0
    if wanted > store.revision:
        raise future_version(wanted, store.revision)
    return wanted if options.is_exact else store.revision


def _snapshot(store: Store, kind: Kind, options: ListOptions, revision: int) -> list[Stored]:
    table = store.table(kind)
    if options.token is None:
        return table.as_of(revision)
    try:
        return table.as_of(revision)
    except ApiError as exc:
        rest = msgspec.structs.replace(options.token, rv=_PRESENT)
        raise expired(_TOO_OLD, rest.encoded()) from exc


def _is_meant(stored: Stored, namespace: str, options: ListOptions) -> bool:
    return (not namespace or stored.key[0] == namespace) and options.selector.matches(stored.value)


def _place(stored: Stored, namespace: str) -> str:
    """Return the key of an object below the prefix that is listed."""
    return stored.key[1] if namespace or not stored.key[0] else f"/{stored.key[0]}/{stored.key[1]}"
