"""kube-apiserver's errors: ``StatusError`` has the code, reason, message and details of a Status."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from berth_sim.apiserver.kinds import SimulatedKind

JsonObject = dict[str, Any]  # a decoded JSON object


class Problem(NamedTuple):
    """A field of an object that is invalid; `text` is `Required value`, `Forbidden: ...` and so on."""

    field: str
    text: str
    cause: str = "FieldValueInvalid"


class StatusError(Exception):
    """A response that is a Status of failure; only the server catches it."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.rest = ""  # token with which an expired list can continue inconsistently

    def status(self) -> JsonObject:
        """Members without a value are left out, as by the real server."""
        metadata = {"continue": self.rest} if self.rest else {}
        body: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body

    def encoded(self) -> bytes:
        return msgspec.json.encode(self.status())


def success(code: int | None = None, details: Mapping[str, Any] | None = None) -> bytes:
    body: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        body["details"] = details
    if code is not None:
        body["code"] = code
    return msgspec.json.encode(body)


def details_of(kind: SimulatedKind, name: str) -> JsonObject:
    """Details, with the object's group unless that is the core group."""
    group = {"group": kind.group} if kind.group else {}
    return {"name": name, **group, "kind": kind.plural}


def not_found(kind: SimulatedKind, name: str) -> StatusError:
    return StatusError(HTTPStatus.NOT_FOUND, "NotFound", f'{kind.resource} "{name}" not found', details_of(kind, name))


def no_such_resource() -> StatusError:
    """404: a known group and version, an unknown resource."""
    return StatusError(HTTPStatus.NOT_FOUND, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed(
    message: str = "the server does not allow this method on the requested resource",
) -> StatusError:
    return StatusError(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message, {})


def already_exists(kind: SimulatedKind, name: str) -> StatusError:
    message = f'{kind.resource} "{name}" already exists'
    return StatusError(HTTPStatus.CONFLICT, "AlreadyExists", message, details_of(kind, name))


def conflict(kind: SimulatedKind, name: str, why: str) -> StatusError:
    """409: a precondition, a resourceVersion among them, does not hold."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return StatusError(HTTPStatus.CONFLICT, "Conflict", message, details_of(kind, name))


def modified(kind: SimulatedKind, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def bad_request(message: str) -> StatusError:
    return StatusError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def forbidden(kind: SimulatedKind, name: str, why: str, causes: Sequence[Mapping[str, str]] = ()) -> StatusError:
    """403: rejected by admission or authorization."""
    details = details_of(kind, name)
    if causes:
        details["causes"] = causes
    return StatusError(HTTPStatus.FORBIDDEN, "Forbidden", f'{kind.resource} "{name}" is forbidden: {why}', details)


def invalid(kind: SimulatedKind, name: str, field: str, problem: str, cause: str = "FieldValueInvalid") -> StatusError:
    """422: one field of the object is invalid; `problem` is `Required value`, `Forbidden: ...` and so on."""
    return invalid_fields(kind, name, [Problem(field, problem, cause)])


def invalid_fields(kind: SimulatedKind, name: str, problems: Sequence[Problem]) -> StatusError:
    """422: these fields of the object are invalid."""
    causes = [{"reason": each.cause, "message": each.text, "field": each.field} for each in problems]
    details: JsonObject = {"name": name} if name else {}
    details |= {"group": kind.group} if kind.group else {}
    details |= {"kind": kind.name, "causes": causes}
    shown = f"{kind.name}.{kind.group}" if kind.group else kind.name
    texts = ", ".join(f"{each.field}: {each.text}" for each in problems)
    message = f'{shown} "{name}" is invalid: {texts if len(problems) == 1 else f"[{texts}]"}'
    return StatusError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details)


def expired(message: str, rest: str = "") -> StatusError:
    """410: the revision is compacted; the client has to list again, or to continue with `rest`."""
    error = StatusError(HTTPStatus.GONE, "Expired", message)
    error.rest = rest
    return error


def future_version(wanted: int, current: int) -> StatusError:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    return StatusError(HTTPStatus.GATEWAY_TIMEOUT, "Timeout", message, details)


def unsupported_media_type() -> StatusError:
    message = "415: Unsupported Media Type"
    return StatusError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message, {})
