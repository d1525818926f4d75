"""An expression's tree. Google's parser (cel-expr-python) makes it; macros that it lacks are expanded here.

The parser hands its tree over as bytes of the message ParsedExpr (cel-spec, ``syntax.proto``), which `_Reader` decodes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, Final

from berth.cel.errors import CompileError, UnsupportedError
from berth.cel.values import UInt


@dataclass(frozen=True, slots=True)
class Literal:
    id: int
    value: object


@dataclass(frozen=True, slots=True)
class Ident:
    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """``operand.field``, or ``has(operand.field)`` if ``test``."""

    id: int
    operand: Node
    field: str
    test: bool = False


@dataclass(frozen=True, slots=True)
class FunctionCall:
    id: int
    function: str
    args: tuple[Node, ...]
    target: Node | None = None


@dataclass(frozen=True, slots=True)
class CreateList:
    id: int
    elements: tuple[Node, ...] = ()
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MapEntry:
    key: Node
    value: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CreateMap:
    id: int
    entries: tuple[MapEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateStruct:
    """``Name{...}``; no such type is declared in the environment."""

    id: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comprehension:
    """A macro's loop: ``accu`` begins as ``init`` and becomes ``step`` while ``condition`` holds; then ``result``."""

    id: int
    variable: str
    variable2: str = ""
    range: Node
    accu: str
    init: Node
    condition: Node
    step: Node
    result: Node

    @property
    def is_bind(self) -> bool:
        """Whether it loops over nothing: cel.bind becomes that."""
        return isinstance(self.range, CreateList) and not self.range.elements and self.variable == "#unused"


Node = Literal | Ident | Select | FunctionCall | CreateList | CreateMap | CreateStruct | Comprehension


@dataclass(frozen=True, slots=True)
class Parsed:
    """The tree, and the position in the text of each node's id."""

    text: str
    root: Node
    positions: dict[int, int]

    def located(self, node_id: int, message: str) -> str:
        """An error's text as cel-go writes it: place, message, the line, and a mark below the place."""
        offset = self.positions.get(node_id, 0)
        before = self.text[:offset]
        row, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1)
        line = self.text.split("\n")[row - 1].replace("\t", " ")
        dots = "".join("." if char.isascii() else "．" for char in line[:column])  # noqa: RUF001 - as wide as the character above
        mark = "^" if column >= len(line) or line[column].isascii() else "＾"  # noqa: RUF001 - the same
        return f"ERROR: <input>:{row}:{column + 1}: {message}\n | {line}\n | {dots}{mark}"


def parse(text: str) -> Parsed:
    """The expression's tree.

    Raises:
        CompileError: it does not follow CEL's grammar, or nests deeper than the parser reads.
    """
    try:
        serialized = _parser()(text)
    except TypeError:
        raise CompileError(text, "compilation failed: the text has halves of surrogate pairs") from None
    except RuntimeError as error:
        raise CompileError(text, f"compilation failed: {_parser_message(str(error))}") from None
    _refuse_quoted_fields(text)
    return _Reader(text).read(serialized)


def _refuse_quoted_fields(text: str) -> None:
    """The parser reads fields in backticks, Kubernetes does not."""
    found = next((match.start() for match in _TEXTS.finditer(text) if match[0] == "`"), None) if "`" in text else None
    if found is not None:
        located = Parsed(text, Literal(0, None), {0: found}).located(0, "unsupported syntax: '`'")
        raise CompileError(text, f"compilation failed: {located}")


# Literals of text and comments, in which a backtick is any character; and a backtick elsewhere.
_TEXTS: Final = re.compile(
    r"""
    [bB]?[rR][bB]?(?:\"{3}.*?\"{3}|\'{3}.*?\'{3}|"[^"\n]*"|'[^'\n]*')
    |\"{3}(?:\\.|[^\\])*?\"{3}|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'
    |//[^\n]*|`
    """,
    re.VERBOSE | re.DOTALL,
)


def _parser_message(text: str) -> str:
    """The parser's message without the name of its status, which stands before and after."""
    status, colon, message = text.partition(": ")
    return message.removesuffix(f" [{status}]") if colon and status.isupper() else text


# The library's extensions by name: their modules of the same names are 12 MB of code that it has itself.
_ENVIRONMENT: Final = "extensions: [{name: bindings}, {name: optional}]"


@cache
def _parser() -> Callable[[str], bytes]:
    # 10 MB of resident memory: loaded by the first class or expression, since most clusters have none.
    from cel_expr_python import cel  # type: ignore[import-untyped] # noqa: PLC0415 - see above; it has no py.typed

    env = cel.NewEnv(config=cel.NewEnvConfigFromYaml(_ENVIRONMENT))
    return lambda text: env.compile(text, disable_check=True).serialize()


_SIGN: Final = 1 << 63


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Each field's number and value: an unsigned integer, eight bytes, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
            case 1:
                yield tag >> 3, data[at : at + 8]
                at += 8
            case _:
                size, at = _varint(data, at)
                yield tag >> 3, data[at : at + size]
                at += size


