"""The schema of the simulated API server (`berth_sim/apiserver/schema.json`), made from a real API server's.

    python -m harness.apischema KUBECONFIG PROTO_FOLDER > shared/sim/src/berth_sim/apiserver/schema.json

Names and types of the fields, and how lists merge, come from its OpenAPI documents. The numbers of the fields in
protobuf come from the `generated.proto` files of the Go modules k8s.io/api and k8s.io/apimachinery, in PROTO_FOLDER.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from berth_sim.apiserver.kinds import SERVED_KINDS

Schemas = Mapping[str, Mapping[str, Any]]

ALSO = {("autoscaling", "Scale"), ("", "Binding"), ("", "DeleteOptions")}
"""Kinds of bodies besides those of stored objects, by group."""
PLAIN = {
    "Quantity": "quantity",
    "FieldsV1": "any",
    "RawExtension": "json",
    "IntOrString": "int-or-string",
    "Time": "time",
    "MicroTime": "time",
}
MERGING = ("list-type", "list-map-keys", "map-type", "patch-merge-key", "patch-strategy")


def schema_of(documents: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The types that the served kinds reach, by name: `properties`, as `[type]` or `[type, how it merges]`."""
    found: dict[str, Any] = {}
    for document in documents:
        found |= document["components"]["schemas"]
    served = {(kind.group, kind.name) for kind in SERVED_KINDS} | ALSO
    roots = [
        name
        for name, schema in found.items()
        for meant in schema.get("x-kubernetes-group-version-kind", ())
        if (meant["group"], meant["kind"]) in served and meant["version"] == "v1"
    ]
    types: dict[str, dict[str, Any]] = {}
    while roots:
        name = roots.pop()
        if name in types:
            continue
        properties = found[name].get("properties") or {}
        types[name] = {"properties": {field: _property(schema) for field, schema in sorted(properties.items())}}
        roots += [type_.lstrip("[{") for type_, *_ in types[name]["properties"].values() if "." in type_]
    return dict(sorted(types.items()))


def _property(schema: Mapping[str, Any]) -> list[Any]:
    merging = {name: schema[f"x-kubernetes-{name}"] for name in MERGING if f"x-kubernetes-{name}" in schema}
    return [_type(schema), *([merging] if merging else [])]


def _type(schema: Mapping[str, Any]) -> str:
    reference = schema.get("$ref") or next((one["$ref"] for one in schema.get("allOf", ())), "")
    if reference:
        name = reference.rpartition("/")[2]
        return PLAIN.get(name.rpartition(".")[2], name)
    if schema.get("type") == "array":
        return f"[{_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{{{_type(schema['additionalProperties'])}"
    return "bytes" if schema.get("format") == "byte" else schema.get("type", "any")


FIELD = re.compile(
    r"^  (?:(?:optional|repeated) (?P<type>[.\w]+)|map<string, (?P<of>[.\w]+)>) (?P<name>\w+) = (?P<number>\d+);"
)


def add_numbers(types: dict[str, dict[str, Any]], protos: Iterable[str]) -> None:
    """Add `numbers` to each type: the name of the field by its number, or `=TYPE` for fields that JSON has inline."""
    messages = {name: fields for text in protos for name, fields in _messages(text)}
    todo = list(types)
    while todo:
        name = todo.pop()
        properties, numbers = types[name]["properties"], {}
        for number, field, type_ in messages.get(name, ()):
            if field in properties:
                numbers[number] = field
            elif inline := [each for _, each, _ in messages.get(type_, ()) if each in properties]:
                numbers[number] = f"={type_}"
                types[type_] = {"properties": {each: properties[each] for each in inline}}
                todo.append(type_)
        types[name]["numbers"] = numbers


def _messages(text: str) -> Iterable[tuple[str, list[tuple[str, str, str]]]]:
    (package,) = re.findall(r"^package ([.\w]+);", text, re.MULTILINE)
    for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields = [found for line in body.splitlines() if (found := FIELD.match(line))]
        yield (
            f"{_turned(package)}.{name}",
            [(field["number"], field["name"], _full(field["type"] or field["of"], package)) for field in fields],
        )


def _full(type_: str, package: str) -> str:
    """The name in OpenAPI: `.k8s.io.api.core.v1.Pod` is `io.k8s.api.core.v1.Pod` there."""
    space, _, name = type_.rpartition(".")
    return f"{_turned(space.removeprefix('.') or package)}.{name}"


def _turned(package: str) -> str:
    return package.replace("k8s.io.", "io.k8s.", 1)


def documents_of(kubeconfig: str) -> Iterable[Mapping[str, Any]]:
    """The OpenAPI documents of the groups whose v1 is served."""

    def get(path: str) -> Any:
        command = ["kubectl", "--kubeconfig", kubeconfig, "get", "--raw", path]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    paths = get("/openapi/v3")["paths"]
    served = (kind for kind in SERVED_KINDS if kind.version == "v1")
    roots = {f"apis/{kind.api_version}" if kind.group else "api/v1" for kind in served} | {"apis/autoscaling/v1"}
    for root in sorted(roots):
        yield get(paths[root]["serverRelativeURL"])


def written(types: Schemas) -> str:
    """One type a line, so that a change can be read."""
    lines = [f"{json.dumps(name)}: {json.dumps(type_, separators=(',', ':'))}" for name, type_ in sorted(types.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    schema = schema_of(documents_of(sys.argv[1]))
    add_numbers(schema, [file.read_text(encoding="utf-8") for file in Path(sys.argv[2]).rglob("generated.proto")])
    sys.stdout.write(written(schema))
