"""A plugin of another distribution, as pip leaves it: a folder for PYTHONPATH."""

from __future__ import annotations

import re
from pathlib import Path


def installed_plugin(site: Path, name: str, source: str) -> Path:
    """Install a module with the plugin's factory; that of a plugin `FreeDisk` is `free_disk`. Returns the folder."""
    module = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    about = site / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[berth.plugins]\n{name} = {module}:FACTORY\n")
    return site
