"""Reads the configuration file for the collector: the arguments of NetworkTraffic, without plugins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from berth.api.config import networktraffic
from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.types import Point
from berth.settings.file import read_file


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownArguments:
    """NetworkTraffic in the form that the file's reader needs: names, points and arguments."""

    name: str = networktraffic.NAME
    points: tuple[Point, ...] = networktraffic.POINTS
    args_type: type[networktraffic.NetworkTrafficArgs] = networktraffic.NetworkTrafficArgs
    validate: Callable[[Any, str], list[str]] = networktraffic.validate
    only_in_presets: bool = False


KNOWN: Final = dict.fromkeys((networktraffic.NAME, networktraffic.ALIAS), KnownArguments())


def read_configuration(path: Path | None, *, provider: str, gates: str) -> KubeSchedulerConfiguration:
    """Read a configuration with NetworkTraffic as the only plugin. See :func:`read_file`."""
    read = read_file(path, known=KNOWN, provider=provider, gates=gates, partial=True)
    return replace(read, built_in=frozenset(KNOWN))
