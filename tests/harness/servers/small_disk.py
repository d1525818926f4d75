"""A folder on a disk of its own that can be filled to the last byte: a tmpfs, which only root may mount."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

FILLER = "filler"
BLOCK = b"\0" * 65_536


class SmallDisk:
    """The folder; without a mount (`is_small` false) it is an ordinary one."""

    def __init__(self, folder: Path, *, is_small: bool) -> None:
        self.folder = folder
        self.is_small = is_small

    def fill(self) -> None:
        """Leave no byte free."""
        with (self.folder / FILLER).open("ab", buffering=0) as file:
            size = len(BLOCK)
            while size:
                try:
                    file.write(BLOCK[:size])
                except OSError:  # no space left: try the rest with smaller blocks
                    size //= 2

    def free(self) -> None:
        """Give the room back."""
        (self.folder / FILLER).unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """Mount a disk of this size at the folder, if this process may."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    may_try = sys.platform == "linux" and os.geteuid() == 0
    is_small = may_try and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield SmallDisk(folder, is_small=is_small)
    finally:
        if is_small:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


@cache
def may_mount() -> bool:
    """Whether this process may mount a disk: root, outside a container without that right."""
    with TemporaryDirectory(prefix="berth-mount-") as folder, small_disk(Path(folder), 1) as disk:
        return disk.is_small
