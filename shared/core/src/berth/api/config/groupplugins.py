"""Plugins for groups of pods in files of kube-scheduler and scheduler-plugins.

berth places PodGroups all or none without a plugin. A file that enables one of these loads: the name is left out of the
profile, with a sentence that says what berth does. A plugin of such a name that is installed keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from berth.api.config.types import Args, FileProfile, Point

COSCHEDULING: Final = "Coscheduling"
_WITHOUT_PLUGIN: Final = "groups are placed all or none without a plugin"
_WITH_PLUGIN: Final = "a group that names a topology key is placed in one of its domains without a plugin"


class CoschedulingArgs(Args, frozen=True, kw_only=True):
    """Arguments of scheduler-plugins' Coscheduling, which have no effect."""

    permit_waiting_time_seconds: int | None = None
    pod_group_backoff_seconds: int | None = None
    pod_group_reject_percentage: int | None = None


# By field of CoschedulingArgs, why it has no effect.
_INSTEAD_OF_ARGS: Final = {
    "permitWaitingTimeSeconds": "a group that waits holds no room, so that none has to be given back",
    "podGroupBackoffSeconds": "groups back off by podInitialBackoffSeconds and podMaxBackoffSeconds, as pods do",
    "podGroupRejectPercentage": "the minimum of a group is placed as a whole or not at all",
}


def _validate(args: Any, path: str) -> list[str]:
    given: Mapping[str, int] = msgspec.to_builtins(args or CoschedulingArgs())
    return [f"{path}.{name}: want 0 or more, got {value}" for name, value in given.items() if value and value < 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlugin:
    """A plugin that may be written at any extension point; ``instead``: what berth does without it."""

    instead: str
    args_type: type[msgspec.Struct] | None = None
    points: tuple[Point, ...] = tuple(Point)
    only_in_presets: bool = False

    @staticmethod
    def validate(args: object, path: str) -> list[str]:
        return _validate(args, path)


GROUP_PLUGINS: Final[Mapping[str, GroupPlugin]] = {
    COSCHEDULING: GroupPlugin(instead=_WITHOUT_PLUGIN, args_type=CoschedulingArgs),
    "GangScheduling": GroupPlugin(instead=_WITHOUT_PLUGIN),
    "TopologyPlacement": GroupPlugin(instead=_WITH_PLUGIN),
    "TopologyPlacementGenerator": GroupPlugin(instead=_WITH_PLUGIN),
    "PodGroupPodsCount": GroupPlugin(instead="of the domains that hold a whole group the fullest is tried first"),
}


def what_is_left_out(profiles: list[FileProfile] | None, installed: Mapping[str, object]) -> Iterator[str]:
    """A sentence for each of these plugins that a profile enables, and for each argument of one."""
    for index, profile in enumerate(profiles or ()):
        sets = (getattr(profile.plugins, name) for name in profile.plugins.__struct_fields__)
        enabled = dict.fromkeys(ref.name for chosen in sets for ref in chosen.enabled or ())
        for name in (name for name in enabled if name in GROUP_PLUGINS and name not in installed):
            yield f"profiles[{index}].plugins: {name} is left out, {GROUP_PLUGINS[name].instead}"
        for number, config in enumerate(profile.plugin_config or ()):
            if config.name == COSCHEDULING and COSCHEDULING not in installed:
                for name in (name for name in config.args or () if name in _INSTEAD_OF_ARGS):
                    where = f"profiles[{index}].pluginConfig[{number}].args.{name}"
                    yield f"{where} has no effect, {_INSTEAD_OF_ARGS[name]}"
