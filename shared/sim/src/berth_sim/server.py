"""The HTTP side of the simulated API server: from the request to the store and the response."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
import yaml
from aiohttp import web

from berth.api.config.yamlreader import reason_in_a_line, yaml_values
from berth_sim import faults, kubectl, metricsserver, prometheus
from berth_sim.apiserver import apply, listing, patch, protobuf, schema, status
from berth_sim.apiserver import resources as bindings
from berth_sim.apiserver.kinds import PODS, Route, SimulatedKind, UnknownResourceError, parse_path
from berth_sim.apiserver.listing import Token
from berth_sim.apiserver.resources import DeleteOptions, Part, Resources
from berth_sim.apiserver.status import (
    StatusError,
    bad_request,
    method_not_allowed,
    no_such_resource,
    unsupported_media_type,
)
from berth_sim.apiserver.store import Store, StoredObject
from berth_sim.apiserver.watch import Watch, watch_options
from berth_sim.faults import Faults, Verb
from berth_sim.prometheus import SimulatedExporters, SimulatedPrometheus
from berth_sim.tables import Shown

_JSON = "application/json"
_YAML = "application/yaml"
_OPENAPI_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


_HEALTH_PATHS = frozenset({"/healthz", "/livez", "/readyz"})


_FAULTS_PATH = "/sim/faults"


class SimulatedApiServer:
    """Answers requests; aiohttp's low-level server calls ``handle``."""

    def __init__(self, resources: Resources, injected: Faults) -> None:
        self._resources = resources
        self._faults = injected
        self._documents = kubectl.documents()
        self._prometheus = SimulatedPrometheus(resources.store, resources.clock)
        self._exporters = SimulatedExporters(self._prometheus)

    @property
    def _store(self) -> Store:
        return self._resources.store

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """A watch ends when its client disconnects; a delayed write is carried out nevertheless."""
        if self._faults.armed() and "watch=" not in request.query_string:
            return await asyncio.shield(self._answer_or_refuse(request))
        return await self._answer_or_refuse(request)

    async def _answer_or_refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except UnknownResourceError as exc:
            refusal = method_not_allowed(str(exc)) if str(exc) else no_such_resource()
        except StatusError as exc:
            refusal = exc
        return _json(refusal.encoded(), refusal.code)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path == metricsserver.PATH and request.method == "GET":
            await self._faults.strike("list", metricsserver.ROUTE)
            return _json(metricsserver.node_metrics(self._prometheus))
        route = parse_path(path) if path.startswith("/api") else None
        if route is None:
            return await self._answer_elsewhere(request, path)
        query: Mapping[str, str] = request.query if request.query_string else {}
        verb = _verb(request.method, route, query)
        body = b"" if request.method == "GET" else await request.read()
        is_lost = await self._faults.strike(verb, route)
        response = await self._serve(request, route, verb, query, body)
        if is_lost and request.transport is not None:
            request.transport.abort()
        return response

    async def _answer_elsewhere(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if path in _HEALTH_PATHS or path.startswith(("/livez/", "/readyz/")):
            return web.Response(text="ok")
        if path == prometheus.PATH:
            return self._prometheus.respond(request.query.get("query", ""))
        if path == prometheus.EXPORTERS_PATH or path.startswith(f"{prometheus.EXPORTERS_PATH}/"):
            return self._exporters.respond(request)
        if path == _FAULTS_PATH:
            if request.method == "POST":
                self._faults.inject(*faults.decode(await request.read()))
            return _json(msgspec.json.encode(faults.describe(self._faults)))
        document = self._documents.get(path.rstrip("/"))
        if document is None:
            return web.Response(status=HTTPStatus.NOT_FOUND, text="404 page not found\n")
        code = HTTPStatus.CREATED if request.method == "POST" else HTTPStatus.OK
        return web.Response(body=document, status=code, content_type=_JSON if document else _OPENAPI_V2)

    async def _serve(
        self, request: web.BaseRequest, route: Route, verb: Verb, query: Mapping[str, str], body: bytes
    ) -> web.StreamResponse:
        match verb:
            case "watch":
                return await self._watch(request, route, query)
            case "create" | "update" | "patch":
                return self._write(request.content_type, route, verb, query, body)
            case "delete" | "deletecollection":
                return self._delete(request.content_type, route, verb, query, body)
            case _:
                return self._read(request, route, verb, query)

    def _written_to(self, query: Mapping[str, str]) -> Resources:
        """Resources to write to; for a dry run, a copy that keeps no write."""
        return self._resources.dry() if query.get("dryRun") else self._resources

    def _read(self, request: web.BaseRequest, route: Route, verb: Verb, query: Mapping[str, str]) -> web.Response:
        kind = route.kind
        if verb == "get":
            stored = self._resources.find(kind, route.key)
            if route.subresource == "scale":
                return _json(msgspec.json.encode(bindings.scale_of(kind, stored.value)))
            if _wants_table(request):
                return self._table(kind, [stored], self._store.revision, query)
            return _json(stored.encoded(kind))
        page = listing.list_page(self._store, kind, route.namespace, listing.list_options(kind, query))
        if _wants_table(request):
            return self._table(kind, page.items, page.revision, query, page.rest)
        return _json(page.encoded(kind))

    def _table(
        self,
        kind: SimulatedKind,
        items: Sequence[StoredObject],
        revision: int,
        query: Mapping[str, str],
        rest: Token | None = None,
    ) -> web.Response:
        return _json(self._shown(kind, query).encoded(items, revision, rest))

    def _shown(self, kind: SimulatedKind, query: Mapping[str, str]) -> Shown:
        return Shown(kind, self._resources.clock(), query.get("includeObject", ""))

    def _write(
        self, content_type: str, route: Route, verb: Verb, query: Mapping[str, str], body: bytes
    ) -> web.Response:
        kind, resources = route.kind, self._written_to(query)
        if kind.why_none and verb == "create":
            raise method_not_allowed(kind.why_none)
        if route.subresource == "binding":
            decoded = _decode(content_type, body, "Binding")
            name = route.name or (decoded.get("metadata") or {}).get("name", "")
            bindings.bind(resources, route.namespace, name, decoded)
            return _json(status.success(HTTPStatus.CREATED), HTTPStatus.CREATED)
        if content_type == apply.CONTENT_TYPE:
            return self._apply(resources, route, query, body)
        if verb == "patch" and content_type not in {patch.MERGE, patch.STRATEGIC, patch.JSON}:
            raise unsupported_media_type()
        decoded = _decode(content_type, body, "patch" if verb == "patch" else kind.name)
        warnings = () if verb == "patch" else _unknown_fields(kind, query, decoded)
        if route.subresource == "scale":
            scale = bindings.scale_of(kind, resources.find(kind, route.key).value)
            wanted = patch.apply(content_type, scale, decoded) if verb == "patch" else decoded
            return _json(
                msgspec.json.encode(bindings.scale_of(kind, bindings.rescale(resources, kind, route.key, wanted)))
            )
        part: Part = "status" if route.subresource == "status" else ""
        if verb == "create":
            stored, is_new = resources.create(kind, route.namespace, decoded), True
        elif verb == "update":
            stored, is_new = resources.replace(kind, route.key, decoded, part)
        else:
            changed = partial(_patched, kind, content_type, decoded, query)
            stored, is_new = resources.change(kind, route.key, changed, part), False
        return _json(stored.encoded(kind), HTTPStatus.CREATED if is_new else HTTPStatus.OK, warnings)

    def _now(self) -> str:
        return bindings.timestamp(self._resources.clock())

    def _apply(self, resources: Resources, route: Route, query: Mapping[str, str], body: bytes) -> web.Response:
        kind, manager = route.kind, query.get("fieldManager", "")
        if kind.why_none:
            raise method_not_allowed(kind.why_none)
        if not manager:
            raise StatusError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "Invalid",
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
            )
        config = _yaml(body)
        schema.refuse_wrong_types(schema.type_of(kind.group, kind.name), config, kind.name)
        warnings = _unknown_fields(kind, query, config)
        before = self._resources.store.table(kind).items.get(route.key)
        after = apply.applied(
            kind,
            bindings.as_shown(kind, before.value) if before else None,
            config,
            apply.Applier(name=manager, is_forced=query.get("force") == "true", now=self._now()),
        )
        if before is None:
            after["metadata"] = {**after["metadata"], "name": route.name}
            return _json(resources.create(kind, route.namespace, after).encoded(kind), HTTPStatus.CREATED, warnings)
        part: Part = "status" if route.subresource == "status" else ""
        return _json(resources.change(kind, route.key, lambda _: after, part).encoded(kind), warnings=warnings)

    def _delete(
        self, content_type: str, route: Route, verb: Verb, query: Mapping[str, str], body: bytes
    ) -> web.Response:
        options, resources = _delete_options(content_type, query, body), self._written_to(query)
        if verb == "delete":
            return _json(self._delete_one(resources, route.kind, route.key, options))
        page = listing.list_page(self._store, route.kind, route.namespace, listing.list_options(route.kind, query))
        for stored in page.items:
            self._delete_one(resources, route.kind, stored.key, options)
        return _json(page.encoded(route.kind))

    @staticmethod
    def _delete_one(resources: Resources, kind: SimulatedKind, key: tuple[str, str], options: DeleteOptions) -> bytes:
        stored, is_gone = resources.delete(kind, key, options)
        if kind is PODS or not is_gone:
            return stored.encoded(kind)
        return status.success(details={**status.details_of(kind, key[1]), "uid": stored.value["metadata"]["uid"]})

    async def _watch(self, request: web.BaseRequest, route: Route, query: Mapping[str, str]) -> web.StreamResponse:
        watch = Watch(self._store, route.kind, route.namespace, watch_options(route.kind, _named(route, query)))
        response = web.StreamResponse(headers={"Content-Type": _JSON, "Cache-Control": "no-cache, private"})
        await response.prepare(request)
        self._faults.watch_opened(watch.cut, route.kind.plural)
        try:
            async for chunk in watch.lines():
                shown = self._shown(route.kind, query).watched(chunk) if _wants_table(request) else chunk
                await response.write(shown)
            await response.write_eof()
        except ConnectionError:
            return response  # the client has disconnected
        finally:
            self._faults.watch_closed(watch.cut)
        return response


