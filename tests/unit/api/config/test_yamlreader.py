"""YAML has the same values as with PyYAML's safe loader."""

import json
from itertools import pairwise

import pytest
import yaml

from berth.api.config.yamlreader import YamlDumper, check_yaml, reason_in_a_line, yaml_values
from harness.worlds.oracle import clusters, list_of, objects_of


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a: 1\nb: [x, 'y', \"z\", 1.5, 0x1f, 0o7, 1_000, 1.0e+3, 1e3x, e3]\nc: {}\nd: []\n",
            id="collections and numbers",
        ),
        pytest.param("[yes, no, on, off, true, True, ~, null, '', '~', 'yes']", id="words with a meaning in YAML"),
        pytest.param("[2026-11-21T07:48:59Z, 2026-11-21, '2026-11-21', 12:30:45]", id="times"),
        pytest.param("a: |\n  several\n  lines\nb: >-\n  folded\n  lines\n", id="blocks"),
        pytest.param("[!!str 1, !!int '2', !!float 3, !!binary aGk=, ! 4, !!map {a: 1}, !!seq [1]]", id="tags"),
        pytest.param("a: &a {x: 1}\nb: *a\nc: [*a, &b text, *b]\n", id="aliases"),
        pytest.param("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {z: 1, <<: [{y: 5}, *a]}\n", id="merged mappings"),
        pytest.param("1: a\ntrue: b\n~: c\n", id="keys that are no text"),
        pytest.param("---\n---\na\n...\n---\nb: c\n", id="documents"),
        pytest.param("# nothing\n", id="a comment"),
        pytest.param("", id="nothing"),
    ],
)
def test_values_are_those_of_the_safe_loader(text):
    assert list(yaml_values(text)) == list(yaml.safe_load_all(text))


def test_a_number_with_an_exponent_needs_no_dot_and_no_sign():
    (value,) = yaml_values("[1e3, 1E3, 2e-1, +1.e3, -.5e1, '1e3']")
    assert value == [1000.0, 1000.0, 0.2, 1000.0, -5.0, "1e3"]


def test_text_like_a_number_is_written_in_quotes():
    text = {"label": "1e3", "number": 1e3, "whole": 1}
    written = yaml.dump(text, Dumper=YamlDumper)
    assert written == "label: '1e3'\nnumber: 1000.0\nwhole: 1\n"
    assert list(yaml_values(written)) == [text]


def test_a_number_that_json_does_not_have_is_text():
    (value,) = yaml_values("[.inf, -.Inf, .NaN, 1e999, 1.0e+999, !!float nan]")
    assert value == [".inf", "-.Inf", ".NaN", "1e999", "1.0e+999", "nan"]


def test_an_equals_sign_is_text():
    assert list(yaml_values("[=, a=b]")) == [["=", "a=b"]]


def test_a_duplicate_key_is_an_error_with_its_line():
    with pytest.raises(yaml.YAMLError, match="found the key 'cpu' twice"):
        list(yaml_values("a:\n  cpu: 1\n  cpu: 2\n"))


def test_whole_clusters_have_the_same_values():
    for cluster in clusters(3):
        written = yaml.safe_dump(list_of(objects_of(cluster)))
        (value,) = yaml_values(written)
        assert value == json.loads(json.dumps(list_of(objects_of(cluster))))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: [", id="cut"),
        pytest.param("a: b: c", id="two colons"),
        pytest.param("*a", id="an alias of nothing"),
        pytest.param("!!python/object/apply:os.getcwd []", id="a sequence of another language"),
        pytest.param("!thing {a: 1}", id="a mapping with a tag of its own"),
        pytest.param("!thing 1", id="a scalar with a tag of its own"),
        pytest.param("{<<: 1}", id="a number merged"),
        pytest.param("\x00", id="a character that is none"),
    ],
)
def test_what_the_safe_loader_rejects_is_rejected(text):
    for read in (yaml_values, yaml.safe_load_all):
        with pytest.raises(yaml.YAMLError):
            list(read(text))


def _bomb(levels: int) -> str:
    names = "abcdefghijklmnop"[:levels]
    first = f"a: &a [{', '.join('x' * 9)}]\n"
    return first + "".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(names))


TOO_MUCH = [
    pytest.param(_bomb(9), "aliases repeat more than 100000", id="lists of lists"),
    pytest.param(
        f"a: &a {{{', '.join(f'k{n}: 1' for n in range(99))}}}\nb: [{'{<<: [*a, *a, *a, *a, *a]}, ' * 300}]",
        "aliases repeat more than 100000",
        id="merged mappings",
    ),
    pytest.param(f"a: &a {'x' * 10_000}\nb: [{'*a, ' * 20}]", "aliases repeat more than 100000", id="long text"),
    pytest.param("metadata: &a [*a]", "stands inside the value that it repeats", id="a list in itself"),
    pytest.param("? &a {b: *a}\n: c", "stands inside the value that it repeats", id="a mapping in itself"),
    pytest.param("[" * 100_000, "inside each other", id="lists in lists"),
    pytest.param("{a: " * 100_000, "inside each other", id="mappings in mappings"),
    pytest.param("- " * 100_000, "inside each other", id="dashes"),
    pytest.param("? " * 100_000, "inside each other", id="keys of keys"),
    pytest.param(f"a: {'9' * 5000}", "want at most 100 characters", id="a long number"),
    pytest.param(f"a: 1{':1' * 5000}", "want at most 100 characters", id="a long number in base 60"),
    pytest.param("a: 2026-99-99", "month must be in 1..12", id="a date that is none"),
]


@pytest.mark.parametrize(("text", "problem"), TOO_MUCH)
def test_what_would_take_too_much_is_refused_in_one_line(text: str, problem: str):
    for read in (lambda text: list(yaml_values(text)), check_yaml):
        with pytest.raises(yaml.YAMLError) as refused:
            read(text)
        reason = reason_in_a_line(refused.value)
        assert problem in reason
        assert "\n" not in reason
        assert len(reason) < 300


@pytest.mark.parametrize("text", ["a: &a {x: 1}\n" + "b: [*a]\n---\n" * 3, _bomb(4), "[" * 64 + "]" * 64])
def test_what_manifests_repeat_is_read(text: str):
    assert list(yaml_values(text.replace("b: [*a]", "b: 1"))) is not None


def test_reason_does_not_quote_the_text():
    with pytest.raises(yaml.YAMLError) as refused:
        check_yaml("token: secret-of-the-user: x\n")
    assert "secret" not in reason_in_a_line(refused.value)
