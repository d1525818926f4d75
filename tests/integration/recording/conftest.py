"""A disk for recordings that can be filled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.servers.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 1) as disk:
        if not disk.is_small:
            pytest.skip("mounting a file system takes root")
        yield disk
