"""Turns a checked expression into Python closures that compute its value and count its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from berth.cel.calls import (
    OF_LEFT,
    REGEXES,
    CELFrame,
    CostLimitReached,
    Run,
    applied,
    dispatch,
    go_type,
    has,
    selected,
    selected_optionally,
    without_name,
)
from berth.cel.check import TYPE_NAMES, Checked, qualified_name
from berth.cel.errors import CompileError
from berth.cel.library import costs
from berth.cel.library.overloads import Overload
from berth.cel.library.strings import compiled
from berth.cel.syntax import (
    Comprehension,
    CreateList,
    CreateMap,
    CreateStruct,
    FunctionCall,
    Ident,
    Literal,
    Node,
    Select,
)
from berth.cel.types import CELType
from berth.cel.values import (
    ABSENT,
    UNKNOWN_OVERLOAD,
    Failed,
    Optional,
    UInt,
    UnknownValueError,
    key_of,
    keys,
    type_of,
)


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    run: Run
    variables: int

    def evaluate(self, device: Any, limit: int) -> tuple[Any, int]:
        """The value and its cost.

        Raises:
            CostLimitReached: at the limit.
        """
        frame = CELFrame(device, self.variables, limit)
        value = self.run(frame)
        frame.pay(0)
        return value, frame.cost


def program(checked: Checked) -> CompiledExpression:
    """The expression, ready to run.

    Raises:
        CompileError: a constant part of it always fails.
        UnknownValueError: berth does not know the value of a constant part.
    """
    planner = _Planner(checked)
    run = planner.plan(checked.parsed.root).run
    return CompiledExpression(run, planner.slots - 1)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A part whose value is known before."""

    value: Any

    @property
    def run(self) -> Run:
        value = self.value
        return lambda _frame: value


@dataclass(frozen=True, slots=True)
class _Computed:
    run: Run


# A step of a path, as `.name` or `[index]`: from a value to the next one, or Failed.
Step = Callable[[CELFrame, Any], Any]


@dataclass(frozen=True, slots=True)
class _Path:
    """A value and steps from it, such as ``device.attributes["d"].?id``. Reading the value itself costs ``base``."""

    start: Run
    base: int
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> _Path:
        return _Path(self.start, self.base, (*self.steps, step))

    @property
    def run(self) -> Run:
        return self.reading(self.base)

    def reading(self, base: int) -> Run:
        """Compute the value, at a cost of ``base`` and that of the steps."""
        start, steps = self.start, self.steps

        def run(frame: CELFrame) -> Any:
            value = start(frame)
            frame.cost += base
            for step in steps:
                if type(value) is Failed:
                    return value
                value = step(frame, value)
            return value

        return run


_Plan = _Constant | _Computed | _Path


def _of_constant(frame: CELFrame, value: Any, key: Any) -> Any:
    frame.cost += 1
    if type(value) is dict:  # nearly all selections
        found = value.get(key, _MISSING)
        return Failed(f"no such key: {key}") if found is _MISSING else found
    return selected(value, key)


_MISSING: Final = object()


# Of a constant they are computed before, at no cost.
_CONVERSIONS: Final = frozenset({"bool", "bytes", "double", "dyn", "int", "string", "type", "uint"})