def _signed(number: int) -> int:
    return number - 2 * _SIGN if number >= _SIGN else number


@dataclass(slots=True)
class _Reader:
    text: str
    positions: dict[int, int] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: count(1 << 32))  # for nodes that macros add

    def read(self, serialized: bytes) -> Parsed:
        parsed = dict(_fields(dict(_fields(serialized))[2]))
        for number, value in _fields(parsed.get(3, b"")):
            if number == 4:
                position = dict(_fields(value))
                self.positions[position.get(1, 0)] = position.get(2, 0)
        return Parsed(self.text, self._node(parsed[2]), self.positions)

    def _node(self, data: bytes) -> Node:
        node_id, kind, content = 0, 0, b""
        for number, value in _fields(data):
            if number == 2:
                node_id = value
            else:
                kind, content = number, value
        return _KINDS[kind](self, node_id, content)

    def read_literal(self, node_id: int, data: bytes) -> Node:
        (kind, value), *_ = _fields(data)
        return Literal(node_id, _CONSTANTS[kind](value))

    def read_ident(self, node_id: int, data: bytes) -> Node:
        return Ident(node_id, self._name(dict(_fields(data))[1]))

    def _name(self, data: bytes) -> str:
        name: str = data.decode()
        if name.startswith("."):
            raise UnsupportedError(self.text, f"berth does not evaluate names that begin with a dot ({name})")
        return name

    def read_select(self, node_id: int, data: bytes) -> Node:
        parts = dict(_fields(data))
        return Select(node_id, self._node(parts[1]), parts.get(2, b"").decode(), bool(parts.get(3, 0)))

    def read_call(self, node_id: int, data: bytes) -> Node:
        target, function, args = None, "", []
        for number, value in _fields(data):
            match number:
                case 1:
                    target = self._node(value)
                case 2:
                    function = self._name(value)
                case _:
                    args.append(self._node(value))
        call = FunctionCall(node_id, function, tuple(args), target)
        macro = _MACROS.get((function, len(args))) if target is not None else None
        return macro(self, call) if macro else call

    def read_list(self, node_id: int, data: bytes) -> Node:
        elements: list[Node] = []
        optional: list[int] = []
        for number, value in _fields(data):
            if number == 1:
                elements.append(self._node(value))
            else:
                optional.extend(_packed(value))
        return CreateList(node_id, tuple(elements), frozenset(optional))

    def read_struct(self, node_id: int, data: bytes) -> Node:
        entries = []
        for number, value in _fields(data):
            if number == 1 and value:
                return CreateStruct(node_id, value.decode())
            if number == 2:
                entry = dict(_fields(value))
                entries.append(MapEntry(self._node(entry[3]), self._node(entry[4]), bool(entry.get(5, 0))))
        return CreateMap(node_id, tuple(entries))

    def read_comprehension(self, node_id: int, data: bytes) -> Node:
        parts = dict(_fields(data))
        return Comprehension(
            id=node_id,
            variable=parts.get(1, b"").decode(),
            variable2=parts.get(8, b"").decode(),
            range=self._node(parts[2]),
            accu=parts[3].decode(),
            init=self._node(parts[4]),
            condition=self._node(parts[5]),
            step=self._node(parts[6]),
            result=self._node(parts[7]),
        )

    # -- macros that the parser lacks: those of two variables, existsOne, sortBy

    def _new(self, call: FunctionCall) -> int:
        number = next(self.ids)
        self.positions[number] = self.positions.get(call.id, 0)
        return number

    def _of(self, call: FunctionCall, function: str, *args: Node) -> FunctionCall:
        return FunctionCall(self._new(call), function, args)

    def _accu(self, call: FunctionCall) -> Ident:
        return Ident(self._new(call), _ACCU)

    def _loop(self, call: FunctionCall, init: Node, condition: Node, step: Node, result: Node | None = None) -> Node:
        assert call.target is not None  # noqa: S101 - `read_call` expands methods only
        names = [self._variable(name) for name in call.args[: _variables(call)]]
        if len(names) == 2 and names[0] == names[1]:
            raise self._error(call.args[1], f"duplicate variable name: {names[1]}")
        return Comprehension(
            id=call.id,
            variable=names[0],
            variable2=names[1] if len(names) > 1 else "",
            range=call.target,
            accu=_ACCU,
            init=init,
            condition=condition,
            step=step,
            result=result or self._accu(call),
        )

    def _variable(self, node: Node) -> str:
        if not isinstance(node, Ident) or not node.name.isidentifier():
            raise self._error(node, "argument must be a simple name")
        return node.name

    def _error(self, node: Node, message: str) -> CompileError:
        located = Parsed(self.text, node, self.positions).located(node.id, message)
        return CompileError(self.text, f"compilation failed: {located}")

    def _literal_of(self, call: FunctionCall, value: object) -> Literal:
        return Literal(self._new(call), value)

    def expand_all(self, call: FunctionCall) -> Node:
        going = self._of(call, "@not_strictly_false", self._accu(call))
        return self._loop(
            call, self._literal_of(call, True), going, self._of(call, "_&&_", self._accu(call), call.args[-1])
        )

    def expand_exists(self, call: FunctionCall) -> Node:
        going = self._of(call, "@not_strictly_false", self._of(call, "!_", self._accu(call)))
        step = self._of(call, "_||_", self._accu(call), call.args[-1])
        return self._loop(call, self._literal_of(call, False), going, step)

    def expand_exists_one(self, call: FunctionCall) -> Node:
        one_more = self._of(call, "_+_", self._accu(call), self._literal_of(call, 1))
        step = self._of(call, "_?_:_", call.args[-1], one_more, self._accu(call))
        result = self._of(call, "_==_", self._accu(call), self._literal_of(call, 1))
        return self._loop(call, self._literal_of(call, 0), self._literal_of(call, True), step, result)

    def _filtered(self, call: FunctionCall, step: Node) -> Node:
        """The step of transformList and its like: only for elements that pass the filter, if the call has one."""
        if len(call.args) == 3:
            return step
        return self._of(call, "_?_:_", call.args[2], step, self._accu(call))

    def expand_transform_list(self, call: FunctionCall) -> Node:
        element = CreateList(self._new(call), (call.args[-1],))
        step = self._filtered(call, self._of(call, "_+_", self._accu(call), element))
        return self._loop(call, CreateList(self._new(call)), self._literal_of(call, True), step)

    def expand_transform_map(self, call: FunctionCall) -> Node:
        key = Ident(self._new(call), self._variable(call.args[0]))
        insert = self._of(call, "cel.@mapInsert", self._accu(call), key, call.args[-1])
        return self._into_map(call, insert)

    def expand_transform_map_entry(self, call: FunctionCall) -> Node:
        return self._into_map(call, self._of(call, "cel.@mapInsert", self._accu(call), call.args[-1]))

    def _into_map(self, call: FunctionCall, insert: Node) -> Node:
        step = self._filtered(call, insert)
        return self._loop(call, CreateMap(self._new(call)), self._literal_of(call, True), step)

    def expand_sort_by(self, call: FunctionCall) -> Node:
        """``cel.bind(input, list, input.@sortByAssociatedKeys(input.map(e, key)))``."""
        assert call.target is not None  # noqa: S101 - `read_call` expands methods only
        source = Ident(self._new(call), _SORTED)
        step = self._of(call, "_+_", self._accu(call), CreateList(self._new(call), (call.args[1],)))
        keys = self._loop(
            FunctionCall(self._new(call), "map", call.args, source),
            CreateList(self._new(call)),
            self._literal_of(call, True),
            step,
        )
        return Comprehension(
            id=call.id,
            variable="#unused",
            range=CreateList(self._new(call)),
            accu=_SORTED,
            init=call.target,
            condition=self._literal_of(call, False),
            step=source,
            result=FunctionCall(self._new(call), "@sortByAssociatedKeys", (keys,), Ident(self._new(call), _SORTED)),
        )


