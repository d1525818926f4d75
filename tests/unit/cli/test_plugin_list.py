"""`berth plugin list`: the plugins, their services, and the events that requeue pods."""

import json
import re

from typer.testing import CliRunner

from berth.api.config.types import Point
from berth.framework.interface import FilterPlugin
from berth.plugins.factory import PluginFactory
from berth.plugins.registry import BUILT_IN
from berth.profiles.installed import PluginBuildError
from berth_cli.commands.plugin import app, listed_as


def typed(*words: str) -> str:
    done = CliRunner().invoke(app, ["list", *words])
    assert done.exit_code == 0
    return done.stdout


def test_every_plugin_is_listed_once_under_its_own_name():
    today = [one for one in json.loads(typed("-o", "json")) if one["release"] == "1.36"]
    assert [one["name"] for one in today] == [name for name, factory in BUILT_IN.items() if factory.name == name]


def test_plugins_of_the_older_release_are_marked():
    older = {one["name"]: one for one in json.loads(typed("-o", "json")) if one["release"] == "1.18"}
    assert {"EBSLimits", "NodePreferAvoidPods", "NodeResourcesLeastAllocated", "NodeAffinity"} <= older.keys()
    assert "NodeName" not in older  # the same in both
    assert older["EBSLimits"]["points"].keys() == {"filter", "events"}
    assert "Plugins of 1.18 run with the presets of that release: `berth config providers`." in typed()


def test_a_plugin_has_its_services_and_requeue_events():
    (taints,) = (
        one for one in json.loads(typed("-o", "json")) if (one["name"], one["release"]) == ("TaintToleration", "1.36")
    )
    assert taints == {
        "name": "TaintToleration",
        "release": "1.36",
        "points": {"filter": ["scorer", "binder"], "score": ["scorer"], "events": ["watcher"]},
        "wakes_on": {"Node": ["add", "taint"], "Pod": ["tolerations"]},
        "takes_arguments": False,
    }


def test_the_table_has_a_line_a_plugin():
    (line,) = (line for line in typed().splitlines() if line.startswith("SchedulingGates "))
    assert re.split(r"\s{2,}", line) == [
        "SchedulingGates",
        "preEnqueue, events",
        "Pod: scheduling gates eliminated",
    ]


def test_below_the_plugins_are_the_services_that_call_each_point():
    rows = [re.split(r"\s{2,}", line) for line in typed().splitlines()]
    assert rows[rows.index(["CALLED IN", "AT"]) + 1 :] == [
        ["watcher", "events, preEnqueue, queueSort"],
        ["scorer, binder", "preFilter, filter, postFilter"],
        ["scorer", "preScore, score"],
        ["binder", "reserve, permit, preBind, bind, postBind"],
    ]


class Mine(FilterPlugin):
    name = "Mine"

    def filter(self, state, pod, node):
        raise NotImplementedError


def test_a_plugin_may_depend_on_its_arguments():
    def refuses(_args):
        raise PluginBuildError("making plugin 'Mine': no url")

    (traffic,) = (line for line in typed().splitlines() if line.startswith("NetworkTraffic "))
    assert traffic.endswith("depends on its arguments")
    assert listed_as(PluginFactory(name="Mine", points=(Point.FILTER,), build=refuses)).wakes_on is None


def test_a_filter_without_events_is_requeued_by_everything():
    assert listed_as(PluginFactory(name="Mine", points=(Point.FILTER,), build=lambda _: Mine())).wakes_on == {
        "*": ("*",)
    }
    assert listed_as(BUILT_IN["ImageLocality"]).wakes_on == {}
