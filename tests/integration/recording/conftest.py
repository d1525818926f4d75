"""A disk for recordings that can be filled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.plugins.left_out import require
from harness.servers.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    require("small-disk")
    with small_disk(tmp_path / "disk", 1) as disk:
        yield disk
