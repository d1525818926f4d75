"""The two forms of an Event: core/v1 is kept, events.k8s.io/v1 is made from it and turned back into it."""

from typing import Any

_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_CORE_NAMES = {new: core for core, new in _NEW_NAMES.items()}
_ALWAYS_THERE: dict[str, Any] = {
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
}
_EMPTY_LEFT_OUT = frozenset({"reportingController", "reportingInstance"})


def as_new_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return a core/v1 Event in the form of events.k8s.io/v1."""
    renamed = {_NEW_NAMES.get(member, member): value for member, value in event.items()}
    return {member: value for member, value in renamed.items() if value != "" or member not in _EMPTY_LEFT_OUT}


def as_core_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an events.k8s.io/v1 Event in the form of core/v1."""
    return {_CORE_NAMES.get(member, member): value for member, value in event.items()}


def with_defaults(event: dict[str, Any]) -> dict[str, Any]:
    """Return a core/v1 Event with the members that the API server always shows."""
    return {**event, **{member: value for member, value in _ALWAYS_THERE.items() if member not in event}}
