"""YAML has the same values as with PyYAML's safe loader."""

import json

import pytest
import yaml

from berth.simulate.yamlreader import yaml_values
from harness.worlds.oracle import clusters, list_of, objects_of


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a: 1\nb: [x, 'y', \"z\", 1.5, .inf, 0x1f, 0o7, 1_000, 1e3]\nc: {}\nd: []\n", id="collections and numbers"
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
