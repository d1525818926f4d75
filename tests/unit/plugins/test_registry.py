"""The registry is literal and complete; plugins from elsewhere are added to it."""

import pytest

from berth.api.config.presets import DEFAULT
from berth.api.config.types import Point
from berth.framework.profile import POINT_TYPES
from berth.plugins.registry import BUILT_IN
from harness.builders.profiles import default_profile

DEFAULT_NAMES = {ref.name for ref in DEFAULT.multi_point.enabled}
OTHER_NAMES = {"network_traffic": "NetworkTraffic"}
FILTERS_WHEN_ASKED = {"NetworkTraffic", "NodeFailures", "NodeLoad"}
NAMED_IN_FILES = {"LoadAwareScheduling": {Point.PRE_FILTER, Point.RESERVE}}
"""Points that files of another project name for its plugin, whose work there berth does without the plugin."""


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_plugins_have_their_registered_names_and_points(name):
    factory = BUILT_IN[name]
    plugin = factory.build(factory.args_type() if factory.args_type else None)
    assert factory.name == plugin.name == OTHER_NAMES.get(name, name)
    points = {point for point in Point if isinstance(plugin, POINT_TYPES[point])}
    filters = {Point.FILTER} if plugin.name in FILTERS_WHEN_ASKED else set()
    assert set(factory.points) == points | filters | NAMED_IN_FILES.get(name, set())


def test_the_default_preset_names_plugins_that_exist():
    assert BUILT_IN.keys() >= DEFAULT_NAMES
    assert default_profile().binds[0].name == "DefaultBinder"
