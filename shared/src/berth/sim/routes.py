"""The API's paths: the kind, namespace, object and subresource that a request addresses."""

import dataclasses

from berth.sim.kinds import BY_ADDRESS, KINDS, NAMESPACES, PODS, SimulatedKind
from berth.sim.status import no_such_resource

_GROUP_VERSIONS = frozenset((kind.group, kind.version) for kind in KINDS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A parsed path; absent parts are empty strings."""

    kind: SimulatedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """The resource as RBAC and faults name it: `pods`, `pods/binding`."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural

    @property
    def key(self) -> tuple[str, str]:
        """The object's key in the store."""
        return self.namespace, self.name


def parse(path: str) -> Route | None:
    """Parse a path below /api or /apis; None for an unknown group and version.

    Raises:
        StatusError: 404, the group and version exist, the resource does not exist.
    """
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:  # noqa: PLR2004 - apis, group, version, resource
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if (group, version) not in _GROUP_VERSIONS or not rest:
        return None
    return _resource(group, version, rest)


def _resource(group: str, version: str, rest: list[str]) -> Route:
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group or rest[2] != "status"):  # noqa: PLR2004 - a kind in it
        namespace, rest = rest[1], rest[2:]
    if rest[0] == "bindings" and namespace and not group and len(rest) == 1:
        return Route(kind=PODS, namespace=namespace, subresource="binding")
    kind = BY_ADDRESS.get((group, version, rest[0]))
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):  # noqa: PLR2004 - kind, name, subresource
        raise no_such_resource()
    name, subresource = (*rest[1:], "", "")[:2]
    if kind.namespaced and name and not namespace:
        raise no_such_resource()
    if subresource and not _has_subresource(kind, subresource):
        raise no_such_resource()
    return Route(kind=kind, namespace=namespace, name=name, subresource=subresource)


def _has_subresource(kind: SimulatedKind, subresource: str) -> bool:
    if subresource == "status":
        return kind.has_status or kind is NAMESPACES
    return subresource == "binding" and kind is PODS
