"""Answers and errors of the API server.

An answer is a value; callers raise an error for a status that they cannot use. For a 403 the text names the rule to add
to the role.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

import msgspec

from berth.errors import TemporaryError
from berth.exits import UsageError


class KubeconfigError(UsageError):
    """Unusable configuration; the text is one sentence with the remedy."""


class ApiUnreachableError(TemporaryError):
    """No answer from the API server. ``maybe_sent``: the request may have been executed."""

    def __init__(self, message: str, *, maybe_sent: bool, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message, retry_after=retry_after)
        self.maybe_sent = maybe_sent


class ApiRefusedError(TemporaryError):
    """The API server answered with an unusable status; the text quotes its message."""

    def __init__(self, message: str, *, status: int, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message, retry_after=retry_after)
        self.status = status


# User "u" cannot create resource "pods/binding" in API group "" in the namespace "default"
# User "u" cannot list resource "nodes" in API group "" at the cluster scope
_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


_NAMED_VERBS = frozenset({"get", "update", "patch", "delete"})


_LEASES = "coordination.k8s.io"


def missing_right(status: StatusObject) -> str | None:
    """The RBAC rule that a 403 asks for; ``None`` if it has another cause (a terminating namespace, a quota)."""
    denied = _DENIED.search(status.message) if status.code == HTTPStatus.FORBIDDEN else None
    if denied is None:
        return None
    what = f"{denied['user']!r} may not {denied['verb']} {denied['resource']}"
    return f"{what}: add to the {_role(denied)}: {_rule(denied, status)} (docs/rights.md)"


def _role(denied: re.Match[str]) -> str:
    if denied["group"] == _LEASES and denied["namespace"]:
        return f"Role in namespace {denied['namespace']!r}"
    return "ClusterRole"


def _rule(denied: re.Match[str], status: StatusObject) -> str:
    rule = f'apiGroups: ["{denied["group"]}"], resources: ["{denied["resource"]}"], verbs: ["{denied["verb"]}"]'
    name = status.details.name if status.details else ""
    # Only for a Lease: the names of pods and nodes change, and RBAC cannot restrict create by name.
    if name and denied["group"] == _LEASES and denied["verb"] in _NAMED_VERBS:
        return f'{rule}, resourceNames: ["{name}"]'
    return rule


def refusal(doing: str, response: Response) -> ApiRefusedError:
    """Error for this answer. ``doing``: a participle with its object, such as ``listing 'pod'``."""
    failure = response.failure()
    return ApiRefusedError(
        f"{doing}: {response.status}: {explain(failure)}",
        status=response.status,
        retry_after=response.retry_after or timedelta(),
    )


def explain(failure: StatusObject) -> str:
    """The rule to add for a missing right, else the API's message."""
    return missing_right(failure) or failure.message or failure.reason or "no reason given"


# Quoted characters of a body other than a Status object.
CUT = 300


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    group: str = ""
    kind: str = ""


class StatusObject(msgspec.Struct, frozen=True, kw_only=True):
    """A Status of the API; ``reason`` is a CamelCase word, such as ``Expired``."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_status_decoder = msgspec.json.Decoder(StatusObject)


def decode_status(raw: bytes | msgspec.Raw, *, code: int = 0) -> StatusObject:
    """Decode a Status object. Any other body (a proxy's page) is quoted as the message."""
    try:
        return _status_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return StatusObject(message=bytes(raw)[:CUT].decode(errors="replace").strip(), code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer, with its Retry-After header."""

    status: int
    body: bytes
    retry_after: timedelta | None = None

    @property
    def succeeded(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def reason(self) -> str:
        """CamelCase reason of the API, such as ``AlreadyExists`` or ``Expired``, or empty."""
        return self.failure().reason

    @property
    def message(self) -> str:
        return self.failure().message

    def failure(self) -> StatusObject:
        return decode_status(self.body, code=self.status)


def parse_retry_after(header: str | None) -> timedelta | None:
    """Parse a Retry-After header in whole seconds, as the API server writes it; other forms are ignored."""
    if header is None or not (header.isascii() and header.isdigit()):
        return None
    return timedelta(seconds=min(int(header), 3600))