def _verb(method: str, route: Route, query: Mapping[str, str]) -> Verb:
    """The verb of a request, as RBAC names it.

    Raises:
        StatusError: 405.
    """
    if method == "GET" and route.subresource != "binding":
        if listing.is_set(query, "watch") and not route.subresource:
            return "watch"
        return "get" if route.name else "list"
    verb = _named_verb(method, route) if route.name else _collection_verb(method, route)
    if verb is None:
        raise method_not_allowed()
    return verb


def _named_verb(method: str, route: Route) -> Verb | None:
    if route.subresource == "binding":
        return "create" if method == "POST" else None
    verbs: dict[str, Verb] = {"PUT": "update", "PATCH": "patch"}
    if not route.subresource:
        verbs["DELETE"] = "delete"
    return verbs.get(method)


def _collection_verb(method: str, route: Route) -> Verb | None:
    is_creatable = route.namespace or not route.kind.namespaced
    if method == "POST" and is_creatable:
        return "create"
    return "deletecollection" if method == "DELETE" and is_creatable and not route.subresource else None


def _named(route: Route, query: Mapping[str, str]) -> Mapping[str, str]:
    """The query of a watch of one object: its name is a field selector."""
    if not route.name:
        return query
    fields = ",".join(part for part in (query.get("fieldSelector"), f"metadata.name={route.name}") if part)
    return {**query, "fieldSelector": fields}


