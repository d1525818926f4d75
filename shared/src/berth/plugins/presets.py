"""Lists of plugins by name. DEFAULT is what a profile runs unless its file says otherwise."""

from __future__ import annotations

from typing import Final

from berth.api.config.types import PluginRef, Plugins, PluginSet
from berth.plugins import (
    defaultbinder,
    nodeaffinity,
    nodename,
    noderesourcesfit,
    nodeunschedulable,
    prioritysort,
    schedulinggates,
    tainttoleration,
)

DEFAULT: Final = Plugins(
    multi_point=PluginSet(
        enabled=[
            PluginRef(name=schedulinggates.NAME),
            PluginRef(name=prioritysort.NAME),
            PluginRef(name=nodeunschedulable.NAME),
            PluginRef(name=nodename.NAME),
            PluginRef(name=tainttoleration.NAME, weight=3),
            PluginRef(name=nodeaffinity.NAME, weight=2),
            PluginRef(name=noderesourcesfit.NAME, weight=1),
            PluginRef(name=defaultbinder.NAME),
        ]
    )
)
"""kube-scheduler 1.36's default plugins, in its order and with its weights."""
