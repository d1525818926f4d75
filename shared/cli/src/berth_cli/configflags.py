"""The flags of the services' configuration, for commands that may answer without it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from berth.exits import Exit
from berth_cli.rendering import note

if TYPE_CHECKING:
    from berth.api.config.configuration import KubeSchedulerConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationFlags:
    """Given flags. Unknown names of presets and gates end the command at once."""

    file: Path | None
    provider: str | None
    gates: str | None

    def __post_init__(self) -> None:
        if not (self.provider or self.gates):
            return
        from berth.api.config.presets import DEFAULT_NAME, GateError  # noqa: PLC0415 - for few people
        from berth.settings.presets import UnknownPresetError, gates_for, preset  # noqa: PLC0415 - the same

        try:
            gates_for(self.provider or DEFAULT_NAME, self.gates or "")
            preset(self.provider or DEFAULT_NAME)
        except (GateError, UnknownPresetError) as error:
            note(str(error))
            raise typer.Exit(Exit.USAGE) from error

    def read(self) -> KubeSchedulerConfiguration:
        """Read the configuration. Errors end the command with exit code 2."""
        # Every plugin and NumPy, which take 0.2 s of CPU.
        from berth_cli.commands.config import configured  # noqa: PLC0415 - see above

        return configured(self.file, self.provider, self.gates)
