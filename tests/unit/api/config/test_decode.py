"""Repeated keys are rejected at every level, with their lines."""

import pytest

from berth.api.config.decode import Problems, parse_yaml


def problems(text: str) -> list[str]:
    found = Problems()
    parse_yaml(text, found)
    return found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("a: 1\nb: 2\na: 3\n", "a: want it once, got it in lines 1, 3", id="at the top"),
        pytest.param(
            "profiles:\n- schedulerName: a\n  plugins:\n    score: {}\n    score: {}\n",
            "profiles[0].plugins.score: want it once, got it in lines 4, 5",
            id="far within",
        ),
        pytest.param(
            '{"a": {"b": 1, "b": 2, "b": 3}}', "a.b: want it once, got it in lines 1, 1, 1", id="in JSON, three times"
        ),
    ],
)
def test_a_repeated_key_is_rejected(text, sentence):
    assert problems(text) == [sentence]


def test_every_repeated_key_is_reported():
    assert len(problems("a: 1\na: 2\nb: {c: 1, c: 2}\n")) == 2


def test_equal_keys_of_different_mappings_are_fine():
    assert problems("a: {x: 1}\nb: {x: 1}\nc: [{x: 1}, {x: 2}]\n") == []


def test_an_aliased_repetition_is_reported_once_and_a_merge_is_none():
    assert problems("a: &a {x: 1, x: 2}\nb: *a\nc: *a\n") == ["a.x: want it once, got it in lines 1, 1"]
    assert problems("a: &a {x: 1}\nb: {<<: *a, x: 2}\n") == []


@pytest.mark.parametrize("text", ["a: [", "? [a]\n: 1\n", "[" * 5000])
def test_text_that_cannot_be_parsed_is_reported_as_not_yaml(text):
    (problem,) = problems(text)
    assert problem.startswith("not YAML: ")


def test_a_file_of_several_documents_is_rejected():
    sentence = (
        "want one KubeSchedulerConfiguration, got several documents (separated by lines of ---): keep one in this file"
    )
    assert problems("a: 1\n---\nb: 2\n") == [sentence]
    assert problems("---\na: 1\n") == []