@dataclass(slots=True)
class _Planner:
    checked: Checked
    slots: int = 1
    scopes: list[dict[str, int]] = field(default_factory=lambda: [{"device": 0}])
    lazy: dict[int, Run] = field(default_factory=dict)
    """What computes a slot's variable when it is first read: what cel.bind binds and does not read costs nothing."""

    def plan(self, node: Node) -> _Plan:  # noqa: PLR0911 - one answer for each kind of node
        match node:
            case Literal():
                return _Constant(node.value)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case FunctionCall():
                return self._call(node)
            case CreateList():
                return self._list(node)
            case CreateMap():
                return self._map(node)
            case Comprehension():
                return self._bind(node) if node.is_bind else _Computed(self._comprehension(node))
            case CreateStruct():
                raise CompileError(self.checked.parsed.text, f"undeclared reference to '{node.name}'")

    def _run(self, node: Node) -> Run:
        return self.plan(node).run

    def _ident(self, node: Ident) -> _Plan:
        slot = next((scope[node.name] for scope in reversed(self.scopes) if node.name in scope), None)
        if slot is None:
            return _Constant(CELType(TYPE_NAMES[node.name.removeprefix(".")].name))
        if slot not in self.lazy:
            return _Path(lambda frame: frame.slots[slot], costs.NAME)
        init = self.lazy[slot]

        def read(frame: CELFrame) -> Any:
            value = frame.slots[slot]
            if value is _MISSING:
                value = frame.slots[slot] = init(frame)
            return value

        return _Path(read, costs.NAME)

    def _bind(self, node: Comprehension) -> _Plan:
        """``cel.bind``, which the parser makes a loop over nothing."""
        slot = self.slots
        self.slots += 1
        self.lazy[slot] = self._run(node.init)
        self.scopes.append({node.accu: slot})
        body = self._run(node.result)
        self.scopes.pop()

        def run(frame: CELFrame) -> Any:
            frame.slots[slot] = _MISSING
            return body(frame)

        return _Computed(run)

    def _operand(self, node: Node) -> _Path:
        plan = self.plan(node)
        return plan if isinstance(plan, _Path) else _Path(plan.run, costs.NAME)

    def _select(self, node: Select) -> _Plan:
        name = node.field
        qualified = qualified_name(node)
        if qualified is not None and qualified in TYPE_NAMES:
            return _Constant(CELType(TYPE_NAMES[qualified].name))
        if not node.test:
            return self._operand(node.operand).then(lambda frame, value: _of_constant(frame, value, name))
        operand = self._operand(node.operand).run

        def test(frame: CELFrame) -> Any:
            value = operand(frame)
            if type(value) is not Failed:
                return has(value, name)
            frame.cost -= 1  # Kubernetes takes the 1 of a test off, also where it was not added
            return value

        return _Computed(test)

    # -- calls

    def _call(self, node: FunctionCall) -> _Plan:
        special = _SPECIAL.get(node.function)
        if special and (node.target is None or node.function in {"or", "orValue"}):
            return special(self, node)
        candidates = self.checked.overloads[node.id]
        nodes = (node.target, *node.args) if candidates[0].is_method and node.target is not None else node.args
        plans = [self.plan(part) for part in nodes]
        name = candidates[0].name
        if name in _CONVERSIONS and len(plans) == 1 and isinstance(plans[0], _Constant):
            return self._converted(name, candidates, plans[0])
        self._read_regex(name, plans)
        run = dispatch(name, candidates, [self.checked.types[part.id] for part in nodes])
        cost = costs.cost_of(name, candidates[0].id if len(candidates) == 1 else "")
        known_regex = name in REGEXES and isinstance(plans[1], _Constant)
        if known_regex:
            run = without_name(run)
        one_by_one = known_regex or (len(candidates) > 1 and name not in OF_LEFT)
        return _Computed(applied(run, cost, [plan.run for plan in plans], one_by_one=one_by_one))

    def _converted(self, name: str, candidates: tuple[Overload, ...], plan: _Constant) -> _Plan:
        value = dispatch(name, candidates, [CELType("dyn")])(plan.value)
        if isinstance(value, Failed):
            raise CompileError(self.checked.parsed.text, f"program instantiation failed: {value.reason}")
        return _Constant(value)

    def _read_regex(self, name: str, plans: Sequence[_Plan]) -> None:
        if name in REGEXES and isinstance(plans[1], _Constant):
            regex = compiled(plans[1].value)
            if isinstance(regex, str):
                reason = f"program instantiation failed: error parsing regexp: {regex}"
                raise CompileError(self.checked.parsed.text, reason)

    def _logical(self, node: FunctionCall, *, decides: bool) -> _Plan:
        left, right = (self._run(arg) for arg in node.args)

        def run(frame: CELFrame) -> Any:
            one = left(frame)
            if one is decides:
                return decides
            other = right(frame)
            if other is decides:
                return decides
            for value in (one, other):
                if type(value) is not bool:
                    return value if type(value) is Failed else UNKNOWN_OVERLOAD
            return not decides

        return _Computed(run)

    def plan_and(self, node: FunctionCall) -> _Plan:
        return self._logical(node, decides=False)

    def plan_or(self, node: FunctionCall) -> _Plan:
        return self._logical(node, decides=True)

    def plan_conditional(self, node: FunctionCall) -> _Plan:
        condition = self._run(node.args[0])
        # A name or path in a branch costs its steps only.
        branches = [self.plan(arg) for arg in node.args[1:]]
        yes, no = (plan.reading(0) if isinstance(plan, _Path) else plan.run for plan in branches)

        def run(frame: CELFrame) -> Any:
            value = condition(frame)
            if value is True:
                return yes(frame)
            if value is False:
                return no(frame)
            return value if type(value) is Failed else UNKNOWN_OVERLOAD

        return _Path(run, 0)

    def plan_index(self, node: FunctionCall) -> _Plan:
        return self._indexed(node, _required)

    def plan_optional_index(self, node: FunctionCall) -> _Plan:
        return self._indexed(node, _optionally)

    def _indexed(self, node: FunctionCall, read: Callable[[CELFrame, Any, Any], Any]) -> _Plan:
        operand, index = self._operand(node.args[0]), self.plan(node.args[1])
        if isinstance(index, _Constant):
            key = index.value
            return operand.then(lambda frame, value: read(frame, value, key))
        run = index.reading(0) if isinstance(index, _Path) else index.run

        def step(frame: CELFrame, value: Any) -> Any:
            key = run(frame)
            if type(key) is not Failed:
                return read(frame, value, key)
            frame.cost += read is _required
            return key

        return operand.then(step)

    def plan_optional_select(self, node: FunctionCall) -> _Plan:
        operand, name = self._operand(node.args[0]), node.args[1]
        assert isinstance(name, Literal)  # noqa: S101 - the check saw to it
        key = name.value
        return operand.then(lambda frame, value: _optionally(frame, value, key))

    def plan_or_value(self, node: FunctionCall) -> _Plan:
        assert node.target is not None  # noqa: S101 - `_call` asked
        target, other = self._run(node.target), self._run(node.args[0])
        whole = node.function == "or"

        def run(frame: CELFrame) -> Any:
            optional = target(frame)
            if type(optional) is Failed:
                return optional
            if type(optional) is not Optional:
                return optional
            if not optional.present:
                return other(frame)
            return optional if whole else optional.value

        return _Computed(run)

    def plan_in(self, node: FunctionCall) -> _Plan:
        item, among = (self.plan(arg) for arg in node.args)
        candidates = self.checked.overloads[node.id]
        one_list = len(candidates) == 1 and candidates[0].id == "in_list"
        if one_list and isinstance(among, _Constant) and all(type(value) in _HASHED for value in among.value):
            return self._in_constants(item.run, among.value)
        run = dispatch("@in", candidates, [self.checked.types[arg.id] for arg in node.args])
        cost = costs.cost_of("@in", candidates[0].id if len(candidates) == 1 else "")
        return _Computed(applied(run, cost, [item.run, among.run]))

    def _in_constants(self, item: Run, values: list[Any]) -> _Plan:
        """Free of cost, as for kube-scheduler."""
        if not values:
            return _Constant(False)
        known = {key_of(value) for value in values}

        def run(frame: CELFrame) -> Any:
            value = item(frame)
            if type(value) is Failed:
                return value
            return type(value) in _HASHED and key_of(value) in known

        return _Computed(run)

    # -- lists, maps, loops

    def _list(self, node: CreateList) -> _Plan:
        plans = [self.plan(element) for element in node.elements]
        optional = node.optional
        if not optional and all(isinstance(plan, _Constant) for plan in plans):
            return _Constant([plan.value for plan in plans if isinstance(plan, _Constant)])
        runs = [plan.run for plan in plans]

        def run(frame: CELFrame) -> Any:
            values = []
            for index, element in enumerate(runs):
                value = element(frame)
                if type(value) is Failed:
                    frame.pay(costs.LIST)
                    return value
                if index not in optional:
                    values.append(value)
                elif value.present:
                    values.append(value.value)
            frame.pay(costs.LIST)
            return values

        return _Computed(run)

    def _map(self, node: CreateMap) -> _Plan:
        plans = [(self.plan(entry.key), self.plan(entry.value), entry.optional) for entry in node.entries]
        runs = [(key.run, value.run, optional) for key, value, optional in plans]

        def made(frame: CELFrame) -> Any:
            entries: dict[Any, Any] = {}
            for key_run, value_run, optional in runs:
                key = key_run(frame)
                if type(key) is Failed:
                    return key
                value = value_run(frame)
                if type(value) is Failed:
                    return value
                if type(key) not in _KEYS:
                    raise UnknownValueError(f"maps with keys of type {type_of(key).declared()}")
                if optional and not value.present:
                    entries.pop(key_of(key), None)
                    continue
                entries[key_of(key)] = value.value if optional else value
            return entries

        def run(frame: CELFrame) -> Any:
            entries = made(frame)
            frame.pay(costs.MAP)
            return entries

        if all(isinstance(part, _Constant) for key, value, _ in plans for part in (key, value)):
            return self._constant(made)
        return _Computed(run)

    def _constant(self, made: Run) -> _Constant:
        return _Constant(made(CELFrame(None, 0, costs.COST_LIMIT)))

    def _comprehension(self, node: Comprehension) -> Run:
        source, init = self._run(node.range), self._run(node.init)
        accu = self.slots
        one, two = accu + 1, accu + 2
        self.slots += 3
        self.scopes.append({node.accu: accu})
        self.scopes.append({node.variable: one} | ({node.variable2: two} if node.variable2 else {}))
        condition = self._run(node.condition)
        collecting = self._collecting(node, accu)
        step = collecting or self._run(node.step)
        self.scopes.pop()
        result = self._run(node.result)
        self.scopes.pop()
        of_two = bool(node.variable2)

        def run(frame: CELFrame) -> Any:
            over = source(frame)
            if type(over) is Failed:
                return over
            if not isinstance(over, (list, dict)):
                return _not_iterable(over, of_two=of_two)
            slots = frame.slots
            before = slots[accu : accu + 3]
            slots[accu] = init(frame)
            if collecting:
                slots[accu] = slots[accu].copy()  # it may be a constant of the program
            for slots[one], slots[two] in _pairs(over) if of_two else _singles(over):
                if condition(frame) is not True:
                    break
                slots[accu] = step(frame)
                if frame.cost > frame.limit:
                    raise CostLimitReached
            value = result(frame)
            slots[accu : accu + 3] = before
            return value

        return run

    def _collecting(self, node: Comprehension, accu: int) -> Run | None:
        """The step of a loop that makes a list or map, without a copy of it for each element; None for other loops."""
        step, condition = node.step, None
        if isinstance(step, FunctionCall) and step.function == "_?_:_" and _is_name(step.args[2], node.accu):
            condition, step = self._run(step.args[0]), step.args[1]
        if not isinstance(step, FunctionCall) or not step.args or not _is_name(step.args[0], node.accu):
            return None
        collect: Run | None = None
        if step.function == "_+_" and isinstance(node.init, CreateList) and not node.init.elements:
            collect = self._appending(step.args[1], accu)
        elif step.function == "cel.@mapInsert" and isinstance(node.init, CreateMap):
            collect = self._inserting(step.args[1:], accu)
        if collect is None or condition is None:
            return collect
        return _collect_if(condition, collect, accu)

    def _appending(self, node: Node, accu: int) -> Run | None:
        if not isinstance(node, CreateList):
            return None
        more = self._run(node)

        def run(frame: CELFrame) -> Any:
            frame.cost += costs.NAME
            values = more(frame)
            frame.cost += 1
            known = frame.slots[accu]
            if type(known) is Failed:
                return known
            if type(values) is Failed:
                return values
            known.extend(values)
            return known

        return run

    def _inserting(self, args: Sequence[Node], accu: int) -> Run:
        runs = [self._run(arg) for arg in args]

        def run(frame: CELFrame) -> Any:
            frame.cost += costs.NAME
            known = frame.slots[accu]
            if type(known) is Failed:
                return known
            values = []
            for part in runs:
                value = part(frame)
                if type(value) is Failed:
                    frame.cost += part is runs[-1]
                    return value
                values.append(value)
            frame.cost += 1
            entries = {key_of(values[0]): values[1]} if len(values) > 1 else values[0]
            if not isinstance(entries, dict):
                return UNKNOWN_OVERLOAD
            doubled = next((key for key in keys(entries) if key_of(key) in known), _MISSING)
            if doubled is not _MISSING:
                return Failed(f"insert failed: key {doubled} already exists")
            known.update(entries)
            return known

        return run


