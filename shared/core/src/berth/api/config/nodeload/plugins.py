"""The plugins of this package by name, as a file's reader needs them, and what they ask of the collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from berth.api.config.configuration import KubeSchedulerConfiguration, ProfileConfiguration
from berth.api.config.nodeload import args, koordinator, trimaran
from berth.api.config.nodeload.queries import AVERAGE, LoadQuery, LoadReading, Statistic
from berth.api.config.types import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlugin:
    """A plugin's name, extension points and arguments; ``readings``: what valid arguments ask of the collector."""

    name: str
    points: tuple[Point, ...]
    args_type: type[msgspec.Struct]
    validate: Callable[[Any, str], list[str]]
    readings: Callable[[Any], tuple[LoadReading, ...]]
    only_in_presets: bool = False


LOAD_PLUGINS: Final[Mapping[str, LoadPlugin]] = {
    args.NAME: LoadPlugin(
        name=args.NAME,
        points=args.POINTS,
        args_type=args.NodeLoadArgs,
        validate=args.validate,
        readings=lambda given: (args.reading_of(given),),
    ),
    koordinator.NAME: LoadPlugin(
        name=koordinator.NAME,
        points=koordinator.POINTS,
        args_type=koordinator.LoadAwareSchedulingArgs,
        validate=koordinator.validate,
        readings=koordinator.readings_of,
    ),
    trimaran.TARGET_LOAD_PACKING: LoadPlugin(
        name=trimaran.TARGET_LOAD_PACKING,
        points=trimaran.POINTS,
        args_type=trimaran.TargetLoadPackingArgs,
        validate=trimaran.validate_packing,
        readings=trimaran.packing_readings,
    ),
    trimaran.LOAD_VARIATION_RISK_BALANCING: LoadPlugin(
        name=trimaran.LOAD_VARIATION_RISK_BALANCING,
        points=trimaran.POINTS,
        args_type=trimaran.LoadVariationRiskBalancingArgs,
        validate=trimaran.validate_balancing,
        readings=trimaran.balancing_readings,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDemand:
    """What all profiles read of a query: its statistics, and the age at which none uses a sample any more."""

    statistics: frozenset[Statistic] = frozenset({AVERAGE})
    maximum_age: timedelta = timedelta()

    def with_reading(self, reading: LoadReading) -> LoadDemand:
        return LoadDemand(
            statistics=self.statistics | {reading.statistic}, maximum_age=max(self.maximum_age, reading.maximum_age)
        )


def load_queries(configuration: KubeSchedulerConfiguration) -> dict[LoadQuery, LoadDemand]:
    """The queries of all profiles, each with the statistics that are read."""
    found: dict[LoadQuery, LoadDemand] = {}
    for profile in configuration.profiles:
        for name, plugin in LOAD_PLUGINS.items():
            if not _runs(profile, name):
                continue
            for reading in plugin.readings(profile.args[name]):
                found[reading.query] = found.get(reading.query, LoadDemand()).with_reading(reading)
    return found


def _runs(profile: ProfileConfiguration, name: str) -> bool:
    return any(ref.name == name for refs in profile.plugins.values() for ref in refs)
