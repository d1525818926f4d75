"""The contract and the docs name the services that call each extension point, as the code does."""

import inspect
import re
from pathlib import Path

import pytest

from berth.api.config.types import Point
from berth.framework import interface
from berth.framework.interface import Plugin
from berth.framework.profile import POINT_TYPES, RUNS_IN, ServiceName, services_of

ROOT = Path(__file__).parents[3]
OWN_NAMES = {
    "NormalizeScore": interface.NormalizePlugin,
    "EnqueueExtensions": interface.EnqueueExtensions,
    "PodKey": interface.KeyedPlugin,
    "AddPod": interface.PreFilterExtensions,
    "RemovePod": interface.PreFilterExtensions,
    "Unreserve": interface.ReservePlugin,
}
"""Names in the contract that are not fields of a configuration file."""
VARIANTS = (
    interface.VectorFilterPlugin,
    interface.VectorScorePlugin,
    interface.SpreadingPlugin,
    interface.ExplainingPlugin,
    interface.VectorExplainingPlugin,
    interface.LivePlugin,
)
"""Other forms of a point, called by the same services."""


def documented() -> dict[str, set[str]]:
    """Service by point, from the table at the head of the contract."""
    services: dict[str, set[str]] = {}
    for points, where in re.findall(r"^\| ([A-Z]\w+(?:, \w+)*) \| ([a-z, ]+) \|", interface.__doc__, re.MULTILINE):
        for name in points.split(", "):
            services.setdefault(name, set()).update(where.split(", "))
    return services


@pytest.mark.parametrize("point", Point)
def test_the_contract_names_the_services_of_each_configured_point(point):
    name = str(point)[0].upper() + str(point)[1:]
    assert documented()[name] == {str(service) for service in services_of(point)}


@pytest.mark.parametrize(("name", "kind"), OWN_NAMES.items())
def test_the_contract_names_the_services_of_other_points(name, kind):
    assert documented()[name] == {str(service) for service in RUNS_IN[kind]}


def test_the_contract_has_no_other_points():
    assert documented().keys() == {str(point)[0].upper() + str(point)[1:] for point in Point} | OWN_NAMES.keys()


def test_every_class_of_the_contract_has_its_services():
    classes = {
        kind
        for _, kind in inspect.getmembers(interface, inspect.isclass)
        if issubclass(kind, Plugin) and kind is not Plugin and kind not in VARIANTS
    }
    assert classes == RUNS_IN.keys()
    assert all(any(issubclass(kind, known) for known in RUNS_IN) for kind in VARIANTS)


def test_no_service_asks_for_remedies():
    assert (RUNS_IN[interface.RemedyPlugin], "| Remedy | people's commands |" in interface.__doc__) == ((), True)
    calling = {
        path.name for path in ROOT.glob("s*/*/src/**/*.py") if re.search(r"\brun_remedy", path.read_text("utf-8"))
    }
    assert calling == {"plugincalls.py", "rejections.py"}


def test_every_service_that_has_plugins_is_one_of_three():
    assert {service for services in RUNS_IN.values() for service in services} == set(ServiceName)
    assert set(POINT_TYPES) == set(Point)


def test_the_docs_name_the_same_services():
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| [\w, ]+ \| ((?:`\w+`(?:, )?)+) \| ([a-z, ]+) \|$", page, re.MULTILINE)
    assert {point: where.split(", ") for points, where in rows for point in re.findall(r"\w+", points)} == {
        str(point): [str(service) for service in services_of(point)] for point in Point
    }
