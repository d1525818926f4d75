"""An object's fields held to their types, all at once, with ``null`` as Kubernetes takes it: as if nothing were said.

The decoder ends at the first field that is wrong. Here the rest is looked at too, for those objects that it refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import inspect

_LONGEST: Final = 60
"""How much of a value is shown, in characters."""
_PLAIN: Final = {inspect.StrType: str, inspect.BoolType: bool, inspect.FloatType: float}
_NOTHING: Final[dict[type[inspect.Type], Any]] = {
    inspect.StrType: "",
    inspect.BoolType: False,
    inspect.IntType: 0,
    inspect.FloatType: 0,
    inspect.DictType: {},
    inspect.ListType: [],
    inspect.StructType: {},
}
"""What ``null`` is in a list or a map, by the type of its entries."""
_CALLED: Final = {
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.StrType: "text",
    inspect.ListType: "a list",
}


def fitted(value: Any, struct: type[msgspec.Struct], problems: list[str]) -> Any:
    """The value without its nulls; what in it is not of the struct's types is added to ``problems``, with its path."""
    return _Fitting(problems).value(value, inspect.type_info(struct), "")


@dataclass(slots=True)
class _Fitting:
    problems: list[str] = field(default_factory=list)

    def value(self, value: Any, of: inspect.Type, path: str) -> Any:
        if isinstance(of, inspect.UnionType):
            return self._one_of(value, of, path)
        if value is None:
            return _nothing(of)
        if isinstance(of, inspect.StructType) and isinstance(value, dict):
            return self._struct(value, of, path)
        if isinstance(of, inspect.DictType) and isinstance(value, dict):
            return {key: self.value(entry, of.value_type, _below(path, key)) for key, entry in value.items()}
        if isinstance(of, inspect.ListType) and isinstance(value, list):
            return [self.value(entry, of.item_type, f"{path}[{at}]") for at, entry in enumerate(value)]
        if not _is_of(value, of):
            self.problems.append(f"{path or 'all of it'}: want {_called(of)}, got {_shown(value)}")
        return value

    def _one_of(self, value: Any, of: inspect.UnionType, path: str) -> Any:
        """Of a type or nothing, or of the three that a quantity may have."""
        types = [one for one in of.types if not isinstance(one, inspect.NoneType)]
        if value is None:
            return None if len(types) < len(of.types) else _nothing(types[0]) or "0"
        if len(types) == 1:
            return self.value(value, types[0], path)
        if not any(_is_of(value, one) for one in types):
            self.problems.append(f"{path}: want a quantity such as 500m or 2Gi, got {_shown(value)}")
        return value

    def _struct(self, value: dict[str, Any], of: inspect.StructType, path: str) -> dict[str, Any]:
        kept = {key: entry for key, entry in value.items() if entry is not None}
        for known in of.fields:
            below = _below(path, known.encode_name)
            if known.encode_name in kept:
                kept[known.encode_name] = self.value(kept[known.encode_name], known.type, below)
            elif known.required:
                self.problems.append(f"{below}: missing")
        return kept


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _nothing(of: inspect.Type) -> Any:
    return _NOTHING.get(type(of))


def _is_of(value: Any, of: inspect.Type) -> bool:
    if isinstance(of, inspect.IntType):
        return type(value) is int and (of.ge is None or value >= of.ge) and (of.le is None or value <= of.le)
    if isinstance(of, inspect.FloatType):
        return type(value) in (int, float)
    wanted = _PLAIN.get(type(of))
    return isinstance(of, inspect.AnyType | inspect.RawType) or (wanted is not None and type(value) is wanted)


def _called(of: inspect.Type) -> str:
    if isinstance(of, inspect.IntType) and of.ge is not None:
        return f"a whole number, {of.ge}..{of.le}"
    return _CALLED.get(type(of), "a mapping")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
