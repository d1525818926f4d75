"""A real Prometheus that scrapes once a second what a test tells it to.

with prometheus_server(tmp_path) as server:
    server.scrape("127.0.0.2:9100", ...)
    server.url, server.stop()
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from harness.child_processes import free_ports, spawn, stop

START_SECONDS = 30.0
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: node-exporter
  file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
"""


class PrometheusServer:
    """One server with its store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self._folder = folder
        self._targets = folder / "targets.json"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        if not self._targets.exists():
            self.scrape()
        (self._folder / "prometheus.yml").write_text(CONFIG.format(targets=self._targets))
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        self._process = spawn(command, self._folder / "prometheus.log")
        self._wait_until_ready()

    def scrape(self, *instances: str) -> None:
        """Scrape these from now on, and no others."""
        draft = self._targets.with_suffix(".draft")
        draft.write_text(json.dumps([{"targets": list(instances)}]))
        draft.replace(self._targets)

    def stop(self) -> None:
        """End it; what it has stored stays."""
        if self._process is not None:
            stop([self._process])
            self._process = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                with urlopen(f"{self.url}/-/ready", timeout=1) as answer:  # noqa: S310 - an address of our own
                    if answer.status == 200:
                        return
            except (URLError, OSError):
                time.sleep(0.1)
        raise TimeoutError(f"starting prometheus: {(self._folder / 'prometheus.log').read_text()[-600:]}")


@contextmanager
def prometheus_server(folder: Path) -> Iterator[PrometheusServer]:
    """Start one, stop it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    server = PrometheusServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
