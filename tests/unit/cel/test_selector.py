"""Selectors: which devices share an answer, what is refused, and where an evaluation ends."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.cel.errors import CompileError, CostLimitError, EvaluationError, UnsupportedError
from berth.cel.selector import Device, compile_selector
from berth.cel.values import Failed, Quantity, Semver
from harness.builders.devices import device, matches

OWN = 'device.attributes["gpu.example.com"]'


def reads(expression: str) -> set[tuple[str, ...]]:
    return set(compile_selector(re.sub(r"\bA\b", OWN, expression)).reads)


def test_selector_matches_the_devices_it_describes():
    selector = compile_selector(f'device.driver == "gpu.example.com" && {OWN}.model.startsWith("A")')
    assert [matches(selector, device(model=model)) for model in ("A100", "H100")] == [True, False]


def test_names_without_a_domain_are_the_drivers():
    named = Device.of("gpu.example.com", {"index": 1, "pci.example.org/root": "r0"}, {"memory": Quantity.parse("1Gi")})
    assert named.attributes == {"gpu.example.com": {"index": 1}, "pci.example.org": {"root": "r0"}}
    assert list(named.capacity) == ["gpu.example.com"]


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ('device.driver == "x"', {("driver",)}),
        ("device.allowMultipleAllocations", {("allowMultipleAllocations",)}),
        ("A.index == 1", {("attributes", "gpu.example.com", "index")}),
        ('A["index"] == 1', {("attributes", "gpu.example.com", "index")}),
        ("A.?index.orValue(1) == 1", {("attributes", "gpu.example.com", "index")}),
        ('A[?"index"].hasValue()', {("attributes", "gpu.example.com", "index")}),
        ("has(A.index)", {("attributes", "gpu.example.com", "index")}),
        ("cel.bind(a, A, a.x == a.y)", {("attributes", "gpu.example.com", name) for name in "xy"}),
        ("cel.bind(d, device, cel.bind(a, d.attributes, a.x.y))", {("attributes", "x", "y")}),
        ("cel.bind(a, A, [1].exists(a, a == 1))", set()),
        ("cel.bind(a, A, size(a) == 1)", {("attributes", "gpu.example.com")}),
        ('"x" in A', {("attributes", "gpu.example.com")}),
        ("A.exists(k, k == A.x)", {("attributes", "gpu.example.com"), ("attributes", "gpu.example.com", "x")}),
        ("A[device.driver] == 1", {("attributes", "gpu.example.com"), ("driver",)}),
        ("device.attributes[device.driver].x == 1", {("attributes",), ("driver",)}),
        ('device.capacity["d"].memory.isInteger()', {("capacity", "d", "memory")}),
        ("device.capacity.size() == 1", {("capacity",)}),
        ("device == device", {("driver",), ("allowMultipleAllocations",), ("attributes",), ("capacity",)}),
        ("true", set()),
    ],
)
def test_an_expression_reads(expression: str, want: set):
    assert reads(expression) == want


def test_quantities_equal_in_amount_are_told_apart():
    """1000m is no integer for Kubernetes, 1 is."""
    selector = compile_selector('device.capacity["gpu.example.com"].cores.isInteger()')
    assert [matches(selector, device(capacity={"cores": text})) for text in ("1", "1000m")] == [True, False]


def part_of(device: Device, path: tuple[str, ...]) -> str:
    """What stands there, with its types."""
    match path:
        case ("attributes", domain, name):
            return repr(device.attributes.get(domain, {}).get(name))
        case ("attributes", domain):
            return repr(sorted(device.attributes.get(domain, {}).items()))
        case _:
            return repr(sorted((domain, sorted(named.items())) for domain, named in device.attributes.items()))


ATTRIBUTES = st.dictionaries(
    st.sampled_from(["x", "y", "other.example.com/x"]),
    st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "a", "b"])
    | st.sampled_from(["1.0.0", "2.0.0"]).map(Semver.parse),
)


@given(ATTRIBUTES, ATTRIBUTES, st.sampled_from([
    "A.x == A.y", "A.x == 1", "has(A.x) && A.x", 'A.?x.orValue("a") == "a"', "A.exists(k, v, v == 1)", '"x" in A',
    "A.x.major() == 1",
    'device.attributes["other.example.com"].x == true', "cel.bind(a, A, a.x > 0)", 'device.attributes.all(d, d != "a")',
]))  # fmt: skip
def test_devices_that_are_alike_in_what_an_expression_reads_have_one_answer(one: dict, other: dict, expression: str):
    selector = compile_selector(re.sub(r"\bA\b", OWN, expression))
    devices = [Device.of("gpu.example.com", attributes, {}) for attributes in (one, other)]
    if all(part_of(devices[0], path) == part_of(devices[1], path) for path in selector.reads):
        answers = [(answer.matches, answer.error and answer.error.reason) for answer in map(selector.evaluate, devices)]
        assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"x": None}, "attribute x: unsupported attribute value"),
        ({"v": Failed("Version string empty")}, "attribute v: parse semantic version: Version string empty"),
    ],
)
def test_a_broken_attribute_fails_every_expression(attributes: dict, reason: str):
    with pytest.raises(EvaluationError) as caught:
        matches(compile_selector("true"), device(**attributes))
    assert caught.value.reason == reason


def test_an_error_names_the_expression():
    with pytest.raises(EvaluationError, match="no such key: x") as caught:
        matches(compile_selector(f"{OWN}.x == 1"), device())
    assert repr(f"{OWN}.x == 1") in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        'timestamp("2026-01-01T00:00:00Z") > timestamp("2025-01-01T00:00:00Z")',
        'duration("1s") == duration("1000ms")',
        '"%d".format([1]) == "1"',
        'format.dns1123Label().validate("a").hasValue()',
        "google.protobuf.Duration{} == null",
        '.device.driver == "x"',
        ".size([1]) == 1",
    ],
)
def test_what_berth_does_not_evaluate_is_refused(expression: str):
    with pytest.raises(UnsupportedError) as caught:
        compile_selector(expression)
    assert repr(expression) in str(caught.value)


def test_a_value_that_berth_does_not_read_is_refused():
    selector = compile_selector(f"url({OWN}.site).getHost() == {json.dumps('x')}")
    with pytest.raises(UnsupportedError, match=r"mailto:a@b"):
        matches(selector, device(site="mailto:a@b"))


def test_fields_in_backticks_are_refused_and_texts_may_have_them():
    assert matches(compile_selector("""'`' + "a'`" + r"\\d`" + '\\'`' != '' // `"""), device())
    with pytest.raises(CompileError, match="unsupported syntax: '`'"):
        compile_selector("""'`' == '' || device.`driver` == ''""")


def test_too_long():
    with pytest.raises(CompileError, match="10240 bytes"):
        compile_selector("true " + " " * 10_240)


@pytest.mark.parametrize(
    "expression", ["", "\0", "'\ud800' == ''", "(" * 5_000, "!" * 10_000, "a." * 5_000, "[" * 9_000, "'" * 9_001]
)
def test_odd_texts_are_refused(expression: str):
    with pytest.raises(CompileError):
        compile_selector(expression)


def test_an_evaluation_ends_at_the_cost_limit():
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    expression = f"{ten}.all(a, {ten}.all(b, {ten}.all(c, true)))"
    evaluation = compile_selector(expression).evaluate(device(), limit=500)
    assert isinstance(evaluation.error, CostLimitError)
    assert evaluation.cost == 500


def test_the_cost_limit_is_not_absorbed():
    evaluation = compile_selector("[1, 2, 3].all(a, a > 0) || true").evaluate(device(), limit=5)
    assert isinstance(evaluation.error, CostLimitError)


@pytest.mark.parametrize(
    "expression",
    [
        'cel.bind(a, "{0}", cel.bind(b, a + a, cel.bind(c, b + b, (c + c).size() > 0)))'.replace("{0}", "x" * 2_000),
        "[1].all(a, lists.range(100000000).size() > 0)",
        "[lists.range(30000)].all(a, a.distinct().size() == 30000)",
        "[lists.range(2000)].all(a, sets.contains(a, a) && sets.contains(a, a))",
    ],
)
def test_large_values_end_at_the_limit_before_they_are_made(expression: str):
    selector = compile_selector(expression)
    assert selector.evaluate(device(), limit=2_000).error is not None


def test_a_regular_expression_does_not_backtrack():
    selector = compile_selector(f'{OWN}.model.matches("^(a+)+$")')
    assert matches(selector, device(model="a" * 64 + "b")) is False


def test_macros_do_not_change_what_another_evaluation_sees():
    selector = compile_selector("[3, 1, 2].map(a, [1, 2].map(b, a + b).size()).sum() == 6")
    assert [selector.evaluate(device()).matches for _ in range(3)] == [True] * 3


def test_order_of_versions_is_total():
    texts = [
        "1.0.0-1",
        "1.0.0-2",
        "1.0.0-11",
        "1.0.0-a",
        "1.0.0-a.1",
        "1.0.0-b",
        "1.0.0",
        "1.0.1-x",
        "1.0.1",
        "1.10.0",
        "2.0.0",
    ]
    versions = [Semver.parse(text) for text in texts]
    shuffled = random.Random(1).sample(versions, len(versions))
    assert sorted(shuffled, key=Semver.order) == versions


@given(st.fractions(max_denominator=10**9), st.sampled_from(["", "m", "k", "Ki", "e3", "E-2"]))
def test_quantities_add_up(amount, suffix: str):
    quantity = Quantity.parse(f"{float(amount):.6f}{suffix}")
    assert isinstance(quantity, Quantity)
    assert quantity.plus(quantity).minus(quantity).amount == quantity.amount


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fd00::1/64", 'unexpected character, want colon (at "/64")'),
        ("0:3b:00.0", 'embedded IPv4 address must replace the final 2 fields of the address (at "00.0")'),
        ("::1:", 'colon must be followed by more characters (at ":")'),
        ("1::2::3", 'multiple :: in address (at ":3")'),
        ("x:1", 'each colon-separated field must have at least one digit (at "x:1")'),
        ("1:2:3:4:5:6:7:8:9", 'trailing garbage after address (at "9")'),
        ("1:2", "address string too short"),
        ("1:2:3:4:5:6:7::8", "the :: must expand to at least one field of zeros"),
        ("::12345", 'each group must have 4 or less digits (at "12345")'),
        ("1.2.3.4.5x", "IPv4 address too long"),
        ("\\u00e9\\t", "unable to parse IP"),
    ],
)
def test_addresses_are_refused_in_the_words_of_go(text: str, problem: str):
    error = compile_selector(f'ip("{text}").isLoopback()').evaluate(device()).error
    assert error is not None
    shown = text.replace("\\u00e9", "é")
    assert error.reason == (
        f'IP Address "{shown}" parse error during conversion from string: ParseAddr("{shown}"): {problem}'
    )
