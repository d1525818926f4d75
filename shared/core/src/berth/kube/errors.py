"""Errors of the API server.

An answer is a value (``http1.Response``); callers raise an error for a status that they cannot use. For a 403 the text
names the rule to add to the role.
"""

from __future__ import annotations

import re
from datetime import timedelta
from http import HTTPStatus
from typing import Final

from berth.errors import TemporaryError
from berth.exits import UsageError
from berth.kube.http1 import Response, StatusObject


class KubeconfigError(UsageError):
    """Unusable configuration; the text is one sentence with the remedy."""


class ApiUnreachableError(TemporaryError):
    """No answer from the API server: the request may have been executed."""


class ApiRefusedError(TemporaryError):
    """The API server answered with an unusable status; the text quotes its message.

    ``denied``: who may not do what, if a right is missing.
    """

    def __init__(self, message: str, *, status: int, retry_after: timedelta, denied: str) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.denied = denied


# User "u" cannot create resource "pods/binding" in API group "" in the namespace "default"
# User "u" cannot list resource "nodes" in API group "" at the cluster scope
_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


_NAMED_VERBS = frozenset({"get", "update", "patch", "delete"})


_LEASES = "coordination.k8s.io"

# The right to resourceclaims/binding is asked for in the validation of a claim's status.
_REFUSALS: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)


RIGHTS_PAGE: Final = "docs/security.md#rights-in-the-cluster"


def missing_right(status: StatusObject) -> str | None:
    """The RBAC rule that a refusal asks for; ``None`` if it has another cause (a terminating namespace, a quota)."""
    denied = _denied(status)
    if denied is None:
        return None
    return f"{_what(denied)}: add to the {_role(denied)}: {_rule(denied, status)} ({RIGHTS_PAGE})"


def _denied(status: StatusObject) -> re.Match[str] | None:
    return _DENIED.search(status.message) if status.code in _REFUSALS else None


def _what(denied: re.Match[str]) -> str:
    return f"{denied['user']!r} may not {denied['verb']} {denied['resource']}"


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
    denied = _denied(failure)
    return ApiRefusedError(
        f"{doing}: {response.status}: {explain(failure)}",
        status=response.status,
        retry_after=response.retry_after or timedelta(),
        denied=_what(denied) if denied else "",
    )


def explain(failure: StatusObject) -> str:
    """The rule to add for a missing right, else the API's message."""
    return missing_right(failure) or failure.message or failure.reason or "no reason given"
