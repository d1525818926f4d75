"""What a write says about the object that it means: uid and resourceVersion, and the refusals when they differ."""

import dataclasses
from http import HTTPStatus

from berth.sim.kinds import Kind
from berth.sim.status import ApiError, conflict
from berth.sim.store import Key, Stored


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """What a DELETE asks for; None is "not said"."""

    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None


def check_uid(kind: Kind, key: Key, before: Stored | None, uid: str | None) -> None:
    """Refuse a PUT that means another object of the same name, or one that is not there any more.

    Raises:
        ApiError: 409.
    """
    known = before.value["metadata"]["uid"] if before is not None else ""
    if uid and uid != known:
        raise conflict(kind, key[1], f"Precondition failed: UID in precondition: {uid}, UID in object meta: {known}")


def version_required(kind: Kind, name: str) -> ApiError:
    """422: an update that does not say which state it was made from."""
    problem = "Invalid value: 0: must be specified for an update"
    cause = {"reason": "FieldValueInvalid", "message": problem, "field": "metadata.resourceVersion"}
    details = {"name": name, "group": kind.group, "kind": kind.plural, "causes": [cause]}
    message = f'{kind.resource} "{name}" is invalid: metadata.resourceVersion: {problem}'
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details)


def check_delete(kind: Kind, before: Stored, options: DeleteOptions) -> None:
    """Refuse a DELETE that means another object or another state of it.

    Raises:
        ApiError: 409.
    """
    metadata = before.value["metadata"]
    details = {"name": before.key[1], "kind": kind.name}
    cannot = f'Operation cannot be fulfilled on {kind.name} "{before.key[1]}": '
    if options.uid is not None and options.uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise ApiError(HTTPStatus.CONFLICT, "Conflict", cannot + why, details)
    version = options.resource_version
    if version is not None and version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            f"({metadata['resourceVersion']}). The object might have been modified"
        )
        raise ApiError(HTTPStatus.CONFLICT, "Conflict", cannot + why, details)