def _wants_table(request: web.BaseRequest) -> bool:
    return "as=Table" in request.headers.get("Accept", "")


def _json(body: bytes, code: int = HTTPStatus.OK, warnings: Sequence[str] = ()) -> web.Response:
    answer = web.Response(body=body, status=code, content_type=_JSON)
    for warning in warnings:
        answer.headers.add("Warning", f"299 - {msgspec.json.encode(warning).decode()}")
    return answer


def _patched(kind: SimulatedKind, content_type: str, change: Any, query: Mapping[str, str], value: Any) -> Any:
    after = patch.apply(content_type, value, change)
    _unknown_fields(kind, query, after)
    return after


def _unknown_fields(kind: SimulatedKind, query: Mapping[str, str], value: Any) -> Sequence[str]:
    """Unknown fields to warn of, by the query's fieldValidation.

    Raises:
        StatusError: 400, with `Strict`, for fields that the kind does not have.
    """
    match query.get("fieldValidation"):
        case "Strict":
            schema.refuse_unknown(schema.type_of(kind.group, kind.name), value, kind)
        case "Warn":
            return schema.check_fields(schema.type_of(kind.group, kind.name), value)
    return ()


def _decode(content_type: str, body: bytes, name: str) -> Any:
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(body, name)
    if content_type == _YAML:
        return _yaml(body)
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as exc:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {name}): couldn't get version/kind; json parse "
            f"error: {exc}"
        ) from exc


def _yaml(body: bytes) -> Any:
    try:
        (value,) = yaml_values(body.decode())
    except (ValueError, yaml.YAMLError) as exc:
        raise bad_request(f"error decoding YAML: {reason_in_a_line(exc)}") from exc
    if not isinstance(value, dict):
        raise bad_request("error decoding YAML: want an object")
    return value


def _delete_options(content_type: str, query: Mapping[str, str], body: bytes) -> DeleteOptions:
    options = (_decode(content_type, body, "DeleteOptions") if body else None) or {}
    preconditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds")
    if grace is None and query.get("gracePeriodSeconds"):
        grace = listing.integer(query, "gracePeriodSeconds")
    return DeleteOptions(
        grace_seconds=grace,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        orphans=(options.get("propagationPolicy") or query.get("propagationPolicy")) == "Orphan",
    )