_ACCU: Final = "@result"
_SORTED: Final = "@__sortBy_input__"


def _variables(call: FunctionCall) -> int:
    """How many of the macro's arguments name variables."""
    return 1 if call.function in {"sortBy", "map"} or len(call.args) == 2 else 2


def _packed(value: bytes | int) -> list[int]:
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers


_KINDS: Final[dict[int, Callable[[_Reader, int, bytes], Node]]] = {
    3: _Reader.read_literal,
    4: _Reader.read_ident,
    5: _Reader.read_select,
    6: _Reader.read_call,
    7: _Reader.read_list,
    8: _Reader.read_struct,
    9: _Reader.read_comprehension,
}
_CONSTANTS: Final[dict[int, Callable[[Any], object]]] = {
    1: lambda _: None,
    2: bool,
    3: _signed,
    4: UInt,
    5: lambda data: struct.unpack("<d", data)[0],
    6: bytes.decode,
    7: bytes,
}
_MACROS: Final[dict[tuple[str, int], Callable[[_Reader, FunctionCall], Node]]] = {
    ("all", 3): _Reader.expand_all,
    ("exists", 3): _Reader.expand_exists,
    ("existsOne", 3): _Reader.expand_exists_one,
    ("exists_one", 3): _Reader.expand_exists_one,
    ("transformList", 3): _Reader.expand_transform_list,
    ("transformList", 4): _Reader.expand_transform_list,
    ("transformMap", 3): _Reader.expand_transform_map,
    ("transformMap", 4): _Reader.expand_transform_map,
    ("transformMapEntry", 3): _Reader.expand_transform_map_entry,
    ("transformMapEntry", 4): _Reader.expand_transform_map_entry,
    ("sortBy", 2): _Reader.expand_sort_by,
}