def _required(frame: CELFrame, value: Any, key: Any) -> Any:
    frame.cost += 1
    return selected(value, key)


def _optionally(frame: CELFrame, value: Any, key: Any) -> Any:
    found = selected_optionally(value, key)
    if found is not ABSENT:
        frame.cost += 1
    return found


_HASHED: Final = frozenset({bool, int, UInt, float, str, type(None)})
_KEYS: Final = frozenset({bool, int, UInt, float, str, type(None)})

_SPECIAL: Final[dict[str, Callable[[_Planner, FunctionCall], _Plan]]] = {
    "_&&_": _Planner.plan_and,
    "_||_": _Planner.plan_or,
    "_?_:_": _Planner.plan_conditional,
    "_[_]": _Planner.plan_index,
    "_[?_]": _Planner.plan_optional_index,
    "_?._": _Planner.plan_optional_select,
    "@in": _Planner.plan_in,
    "or": _Planner.plan_or_value,
    "orValue": _Planner.plan_or_value,
}


def _is_name(node: Node, name: str) -> bool:
    return isinstance(node, Ident) and node.name == name


def _collect_if(condition: Run, collect: Run, accu: int) -> Run:
    def run(frame: CELFrame) -> Any:
        value = condition(frame)
        if value is True:
            return collect(frame)
        if value is False:
            return frame.slots[accu]
        return value if type(value) is Failed else UNKNOWN_OVERLOAD

    return run


def _singles(over: Any) -> list[tuple[Any, Any]]:
    return [(value, None) for value in (keys(over) if isinstance(over, dict) else over)]


def _pairs(over: Any) -> list[tuple[Any, Any]]:
    if isinstance(over, dict):
        return list(zip(keys(over), over.values(), strict=True))
    return list(enumerate(over))


def _not_iterable(value: Any, *, of_two: bool) -> Failed:
    if of_two:
        return Failed(f"unsupported comprehension range type: {go_type(value)}")
    return Failed(f"got '{go_type(value)}', expected iterable type")
