"""Random expressions about a device, most of them of fitting types: for one evaluator beside another."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

OWN = 'device.attributes["gpu.example.com"]'

TEXTS = ('"gpu"', '"A"', '"a1b2"', '""', '"x,y,z"', '"é☃x"', '"  T r "', "device.driver", f"{OWN}.type")
CONSTANTS = {
    "int": ("1", "2", "3", "-1", "0", "9223372036854775807", f"{OWN}.index", f"{OWN}.nothere"),
    "bool": ("true", "false", "device.allowMultipleAllocations", f"has({OWN}.type)", f"{OWN}.healthy"),
    "string": TEXTS,
    "double": ("1.5", "0.0", "-2.25", "1e3"),
    "ints": ("[1, 2, 3]", "[3, 1, 2, 1]", "[0]"),
    "texts": ('["a", "b"]', '["b", "a", "c"]'),
    "map": ('{"a": 1, "b": 2}', '{"x": 5}'),
}
# {type} is an expression of that type, {n} the level of a variable.
FORMS = {
    "int": (
        "({int} + {int})", "({int} - {int})", "({int} * {int})",
        "({int} / {int})", "({int} % {int})", "-({int})",
        "size({string})", "{ints}.size()", "{ints}[{int}]",
        "{map}[{string}]", "{map}.a", "({bool} ? {int} : {int})",
        "int({double})", "{string}.indexOf({string})", "{string}.lastIndexOf({string})",
        "{map}[?{string}].orValue({int})",
        "cel.bind(v{n}, {int}, v{n} + v{n})", "optional.of({int}).value()",
    ),
    "bool": (
        "({bool} && {bool})", "({bool} || {bool})", "!({bool})",
        "({int} == {int})", "({int} != {int})", "({int} < {int})",
        "(dyn({int}) >= {double})", "({string} == {string})",
        "({string} < {string})", "({ints} == {ints})", "({map} == {map})",
        "({int} in {ints})", "({string} in {map})",
        "{string}.startsWith({string})", "{string}.endsWith({string})",
        "{string}.contains({string})", '{string}.matches("^[a-z]+[0-9]*$")', "({bool} ? {bool} : {bool})",
        "{ints}.all(v{n}, v{n} > {int})",
        "{ints}.exists(v{n}, v{n} == {int})", "{ints}.exists_one(v{n}, v{n} < {int})",
        "{map}.all(v{n}, v{n} == {string})", "optional.none().hasValue()",
    ),
    "string": (
        "({string} + {string})", "string({int})",
        "string({bool})", "{string}.lowerAscii()", "{string}.upperAscii()",
        "{string}.substring({int})", "{string}.charAt({int})",
        "{string}.replace({string}, {string})", "{texts}.join({string})", "{texts}[{int}]", "{string}.trim()",
    ),
    "double": ("({double} + {double})", "({double} * {double})", "double({int})", "-({double})"),
    "ints": ("({ints} + {ints})", "[{int}, {int}]", "{ints}.map(v{n}, v{n} + {int})",
        "{ints}.filter(v{n}, v{n} > {int})"),
    "texts": ("{string}.split({string})", "[{string}, {string}]", "{texts}.map(v{n}, v{n} + {string})"),
    "map": ("{{{string}: {int}}}",),
}  # fmt: skip


@dataclass(slots=True)
class RandomSelectors:
    chance: random.Random
    depth: int = 3
    """How deep expressions nest; names of variables count their level."""
    level: int = field(default=0, init=False)

    def expression(self, of: str = "bool") -> str:
        """An expression of the type."""
        if self.level >= self.depth or self.chance.random() < 0.15:
            return self.chance.choice(CONSTANTS[of])
        self.level += 1
        try:
            return self._filled(self.chance.choice(FORMS[of]))
        finally:
            self.level -= 1

    def _filled(self, form: str) -> str:
        parts: dict[str, Callable[[], str]] = {of: lambda of=of: self.expression(of) for of in CONSTANTS}
        filled, rest = "", form.replace("{n}", str(self.level))
        while "{" in rest:
            before, _, after = rest.partition("{")
            if after.startswith("{"):  # a brace of the expression
                filled, rest = f"{filled}{before}{{", after[1:]
                continue
            name, _, rest = after.partition("}")
            filled += before + parts[name]()
        return filled + rest.replace("}}", "}")
