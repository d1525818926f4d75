"""Faults of the simulated API server on demand: in process by `Faults`, from outside by `POST /sim/faults`.

    {"action": "fail", "verb": "create", "resource": "pods/binding", "count": 3, "status": 503}
    {"action": "delay", "verb": "*", "resource": "pods", "count": null, "seconds": 2}
    {"action": "lose_answer", "verb": "create", "resource": "pods/binding"}
    {"action": "reject", "verb": "list", "resource": "nodes", "count": null}
    {"action": "cut_watches", "resource": "pods"}
    {"action": "compact"}
    {"action": "clear"}

Verbs are RBAC's: get, list, watch, create, update, patch, delete, deletecollection; `*` is any.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Literal, TypeAlias

import msgspec

from berth_sim.apiserver.kinds import Route
from berth_sim.apiserver.status import JsonObject, StatusError, bad_request
from berth_sim.apiserver.store import Store

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
ANY = "*"
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class _Aimed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="action"):
    """The requests that a fault applies to, and their number; `count=None`: all until the faults are cleared."""

    verb: Verb | Literal["*"] = "*"
    resource: str = ANY  # `pods`, `pods/binding`, `leases`, or `*`
    count: int | None = 1

    def meets(self, verb: Verb, resource: str) -> bool:
        return self.verb in (ANY, verb) and self.resource in (ANY, resource)


class Fail(_Aimed, tag="fail"):
    """The request fails with this status without an effect."""

    status: int = 503
    message: str = "the server is simulating a failure"


class Reject(_Aimed, tag="reject"):
    """The request fails with 403, as without the right."""

    user: str = "system:anonymous"


class Delay(_Aimed, tag="delay"):
    seconds: float = 1.0


class LoseAnswer(_Aimed, tag="lose_answer"):
    """The request is carried out, then the connection breaks: the client gets no response."""


class CutWatches(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="action", tag="cut_watches"):
    resource: str = ANY


class Compact(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="action", tag="compact"):
    """The history is compacted: older pages and watches end in 410."""


class Clear(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="action", tag="clear"):
    pass


Armed: TypeAlias = Fail | Reject | Delay | LoseAnswer
Fault: TypeAlias = Armed | CutWatches | Compact | Clear


class Faults:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._armed: list[Armed] = []
        self._watches: dict[Callable[[], None], str] = {}

    def inject(self, *faults: Fault) -> None:
        """Arm faults; faults that do not concern requests take effect at once."""
        for fault in faults:
            match fault:
                case CutWatches(resource=resource):
                    self.cut_watches(resource)
                case Compact():
                    self._store.compact()
                case Clear():
                    self._armed.clear()
                case _:
                    self._armed.append(fault)

    def armed(self) -> list[Armed]:
        return list(self._armed)

    def cut_watches(self, resource: str = ANY) -> None:
        for cut, watched in tuple(self._watches.items()):
            if resource in (ANY, watched):
                cut()

    def watch_opened(self, cut: Callable[[], None], resource: str) -> None:
        self._watches[cut] = resource

    def watch_closed(self, cut: Callable[[], None]) -> None:
        del self._watches[cut]

    async def strike(self, verb: Verb, route: Route) -> bool:
        """Apply the faults that match a request; return whether its response is to be lost.

        Raises:
            StatusError: the response that a fault puts in place of the server's.
        """
        is_lost = False
        for fault in [armed for armed in self._armed if armed.meets(verb, route.resource)]:
            if self._use_up(fault):
                is_lost |= await _happen(fault, verb, route)
        return is_lost

    def _use_up(self, fault: Armed) -> bool:
        if fault not in self._armed:
            return False
        if fault.count is not None:
            fault.count -= 1
            if fault.count <= 0:
                self._armed = [armed for armed in self._armed if armed is not fault]
        return True


async def _happen(fault: Armed, verb: Verb, route: Route) -> bool:
    match fault:
        case Delay(seconds=seconds):
            await asyncio.sleep(seconds)
        case Fail(status=status, message=message):
            raise StatusError(status, _REASONS.get(status, ""), message)
        case Reject(user=user):
            raise _missing_right(user, verb, route)
    return isinstance(fault, LoseAnswer)


def _missing_right(user: str, verb: Verb, route: Route) -> StatusError:
    kind, name = route.kind, route.name
    scope = f'in the namespace "{route.namespace}"' if route.namespace else "at the cluster scope"
    subject = f'{kind.resource} "{name}"' if name else kind.resource
    cannot = f'User "{user}" cannot {verb} resource "{route.resource}" in API group "{kind.group}" {scope}'
    details = {**({"name": name} if name else {}), **({"group": kind.group} if kind.group else {}), "kind": kind.plural}
    return StatusError(HTTPStatus.FORBIDDEN, "Forbidden", f"{subject} is forbidden: {cannot}", details)


def decode(body: bytes) -> list[Fault]:
    """Decode the body of `POST /sim/faults`: one fault or a list of them.

    Raises:
        StatusError: 400, not a fault.
    """
    try:
        decoded: Fault | list[Fault] = msgspec.json.decode(body, type=Fault | list[Fault])
    except msgspec.DecodeError as exc:
        raise bad_request(f"decoding a fault: {exc}") from exc
    return decoded if isinstance(decoded, list) else [decoded]


def describe(faults: Faults) -> JsonObject:
    return {"armed": faults.armed()}
