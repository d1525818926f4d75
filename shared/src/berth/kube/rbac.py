"""A missing right in one sentence: the API server says who may not do what; people need the rule to add."""

from __future__ import annotations

import re
from http import HTTPStatus

from berth.kube.response import StatusObject

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
