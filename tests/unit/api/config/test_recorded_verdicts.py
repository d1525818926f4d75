"""Files that a real kube-scheduler 1.36.3 read: berth accepts and rejects the same ones (tests/data/configuration)."""

import json
from pathlib import Path

import pytest
import yaml

from berth.api.config.encode import as_document
from berth.api.config.load import ConfigurationError, default_configuration, load
from berth.api.config.presets import DEFAULT
from berth.plugins.registry import BUILT_IN
from berth.profiles.configuration import problems_in_services

DATA = Path(__file__).parents[3] / "data" / "configuration"
VERDICTS = [json.loads(line) for line in (DATA / "verdicts.jsonl").read_text().splitlines()]
DEFAULTS = yaml.safe_load((DATA / "defaults.yaml").read_text())["profiles"][0]

STRICTER = (
    "retryPeriod: want more than 0s and 1.2 times it less than leaderElection.renewDeadline",
    "leaderElection.resourceName: want a DNS name",
    "resources[0].name: want cpu, memory, ephemeral-storage or an extended resource",
    "matchFields[0]: want metadata.name with In or NotIn and one value, got 'foo'",
    "weight: want 1..100, got 0",
    "weight: want 1..100, got 500",
    "'TaintToleration' takes no arguments",
    "pluginConfig[0].name: unknown plugin 'Foo'",
    "disabled[0].name: unknown plugin 'Foo'",
    "pluginConfig[0].name: required",
)
"""What kube-scheduler accepts, or fails on only once it leads, and berth rejects (docs/configuration.md)."""


def problems(text: str) -> tuple[str, ...]:
    try:
        configuration = load(text, known=BUILT_IN, preset=DEFAULT)
    except ConfigurationError as error:
        return error.problems
    return tuple(problems_in_services(configuration, {}))


def names(verdicts: list) -> list[str]:
    return [" ".join(verdict["file"].split())[86:206] for verdict in verdicts]


REFUSED = [verdict for verdict in VERDICTS if not verdict["accepted"]]
ACCEPTED = [verdict for verdict in VERDICTS if verdict["accepted"]]


@pytest.mark.parametrize("verdict", REFUSED, ids=names(REFUSED))
def test_files_that_kube_scheduler_rejects_are_rejected(verdict):
    assert problems(verdict["file"]), verdict["words"]


@pytest.mark.parametrize("verdict", ACCEPTED, ids=names(ACCEPTED))
def test_files_that_kube_scheduler_accepts_break_stricter_rules_only(verdict):
    assert [problem for problem in problems(verdict["file"]) if not any(known in problem for known in STRICTER)] == []


@pytest.mark.parametrize("known", STRICTER)
def test_every_stricter_rule_occurs_in_a_file_that_kube_scheduler_accepts(known):
    assert any(known in problem for verdict in ACCEPTED for problem in problems(verdict["file"]))


def test_default_plugins_have_the_order_and_weights_of_kube_scheduler():
    theirs = DEFAULTS["plugins"]["multiPoint"]["enabled"]
    mine = [(ref.name, ref.weight or 0) for ref in DEFAULT.multi_point.enabled or ()]
    scoring = {ref["name"] for ref in theirs if ref["weight"]}
    assert [name for name, _ in mine] == [ref["name"] for ref in theirs]
    assert {name: weight for name, weight in mine if name in scoring} == {
        ref["name"]: ref["weight"] for ref in theirs if ref["name"] in scoring
    }


def test_default_arguments_are_shown_as_kube_scheduler_writes_them():
    def by_plugin(configs: list) -> dict:
        return {config["name"]: config["args"] for config in configs}

    (profile,) = as_document(default_configuration(BUILT_IN, DEFAULT))["profiles"]
    theirs = by_plugin(DEFAULTS["pluginConfig"])
    mine = by_plugin(profile["pluginConfig"])
    for name, args in theirs.items():
        assert mine[name] == {key: value for key, value in args.items() if value is not None}
    assert mine.keys() == theirs.keys()
