"""The one table of kinds, and the code and documents that must follow it."""

from pathlib import Path
from typing import get_args

import yaml

from berth.api import kinds
from berth.api.kinds import PLUGIN_KINDS, WATCHED_KINDS, Kind, PluginObject
from berth.framework.events import Resource
from berth_cli.simulate.live import LISTED
from berth_sim.apiserver.kinds import KINDS as SIMULATED_KINDS
from harness.builders.random_objects import BY_KIND

ROOT = Path(__file__).parents[3]
RIGHTS = ROOT / "docs/rights/berth.yaml"


def test_every_kind_that_is_declared_is_in_the_table():
    declared = {value for value in vars(kinds).values() if isinstance(value, Kind)}
    others = {kinds.LEASE, kinds.PRIORITY_CLASS, kinds.RESOURCE_CLAIM_TEMPLATE} & declared
    assert declared - others == set(WATCHED_KINDS)
    assert {kind.struct for kind in PLUGIN_KINDS.values()} == set(get_args(PluginObject))


def test_every_kind_of_plugins_has_events_and_random_objects():
    assert {kind.kind for kind in PLUGIN_KINDS.values()} <= {str(resource) for resource in Resource}
    assert set(BY_KIND) == set(PLUGIN_KINDS)


def test_simulated_cluster_serves_every_watched_kind():
    served = {(kind.group, kind.plural) for kind in SIMULATED_KINDS}
    assert [kind.name for kind in WATCHED_KINDS if (kind.group, kind.plural) not in served] == []


def test_documented_rights_allow_reading_every_watched_kind():
    roles = [role for role in yaml.safe_load_all(RIGHTS.read_text()) if role["metadata"]["name"] == "berth-reads"]
    allowed = {
        (group, plural)
        for rule in roles[0]["rules"]
        if {"list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    }
    assert [kind.name for kind in WATCHED_KINDS if (kind.group, kind.plural) not in allowed] == []


def test_an_exported_cluster_has_every_watched_kind():
    assert {kind.path: (kind.api_version, kind.kind) for kind in WATCHED_KINDS}.items() <= LISTED.items()
