from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.servers.prometheus_server import PrometheusServer, prometheus_server


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[PrometheusServer]:
    with prometheus_server(tmp_path / "prometheus") as server:
        yield server
