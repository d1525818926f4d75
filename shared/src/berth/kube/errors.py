"""Answers and errors of the API server.

An answer is a value; an error is for a caller that has no use for it. A missing right (403) is explained by the rule to
add to the role.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

import msgspec

from berth.api.errors import BerthError, TemporaryError


class KubeconfigError(BerthError):
    """There is no usable way to an API server; the text is one sentence that says what to do."""


class ApiUnreachableError(TemporaryError):
    """The API server gave no answer. ``maybe_sent``: the request may have been carried out all the same."""

    def __init__(self, message: str, *, maybe_sent: bool, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message, retry_after=retry_after)
        self.maybe_sent = maybe_sent


class ApiRefusedError(TemporaryError):
    """The API server answered with a status that the caller has no use for; the text quotes its words."""

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
    """The rule that a 403 asks for; ``None`` when it has another reason (a namespace that is going away, a quota)."""
    denied = _DENIED.search(status.message) if status.code == HTTPStatus.FORBIDDEN else None
    if denied is None:
        return None
    what = f"{denied['user']!r} may not {denied['verb']} {denied['resource']}"
    return f"{what}: add to the {_role(denied)}: {_rule(denied, status)}"


def _role(denied: re.Match[str]) -> str:
    if denied["group"] == _LEASES and denied["namespace"]:
        return f"Role in namespace {denied['namespace']!r}"
    return "ClusterRole"


def _rule(denied: re.Match[str], status: StatusObject) -> str:
    rule = f'apiGroups: ["{denied["group"]}"], resources: ["{denied["resource"]}"], verbs: ["{denied["verb"]}"]'
    name = status.details.name if status.details else ""
    # One Lease is enough; for pods and nodes a name would be right once only, and create knows no names.
    if name and denied["group"] == _LEASES and denied["verb"] in _NAMED_VERBS:
        return f'{rule}, resourceNames: ["{name}"]'
    return rule


def refusal(doing: str, response: Response) -> ApiRefusedError:
    """``doing`` is a participle with its object, such as ``listing 'pod'``."""
    failure = response.failure()
    return ApiRefusedError(
        f"{doing}: {response.status}: {explain(failure)}",
        status=response.status,
        retry_after=response.retry_after or timedelta(),
    )


def explain(failure: StatusObject) -> str:
    """The rule to add where a right is missing, otherwise the API's own words."""
    return missing_right(failure) or failure.message or failure.reason or "no reason given"


CUT = 300
"""Characters of a body that is not a Status object which a message quotes."""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Which object a Status speaks of."""

    name: str = ""
    group: str = ""
    kind: str = ""


class StatusObject(msgspec.Struct, frozen=True, kw_only=True):
    """The API's own words on a failure; ``reason`` is one of its CamelCase words, such as ``Expired``."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_status_decoder = msgspec.json.Decoder(StatusObject)


def decode_status(raw: bytes | msgspec.Raw, *, code: int = 0) -> StatusObject:
    """Read a Status object; what is none (a proxy's page) is quoted as the message."""
    try:
        return _status_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return StatusObject(message=bytes(raw)[:CUT].decode(errors="replace").strip(), code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer. ``retry_after`` is the header of that name, where there was one."""

    status: int
    body: bytes
    retry_after: timedelta | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the status is one of 200 to 299."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def reason(self) -> str:
        """The API's CamelCase word, such as ``AlreadyExists`` or ``Expired``; empty when it gave none."""
        return self.failure().reason

    @property
    def message(self) -> str:
        """The API's sentence."""
        return self.failure().message

    def failure(self) -> StatusObject:
        """The Status object in the body."""
        return decode_status(self.body, code=self.status)


def parse_retry_after(header: str | None) -> timedelta | None:
    """Read a Retry-After header; the API server writes whole seconds, other forms are as good as none."""
    if header is None or not (header.isascii() and header.isdigit()):
        return None
    return timedelta(seconds=min(int(header), 3600))
